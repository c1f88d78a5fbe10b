"""Single fields of the document that no other test covers: channels, limits, defaults, post-backs."""

from __future__ import annotations

from datetime import timedelta

import pytest

CREATE = "/api/external/create/campaign"
EXECUTE = "/api/external/execute/campaign"
PUSH = {"android_push": 1, "ios_push": 1, "web_push": 1}
# Device n has the platform n % 7, and an email address if n is even.
ANDROID, IOS, CHROME, FIREFOX, OPERA, SAFARI = 14, 8, 2, 10, 4, 12
EVERY = [ANDROID, IOS, CHROME, FIREFOX, OPERA, SAFARI]
EMAIL = {"email_subject": "s", "email_text": "t", "email_type": 1, "email_template": 1}
WEBHOOK = {"webhook": {"url": "http://127.0.0.1:9/"}}  # nothing listens there


def messages(service, campaign, device):
    return service.admin(f"campaigns/{campaign}/devices/{device}")["messages"]


def type_of(service, campaign, device):
    """Return the type of the message to a device, or None if no channel reaches it."""
    [message] = messages(service, campaign, device)
    return None if message["error"] == "NO_CHANNEL" else message["message_type"]


@pytest.mark.rule(
    "2.3/flags", "2.3/android_push", "2.3/ios_push", "2.3/web_push", "2.3/web_push_browser",
    "2.3/web_push_opera", "2.3/email", "2.3/webhook", side="service",
)  # fmt: skip
@pytest.mark.parametrize(
    ("fields", "reached"),
    [
        ({"ios_push": 1}, {IOS: 1}),
        ({"android_push": 1}, {ANDROID: 2}),
        ({"web_push": 1}, {CHROME: 3, FIREFOX: 3, OPERA: 3, SAFARI: 3}),
        ({"web_push": 1, "web_push_chrome": 1}, {CHROME: 3}),
        ({"web_push": 1, "web_push_firefox": 1}, {FIREFOX: 3}),
        ({"web_push": 1, "web_push_opera": 1}, {OPERA: 3}),
        ({"email": 1, "messages": {"7": EMAIL}}, dict.fromkeys(EVERY, 7)),
        ({"webhook": 1, "messages": {"8": WEBHOOK}}, dict.fromkeys(EVERY, 8)),
    ],
    ids=str,
)
def test_a_flag_enables_its_channel_and_no_other(service_process, fields, reached):
    campaign = service_process.created(device_ids=EVERY, **fields)
    service_process.wait_until_quiet()
    types = {device: type_of(service_process, campaign, device) for device in EVERY}
    assert {device: kind for device, kind in types.items() if kind} == reached


@pytest.mark.rule("2.3/inbox", "2.4/messages_6", "2.4/inbox_type", side="service")
def test_the_inbox_has_an_entry_of_its_own(service_process):
    entry = {"push_title": "inside", "push_text": "words", "inbox_type": "card"}
    campaign = service_process.created(inbox=1, device_ids=EVERY, messages={"6": entry})
    service_process.wait_until_quiet()
    said = [messages(service_process, campaign, device)[0] for device in EVERY]
    assert {(each["message_type"], each["message"]["title"], each["message"]["text"]) for each in said} == {
        (6, "inside", "words")
    }


@pytest.mark.rule("2.3/encryption", side="service")
def test_encryption_is_taken_as_a_text(service_process):
    campaign = service_process.created(android_push=1, device_ids=[ANDROID], encryption="rsa")
    [listed] = [c for c in service_process.admin("campaigns")["campaigns"] if c["id"] == campaign]
    assert listed["warnings"] == []


@pytest.mark.rule("6/optional", side="service")
def test_without_addresses_nothing_is_posted_and_with_one_only_there(service_process, service_listener):
    service_process.created(inbox=1, broadcast=1)
    delivery = {"webhook_delivery": f"{service_listener.url}/d"}
    campaign = service_process.created(inbox=1, broadcast=1, **delivery)
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert truth["opened"]
    assert service_listener.devices("/d") == truth["delivered"]
    assert {(path, body["campaign"]["id"]) for path, body in service_listener.received} == {("/d", campaign)}


@pytest.mark.rule("4.3/apptoken", side="service")
def test_an_execution_is_proven_by_an_app_token_too(service_process):
    template = service_process.created(**PUSH, trigger=3)
    body = {"id": template, "target": [ANDROID]}
    right = {**body, "apptoken": service_process.app_token}
    assert service_process.post(EXECUTE, json=right).status_code == 200
    assert service_process.post(EXECUTE, json={**body, "apptoken": "wrong"}).status_code == 401
    assert service_process.post(EXECUTE, json=body).status_code == 400


@pytest.mark.rule("5/no_revocation", side="service")
def test_a_token_cannot_be_revoked(service_process):
    headers = {"Authorization": f"Bearer {service_process.token()}"}
    token = {"token": headers["Authorization"].removeprefix("Bearer ")}
    assert service_process.post("/api/oauth/revoke", data=token).status_code == 404
    service_process.token()  # another token of the same client ID does not affect the first
    body = {"title": "t", "push_text": "x", "android_push": 1, "device_ids": [ANDROID]}
    assert service_process.post(CREATE, json=body, headers=headers).status_code == 200


def morning(service):
    return service.now().replace(hour=9, minute=0, second=0, microsecond=0) + timedelta(days=1)


@pytest.mark.rule("2.10/limit_per_location", "2.10/limit_per_location_period", side="service")
def test_a_limit_for_each_location_holds_for_a_day_or_for_the_campaign(service_process):
    waiting = {**PUSH, "broadcast": 1, "send_type": 2, "timezone": "UTC", "location_limit_per_user": 9}
    shop = service_process.post("/admin/locations", json={"title": "Shop"}).json()["id"]
    service_process.go_to(morning(service_process))
    for period in ({}, {"location_limit_per_location_period": "campaign"}):
        service_process.created(locations=[shop], **waiting, **period)

    def reasons():
        hit = {"device_id": ANDROID, "location_id": shop, "action": "enter"}
        answer = service_process.post("/admin/hits/location", json=hit)
        return [item["reason"] for item in answer.json()["campaigns"]]

    reached = "location_limit_per_location is reached"
    assert (reasons(), reasons()) == ([None, None], [reached, reached])
    service_process.go_to(morning(service_process))
    assert reasons() == [None, reached]


@pytest.mark.rule("2.11/start_time", "2.11/end_time", side="service")
def test_a_triggered_campaign_may_be_triggered_all_day_by_default(service_process):
    shop = service_process.post("/admin/locations", json={"title": "Shop"}).json()["id"]
    waiting = {**PUSH, "broadcast": 1, "send_type": 2, "timezone": "UTC", "locations": [shop]}
    service_process.created(**waiting)
    midnight = morning(service_process).replace(hour=0)
    for device, moment in ((ANDROID, midnight), (IOS, midnight + timedelta(hours=23, minutes=59))):
        service_process.go_to(moment)
        hit = {"device_id": device, "location_id": shop, "action": "enter"}
        answer = service_process.post("/admin/hits/location", json=hit)
        assert [item["reason"] for item in answer.json()["campaigns"]] == [None]


@pytest.mark.rule("2.12/inbox_expiry_time", side="service")
def test_an_inbox_message_is_removed_at_its_time(service_process):
    removal = int(service_process.now().timestamp()) + 3_600
    campaign = service_process.created(inbox=1, broadcast=1, push_text="gone soon", inbox_expiry_time=removal)
    service_process.wait_until_quiet()
    device = service_process.admin(f"campaigns/{campaign}/truth")["delivered"][0]

    def lying():
        inbox = service_process.admin(f"devices/{device}/inbox")["messages"]
        return [message["message"]["text"] for message in inbox]

    service_process.command("clock", "advance", "1s")  # all decided outcomes have happened by then
    assert "gone soon" in lying()
    service_process.command("clock", "advance", "1h")
    assert "gone soon" not in lying()
