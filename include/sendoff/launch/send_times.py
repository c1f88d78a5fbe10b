"""When the service sends a launch, in words and as moments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from itertools import groupby
from operator import itemgetter
from zoneinfo import ZoneInfo

from sendoff.campaign import (
    LAST_ZONE,
    OWN_ZONE,
    QUERY_ZONE,
    ApiTrigger,
    Campaign,
    EventTrigger,
    LocationTrigger,
    Now,
    Once,
    Recurring,
    Slot,
    Triggered,
    Variation,
    local_times,
    moment,
    next_open,
)

_HOUR = timedelta(hours=1)
_LONGEST_WAIT = timedelta(days=14)  # for an hour of the day
_FIRST_ZONE = timezone(timedelta(hours=14))  # the first time zone on Earth to reach a time of day


@dataclass(frozen=True, slots=True)
class SendTimes:
    """When a launch sends. ``first_at`` and ``last_at`` are None if it sends at once or repeatedly."""

    kind: str
    words: str
    first_at: datetime | None
    last_at: datetime | None


def send_times_of(campaign: Campaign, variations: Iterable[Variation], period_end: datetime) -> SendTimes:
    """Return when a resolved campaign sends to the recipients of the given variations."""
    send = campaign.send
    if not isinstance(send, Once):
        waits = ", which waits for the send window" if campaign.gates.window and isinstance(send, Now) else ""
        if isinstance(send, Now) and campaign.rules_in_force.restricts_times:
            waits += f"{' and' if waits else ', which waits'} for the hours and days that the rules allow"
        if campaign.own_hours:
            waits += "; recipients with an hour of their own get it when that hour comes"
        return SendTimes(send.kind, f"{describe_schedule(send)}{waits}", None, None)
    sends = [campaign.variation(variation, period_end).send for variation in set(variations)]
    known = [once for once in sends if isinstance(once, Once) and once.time_zone != QUERY_ZONE]
    first, last = (min(map(_first, known)), max(map(Once.sends_at, known))) if known else (None, None)
    return SendTimes(send.kind, describe_schedule(send), first, last)


def ends_before(campaign: Campaign, sends_at: datetime | None) -> Iterator[str]:
    """Yield in words each end of a resolved campaign's messages that comes before they are sent."""
    for path, expiry in campaign.expiries():
        end = expiry.ends_at()
        if end and sends_at and end < sends_at:
            sent = f"{sends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            yield f"{'.'.join(path)}.until: the end at {end:%Y-%m-%d %H:%M} UTC is before messages are sent, at {sent}"


def closed_until(
    campaign: Campaign, zones: Iterable[str | None], period_end: datetime, now: datetime
) -> Mapping[str | None, datetime | None]:
    """Return the closed time zones of a launch, each with the time at which it opens; None if it never does.

    ``zones``: the texts of slots, with the hour of their recipients if they have one.

    The window and the rules for all campaigns apply to campaigns that send at once. The others were checked against
    them before the launch was frozen. All zones are closed after an end date or expiry.
    """
    has_ended = campaign.has_ended(now)
    waits = campaign.send.kind == "now" and (
        campaign.gates.window is not None or campaign.rules_in_force.restricts_times or campaign.own_hours
    )
    shut: dict[str | None, datetime | None] = {}
    for zone in zones:
        slot = Slot.of(zone)
        send = campaign.variation(Variation(time_zone=slot.time_zone), period_end).send
        if has_ended or (isinstance(send, Once) and send.is_over(now)):
            shut[zone] = None
        elif waits and (until := _opens_at(campaign, slot, now)) != now:
            shut[zone] = until
    return shut


def first_opening(
    campaign: Campaign, zones: Collection[str | None], period_end: datetime, now: datetime
) -> datetime | None:
    """Return the first moment from now on when requests to some time zones may be made; None if there is none.

    ``zones``: as for :func:`closed_until`.
    """
    shut = closed_until(campaign, zones, period_end, now)
    return min((at for zone in zones if (at := shut.get(zone, now)) is not None), default=None)


def _opens_at(campaign: Campaign, slot: Slot, now: datetime) -> datetime | None:
    """Return when requests of a slot may be made: ``now`` or later, or None if never.

    If the window and the rules do not allow its hour within two weeks, any hour that they allow will do.
    """
    window, rules = campaign.gates.window, campaign.rules_in_force
    first = at = next_open(rules, window, slot.time_zone, now)
    if slot.hour is None:
        return first
    clock = campaign.clock_zone(slot.time_zone)
    while at is not None and at <= now + _LONGEST_WAIT:
        later = _within_hour(slot.hour, clock, at)
        if later == at:
            return at
        at = next_open(rules, window, slot.time_zone, later)
    return first


def _within_hour(hour: int, time_zone: str, at: datetime) -> datetime:
    """Return the first moment from ``at`` on in an hour of the day; one that the clocks skip begins when they do."""
    local = at.astimezone(ZoneInfo(time_zone))
    if local.hour == hour:  # also when it comes the second time
        return at
    days = (local.date() + timedelta(days=count) for count in range(-1, 3))
    starts = (moment(day, f"{hour:02}:00", time_zone).astimezone(UTC) for day in days)
    return next(max(start, at) for start in starts if at < start + _HOUR)


def _first(send: Once) -> datetime:
    if send.time_zone == OWN_ZONE and send.date:
        return datetime.combine(send.date, time.fromisoformat(send.time), _FIRST_ZONE)
    return send.sends_at()


def begins_at(send: Recurring | Triggered, since: datetime) -> datetime | None:
    """Return the first moment from ``since`` on when the service may send, or None if there is none.

    For each recipient's own zone, the hours of a day begin in the first zone on Earth and end in the last one.
    """
    zone = None if send.time_zone == OWN_ZONE else ZoneInfo(send.time_zone)
    for day, times in groupby(local_times(send, send.time_zone), itemgetter(0)):
        moments = [datetime.combine(day or send.start, time.fromisoformat(at)) for _, at in times]
        if moments[-1].replace(tzinfo=zone or LAST_ZONE) >= since:
            return max(moments[0].replace(tzinfo=zone or _FIRST_ZONE).astimezone(UTC), since)
    return None


def describe_schedule(send: Now | Once | Recurring | Triggered) -> str:
    """Describe a campaign's schedule of sending in words."""
    if isinstance(send, Now):
        return "at once, as soon as the service accepts a request"
    if isinstance(send, Once):
        undated = "" if send.time_zone in (OWN_ZONE, QUERY_ZONE) else " on the day of the run"
        day = f" on {send.date}" if send.date else undated
        return f"at {send.time}{day}, {_zone(send.time_zone)}"
    days = ", ".join(send.days) if send.days else "every day"
    until = "until someone stops it" if send.end == "never" else f"until {send.end}"
    span = f"from {send.start} {until}, {_zone(send.time_zone)}"
    if isinstance(send, Recurring):
        return f"repeatedly: {days} at {send.time}, {span}"
    cause = _cause(send.trigger)
    hours = f"{send.window.earliest} to {send.window.latest}"
    return f"whenever it is triggered by {cause}: {days} from {hours}, {span}"


def _cause(trigger: LocationTrigger | EventTrigger | ApiTrigger) -> str:
    if isinstance(trigger, EventTrigger):
        return f"the event {trigger.name}"
    return "the API" if isinstance(trigger, ApiTrigger) else "locations"


def _zone(name: str) -> str:
    if name == OWN_ZONE:
        return "in each person's own time zone, as the service knows it"
    return "in each person's time zone, as the query returns it" if name == QUERY_ZONE else f"in {name}"
