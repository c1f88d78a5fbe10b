"""The DAG of one campaign.

.. code-block:: text

    audience -> preview -> approve -> dispatch (mapped over the workers) -> check_dispatched
                                                                         -> wait_for_post_backs -> report

``audience`` is the setup of ``report``: once there is a launch it is reported on, also if dispatching it failed or
somebody rejected it. If dispatching failed, ``check_dispatched`` fails the run all the same: Airflow takes the state of
a run from the tasks at its ends.
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
"""The people of each role that campaigns name: their names as Airflow knows them."""

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
    """Make the DAG of one campaign, under the campaign's name.

    ``approvers``: the people of each role that a campaign may name. ``on_alert`` is called, beside the line in the log,
    when a run takes longer than the campaign's ``alert_after``. ``quiet_for`` overrides the campaign's own. The report
    leaves its picture in ``pictures``. ``on_report``, a notifier or several, is called when the report is made.
    ``default_args`` are for all tasks, as Airflow knows them. Airflow finds the DAG by a name of its file: assign it.
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
        default_args={
            "owner": campaign.owner,
            **RETRY_DEFAULTS,
            "retries": campaign.retries,
            **(default_args or {}),
        },
        tags=["sendoff", *campaign.tags],
        params=_form(),
        deadline=_deadlines(folder, on_alert),
        auto_register=False,  # or one that is looked at and refused would be a DAG of its file all the same
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
    return dag


def _schedule(campaign: Campaign) -> Any:
    if campaign.schedule:
        return CronDataIntervalTimetable(campaign.schedule, timezone=campaign.schedule_time_zone)
    return [Asset.ref(name=name) for name in campaign.after] or None


def start_of(campaign: Campaign) -> datetime | None:
    """Return the moment from which a campaign has runs; None if its DAG has no schedule."""
    if campaign.start is None:
        return None
    return datetime.combine(campaign.start, time(), ZoneInfo(campaign.schedule_time_zone))


def _people_of_role(folder: CampaignFolder, approvers: Approvers) -> list[dict[str, str]] | None:
    """Return those who may approve a campaign, as Airflow's operator takes them; None: whom Airflow lets."""
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
        soft_fail=True,  # a launch that never falls silent is reported on as well
        deferrable=True,
    )


def _form() -> dict[str, Param]:
    """Return what the trigger form asks for."""
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
        "send_late": Param(
            False,
            type="boolean",
            title="Send late",
            description="Send this period however long ago it ended. Otherwise the run is skipped if that is longer "
            "ago than gates.lateness allows: a day, if the campaign does not say otherwise.",
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
        "launch": Param(
            None,
            type=["null", "string"],
            pattern="^[0-9a-f]{32}$",
            title="Launch to continue",
            description="The key of a launch: send what is planned of it, such as a request that was in doubt and is "
            "sent again. The query does not run, and nothing is sent twice. Empty: the launch of the run's period.",
        ),
    }
