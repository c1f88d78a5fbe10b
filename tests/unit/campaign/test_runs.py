"""The last period of a schedule, also when the clocks change. In Dublin, they skip 1:00 to 2:00 on 29 March 2026."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sendoff.campaign import last_period
from sendoff.errors import NotYetError

from .campaigns import SENT, campaign

DUBLIN, TOKYO = "Europe/Dublin", "Asia/Tokyo"


@pytest.mark.parametrize(
    ("schedule", "zone", "now", "period"),
    [
        ("0 9 * * *", "UTC", "03-02T08:59:59", "02-28T09:00/03-01T09:00"),
        ("0 9 * * *", "UTC", "03-02T09:00:00", "03-01T09:00/03-02T09:00"),
        ("0 9 * * *", "UTC", "03-02T09:00:00.5", "03-01T09:00/03-02T09:00"),
        ("@daily", TOKYO, "03-02T09:00:00", "02-28T15:00/03-01T15:00"),
        ("30 1 * * *", DUBLIN, "03-29T12:00:00", "03-28T01:30/03-29T01:30"),  # 2:30 that day
        ("30 1 * * *", DUBLIN, "03-30T12:00:00", "03-29T01:30/03-30T00:30"),
        ("30 1,2 * * *", DUBLIN, "03-29T12:00:00", "03-28T02:30/03-29T01:30"),  # one moment
        ("30 1,2,23 * * *", DUBLIN, "03-29T12:00:00", "03-28T23:30/03-29T01:30"),
        ("30 0-2 * * *", DUBLIN, "03-29T12:00:00", "03-29T00:30/03-29T01:30"),
        ("*/15 0-6 * * *", DUBLIN, "03-29T01:00:00", "03-29T00:45/03-29T01:00"),
        ("*/15 0-6 * * *", DUBLIN, "03-29T01:10:00", "03-29T00:45/03-29T01:00"),
        ("0 * * * *", DUBLIN, "03-29T01:30:00", "03-29T00:00/03-29T01:00"),
        ("30 1 * * *", DUBLIN, "10-25T12:00:00", "10-24T00:30/10-25T01:30"),  # the second 1:30
        ("0 * * * *", DUBLIN, "10-25T00:30:00", "10-24T23:00/10-25T00:00"),  # the hour runs twice
        ("0 * * * *", DUBLIN, "10-25T01:30:00", "10-25T00:00/10-25T01:00"),
        # As in Airflow, the first period after the weekend is as long as if the clocks had not changed.
        ("0 * * * 1-5", DUBLIN, "03-29T23:30:00", "03-27T22:00/03-27T23:00"),
        ("0 * * * 1-5", DUBLIN, "03-30T00:30:00", "03-27T23:00/03-30T00:00"),
        ("0 * * * 1-5", DUBLIN, "10-25T23:30:00", "10-23T22:00/10-25T23:00"),
        ("0 * * * 1-5", DUBLIN, "10-26T00:30:00", "10-25T23:00/10-26T00:00"),
    ],
)
def test_the_last_period_ends_at_or_before_now(schedule: str, zone: str, now: str, period: str) -> None:
    made = campaign(**SENT, schedule=schedule, schedule_time_zone=zone)
    found = last_period(made, datetime.fromisoformat(f"2026-{now}Z"))
    assert found
    assert found.key == "/".join(f"2026-{each}:00Z" for each in period.split("/"))


@pytest.mark.parametrize(
    ("schedule", "zone", "end"),
    [
        ("0 9 * * *", "UTC", "03-03T09:00"),
        ("@daily", "UTC", "03-03T00:00"),  # the first period may begin with the day
        ("@daily", TOKYO, "03-02T15:00"),
    ],
)
def test_no_period_begins_before_the_first_day(schedule: str, zone: str, end: str) -> None:
    made = campaign(**SENT, schedule=schedule, schedule_time_zone=zone, start="2026-03-02")
    until = datetime.fromisoformat(f"2026-{end}Z")
    with pytest.raises(NotYetError) as error:
        last_period(made, until - timedelta(seconds=1))
    assert error.value.until == until
    found = last_period(made, until)
    assert found
    assert found.end == until


def test_the_first_period_may_begin_on_a_day_whose_midnight_the_clocks_skip() -> None:
    """In Santiago, 6 September 2026 begins at 01:00, as the DAG's first interval does."""
    made = campaign(**SENT, schedule="@daily", schedule_time_zone="America/Santiago", start="2026-09-06")
    found = last_period(made, datetime.fromisoformat("2026-09-07T03:00Z"))
    assert found
    assert found.key == "2026-09-06T04:00:00Z/2026-09-07T03:00:00Z"


def test_without_a_schedule_there_is_no_period() -> None:
    assert last_period(campaign(**SENT), datetime.fromisoformat("2026-03-02T09:00Z")) is None
