"""The state of launches as people see it, derived from what the ledger knows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from sendoff.campaign import Campaign, Recurring, Rollout, Schedule, Triggered
from sendoff.launch.gates import lateness
from sendoff.launch.send_times import begins_at, closed_until, first_opening
from sendoff.ledger import LaunchFacts, LaunchRecord, Ledger, Selection
from sendoff.states import REACHED_NO_ONE, DispatchState, LaunchState, Stage

STUCK_AFTER = timedelta(minutes=15)
"""A launch counts as stuck if nothing was done about it for this long. Airflow's pages know it at once."""

ANSWERED_AFTER = timedelta(days=1)
"""A launch with a report counts as reported so long after it was sent, even if nothing waited for its responses."""

Works = Callable[[Sequence[LaunchRecord]], Mapping[str, bool]]
"""Returns for launches whether something works on them, by key. Launches that it cannot judge are left out."""

_SCHEDULE: TypeAdapter[Schedule] = TypeAdapter(Schedule)
_NEVER = datetime.max.replace(tzinfo=UTC)

_BY_STATE = {
    LaunchState.PAUSED: Stage.PAUSED,
    LaunchState.REJECTED: Stage.REJECTED,
    LaunchState.STOPPED: Stage.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a launch, and its requests by state.

    ``until``: when a scheduled launch continues, or when the service has sent it. ``known``: its requests by
    their known result. A request that was planned again or refused after a doubt counts as in doubt there. One that was
    written off, and turned out not to be processed, counts as not processed.
    ``first_at``: when the service begins to send what it has of a launch that it sends repeatedly, if that is known.
    """

    stage: Stage
    until: datetime | None = None
    requests: Mapping[str, int] = field(default_factory=dict, compare=False)
    known: Mapping[str, int] = field(default_factory=dict, compare=False)
    first_at: datetime | None = field(default=None, compare=False)


class _Repeat(NamedTuple):
    """When the service begins and ends to send a launch repeatedly."""

    first_at: datetime | None  # None: not at all
    ends_at: datetime


def standings(
    ledger: Ledger, selection: Selection, *, works: Works | None = None, now: datetime | None = None
) -> dict[str, Standing]:
    """Return the state of each selected launch by its key, newest first.

    A launch is *stuck* if it has requests to send, no worker makes one, and ``works`` says that nothing will. Without
    an answer from ``works``, it is stuck if it may send now and nothing was done about it for a quarter of an hour.
    """
    moment = now or datetime.now(UTC)
    facts = ledger.overview.facts(selection)
    scopes = {pause.connection for pause in ledger.pauses.all()}
    paused = {key for key, each in facts.items() if scopes & {None, each.connection}}
    answered = [
        key for key, each in facts.items() if each.is_reported and not each.is_settled and each.sends_at
    ]
    requested_at = ledger.overview.requested_at(answered) if answered else {}
    repeats = {key: repeat for key, each in facts.items() if (repeat := _repeat_of(each))}
    found = {
        key: _standing(each, key in paused, repeats.get(key), requested_at.get(key), moment)
        for key, each in facts.items()
    }
    if idle := [key for key, standing in found.items() if standing is None]:
        found |= _idle(ledger, idle, works, moment)
    return {
        key: replace(
            standing,
            requests=facts[key].requests,
            known=facts[key].known,
            first_at=repeats[key].first_at if key in repeats else None,
        )
        for key, standing in found.items()
        if standing is not None
    }


def _repeat_of(facts: LaunchFacts) -> _Repeat | None:
    """Return when the service begins and ends to send a launch repeatedly, if it does and that is known."""
    if facts.begun_at is None:
        return None
    try:
        send = _SCHEDULE.validate_python(facts.send)
    except ValidationError:  # another version of Sendoff froze it
        return None
    if not isinstance(send, Recurring | Triggered):  # someone's own request
        return None
    return _Repeat(begins_at(send, facts.begun_at), send.ends_at() or _NEVER)


def standing_of(ledger: Ledger, launch: LaunchRecord) -> Standing:
    """Return the state of one launch, as far as the ledger knows it."""
    return standings(ledger, Selection.of([launch]))[launch.launch_key]


def has_gone_out(known: Collection[str]) -> bool:
    """Check whether recipients of a launch may have got it, by the known results of its requests."""
    return not {*known} <= {*REACHED_NO_ONE}


def has_begun(known: Collection[str]) -> bool:
    """Check whether a request of a launch was begun, by the known results of its requests."""
    return not {*known} <= {DispatchState.PLANNED, DispatchState.SUPPRESSED}


def _standing(
    facts: LaunchFacts,
    is_paused: bool,
    repeat: _Repeat | None,
    requested_at: datetime | None,
    now: datetime,
) -> Standing | None:
    """Return the state of a launch, or None if it may send but no worker makes a request of it.

    ``requested_at``: when its newest request was begun, if the launch has a report and may still get responses.
    """
    if facts.state == LaunchState.HELD:
        return Standing(Stage.WAITING_FOR_DECISION if facts.was_held else Stage.WAITING_FOR_APPROVAL)
    if stage := _BY_STATE.get(facts.state):
        return Standing(stage)
    requests = facts.requests
    if is_paused and requests.get(DispatchState.PLANNED):
        return Standing(Stage.PAUSED)
    if facts.is_leased:
        return Standing(Stage.SENDING)
    if requests.get(DispatchState.PLANNED) or requests.get(DispatchState.IN_FLIGHT):
        return None
    if has_begun(facts.known) and not has_gone_out(facts.known):
        return Standing(Stage.REFUSED)
    first, last = (repeat.first_at, repeat.ends_at) if repeat else (facts.sends_at, facts.sends_at)
    if first is not None and first > now:
        return Standing(Stage.SCHEDULED, first)
    sent_at = last and max(last, requested_at or last)
    is_quiet = facts.is_settled or sent_at is None or now - sent_at >= ANSWERED_AFTER
    return Standing(Stage.REPORTED if facts.is_reported and is_quiet else Stage.WAITING_FOR_RESPONSES)


def _idle(
    ledger: Ledger, launch_keys: Collection[str], works: Works | None, now: datetime
) -> dict[str, Standing]:
    """Return the states of launches that may send while no worker makes a request of them."""
    idle = ledger.launches.of_keys(launch_keys)
    parts, acted_at = ledger.overview.planned_parts(launch_keys), ledger.overview.acted_at(launch_keys)
    exchanged_at = ledger.overview.exchanged_at(launch_keys)
    known = works(idle) if works else {}
    found = {}
    for launch in idle:
        key = launch.launch_key
        until = _continues_at(ledger, launch, parts.get(key, ()), exchanged_at.get(key), now)
        newest = max(launch.created_at, acted_at.get(key, launch.created_at))
        if not known.get(key, until is not None or now - newest < STUCK_AFTER):
            found[key] = Standing(Stage.STUCK)
        else:
            found[key] = Standing(Stage.SCHEDULED, until) if until else Standing(Stage.SENDING)
    return found


def _continues_at(
    ledger: Ledger,
    launch: LaunchRecord,
    parts: Collection[tuple[int, str | None]],
    exchanged_at: datetime | None,
    now: datetime,
) -> datetime | None:
    """Return when the send window or the next wave opens, or None if the launch may send now.

    ``exchanged_at``: when its newest request began or was answered.
    """
    campaign, at = Campaign.frozen(launch.definition), now
    zones = {zone for wave, zone in parts if wave <= launch.wave}
    if parts and not zones:
        following = min(wave for wave, _ in parts)
        zones = {zone for wave, zone in parts if wave == following}
        wait = campaign.decide.after if campaign.decide else (campaign.gates.rollout or Rollout()).wait
        is_released = not campaign.decide and ledger.audit_log.released_wave(launch.launch_key) >= launch.wave
        at = now if is_released or exchanged_at is None else max(now, exchanged_at + wait.timedelta())
    at = first_opening(campaign, zones, launch.period.end, at) or at
    return at if at > now else None


@dataclass(frozen=True, slots=True)
class Outlook:
    """When a launch sends its planned requests if it is released. ``until``: None if it sends them at once."""

    until: datetime | None
    is_too_late: bool  # then it is stopped instead
    is_in_parts: bool = False  # some of them follow later, in another wave or time zone
    awaits_choice: bool = False  # a person must choose a variant before the last of them


def outlook_of(ledger: Ledger, launch: LaunchRecord, now: datetime | None = None) -> Outlook:
    """Return when a launch sends its planned requests, and whether it is too late then."""
    moment, key = now or datetime.now(UTC), launch.launch_key
    parts = ledger.overview.planned_parts([key]).get(key, [])
    until = _continues_at(ledger, launch, parts, ledger.overview.exchanged_at([key]).get(key), moment)
    at, campaign = until or moment, Campaign.frozen(launch.definition)
    zones, waves = {part.time_zone for part in parts}, {part.wave for part in parts}
    decide, wave = campaign.decide, max(launch.wave, min(waves, default=0))
    return Outlook(
        until,
        is_too_late=bool(parts) and _is_too_late(launch, zones, at),
        is_in_parts=max(waves, default=0) > wave
        or any(closed_until(campaign, zones, launch.period.end, at).values()),
        awaits_choice=decide is not None
        and decide.by == "person"
        and launch.winner is None
        and max(waves, default=0) > launch.wave,
    )


def _is_too_late(launch: LaunchRecord, zones: Collection[str | None], now: datetime) -> bool:
    campaign = Campaign.frozen(launch.definition)
    most = campaign.gates.lateness
    if most is not None and not lateness(most, launch.due_at, now, campaign.own_hours_take).is_open:
        return True
    return first_opening(campaign, zones, launch.period.end, now) is None
