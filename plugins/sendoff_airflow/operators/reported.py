"""The launch whose report started a run: a reminder has the period of the launch that it follows."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow.sdk import Context

from sendoff.errors import NotFoundError
from sendoff_airflow.operators.assets import report_asset
from sendoff_airflow.operators.origin import Origin, run_and_task
from sendoff_airflow.operators.recipients import VerdictsOfLaunch
from sendoff_airflow.period import period_of, scheduled_at
from sendoff_airflow.run_notes import KEY as NOTE

if TYPE_CHECKING:
    from sendoff.campaign import Campaign, CampaignFolder, Period
    from sendoff.launch import LaunchOptions
    from sendoff.ledger import LaunchRecord, Ledger

_MOST_NAMED = 10  # periods in the note of a run
_log = logging.getLogger(__name__)


def of_run(
    context: Context, campaign: Campaign, options: LaunchOptions, reported: LaunchRecord | None = None
) -> LaunchOptions:
    """Return options with the facts of a run: when its period was due, and who started it.

    ``reported``: the launch whose report started the run, if one did. If it is a resend, the launch has the same
    number, and leaves out people who got an earlier launch for the period.
    """
    from sendoff.launch import due_time

    run, period = context["dag_run"], period_of_launch(context, campaign, reported)
    if reported and reported.resend and not options.resend:
        reason = f"the report of resend {reported.resend} of {reported.campaign}"
        options = replace(options, resend=reported.resend, only_unsent=True, reason=reason)
    # A launch to recipients of another one follows that one, perhaps days after the period's end.
    source = campaign.audience.source
    follows = isinstance(getattr(context.get("task"), "audience", None), VerdictsOfLaunch)
    follows = follows or (source is not None and source.kind == "verdicts")
    by_clock = None if follows else scheduled_at(context, campaign, period)
    return replace(
        options,
        due_at=due_time(campaign, period, run.run_after, by_clock),
        who=run.triggering_user_name or f"{run.run_type.value} run {run.run_id}",
        reported=reported.launch_key if reported else None,
    )


def period_of_launch(context: Context, campaign: Campaign, reported: LaunchRecord | None = None) -> Period:
    """Return the period of a run. If a report started it, that is the period of the reported launch.

    So a report that is made again later starts no second launch to the same recipients.
    """
    return reported.period if reported else period_of(context, campaign)


def reported_launch(
    context: Context, ledger: Ledger, folder: CampaignFolder, options: LaunchOptions
) -> tuple[LaunchRecord | None, list[str]]:
    """Return the launch whose report started a run if the recipients come from it, and what the run's note says of it.

    Without such a report, that is None. If reports of several periods started the run, it is the launch that this run
    followed before. Otherwise it is the one of the newest period that this campaign has no launch for, under any of its
    names. The log and the note of the run list the other such periods.

    Raise NotFoundError if the ledger has none of the reported launches.
    """
    from sendoff.campaign import launch_key

    reported = _reported_launches(context, ledger, folder)
    if not reported:
        return None, []
    connection, (run, _) = folder.campaign.connection, run_and_task(context)
    sources = {
        launch_key(connection, folder.name, each.period, options.resend or each.resend): each
        for each in reported
    }
    made = {launch.launch_key: launch for launch in ledger.launches.of_keys(sources)}
    followed = [
        sources[key] for key, each in made.items() if (origin := Origin.of(each)) and origin.run == run
    ]
    new = [
        each
        for key, each in sources.items()
        if key not in made
        and (
            options.resend
            or each.resend
            or not ledger.launches.of_period(connection, folder.names, each.period)
        )
    ]
    chosen = [*followed, *new, *reported][0]
    notes = []
    if left := [each.period.key for each in new if each is not chosen]:
        more = f", and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        text = (
            f"This run is for period {chosen.period.key} of {chosen.campaign}. Reports of other periods started it "
            "too. To send for one of those, clear the task that made its report, and wait for the run that this starts "
            f"before you clear the next one. Left out: {', '.join(left[:_MOST_NAMED])}{more}."
        )
        _log.warning("%s", text)
        context["ti"].xcom_push(NOTE, text)
        notes.append(text)
    return chosen, notes


def _reported_launches(context: Context, ledger: Ledger, folder: CampaignFolder) -> list[LaunchRecord]:
    """Return the launches whose reports started a run, the newest period first, if the recipients come from them.

    Of several launches for a period, it is the last resend, which counts those before. An event that someone made
    without the key of a launch is left out.
    """
    source, connection = folder.campaign.audience.source, folder.campaign.connection
    if source is None or source.kind != "verdicts" or not context.get("triggering_asset_events"):
        return []
    events = context["triggering_asset_events"].get(report_asset(source.of)) or ()
    keys = {key for event in events if isinstance(key := event.extra.get("launch_key"), str)}
    if not keys:
        return []
    of_source = (connection, source.of)
    found = [each for each in ledger.launches.of_keys(keys) if (each.connection, each.campaign) == of_source]
    if not found:
        raise NotFoundError(
            f"reports of {source.of} started this run, but the ledger has no launch of {source.of} on {connection} "
            f"with one of their keys, such as {min(keys)}. To send to the recipients of another launch, trigger the DAG"
        )
    last = {each.period: each for each in sorted(found, key=lambda each: each.resend)}
    return sorted(last.values(), key=lambda each: (each.period.end, each.period.key), reverse=True)
