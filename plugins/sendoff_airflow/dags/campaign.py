"""The DAG of one campaign.

.. code-block:: text

    audience -> preview -> approve -> dispatch (mapped over the workers) -> check_dispatched
                                                                         -> wait_for_post_backs -> report

``audience`` is the setup task of ``report``. So every launch gets a report, even if sending it failed or someone
rejected it. If sending failed, ``check_dispatched`` fails the run, because Airflow takes a run's state from its last
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, Asset, Context, CronDataIntervalTimetable, Param
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.definitions.mappedoperator import MappedOperator

from sendoff.campaign import Campaign, CampaignFolder, did_you_mean
from sendoff.errors import CampaignError
from sendoff_airflow.dags.alerts import log_overdue_run
from sendoff_airflow.dags.documentation import documentation
from sendoff_airflow.dags.names import refuse_runs_of_others
from sendoff_airflow.errors import RETRY_DEFAULTS
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CheckDispatchedOperator,
    CreateCampaignOperator,
    ExecuteCampaignOperator,
    PreviewOperator,
    ReconcileOperator,
)
from sendoff_airflow.operators.approval import ApproveLaunchOperator
from sendoff_airflow.operators.assets import audience_asset, launch_asset, report_asset
from sendoff_airflow.sensors import PostBacksQuietSensor

Approvers = Mapping[str, Sequence[str]]
"""The people of each approval role: their user names in Airflow."""

_OPERATORS = {"create": CreateCampaignOperator, "execute": ExecuteCampaignOperator}


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
    """Return the DAG of one campaign. Its DAG ID is the campaign's name.

    Assign the DAG to a name in the DAG file, so that Airflow finds it. The arguments are:

    - ``approvers``: the people of each approval role.
    - ``on_alert``: called, besides the line in the log, if a run takes longer than the campaign's ``alert_after``.
    - ``quiet_for``: overrides the campaign's ``report.quiet_for``.
    - ``pictures``: the folder for the picture of the report.
    - ``on_report``: one or more notifiers, called when the report is made.
    - ``default_args``: Airflow's arguments for all tasks. ``retries`` and ``owner`` of a file override them.

    Raise CampaignError for a role without people.
    """
    campaign, name = folder.campaign, folder.name
    people = _people_of_role(folder, approvers or {})
    with DAG(
        dag_id=name,
        description=campaign.title,
        doc_md=documentation(folder),
        schedule=_schedule(campaign),
        start_date=start_of(campaign),
        catchup=False,
        default_args=_default_args(campaign, default_args or {}),
        tags=["sendoff", *campaign.tags],
        deadline=_deadlines(folder, on_alert),
        auto_register=False,  # otherwise a DAG that fails the checks would still belong to its file
    ) as dag:
        audience = _audience(folder)
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
        settled = _wait_for_post_backs(campaign, launch_key, quiet_for)
        check = CheckDispatchedOperator(
            task_id="check_dispatched", launch_key=launch_key, outlets=[launch_asset(name)]
        )
        audience >> preview >> approve >> dispatch >> [settled, check]
        settled >> report
    dag.params.update(_form())  # last, because Airflow copies the form for each task that is made after it
    return dag


def _default_args(campaign: Campaign, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of all tasks: those of the file, else those given, else the defaults."""
    of_campaign = {"owner": campaign.owner, "retries": campaign.retries}
    of_file = {name: value for name, value in of_campaign.items() if name in campaign.model_fields_set}
    return {**RETRY_DEFAULTS, **of_campaign, **given, **of_file}


def _schedule(campaign: Campaign) -> Any:
    if campaign.schedule:
        return CronDataIntervalTimetable(campaign.schedule, timezone=campaign.schedule_time_zone)
    return [Asset.ref(name=name) for name in campaign.after] or None


def start_of(campaign: Campaign) -> datetime | None:
    """Return the time of a campaign's first run, or None if its DAG has no schedule."""
    if campaign.start is None:
        return None
    return datetime.combine(campaign.start, time(), ZoneInfo(campaign.schedule_time_zone))


def _people_of_role(folder: CampaignFolder, approvers: Approvers) -> list[dict[str, str]] | None:
    """Return the users who may approve a campaign, in the form of Airflow's operator. None: everyone with rights."""
    role = folder.campaign.approval.role
    if role is None:
        return None
    if not approvers.get(role):
        roles = ", ".join(sorted(name for name, people in approvers.items() if people))
        raise CampaignError(
            f"{folder.place_of('approval', 'role')}: found {role!r}, a role without people"
            f"{did_you_mean(role, roles.split(', '))}; allowed: "
            f"{roles or 'none, until the deployment names the people of its roles (dags/approvers.py)'}"
        )
    return [{"id": person, "name": person} for person in approvers[role]]


def _deadlines(
    folder: CampaignFolder, on_alert: AsyncCallback | SyncCallback | None
) -> list[DeadlineAlert] | None:
    after = folder.campaign.alert_after
    if after is None:
        return None
    log = AsyncCallback(log_overdue_run, {"campaign": folder.name, "allowed": f"{after.length} {after.unit}"})
    return [
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=after.timedelta(), callback=callback
        )
        for callback in (log, on_alert)
        if callback
    ]


def _audience(folder: CampaignFolder) -> BuildAudienceOperator:
    return BuildAudienceOperator(
        task_id="audience",
        folder=folder.path,
        resend="{{ params.resend }}",
        reason="{{ params.reason or '' }}",
        size_limit="{{ params.size_limit or '' }}",
        send_late="{{ params.send_late }}",
        preview_only="{{ params.dry_run }}",
        continued="{{ params.launch or '' }}",
        outlets=[audience_asset(folder.name)],
        pre_execute=refuse_runs_of_others,
    )


def _dispatch(folder: CampaignFolder, launch_key: Any) -> MappedOperator:
    campaign = folder.campaign
    return (
        _OPERATORS[campaign.send_mode]
        .partial(
            task_id="dispatch",
            launch_key=launch_key,
            sendoff_conn_id=campaign.connection,
            inlets=[audience_asset(folder.name)],
            **({"pool": campaign.pool} if campaign.pool else {}),
        )
        .expand(worker=list(range(1, campaign.parallelism + 1)))
    )


def _wait_for_post_backs(
    campaign: Campaign, launch_key: Any, quiet_for: timedelta | None
) -> PostBacksQuietSensor:
    quiet = campaign.report.quiet_for.timedelta() if quiet_for is None else quiet_for
    return PostBacksQuietSensor(
        task_id="wait_for_post_backs",
        launch_key=launch_key,
        quiet_for=quiet,
        timeout=campaign.report.at_latest.timedelta(),
        poke_interval=min(quiet / 5, timedelta(seconds=30)),
        soft_fail=True,  # a launch that never becomes quiet still gets a report
        deferrable=True,
    )


def _form() -> dict[str, Param]:
    """Return the fields of the trigger form."""
    return {
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Run the query, count the people, and stop. Nothing is frozen or sent.",
        ),
        "size_limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Size limit",
            description="Send to this many people at most, and leave out the others. Empty: no limit.",
        ),
        "send_late": Param(
            False,
            type="boolean",
            title="Send late",
            description="Send the period however long ago it ended. Otherwise the run is skipped if the period ended "
            "longer ago than the campaign allows (gates.lateness, by default a day). Set the logical date a few "
            "minutes after the period's end: at exactly the end, this run takes the place of the next scheduled run.",
        ),
        "resend": Param(
            0,
            type="integer",
            minimum=0,
            title="Resend number",
            description="0 sends each period once, however often the DAG is triggered. 1, 2, ... send the same period "
            "again, to everyone in it.",
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            title="Reason",
            description="Why the period is sent again. Required with a resend number.",
        ),
        "launch": Param(
            None,
            type=["null", "string"],
            pattern="^[0-9a-f]{32}$",
            title="Launch to continue",
            description="The key of a launch whose planned requests should be sent, for example after a request in "
            "doubt was planned again. The query does not run. Empty: the launch of the run's period.",
        ),
    }
