"""The DAG factory: a folder with campaigns becomes DAGs.

.. code-block:: text

    audience -> preview -> approve -> dispatch (mapped over the workers) -> launched
                                                                         -> quiet -> report

``audience`` is the setup of ``report``: once there is a launch it is reported on, also where dispatching it failed or
somebody rejected it. The run then fails all the same where dispatching failed, by ``launched``: Airflow takes the state
of a run from the tasks at its ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import (
    DAG,
    Asset,
    AssetOrTimeSchedule,
    Context,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
)
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.timezone import coerce_datetime
from airflow.timetables import interval
from airflow.timetables.base import TimeRestriction

from sendoff.campaign import CampaignFolder, load_campaign
from sendoff.campaign.audience import QueryExclusion
from sendoff.campaign.document import storable
from sendoff.campaign.model import Campaign
from sendoff.campaign.values import shown
from sendoff.errors import CampaignError
from sendoff_airflow import LEDGER
from sendoff_airflow.alerts import tell_of_silence
from sendoff_airflow.approval import ApproveLaunchOperator
from sendoff_airflow.assets import POST_BACKS, audience_asset, launch_asset, report_asset
from sendoff_airflow.documentation import documentation
from sendoff_airflow.doubts import LaunchesInDoubtOperator, ResolveDoubtsOperator
from sendoff_airflow.failures import PatientRetry
from sendoff_airflow.maintenance import MaintainOperator
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CheckSilenceOperator,
    CreateCampaignOperator,
    ExecuteCampaignOperator,
    LaunchedOperator,
    PreviewOperator,
    ReconcileChangedOperator,
    ReconcileOperator,
)
from sendoff_airflow.sensors import PostBacksQuietSensor

PATIENCE: dict[str, Any] = {
    "retries": 8,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=15),
    "retry_policy": PatientRetry(),
}
"""How a task is tried again: for about an hour. Safe, since nothing that was sent is sent again."""

Approvers = Mapping[str, Sequence[str]]
"""The people of each role that campaigns name: their names as Airflow knows them."""

_log = logging.getLogger(__name__)

_WAYS = {"create": CreateCampaignOperator, "execute": ExecuteCampaignOperator}


OWN_DAGS = ("doubts", "maintenance", "reconcile")
"""The DAGs for all campaigns, as they are called where a deployment names them no other way."""


def campaign_dags(
    folder: Path,
    *,
    approvers: Approvers | None = None,
    connections: Collection[str] | None = None,
    warehouses: Collection[str] | None = None,
    reserved: Collection[str] = OWN_DAGS,
    **choices: Any,
) -> dict[str, DAG]:
    """Make a DAG of each campaign in ``folder``, by name; what is broken is left to :func:`check_campaigns`.

    ``connections`` and ``warehouses``: Airflow's connections that campaigns may name; any, where it is None.
    ``reserved``: names of the deployment's other DAGs, which no campaign may have. The other arguments are those of
    :func:`campaign_dag`.
    """
    allowed = _Allowed(approvers or {}, connections, warehouses, reserved)
    dags = {}
    for path in _folders(folder):
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
    reserved: Collection[str] = OWN_DAGS,
) -> None:
    """Raise one CampaignError that names everything that is wrong with any campaign in ``folder``.

    Called from a DAG file of its own, with what :func:`campaign_dags` is given, it becomes an import error in the UI.
    In the file that makes the DAGs it would take the sound campaigns away as well, since Airflow drops all DAGs of a
    file that raises.
    """
    allowed = _Allowed(approvers or {}, connections, warehouses, reserved)
    problems = []
    for path in _folders(folder):
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

    def check(self, folder: CampaignFolder) -> None:
        """Raise CampaignError for the first name of a campaign that is not allowed."""
        campaign, file = folder.campaign, folder.path / "campaign.yaml"
        if folder.name in self.reserved:
            names = ", ".join(sorted(self.reserved))
            raise CampaignError(f"{folder.path}: found the name of another DAG; allowed: none of {names}")
        named = [("connection", campaign.connection, self.connections)]
        named.append(("warehouse", campaign.warehouse, self.warehouses))
        for number, exclusion in enumerate(campaign.audience.exclude):
            if isinstance(exclusion, QueryExclusion) and exclusion.warehouse:
                place = f"audience.exclude[{number}].warehouse"
                named.append((place, exclusion.warehouse, self.warehouses))
        for place, name, names_allowed in named:
            if names_allowed is not None and name not in names_allowed:
                listed = ", ".join(sorted(names_allowed)) or "none"
                raise CampaignError(f"{file}: {place}: found {shown(name)}; allowed: {listed}")


def _checked_dag(path: Path, allowed: _Allowed, choices: Mapping[str, Any]) -> DAG:
    """Make the DAG of a folder, which Airflow can take; raises nothing but CampaignError, whatever is in the folder.

    What Airflow finds wrong with one DAG it finds when it stores them, and then stores none of the file.
    """
    try:
        folder = load_campaign(path)
        allowed.check(folder)
        dag = campaign_dag(folder, approvers=allowed.approvers, **choices)
        dag.validate()  # type: ignore[no-untyped-call]
        _look_for_a_run(folder.campaign)
        return dag
    except CampaignError:
        raise
    except Exception as error:  # one folder's mistake must not stop the others
        problem = f"{type(error).__name__}: {error}" if _is_airflows(error) else type(error).__name__
    raise CampaignError(
        f"{path / 'campaign.yaml'}: found a campaign that is no DAG ({problem[:300]}); allowed: one that Airflow takes"
    )


def _look_for_a_run(campaign: Campaign) -> None:
    """Let Airflow compute the first run, as it does when it stores the DAG."""
    if campaign.schedule:
        clock = interval.CronDataIntervalTimetable(campaign.schedule, campaign.schedule_time_zone)
        bounds = TimeRestriction(earliest=coerce_datetime(_start(campaign)), latest=None, catchup=False)
        clock.next_dagrun_info(last_automated_data_interval=None, restriction=bounds)


def _is_airflows(error: Exception) -> bool:
    """Say whether an error's text is of what Airflow was told, which is no word of a message."""
    return type(error).__module__.partition(".")[0] in ("airflow", "croniter")


def _folders(folder: Path) -> Iterator[Path]:
    """Give each folder that means to be a campaign: one that holds either of its two files, or cannot be entered."""
    for path in sorted(folder.iterdir()):
        try:
            if {"campaign.yaml", "audience.sql"} & {each.name for each in path.iterdir()}:
                yield path
        except (NotADirectoryError, FileNotFoundError):
            continue  # no folder, or a link that leads nowhere
        except OSError:
            yield path  # reading it says why


def campaign_dag(
    folder: CampaignFolder,
    *,
    approvers: Approvers | None = None,
    on_alert: AsyncCallback | SyncCallback | None = None,
    quiet_for: timedelta | None = None,
    pictures: Path | None = None,
    on_report: Callable[[Context], None] | Sequence[Callable[[Context], None]] | None = None,
    default_args: dict[str, Any] | None = None,
) -> DAG:
    """Make the DAG of one campaign, under the campaign's name.

    ``approvers``: the people of each role that a campaign may name. ``on_alert`` is called, beside the line in the log,
    when a run takes longer than the campaign's ``alert_after``. ``quiet_for`` overrides the campaign's own. The report
    leaves its picture in ``pictures``. ``on_report``, a notifier or several, is called when the report is made.
    ``default_args`` are for all tasks, as Airflow knows them. Airflow finds the DAG by a name of its file: assign it.
    Raises CampaignError for a role without people.
    """
    campaign, name = folder.campaign, folder.name
    people = _people_of_role(folder, approvers or {})
    with DAG(
        dag_id=name,
        description=campaign.title,
        doc_md=documentation(folder),
        schedule=_schedule(campaign),
        start_date=_start(campaign),
        catchup=False,
        default_args={
            "owner": campaign.owner,
            **PATIENCE,
            "retries": campaign.retries,
            **(default_args or {}),
        },
        tags=["sendoff", *campaign.tags],
        params=_form(),
        deadline=_deadlines(folder, on_alert),
        auto_register=False,  # or one that is looked at and refused would be a DAG of its file all the same
    ) as dag:
        audience = BuildAudienceOperator(
            task_id="audience",
            folder=folder.path,
            resend="{{ params.resend }}",
            reason="{{ params.reason or '' }}",
            size_limit="{{ params.size_limit or '' }}",
            preview_only="{{ params.dry_run }}",
            outlets=[audience_asset(name)],
        )
        launch_key: Any = audience.output["launch_key"]  # type: ignore[index]
        report = ReconcileOperator(
            task_id="report",
            launch_key=launch_key,
            pictures=str(pictures) if pictures else None,
            inlets=[launch_asset(name)],
            outlets=[report_asset(name)],
            on_success_callback=on_report,
        ).as_teardown(setups=audience, on_failure_fail_dagrun=True)
        preview = PreviewOperator(task_id="preview", launch_key=launch_key)
        approve = ApproveLaunchOperator(task_id="approve", launch_key=launch_key, assigned_users=people)
        dispatch = _dispatch(folder, launch_key)
        quiet = _quiet(campaign, launch_key, quiet_for)
        audience >> preview >> approve >> dispatch >> quiet >> report
        dispatch >> LaunchedOperator(task_id="launched", launch_key=launch_key, outlets=[launch_asset(name)])
    return dag


def _schedule(campaign: Campaign) -> Any:
    if campaign.schedule:
        return CronDataIntervalTimetable(campaign.schedule, timezone=campaign.schedule_time_zone)
    return [Asset.ref(name=name) for name in campaign.after] or None


def _start(campaign: Campaign) -> datetime | None:
    if campaign.start is None:
        return None
    return datetime.combine(campaign.start, time(), ZoneInfo(campaign.schedule_time_zone))


def _people_of_role(folder: CampaignFolder, approvers: Approvers) -> list[dict[str, str]] | None:
    """Give those who may approve a campaign, as Airflow's operator takes them; None: whom Airflow lets."""
    role = folder.campaign.approval.role
    if role is None:
        return None
    if not approvers.get(role):
        roles = ", ".join(sorted(name for name, people in approvers.items() if people))
        raise CampaignError(
            f"{folder.path / 'campaign.yaml'}: approval.role: found {role!r}, a role without people; allowed: "
            f"{roles or 'none, until the deployment names the people of its roles (dags/approvers.py)'}"
        )
    return [{"id": person, "name": person} for person in approvers[role]]


def _deadlines(
    folder: CampaignFolder, on_alert: AsyncCallback | SyncCallback | None
) -> list[DeadlineAlert] | None:
    after = folder.campaign.alert_after
    if after is None:
        return None
    log = AsyncCallback(tell_of_silence, {"campaign": folder.name, "allowed": f"{after.length} {after.unit}"})
    return [
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=after.timedelta(), callback=callback
        )
        for callback in (log, on_alert)
        if callback
    ]


def _dispatch(folder: CampaignFolder, launch_key: Any) -> MappedOperator:
    campaign = folder.campaign
    return (
        _WAYS[campaign.way]
        .partial(
            task_id="dispatch",
            launch_key=launch_key,
            sendoff_conn_id=campaign.connection,
            inlets=[audience_asset(folder.name)],
            **({"pool": campaign.pool} if campaign.pool else {}),
        )
        .expand(worker=list(range(1, campaign.parallelism + 1)))
    )


def _quiet(campaign: Campaign, launch_key: Any, quiet_for: timedelta | None) -> PostBacksQuietSensor:
    quiet = campaign.report.quiet_for.timedelta() if quiet_for is None else quiet_for
    return PostBacksQuietSensor(
        task_id="quiet",
        launch_key=launch_key,
        quiet_for=quiet,
        timeout=campaign.report.at_latest.timedelta(),
        poke_interval=min(quiet / 5, timedelta(seconds=30)),
        soft_fail=True,  # a launch that never falls silent is reported on as well
        deferrable=True,
    )


def _form() -> dict[str, Param]:
    """Give what the trigger form asks for."""
    return {
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Ask the query, count, and stop: nothing is frozen, and nothing is sent.",
        ),
        "size_limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Size limit",
            description="The most people that it is sent to; the others are left out. Empty: no limit.",
        ),
        "resend": Param(
            0,
            type="integer",
            minimum=0,
            title="Resend number",
            description="0 sends each period once, however often it is triggered. 1, 2, ... deliberately send the same "
            "period again, to everybody in it.",
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            title="Reason",
            description="Why the period is sent again; a resend number needs one.",
        ),
    }


def reconcile_dag(schedule: str, *, dag_id: str = "reconcile", **dag_options: Any) -> DAG:
    """Make the DAG that counts post-backs which come after a launch's report, and fails where they stay away.

    It runs by ``schedule``, a cron expression in UTC, and when somebody makes an event of the asset POST_BACKS.
    ``dag_options`` are more arguments of the DAG, as Airflow knows them.
    """
    with DAG(
        dag_id=dag_id,
        description="Reconcile every launch with post-backs that its report does not count",
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable(schedule, timezone="UTC"), assets=POST_BACKS
        ),
        catchup=False,
        max_active_runs=1,
        **{"default_args": PATIENCE, "tags": ["sendoff"], **dag_options},
    ) as dag:
        ReconcileChangedOperator(task_id="reconcile", inlets=[POST_BACKS])
        CheckSilenceOperator(task_id="silence")
    return dag


def doubts_dag(
    schedule: str | None = None,
    *,
    dag_id: str = "doubts",
    people: Sequence[str] | None = None,
    within: timedelta = timedelta(hours=4),
    **dag_options: Any,
) -> DAG:
    """Make the DAG that settles requests in doubt: one task for each launch that has some, at most twenty at a time.

    It runs by ``schedule``, a cron expression in UTC, and not while another run waits for answers. ``people`` may
    answer, by the names that Airflow knows them by; everybody whom Airflow lets if not given. After ``within`` without
    an answer they stay in doubt until the next run. ``dag_options`` are more arguments of the DAG.
    """
    with DAG(
        dag_id=dag_id,
        description="Settle requests of which nobody knows whether the service processed them",
        schedule=CronTriggerTimetable(schedule, timezone="UTC") if schedule else None,
        catchup=False,
        max_active_runs=1,
        **{"default_args": PATIENCE, "tags": ["sendoff"], **dag_options},
    ) as dag:
        launches = LaunchesInDoubtOperator(task_id="launches")
        ResolveDoubtsOperator.partial(
            task_id="ask",
            response_timeout=within,
            assigned_users=[{"id": person, "name": person} for person in people] if people else None,
        ).expand(launch_key=launches.output)
    return dag


def maintenance_dag(
    schedule: str,
    *,
    keep: timedelta,
    ledger_conn_id: str = LEDGER,
    dag_id: str = "maintenance",
    **dag_options: Any,
) -> DAG:
    """Make the DAG that keeps the ledger small: post-backs that reports have counted are forgotten after ``keep``.

    It runs by ``schedule``, a cron expression in UTC. ``ledger_conn_id``: the ledger, by a user who owns its tables.
    ``dag_options`` are more arguments of the DAG, as Airflow knows them.
    """
    with DAG(
        dag_id=dag_id,
        description="Forget old post-backs that every report has counted",
        schedule=CronTriggerTimetable(schedule, timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        **{"default_args": PATIENCE, "tags": ["sendoff"], **dag_options},
    ) as dag:
        MaintainOperator(task_id="maintain", keep=keep, ledger_conn_id=ledger_conn_id)
    return dag
