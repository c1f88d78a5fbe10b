"""Scheduled, recurring and stopped campaigns, on the service's own clock (section 2.11)."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
HEADER = "device_id,platform,profile_id,user_id,language,time_zone"
PEOPLE = [
    "1001,android,1,u1,en,Asia/Tokyo",
    "1002,android,2,u2,en,America/New_York",
    "1003,android,3,u3,en,",
]
EVERYONE = [1001, 1002, 1003]


@pytest.fixture(scope="module")
def people(people):
    people.go_to(tomorrow(people))  # so that no scheduled time is close to the current time
    return people


def tomorrow(service, hour=0):
    """Return tomorrow's start in UTC, plus hours; the clock has certainly not reached it."""
    return service.now().replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1, hours=hour)


def create(service, **fields):
    return service.created(**{**PUSH, "device_ids": EVERYONE, "send_type": 2, **fields})


def listed(service, campaign):
    [found] = [c for c in service.admin("campaigns?count=1000")["campaigns"] if c["id"] == campaign]
    return found


def sent(service, campaign, device):
    found = service.admin(f"campaigns/{campaign}/devices/{device}")["messages"]
    return [datetime.fromisoformat(message["sent_at"]) for message in found]


@pytest.mark.rule(
    "2.11/send_type", "2.11/recurring", "2.11/send_days", "2.11/send_time", "2.11/start_date",
    "2.11/end_date", side="service",
)  # fmt: skip
def test_a_recurring_campaign_runs_on_its_days_until_its_end(people):
    day = tomorrow(people)
    days = [(day + timedelta(days=n)).isoweekday() for n in (0, 2)]
    campaign = create(
        people,
        send_days=days,
        send_time="09:30",
        start_date=f"{day:%Y-%m-%d}",
        end_date=f"{day + timedelta(days=8):%Y-%m-%d}",
        timezone="UTC",
    )
    people.go_to(day + timedelta(days=1))
    at = day + timedelta(hours=9, minutes=30)
    assert sent(people, campaign, 1001) == [at]
    people.go_to(day + timedelta(days=30))
    expected = [at + timedelta(days=n) for n in (0, 2, 7)]  # the 9th day is after end_date
    assert sent(people, campaign, 1001) == sent(people, campaign, 1003) == expected
    assert [run["state"] for run in listed(people, campaign)["runs"]] == ["done"] * 3


@pytest.mark.rule("2.11/send_days", "2.11/start_date", "2.11/end_date", "3/until_stopped", side="service")
def test_a_recurring_campaign_without_end_runs_every_day_until_it_is_stopped(people):
    campaign = create(people, send_time="12:00", timezone="Europe/Dublin")
    start = tomorrow(people)
    people.go_to(start)
    before = len(sent(people, campaign, 1001))  # one message, if noon was still to come today
    people.go_to(start + timedelta(days=40))
    assert len(sent(people, campaign, 1001)) == before + 40
    local = {moment.astimezone(ZoneInfo("Europe/Dublin")).time() for moment in sent(people, campaign, 1001)}
    assert {f"{moment:%H:%M}" for moment in local} == {
        "12:00"
    }  # across a change of the clocks, if there was one
    answer = people.post(f"/admin/campaigns/{campaign}/stop")
    assert (answer.status_code, answer.json()) == (200, {"campaign": campaign, "stopped": True})
    people.go_to(start + timedelta(days=50))
    assert len(sent(people, campaign, 1001)) == before + 40
    assert listed(people, campaign)["runs"][-1]["state"] == "stopped"


def test_a_campaign_is_stopped_by_command(people, service_command):
    campaign = create(people, send_time="12:00", timezone="UTC")
    assert people.command("campaigns", "stop", str(campaign)) == {"campaign": campaign, "stopped": True}
    people.go_to(tomorrow(people) + timedelta(days=2))
    assert sent(people, campaign, 1001) == []
    service_command("campaigns", "stop", "999999", "--database", people.database, expect=1)
    assert people.post("/admin/campaigns/999999/stop").status_code == 404


@pytest.mark.rule("2.11/own_timezone", side="service")
def test_without_a_time_zone_each_persons_own_counts(people):
    day = tomorrow(people, hour=24)
    campaign = create(people, send_type=1, send_date=f"{day:%Y-%m-%d}", send_time="10:00")
    people.go_to(day + timedelta(days=2))
    at = day.replace(hour=10)
    zones = {1001: "Asia/Tokyo", 1002: "America/New_York", 1003: "UTC"}  # the app names no zone, so it is UTC
    for device, zone in zones.items():
        assert sent(people, campaign, device) == [
            at.replace(tzinfo=ZoneInfo(zone)).astimezone(ZoneInfo("UTC"))
        ]
    assert people.admin(f"campaigns/{campaign}/truth")["targeted"] == EVERYONE


@pytest.mark.rule("2.11/own_timezone", side="service")
def test_a_recurring_campaign_follows_each_persons_zone(people):
    day = tomorrow(people, hour=24)
    dates = {"start_date": f"{day:%Y-%m-%d}", "end_date": f"{day + timedelta(days=1):%Y-%m-%d}"}
    campaign = create(people, send_time="08:00", **dates)
    people.go_to(day + timedelta(days=4))
    for device, zone in ((1001, "Asia/Tokyo"), (1002, "America/New_York")):
        local = [f"{moment.astimezone(ZoneInfo(zone)):%d %H:%M}" for moment in sent(people, campaign, device)]
        assert local == [f"{day:%d} 08:00", f"{day + timedelta(days=1):%d} 08:00"]


def test_who_has_passed_the_time_already_gets_nothing_and_a_record(people):
    """Tokyo is hours ahead of the app's time zone, where the time is still to come."""
    people.go_to(tomorrow(people, hour=12))
    now = people.now()
    campaign = create(people, send_type=1, send_date=f"{now:%Y-%m-%d}", send_time="13:00")
    people.go_to(now + timedelta(days=1))
    [late] = people.admin(f"campaigns/{campaign}/devices/1001")["messages"]
    assert (late["error"], late["delivered_at"]) == ("TIME_HAS_PASSED", None)
    assert len(sent(people, campaign, 1002)) == 1


def test_a_time_that_has_passed_in_the_zone_of_the_app_only_is_sent_to_those_for_whom_it_is_still_to_come(
    people,
):
    """In New York, it is at most 08:00 when the app's clock shows 12:00."""
    people.go_to(tomorrow(people, hour=12))
    now = people.now()
    day = {"send_date": f"{now:%Y-%m-%d}", "send_time": "10:00"}
    campaign = create(people, send_type=1, **day)
    last = create(people, send_time="10:00", end_date=day["send_date"])
    refused = [
        people.create(**PUSH, device_ids=EVERYONE, **fields)
        for fields in (
            {"send_type": 1, **day, "timezone": "UTC"},
            {"send_type": 1, **day, "send_time": "00:01"},
            {"send_type": 2, "send_time": "00:01", "end_date": day["send_date"]},
        )
    ]
    assert [[e["field"] for e in answer.json()["errors"]] for answer in refused] == [
        ["send_date"],
        ["send_date"],
        ["end_date"],
    ]
    people.go_to(now + timedelta(days=1))
    for device in (1001, 1003):
        [late] = people.admin(f"campaigns/{campaign}/devices/{device}")["messages"]
        assert late["error"] == "TIME_HAS_PASSED"
    assert [len(sent(people, each, 1002)) for each in (campaign, last)] == [1, 1]


@pytest.mark.rule(
    "2.11/send_type", "2.11/send_time", "2.11/send_days", "2.11/start_date", "2.11/end_date",
    "2.11/end_time", "2.11/timezone", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "send_time"),
        ({"send_time": "9:30"}, "send_time"),
        ({"send_time": "09:30:00"}, "send_time"),
        ({"send_time": "T0930"}, "send_time"),
        ({"send_time": "09:30", "send_days": []}, "send_days"),
        ({"send_time": "09:30", "send_days": [0]}, "send_days"),
        ({"send_time": "09:30", "send_days": [8]}, "send_days"),
        ({"send_time": "09:30", "send_days": "1"}, "send_days"),
        ({"send_time": "09:30", "start_date": "2060-01-02", "end_date": "2060-01-01"}, "end_date"),
        ({"send_time": "09:30", "end_date": "2001-01-01"}, "end_date"),
        ({"send_time": "09:30", "start_date": "01/02/2060"}, "start_date"),
        ({"send_time": "09:30", "start_date": "2060-W01-1"}, "start_date"),
        ({"send_time": "09:30", "start_time": "18:00", "end_time": "08:00"}, "end_time"),
        ({"send_time": "09:30", "timezone": 1}, "timezone"),
        ({"send_type": 3}, "send_type"),
        ({"send_type": "2"}, "send_type"),
        ({"send_type": 1, "trigger": 3}, "send_type"),
        ({"trigger": 2}, "event"),
        ({"trigger": 4}, "trigger"),
    ],
    ids=str,
)
def test_a_wrong_schedule_is_refused(people, fields, field):
    answer = people.create(**{**PUSH, "device_ids": EVERYONE, "send_type": 2, **fields})
    assert answer.status_code == 400
    assert field in [problem["field"] for problem in answer.json()["errors"]]
