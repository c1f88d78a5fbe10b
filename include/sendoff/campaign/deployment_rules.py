"""Rules for all campaigns of a deployment, from the section ``rules`` of ``defaults.yaml``.

They apply in addition to the campaign's own rules, and a campaign cannot weaken them. Only the daily limits apply to a
transactional campaign. A launch freezes them with its campaign.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from sendoff.campaign.audience_rules import CampaignExclusion, Cap, Caps, ListExclusion
from sendoff.campaign.field_types import (
    OWN_ZONE,
    QUERY_ZONE,
    WEEKDAYS,
    ConnectionName,
    Day,
    FrozenModel,
    Int32,
    TimeZone,
    Weekday,
    describe,
    moment,
    optional,
    problem,
)
from sendoff.campaign.gates import SendWindow
from sendoff.campaign.schedule import DailyHours, Now, Schedule, local_times

_CODE = re.compile(r"([A-Z]{2})(?:-([A-Z0-9]{1,3}))?", re.ASCII)
_HORIZON = timedelta(days=2 * 366)  # rules that allow nothing for this long never do
_PARTS_OF_A_LIMIT = 10


@lru_cache(maxsize=256)
def _holidays_of(code: str, year: int) -> frozenset[date]:
    """Return the public holidays of a country, or of a part of it. Raise NotImplementedError if none are known."""
    from holidays import country_holidays  # only if the rule is used, because it is large

    country, _, part = code.partition("-")
    return frozenset(country_holidays(country, subdiv=part or None, years=year))


def _holiday_code(code: str) -> str:
    allowed = "an ISO code of a country, such as DE, or of a part of it, such as DE-BY"
    try:
        if not _CODE.fullmatch(code):
            raise NotImplementedError
        _holidays_of(code, 2026)
    except NotImplementedError:
        raise problem(describe(code), allowed) from None
    return code


HolidayCode = Annotated[
    str,
    Field(strict=True),
    AfterValidator(_holiday_code),
    WithJsonSchema({"type": "string", "pattern": f"^{_CODE.pattern}$", "examples": ["DE-BY"]}),
]


class QuietHours(DailyHours):
    """Recipients get no messages before ``earliest`` and after ``latest``, in their own time zone."""


class WarmUp(FrozenModel):
    """A daily limit of a connection that grows from day to day, shared by all its campaigns."""

    connection: ConnectionName = Field(description="Airflow connection of the messaging service")
    start: Day = Field(
        description="First day of the growth, in UTC; the limit of this day also applies before it"
    )
    first_day: Int32 = Field(description="Maximum number of recipients on the first day")
    growth: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = Field(
        description="Growth of the limit from one day to the next, as a factor; 1 for a limit that stays the same"
    )
    most: Int32 = Field(description="Maximum number of recipients on any day")

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.most < self.first_day:
            raise problem(f"most: {self.most}", f"at least first_day, which is {self.first_day}")
        return self

    def limit_on(self, day: date) -> int:
        """Return the maximum number of recipients on a day."""
        days = max((day - self.start).days, 0)
        if days * math.log(self.growth) >= math.log(self.most / self.first_day):
            return self.most
        return min(self.most, int(self.first_day * self.growth**days))

    def request_size(self, day: date) -> int:
        """Return how many recipients one request may have: a tenth of the limit, so that little of a day is unused."""
        return max(1, self.limit_on(day) // _PARTS_OF_A_LIMIT)

    def days_for(self, recipients: int, day: date, used: int) -> tuple[int, int]:
        """Return how many recipients fit into the rest of a day, and the number of days that the others take."""
        today = min(max(self.limit_on(day) - used, 0), recipients)
        rest, days = recipients - today, 0
        while rest > 0:
            days += 1
            limit = self.limit_on(day + timedelta(days=days))
            if limit == self.most:
                return today, days + -(-rest // limit) - 1
            rest -= limit
        return today, days


class DeploymentRules(FrozenModel):
    """Rules for all campaigns, which no campaign can weaken. Of these, transactional ones keep only warm_up."""

    quiet_hours: QuietHours | None = optional(
        "Hours of the day when recipients may get messages, in their own time zone; all other hours are quiet"
    )
    days: Annotated[tuple[Weekday, ...], Field(min_length=1)] | None = optional(
        "Days of the week when recipients may get messages; every day by default"
    )
    holidays: tuple[HolidayCode, ...] = optional(
        "Countries, or parts of them, by ISO code; recipients get no messages on a public holiday of any of them",
        (),
    )
    default_time_zone: TimeZone | None = optional(
        "Time zone of recipients without a value in the column time_zone; required with quiet_hours, days or "
        "holidays, not allowed otherwise"
    )
    cap: Caps = optional(
        "Maximum number of messages per recipient in a number of days, or several of them", ()
    )
    exclude: tuple[Annotated[ListExclusion | CampaignExclusion, Field(discriminator="kind")], ...] = optional(
        "Recipients to leave out of every campaign", ()
    )
    warm_up: tuple[WarmUp, ...] = optional(
        "Daily limits of new senders, one for each connection, whose campaigns need send.kind: now", ()
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.restricts_times != (self.default_time_zone is not None):
            found = "default_time_zone alone" if self.default_time_zone else "no default_time_zone"
            raise problem(found, "default_time_zone with quiet_hours, days or holidays, and only there")
        names = [each.connection for each in self.warm_up]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise problem(
                f"two entries for the connection {twice[0]}", "one entry of warm_up for each connection"
            )
        return self

    @property
    def restricts_times(self) -> bool:
        """Whether there are times at which recipients must not get messages."""
        return bool(self.quiet_hours or self.days or self.holidays)

    @property
    def restricts_recipients(self) -> bool:
        """Whether recipients may be left out."""
        return bool(self.cap or self.exclude)

    @property
    def depend_on_launches(self) -> bool:
        """Check whether the rules depend on the recipients of other launches."""
        return bool(self.cap or any(isinstance(each, CampaignExclusion) for each in self.exclude))

    def limits_only(self) -> Self:
        """Return the rules that also apply to transactional campaigns."""
        return type(self)(warm_up=self.warm_up)

    def caps_for(self, scopes: Collection[str]) -> tuple[Cap, ...]:
        """Return the caps that apply to a campaign with these scopes."""
        return tuple(cap for cap in self.cap if cap.scope in scopes)

    def why_not_at(self, day: date | None, hour_minute: str) -> str | None:
        """Return why recipients must not get a message at a local time, in words, or None if they may.

        ``day``: None if it is not known yet; only the hours count then.
        """
        if (hours := self.quiet_hours) and not hours.contains(hour_minute):
            return f"{hour_minute} is in the quiet hours, before {hours.earliest} or after {hours.latest}"
        return None if day is None else self._why_not_on(day)

    def _why_not_on(self, day: date) -> str | None:
        if code := next((code for code in self.holidays if day in _holidays_of(code, day.year)), None):
            return f"{day} is a public holiday in {code}"
        weekday = WEEKDAYS[day.weekday()]
        return f"{day} is a {weekday.title()}" if self.days and weekday not in self.days else None

    def opens_at(self, time_zone: str, now: datetime) -> datetime | None:
        """Return a later moment (UTC) before which recipients in a time zone must not get messages, or None.

        The rules may still forbid messages at that moment, for another reason. The moment is past the horizon if they
        always do.
        """
        today = now.astimezone(ZoneInfo(time_zone)).date()
        for count in range(_HORIZON.days + 2):
            day = today + timedelta(days=count)
            if self._why_not_on(day) is None:
                break
        if day != today:
            return moment(day, "00:00", time_zone).astimezone(UTC)
        return self.quiet_hours.opens_at(time_zone, now) if self.quiet_hours else None

    def words(self) -> str:
        """Return the times when recipients may get messages, in words."""
        parts = [f"{self.quiet_hours.earliest} to {self.quiet_hours.latest}"] if self.quiet_hours else []
        parts += [f"on {', '.join(self.days)}"] if self.days else []
        parts += [f"not on holidays in {', '.join(self.holidays)}"] if self.holidays else []
        return f"{', '.join(parts)}, in each person's time zone"


def next_open(
    rules: DeploymentRules, window: SendWindow | None, time_zone: str | None, now: datetime
) -> datetime | None:
    """Return the first moment from now on when recipients in a time zone may get messages.

    That is ``now`` itself if they may get messages now. Return None if they may not within two years.
    """
    at = now
    while at <= now + _HORIZON:
        later = (window and window.opens_at(window.zone_for(time_zone), at)) or at
        if there := time_zone or rules.default_time_zone:
            later = (rules.restricts_times and rules.opens_at(there, later)) or later
        if later == at:
            return at
        at = later
    return None


def forbidden_time(rules: DeploymentRules, send: Schedule, time_zone: str | None) -> str | None:
    """Return the first sending time that the rules forbid, in words, or None if they allow all that are known.

    ``time_zone``: that of the recipients; None for the default. Of a repeated campaign, only the first year counts.
    """
    if isinstance(send, Now) or not rules.restricts_times:
        return None
    there = time_zone or rules.default_time_zone or "UTC"
    for day, time in local_times(send, there):
        if why := rules.why_not_at(day, time):
            return why if send.time_zone in (OWN_ZONE, QUERY_ZONE) else f"{why} in {there}"
    return None
