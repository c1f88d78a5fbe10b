"""What must hold before a campaign is sent, who must agree, and when it is reported on."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sendoff.campaign.audience_rules import Percent
from sendoff.campaign.field_types import (
    QUERY_ZONE,
    HourMinute,
    Int32,
    Text,
    TimeZone,
    TimeZoneOrQuery,
    Value,
    check_default_zone,
    problem,
)
from sendoff.campaign.schedule import Unit

_LONGEST = timedelta(days=36_500)


class Duration(Value):
    """A length of time with its unit."""

    length: Int32 = Field(description="How many units")
    unit: Unit = Field(description="Unit of length")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if timedelta(**{self.unit: 1}) > _LONGEST / self.length:
            raise problem(f"{self.length} {self.unit}", f"at most {_LONGEST.days} days")
        return self

    def timedelta(self) -> timedelta:
        """Give it as Python has it."""
        return timedelta(**{self.unit: self.length})


class SendWindow(Value):
    """The part of each day in which requests are made; outside of it the launch waits."""

    earliest: HourMinute = Field(description="First minute of each day")
    latest: HourMinute = Field(description="Last minute of each day; later than earliest")
    time_zone: TimeZoneOrQuery = Field(
        description=f"IANA time zone, or {QUERY_ZONE}: that of each person's column time_zone"
    )
    default_time_zone: TimeZone | None = Field(
        None, description="Of people whose column time_zone names none; with time_zone: query, and only there"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.earliest >= self.latest:
            raise problem(
                f"{self.earliest} to {self.latest}", "a window that starts before it ends, on one day"
            )
        check_default_zone(self.time_zone, self.default_time_zone)
        return self


class Spread(Value):
    """Send to a few first, and to the rest only if that went well."""

    shares: Annotated[tuple[Percent, ...], Field(min_length=1)] = Field(
        (1, 10), description="Share of the audience after each wave but the last, in percent, growing"
    )
    wait: Duration = Field(
        Duration(length=30, unit="minutes"), description="How long post-backs are waited for after a wave"
    )
    refused: Percent = Field(1, description="Most requests that the service may have refused, in percent")
    missing: Percent | None = Field(
        None, description="Most people that may be missing, in percent of those whose silence means that"
    )

    @model_validator(mode="after")
    def _growing(self) -> Self:
        if list(self.shares) != sorted(set(self.shares)) or self.shares[-1] >= 100:
            raise problem(
                ", ".join(f"{share:g}" for share in self.shares), "growing shares, all of them below 100"
            )
        return self


class Failures(Value):
    """When a launch is held because its requests fail: so many of its newest ones, so that one alone does not count."""

    refused: Int32 = Field(3, description="So many that the service refused")
    in_doubt: Int32 = Field(3, description="So many that are in doubt at the same time")
    of: Annotated[
        int,
        Field(ge=1, le=1000, strict=True, description="How many of the newest requests are looked at"),
    ] = 20

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.of < max(self.refused, self.in_doubt):
            raise problem(
                f"of: {self.of}", f"at least {max(self.refused, self.in_doubt)}, as many as may fail"
            )
        return self


class Gates(Value):
    """What must hold before the first request."""

    least: Int32 = Field(1, description="Fewest people; fewer are an error")
    most: Int32 | None = Field(None, description="Most people; more are an error")
    change: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Most that the number of people may differ from the last launch's, in percent"
    )
    unusable: Percent | None = Field(
        None, description="Most rows whose identifier is null or invalid, in percent"
    )
    lateness: Duration | None = Field(
        Duration(length=1, unit="days"),
        description="How late a launch may be, counted from the end of the period if the campaign has a schedule, "
        "else from the start of the run. A later run is skipped, unless somebody triggers it with Send late. The "
        "default holds only for a campaign with a schedule and send.kind: now, and only until the launch is made; "
        "null: never too late",
    )
    window: SendWindow | None = Field(None, description="The part of each day in which requests are made")
    spread: Spread | None = Field(None, description="Send to a few first")
    failures: Failures | None = Field(
        Failures(), description="When the launch is held because its requests fail; null: never"
    )

    @property
    def names_lateness(self) -> bool:
        """Whether the file names a lateness; the default is for campaigns with a schedule that send at once."""
        return "lateness" in self.model_fields_set


class Approval(Value):
    """Whether a person must agree before the first request."""

    needed: Literal["always", "above", "never"] = Field("never", description="When somebody must agree")
    above: Int32 | None = Field(
        None, description="Number of people above which it is needed; with needed: above, and only there"
    )
    role: Text | None = Field(
        None,
        description="Who may agree: a name that the deployment gives to people; default whom Airflow lets",
    )
    within: Duration = Field(
        Duration(length=4, unit="hours"), description="How long is waited; silence rejects"
    )

    @model_validator(mode="after")
    def _says_above_what(self) -> Self:
        if (self.needed == "above") != (self.above is not None):
            found = "no above" if self.above is None else f"above with needed: {self.needed}"
            raise problem(found, "above with needed: above, and only there")
        return self

    def is_needed(self, people: int | None) -> bool:
        """Say whether somebody must agree to a launch to so many; None: the service chooses them, nobody knows."""
        if self.needed == "above":
            return people is None or people > (self.above or 0)
        return self.needed == "always"


class Waiting(Value):
    """When the report is made."""

    quiet_for: Duration = Field(
        Duration(length=15, unit="minutes"), description="Once no post-back has come for so long"
    )
    at_latest: Duration = Field(Duration(length=1, unit="days"), description="After so long in any case")
