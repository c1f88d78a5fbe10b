"""Describe a campaign's next launch without running its query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sendoff.campaign import Campaign, Once, OwnRequest, Variation, advice
from sendoff.errors import CampaignError
from sendoff.launch import describe_schedule, send_times_of
from sendoff.ledger import Launch
from sendoff_airflow.views.airflow_db import Schedule, folder_of
from sendoff_airflow.views.messages import Message, messages_of


@dataclass(frozen=True, slots=True)
class NextLaunch:
    """A campaign's next launch, without its people. ``is_of_launch``: based on the newest launch, not on the folder."""

    title: str
    channels: Sequence[str]
    is_of_launch: bool
    sends: str | None
    gates: Sequence[str]
    approval: str
    segment_size: int
    send_mode: str
    messages: Sequence[Message]
    advice: Sequence[str]
    problem: str | None


def next_launch_of(schedule: Schedule | None, newest: Launch | None) -> NextLaunch | None:
    """Return the next launch, based on the campaign's folder, or else on its newest launch. None without either.

    Also return None for requests that someone wrote: the next one may have nothing in common with the newest.
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
        gates=list(_gate_lines(campaign.gates.model_dump(mode="json", exclude_unset=True))),
        approval=_approval(campaign),
        segment_size=campaign.segment_size,
        send_mode=campaign.send_mode,
        messages=messages_of(campaign, dict.fromkeys(variations, 0), end),
        advice=advice(campaign),
        problem=problem,
    )


def written_campaign(schedule: Schedule | None, newest: Launch | None) -> tuple[Campaign, bool] | None:
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


def _approval(campaign: Campaign) -> str:
    rule = campaign.approval
    if rule.needed == "never":
        return "Not needed."
    when = f"Above {rule.above:,} people" if rule.above is not None else "Always"
    who = f"someone with the role {rule.role}" if rule.role else "someone with rights in Airflow"
    return f"{when}: {who} must approve."


GATE_WORDS = {
    "least": "at least {} people",
    "most": "at most {} people",
    "change": "at most {} % more or fewer people than at the last launch",
    "unusable": "at most {} % of the query's rows without a valid identifier",
    "lateness": "at most {} late",
    "window": "only at certain hours: {}",
    "rollout": "a few people first: {}",
    "failures": "a pause if too many requests fail: {}",
    "hold_above": "a pause if a share of recipients is above its limit in percent: {}",
}
"""The words for each gate, by its field in the file."""


def _gate_lines(section: Mapping[str, Any]) -> Iterator[str]:
    for name, value in section.items():
        if value is not None:
            yield GATE_WORDS[name].format(_words(value))


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        if value.keys() == {"length", "unit"}:
            return f"{value['length']:,} {value['unit'].removesuffix('s') if value['length'] == 1 else value['unit']}"
        parts = (
            f"{name.replace('_', ' ')} {_words(inner)}" for name, inner in value.items() if inner is not None
        )
        return ", ".join(parts)
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if type(value) is int else str(value)
