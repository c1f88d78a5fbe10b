"""Gates, approval and report timing of a campaign."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sendoff.campaign.audience_rules import Percent
from sendoff.campaign.field_types import (
    QUERY_ZONE,
    ConnectionName,
    FrozenModel,
    Int32,
    Text,
    TimeZone,
    TimeZoneOrQuery,
    between,
    check_only_with,
    optional,
    problem,
)
from sendoff.campaign.schedule import DailyHours, Unit
from sendoff.figures import counted

MOST_DAYS = 36_500
"""The longest duration in days. It is longer than the history of any ledger."""


class Duration(FrozenModel):
    """A length of time with its unit."""

    length: Int32 = Field(description="Number of units")
    unit: Unit = Field(description="Unit of the length")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if timedelta(**{self.unit: 1}) > timedelta(days=MOST_DAYS) / self.length:
            raise problem(f"{self.length} {self.unit}", f"at most {MOST_DAYS} days")
        return self

    def timedelta(self) -> timedelta:
        """Return the length as a Python timedelta."""
        return timedelta(**{self.unit: self.length})

    @property
    def words(self) -> str:
        """The length in words, such as ``1 day``."""
        return counted(self.length, self.unit.removesuffix("s"))


class SendWindow(DailyHours):
    """The hours of the day when recipients may get messages.

    A launch that sends at once waits for them. Any other launch is refused if the service would send outside of them.
    """

    time_zone: TimeZoneOrQuery = Field(
        description=f"IANA time zone, or {QUERY_ZONE} to use each recipient's column time_zone"
    )
    default_time_zone: TimeZone | None = optional(
        "Time zone of recipients without a value in the column time_zone; "
        "required with time_zone: query, not allowed otherwise"
    )

    @model_validator(mode="after")
    def _has_a_zone_for_all(self) -> Self:
        check_only_with("default_time_zone", self.default_time_zone, "time_zone", self.time_zone, QUERY_ZONE)
        return self

    def zone_for(self, time_zone: str | None) -> str:
        """Return the time zone of the window for recipients in ``time_zone``."""
        return str(time_zone or self.default_time_zone) if self.time_zone == QUERY_ZONE else self.time_zone


class Rollout(FrozenModel):
    """Send to a few recipients first, and to the rest only if that goes well."""

    shares: Annotated[tuple[Percent, ...], Field(min_length=1)] = optional(
        "Cumulative percent of the audience after each wave, in ascending order; a last wave reaches the rest",
        (1, 10),
    )
    wait: Duration = optional(
        "How long to wait for post-backs after a wave", Duration(length=30, unit="minutes")
    )
    refused: Percent = optional("Maximum share of requests that the service may refuse, in percent", 1)
    missing: Percent | None = optional(
        "Maximum share of missing recipients, in percent of those whose deliveries the service reports"
    )

    @model_validator(mode="after")
    def _growing(self) -> Self:
        if list(self.shares) != sorted(set(self.shares)) or self.shares[-1] >= 100:
            found = ", ".join(f"{share:g}" for share in self.shares)
            raise problem(found, "growing shares, all of them below 100")
        return self


class Failures(FrozenModel):
    """Hold the launch if too many of its latest requests fail."""

    refused: Int32 = optional("Number of refused requests that holds the launch", 3)
    in_doubt: Int32 = optional("Number of requests in doubt at the same time that holds the launch", 3)
    of: Annotated[int, between(1, 1000)] = optional("How many of the latest requests are counted", 20)

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.of < (least := max(self.refused, self.in_doubt)):
            raise problem(f"of: {self.of}", f"at least {least}, as many as may fail")
        return self


class HoldAbove(FrozenModel):
    """Hold the launch if a sequential test finds that a rate is above its limit, and not only by chance."""

    refused: Percent | None = optional("Limit for recipients whose request the service refuses, in percent")
    missing: Percent | None = optional(
        "Limit for missing recipients, in percent of those whose deliveries the service reports"
    )
    opt_outs: Percent | None = optional("Limit for recipients who opt out because of the launch, in percent")
    after: Duration = optional(
        "How long deliveries may take; recipients are missing only after that",
        Duration(length=2, unit="hours"),
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.refused is None and self.missing is None and self.opt_outs is None:
            raise problem("no limit", "refused, missing or opt_outs")
        return self


class Gates(FrozenModel):
    """Checks that must pass before the launch sends."""

    least: Int32 = optional("Minimum number of recipients; fewer are an error", 1)
    most: Int32 | None = optional("Maximum number of recipients; more are an error")
    change: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = optional(
        "Maximum change in the number of recipients since the last launch, in percent"
    )
    unusable: Percent | None = optional(
        "Maximum share of rows whose identifier is null or invalid, in percent"
    )
    lateness: Duration | None = optional(
        "How late a launch may be: after the end of its period if the campaign or its DAG has a schedule, otherwise "
        "after the start of the run. A later run is skipped, unless you trigger it with Send late. The default applies "
        "only with a schedule and send.kind: now, and only until the launch is made. "
        "Use null for no limit",
        Duration(length=1, unit="days"),
    )
    window: SendWindow | None = optional(
        "Hours of the day when recipients may get messages. With send.kind: now, the launch waits for them; "
        "otherwise, sending times outside of them are an error"
    )
    rollout: Rollout | None = optional("Send to a few recipients first, and to the rest if that goes well")
    failures: Failures | None = optional(
        "Hold the launch if too many of its latest requests fail; use null to turn this off", Failures()
    )
    hold_above: HoldAbove | None = optional(
        "Hold the launch if too many recipients are refused, missing, or opt out"
    )

    @property
    def names_lateness(self) -> bool:
        """Whether the file sets a lateness; the default is for scheduled campaigns that send at once."""
        return "lateness" in self.model_fields_set


class Approval(FrozenModel):
    """Whether a person must approve a launch before it sends."""

    needed: Literal["always", "above", "never"] = optional("When approval is needed", "never")
    above: Int32 | None = optional(
        "Number of recipients above which approval is needed; required with needed: above, not allowed otherwise"
    )
    role: Text | None = optional(
        "Role that may approve, as the deployment names it; by default anyone with the permission in Airflow"
    )
    within: Duration = optional(
        "How long to wait for approval; without an answer the launch is rejected",
        Duration(length=4, unit="hours"),
    )

    @model_validator(mode="after")
    def _says_above_what(self) -> Self:
        check_only_with("above", self.above, "needed", self.needed, "above")
        return self

    def is_needed(self, people: int | None) -> bool:
        """Check whether a launch needs approval; ``people`` is None if the service chooses the recipients."""
        if self.needed == "above":
            return people is None or people > (self.above or 0)
        return self.needed == "always"


class ReportTiming(FrozenModel):
    """When the report is made, and where its results are written."""

    quiet_for: Duration = optional(
        "Make the report when no post-back has arrived for this long", Duration(length=15, unit="minutes")
    )
    at_latest: Duration = optional(
        "Make the report after this long in any case. It counts from when the service has sent the last message",
        Duration(length=1, unit="days"),
    )
    tables: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")] | None = optional(
        "Also write the results into tables of this schema in the warehouse, such as analytics"
    )
    tables_warehouse: ConnectionName | None = optional(
        "Airflow connection that writes these tables; by default the campaign's warehouse"
    )
    tables_dbt: Annotated[str, Field(strict=True, pattern=r"^/.*\.ya?ml$", max_length=1000)] | None = (
        optional(
            "Also write dbt's source file of these tables to this absolute path, such as /dbt/models/sendoff.yml"
        )
    )
