"""When the service sends, and how long it tries (sections 2.10 to 2.12).

Times are logical: a date that the file leaves out follows from the period of the launch, never from the wall clock.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from sendoff.campaign.field_types import (
    OWN_ZONE,
    QUERY_ZONE,
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

_LAST_ZONE = timezone(timedelta(hours=-12))  # where a time of day comes last


class Now(FrozenModel):
    """Send at once."""

    kind: Literal["now"] = "now"

    def resolved(self, _period_end: datetime) -> Self:
        """Return this: sending at once needs no date."""
        return self

    def sends_at(self) -> datetime:
        """Return a moment before any request: what is sent at once is sent as soon as it is accepted."""
        return datetime.min.replace(tzinfo=UTC)


class Once(FrozenModel):
    """Send once, at a time of day; on the day that the period ends unless ``date`` says otherwise."""

    kind: Literal["once"] = "once"
    time: HourMinute = Field(description="Time of day of sending")
    time_zone: AnyTimeZone = Field(
        description="IANA time zone of time; user: each person's own, as the service knows it; "
        "query: that of the column time_zone, with a request for each zone"
    )
    default_time_zone: TimeZone | None = optional(
        "Of people whose column time_zone names none; with time_zone: query, and only there"
    )
    date: Day | None = optional(
        "Default the day that the period ends; with time_zone: query, the first such moment"
    )

    @model_validator(mode="after")
    def _has_a_zone_for_all(self) -> Self:
        check_only_with("default_time_zone", self.default_time_zone, "time_zone", self.time_zone, QUERY_ZONE)
        return self

    def in_zone(self, zone: str, period_end: datetime) -> Once:
        """Return what people of one zone get, resolved: on ``date``, else at the first such time in the period's wake.

        Raises ValueError where ``date`` is over in that zone when the period ends.
        """
        there = self.replace(time_zone=zone, default_time_zone=None)
        if self.date is None:
            day = day_of(period_end, zone)
            if moment(day, self.time, zone) < period_end:
                day += timedelta(days=1)
            there = there.replace(date=day)
        return there.resolved(period_end)

    def resolved(self, period_end: datetime) -> Self:
        """Return a copy with its date; a time that the clocks skip comes as much later as they are put forward.

        That of each person's column stays without, for :meth:`in_zone` to give. Raises ValueError where that moment
        lies before the end of the period.
        """
        if self.time_zone == QUERY_ZONE:
            return self
        day = self.date or day_of(period_end, self.time_zone)
        if self.time_zone == OWN_ZONE:
            return self.replace(date=day)
        at = moment(day, self.time, self.time_zone)
        if at < period_end:
            ends = period_end.astimezone(ZoneInfo(self.time_zone))
            raise ValueError(
                f"{self.time} on {day} in {self.time_zone} is over when the period ends "
                f"({ends:%Y-%m-%d %H:%M}); let the period end earlier, or give a date"
            )
        return self.replace(date=at.date(), time=f"{at:%H:%M}")

    def sends_at(self) -> datetime:
        """Return the moment (UTC) by which everybody is sent to; it must be resolved."""
        if self.date is None:
            raise ValueError("resolve the campaign first: it has no date yet")
        if self.time_zone == OWN_ZONE:
            return datetime.combine(self.date, time.fromisoformat(self.time), _LAST_ZONE).astimezone(UTC)
        return moment(self.date, self.time, self.time_zone).astimezone(UTC)

    def is_over(self, now: datetime) -> bool:
        """Check whether the moment of sending has passed; it must be resolved."""
        return now > self.sends_at()


def check_window(earliest: str, latest: str) -> None:
    """Raise an error unless a daily window starts before it ends."""
    if earliest >= latest:
        raise problem(f"{earliest} to {latest}", "a window that starts before it ends, on one day")


class Window(FrozenModel):
    """The part of each day in which a triggered campaign may send."""

    earliest: HourMinute = optional("First minute of each day in which it may send", "00:00")
    latest: HourMinute = optional(
        "Last minute of each day in which it may send; later than earliest", "23:59"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        check_window(self.earliest, self.latest)
        return self


class _Running(FrozenModel):
    """What recurring and triggered campaigns share: days, and a time zone for them."""

    time_zone: TimeZoneOrOwn = Field(description="IANA time zone, or user: each person's own")
    days: Annotated[tuple[Weekday, ...], Field(min_length=1)] | None = optional("Default every day")
    start: Day = Field(description="First day; the launch is for the time from here to end")
    end: DayOrNever = Field(
        description="Last day, on which the service stops it; never: until a person stops it in the service"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if isinstance(self.end, date) and self.end < self.start:
            raise problem(
                f"an end ({self.end}) before the start ({self.start})", "an end on or after the start"
            )
        return self

    def sends_at(self) -> None:
        """Return None: it is sent again and again, or when something happens, and silence proves nothing."""

    def ends_at(self) -> datetime | None:
        """Return the end of its last day, for each person's own zone where that comes last; None: it has none."""
        if not isinstance(self.end, date):
            return None
        zone = _LAST_ZONE if self.time_zone == OWN_ZONE else ZoneInfo(self.time_zone)
        return datetime.combine(self.end + timedelta(days=1), time(), zone)

    def resolved(self, _period_end: datetime) -> Self:
        """Return this: its days stand in the file."""
        return self


class Recurring(_Running):
    """Send again and again: on certain days of the week at a time of day."""

    kind: Literal["recurring"] = "recurring"
    time: HourMinute = Field(description="Time of day of sending")


Period = Literal["day", "campaign"]


class LocationTrigger(FrozenModel):
    """What a device must do at one of the service's locations (section 2.10), and how often it may be told."""

    kind: Literal["location"] = "location"
    locations: Annotated[tuple[Int32, ...], Field(min_length=1, description="Ids of saved locations")]
    when: Literal["enter", "exit", "dwell"] = Field(description="What a device does at the location")
    dwell_minutes: Annotated[int, between(1, 30)] | None = optional(
        "How long it stays; required with when: dwell, and only there"
    )
    per_user: Int32 = optional("Most messages for a person in per_user_period", 1)
    per_user_period: Period = optional("What per_user counts in", "day")
    per_location: Int32 = optional("Most messages for a person and location in per_location_period", 1)
    per_location_period: Period = optional("What per_location counts in", "day")
    nth_hit: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = optional(
        "Events needed before the one that sends", 0
    )
    nth_hit_period: Period = optional("What nth_hit counts in", "day")

    @model_validator(mode="after")
    def _dwells_for_a_while(self) -> Self:
        check_only_with("dwell_minutes", self.dwell_minutes, "when", self.when, "dwell")
        return self


class EventTrigger(FrozenModel):
    """Somebody causes an event that the app or the site reports to the service, such as leaving a basket."""

    kind: Literal["event"] = "event"
    name: Text = Field(description="Name of the event, as it is reported to the service")


class ApiTrigger(FrozenModel):
    """Somebody calls the service to send it: the template of executions."""

    kind: Literal["api"] = "api"


class Triggered(_Running):
    """Send when something happens, within a daily window."""

    kind: Literal["triggered"] = "triggered"
    trigger: Annotated[
        LocationTrigger | EventTrigger | ApiTrigger,
        Field(discriminator="kind", description="What makes it send"),
    ]
    window: Window = optional("The part of each day in which it may send", Window())


Schedule = Annotated[Now | Once | Recurring | Triggered, Field(discriminator="kind")]

Unit = Literal["seconds", "minutes", "hours", "days", "weeks"]


class Until(FrozenModel):
    """A moment: a time of day on the day that the period ends, or on a date."""

    time: HourMinute = Field(description="Time of day")
    time_zone: TimeZone = Field(description="IANA time zone of time")
    date: Day | None = optional("Default the day that the period ends")

    def resolved(self, period_end: datetime) -> Self:
        """Return the moment with its date. Raise ValueError if it lies before the end of the period."""
        day = self.date or day_of(period_end, self.time_zone)
        if moment(day, self.time, self.time_zone) < period_end:
            raise ValueError(f"{self.time} on {day} in {self.time_zone} is over when the period ends")
        return self.replace(date=day)

    def moment(self) -> datetime:
        """Return the moment itself (UTC); it must be resolved."""
        if self.date is None:
            raise ValueError("resolve the campaign first: this moment has no date yet")
        return moment(self.date, self.time, self.time_zone).astimezone(UTC)

    def timestamp(self) -> int:
        """Return the moment in Unix seconds; it must be resolved."""
        return int(self.moment().timestamp())


class TimeToLive(FrozenModel):
    """How long something lasts: a length with its unit, a last moment, or both."""

    length: Int32 | None = optional("How many units; given together with unit")
    unit: Unit | None = optional("Unit of length")
    until: Until | None = optional("The last moment; beside or instead of length and unit")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.length is None) != (self.unit is None):
            raise problem("a length or a unit alone", "length and unit together")
        if self.length is None and self.until is None:
            raise problem("nothing", "length and unit, or until, or both")
        return self

    def ends_at(self) -> datetime | None:
        """Return its last moment, resolved; None: it names none."""
        return self.until.moment() if self.until else None

    def resolved(self, period_end: datetime) -> Self:
        """Return a copy with the date of its last moment."""
        return self.replace(until=self.until and self.until.resolved(period_end))


def day_of(period_end: datetime, zone: str) -> date:
    """Return the day on which a period ends, in a time zone (for each person's own: in UTC)."""
    if period_end.tzinfo is None:
        raise ValueError("a period needs an aware datetime")
    return period_end.astimezone(UTC if zone == OWN_ZONE else ZoneInfo(zone)).date()
