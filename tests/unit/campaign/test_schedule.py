"""Times of day on days of clock changes: sending once, in each zone, and send windows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendoff.campaign.deployment_rules import DeploymentRules, next_open
from sendoff.campaign.gates import SendWindow
from sendoff.campaign.schedule import Now, Once, local_times

SPRING, AUTUMN = date(2027, 3, 28), date(2027, 10, 31)  # Europe/Dublin: 01:00 to 02:00, and 02:00 to 01:00
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

# Zones with all kinds of clock changes: by an hour, by half an hour, by a whole day, and none.
ZONES = [
    "Europe/Dublin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kiritimati",
    "Pacific/Pago_Pago", "Asia/Kathmandu", "Africa/Casablanca", "UTC",
]  # fmt: skip
moments = st.datetimes(datetime(2010, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
times = st.times().map(lambda time: f"{time:%H:%M}")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


def once(time: str, zone: str, day: date | None = None) -> Once:
    return Once(time=time, time_zone=zone, date=day)


def by_query(time: str, day: date | None = None) -> Once:
    return Once(time=time, time_zone="query", default_time_zone="UTC", date=day)


# Once


@pytest.mark.parametrize(
    ("zone", "day", "time", "at", "written"),
    [
        # an hour that is skipped, and the minutes before and after it
        ("Europe/Dublin", SPRING, "00:59", "2027-03-28T00:59", "00:59"),
        ("Europe/Dublin", SPRING, "01:00", "2027-03-28T01:00", "02:00"),
        ("Europe/Dublin", SPRING, "01:30", "2027-03-28T01:30", "02:30"),
        ("Europe/Dublin", SPRING, "02:00", "2027-03-28T01:00", "02:00"),
        ("America/New_York", date(2027, 3, 14), "02:30", "2027-03-14T07:30", "03:30"),
        # an hour that comes twice: the first
        ("Europe/Dublin", AUTUMN, "01:30", "2027-10-31T00:30", "01:30"),
        ("Europe/Dublin", AUTUMN, "02:00", "2027-10-31T02:00", "02:00"),
        ("America/New_York", date(2027, 11, 7), "01:30", "2027-11-07T05:30", "01:30"),
        # half an hour
        ("Australia/Lord_Howe", date(2027, 10, 3), "02:15", "2027-10-02T15:45", "02:45"),
        ("Australia/Lord_Howe", date(2027, 4, 4), "01:45", "2027-04-03T14:45", "01:45"),
        # the same time of day is a different moment before and after a change
        ("Europe/Dublin", SPRING - DAY, "18:30", "2027-03-27T18:30", "18:30"),
        ("Europe/Dublin", SPRING, "18:30", "2027-03-28T17:30", "18:30"),
        # a day that was skipped
        ("Pacific/Apia", date(2011, 12, 30), "12:00", "2011-12-30T22:00", "12:00"),
        # the first and the last zone
        ("Pacific/Kiritimati", date(2027, 1, 1), "00:00", "2026-12-31T10:00", "00:00"),
        ("Pacific/Pago_Pago", date(2027, 1, 1), "23:59", "2027-01-02T10:59", "23:59"),
    ],
)  # fmt: skip
def test_a_once_off_is_at_its_local_time_also_where_the_clocks_change(
    zone: str, day: date, time: str, at: str, written: str
) -> None:
    resolved = once(time, zone, day).resolved(utc("2010-01-01T00:00"))
    assert resolved.sends_at() == utc(at)
    assert resolved.time == written


def test_a_once_off_on_a_day_that_was_skipped_is_on_the_next() -> None:
    resolved = once("12:00", "Pacific/Apia", date(2011, 12, 30)).resolved(utc("2010-01-01T00:00"))
    assert resolved.date == date(2011, 12, 31)


@given(st.sampled_from(ZONES), times, moments)
def test_what_is_resolved_is_a_time_that_the_clocks_show_and_stays_so(
    zone: str, time: str, end: datetime
) -> None:
    resolved = by_query(time).in_zone(zone, end)
    at = resolved.sends_at()
    there = at.astimezone(ZoneInfo(zone))
    assert (there.date(), f"{there:%H:%M}") == (resolved.date, resolved.time)
    assert resolved.resolved(end) == resolved
    # The first such time after the period: within a day, or longer only by the size of a clock change.
    assert end < at
    assert at - end <= DAY + (DAY if zone == "Pacific/Apia" else HOUR)


# Each recipient's own zone


@pytest.mark.parametrize(
    ("zone", "end", "at"),
    [
        # night in Dublin: the day has ended in the east, and has not begun in the west
        ("Europe/Dublin", "2027-03-27T06:00", "2027-03-27T18:30"),
        ("Pacific/Kiritimati", "2027-03-27T06:00", "2027-03-28T04:30"),
        ("Pacific/Kiritimati", "2027-03-27T04:29", "2027-03-27T04:30"),
        ("Pacific/Kiritimati", "2027-03-27T04:30", "2027-03-28T04:30"),  # no launch is made before its period ends
        ("Pacific/Pago_Pago", "2027-03-27T06:00", "2027-03-28T05:30"),
        ("Pacific/Pago_Pago", "2027-03-27T05:30", "2027-03-28T05:30"),
        # across a clock change
        ("Europe/Dublin", "2027-03-27T19:00", "2027-03-28T17:30"),
        ("Europe/Dublin", "2027-10-30T18:00", "2027-10-31T18:30"),
        ("Australia/Lord_Howe", "2027-10-02T08:30", "2027-10-03T07:30"),
        ("America/New_York", "2027-03-13T23:31", "2027-03-14T22:30"),
        ("Pacific/Apia", "2011-12-30T04:31", "2011-12-31T04:30"),
    ],
)  # fmt: skip
def test_in_each_zone_it_is_the_first_such_time_after_the_period(zone: str, end: str, at: str) -> None:
    assert by_query("18:30").in_zone(zone, utc(end)).sends_at() == utc(at)


def test_on_a_date_it_is_that_date_wherever_somebody_is() -> None:
    morning = by_query("07:30", SPRING)
    ends = utc("2027-03-27T06:00")
    moments = {
        zone: morning.in_zone(zone, ends).sends_at()
        for zone in ("Pacific/Kiritimati", "Europe/Dublin", "Pacific/Pago_Pago")
    }
    assert moments == {
        "Pacific/Kiritimati": utc("2027-03-27T17:30"),
        "Europe/Dublin": utc("2027-03-28T06:30"),
        "Pacific/Pago_Pago": utc("2027-03-28T18:30"),
    }


def test_a_date_that_is_over_in_a_zone_when_the_period_ends_is_refused() -> None:
    ends = utc("2027-03-27T18:00")
    assert by_query("07:30", SPRING).in_zone("Europe/Dublin", ends).sends_at() == utc("2027-03-28T06:30")
    with pytest.raises(ValueError, match="07:30 on 2027-03-28 in Pacific/Kiritimati is before"):
        by_query("07:30", SPRING).in_zone("Pacific/Kiritimati", ends)


def test_the_last_message_is_sent_in_the_last_time_zone_on_earth() -> None:
    assert once("20:00", "user", date(2027, 1, 1)).sends_at() == utc("2027-01-02T08:00")


def test_no_time_is_known_of_a_campaign_that_sends_at_once() -> None:
    assert list(local_times(Now(), "Europe/Dublin")) == []


# Windows


def window(earliest: str, latest: str, zone: str = "query") -> SendWindow:
    more: dict[str, Any] = {"default_time_zone": "UTC"} if zone == "query" else {}
    return SendWindow(earliest=earliest, latest=latest, time_zone=zone, **more)


@pytest.mark.parametrize(
    ("zone", "now", "opens"),
    [
        ("Europe/Dublin", "2027-03-27T20:01", "2027-03-28T08:00"),
        ("Europe/Dublin", "2027-03-28T07:59", "2027-03-28T08:00"),
        ("Europe/Dublin", "2027-03-28T08:00", None),
        ("Europe/Dublin", "2027-10-31T08:30", "2027-10-31T09:00"),
        ("America/New_York", "2027-11-07T02:00", "2027-11-07T14:00"),
        ("Australia/Lord_Howe", "2027-10-02T20:00", "2027-10-02T22:00"),
        ("Pacific/Apia", "2011-12-30T07:00", "2011-12-30T19:00"),
        ("Pacific/Kiritimati", "2027-01-01T06:00", None),
        ("Pacific/Kiritimati", "2027-01-01T06:01", "2027-01-01T19:00"),
        ("Pacific/Pago_Pago", "2027-01-01T07:01", "2027-01-01T20:00"),
    ],
)  # fmt: skip
def test_a_window_opens_at_its_local_time_also_where_the_clocks_change(
    zone: str, now: str, opens: str | None
) -> None:
    assert window("09:00", "20:00").opens_at(zone, utc(now)) == (opens and utc(opens))


@pytest.mark.parametrize(
    ("at", "opens"),
    [
        # summer time begins on 29 March 2026 at 01:00, and ends on 25 October at 02:00
        (datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 3, 29, 8, tzinfo=UTC)),
        (datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 9, tzinfo=UTC)),
        (datetime(2026, 3, 2, 8, 59, 59, tzinfo=UTC), datetime(2026, 3, 2, 9, tzinfo=UTC)),
        (datetime(2026, 3, 2, 9, tzinfo=UTC), None),
        (datetime(2026, 3, 2, 17, 30, 59, tzinfo=UTC), None),  # the last minute is included
        (datetime(2026, 3, 2, 17, 31, tzinfo=UTC), datetime(2026, 3, 3, 9, tzinfo=UTC)),
    ],
)
def test_a_window_opens_at_its_time_of_day_whatever_the_clocks_do(
    at: datetime, opens: datetime | None
) -> None:
    assert window("09:00", "17:30").opens_at("Europe/Dublin", at) == opens


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-10-25T00:10", "2026-10-25T00:30"),  # 02:10 for the first time
        ("2026-10-25T00:40", None),
        ("2026-10-25T01:10", "2026-10-25T01:30"),  # 02:10 for the second time
        ("2026-10-25T01:40", None),
        ("2026-10-25T19:01", "2026-10-26T01:30"),
        ("2026-03-29T00:59", "2026-03-29T01:30"),  # 02:30 is skipped
    ],
)
def test_a_window_whose_first_minute_comes_twice_opens_twice(now: str, opens: str | None) -> None:
    seen = window("02:30", "20:00").opens_at("Europe/Berlin", utc(now))
    assert seen == (opens and utc(opens))


def test_a_window_that_the_clocks_skip_opens_on_the_next_day() -> None:
    """In Berlin, the hour after 02:00 is skipped on 29 March 2026."""
    skipped = window("02:15", "02:45", "Europe/Berlin")
    assert next_open(DeploymentRules(), skipped, None, utc("2026-03-29T00:59")) == utc("2026-03-30T00:15")


@given(st.sampled_from(ZONES), moments, times, times)
def test_a_window_that_is_closed_opens_later_and_within_two_days(
    zone: str, now: datetime, one: str, other: str
) -> None:
    if one == other:
        return
    earliest, latest = sorted((one, other))
    opens = window(earliest, latest).opens_at(zone, now)
    if opens is None:
        assert earliest <= f"{now.astimezone(ZoneInfo(zone)):%H:%M}" <= latest
    else:
        assert now < opens <= now + 2 * DAY
