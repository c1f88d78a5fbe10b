"""What must hold before a campaign is sent, who must agree, and when it is reported on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from sendoff.campaign.audience_rules import Percent
from sendoff.campaign.field_types import (
    QUERY_ZONE,
    FrozenModel,
    HourMinute,
    Int32,
    Text,
    TimeZone,
    TimeZoneOrQuery,
    between,
    check_only_with,
    moment,
    optional,
    problem,
)
from sendoff.campaign.schedule import Unit, check_window

_LONGEST = timedelta(days=36_500)


class Duration(FrozenModel):
    """A length of time with its unit."""

    length: Int32 = Field(description="How many units")
    unit: Unit = Field(description="Unit of length")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if timedelta(**{self.unit: 1}) > _LONGEST / self.length:
            raise problem(f"{self.length} {self.unit}", f"at most {_LONGEST.days} days")
        return self

    def timedelta(self) -> timedelta:
        """Return the length as Python has it."""
        return timedelta(**{self.unit: self.length})


class SendWindow(FrozenModel):
    """The part of each day in which requests are made; outside of it the launch waits."""

    earliest: HourMinute = Field(description="First minute of each day")
    latest: HourMinute = Field(description="Last minute of each day; later than earliest")
    time_zone: TimeZoneOrQuery = Field(
        description=f"IANA time zone, or {QUERY_ZONE}: that of each person's column time_zone"
    )
    default_time_zone: TimeZone | None = optional(
        "Of people whose column time_zone names none; with time_zone: query, and only there"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        check_window(self.earliest, self.latest)
        check_only_with("default_time_zone", self.default_time_zone, "time_zone", self.time_zone, QUERY_ZONE)
        return self

    def zone_for(self, time_zone: str | None) -> str:
        """Return the time zone of the window for recipients of one time zone."""
        return str(time_zone or self.default_time_zone) if self.time_zone == QUERY_ZONE else self.time_zone

    def contains(self, hour_minute: str) -> bool:
        """Check whether a time of day (``HH:MM``) is in the window."""
        return self.earliest <= hour_minute <= self.latest

    def opens_at(self, time_zone: str, now: datetime) -> datetime | None:
        """Return when the window opens next in a time zone (UTC), or None while it is open.

        It opens twice on a day on which clocks are put back and its first minute comes twice.
        """
        local = now.astimezone(ZoneInfo(time_zone))
        if self.contains(f"{local:%H:%M}"):
            return None
        firsts = (moment(local.date() + timedelta(days=n), self.earliest, time_zone) for n in (0, 1, 2))
        openings = (at.replace(fold=fold).astimezone(UTC) for at in firsts for fold in (0, 1))
        return next(at for at in openings if at > now)


class Rollout(FrozenModel):
    """Send to a few first, and to the rest only if that went well."""

    shares: Annotated[tuple[Percent, ...], Field(min_length=1)] = optional(
        "Share of the audience after each wave but the last, in percent, growing", (1, 10)
    )
    wait: Duration = optional(
        "How long post-backs are waited for after a wave", Duration(length=30, unit="minutes")
    )
    refused: Percent = optional("Most requests that the service may have refused, in percent", 1)
    missing: Percent | None = optional(
        "Most people that may be missing, in percent of those whose silence means that"
    )

    @model_validator(mode="after")
    def _growing(self) -> Self:
        if list(self.shares) != sorted(set(self.shares)) or self.shares[-1] >= 100:
            found = ", ".join(f"{share:g}" for share in self.shares)
            raise problem(found, "growing shares, all of them below 100")
        return self


class Failures(FrozenModel):
    """When a launch is held because its requests fail: so many of its newest ones, so that one alone does not count."""

    refused: Int32 = optional("So many that the service refused", 3)
    in_doubt: Int32 = optional("So many that are in doubt at the same time", 3)
    of: Annotated[int, between(1, 1000)] = optional("How many of the newest requests are looked at", 20)

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.of < (least := max(self.refused, self.in_doubt)):
            raise problem(f"of: {self.of}", f"at least {least}, as many as may fail")
        return self


class Gates(FrozenModel):
    """What must hold before the first request."""

    least: Int32 = optional("Fewest people; fewer are an error", 1)
    most: Int32 | None = optional("Most people; more are an error")
    change: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = optional(
        "Most that the number of people may differ from the last launch's, in percent"
    )
    unusable: Percent | None = optional("Most rows whose identifier is null or invalid, in percent")
    lateness: Duration | None = optional(
        "How late a launch may be, counted from the end of the period if the campaign has a schedule, "
        "else from the start of the run. A later run is skipped, unless somebody triggers it with Send late. The "
        "default holds only for a campaign with a schedule and send.kind: now, and only until the launch is made; "
        "null: never too late",
        Duration(length=1, unit="days"),
    )
    window: SendWindow | None = optional("The part of each day in which requests are made")
    rollout: Rollout | None = optional("Send to a few first")
    failures: Failures | None = optional(
        "When the launch is held because its requests fail; null: never", Failures()
    )

    @property
    def names_lateness(self) -> bool:
        """Whether the file names a lateness; the default is for campaigns with a schedule that send at once."""
        return "lateness" in self.model_fields_set


class Approval(FrozenModel):
    """Whether a person must agree before the first request."""

    needed: Literal["always", "above", "never"] = optional("When somebody must agree", "never")
    above: Int32 | None = optional(
        "Number of people above which it is needed; with needed: above, and only there"
    )
    role: Text | None = optional(
        "Who may agree: a name that the deployment gives to people; default whom Airflow lets"
    )
    within: Duration = optional("How long is waited; silence rejects", Duration(length=4, unit="hours"))

    @model_validator(mode="after")
    def _says_above_what(self) -> Self:
        check_only_with("above", self.above, "needed", self.needed, "above")
        return self

    def is_needed(self, people: int | None) -> bool:
        """Check whether somebody must agree to a launch to so many; None: the service chooses them, nobody knows."""
        if self.needed == "above":
            return people is None or people > (self.above or 0)
        return self.needed == "always"


class ReportTiming(FrozenModel):
    """When the report is made."""

    quiet_for: Duration = optional(
        "Once no post-back has come for so long", Duration(length=15, unit="minutes")
    )
    at_latest: Duration = optional("After so long in any case", Duration(length=1, unit="days"))
