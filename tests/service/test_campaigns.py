"""Sections 2.3 to 2.12, 4.2, 4.3 and 6 of the document, against a real process."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
import requests

from ..waiting import PATIENCE

CREATE = "/api/external/create/campaign"
EXECUTE = "/api/external/execute/campaign"
JSON = {"Content-Type": "application/json"}
PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
DEVICES = list(range(1, 141))
MEASURED = ("chrome", "firefox", "opera")


def addresses(listener):
    return {"webhook_delivery": f"{listener.url}/d", "webhook_open": f"{listener.url}/o"}


@pytest.mark.rule(
    "2.3/json", "2.3/flags", "2.3/title", "2.3/webhook_delivery", "2.3/webhook_open", "2.4/push_text",
    "2.4/top_level", "4.2/path", "5/bearer", "6/create", "6/delivery",
    "6/open", "6/no_deliveries", "6/web_deliveries", "9/syntax", "9/no_version", side="service",
)  # fmt: skip
def test_a_campaign_is_created_sent_and_posted_back(service_process, service_listener):
    campaign = service_process.created(**PUSH, device_ids=DEVICES, **addresses(service_listener))
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert truth["targeted"] == DEVICES
    assert set(truth["opened"]) < set(truth["delivered"]) < set(DEVICES)
    measured = {device for name in MEASURED for device in truth["platforms"][name]}
    assert truth["post_backs"]["delivery"] == sorted(measured & set(truth["delivered"]))
    assert truth["post_backs"]["open"] == truth["opened"]
    assert service_listener.devices("/d") == truth["post_backs"]["delivery"]
    assert service_listener.devices("/o") == truth["opened"]


@pytest.mark.rule(
    "6/time", "6/device_id", "6/profile_id", "6/user_id", "6/send_id", "6/campaign_id", side="service"
)
def test_a_post_back_holds_what_the_document_shows(service_process, service_listener):
    before = int(time.time())
    campaign = service_process.created(
        web_push=1, device_ids=list(range(1, 50)), **addresses(service_listener)
    )
    service_process.wait_until_quiet()
    path, body = service_listener.received[0]
    assert path in ("/d", "/o")
    device = body["device"]["id"]
    assert before <= body.pop("time") <= time.time() + 1
    assert body.pop("send")["id"] > 0
    assert body == {
        "device": {"id": device},
        "profile": {"id": device + 10_000, "user_id": f"cust-{device}"},
        "campaign": {"id": campaign},
    }


@pytest.mark.rule("6/send_id", side="service")
def test_every_message_has_a_send_id_of_its_own(service_process, service_listener):
    campaigns = [
        service_process.created(email=1, messages=EMAIL, device_ids=DEVICES, **addresses(service_listener))
        for _ in range(2)
    ]
    service_process.wait_until_quiet()
    delivered = [body for path, body in service_listener.received if path == "/d"]
    assert {body["campaign"]["id"] for body in delivered} == set(campaigns)
    assert len({body["send"]["id"] for body in delivered}) == len(delivered)


EMAIL = {"7": {"email_subject": "s", "email_html": "<p>h</p>", "email_type": 1, "email_template": 1}}


@pytest.mark.rule("2.3/email", "2.4/messages_7", "6/delivery", side="service")
def test_email_reaches_devices_with_an_address_and_its_delivery_is_posted(service_process, service_listener):
    campaign = service_process.created(
        email=1, messages=EMAIL, device_ids=[1, 2, 3, 4], **addresses(service_listener)
    )
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert truth["targeted"] == [1, 2, 3, 4]
    assert set(truth["delivered"]) <= {2, 4}
    assert truth["post_backs"]["delivery"] == truth["delivered"]


@pytest.mark.rule("2.3/web_push_browser", side="service")
def test_the_browser_flags_select_browsers(service_process):
    campaign = service_process.created(web_push=1, web_push_chrome=1, web_push_firefox=0, device_ids=DEVICES)
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert truth["delivered"]
    assert set(truth["delivered"]) <= set(truth["platforms"]["chrome"])


@pytest.mark.rule("2.3/broadcast", "2.9/broadcast", side="service")
def test_broadcast_reaches_every_device(service_process):
    campaign = service_process.created(**PUSH, broadcast=1)
    service_process.wait_until_quiet()
    assert service_process.admin(f"campaigns/{campaign}/truth")["targeted"] == list(range(1, 701))


def test_external_ids_reach_their_devices_and_unknown_ones_are_listed(service_process):
    campaign = service_process.created(**PUSH, external_ids=["ext-7", "ext-3", "nobody", "ext-7"])
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert (truth["targeted"], truth["unknown"]) == ([3, 7], ["nobody"])


def test_a_device_id_given_twice_is_one_message(service_process):
    campaign = service_process.created(**PUSH, device_ids=[5, 5, 6, 2**62, 0])
    service_process.wait_until_quiet()
    [listed] = [c for c in service_process.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert listed["messages"]["sent"] == 2
    assert listed["runs"][0]["unknown"] == 2


def test_unknown_members_are_accepted_and_reported(service_process):
    messages = {"2": {"push_text": "a", "novelty": 1}, "11": {}}
    campaign = service_process.created(**PUSH, device_ids=[1], nonsense=1, messages=messages)
    warnings = {
        "unknown member: nonsense",
        "unknown member: messages.2.novelty",
        "unknown member: messages.11",
    }
    [listed] = [c for c in service_process.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert set(listed["warnings"]) == warnings
    [request] = [r for r in service_process.admin("requests")["requests"] if r["campaign_id"] == campaign]
    assert set(request["warnings"]) == warnings


@pytest.mark.rule(
    "2.3/flags", "2.3/title", "2.3/android_push", "2.3/broadcast",
    "2.3/webhook_delivery", "2.3/webhook_open", "2.11/send_type", "2.11/send_date", "2.11/send_time",
    "2.11/timezone", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"title": ""}, "title"),
        ({"title": 7}, "title"),
        ({"android_push": 0}, "android_push"),
        ({"android_push": True}, "android_push"),
        ({"push_text": ""}, "push_text"),
        ({"device_ids": None}, "device_ids"),
        ({"device_ids": []}, "broadcast"),
        ({"device_ids": ["1"]}, "device_ids"),
        ({"device_ids": [1.0]}, "device_ids"),
        ({"device_ids": [True]}, "device_ids"),
        ({"broadcast": 2}, "broadcast"),
        ({"webhook_delivery": "ftp://example.org"}, "webhook_delivery"),
        ({"webhook_open": "http://"}, "webhook_open"),
        ({"email": 1}, "messages.7.email_subject"),
        ({"sms": 1}, "messages.9.sms"),
        ({"messages": {"2": "text"}}, "messages.2"),
        ({"messages": {"2": {"push_text": 1}}}, "messages.2.push_text"),
        ({"languages_default": "english"}, "languages_default"),
        ({"push_text_languages": {"EN": "x"}}, "push_text_languages"),
        ({"payload_add": [{"key": "a"}]}, "payload_add"),
        ({"send_type": 3}, "send_type"),
        ({"send_type": 1}, "send_date"),
        ({"send_type": 1, "send_date": "2030-01-01"}, "send_time"),
        ({"send_type": 1, "send_date": "2030-13-01", "send_time": "10:00"}, "send_date"),
        (
            {"send_type": 1, "send_date": "0001-01-01", "send_time": "05:00", "timezone": "Asia/Tokyo"},
            "send_date",
        ),
        ({"send_type": 1, "send_date": "2030-01-01", "send_time": "25:00"}, "send_time"),
        ({"send_type": 1, "send_date": "2001-01-01", "send_time": "10:00"}, "send_date"),
        ({"timezone": "Moon/Crater"}, "timezone"),
        ({"segment_ids": [4]}, "segment_ids"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(service_process, fields, field):
    answer = service_process.create(**{"android_push": 1, "device_ids": [1], **fields})
    body = answer.json()
    assert (answer.status_code, body["code"], body["success"]) == (400, 400, False)
    assert field in [problem["field"] for problem in body["errors"]]
    assert all(problem["message"] for problem in body["errors"])
    assert body["message"]


@pytest.mark.rule("2.3/json", "2.3/apptoken", "5/bearer", "7/401", side="service")
@pytest.mark.parametrize(
    ("content", "authorization", "code"),
    [
        (b'{"title": "x"}', None, 400),  # no authentication
        (b'{"title": "x"}', "Bearer wrong", 401),
        (b'{"title": "x"}', "Basic dXNlcjpwdw==", 401),
        (b'{"apptoken": "wrong"}', None, 401),
        (b"{", None, 400),
        (b"[]", None, 400),
        (b"", None, 400),
        (b'{"apptoken": {"a": 1}}', None, 401),
    ],
)
def test_a_request_that_proves_nothing_is_refused_in_the_envelope(
    service_process, content, authorization, code
):
    headers = JSON | ({"Authorization": authorization} if authorization else {})
    answer = service_process.post(CREATE, data=content, headers=headers)
    body = answer.json()
    assert (answer.status_code, body["code"], body["success"]) == (code, code, False)
    assert body["message"]


@pytest.mark.rule("5/bearer", side="service")
@pytest.mark.parametrize(
    "operation", ["create/campaign", "execute/campaign", "list/campaign", "create/segment"]
)
def test_every_request_of_the_external_api_proves_who_asks(service_process, operation):
    def status(**headers):
        return service_process.post(f"/api/external/{operation}", json={"id": 1}, headers=headers).status_code

    assert (status(), status(Authorization="Bearer wrong")) == (400, 401)
    assert "message" in service_process.post(f"/api/external/{operation}", json={}).json()
    assert status(**service_process.bearer()) != 401


OTHER_TYPES = [
    None,
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/jsonl",
    "application/problem+json",
    "text/plain; application/json",
]
JSON_TYPES = [
    "application/json",
    "Application/JSON",
    "application/json; charset=utf-8",
    "application/json;v=1",
]


def sent_as(service, path, content_type, body):
    headers = service.bearer() | ({} if content_type is None else {"Content-Type": content_type})
    return service.post(path, data=json.dumps(body).encode(), headers=headers)


def assert_wrong_type(answer):
    assert (answer.status_code, answer.json()["code"], answer.json()["success"]) == (415, 415, False)
    assert answer.json()["message"] == "The header Content-Type must be application/json."


@pytest.mark.rule("4.2/content_type", side="service")
@pytest.mark.parametrize("content_type", OTHER_TYPES)
def test_a_campaign_is_created_from_json_only(service_process, content_type):
    before = len(service_process.admin("campaigns?count=1000")["campaigns"])
    body = {"title": "T", "push_text": "T", "device_ids": DEVICES, **PUSH}
    assert_wrong_type(sent_as(service_process, CREATE, content_type, body))
    assert len(service_process.admin("campaigns?count=1000")["campaigns"]) == before


@pytest.mark.rule("4.3/content_type", side="service")
@pytest.mark.parametrize("content_type", OTHER_TYPES)
def test_a_template_is_executed_by_json_only(service_process, content_type):
    campaign = template(service_process)
    assert_wrong_type(sent_as(service_process, EXECUTE, content_type, {"id": campaign, "target": DEVICES}))
    service_process.wait_until_quiet()
    assert service_process.admin(f"campaigns/{campaign}/truth")["targeted"] == []


@pytest.mark.rule("4.2/content_type", "4.3/content_type", side="service")
@pytest.mark.parametrize("content_type", JSON_TYPES)
def test_json_is_taken_in_every_spelling_of_its_type(service_process, content_type):
    campaign = template(service_process)
    created = sent_as(
        service_process, CREATE, content_type, {"title": "T", "push_text": "T", "device_ids": DEVICES, **PUSH}
    )
    executed = sent_as(service_process, EXECUTE, content_type, {"id": campaign, "target": DEVICES})
    assert (created.status_code, executed.status_code) == (200, 200), executed.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CREATE, {"title": "T", "push_text": "T", **PUSH, "conditions": {}}),
        (CREATE, {"title": "T", "push_text": "T", **PUSH, "broadcast": 1, "colour": {}}),
        (EXECUTE, {"id": 1, "target": [1], "params": {}}),
        ("/api/external/create/segment", {"title": "T", "conditions": {}}),
        ("/api/oauth/token", {"grant_type": "client_credentials", "colour": {}}),
        ("/admin/segments", {"title": "T", "conditions": {}}),
        ("/admin/hits/event", {"event": "e", "user_id": "cust-1", "value": {}}),
    ],
    ids=str,
)
def test_a_body_that_is_nested_too_deep_or_holds_nul_is_refused(service_process, path, body):
    *_, last = body
    for refused in (nested(300), {"a": ["\0"]}, {"\0": 1}):
        answer = service_process.post(path, json={**body, last: refused}, headers=service_process.bearer())
        assert answer.status_code == 400, answer.text
        assert any(text in answer.text for text in ("nested deeper than 100 levels", "the character NUL"))


def test_a_request_that_fails_is_recorded(service_start):
    service = service_start()
    with closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as connection:
        fail = "BEGIN SELECT RAISE(ABORT, 'a broken database'); END"
        connection.execute(f"CREATE TRIGGER broken BEFORE INSERT ON segments {fail}")
    body = {"title": "T", "conditions": nested(1)}
    assert (
        service.post("/api/external/create/segment", json=body, headers=service.bearer()).status_code == 500
    )
    [last] = service.admin("requests?count=1")["requests"]
    assert (last["path"], last["status"]) == ("/api/external/create/segment", 500)
    assert (last["client_id"], last["body"]["title"]) == (service.client_id, "T")


def nested(depth):
    value = {"operator": "AND", "0": ["tags_attribute", "=", "age", ["value", "=", 1]]}
    for _ in range(depth):
        value = {"operator": "AND", "0": value}
    return value


def test_a_text_that_only_looks_like_nul_is_sent(service_process):
    campaign = service_process.created(**PUSH, device_ids=[1], push_text=r"a \u0000 b")
    service_process.wait_until_quiet()
    [message] = service_process.admin(f"campaigns/{campaign}/devices/1")["messages"]
    assert message["message"]["text"] == r"a \u0000 b"


@pytest.mark.rule("2.3/apptoken", "5/bearer", side="service")
def test_an_app_token_alone_is_enough(service_process):
    fields = {
        "apptoken": service_process.app_token,
        "title": "t",
        "push_text": "x",
        **PUSH,
        "device_ids": [1],
    }
    assert service_process.post(CREATE, json=fields).status_code == 200


def test_a_wrong_app_token_beside_a_right_bearer_token_is_refused(service_process):
    assert service_process.create(**PUSH, device_ids=[1], apptoken="wrong").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", CREATE, 405),
        ("PUT", CREATE, 405),
        ("POST", "/api/external/create/nonsense", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/admin/campaigns/999999/truth", 404),
        ("GET", "/admin/campaigns/x/truth", 400),
        ("GET", "/admin/campaigns?count=0", 400),
    ],
)
def test_what_does_not_exist_is_said_in_the_envelope(service_process, method, path, code):
    answer = requests.request(method, service_process.base_url + path, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["code"], answer.json()["success"]) == (code, code, False)


@pytest.mark.rule("2.11/once", side="service")
def test_a_once_off_campaign_is_held_until_its_time(service_process):
    at = datetime.now(UTC) + timedelta(hours=2)
    schedule = {"send_type": 1, "send_date": f"{at:%Y-%m-%d}", "send_time": f"{at:%H:%M}", "timezone": "UTC"}
    campaign = service_process.created(**PUSH, device_ids=DEVICES, **schedule)
    progress = service_process.wait_until_quiet()
    assert service_process.admin(f"campaigns/{campaign}/truth")["targeted"] == []
    assert progress["runs"]["scheduled"] >= 1
    [listed] = [c for c in service_process.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert listed["runs"][0]["due_at"] == at.replace(second=0, microsecond=0).isoformat()


@pytest.mark.rule("2.11/timezone", side="service")
def test_a_schedule_follows_its_time_zone(service_process):
    schedule = {"send_type": 1, "send_date": "2040-07-01", "send_time": "09:00", "timezone": "Europe/Dublin"}
    campaign = service_process.created(**PUSH, device_ids=[1], **schedule)
    [listed] = [c for c in service_process.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert listed["runs"][0]["due_at"] == "2040-07-01T08:00:00+00:00"


@pytest.mark.rule("2.11/once", side="service")
def test_a_once_off_campaign_of_this_minute_is_sent(service_start):
    service = service_start()
    now = service.now()
    minute = (now + timedelta(minutes=2)).replace(
        second=0, microsecond=0
    )  # the whole minute is in the future
    service.go_to(minute, wait=False)
    schedule = {
        "send_type": 1,
        "send_date": f"{minute:%Y-%m-%d}",
        "send_time": f"{minute:%H:%M}",
        "timezone": "UTC",
    }
    campaign = service.created(**PUSH, device_ids=DEVICES, **schedule)
    service.wait_until_quiet()
    assert service.admin(f"campaigns/{campaign}/truth")["targeted"] == DEVICES


def template(service, **fields):
    return service.created(**PUSH, trigger=3, **fields)


@pytest.mark.rule("4.3/path", "6/execute", side="service")
def test_a_template_waits_until_it_is_executed(service_process, service_listener):
    campaign = template(service_process)
    service_process.wait_until_quiet()
    assert service_process.admin(f"campaigns/{campaign}/truth")["targeted"] == []
    answer = service_process.execute(id=str(campaign), target=DEVICES, **addresses(service_listener))
    assert answer.json()["code"] == 200
    assert answer.json()["model"]["id"] == campaign
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert truth["targeted"] == DEVICES
    assert service_listener.devices("/o") == truth["opened"]


@pytest.mark.rule("4.3/post_backs", "6/execute", side="service")
def test_each_execution_has_its_own_addresses_and_outcomes(service_process, service_listener):
    campaign = template(service_process)
    for number in ("1", "2"):
        address = f"{service_listener.url}/{number}"
        assert service_process.execute(id=campaign, target=DEVICES, webhook_open=address).status_code == 200
    service_process.wait_until_quiet()
    first, second = service_listener.devices("/1"), service_listener.devices("/2")
    assert first
    assert second
    assert first != second


@pytest.mark.parametrize(
    ("kind", "targets", "devices"),
    [
        ("id", [3, "4"], [3, 4]),
        ("external_id", ["ext-5"], [5]),
        ("email", ["person8@example.org"], [8]),
        ("user_id", ["cust-601", "cust-1"], [1, 601, 602]),
    ],
)
def test_an_execution_reaches_its_targets_by_any_kind_of_identifier(service_process, kind, targets, devices):
    campaign = template(service_process)
    assert service_process.execute(id=campaign, target=targets, target_by=kind).status_code == 200
    service_process.wait_until_quiet()
    assert service_process.admin(f"campaigns/{campaign}/truth")["targeted"] == devices


@pytest.mark.rule("4.3/one_to_one", side="service")
def test_an_execution_may_bring_variables_for_each_target(service_process):
    campaign = template(service_process)
    variables = {"cust-9": {"gate": "B4"}}
    answer = service_process.execute(id=campaign, target_by="user_id", target_with_params=variables)
    assert answer.status_code == 200
    service_process.wait_until_quiet()
    assert service_process.admin(f"campaigns/{campaign}/truth")["targeted"] == [9]


def test_an_execution_may_name_its_time(service_process):
    campaign = template(service_process)
    assert service_process.execute(id=campaign, target=[1], time="2041-03-04 09:30 UTC").status_code == 200
    [listed] = [c for c in service_process.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert listed["runs"][0]["due_at"] == "2041-03-04T09:30:00+00:00"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"target": [1]}, 400),
        ({"id": "x", "target": [1]}, 400),
        ({"id": 999_999, "target": [1]}, 404),
        ({"id": 2**70, "target": [1]}, 400),
        ({"id": "TEMPLATE"}, 400),
        ({"id": "TEMPLATE", "target": [1], "target_by": "name"}, 400),
        ({"id": "TEMPLATE", "target": [1], "time": "tomorrow"}, 400),
        ({"id": "TEMPLATE", "target": [1.5]}, 400),
        ({"id": "PLAIN", "target": [1]}, 400),
    ],
    ids=str,
)
def test_a_wrong_execution_is_refused(service_process, fields, code):
    ids = {"TEMPLATE": template(service_process), "PLAIN": service_process.created(**PUSH, device_ids=[1])}
    answer = service_process.execute(**{**fields, "id": ids.get(fields.get("id"), fields.get("id"))})
    assert (answer.status_code, answer.json()["code"]) == (code, code)
