"""All fields of section 2 of the document, spread over several create requests (section 4.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

PUSH = {"android_push": 1, "push_text": "Text"}
ANDROID = 14  # a device
PICTURE = "https://shop.example.com/p.png"
NOWHERE = "http://127.0.0.1:9/"  # nothing listens there
WORDS = {"push_title": "Title", "push_text": "Text", "url": "https://shop.example.com"}
LANGUAGES = {
    "languages_multi": 1, "languages_list": ["en", "fr"], "languages_default": "en",
    "push_title_languages": {"fr": "Titre"}, "push_text_languages": {"fr": "Texte"},
    "url_languages": {"fr": "https://shop.example.com/fr"},
}  # fmt: skip
TOMORROW, NEXT_YEAR = (f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" for days in (1, 365))
SOON = int(datetime.now(UTC).timestamp()) + 86_400
DAYS = {"send_type": 2, "start_date": TOMORROW, "end_date": NEXT_YEAR, "send_days": [1, 7], "timezone": "UTC"}
WINDOW = {"start_time": "08:00", "end_time": "21:00"}
# All fields of section 2 in valid bodies. Fields that the document does not name have the service's own names.
BODIES = {
    "now": {
        "title": "Title", "android_push": 1, "ios_push": 1, "ios_push_sandbox": 1, "web_push": 1,
        "web_push_chrome": 1, "web_push_firefox": 1, "web_push_opera": 1, "inbox": 1, "email": 1, "sms": 1,
        "webhook": 1, "encryption": "0", "broadcast": 0, "webhook_delivery": NOWHERE, "webhook_open": NOWHERE,
        **WORDS, "push_picture_type": "url", "push_picture": PICTURE, "push_icon": PICTURE,
        "payload_add": [{"key": "screen", "value": "sale"}], **LANGUAGES, "url_browser": 1, "page": "<p>Page</p>",
        "messages": {
            "1": WORDS,
            "2": WORDS,
            "3": WORDS,
            "6": {**WORDS, **LANGUAGES, "inbox_type": "card"},
            "7": {
                "email_address_id": 1, "email_subject": "Subject", "email_html": "<p>Text</p>",
                "email_text": "Text", "email_unsubscribe": 1, "email_type": 1, "email_template": 1,
            },
            "8": {
                "webhook": {
                    "url": NOWHERE, "get_params": [{"key": "a", "value": "b"}], "request_body_type": "raw",
                    "request_body_data": {"raw": "words"}, "request_headers": "X-Source: shop",
                }
            },
            "9": {"sms": {"from": "Shop", "text": "Text"}},
        },
        "conditions": {"operator": "AND", "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]]},
        "segment_ids": [], "device_ids": [ANDROID], "device_tokens": [], "device_uuids": [], "external_ids": [],
        "send_type": 0, "push_expiry": 2, "push_expiry_unit": "weeks", "push_expiry_time": SOON,
        "inbox_expiry": 3, "inbox_expiry_unit": "days", "inbox_expiry_time": SOON,
    },
    "once": {**PUSH, "broadcast": 1, "send_type": 1, "send_date": TOMORROW, "send_time": "18:30", "timezone": "UTC"},
    "recurring": {**PUSH, "broadcast": 1, **DAYS, "send_time": "18:30"},
    "at a location": {
        **PUSH, "broadcast": 1, **DAYS, **WINDOW, "locations": [], "trigger": 1, "location_trigger": 3, "dwell_time": 5,
        "location_limit_per_user": 1, "location_limit_per_user_period": "day", "location_limit_per_location": 1,
        "location_limit_per_location_period": "campaign", "location_limit_nth_hit": 0,
        "location_limit_nth_hit_period": "day",
    },
    "at an event": {**PUSH, "broadcast": 1, **DAYS, **WINDOW, "trigger": 2, "event": "order"},
    "by the api": {**PUSH, "broadcast": 1, **DAYS, **WINDOW, "trigger": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def bodies(service_process):
    """The bodies, with the ids of existing segments and locations."""
    conditions = {"operator": "AND", "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]]}
    segment = service_process.post("/admin/segments", json={"title": "gold", "conditions": conditions})
    location = service_process.post("/admin/locations", json={"title": "Shop"})
    ids = {"segment_ids": [segment.json()["id"]], "locations": [location.json()["id"]]}
    return {
        name: {**body, **{key: value for key, value in ids.items() if key in body}}
        for name, body in BODIES.items()
    }


@pytest.mark.rule("4.2/fields", "9/syntax", side="service")
@pytest.mark.parametrize("name", BODIES)
def test_every_field_of_section_2_is_understood(service_process, bodies, name):
    campaign = service_process.created(**bodies[name], apptoken=service_process.app_token)
    [listed] = [c for c in service_process.admin("campaigns?count=500")["campaigns"] if c["id"] == campaign]
    assert listed["warnings"] == []


@pytest.mark.rule("4.2/fields", side="service")
@pytest.mark.parametrize("name", BODIES)
def test_every_field_of_section_2_is_checked(service_process, bodies, name):
    body, wrong = bodies[name], [[]]  # not valid for any field
    for field in body:
        answer = service_process.create(**{**body, field: wrong})
        assert answer.status_code == 400, field
        assert field in [problem["field"] for problem in answer.json()["errors"]]
    for key, entry in body.get("messages", {}).items():
        for field in entry:
            messages = {**body["messages"], key: {**entry, field: wrong}}
            answer = service_process.create(**{**body, "messages": messages})
            assert answer.status_code == 400, field
            assert f"messages.{key}.{field}" in [problem["field"] for problem in answer.json()["errors"]]


@pytest.mark.rule("4.2/fields", side="service")
@pytest.mark.parametrize(
    ("key", "kind", "fields"),
    [
        ("8", "webhook", ["url", "get_params", "request_body_type", "request_body_data", "request_headers"]),
        ("9", "sms", ["from", "text"]),
    ],
)
def test_every_field_of_a_webhook_or_sms_is_checked(service_process, bodies, key, kind, fields):
    body = bodies["now"]
    for field in fields:
        entry = {kind: {**body["messages"][key][kind], field: [[]]}}
        answer = service_process.create(**{**body, "messages": {**body["messages"], key: entry}})
        assert answer.status_code == 400, field
        [problem] = [each for each in answer.json()["errors"] if each["field"] == f"messages.{key}.{kind}"]
        assert problem["message"].startswith(field)
