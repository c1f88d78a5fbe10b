"""The DAG factory: a folder with campaigns becomes DAGs.

.. code-block:: text

    audience -> dispatch (mapped over the workers) -> launched
                                                   -> quiet -> report

``audience`` is the setup of ``report``: once there is a launch it is reported on, also where dispatching it failed. The
run then fails all the same, by ``launched``: Airflow takes the state of a run from the tasks at its ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, CronDataIntervalTimetable, CronTriggerTimetable, Param
from airflow.sdk.definitions.mappedoperator import MappedOperator

from sendoff.campaign import CampaignFolder, load_campaign
from sendoff.errors import CampaignError
from sendoff_airflow.assets import POST_BACKS, audience_asset, launch_asset, report_asset
from sendoff_airflow.failures import PatientRetry
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CreateCampaignOperator,
    ExecuteCampaignOperator,
    LaunchedOperator,
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

QUIET_FOR = timedelta(minutes=15)
LONGEST_WAIT = timedelta(days=1)

_WAYS = {"create": CreateCampaignOperator, "execute": ExecuteCampaignOperator}


def campaign_dags(folder: Path, **choices: Any) -> dict[str, DAG]:
    """Make a DAG of each campaign in ``folder``, by name; what is broken is left to :func:`check_campaigns`.

    ``choices`` are those of :func:`campaign_dag`.
    """
    dags = {}
    for path in _campaign_folders(folder):
        try:
            campaign = load_campaign(path)
        except CampaignError:
            continue
        dags[campaign.name] = campaign_dag(campaign, **choices)
    return dags


def check_campaigns(folder: Path) -> None:
    """Raise one CampaignError that names everything that is wrong with any campaign in ``folder``.

    Called from a DAG file of its own it becomes an import error in the UI. In the file that makes the DAGs it would
    take the sound campaigns away as well, since Airflow drops all DAGs of a file that raises.
    """
    problems = []
    for path in _campaign_folders(folder):
        try:
            load_campaign(path)
        except CampaignError as error:
            problems.append(str(error))
    if problems:
        raise CampaignError("\n".join(problems))


def _campaign_folders(folder: Path) -> Iterator[Path]:
    """Give each folder that means to be a campaign: one that holds either of its two files."""
    names = ("campaign.yaml", "audience.sql")
    return (path for path in sorted(folder.iterdir()) if any((path / name).exists() for name in names))


def campaign_dag(
    folder: CampaignFolder,
    *,
    quiet_for: timedelta = QUIET_FOR,
    pictures: Path | None = None,
    default_args: dict[str, Any] | None = None,
) -> DAG:
    """Make the DAG of one campaign, under the campaign's name.

    The report is made once no post-back has come for ``quiet_for``, or after a day, and leaves its picture in
    ``pictures``. ``default_args`` are for all tasks, as Airflow knows them.
    """
    campaign = folder.campaign
    with DAG(
        dag_id=folder.name,
        description=campaign.title,
        doc_md=_documentation(folder),
        schedule=CronDataIntervalTimetable(campaign.schedule, timezone="UTC") if campaign.schedule else None,
        start_date=datetime.combine(campaign.start, time(), UTC) if campaign.start else None,
        catchup=False,
        default_args={"owner": campaign.owner, **PATIENCE, **(default_args or {})},
        tags=["sendoff", *campaign.tags],
        params={"resend": _resend()},
    ) as dag:
        audience = BuildAudienceOperator(
            task_id="audience",
            folder=folder.path,
            resend="{{ params.resend }}",
            outlets=[audience_asset(folder.name)],
        )
        launch_key: Any = audience.output["launch_key"]  # type: ignore[index]
        report = ReconcileOperator(
            task_id="report",
            launch_key=launch_key,
            pictures=str(pictures) if pictures else None,
            inlets=[launch_asset(folder.name)],
            outlets=[report_asset(folder.name)],
        ).as_teardown(setups=audience, on_failure_fail_dagrun=True)
        dispatch = _dispatch(folder, launch_key)
        audience >> dispatch >> _quiet(launch_key, quiet_for) >> report
        dispatch >> LaunchedOperator(
            task_id="launched", launch_key=launch_key, outlets=[launch_asset(folder.name)]
        )
    return dag


def _dispatch(folder: CampaignFolder, launch_key: Any) -> MappedOperator:
    campaign = folder.campaign
    return (
        _WAYS[campaign.way]
        .partial(
            task_id="dispatch",
            launch_key=launch_key,
            sendoff_conn_id=campaign.connection,
            inlets=[audience_asset(folder.name)],
        )
        .expand(worker=list(range(1, campaign.parallelism + 1)))
    )


def _quiet(launch_key: Any, quiet_for: timedelta) -> PostBacksQuietSensor:
    return PostBacksQuietSensor(
        task_id="quiet",
        launch_key=launch_key,
        quiet_for=quiet_for,
        timeout=LONGEST_WAIT,
        poke_interval=min(quiet_for / 5, timedelta(seconds=30)),
        soft_fail=True,  # a launch that never falls silent is reported on as well
        deferrable=True,
    )


def _resend() -> Param:
    return Param(
        0,
        type="integer",
        minimum=0,
        title="Resend number",
        description="0 sends each period once, however often it is triggered. 1, 2, ... deliberately send the same "
        "period again, to everybody in it.",
    )


def _documentation(folder: CampaignFolder) -> str:
    campaign = folder.campaign
    rows = {
        "Channels": ", ".join(channel.value for channel in campaign.used()),
        "Service": f"connection `{campaign.connection}`",
        "Warehouse": f"connection `{campaign.warehouse}`",
        "People in one request": f"{campaign.segment_size}",
        "Requests at a time": f"{campaign.parallelism}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    query = f"\n\n```sql\n{folder.audience_sql}\n```" if folder.audience_sql else ""
    return f"# {campaign.title}\n\n| | |\n|---|---|\n{table}{query}"


def reconcile_dag(schedule: str, *, dag_id: str = "reconcile", **dag_options: Any) -> DAG:
    """Make the DAG that counts post-backs which come after a launch's report.

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
    return dag
