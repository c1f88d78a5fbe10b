"""A folder with campaigns becomes DAGs, and what is wrong with one campaign is that campaign's error alone."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_parsing_context
from airflow.sdk.timezone import coerce_datetime
from airflow.timetables import interval
from airflow.timetables.base import TimeRestriction

from sendoff.campaign import (
    Campaign,
    CampaignFolder,
    QueryExclusion,
    describe,
    did_you_mean,
    load_campaign,
    storable,
)
from sendoff.errors import CampaignError
from sendoff_airflow.dags.campaign import Approvers, campaign_dag, start_of
from sendoff_airflow.dags.housekeeping import HOUSEKEEPING_DAGS
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
    """Make a DAG of each campaign in ``folder``, by name; what is broken is left to :func:`check_campaigns`.

    ``connections`` and ``warehouses``: Airflow's connections that campaigns may name; any, where it is None.
    ``reserved``: names of the deployment's other DAGs, which no campaign may have. Those that stand in the Python files
    of the DAGs folder are found anyway. The other arguments are those of :func:`campaign_dag`.

    A task reads its DAG file once more, and gets the DAG of its own campaign alone, or none.
    """
    task_of = get_parsing_context().dag_id
    if task_of is None:
        paths = list(_folders(folder))
        taken = names_in_use(folder, [path.name for path in paths])
    else:  # what may be sent was decided when the DAG was stored
        paths, taken = list(_folders(folder, only=task_of)), {}
    allowed = _Allowed(approvers or {}, connections, warehouses, reserved, taken)
    dags = {}
    for path in paths:
        try:
            dags[path.name] = _checked_dag(path, allowed, choices)
        except CampaignError as error:
            _log.error("a campaign is left out: %s", error)
    return dags


def check_campaigns(
    folder: Path,
    *,
    approvers: Approvers | None = None,
    connections: Collection[str] | None = None,
    warehouses: Collection[str] | None = None,
    reserved: Collection[str] = HOUSEKEEPING_DAGS,
) -> None:
    """Raise one CampaignError that names everything that is wrong with any campaign in ``folder``.

    Called from a DAG file of its own, with what :func:`campaign_dags` is given, it becomes an import error in the UI.
    In the file that makes the DAGs it would take the sound campaigns away as well, since Airflow drops all DAGs of a
    file that raises.
    """
    paths = list(_folders(folder))
    taken = names_in_use(folder, [path.name for path in paths])
    allowed = _Allowed(approvers or {}, connections, warehouses, reserved, taken)
    problems = []
    for path in paths:
        try:
            _checked_dag(path, allowed, {})
        except CampaignError as error:
            problems.append(storable(str(error)))
    if problems:
        raise CampaignError("\n".join(problems))


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What a deployment lets its campaigns name."""

    approvers: Approvers
    connections: Collection[str] | None
    warehouses: Collection[str] | None
    reserved: Collection[str]
    taken: Mapping[str, Path]

    def check(self, folder: CampaignFolder) -> None:
        """Raise CampaignError for the first name of a campaign that is not allowed."""
        campaign, file = folder.campaign, folder.path / "campaign.yaml"
        if folder.name in self.reserved:
            names = ", ".join(sorted(self.reserved))
            raise CampaignError(f"{folder.path}: found the name of another DAG; allowed: none of {names}")
        if other := self.taken.get(folder.name):
            raise CampaignError(
                f"{folder.path}: the file {other} defines a DAG of this name. Rename the campaign's folder."
            )
        named = [("connection", campaign.connection, self.connections)]
        named.append(("warehouse", campaign.warehouse, self.warehouses))
        for number, exclusion in enumerate(campaign.audience.exclude):
            if isinstance(exclusion, QueryExclusion) and exclusion.warehouse:
                place = f"audience.exclude[{number}].warehouse"
                named.append((place, exclusion.warehouse, self.warehouses))
        for place, name, names_allowed in named:
            if names_allowed is not None and name not in names_allowed:
                listed = ", ".join(sorted(names_allowed)) or "none"
                hint = did_you_mean(name, names_allowed)
                raise CampaignError(f"{file}: {place}: found {describe(name)}{hint}; allowed: {listed}")


def _checked_dag(path: Path, allowed: _Allowed, choices: Mapping[str, Any]) -> DAG:
    """Make the DAG of a folder, which Airflow can take; raises nothing but CampaignError, whatever is in the folder.

    What Airflow finds wrong with one DAG it finds when it stores them, and then stores none of the file.
    """
    try:
        folder = load_campaign(path)
        allowed.check(folder)
        dag = campaign_dag(folder, approvers=allowed.approvers, **choices)
        dag.validate()  # type: ignore[no-untyped-call]
        _compute_first_run(folder.campaign)
        return dag
    except CampaignError:
        raise
    except Exception as error:  # one folder's mistake must not stop the others
        problem = f"{type(error).__name__}: {error}" if _is_airflows(error) else type(error).__name__
    raise CampaignError(
        f"{path / 'campaign.yaml'}: found a campaign that is no DAG ({problem[:300]}); allowed: one that Airflow takes"
    )


def _compute_first_run(campaign: Campaign) -> None:
    """Let Airflow compute the first run, as it does when it stores the DAG."""
    if campaign.schedule:
        clock = interval.CronDataIntervalTimetable(campaign.schedule, campaign.schedule_time_zone)
        bounds = TimeRestriction(earliest=coerce_datetime(start_of(campaign)), latest=None, catchup=False)
        clock.next_dagrun_info(last_automated_data_interval=None, restriction=bounds)


def _is_airflows(error: Exception) -> bool:
    """Check whether an error's text is of what Airflow was told, which is no word of a message."""
    return type(error).__module__.partition(".")[0] in ("airflow", "croniter")


def _folders(folder: Path, only: str | None = None) -> Iterator[Path]:
    """Return each folder that means to be a campaign: one that holds either of its two files, or cannot be entered."""
    for path in sorted(entry for entry in folder.iterdir() if only in (None, entry.name)):
        try:
            if {"campaign.yaml", "audience.sql"} & {entry.name for entry in path.iterdir()}:
                yield path
        except (NotADirectoryError, FileNotFoundError):
            continue  # no folder, or a link that leads nowhere
        except OSError:
            yield path  # reading it says why
