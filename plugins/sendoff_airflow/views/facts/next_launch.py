"""Describe a campaign's next launch without running its query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sendoff.campaign import (
    QUERY_ZONE,
    Campaign,
    Failures,
    Gates,
    HoldAbove,
    Once,
    OwnRequest,
    Rollout,
    SendWindow,
    Variation,
    advice,
)
from sendoff.errors import CampaignError
from sendoff.figures import counted
from sendoff.launch import describe_schedule, send_times_of
from sendoff.ledger import LaunchRecord
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule, folder_of
from sendoff_airflow.views.facts.messages import ShownMessage, messages_of


@dataclass(frozen=True, slots=True)
class NextLaunch:
    """A campaign's next launch, without its people. ``is_of_launch``: based on the newest launch, not on the folder."""

    title: str
    channels: Sequence[str]
    is_of_launch: bool
    sends: str | None
    gates: Sequence[str]
    approval: str
    schedule_zone: str | None
    segment_size: int
    send_mode: str
    messages: Sequence[ShownMessage]
    advice: Sequence[str]
    problem: str | None


def next_launch_of(
    schedule: DagSchedule | None, newest: LaunchRecord | None, noun: tuple[str, str]
) -> NextLaunch | None:
    """Return the next launch, based on the campaign's folder, or else on its newest launch. None without either.

    Also return None for requests that someone wrote: the next one may have nothing in common with the newest. ``noun``:
    for the recipients.
    """
    found = written_campaign(schedule, newest)
    if found is None:
        return None
    written, is_of_launch = found
    end = schedule.next_end if schedule and schedule.next_end else datetime.now(UTC)
    campaign, problem = written, None
    try:
        campaign = written.resolved(end)
    except CampaignError as error:
        problem = str(error)
    variations = _variations(campaign)
    return NextLaunch(
        title=campaign.title,
        channels=[channel.label for channel in campaign.channels_used()],
        is_of_launch=is_of_launch,
        sends=None if problem else _sends(written, campaign, end),
        gates=[*_gate_lines(campaign.gates, noun, is_of_launch), *_rule_lines(campaign, noun[1])],
        approval=_approval(campaign, noun[1]),
        schedule_zone=written.schedule_time_zone if written.schedule else None,
        segment_size=campaign.segment_size,
        send_mode=campaign.send_mode,
        messages=messages_of(campaign, dict.fromkeys(variations, 0), end),
        advice=advice(written, is_frozen=is_of_launch),
        problem=problem,
    )


def written_campaign(
    schedule: DagSchedule | None, newest: LaunchRecord | None
) -> tuple[Campaign, bool] | None:
    """Return the campaign that :func:`next_launch_of` describes, and whether it comes from the newest launch."""
    folder = folder_of(schedule) if schedule else None
    if folder is not None:
        return folder.campaign, False
    campaign = Campaign.frozen(newest.definition) if newest else None
    return None if campaign is None or isinstance(campaign, OwnRequest) else (campaign, True)


def _sends(written: Campaign, resolved: Campaign, end: datetime) -> str:
    """Return when the campaign sends. The run may be overdue, such as of a paused DAG, and then its date is past."""
    times = send_times_of(resolved, _variations(resolved), end)
    if times.last_at is None or times.last_at > datetime.now(UTC):
        return times.words
    has_date = isinstance(written.send, Once) and written.send.date is not None
    return describe_schedule(written.send) + (". That moment has passed" if has_date else "")


def _variations(campaign: Campaign) -> list[Variation]:
    return [
        Variation(language, variant)
        for variant in (*campaign.variants,) or (None,)
        for language in campaign.separate_languages() or (None,)
    ]


def _approval(campaign: Campaign, recipients: str) -> str:
    rule = campaign.approval
    if rule.needed == "never":
        return "Not needed."
    when = f"Above {rule.above:,} {recipients}" if rule.above is not None else "Always"
    who = f"someone with the role {rule.role}" if rule.role else "someone with rights in Airflow"
    return f"{when}: {who} must approve."


def _window(gate: SendWindow, noun: str) -> str:
    zone = f"each {noun}'s own time zone" if gate.time_zone == QUERY_ZONE else gate.time_zone
    return f"only from {gate.earliest} to {gate.latest}, in {zone}"


def _rollout(gate: Rollout, recipients: str) -> str:
    shares = " and ".join(f"{share:g} %" for share in gate.shares)
    missing = "" if gate.missing is None else f" or {gate.missing:g} % of the {recipients} are missing"
    return (
        f"first to {shares} of the {recipients}, then to the rest, {gate.wait.words} apart. It waits for a person "
        f"if more than {gate.refused:g} % of the requests are refused{missing}"
    )


def _failures(gate: Failures) -> str:
    return (
        f"it waits for a person if {gate.refused:,} of the last {counted(gate.of, 'request')} are refused, or "
        f"{gate.in_doubt:,} are in doubt"
    )


def _hold_above(gate: HoldAbove, recipients: str) -> str:
    limits = [
        f"more than {limit:g} % {words}"
        for limit, words in (
            (gate.refused, "are refused"),
            (gate.missing, f"are missing after {gate.after.words}"),
            (gate.opt_outs, "opt out"),
        )
        if limit is not None
    ]
    return f"it waits for a person if, of the {recipients}, {' or '.join(limits)}"


GATE_WORDS: Mapping[str, Callable[[Any, tuple[str, str]], str]] = {
    "least": lambda gate, noun: f"at least {counted(gate, *noun)}",
    "most": lambda gate, noun: f"at most {counted(gate, *noun)}",
    "change": lambda gate, noun: f"at most {gate:g} % more or fewer {noun[1]} than at the last launch",
    "unusable": lambda gate, _: f"at most {gate:g} % of the rows without a valid identifier",
    "lateness": lambda gate, _: f"at most {gate.words} late",
    "window": lambda gate, noun: _window(gate, noun[0]),
    "rollout": lambda gate, noun: _rollout(gate, noun[1]),
    "failures": lambda gate, _: _failures(gate),
    "hold_above": lambda gate, noun: _hold_above(gate, noun[1]),
}
"""The words for each gate, by its field in the file."""


def _gate_lines(gates: Gates, noun: tuple[str, str], is_frozen: bool) -> Iterator[str]:
    """Yield the gates that the campaign's file sets. A frozen campaign has all, so its defaults count as not set."""
    for name, field in Gates.model_fields.items():
        gate = getattr(gates, name)
        is_set = gate != field.default if is_frozen else name in gates.model_fields_set
        if is_set and gate is not None:
            yield GATE_WORDS[name](gate, noun)


def _rule_lines(campaign: Campaign, people: str) -> Iterator[str]:
    rules = campaign.rules_in_force
    if campaign.transactional and campaign.rules != rules:
        yield f"the rules for all campaigns do not apply, because it is transactional: {campaign.transactional}"
    if rules.restricts_times:
        yield f"the rules for all campaigns: {rules.words()}"
    if limit := campaign.warm_up:
        most = "" if limit.growth == 1 else f", growing to {limit.most:,}"
        yield f"a daily limit for all campaigns together: {limit.first_day:,} {people} from {limit.start} on{most}"
