"""The periods of a campaign's schedule, computed as Airflow computes the data intervals of its DAG.

They must be the same, because the period decides the launch: a cron job and a DAG then send one launch, not two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

from croniter import croniter

from sendoff.campaign.model import PRESETS, Campaign
from sendoff.campaign.period import Period
from sendoff.errors import NotYetError

_LONGEST_SHIFT = timedelta(hours=3)  # an hour, and the largest change of a clock, two hours


def last_period(campaign: Campaign, now: datetime) -> Period | None:
    """Return the last complete interval of the campaign's schedule, or None if the campaign has no schedule.

    Raise NotYetError if the first interval since ``campaign.start`` has not ended.
    """
    if not campaign.schedule:
        return None
    cron, zone = PRESETS.get(campaign.schedule, campaign.schedule), ZoneInfo(campaign.schedule_time_zone)
    clock, (start, end) = _Clock(cron, zone), interval_before(cron, zone, now)
    if campaign.start is not None:
        first = clock.at_or_after(datetime.combine(campaign.start, time(), clock.zone).astimezone(UTC))
        if start < first:
            until = clock.step(first, "next")
            raise NotYetError(f"the first period of the campaign ends at {until:%Y-%m-%d %H:%M} UTC", until)
    return Period(start, end)


def interval_before(cron: str, zone: tzinfo, now: datetime) -> tuple[datetime, datetime]:
    """Return the last complete interval of a cron expression, in UTC."""
    clock = _Clock(cron, zone)
    end = clock.at_or_before(now.replace(microsecond=0))
    return clock.step(end, "prev"), end


@dataclass(frozen=True, slots=True)
class _Clock:
    """A cron expression in a time zone. Its moments are in UTC."""

    cron: str
    zone: tzinfo

    def at_or_before(self, at: datetime) -> datetime:
        before = self.step(at, "prev")
        return at if self.step(before, "next") == at else before

    def at_or_after(self, at: datetime) -> datetime:
        after = self.step(at, "next")
        return at if self.step(after, "prev") == at else after

    def step(self, at: datetime, direction: Literal["next", "prev"]) -> datetime:
        """Return the moment after or before another.

        A schedule of every hour counts real time, as Airflow does, so a repeated hour has two runs. Any other schedule
        counts the time on the clock: a time that the clocks show twice is the second one, and one that they skip moves
        later.
        """
        local = at.astimezone(self.zone).replace(tzinfo=None)
        times = croniter(self.cron, local)
        is_hourly = times.expanded[1] == ["*"]
        if direction == "next":
            found: datetime = times.get_next(datetime)
            return at.astimezone(UTC) + (found - local) if is_hourly else self._moment(found)
        # The clocks may change between two days of an hourly schedule. So count to the moment from one long before it.
        until = at - _LONGEST_SHIFT if is_hourly else at
        moments: Iterator[datetime] = map(self._moment, times.all_prev(datetime))
        before = next(moment for moment in moments if moment < until)
        while is_hourly and (after := self.step(before, "next")) < at:
            before = after
        return before

    def _moment(self, local: datetime) -> datetime:
        there = local.replace(tzinfo=self.zone, fold=1)
        is_skipped = there.astimezone(UTC).astimezone(self.zone).replace(tzinfo=None) != local
        return there.replace(fold=0 if is_skipped else 1).astimezone(UTC)
