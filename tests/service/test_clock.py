"""The service's clock, advanced by command and by route, while the service runs and across restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}


def in_an_hour(service):
    at = service.now() + timedelta(hours=1)
    return {"send_type": 1, "send_date": f"{at:%Y-%m-%d}", "send_time": f"{at:%H:%M}", "timezone": "UTC"}


def targeted(service, campaign):
    service.wait_until_quiet()
    return service.admin(f"campaigns/{campaign}/truth")["targeted"]


def create(service, **fields):
    return service.created(**PUSH, **fields)


@pytest.mark.rule("2.11/send_type", "2.11/once", "2.11/send_date", "2.11/send_time", side="service")
def test_a_scheduled_campaign_is_sent_when_the_clock_is_advanced(service_process):
    campaign = create(service_process, device_ids=[1, 2], **in_an_hour(service_process))
    assert targeted(service_process, campaign) == []
    answer = service_process.post("/admin/clock/advance", json={"by": "61m"})
    assert answer.status_code == 200
    assert answer.json()["ahead"] >= 3_660
    assert targeted(service_process, campaign) == [1, 2]


def test_the_command_advances_a_service_that_runs_and_the_next_one(service_start):
    service = service_start()
    first, second = (create(service, device_ids=[n], **in_an_hour(service)) for n in (1, 2))
    assert service.command("clock", "show")["ahead"] == 0
    assert service.command("clock", "advance", "1h1m")["ahead"] == 3_660
    assert (targeted(service, first), targeted(service, second)) == ([1], [2])
    third = create(service, device_ids=[3], **in_an_hour(service))
    service.stop()
    service = service_start()
    before = datetime.now(UTC)
    shown = service.admin("clock")
    assert shown["ahead"] == 3_660
    ahead = timedelta(seconds=3_660)
    assert before + ahead <= datetime.fromisoformat(shown["now"]) <= datetime.now(UTC) + ahead
    assert targeted(service, third) == []
    service.command("clock", "advance", "2h")
    assert targeted(service, third) == [3]


def test_what_an_advance_passes_over_happens_at_its_own_moment(service_process):
    schedule = in_an_hour(service_process)
    campaign = create(service_process, device_ids=[1], **schedule)
    service_process.command("clock", "advance", "2d")
    service_process.wait_until_quiet()
    [sent] = service_process.admin(f"campaigns/{campaign}/devices/1")["messages"]
    assert sent["sent_at"].startswith(f"{schedule['send_date']}T{schedule['send_time']}:00")


def test_a_token_outlives_an_advance_of_the_clock(service_process):
    headers = service_process.bearer()
    service_process.command("clock", "advance", "2d")
    body = {"title": "t", "push_text": "x", **PUSH, "device_ids": [1]}
    assert (
        service_process.post("/api/external/create/campaign", json=body, headers=headers).status_code == 200
    )


@pytest.mark.parametrize("duration", ["", "3", "h", "-3h", "0s", "1 h", "99999d", "3y"])
def test_what_is_no_length_of_time_is_refused(service_process, duration):
    answer = service_process.post("/admin/clock/advance", json={"by": duration})
    assert (answer.status_code, answer.json()["success"]) == (400, False)


def test_the_command_says_what_a_length_of_time_is(service_command, service_process):
    said = service_command("clock", "advance", "soon", "--database", service_process.database, expect=1)
    assert "3h" in said["error"]
