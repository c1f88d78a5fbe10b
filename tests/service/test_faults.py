"""Injected faults of answers, connections, tokens and post-backs."""

from __future__ import annotations

import json
import socket
import time
from datetime import timedelta

import pytest
import requests

from ..waiting import PATIENCE, until

CREATE = "/api/external/create/campaign"
TOKEN = "/api/oauth/token"
BODY = {"title": "t", "push_text": "x", "android_push": 1, "device_ids": [1]}
EMAIL = {"7": {"email_subject": "s", "email_text": "t", "email_type": 1, "email_template": 1}}


@pytest.fixture(autouse=True)
def no_faults_are_left(service_process):
    yield
    requests.delete(f"{service_process.base_url}/admin/faults", timeout=PATIENCE)


def ask_for(service, **fault):
    return requests.post(f"{service.base_url}/admin/faults", json=fault, timeout=PATIENCE)


def create(service):
    return service.create(android_push=1, device_ids=[1])


def campaigns(service):
    return service.admin("campaigns?count=1")["total"]


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_the_next_requests_are_answered_with_a_status_and_do_nothing(service_process, status):
    before = campaigns(service_process)
    assert ask_for(service_process, kind=str(status), count=2).status_code == 201
    answers = [create(service_process) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [status, status, 200]
    assert answers[0].json()["code"] == status
    assert campaigns(service_process) == before + 1


@pytest.mark.parametrize("kind", ["429", "503"])
def test_it_says_when_to_come_back_only_if_asked_to(service_process, kind):
    ask_for(service_process, kind=kind, retry_after=7)
    ask_for(service_process, kind=kind)
    assert [create(service_process).headers.get("Retry-After") for _ in range(2)] == ["7", None]


@pytest.mark.parametrize(("kind", "status"), [("502", 502), ("html", 200)])
def test_an_html_page_comes_in_the_place_of_json(service_process, kind, status):
    ask_for(service_process, kind=kind)
    answer = create(service_process)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert answer.text.startswith("<!doctype html>")


@pytest.mark.parametrize("kind", ["500", "html", "429"])
def test_a_fault_may_come_after_the_request_was_processed(service_process, kind):
    before = campaigns(service_process)
    ask_for(service_process, kind=kind, after=True)
    create(service_process)
    assert campaigns(service_process) == before + 1


def test_a_slow_answer_comes_late(service_process):
    ask_for(service_process, kind="slow", seconds=0.5)
    started = time.monotonic()
    assert create(service_process).status_code == 200
    assert time.monotonic() - started >= 0.5


@pytest.mark.parametrize(("after", "created"), [(False, 0), (True, 1)])
def test_a_connection_is_reset_before_or_after_processing(service_process, after, created):
    before = campaigns(service_process)
    ask_for(service_process, kind="reset", after=after)
    with pytest.raises(ConnectionResetError):
        send_and_read(service_process)
    assert campaigns(service_process) == before + created


def test_an_answer_is_lost_after_processing(service_process):
    before = campaigns(service_process)
    ask_for(service_process, kind="lost", seconds=0.1)
    assert send_and_read(service_process) == b""
    assert campaigns(service_process) == before + 1


def send_and_read(service):
    host, port = service.base_url.removeprefix("http://").split(":")
    content = json.dumps({**BODY, "apptoken": service.app_token}).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        head = f"POST {CREATE} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        return connection.recv(1_000)


def test_a_token_ends_early_and_a_new_one_works(service_process):
    ask_for(service_process, kind="token-expired")
    headers = {"Authorization": f"Bearer {service_process.token()}"}
    answers = [service_process.post(CREATE, json=BODY, headers=headers).status_code for _ in range(2)]
    assert answers == [401, 401]
    headers = {"Authorization": f"Bearer {service_process.token()}"}
    assert service_process.post(CREATE, json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(("kind", "error"), [("401", "invalid_client"), ("429", "temporarily_unavailable")])
def test_the_token_endpoint_fails_in_its_own_form(service_process, kind, error):
    service_process.bearer()  # requests the first token
    ask_for(service_process, kind=kind, at=["token"])
    assert create(service_process).status_code == 200
    form = {"client_id": service_process.client_id, "client_secret": service_process.client_secret}
    form["grant_type"] = "client_credentials"
    answer = service_process.post(TOKEN, data=form)
    assert (answer.status_code, answer.json()["error"]) == (int(kind), error)
    assert service_process.post(TOKEN, data=form).status_code == 200


def test_a_probability_strikes_until_it_is_removed(service_process):
    number = ask_for(service_process, kind="500", probability=1.0, at=["create"]).json()["id"]
    assert [create(service_process).status_code for _ in range(3)] == [500, 500, 500]
    [listed] = service_process.command("faults", "list")["faults"]
    assert (listed["id"], listed["happened"], listed["remaining"]) == (number, 3, None)
    assert service_process.command("faults", "clear", str(number)) == {"removed": 1}
    assert create(service_process).status_code == 200


def test_half_a_probability_strikes_sometimes(service_process):
    ask_for(service_process, kind="500", probability=0.5)
    assert {create(service_process).status_code for _ in range(40)} == {200, 500}


def test_the_command_asks_for_faults_of_a_service_that_runs(service_process):
    said = service_process.command(
        "faults", "add", "429", "--count", "1", "--retry-after", "3", "--at", "create"
    )
    assert said == {
        "id": said["id"],
        "kind": "429",
        "at": ["create"],
        "probability": None,
        "remaining": 1,
        "happened": 0,
        "after": False,
        "seconds": None,
        "retry_after": 3,
    }
    assert create(service_process).headers["Retry-After"] == "3"


def test_the_kinds_are_listed(service_command):
    said = service_command("faults", "kinds")
    assert {"401", "429", "slow", "reset", "lost"} < set(said["requests"])
    assert set(said["post_backs"]) == {
        "duplicate",
        "delay",
        "reorder",
        "lose",
        "retyped",
        "malformed",
        "burst",
    }


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"kind": "418"},
        {"kind": "500", "at": ["delivery"]},
        {"kind": "delay", "at": ["create"]},
        {"kind": "token-expired", "at": ["token"]},
        {"kind": "500", "probability": 0.5, "count": 1},
        {"kind": "500", "probability": 1.5},
        {"kind": "500", "count": 0},
        {"kind": "500", "seconds": 1},
        {"kind": "500", "retry_after": 1},
        {"kind": "slow", "after": True},
        {"kind": "slow", "seconds": -1},
        {"kind": "500", "nonsense": 1},
    ],
    ids=str,
)
def test_a_wrong_fault_is_refused(service_process, fault):
    answer = ask_for(service_process, **fault)
    assert (answer.status_code, answer.json()["success"]) == (400, False)
    assert service_process.admin("faults") == {"faults": []}


def test_a_fault_that_is_not_there_cannot_be_removed(service_process):
    answer = requests.delete(f"{service_process.base_url}/admin/faults/999999", timeout=PATIENCE)
    assert answer.status_code == 404


def test_what_went_wrong_on_request_stands_in_the_record(service_process):
    ask_for(service_process, kind="500")
    create(service_process)
    newest = service_process.admin("requests?count=1")["requests"][0]
    assert (newest["fault"], newest["status"]) == ("500", 500)


def send_one(service, listener, **fields):
    """Send an email to each of the given even devices, and post back a delivery for each one delivered."""
    fields = {"email": 1, "messages": EMAIL, "webhook_delivery": f"{listener.url}/d", **fields}
    return service.created(**fields)


EVEN = list(range(2, 82, 2))


def delivered(service, campaign):
    service.wait_until_quiet()
    return service.admin(f"campaigns/{campaign}/truth")["post_backs"]["delivery"]


def test_post_backs_are_duplicated(service_process, service_listener):
    ask_for(service_process, kind="duplicate", probability=1)
    expected = delivered(service_process, send_one(service_process, service_listener, device_ids=EVEN))
    assert service_listener.devices("/d") == sorted(expected * 2)


def test_post_backs_are_lost_and_counted(service_process, service_listener):
    before = service_process.admin("progress")["post_backs"]["lost"]
    ask_for(service_process, kind="lose", count=3)
    expected = delivered(service_process, send_one(service_process, service_listener, device_ids=EVEN))
    arrived = service_listener.devices("/d")
    assert len(arrived) == len(expected) - 3
    assert set(arrived) < set(expected)
    assert service_process.admin("progress")["post_backs"]["lost"] == before + 3


@pytest.mark.proof
def test_post_backs_are_delayed_and_still_arrive_once(service_process, service_listener):
    ask_for(service_process, kind="delay", probability=1, seconds=1)
    started = time.time()
    expected = delivered(service_process, send_one(service_process, service_listener, device_ids=EVEN))
    assert time.time() - started >= 1
    assert service_listener.devices("/d") == expected


def wait_until_held(service):
    """Wait until all runs are processed and faults hold back all post-backs that are due."""

    def is_held():
        progress = service.admin("progress")
        return not progress["runs"]["due"] and not progress["post_backs"]["due"]

    until(is_held)


def test_post_backs_come_out_of_order(service_process, service_listener):
    ask_for(service_process, kind="reorder", probability=1, seconds=3_600)
    addresses = {"webhook_open": f"{service_listener.url}/o"}
    campaign = send_one(service_process, service_listener, device_ids=list(range(2, 402, 2)), **addresses)
    wait_until_held(service_process)
    service_process.advance("1s", wait=False)  # the delayed post-backs are due by then
    wait_until_held(service_process)
    service_process.advance("1h", wait=False)
    expected = delivered(service_process, campaign)
    assert service_listener.devices("/d") == expected
    order = [(path, body["device"]["id"]) for path, body in service_listener.received]
    opened = [device for path, device in order if path == "/o"]
    assert any(order.index(("/o", device)) < order.index(("/d", device)) for device in opened)


def test_post_backs_come_in_bursts(service_process, service_listener):
    hour = service_process.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    service_process.go_to(hour, wait=False)
    ask_for(service_process, kind="burst", probability=1, seconds=3_600)
    campaign = send_one(service_process, service_listener, device_ids=EVEN)
    wait_until_held(service_process)
    service_process.advance("50m", wait=False)
    wait_until_held(service_process)
    assert service_listener.received == [], "what falls due within an hour comes together, at its end"
    service_process.advance("10m", wait=False)
    expected = delivered(service_process, campaign)
    assert service_listener.devices("/d") == expected


def test_post_backs_may_have_other_types(service_process, service_listener):
    ask_for(service_process, kind="retyped", probability=1)
    expected = delivered(service_process, send_one(service_process, service_listener, device_ids=EVEN))
    bodies = [body for _, body in service_listener.received]
    assert sorted(body["device"]["id"] for body in bodies) == sorted(map(str, expected))
    assert {type(body[name]["id"]) for body in bodies for name in ("send", "profile")} == {str}
    assert min(body["time"] for body in bodies) > 10**12


def test_post_backs_are_malformed_at_the_first_try(service_process, service_listener):
    ask_for(service_process, kind="malformed", probability=1)
    expected = delivered(service_process, send_one(service_process, service_listener, device_ids=EVEN))
    assert len(service_listener.unreadable) == len(expected)
    assert service_listener.received == []


def test_a_malformed_post_back_that_is_refused_is_followed_by_the_right_one(
    service_process, service_listener
):
    ask_for(service_process, kind="malformed", count=1)
    service_listener.refuses = True
    expected = delivered(service_process, send_one(service_process, service_listener, device_ids=EVEN))
    assert len(service_listener.unreadable) == 1
    assert service_listener.devices("/d") == expected
