"""The DAG of one campaign: its schedule, its form, and the tasks of a launch (module ``group``)."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from sendoff.campaign import Campaign, CampaignFolder
from sendoff.errors import CampaignError
from sendoff_airflow.dags.alerts import log_overdue_run
from sendoff_airflow.dags.documentation import documentation
from sendoff_airflow.dags.group import (
    AUDIENCE_TITLE,
    Approvers,
    Callbacks,
    TaskOptions,
    add_tasks,
    defaults_of,
)
from sendoff_airflow.dags.names import AUDIENCE, refuse_runs_of_others
from sendoff_airflow.operators import BuildAudienceOperator
from sendoff_airflow.operators.assets import audience_asset, consume_events_together, report_asset


def campaign_dag(  # noqa: PLR0913 - an interface for users
    folder: CampaignFolder,
    *,
    approvers: Approvers | None = None,
    on_alert: AsyncCallback | SyncCallback | None = None,
    quiet_for: timedelta | None = None,
    pictures: Path | None = None,
    on_approval: Callbacks | None = None,
    on_report: Callbacks | None = None,
    default_args: dict[str, Any] | None = None,
) -> DAG:
    """Return the DAG of one campaign. Its DAG ID is the campaign's name.

    Assign the DAG to a name in the DAG file, so that Airflow finds it. The arguments are:

    - ``approvers``: the people of each approval role.
    - ``on_alert``: called, besides the line in the log, if a run takes longer than the campaign's ``alert_after``.
    - ``quiet_for``: overrides the campaign's ``report.quiet_for``.
    - ``pictures``: the folder for the picture of the report.
    - ``on_approval``: one or more notifiers, called when a launch waits for approval.
    - ``on_report``: one or more notifiers, called when the report is made.
    - ``default_args``: Airflow's arguments for all tasks. ``retries`` and ``owner`` of a file override them.

    Raise CampaignError for a role without people, and for a schedule that this version of Airflow lacks.
    """
    campaign, name = folder.campaign, folder.name
    options = TaskOptions(approvers, quiet_for, pictures, on_approval, on_report, default_args)
    with DAG(
        dag_id=name,
        dag_display_name=campaign.title,
        doc_md=documentation(folder),
        schedule=schedule_of(campaign),
        start_date=start_of(campaign),
        catchup=False,
        default_args=defaults_of(campaign, options, name),
        tags=["sendoff", *campaign.tags],
        deadline=_deadlines(folder, on_alert),
        auto_register=False,  # otherwise a DAG that fails the checks would still belong to its file
    ) as dag:
        add_tasks(folder, audience_task(folder, folder.path), options)
    consume_events_together(dag)
    dag.params.update(form())  # last, because Airflow copies the form for each task that is made after it
    return dag


def schedule_of(campaign: Campaign) -> Any:
    """Return the schedule of a campaign's DAG.

    Raise CampaignError if it has both a cron expression and assets, and this version of Airflow cannot wait for both.
    """
    source = campaign.audience.source
    of = source.of if source and source.kind == "verdicts" else None
    # A run has the events of an asset, but not those of an asset that its DAG knows only by name.
    assets = [
        report_asset(of) if of and name == f"{of}.report" else Asset.ref(name=name) for name in campaign.after
    ]
    if not campaign.schedule:
        return assets or None
    clock = CronDataIntervalTimetable(campaign.schedule, timezone=campaign.schedule_time_zone)
    if not assets:
        return clock
    try:
        from airflow.sdk import AssetAndTimeSchedule  # type: ignore[attr-defined]  # since Airflow 3.4
    except ImportError:
        raise CampaignError(
            "after: found both schedule and after, but Airflow before 3.4 cannot wait for both. Use one of them"
        ) from None
    return AssetAndTimeSchedule(timetable=clock, assets=assets)


def start_of(campaign: Campaign) -> datetime | None:
    """Return the time of a campaign's first run, or None if its DAG has no schedule."""
    if campaign.start is None:
        return None
    return datetime.combine(campaign.start, time(), ZoneInfo(campaign.schedule_time_zone))


def _deadlines(
    folder: CampaignFolder, on_alert: AsyncCallback | SyncCallback | None
) -> list[DeadlineAlert] | None:
    after = folder.campaign.alert_after
    if after is None:
        return None
    log = AsyncCallback(log_overdue_run, {"campaign": folder.name, "allowed": after.words})
    return [
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=after.timedelta(), callback=callback
        )
        for callback in (log, on_alert)
        if callback
    ]


def audience_task(folder: CampaignFolder, path: Path, **how: Any) -> BuildAudienceOperator:
    """Return the task that freezes the audience of a campaign, with the fields of the trigger form.

    ``path``: the task reads the campaign from there again. ``how``: more arguments of the operator.
    """
    in_journey = bool(folder.within)
    return BuildAudienceOperator(
        task_id=AUDIENCE,
        task_display_name=AUDIENCE_TITLE,
        folder=path,
        resend=0 if in_journey else "{{ params.resend }}",
        only_unsent=False if in_journey else "{{ params.only_unsent }}",
        reason=None if in_journey else "{{ params.reason or '' }}",
        size_limit="{{ params.size_limit or '' }}",
        send_late="{{ params.send_late }}",
        preview_only="{{ params.dry_run }}",
        continued=None if in_journey else "{{ params.launch or '' }}",
        outlets=[audience_asset(folder.name)],
        pre_execute=refuse_runs_of_others,
        **how,
    )


def form() -> dict[str, Param]:
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
            "again, to everyone in it unless the next field is on.",
        ),
        "only_unsent": Param(
            False,
            type="boolean",
            title="Only those who got nothing",
            description="With a resend number: leave out people who got, or may have got, an earlier launch for the "
            "period.",
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
