"""Make DAGs from a folder of campaigns. An error in one campaign does not affect the others."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_parsing_context
from airflow.sdk.timezone import coerce_datetime
from airflow.timetables import interval
from airflow.timetables.base import TimeRestriction

from sendoff.campaign import (
    HOUSEKEEPING_DAGS,
    Campaign,
    CampaignFolder,
    QueryExclusion,
    describe,
    did_you_mean,
    is_campaign_folder,
    is_journey_folder,
    load_campaign,
    load_journey,
    storable,
    tested_by,
)
from sendoff.errors import CampaignError
from sendoff_airflow.dags.campaign import campaign_dag, start_of
from sendoff_airflow.dags.group import Approvers, TaskOptions, check_approvers
from sendoff_airflow.dags.journey import journey_dag
from sendoff_airflow.dags.names import names_in_use

_log = logging.getLogger(__name__)


def campaign_dags(
    folder: Path,
    *,
    approvers: Approvers | None = None,
    connections: Collection[str] | None = None,
    warehouses: Collection[str] | None = None,
    reserved: Collection[str] = HOUSEKEEPING_DAGS,
    **choices: Any,
) -> dict[str, DAG]:
    """Return the DAG of each campaign and journey in ``folder``, by name.

    Broken ones are left to :func:`check_campaigns`. Raise TypeError for an argument that :func:`campaign_dag` lacks,
    and ValueError for one whose value keeps a valid campaign from having a DAG.

    ``connections`` and ``warehouses``: the Airflow connections that campaigns may use. None: any. ``reserved``: names
    of the deployment's other DAGs, which no campaign may have; by default those of the housekeeping DAGs. Names in the
    Python files of the DAGs folder are found anyway. The other arguments are those of :func:`campaign_dag`.

    A task reads its DAG file again, and gets only the DAG of its own campaign, or none.
    """
    inspect.signature(campaign_dag).bind(None, approvers=approvers, **choices)
    task_of = get_parsing_context().dag_id
    if task_of is None:
        paths = list(_folders(folder))
        taken = names_in_use(folder, _names(paths))
    else:  # in a task: the names were checked when the DAG was stored
        paths, taken = list(_folders(folder, only=task_of)), {}
    allowed = _Allowed(approvers or {}, connections, warehouses, reserved, taken)
    dags = {}
    for path in paths:
        try:
            dags[path.name] = _checked_dag(path, allowed, choices)
        except CampaignError as error:
            _log.error("this campaign has no DAG: %s", error)
    return dags


def check_campaigns(
    folder: Path,
    *,
    approvers: Approvers | None = None,
    connections: Collection[str] | None = None,
    warehouses: Collection[str] | None = None,
    reserved: Collection[str] = HOUSEKEEPING_DAGS,
) -> None:
    """Raise one CampaignError that lists the errors of all campaigns in ``folder``.

    Call it from a separate DAG file with the same ``approvers``, ``connections``, ``warehouses`` and ``reserved`` as
    :func:`campaign_dags`. The error then shows as an import error in the UI. In the file that makes the DAGs it would
    remove the valid campaigns too, because Airflow drops all DAGs of a file that raises.
    """
    paths = list(_folders(folder))
    taken = names_in_use(folder, _names(paths))
    allowed = _Allowed(approvers or {}, connections, warehouses, reserved, taken)
    problems = []
    for path in paths:
        try:
            _checked_dag(path, allowed, {})
        except CampaignError as error:
            problems.append(storable(str(error)))
    if problems:
        # A mistake in defaults.yaml is the same for all.
        raise CampaignError("\n".join(dict.fromkeys(problems)))


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The roles, connections and names that campaigns may use."""

    approvers: Approvers
    connections: Collection[str] | None
    warehouses: Collection[str] | None
    reserved: Collection[str]
    taken: Mapping[str, Path]

    def __post_init__(self) -> None:
        """Raise TypeError for a text in place of a list, because it would allow each part of it."""
        check_approvers(self.approvers)
        for name in ("connections", "warehouses", "reserved"):
            if isinstance(given := getattr(self, name), str):
                raise TypeError(f"{name}: found a text. Use a list, such as {name}=[{given!r}].")

    def check_names(self, path: Path) -> None:
        """Raise CampaignError if something else has the name of a folder, or of a journey's step in it."""
        if path.name in self.reserved:
            names = ", ".join(sorted(self.reserved))
            raise CampaignError(
                f"{path}: another DAG has this name. Rename the campaign's folder. Reserved names: {names}."
            )
        if other := self.taken.get(path.name):
            raise CampaignError(
                f"{path}: the file {other} defines a DAG of this name. Rename the campaign's folder."
            )
        if tested := tested_by(path):
            raise CampaignError(
                f"{path}: tests of the campaign {tested} have this name. Rename one of the two."
            )
        for name in _steps(path):
            other = path.with_name(name) if is_campaign_folder(path.with_name(name)) else self.taken.get(name)
            if other or name in self.reserved:
                raise CampaignError(
                    f"{path}: {other or 'another DAG'} has the name of the step {name}. Rename one of the two."
                )
        journey = path.with_name(path.name.rpartition(".")[0] or path.name)
        if path.name in _steps(journey):
            raise CampaignError(f"{path}: a step of {journey} has this name. Rename one of the two.")

    def check(self, folder: CampaignFolder) -> None:
        """Raise CampaignError for the first name in a campaign that is not allowed."""
        campaign = folder.campaign
        named: list[tuple[tuple[str | int, ...], str, Collection[str] | None]] = [
            (("connection",), campaign.connection, self.connections),
            (("warehouse",), campaign.warehouse, self.warehouses),
        ]
        if writes_to := campaign.report.tables_warehouse:
            named.append((("report", "tables_warehouse"), writes_to, self.warehouses))
        for number, exclusion in enumerate(campaign.audience.exclude):
            if isinstance(exclusion, QueryExclusion) and exclusion.warehouse:
                own = ("audience", "exclude", number, "warehouse")
                named.append((own, exclusion.warehouse, self.warehouses))
        for place, name, names_allowed in named:
            if names_allowed is not None and name not in names_allowed:
                listed = ", ".join(sorted(names_allowed)) or "none"
                hint = did_you_mean(name, names_allowed)
                where = folder.place_of(*place)
                raise CampaignError(f"{where}: found {describe(name)}{hint}; allowed: {listed}")


def _checked_dag(path: Path, allowed: _Allowed, choices: Mapping[str, Any]) -> DAG:
    """Return the DAG of a folder. Raise only CampaignError, whatever is in the folder.

    Raise ValueError if the choices are wrong, so that the folder has a DAG only without them.
    """
    try:
        return _valid_dag(path, allowed, choices)
    except CampaignError:
        raise
    except Exception as error:  # one folder's mistake must not stop the others
        problem = f"{type(error).__name__}: {error}" if _is_airflows(error) else type(error).__name__
        if choices and not _is_broken(path, allowed, {}):
            wrong = [name for name, value in choices.items() if _is_broken(path, allowed, {name: value})]
            if wrong:  # else it was a passing error of this folder
                raise ValueError(
                    f"campaign_dags: {', '.join(wrong)}: Airflow cannot make a DAG of {path} with this value "
                    f"({type(error).__name__}: {error}). Correct it in the DAG file."
                ) from error
    raise CampaignError(
        f"{path / 'campaign.yaml'}: Airflow cannot make a DAG of this campaign ({problem[:300]}). Correct the campaign."
    )


def _is_broken(path: Path, allowed: _Allowed, choices: Mapping[str, Any]) -> bool:
    """Check whether a folder has no DAG with some choices."""
    try:
        _valid_dag(path, allowed, choices)
    except Exception:
        return True
    return False


def _valid_dag(path: Path, allowed: _Allowed, choices: Mapping[str, Any]) -> DAG:
    """Return the DAG of a folder, after Airflow's own checks.

    Airflow would run these checks when it stores the DAGs, and would then store none of the file.
    """
    journey = load_journey(path) if is_journey_folder(path) else None
    folders = journey.campaigns if journey else (load_campaign(path),)
    allowed.check_names(path)
    for folder in folders:
        allowed.check(folder)
    if journey:
        # No alert: a run takes as long as its waits.
        of_tasks = {name: value for name, value in choices.items() if name != "on_alert"}
        dag = journey_dag(journey, TaskOptions(allowed.approvers, **of_tasks))
    else:
        dag = campaign_dag(folders[0], approvers=allowed.approvers, **choices)
    dag.validate()  # type: ignore[no-untyped-call]
    _compute_first_run(folders[0].campaign)
    return dag


def _compute_first_run(campaign: Campaign) -> None:
    """Compute the first run, as Airflow does when it stores the DAG. Raise what Airflow raises."""
    if campaign.schedule:
        clock = _Clock(campaign.schedule, campaign.schedule_time_zone)
        bounds = TimeRestriction(earliest=coerce_datetime(start_of(campaign)), latest=None, catchup=False)
        clock.next_dagrun_info(last_automated_data_interval=None, restriction=bounds)


class _Clock(interval.CronDataIntervalTimetable):
    """Airflow's timetable without the words for its schedule, which take longer than the first run."""

    def _describe_with_dom_dow_fix(self, expression: str) -> str:  # noqa: ARG002
        return ""


def _is_airflows(error: Exception) -> bool:
    """Check whether an error comes from Airflow or croniter. Their texts hold no message text."""
    return type(error).__module__.partition(".")[0] in ("airflow", "croniter")


def _names(paths: Iterable[Path]) -> list[str]:
    """Return the names of the campaigns in some folders, and of the folders of journeys."""
    return [name for path in paths for name in (path.name, *_steps(path))]


def _steps(path: Path) -> list[str]:
    """Return the names of a journey's campaigns. Others have none, and nor does a broken journey."""
    try:
        return [each.name for each in load_journey(path).campaigns] if is_journey_folder(path) else []
    except (CampaignError, OSError):
        return []


def _folders(folder: Path, only: str | None = None) -> Iterator[Path]:
    """Yield each campaign folder in ``folder``, or only the one with this name."""
    for path in sorted(entry for entry in folder.iterdir() if only in (None, entry.name)):
        if is_campaign_folder(path):
            yield path
