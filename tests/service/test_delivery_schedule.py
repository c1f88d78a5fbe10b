"""Recurring times, windows, comparisons and deadlines, without a process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from messaging_service.campaigns.conditions import compare, person_of
from messaging_service.campaigns.schedule import closed_because, next_occurrence, start_of_day
from messaging_service.clock import DurationError, ServiceClock, seconds_of
from messaging_service.delivery.outcomes import inbox_removal, push_deadline
from messaging_service.delivery.webhooks import request_of
from messaging_service.undocumented_names import UNDOCUMENTED_NAMES, UnknownNameError, parse_overrides

DUBLIN = {"send_type": 2, "send_time": "01:30"}


@pytest.mark.rule("2.11/timezone", "2.11/send_time", side="service")
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # summer time: 01:30 is 00:30 UTC
        (datetime(2030, 7, 1, 0, 0, tzinfo=UTC), datetime(2030, 7, 1, 0, 30, tzinfo=UTC)),
        (datetime(2030, 7, 1, 0, 30, tzinfo=UTC), datetime(2030, 7, 2, 0, 30, tzinfo=UTC)),
        # the clocks skip 01:30 on this night: with the offset from before, it is 01:30 UTC
        (datetime(2030, 3, 31, 0, 0, tzinfo=UTC), datetime(2030, 3, 31, 1, 30, tzinfo=UTC)),
        # 01:30 occurs twice on this night: only the first one counts
        (datetime(2030, 10, 26, 12, 0, tzinfo=UTC), datetime(2030, 10, 27, 0, 30, tzinfo=UTC)),
        (datetime(2030, 10, 27, 0, 30, tzinfo=UTC), datetime(2030, 10, 28, 1, 30, tzinfo=UTC)),
    ],
)
def test_the_next_occurrence_follows_the_wall_clock(after, expected):
    assert next_occurrence(DUBLIN, "Europe/Dublin", after) == expected


def test_a_campaign_that_has_ended_has_no_next_occurrence():
    fields = {**DUBLIN, "start_date": "2030-07-01", "end_date": "2030-07-02", "send_days": [3]}
    assert next_occurrence(fields, "UTC", datetime(2030, 1, 1, tzinfo=UTC)) is None


def test_a_campaign_may_start_in_the_far_future():
    fields = {**DUBLIN, "start_date": "9999-01-01"}
    first = datetime(9999, 1, 1, 1, 30, tzinfo=UTC)
    assert next_occurrence(fields, "UTC", datetime(2030, 1, 1, tzinfo=UTC)) == first


def test_a_window_is_open_up_to_the_end_of_its_last_minute():
    fields = {"send_type": 2, "start_time": "09:00", "end_time": "17:00"}
    day = datetime(2030, 7, 1, tzinfo=UTC)
    closed = "not between start_time and end_time"
    for hour, minute, second, expected in [
        (8, 59, 59, closed),
        (9, 0, 0, None),
        (17, 0, 59, None),
        (17, 1, 0, closed),
    ]:
        at = day + timedelta(hours=hour, minutes=minute, seconds=second)
        assert closed_because(fields, "UTC", at) == expected


def test_a_day_begins_at_midnight_of_its_zone():
    at = datetime(2030, 7, 1, 22, tzinfo=UTC)
    assert start_of_day("Asia/Tokyo", at) == datetime(2030, 7, 1, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("found", "comparator", "wanted", "holds"),
    [
        ("10", ">", 9, True),  # compared as numbers, although the directory stores text
        ("10", ">", "9", True),
        ("b", ">", "a", True),
        ("2030-02-01", "<", "2030-10-01", True),
        ("1.0", "=", 1, True),
        ("x", "=", 1, False),
        (None, "=", "x", False),
        (None, "<", 1, False),
        (None, "!=", "x", True),
        (None, "NOT IN", ["x"], True),
        ("x", "IN", ["y", "x"], True),
        ("x", "NOT IN", ["y", "x"], False),
        ("x", "IN", "x", True),
        ("9007199254740993", "=", "9007199254740992", False),  # the same as floats
        ("9007199254740993", "=", 9007199254740992, False),
        ("9007199254740993", ">", "9007199254740992", True),
        ("0.1", "=", 0.1, True),
        ("120000", "=", "12e4", False),  # two strings are identifiers
        ("007", "!=", "7", True),
        ("007", "IN", ["7"], False),
        ("007", "=", 7, True),
        ("nan", ">", 5, True),  # as text
    ],
)
def test_values_are_compared_as_numbers_where_both_are(found, comparator, wanted, holds):
    assert compare(found, comparator, wanted) is holds


def test_devices_of_one_user_are_one_person():
    def device(device_id, profile_id, user_id):
        return SimpleNamespace(device_id=device_id, profile_id=profile_id, user_id=user_id)

    assert person_of(device(1, 7, "u")) == person_of(device(2, 8, "u"))
    assert person_of(device(1, 7, None)) == person_of(device(2, 7, None))
    assert person_of(device(1, None, None)) != person_of(device(2, None, None))


@pytest.mark.rule(
    "2.12/push_expiry", "2.12/push_expiry_time", "2.12/inbox_expiry", "2.12/inbox_expiry_time",
    "8/push_expiry", side="service",
)  # fmt: skip
def test_the_earlier_of_period_and_deadline_counts():
    assert push_deadline({}, 0) == 28 * 86_400
    assert push_deadline({"push_expiry": 3, "push_expiry_unit": "hours"}, 100) == 100 + 3 * 3_600
    assert push_deadline({"push_expiry_time": 50}, 0) == 50
    assert inbox_removal({}, 0) is None
    both = {"inbox_expiry": 2, "inbox_expiry_unit": "days", "inbox_expiry_time": 500}
    assert (inbox_removal(both, 0), inbox_removal(both | {"inbox_expiry_time": 10**9}, 0)) == (
        500,
        2 * 86_400,
    )


def test_lengths_of_time_are_read():
    assert [seconds_of(text) for text in ("45s", "1.5h", "1d12h", "2w")] == [45, 5_400, 129_600, 1_209_600]
    for wrong in ("", "3", "h3", "3 h", "-1h"):
        with pytest.raises(DurationError):
            seconds_of(wrong)


def test_a_clock_without_a_store_is_the_machines():
    rounded = timedelta(microseconds=1)  # fromtimestamp rounds, but now() truncates
    before = datetime.now(UTC)
    assert before <= ServiceClock().now() <= datetime.now(UTC) + rounded


def test_a_webhook_with_a_query_of_its_own_keeps_it():
    pairs = [{"key": "b", "value": "2"}]
    assert request_of({"url": "http://x/?a=1", "get_params": pairs})["url"] == "http://x/?a=1&b=2"
    assert request_of({"url": "http://x/"}) == {
        "method": "GET",
        "url": "http://x/",
        "headers": {"User-Agent": "messaging-service"},
        "body": None,
    }


@pytest.mark.rule("2.7/request_headers", side="service")
def test_a_header_of_a_webhook_is_sent_once_however_it_is_spelled():
    body = {"request_body_type": "raw", "request_body_data": {"raw": "<a/>"}}
    lines = "content-type: text/xml\nX-Shop: 1\nx-shop: 2"
    headers = request_of({"url": "http://x/", **body, "request_headers": lines})["headers"]
    assert headers == {"content-type": "text/xml", "x-shop": "2", "User-Agent": "messaging-service"}


def test_a_value_that_is_a_number_is_only_replaced_by_one():
    assert parse_overrides(["send_days_monday=2"]).number("send_days_monday") == 2
    with pytest.raises(UnknownNameError):
        parse_overrides(["send_days_monday=monday"])
    assert {key for key, name in UNDOCUMENTED_NAMES.items() if name.is_value} >= {
        "send_days_monday",
        "target_by_user_id",
    }
