"""When the service sends, and how long it keeps trying (sections 2.10 to 2.12).

A date that the file leaves out follows from the launch's period, never from the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Annotated, Literal, NamedTuple, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from sendoff.campaign.field_types import (
    OWN_ZONE,
    QUERY_ZONE,
    WEEKDAYS,
    AnyTimeZone,
    Day,
    DayOrNever,
    FrozenModel,
    HourMinute,
    Int32,
    Text,
    TimeZone,
    TimeZoneOrOwn,
    Weekday,
    between,
    check_only_with,
    moment,
    optional,
    problem,
)

LAST_ZONE = timezone(timedelta(hours=-12))  # the last time zone on Earth to reach a time of day
LAST_DEADLINE = datetime.fromtimestamp(2**31 - 1, UTC)
"""The latest moment that fits into the service's field for a deadline, which is an int32 (section 2.12)."""

_A_YEAR = 366  # days; enough to include every clock change


class OwnHours(FrozenModel):
    """Send to recipients at the hour of the day at which they opened earlier messages.

    Recipients without a known hour get the message at once.
    """

    explore: Annotated[float, Field(ge=0, le=50, allow_inf_nan=False)] = optional(
        "Share of all recipients who get the message at a random hour, in percent, so that other hours are tried",
        10,
    )
    control: Annotated[float, Field(ge=1, le=99, allow_inf_nan=False)] = optional(
        "Share of the recipients with a known hour who get the message at once all the same, in percent. The report "
        "compares the others with them",
        50,
    )


class Now(FrozenModel):
    """Send as soon as the service accepts the request."""

    kind: Literal["now"] = "now"
    own_hours: OwnHours | None = optional(
        "Wait for the hour of the day at which each recipient opened earlier messages, with a control group"
    )

    def resolved(self, _period_end: datetime, _clock: str = "UTC") -> Self:
        """Return the schedule itself: sending at once needs no date."""
        return self

    def sends_at(self) -> datetime:
        """Return a moment before any request, because the service sends as soon as it accepts one."""
        return datetime.min.replace(tzinfo=UTC)


class Slot(NamedTuple):
    """When a request may be made, apart from the window and the rules: during an hour of the day in a time zone.

    ``time_zone``: None if the campaign does not send each zone separately. ``hour``: None for any hour.
    """

    time_zone: str | None
    hour: int | None = None

    def __str__(self) -> str:
        zone = self.time_zone or ""
        return zone if self.hour is None else f"{zone}@{self.hour:02}"

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Read the text of a slot."""
        zone, _, hour = (text or "").partition("@")
        return cls(zone or None, int(hour) if hour else None)


class Once(FrozenModel):
    """Send once, at a time of day, on ``date`` or else on the day when the period ends."""

    kind: Literal["once"] = "once"
    time: HourMinute = Field(description="Time of day to send at")
    time_zone: AnyTimeZone = Field(
        description="IANA time zone of the time. user: each recipient's own zone, as the service knows it. "
        "query: the zone in the query's column time_zone, with a separate request for each zone"
    )
    default_time_zone: TimeZone | None = optional(
        "Time zone of recipients without a value in the column time_zone; "
        "required with time_zone: query, not allowed otherwise"
    )
    date: Day | None = optional(
        "Date to send on; by default the day when the period ends. The default is the next such time after the period "
        "ends, in each zone with time_zone: query, and in the schedule_time_zone with time_zone: user"
    )

    @model_validator(mode="after")
    def _has_a_zone_for_all(self) -> Self:
        check_only_with("default_time_zone", self.default_time_zone, "time_zone", self.time_zone, QUERY_ZONE)
        return self

    def in_zone(self, zone: str, period_end: datetime) -> Once:
        """Return the resolved schedule for one zone: on ``date``, or at the first ``time`` after the period ends.

        Raise ValueError if the moment on ``date`` lies before the end of the period in that zone.
        """
        there = self.replace(time_zone=zone, default_time_zone=None)
        if self.date is None:
            day = day_of(period_end, zone)
            if moment(day, self.time, zone) <= period_end:
                day += timedelta(days=1)
            there = there.replace(date=day)
        return there.resolved(period_end)

    def resolved(self, period_end: datetime, clock: str = "UTC") -> Self:
        """Return a copy with its date; a time that the clocks skip moves later by the size of the clock change.

        ``clock``: the time zone of the date if each recipient's own zone decides. The date is then the first with the
        time after the period ends. With ``time_zone: query`` there is no date yet: :meth:`in_zone` sets it for each
        zone. Raise ValueError if the moment lies before the end of the period.
        """
        if self.time_zone == QUERY_ZONE:
            return self
        if self.time_zone == OWN_ZONE:
            return self.replace(date=self.date or self.in_zone(clock, period_end).date)
        day = self.date or day_of(period_end, self.time_zone)
        at = moment(day, self.time, self.time_zone)
        if at < period_end:
            ends = period_end.astimezone(ZoneInfo(self.time_zone))
            raise ValueError(
                f"{self.time} on {day} in {self.time_zone} is before the end of the period "
                f"({ends:%Y-%m-%d %H:%M}). Set a later time or date, or make the period end earlier"
            )
        return self.replace(date=at.date(), time=f"{at:%H:%M}")

    def sends_at(self) -> datetime:
        """Return the moment (UTC) when the last message is sent; the schedule must be resolved."""
        if self.date is None:
            raise ValueError("resolve the campaign first: it has no date yet")
        return _last_moment(self.date, self.time, self.time_zone)

    def is_over(self, now: datetime) -> bool:
        """Check whether the moment of sending has passed; the schedule must be resolved."""
        return now > self.sends_at()


class DailyHours(FrozenModel):
    """Hours of every day, in a time zone."""

    earliest: HourMinute = Field(description="First minute when recipients may get messages")
    latest: HourMinute = Field(description="Last minute; later than earliest, on the same day")

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> Self:
        if self.earliest >= self.latest:
            found = f"{self.earliest} to {self.latest}"
            raise problem(found, "a window that starts before it ends, on one day")
        return self

    def contains(self, hour_minute: str) -> bool:
        """Check whether a time of day (``HH:MM``) is within these hours."""
        return self.earliest <= hour_minute <= self.latest

    def opens_at(self, time_zone: str, now: datetime) -> datetime | None:
        """Return the moment (UTC) when these hours next begin in a time zone, or None during them.

        They begin twice on a day whose clock change repeats their first minute.
        """
        local = now.astimezone(ZoneInfo(time_zone))
        if self.contains(f"{local:%H:%M}"):
            return None
        firsts = (moment(local.date() + timedelta(days=n), self.earliest, time_zone) for n in (0, 1))
        openings = (at.replace(fold=fold).astimezone(UTC) for at in firsts for fold in (0, 1))
        return next(at for at in openings if at > now)


class Window(DailyHours):
    """The hours of the day during which a triggered campaign may send."""

    earliest: HourMinute = optional("Time of day when sending may start", "00:00")
    latest: HourMinute = optional("Last minute of sending; later than earliest, on the same day", "23:59")


class _Running(FrozenModel):
    """The fields that recurring and triggered campaigns share: days and their time zone."""

    time_zone: TimeZoneOrOwn = Field(description="IANA time zone, or user for each recipient's own zone")
    days: Annotated[tuple[Weekday, ...], Field(min_length=1)] | None = optional(
        "Days of the week to send on; every day by default"
    )
    start: Day = Field(description="First day; the period of the launch begins here")
    end: DayOrNever = Field(
        description="Last day, after which the service stops sending; "
        "with never, it goes on until a person stops the campaign in the service"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if isinstance(self.end, date) and self.end < self.start:
            raise problem(
                f"an end ({self.end}) before the start ({self.start})", "an end on or after the start"
            )
        return self

    def is_on(self, day: date) -> bool:
        """Check whether the service sends on this day of the week."""
        return self.days is None or WEEKDAYS[day.weekday()] in self.days

    def sends_at(self) -> None:
        """Return None: the service sends repeatedly or on an event, so silence proves nothing."""

    def ends_at(self) -> datetime | None:
        """Return the end of the last day, or None if there is none. The last day of all is none.

        For each recipient's own zone, that is the end of the day in the last zone on Earth.
        """
        if not isinstance(self.end, date) or self.end == date.max:
            return None
        zone = LAST_ZONE if self.time_zone == OWN_ZONE else ZoneInfo(self.time_zone)
        return datetime.combine(self.end + timedelta(days=1), time(), zone)

    def resolved(self, _period_end: datetime, _clock: str = "UTC") -> Self:
        """Return the schedule itself: the file names its days."""
        return self


class Recurring(_Running):
    """Send repeatedly, at a time of day on certain days of the week."""

    kind: Literal["recurring"] = "recurring"
    time: HourMinute = Field(description="Time of day to send at")

    def last_at(self) -> datetime | None:
        """Return the moment (UTC) when the service sends for the last time, or None if there is no end."""
        if not isinstance(self.end, date) or self.end == date.max:
            return None
        last = next(day for n in range(7) if self.is_on(day := self.end - timedelta(days=n)))
        return _last_moment(last, self.time, self.time_zone)


_Period = Literal["day", "campaign"]


class LocationTrigger(FrozenModel):
    """Send when a device enters, leaves or stays at one of the service's saved locations (section 2.10)."""

    kind: Literal["location"] = "location"
    locations: Annotated[tuple[Int32, ...], Field(min_length=1, description="IDs of saved locations")]
    when: Literal["enter", "exit", "dwell"] = Field(
        description="What the device does at the location: enter it, leave it (exit), or stay there (dwell)"
    )
    dwell_minutes: Annotated[int, between(1, 30)] | None = optional(
        "How many minutes the device stays; required with when: dwell, not allowed otherwise"
    )
    per_user: Int32 = optional("Maximum number of messages per person in per_user_period", 1)
    per_user_period: _Period = optional("Whether per_user applies to a day or to the whole campaign", "day")
    per_location: Int32 = optional(
        "Maximum number of messages per person and location in per_location_period", 1
    )
    per_location_period: _Period = optional(
        "Whether per_location applies to a day or to the whole campaign", "day"
    )
    nth_hit: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = optional(
        "Number of events that pass without a message before one is sent", 0
    )
    nth_hit_period: _Period = optional("Whether nth_hit applies to a day or to the whole campaign", "day")

    @model_validator(mode="after")
    def _dwells_for_a_while(self) -> Self:
        check_only_with("dwell_minutes", self.dwell_minutes, "when", self.when, "dwell")
        return self


class EventTrigger(FrozenModel):
    """Send when the app or website reports an event to the service, such as an abandoned basket."""

    kind: Literal["event"] = "event"
    name: Text = Field(description="Name of the event, as the app or website reports it to the service")


class ApiTrigger(FrozenModel):
    """Send when the service's API is called; such a campaign can be the template of executions."""

    kind: Literal["api"] = "api"


class Triggered(_Running):
    """Send when an event happens, during certain hours of the day."""

    kind: Literal["triggered"] = "triggered"
    trigger: Annotated[
        LocationTrigger | EventTrigger | ApiTrigger,
        Field(discriminator="kind", description="What triggers the message"),
    ]
    window: Window = optional("Hours of the day during which the campaign may send", Window())


Schedule = Annotated[Now | Once | Recurring | Triggered, Field(discriminator="kind")]


def local_times(send: Schedule, zone: str) -> Iterator[tuple[date | None, str]]:
    """Yield the days and times of day when the service sends, in a time zone: the first and the last of each day.

    All known days of the first year count, because clocks change, and not everywhere at once. If a range crosses
    midnight in that zone, 23:59 and 00:00 are yielded too. The times are as they are written if the recipients' own
    zones decide. The day is then None if it follows from the period.
    """
    if isinstance(send, Now):
        return
    times = (send.window.earliest, send.window.latest) if isinstance(send, Triggered) else (send.time,)
    for day in days_of(send):
        if send.time_zone in (OWN_ZONE, QUERY_ZONE):
            yield from ((day, time) for time in times)
        elif day is not None:
            moments = [moment(day, time, send.time_zone).astimezone(ZoneInfo(zone)) for time in times]
            yield from ((at.date(), f"{at:%H:%M}") for at in moments)
            first, last = moments[0].date(), moments[-1].date()
            if first != last:  # across midnight
                yield from ((first, "23:59"), (last, "00:00"))


def days_of(send: Once | Recurring | Triggered) -> Iterator[date | None]:
    """Yield the days of the first year when the service may send; None if the day follows from the period."""
    if isinstance(send, Once):
        yield send.date
        return
    for day in (send.start + timedelta(days=count) for count in range(_A_YEAR)):
        if send.is_on(day) and not (isinstance(send.end, date) and day > send.end):
            yield day


Unit = Literal["seconds", "minutes", "hours", "days", "weeks"]


class Until(FrozenModel):
    """A time of day on a date, or on the day when the period ends."""

    time: HourMinute = Field(description="Time of day")
    time_zone: TimeZone = Field(description="IANA time zone of the time")
    date: Day | None = optional("Date; by default the day when the period ends")

    def resolved(self, period_end: datetime) -> Self:
        """Return the moment with its date. Raise ValueError if it lies before the end of the period."""
        day = self.date or day_of(period_end, self.time_zone)
        if moment(day, self.time, self.time_zone) < period_end:
            raise ValueError(f"{self.time} on {day} in {self.time_zone} is before the end of the period")
        return self.replace(date=day)

    def moment(self) -> datetime:
        """Return the moment in UTC; it must be resolved."""
        if self.date is None:
            raise ValueError("resolve the campaign first: this moment has no date yet")
        return moment(self.date, self.time, self.time_zone).astimezone(UTC)

    def timestamp(self) -> int:
        """Return the moment in Unix seconds; it must be resolved."""
        return int(self.moment().timestamp())


class TimeToLive(FrozenModel):
    """A time to live: a length with its unit, a last moment, or both."""

    length: Int32 | None = optional("Number of units; requires unit")
    unit: Unit | None = optional("Unit of the length")
    until: Until | None = optional(
        "Last moment, instead of a length or in addition to it; at most 2038-01-19 03:14 UTC"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.length is None) != (self.unit is None):
            raise problem("a length or a unit alone", "length and unit together")
        if self.length is None and self.until is None:
            raise problem("nothing", "length and unit, or until, or both")
        return self

    def ends_at(self) -> datetime | None:
        """Return the last moment, which must be resolved, or None if there is none."""
        return self.until.moment() if self.until else None

    def resolved(self, period_end: datetime) -> Self:
        """Return a copy whose last moment has its date."""
        return self.replace(until=self.until and self.until.resolved(period_end))


def _last_moment(day: date, hour_minute: str, zone: str) -> datetime:
    """Return the moment (UTC) of a local time: in the last zone on Earth if each recipient's own zone decides."""
    if zone == OWN_ZONE:
        return datetime.combine(day, time.fromisoformat(hour_minute), LAST_ZONE).astimezone(UTC)
    return moment(day, hour_minute, zone).astimezone(UTC)


def day_of(period_end: datetime, zone: str) -> date:
    """Return the day when a period ends in a time zone."""
    if period_end.tzinfo is None:
        raise ValueError("a period needs an aware datetime")
    return period_end.astimezone(ZoneInfo(zone)).date()
