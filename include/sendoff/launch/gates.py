"""Gates: checks before the first request of a launch, each with the actual value and the allowed one.

.. code-block:: text

    least, most .. number of recipients; least also counts those that a resend leaves out
    channels ..... always checked: at least one recipient is on a platform that a channel reaches
    change ....... size of the audience, with its holdout and before a size limit, against the last launch
    unusable ..... share of rows with a null or invalid identifier; duplicates are usable
    lateness ..... time since the launch was due, also when it may first send; if closed, the launch is skipped
    period ....... checked with a schedule: no other launch was sent for a part of the period; if closed, it is skipped
    window ....... times when recipients get messages; a launch that sends at once waits for the window instead
    rollout ...... the waves; never closed here, because each wave is checked later (sendoff.dispatch.rollout)
    hold_above ... the limits; never closed here, because the rates are checked later (sendoff.dispatch.rate_watch)
    rules ........ times that the rules for all campaigns allow; a launch that sends at once waits for them instead
    warm_up ...... recipients of the connection per day; never closed here, because each request is checked later
    send ......... always checked if the campaign sends once: no sending time has passed; if closed, it is skipped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sendoff.audience import Audience, Segment
from sendoff.campaign import (
    QUERY_ZONE,
    Campaign,
    Duration,
    HoldAbove,
    Once,
    Period,
    Rollout,
    Schedule,
    SendWindow,
    Variation,
    WarmUp,
    forbidden_time,
    local_times,
    next_open,
)
from sendoff.errors import GateError, LateError
from sendoff.figures import counted, duration, noun_of
from sendoff.launch.reachability import may_reach, platforms_pushed_to
from sendoff.launch.send_times import first_opening
from sendoff.ledger import Decision, LaunchRecord
from sendoff.states import DecisionKind

# Gates that are not fields of ``gates``.
_OUTSIDE = frozenset({"channels", "period", "rules", "send", "warm_up"})
_WANTED = frozenset({"least", "channels"})  # gates with a minimum; the others have a limit


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of one gate: its name in the file, and the values as counts or times, without identifiers."""

    name: str
    is_open: bool
    actual: str
    allowed: str

    @property
    def words(self) -> str:
        """Both values in words for everybody. A sending time needs only the first, and a period other words."""
        if self.name == "send":
            return self.actual
        if self.name == "period":
            return "this period, or a part of it, was sent already"
        return f"{self.actual}, {self.allowed} {'wanted' if self.name in _WANTED else 'allowed'}"

    def __str__(self) -> str:
        path = self.name if self.name in _OUTSIDE else f"gates.{self.name}"
        return f"{path}: {self.actual} (allowed: {self.allowed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInputs:
    """The inputs of the gates of a launch.

    ``campaign`` is resolved for the period. ``audience`` is None if the service chooses the recipients. ``segments``:
    the recipients. ``previous``: the campaign's last launch. ``overlapping``: its launch that was sent for a part of
    the period, if that closes a gate. ``due_at``: when the launch was due, from :func:`due_time`. ``send_late``:
    whether a person sends it late on purpose. ``recipients_today``: how many count against the daily limit of the
    connection already.
    """

    campaign: Campaign
    audience: Audience | None
    segments: Sequence[Segment]
    previous: LaunchRecord | None
    overlapping: LaunchRecord | None = None
    due_at: datetime | None
    period_end: datetime
    now: datetime
    send_late: bool = False
    recipients_today: int = 0


def check_gates(inputs: GateInputs) -> tuple[GateResult, ...]:
    """Check all gates of a launch, and return their results."""
    return (*_audience_gates(inputs), *_time_gates(inputs))


def due_time(
    campaign: Campaign, period: Period, run_at: datetime | None, scheduled_at: datetime | None = None
) -> datetime | None:
    """Return when a launch is due, from where ``gates.lateness`` counts, or None if it cannot be too late.

    With a schedule, that is the end of the period, however the run was started. ``scheduled_at`` is that moment if the
    schedule is that of a DAG, and not of the campaign. Without a schedule it is the start of the run (``run_at``). If
    the file does not set ``gates.lateness``, only scheduled campaigns that send at once have a due time.
    """
    if campaign.gates.lateness is None:
        return None
    at = period.end if campaign.schedule else scheduled_at
    if campaign.gates.names_lateness:
        return at or run_at
    return at if campaign.send.kind == "now" else None


def raise_if_closed(campaign: str, results: Sequence[GateResult]) -> None:
    """Raise LateError if a launch is to be skipped, or GateError if another gate is closed.

    Both list all closed gates. A launch that is too late is skipped, and one for a period that was partly sent.
    """
    closed = [result for result in results if not result.is_open]
    if not closed:
        return
    names = {result.name for result in closed}
    text = f"campaign {campaign}: nothing was sent: {'; '.join(map(str, closed))}"
    if "lateness" in names:
        text += (
            "; to send it anyway, turn on Send late in the form of a run, use --send-late in a shell, or set send_late "
            "in a DAG of your own"
        )
    if "period" in names:
        text += (
            ". The schedule or the name has changed, the schedule has no such period, or the period was already sent "
            "with a resend number. To send it anyway, add a resend number and a reason. Recipients of the other launch "
            "get it again, unless you choose only_unsent"
        )
    error = LateError if names & {"lateness", "period", "send"} else GateError
    raise error(text, not_launched="; ".join(result.words for result in closed))


def gates_decision(
    launch_key: str, results: Sequence[GateResult], now: datetime, notes: Mapping[str, Any] | None = None
) -> Decision:
    """Return the audit-log entry with the results of a launch's gates.

    ``notes``: facts of the plan that the preview of the frozen launch needs; never identifiers.
    """
    detail = {"gates": [asdict(result) for result in results], **(notes or {})}
    return Decision(launch_key, DecisionKind.GATES, "sendoff", None, now, detail)


def lateness(
    most: Duration, due_at: datetime | None, now: datetime, takes: timedelta = timedelta()
) -> GateResult:
    """Check how late a launch is; without a due time, it is never late. ``takes``: the time that it takes anyway."""
    allowed = f"at most {most.words}"
    if takes:
        allowed += f", and {duration(takes.total_seconds())} for the recipients' own hours"
    if due_at is None:
        return GateResult("lateness", True, "no due time", allowed)
    late = max(now - due_at, timedelta())
    actual = f"{duration(round(late.total_seconds()))} after it was due" if late else "not late"
    return GateResult("lateness", late <= most.timedelta() + takes, actual, allowed)


def unsent_period(other: LaunchRecord | None) -> Iterator[GateResult]:
    """Yield a closed gate if another launch was sent for a part of the period."""
    if other:
        actual = f"overlaps the period {other.period.key}, which has a launch of {other.campaign}"
        if other.resend:
            actual += f" with the resend number {other.resend}"
        yield GateResult("period", False, actual, "no overlap")


def _audience_gates(inputs: GateInputs) -> Iterator[GateResult]:
    gates, audience, segments = inputs.campaign.gates, inputs.audience, inputs.segments
    people = sum(map(len, segments))
    found = counted(people, *noun_of(audience.identified_by if audience else None))
    allowed = f"at least {gates.least:,}"
    if audience:
        sent = audience.dropped.get("already_sent", 0)
        with_sent = f"{found}, and {sent:,} already sent to" if sent else found
        yield GateResult("least", people + sent >= gates.least, with_sent, allowed)
    else:
        yield GateResult("least", True, "people chosen by the service", allowed)
    if audience and (channels := _channels(inputs.campaign, audience, segments)):
        yield channels
    if gates.most is not None:
        yield GateResult("most", people <= gates.most, found, f"at most {gates.most:,}")
    if gates.change is not None and audience:
        yield _change(gates.change, audience, inputs.previous)
    if gates.unusable is not None and audience:
        yield _unusable(gates.unusable, audience)


def _time_gates(inputs: GateInputs) -> Iterator[GateResult]:
    campaign, gates, now = inputs.campaign, inputs.campaign.gates, inputs.now
    if gates.lateness and (inputs.due_at or gates.names_lateness):
        late = _lateness(gates.lateness, inputs)
        on_purpose = inputs.send_late and not late.is_open
        yield (
            replace(late, is_open=True, actual=f"{late.actual}, sent late on purpose") if on_purpose else late
        )
    yield from unsent_period(inputs.overlapping)
    zones = sorted({segment.variation.time_zone or "" for segment in inputs.segments})
    sends = [(zone, campaign.variation(Variation(time_zone=zone), inputs.period_end).send) for zone in zones]
    if gates.window and campaign.send.kind == "now":
        openings = {(gates.window.opens_at(zone, now), zone) for zone in map(gates.window.zone_for, zones)}
        yield GateResult("window", True, _waits(openings, now), _window_text(gates.window))
    elif gates.window and sends:
        yield _reached_within(gates.window, sends)
    if rules := _rules(campaign, sends, now):
        yield rules
    if campaign.warm_up:
        yield _warm_up(campaign.warm_up, sum(map(len, inputs.segments)), inputs.recipients_today, now)
    if gates.rollout:
        yield _rollout(gates.rollout, inputs.segments)
    if gates.hold_above:
        yield _hold_above(gates.hold_above)
    if isinstance(campaign.send, Once) and sends:
        yield _not_over([send for _, send in sends if isinstance(send, Once)], now)


def _lateness(most: Duration, inputs: GateInputs) -> GateResult:
    """Check how late a launch is, also when it may first send if a lateness of the file stops it while it waits."""
    campaign, due_at, now = inputs.campaign, inputs.due_at, inputs.now
    late = lateness(most, due_at, now)
    if not (late.is_open and campaign.gates.names_lateness):
        return late
    slots = {segment.slot for segment in inputs.segments}
    opens_at = first_opening(campaign, slots, inputs.period_end, now)
    if opens_at is None:
        return late
    then = lateness(most, due_at, opens_at, campaign.own_hours_take)
    return late if then.is_open else replace(then, actual=f"{then.actual}, when it may first send")


def _channels(campaign: Campaign, audience: Audience, segments: Sequence[Segment]) -> GateResult | None:
    """Check that the channels may reach at least one recipient; None if the query does not show it."""
    platforms, pushed_to = audience.groups.get("platform", {}), platforms_pushed_to(campaign)
    if pushed_to is None or not platforms or not segments:
        return None
    one, many = noun_of(audience.identified_by)
    actual = f"{many} on {', '.join(f'{name} ({len(platforms[name]):,})' for name in sorted(platforms))}"
    is_open = may_reach(platforms, pushed_to, segments)
    return GateResult("channels", is_open, actual, f"at least one {one} on {', '.join(sorted(pushed_to))}")


def _change(most: float, audience: Audience, previous: LaunchRecord | None) -> GateResult:
    allowed = f"at most {most:g} % more or fewer than in the last launch"
    people, words = _before_cuts(len(audience.identifiers), audience.dropped)
    before, last = _before_cuts(previous.audience, previous.dropped) if previous else (0, "")
    if not before:
        return GateResult("change", True, f"an audience of {words}, and no launch before", allowed)
    change = 100 * (people - before) / before
    direction = "more" if change >= 0 else "fewer"
    actual = f"an audience of {words}, {abs(change):.1f} % {direction} than the {last} of the last launch"
    return GateResult("change", abs(change) <= most, actual, allowed)


CUTS = {"already_sent": "those already sent to were left out", "size_limit": "the size limit"}
"""The reasons for which the options of a run leave out recipients, in words."""


def _before_cuts(kept: int, dropped: Mapping[str, int]) -> tuple[int, str]:
    """Return the number of recipients before the options of a run left some out, and a text for it."""
    cut = {words: dropped[reason] for reason, words in CUTS.items() if dropped.get(reason)}
    people = kept + sum(cut.values())
    return people, f"{people:,} (before {' and '.join(cut)})" if cut else f"{people:,}"


def _unusable(most: float, audience: Audience) -> GateResult:
    rows = audience.dropped.get("null", 0) + audience.dropped.get("invalid", 0)
    share = 100 * rows / audience.rows if audience.rows else 0.0
    actual = f"{rows:,} of {audience.rows:,} rows ({share:.1f} %) null or invalid"
    return GateResult("unusable", share <= most, actual, f"at most {most:g} % of the rows")


def _window_text(window: SendWindow) -> str:
    zone = "each person's time zone" if window.time_zone == QUERY_ZONE else window.time_zone
    return f"{window.earliest} to {window.latest} in {zone}"


def _reached_within(window: SendWindow, sends: Sequence[tuple[str | None, Schedule]]) -> GateResult:
    times = {time for zone, send in sends for _, time in local_times(send, window.zone_for(zone))}
    outside = sorted(time for time in times if not window.contains(time))
    actual = f"sending at {', '.join((outside or sorted(times) or ['no time'])[:3])}"
    return GateResult("window", not outside, actual, _window_text(window))


def _waits(openings: Collection[tuple[datetime | None, str]], now: datetime) -> str:
    """Return whether a launch can send now, or else how long it waits. ``openings``: a moment for each time zone."""
    shut = [(at, zone) for at, zone in openings if at and at > now]
    if not shut:
        return "open now"
    last, zone = max(shut)
    where = f" in {len(shut)} of {len(openings)} time zones" if len(openings) > 1 else ""
    return f"closed now{where}; the launch waits until {last.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} in {zone}"


def _rules(
    campaign: Campaign, sends: Sequence[tuple[str | None, Schedule]], now: datetime
) -> GateResult | None:
    """Check the times against the rules for all campaigns; None if these do not restrict times."""
    rules = campaign.rules
    if campaign.transactional and (rules.restricts_times or rules.restricts_recipients):
        allowed = rules.words() if rules.restricts_times else "the rules for all campaigns"
        return GateResult("rules", True, f"not applied, transactional: {campaign.transactional}", allowed)
    if not rules.restricts_times:
        return None
    if campaign.send.kind != "now":
        forbidden = [why for zone, send in sends if (why := forbidden_time(rules, send, zone))]
        actual = f"forbidden, because {forbidden[0]}" if forbidden else "sending when the rules allow it"
        return GateResult("rules", not forbidden, actual, rules.words())
    openings = [
        (next_open(rules, campaign.gates.window, zone, now), zone or str(rules.default_time_zone))
        for zone, _ in sends
    ]
    if any(at is None for at, _ in openings):
        return GateResult("rules", False, "never open together with gates.window", rules.words())
    return GateResult("rules", True, _waits(openings, now), rules.words())


def _warm_up(warm_up: WarmUp, people: int, used: int, now: datetime) -> GateResult:
    """Return how many recipients fit into today's limit of the connection, and how long the others take at best."""
    day = now.astimezone(UTC).date()
    today, days = warm_up.days_for(people, day, used)
    rest = f", the rest over {counted(days, 'day')}" if days else ""
    allowed = (
        f"at most {warm_up.limit_on(day):,} on {day} (UTC) over all campaigns, growing to {warm_up.most:,}"
    )
    return GateResult("warm_up", True, f"{today:,} of {people:,} today{rest}", allowed)


def _rollout(rollout: Rollout, segments: Sequence[Segment]) -> GateResult:
    waves: Counter[int] = Counter()
    for segment in segments:
        waves[segment.wave] += len(segment)
    actual = f"waves of {', '.join(f'{waves[wave]:,}' for wave in sorted(waves))} people"
    shares = ", ".join(f"{share:g} %" for share in rollout.shares)
    missing = "" if rollout.missing is None else f" and {rollout.missing:g} % of people missing"
    allowed = (
        f"{shares}, then the rest, {rollout.wait.words} apart, "
        f"with at most {rollout.refused:g} % of requests refused{missing}"
    )
    return GateResult("rollout", True, actual, allowed)


def _hold_above(limits: HoldAbove) -> GateResult:
    after = f"missing after {limits.after.words}"
    parts = [(limits.refused, "refused"), (limits.missing, after), (limits.opt_outs, "opting out")]
    allowed = ", ".join(f"{limit:g} % {what}" for limit, what in parts if limit is not None)
    return GateResult("hold_above", True, "checked while it sends", f"at most {allowed}")


def _not_over(sends: Sequence[Once], now: datetime) -> GateResult:
    first = min(sends, key=Once.sends_at)
    over = sum(send.is_over(now) for send in sends)
    actual = f"{first.date} {first.time} in {first.time_zone}"
    if over:
        actual = f"the first sending time, {actual}, has passed"
    return GateResult("send", not over, actual, f"a sending time after {now:%Y-%m-%d %H:%M} UTC")
