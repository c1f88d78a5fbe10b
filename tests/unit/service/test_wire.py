"""The wire format: requests, replies, and the bodies of post-backs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from sendoff.audience.build import build_audience
from sendoff.audience.identifiers import Identifiers, integers, strings
from sendoff.campaign import Campaign, Variation
from sendoff.errors import CampaignError, SettingsError
from sendoff.service.wire import (
    UNCONFIRMED,
    FieldNames,
    PostBackAddresses,
    PostBackBody,
    Reply,
    Targeting,
    Unreadable,
    create_body,
    execute_body,
    list_body,
    read_campaigns,
    read_post_back,
    read_reply,
)
from sendoff.service.wire.names import to_object
from sendoff.service.wire.requests import mask_template_values

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/unknowns.md"
PERIOD_END = datetime(2026, 11, 20, 6, tzinfo=UTC)
ADDRESSES = PostBackAddresses("https://events.example.com/d", "https://events.example.com/o")
MESSAGE = {"title": "Title", "text": "Text", "url": "https://shop.example.com"}
ENDLESS = {"time_zone": "UTC", "start": "2026-11-20", "end": "never"}
EMAIL = {"from_address": 7, "subject": "Hello", "html": "<p>Words</p>"}


def ids(*values: int) -> Identifiers:
    return integers(values)


def texts(*values: str) -> Identifiers:
    return strings(values)


def campaign(**fields: Any) -> Campaign:
    return Campaign.model_validate({"title": "A campaign", **fields}).resolved(PERIOD_END)


def written(made: Campaign, targeting: Targeting | None = None, **more: Any) -> dict[str, Any]:
    """Write the request that creates a campaign; to device 5 if its recipients come from a query."""
    if targeting is None and made.targeting.kind == "query":
        targeting = Targeting("device_id", ids(5))
    settings: dict[str, Any] = {"title": "The title", "post_backs": PostBackAddresses(None, None), **more}
    document: dict[str, Any] = orjson.loads(create_body(made, targeting=targeting, **settings))
    return document


def message_of(made: Campaign, key: str, **more: Any) -> Any:
    return written(made, **more)["messages"][key]


# Requests


@pytest.mark.rule(
    "2.3/json", "2.3/flags", "2.3/title", "2.3/android_push", "2.3/ios_push", "2.3/ios_push_sandbox",
    "2.3/web_push", "2.3/web_push_browser", "2.3/web_push_opera", "2.3/inbox", "2.3/webhook_delivery",
    "2.3/webhook_open", "2.4/push_title", "2.4/push_text", "2.4/push_picture_type", "2.4/push_picture",
    "2.4/icon", "2.4/top_level", "2.5/url", "2.11/send_type", "4.2/fields", "6/delivery", "6/open",
    "8/push_expiry", "9/syntax", side="client",
)  # fmt: skip
def test_a_push_of_every_kind_is_written() -> None:
    made = campaign(
        message={
            **MESSAGE,
            "picture": "https://shop.example.com/p.jpg",
            "icon": "https://shop.example.com/i.png",
        },
        channels={
            "android_push": None,
            "ios_push": {"sandbox": True},
            "web_push": {"browsers": ["chrome", "firefox", "opera", "safari"]},
            "inbox": None,
        },
    )
    assert written(made, post_backs=ADDRESSES) == {
        "title": "The title",
        "android_push": 1,
        "ios_push": 1,
        "ios_push_sandbox": 1,
        "web_push": 1,
        "web_push_chrome": 1,
        "web_push_firefox": 1,
        "web_push_opera": 1,
        "web_push_safari": 1,
        "inbox": 1,
        "push_title": "Title",
        "push_text": "Text",
        "url": "https://shop.example.com",
        "push_picture_type": "url",
        "push_picture": "https://shop.example.com/p.jpg",
        "push_icon": "https://shop.example.com/i.png",
        "broadcast": 0,
        "device_ids": [5],
        "send_type": 0,
        "webhook_delivery": "https://events.example.com/d",
        "webhook_open": "https://events.example.com/o",
    }


@pytest.mark.rule("2.5/payload_add", "2.5/url_browser", "2.5/page", side="client")
def test_linked_content_is_written() -> None:
    message = {
        **MESSAGE,
        "open_in": "web_view",
        "page": "<p>Page</p>",
        "payload": {"basket": "4", "shop": "ie"},
    }
    body = written(campaign(message=message, channels={"ios_push": {}}))
    assert (body["url_browser"], body["page"]) == (0, "<p>Page</p>")
    assert body["payload_add"] == [{"key": "basket", "value": "4"}, {"key": "shop", "value": "ie"}]


@pytest.mark.rule(
    "2.5/languages_multi", "2.5/languages_list", "2.5/languages_default", "2.5/push_text_languages",
    "2.5/push_title_languages", "2.5/url_languages", side="client",
)  # fmt: skip
def test_languages_of_a_push_are_chosen_by_the_service_with_the_campaigns_own_as_fallback() -> None:
    translations = {"fr": {"title": "Titre", "text": "Texte", "url": "https://shop.example.com/fr"}}
    body = written(
        campaign(language="en", message={**MESSAGE, "translations": translations}, channels={"ios_push": {}})
    )
    assert body["push_text"] == "Text"
    assert {name: value for name, value in body.items() if "languages" in name} == {
        "languages_multi": 1,
        "languages_list": ["en", "fr"],
        "languages_default": "en",
        "push_title_languages": {"en": "Title", "fr": "Titre"},
        "push_text_languages": {"en": "Text", "fr": "Texte"},
        "url_languages": {"en": "https://shop.example.com", "fr": "https://shop.example.com/fr"},
    }


def test_the_address_of_a_channel_is_written_for_each_language() -> None:
    translations = {"fr": {"title": "Titre", "text": "Texte", "url": "https://shop.example.com/fr"}}
    body = written(
        campaign(
            language="en",
            message={**MESSAGE, "translations": translations},
            channels={"android_push": {"url": "myshop://basket/42"}, "ios_push": {}},
        )
    )
    assert body["url_languages"]["fr"] == "https://shop.example.com/fr"
    assert [each["url_languages"] for each in body["messages"].values()] == [
        {"en": "myshop://basket/42", "fr": "myshop://basket/42"}
    ]


@pytest.mark.rule("2.5/shared_url", side="client")
def test_one_address_may_serve_all_languages() -> None:
    translations = {"fr": {"title": "Titre", "text": "Texte"}}
    body = written(
        campaign(language="en", message={**MESSAGE, "translations": translations}, channels={"ios_push": {}})
    )
    assert body["url"] == "https://shop.example.com"
    assert "url_languages" not in body


def test_languages_that_the_service_cannot_choose_between_are_not_sent_together() -> None:
    email = {**EMAIL, "translations": {"fr": {"subject": "Bonjour", "html": "<p>Mots</p>"}}}
    made = campaign(language="en", channels={"email": email})
    with pytest.raises(CampaignError, match="send each variation separately"):
        written(made)
    assert message_of(made.variation(Variation("fr"), PERIOD_END), "7")["email_subject"] == "Bonjour"


@pytest.mark.rule("2.3/messages", "2.4/messages", "2.4/messages_push", side="client")
def test_a_channel_with_words_of_its_own_has_a_whole_entry() -> None:
    made = campaign(message=MESSAGE, channels={"android_push": {"text": "Short"}, "ios_push": {}})
    body = written(made)
    assert body["push_text"] == "Text"
    assert body["messages"] == {
        "2": {"push_title": "Title", "push_text": "Short", "url": "https://shop.example.com"}
    }


@pytest.mark.rule("2.4/messages_3", "2.4/messages_6", "2.4/inbox_type", side="client")
def test_entries_of_web_push_and_inbox_hold_only_what_is_listed() -> None:
    made = campaign(
        message={**MESSAGE, "picture": "https://shop.example.com/p.jpg", "payload": {"a": "b"}},
        channels={"web_push": {"browsers": ["chrome"], "text": "Web"}, "inbox": {"style": "card"}},
    )
    assert written(made)["messages"] == {
        "3": {"push_title": "Title", "push_text": "Web", "url": "https://shop.example.com"},
        "6": {
            "push_title": "Title",
            "push_text": "Text",
            "url": "https://shop.example.com",
            "inbox_type": "card",
        },
    }


@pytest.mark.rule(
    "2.3/email", "2.4/messages_7", "2.6/email_address_id", "2.6/email_subject", "2.6/email_html",
    "2.6/email_unsubscribe", "2.6/email_type", side="client",
)  # fmt: skip
def test_an_email_is_an_entry_of_type_7() -> None:
    body = written(campaign(channels={"email": EMAIL}))
    assert body["email"] == 1
    assert body["messages"]["7"] == {
        "email_address_id": 7,
        "email_subject": "Hello",
        "email_html": "<p>Words</p>",
        "email_unsubscribe": 1,
        "email_type": 1,
        "email_template": 1,
    }
    assert "push_text" not in body


@pytest.mark.rule("2.6/email_text", "2.6/email_unsubscribe", side="client")
def test_an_email_may_be_text_without_a_header_to_unsubscribe() -> None:
    email = {"from_address": 7, "subject": "Hello", "text": "Words", "unsubscribe_header": False}
    entry = message_of(campaign(channels={"email": email}), "7")
    assert (entry["email_text"], entry["email_unsubscribe"]) == ("Words", 0)
    assert "email_html" not in entry


@pytest.mark.rule("2.6/tags", "2.8/tags", side="client")
def test_tags_in_double_braces_are_sent_as_they_stand() -> None:
    words = "Hello {{first_name}}"
    email = {"from_address": 7, "subject": words, "text": words}
    made = campaign(channels={"email": email, "sms": {"sender": "Shop", "text": words}})
    assert message_of(made, "7")["email_subject"] == message_of(made, "7")["email_text"] == words
    assert message_of(made, "9")["sms"]["text"] == words


@pytest.mark.rule("2.3/sms", "2.4/messages_9", "2.8/sms", "2.8/from", "2.8/text", side="client")
def test_a_text_message_is_an_entry_of_type_9() -> None:
    body = written(campaign(channels={"sms": {"sender": "Shop", "text": "Words"}}))
    assert body["sms"] == 1
    assert body["messages"] == {"9": {"sms": {"from": "Shop", "text": "Words"}}}


@pytest.mark.rule(
    "2.3/webhook", "2.4/messages_8", "2.7/webhook", "2.7/url", "2.7/get_params", "2.7/request_body_type",
    "2.7/request_body_data", "2.7/request_headers", side="client",
)  # fmt: skip
@pytest.mark.parametrize(("kind", "member"), [("raw", "raw"), ("form", "post"), ("json", "json")])
def test_a_webhook_message_is_an_entry_of_type_8(kind: str, member: str) -> None:
    webhook = {
        "address": "https://hooks.example.com",
        "query": {"a": "1"},
        "headers": {"X-One": "1", "X-Two": "2"},
        "body": {"kind": kind, "content": "Words"},
    }
    body = written(campaign(channels={"webhook": webhook}))
    assert body["webhook"] == 1
    assert body["messages"]["8"]["webhook"] == {
        "url": "https://hooks.example.com",
        "get_params": [{"key": "a", "value": "1"}],
        "request_body_type": member,
        "request_body_data": {member: "Words"},
        "request_headers": "X-One: 1\nX-Two: 2",
    }


# Recipients


@pytest.mark.rule(
    "2.9/device_ids", "2.9/device_tokens", "2.9/device_uuids", "2.9/external_ids", side="client"
)
@pytest.mark.parametrize(
    ("identified_by", "identifiers", "array", "values"),
    [
        ("device_id", ids(3, 1, 2), "device_ids", [1, 2, 3]),
        ("device_id", ids(2**62), "device_ids", [2**62]),
        ("device_token", ids(8, 7), "device_tokens", [7, 8]),  # integers, as in the document
        ("device_token", texts("b", "a"), "device_tokens", ["a", "b"]),
        ("device_uuid", ids(9), "device_uuids", [9]),
        ("device_uuid", texts("u-1"), "device_uuids", ["u-1"]),
        ("external_id", texts("crm-1"), "external_ids", ["crm-1"]),
    ],
)
def test_people_are_named_in_the_array_of_their_kind(
    identified_by: str, identifiers: Identifiers, array: str, values: list[Any]
) -> None:
    body = written(campaign(channels={"email": EMAIL}), Targeting(identified_by, identifiers))
    assert body[array] == values
    assert body["broadcast"] == 0


def test_people_that_only_a_template_can_reach_are_refused() -> None:
    with pytest.raises(
        CampaignError, match="cannot be created for recipients identified by user_id, only by device_id"
    ):
        written(campaign(channels={"email": EMAIL}), Targeting("user_id", texts("cust-1")))


def test_a_request_to_nobody_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least one recipient"):
        Targeting("device_id", ids())


@pytest.mark.rule("2.3/segmentation", side="client")
@pytest.mark.parametrize(
    ("targeting", "segmentation"),
    [
        ({"kind": "query"}, {"broadcast": 0, "device_ids": [5]}),
        ({"kind": "saved_segments", "ids": [4]}, {"broadcast": 0, "segment_ids": [4]}),
        (
            {"kind": "conditions", "where": {"all": [{"attribute": "tier", "value": "gold"}]}},
            {
                "broadcast": 0,
                "conditions": {
                    "operator": "AND",
                    "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]],
                },
            },
        ),
        ({"kind": "broadcast"}, {"broadcast": 1}),
    ],
)
def test_every_campaign_has_one_segmentation(targeting: dict[str, Any], segmentation: dict[str, Any]) -> None:
    body = written(campaign(channels={"email": EMAIL}, targeting=targeting))
    every = {
        "broadcast",
        "conditions",
        "segment_ids",
        "device_ids",
        "device_tokens",
        "device_uuids",
        "external_ids",
    }
    assert {name: value for name, value in body.items() if name in every} == segmentation


@pytest.mark.rule("2.3/broadcast", "2.9/broadcast", side="client")
def test_a_broadcast_names_nobody() -> None:
    body = written(campaign(channels={"email": EMAIL}, targeting={"kind": "broadcast"}))
    assert body["broadcast"] == 1
    assert "device_ids" not in body


@pytest.mark.rule("2.9/segment_ids", "4.4/created_before", side="client")
def test_saved_segments_are_named_by_their_ids() -> None:
    body = written(campaign(channels={"email": EMAIL}, targeting={"kind": "saved_segments", "ids": [4, 9]}))
    assert (body["broadcast"], body["segment_ids"]) == (0, [4, 9])


@pytest.mark.rule("2.9/conditions", "2.9/operator", "2.9/group", "2.9/condition", side="client")
def test_conditions_have_the_shape_of_the_document() -> None:
    where = {
        "all": [
            {"attribute": "tier", "value": "gold"},
            {
                "any": [
                    {"attribute": "age", "field": "years", "comparison": ">", "value": 17},
                    {"attribute": "vip", "value": True},
                ]
            },
        ]
    }
    body = written(campaign(channels={"email": EMAIL}, targeting={"kind": "conditions", "where": where}))
    assert body["conditions"] == {
        "operator": "AND",
        "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]],
        "1": {
            "operator": "OR",
            "0": ["tags_attribute", "=", "age", ["years", ">", 17]],
            "1": ["tags_attribute", "=", "vip", ["value", "=", True]],
        },
    }


@pytest.mark.parametrize("kind", ["query", "broadcast"])
def test_people_come_from_the_query_or_from_the_service_never_both(kind: str) -> None:
    made = campaign(channels={"email": EMAIL}, targeting={"kind": kind})
    wrong = None if kind == "query" else Targeting("device_id", ids(1))
    with pytest.raises(CampaignError, match=f"targeting.kind: {kind}"):
        create_body(made, title="T", targeting=wrong, post_backs=ADDRESSES)


@pytest.mark.rule("2.3/apptoken", side="client")
def test_the_app_token_is_sent_where_there_is_one() -> None:
    made = campaign(channels={"email": EMAIL})
    assert written(made, app_token="abc")["apptoken"] == "abc"
    assert "apptoken" not in written(made)


def test_ten_thousand_devices_are_written_at_the_speed_of_the_encoder() -> None:
    made = campaign(channels={"email": EMAIL})
    identifiers = integers(range(10**9, 10**9 + 10_000))
    body = create_body(made, title="T", targeting=Targeting("device_id", identifiers), post_backs=ADDRESSES)
    assert orjson.loads(body)["device_ids"] == list(range(10**9, 10**9 + 10_000))
    assert not isinstance(identifiers.values(), list)  # so there is no Python object per device


# Schedule and timing


@pytest.mark.rule(
    "2.11/send_type", "2.11/send_date", "2.11/send_time", "2.11/timezone", "2.11/once", side="client"
)
def test_a_once_off_has_its_date_time_and_zone() -> None:
    send = {"kind": "once", "time": "18:30", "time_zone": "Europe/Dublin"}
    body = written(campaign(channels={"email": EMAIL}, send=send))
    assert (body["send_type"], body["send_date"], body["send_time"]) == (1, "2026-11-20", "18:30")
    assert body["timezone"] == "Europe/Dublin"


@pytest.mark.rule("2.11/own_timezone", side="client")
def test_without_a_zone_each_persons_own_counts() -> None:
    send = {"kind": "once", "time": "18:30", "time_zone": "user"}
    assert "timezone" not in written(campaign(channels={"email": EMAIL}, send=send))


def test_a_campaign_without_its_dates_is_not_written() -> None:
    send = {"kind": "once", "time": "18:30", "time_zone": "UTC"}
    unresolved = Campaign.model_validate({"title": "A", "channels": {"email": EMAIL}, "send": send})
    with pytest.raises(CampaignError, match="resolve the campaign first"):
        written(unresolved)


@pytest.mark.rule(
    "2.11/send_type", "2.11/send_time", "2.11/start_date", "2.11/end_date", "2.11/send_days",
    "2.11/recurring", side="client",
)  # fmt: skip
def test_a_recurring_campaign_has_days_dates_and_a_time() -> None:
    send = {
        "kind": "recurring", "time": "08:00", "time_zone": "UTC",
        "days": ["sunday", "monday", "friday"], "start": "2026-12-01", "end": "2026-12-24",
    }  # fmt: skip
    made = campaign(channels={"email": EMAIL}, send=send)
    body = written(made)
    assert {
        name: body[name] for name in ("send_type", "send_days", "start_date", "end_date", "send_time")
    } == {
        "send_type": 2,
        "send_days": [1, 5, 7],
        "start_date": "2026-12-01",
        "end_date": "2026-12-24",
        "send_time": "08:00",
    }
    sunday_first = FieldNames({"send_days_monday": "2"})
    assert written(made, names=sunday_first)["send_days"] == [1, 2, 6]


@pytest.mark.rule("2.11/send_days", "2.11/end_date", side="client")
def test_a_campaign_on_all_days_that_never_ends_names_neither_days_nor_end() -> None:
    send = {"kind": "recurring", "time": "08:00", **ENDLESS}
    body = written(campaign(channels={"email": EMAIL}, send=send))
    assert not {"send_days", "end_date"} & body.keys()


@pytest.mark.rule(
    "2.10/locations", "2.10/dwell_time", "2.10/limit_per_user", "2.10/limit_per_user_period",
    "2.10/limit_nth_hit", "2.11/start_time", "2.11/end_time", "4.4/created_before", side="client",
)  # fmt: skip
def test_a_location_campaign_has_a_window_locations_and_limits() -> None:
    trigger = {
        "kind": "location", "locations": [4, 9], "when": "dwell", "dwell_minutes": 10,
        "per_user": 2, "per_user_period": "campaign", "nth_hit": 1,
    }  # fmt: skip
    send = {
        "kind": "triggered", **ENDLESS, "trigger": trigger,
        "window": {"earliest": "08:00", "latest": "21:00"},
    }  # fmt: skip
    body = written(campaign(channels={"email": EMAIL}, send=send))
    expected = {
        "send_type": 2, "start_time": "08:00", "end_time": "21:00", "start_date": "2026-11-20", "trigger": 1,
        "locations": [4, 9], "location_trigger": 3, "dwell_time": 10,
        "location_limit_per_user": 2, "location_limit_per_user_period": "campaign",
        "location_limit_per_location": 1, "location_limit_per_location_period": "day",
        "location_limit_nth_hit": 1, "location_limit_nth_hit_period": "day",
    }  # fmt: skip
    assert {name: body.get(name) for name in expected} == expected


@pytest.mark.rule(
    "2.10/limit_per_user", "2.10/limit_per_user_period", "2.10/limit_per_location",
    "2.10/limit_per_location_period", "2.10/limit_nth_hit", "2.10/limit_nth_hit_period",
    "8/location_limits", side="client",
)  # fmt: skip
def test_limits_of_a_location_that_a_campaign_leaves_open_are_the_documents_defaults() -> None:
    trigger = {"kind": "location", "locations": [4], "when": "enter"}
    send = {"kind": "triggered", **ENDLESS, "trigger": trigger}
    body = written(campaign(channels={"email": EMAIL}, send=send))
    assert {name: value for name, value in body.items() if "limit" in name} == {
        "location_limit_per_user": 1,
        "location_limit_per_user_period": "day",
        "location_limit_per_location": 1,
        "location_limit_per_location_period": "day",
        "location_limit_nth_hit": 0,
        "location_limit_nth_hit_period": "day",
    }


@pytest.mark.rule(
    "2.11/start_date", "2.11/end_date", "2.11/send_days", "2.11/start_time", "2.11/end_time",
    "2.11/timezone", "2.11/triggered", side="client",
)  # fmt: skip
def test_a_triggered_campaign_has_days_dates_and_a_window() -> None:
    send = {
        "kind": "triggered", "time_zone": "UTC", "trigger": {"kind": "api"}, "days": ["tuesday"],
        "start": "2026-12-01", "end": "2026-12-24", "window": {"earliest": "08:00", "latest": "21:00"},
    }  # fmt: skip
    body = written(campaign(channels={"email": EMAIL}, send=send))
    expected = {
        "send_type": 2, "send_days": [2], "start_date": "2026-12-01", "end_date": "2026-12-24",
        "start_time": "08:00", "end_time": "21:00", "timezone": "UTC",
    }  # fmt: skip
    assert {name: body.get(name) for name in expected} == expected
    assert "send_time" not in body


@pytest.mark.rule("2.10/trigger", side="client")
@pytest.mark.parametrize(("when", "number"), [("enter", 1), ("exit", 2)])
def test_entering_is_1_and_leaving_what_the_table_says(when: str, number: int) -> None:
    trigger = {"kind": "location", "locations": [4], "when": when}
    send = {"kind": "triggered", **ENDLESS, "trigger": trigger}
    body = written(campaign(channels={"email": EMAIL}, send=send))
    assert body["location_trigger"] == number
    assert "dwell_time" not in body


@pytest.mark.rule("2.11/triggered_by_event", "2.11/triggered", side="client")
def test_an_event_campaign_names_its_event() -> None:
    send = {
        "kind": "triggered", **ENDLESS, "days": ["tuesday"], "trigger": {"kind": "event", "name": "order"},
        "window": {"earliest": "08:00", "latest": "21:00"},
    }  # fmt: skip
    made = campaign(channels={"email": EMAIL}, send=send)
    body = written(made)
    expected = {
        "send_type": 2, "trigger": 2, "event": "order", "send_days": [2], "start_date": "2026-11-20",
        "start_time": "08:00", "end_time": "21:00",
    }  # fmt: skip
    assert {name: body.get(name) for name in expected} == expected
    assert not [name for name in body if "location" in name]
    assert written(made, names=FieldNames({"event": "event_name"}))["event_name"] == "order"


@pytest.mark.rule("2.3/encryption", side="client")
def test_encryption_is_sent_as_it_stands_and_only_then() -> None:
    made = campaign(message=MESSAGE, channels={"android_push": None}, encryption="0")
    assert written(made)["encryption"] == "0"
    assert "encryption" not in written(campaign(message=MESSAGE, channels={"android_push": None}))


@pytest.mark.rule("2.11/start_time", "2.11/end_time", side="client")
def test_an_api_triggered_campaign_says_so() -> None:
    send = {"kind": "triggered", **ENDLESS, "trigger": {"kind": "api"}}
    body = written(campaign(channels={"email": EMAIL}, send=send))
    assert (body["trigger"], body["start_time"], body["end_time"]) == (3, "00:00", "23:59")


@pytest.mark.rule("2.12/push_expiry", "2.12/push_expiry_unit", "2.12/inbox_expiry_time", side="client")
def test_expiry_and_inbox_persistence_are_written() -> None:
    until = {"time": "23:00", "time_zone": "Europe/Dublin"}
    body = written(
        campaign(
            message=MESSAGE,
            channels={"ios_push": {}, "inbox": {"keep": {"until": until}}},
            push_expiry={"length": 2, "unit": "weeks"},
        )
    )
    assert (body["push_expiry"], body["push_expiry_unit"]) == (2, "weeks")
    assert body["inbox_expiry_time"] == int(datetime(2026, 11, 20, 23, tzinfo=UTC).timestamp())
    assert not {"push_expiry_time", "inbox_expiry", "inbox_expiry_unit"} & body.keys()


@pytest.mark.rule("2.12/push_expiry_time", "2.12/inbox_expiry", "2.12/inbox_expiry_unit", side="client")
def test_expiry_may_be_a_moment_and_inbox_persistence_a_length() -> None:
    until = {"time": "23:00", "time_zone": "Europe/Dublin"}
    inbox = {"keep": {"length": 3, "unit": "days"}}
    body = written(
        campaign(message=MESSAGE, channels={"ios_push": {}, "inbox": inbox}, push_expiry={"until": until})
    )
    assert body["push_expiry_time"] == int(datetime(2026, 11, 20, 23, tzinfo=UTC).timestamp())
    assert (body["inbox_expiry"], body["inbox_expiry_unit"]) == (3, "days")
    assert not {"push_expiry", "push_expiry_unit", "inbox_expiry_time"} & body.keys()


@pytest.mark.rule("2.12/push_expiry_unit", side="client")
@pytest.mark.parametrize("unit", ["seconds", "minutes", "hours", "days", "weeks"])
def test_expiry_has_each_unit_of_the_document(unit: str) -> None:
    made = campaign(message=MESSAGE, channels={"ios_push": {}}, push_expiry={"length": 2, "unit": unit})
    assert written(made)["push_expiry_unit"] == unit


@pytest.mark.rule("2.3/webhook_delivery", "2.3/webhook_open", "6/optional", side="client")
def test_post_backs_are_asked_for_only_where_they_are_wanted() -> None:
    made, nobody = campaign(channels={"email": EMAIL}), PostBackAddresses(None, None)
    opens = PostBackAddresses(None, "https://events.example.com/o")
    assert not {"webhook_delivery", "webhook_open"} & written(made, post_backs=nobody).keys()
    assert written(made, post_backs=opens)["webhook_open"] == opens.open
    template = campaign(template={"id": 88, "channels": ["email"]})
    executed = execute_body(template, targeting=Targeting("device_id", ids(1)), post_backs=nobody)
    assert not {"webhook_delivery", "webhook_open"} & orjson.loads(executed).keys()


# Executions


def executed(identified_by: str, identifiers: Identifiers, **template: Any) -> dict[str, Any]:
    made = campaign(template={"id": 88, "channels": ["email"], **template})
    people = Targeting(identified_by, identifiers)
    document: dict[str, Any] = orjson.loads(
        execute_body(made, targeting=people, post_backs=ADDRESSES, app_token="abc")
    )
    return document


@pytest.mark.rule("4.3/apptoken", "4.3/post_backs", "4.3/one_to_one", "6/execute", side="client")
@pytest.mark.parametrize(
    ("identified_by", "identifiers", "target_by", "values"),
    [
        ("device_id", ids(3, 1), "id", [1, 3]),
        ("device_token", texts("t"), "token", ["t"]),
        ("external_id", texts("e"), "external_id", ["e"]),
        ("user_id", texts("cust-1"), "user_id", ["cust-1"]),
    ],
)
def test_an_execution_names_its_template_and_its_people(
    identified_by: str, identifiers: Identifiers, target_by: str, values: list[Any]
) -> None:
    assert executed(identified_by, identifiers, parameters={"gate": "B4"}) == {
        "apptoken": "abc",
        "id": 88,
        "target_by": target_by,
        "target": values,
        "params": {"gate": "B4"},
        "webhook_delivery": "https://events.example.com/d",
        "webhook_open": "https://events.example.com/o",
    }


def executed_with(own: pa.RecordBatch, column: str, **template: Any) -> tuple[bytes, dict[str, Any]]:
    """Return the request that executes a template for recipients with their own values."""
    made = campaign(template={"id": 88, "channels": ["email"], **template})
    audience = build_audience([own], columns=template["columns"])
    assert audience.template_values is not None
    people = Targeting(column, audience.identifiers, audience.template_values.of(audience.identifiers))
    body = execute_body(made, targeting=people, post_backs=ADDRESSES)
    return body, orjson.loads(body)


@pytest.mark.rule("4.3/one_to_one", side="client")
@pytest.mark.parametrize(
    ("column", "identifiers", "target_by", "named"),
    [
        ("device_id", [3, 1], "id", ["3", "1"]),
        ("device_id", [2**63 - 1, 1], "id", [str(2**63 - 1), "1"]),
        ("device_token", ["t", "s"], "token", ["t", "s"]),
        ("external_id", ["e", "d"], "external_id", ["e", "d"]),
        ("user_id", ["cust-é", "cust-1"], "user_id", ["cust-é", "cust-1"]),
    ],
)
def test_each_person_is_named_with_their_own_variables(
    column: str, identifiers: list[Any], target_by: str, named: list[str]
) -> None:
    own = pa.record_batch(
        {
            column: identifiers,
            "FIRST_NAME": ['Ann "A"', "Bo"],
            "points": [12, 7],
            "born": [date(1990, 1, 2), date(1991, 1, 2)],
        }
    )
    _, body = executed_with(own, column, columns=["first_name", "points", "born"], parameters={"shop": "ie"})
    assert body == {
        "id": 88,
        "target_by": target_by,
        "target_with_params": {
            named[0]: {"first_name": 'Ann "A"', "points": 12, "born": "1990-01-02"},
            named[1]: {"first_name": "Bo", "points": 7, "born": "1991-01-02"},
        },
        "params": {"shop": "ie"},
        "webhook_delivery": "https://events.example.com/d",
        "webhook_open": "https://events.example.com/o",
    }


def test_each_persons_own_variables_stand_over_those_of_all() -> None:
    own = pa.record_batch({"device_id": [1, 2], "gate": ["B4", None]})
    _, body = executed_with(own, "device_id", columns=["gate"], parameters={"gate": "ask", "shop": "ie"})
    assert body["target_with_params"] == {"1": {"gate": "B4"}, "2": {"gate": "ask"}}
    assert body["params"] == {"shop": "ie"}
    _, body = executed_with(own, "device_id", columns=["gate"], parameters={"gate": "ask"})
    assert "params" not in body


def test_a_variable_without_a_value_is_left_out() -> None:
    own = pa.record_batch({"device_id": [1, 2], "gate": ["B4", None], "seat": ["", None]})
    _, body = executed_with(own, "device_id", columns=["gate", "seat"])
    assert body["target_with_params"] == {"1": {"gate": "B4", "seat": ""}, "2": {}}


def test_a_decimal_keeps_its_digits() -> None:
    digits = Decimal("12345678901234567890.10")
    text, _ = executed_with(
        pa.record_batch({"device_id": [1], "due": [digits]}), "device_id", columns=["due"]
    )
    assert b'{"1":{"due":12345678901234567890.10}}' in text


def test_a_template_gets_only_the_columns_that_it_names() -> None:
    """Another variant may use other columns; a segment has the values of all columns."""
    own = build_audience(
        [pa.record_batch({"device_id": [1], "gate": ["B4"], "seat": ["1A"]})], columns=["gate", "seat"]
    )
    assert own.template_values is not None
    people = Targeting("device_id", own.identifiers, own.template_values.of(own.identifiers))
    one = campaign(template={"id": 88, "channels": ["email"], "columns": ["seat"]})
    assert orjson.loads(execute_body(one, targeting=people, post_backs=ADDRESSES))["target_with_params"] == {
        "1": {"seat": "1A"}
    }
    none = campaign(template={"id": 88, "channels": ["email"]})
    body = orjson.loads(execute_body(none, targeting=people, post_backs=ADDRESSES))
    assert body["target"] == [1]
    assert "target_with_params" not in body


def test_a_template_shows_each_recipient_an_own_address_to_opt_out() -> None:
    table = pa.record_batch({"device_id": [1, 2], "gate": ["B4", "B5"]})
    own = build_audience([table], columns=["gate"])
    assert own.template_values is not None
    values = own.template_values.of(own.identifiers)
    made = campaign(
        template={"id": 88, "channels": ["email"], "columns": ["gate"], "unsubscribe_url": "stop"}
    )
    people = Targeting("device_id", own.identifiers, values, lambda who: f"https://x.example/{who}")
    assert orjson.loads(execute_body(made, targeting=people, post_backs=ADDRESSES))["target_with_params"] == {
        "1": {"gate": "B4", "stop": "https://x.example/1"},
        "2": {"gate": "B5", "stop": "https://x.example/2"},
    }
    without = Targeting("device_id", own.identifiers, values)
    with pytest.raises(CampaignError, match="needs an address to opt out in stop"):
        execute_body(made, targeting=without, post_backs=ADDRESSES)


def test_a_template_that_needs_values_is_not_executed_without_them() -> None:
    with pytest.raises(CampaignError, match="the template needs each recipient's own gate, seat") as caught:
        executed("device_id", ids(4711), columns=["gate", "seat"])
    assert "4711" not in str(caught.value)


def test_a_request_may_be_shown_with_types_in_the_place_of_values() -> None:
    own = pa.record_batch(
        {"device_id": [1], "name": ["Ann"], "points": [5], "due": [1.5], "vip": [True], "gate": ["B4"]}
    )
    columns = ["name", "points", "due", "vip"]
    _, body = executed_with(own, "device_id", columns=columns, parameters={"shop": "ie"})
    shown = mask_template_values(body)
    assert shown["target_with_params"] == {
        "1": {"name": "<text>", "points": "<number>", "due": "<number>", "vip": "<true or false>"}
    }
    assert {**shown, "target_with_params": 0} == {**body, "target_with_params": 0}
    assert mask_template_values({"target": [1]}) == {"target": [1]}


def test_a_template_cannot_be_executed_by_device_uuid() -> None:
    with pytest.raises(CampaignError, match="cannot be executed for recipients identified by device_uuid"):
        executed("device_uuid", texts("u"))


def test_templates_are_executed_and_other_campaigns_created() -> None:
    made, people = campaign(channels={"email": EMAIL}), Targeting("device_id", ids(1))
    with pytest.raises(CampaignError, match="only a campaign with a template is executed"):
        execute_body(made, targeting=people, post_backs=ADDRESSES)
    with pytest.raises(CampaignError, match="is executed, not created"):
        written(campaign(template={"id": 88, "channels": ["email"]}))


# Names that the document does not show


def test_a_connection_corrects_a_name() -> None:
    body = written(campaign(channels={"email": EMAIL}), names=FieldNames({"device_ids": "deviceIds"}))
    assert body["deviceIds"] == [5]
    assert "device_ids" not in body


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"title": "headline"}, r"title cannot be set. Use: .*device_ids, "),
        ({"device_ids": ""}, "device_ids needs a name"),
        ({"device_ids": 5}, "device_ids needs a name"),
        ({"send_days_monday": "first"}, "send_days_monday needs a number from 1 to 7"),
        ({"send_days_monday": "0"}, "send_days_monday needs a number from 1 to 7"),
        ({"location_trigger_exit": "01"}, "location_trigger_exit needs a number, .*without zeros"),
        ({"location_trigger_exit": "²"}, "location_trigger_exit needs a number"),
        (["device_ids"], "field_names must be a JSON object"),
    ],
)
def test_a_wrong_correction_is_refused(overrides: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        FieldNames(overrides)


@pytest.mark.parametrize(
    ("overrides", "both"),
    [
        ({"device_ids": "segment_ids"}, "segment_ids and device_ids would both be sent as 'segment_ids'"),
        ({"push_icon": "title"}, "title and push_icon would both be sent as 'title'"),
        ({"push_icon": "push_text"}, "push_text and push_icon would both be sent as 'push_text'"),
        ({"segment_ids": "broadcast"}, "broadcast and segment_ids would both be sent as 'broadcast'"),
        (
            {"device_ids": "ids", "external_ids": "ids"},
            "device_ids and external_ids would both be sent as 'ids'",
        ),
        ({"target": "params"}, "target and params would both be sent as 'params'"),
        ({"params": "apptoken"}, "apptoken and params would both be sent as 'apptoken'"),
        (
            {"target_by_user_id": "token"},
            "target_by_device_token and target_by_user_id would both be sent as 'token'",
        ),
        ({"location_trigger_dwell": "2"}, "location_trigger_exit and location_trigger_dwell would both be"),
        ({"location_trigger_exit": "1"}, "1 and location_trigger_exit would both be sent as '1'"),
        ({"message_android_push": "6"}, "6 and message_android_push would both be sent as '6'"),
        ({"webhook_body_form": "raw"}, "raw and webhook_body_form would both be sent as 'raw'"),
    ],
    ids=str,
)
def test_two_names_of_one_spelling_are_refused(overrides: dict[str, str], both: str) -> None:
    with pytest.raises(SettingsError, match=both):
        FieldNames(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"device_ids": "segment_ids", "segment_ids": "device_ids"},  # the two are swapped
        {"target": "device_ids"},  # no request has both
        {"target_by_device_id": "external_id", "target_by_external_id": "id"},
        {"send_days_monday": "7", "message_ios_push": "10"},
    ],
    ids=str,
)
def test_a_spelling_may_stand_in_different_places(overrides: dict[str, str]) -> None:
    assert {key: FieldNames(overrides)[key] for key in overrides} == overrides


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="two members of the request are called 'title'"):
        to_object([("title", 1), ("title", 2)])


def table_rows(page: str, columns: int) -> list[list[str]]:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.splitlines()
        if line[:2] == "| "
    ]
    return [row for row in rows if len(row) == columns]


def test_the_page_on_unknowns_is_the_table() -> None:
    heading, *rows = table_rows(PAGE.read_text(), 6)
    assert heading == ["Key", "Sent by default", "Meaning", "Section", "Source", "Confidence"]
    assert rows == [
        [f"`{key}`", f"`{entry.name}`", entry.meaning, entry.section, entry.source, entry.confidence]
        for key, entry in UNCONFIRMED.items()
    ]


def test_each_other_choice_on_the_page_has_its_test() -> None:
    _, *rows = table_rows(PAGE.read_text(), 5)
    named = {row[-1].strip("`") for row in rows}
    assert len(rows) > 10
    tests = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_no_other_code_spells_an_unconfirmed_name() -> None:
    spelled = re.compile(
        "|".join(rf"\"{entry.name}\"" for entry in UNCONFIRMED.values() if "_" in entry.name)
    )
    package = PAGE.parents[2] / "include/sendoff"
    found = [
        f"{path.name}: {match[0]}"
        for path in package.rglob("*.py")
        if "wire" not in path.parts
        for match in spelled.finditer(path.read_text())
        if match[0]
        not in ('"external_id"', '"user_id"', '"push_expiry"')  # audiences and campaigns use these words too
    ]
    assert found == []


# Replies


@pytest.mark.parametrize(
    ("content", "success", "code", "campaign_id"),
    [
        ({"success": True, "code": 200, "model": {"id": 701}}, True, 200, 701),
        ({"success": True, "code": 200, "model": {"id": "701"}}, True, 200, 701),
        ({"success": True}, True, 202, None),
        ({"success": True, "model": []}, True, 202, None),
        ({"success": False, "code": 400, "message": "no"}, False, 400, None),
    ],
)
def test_a_reply_is_read_by_its_envelope(
    content: dict[str, Any], success: bool, code: int, campaign_id: int | None
) -> None:
    reply = read_reply(202, orjson.dumps(content))
    assert (reply.success, reply.code, reply.campaign_id) == (success, code, campaign_id)


def test_a_byte_order_mark_is_skipped() -> None:
    assert read_reply(200, b'\xef\xbb\xbf{"success": true}') == Reply(True, 200)
    assert read_post_back(b"\xef\xbb\xbf" + orjson.dumps(NESTED), RECEIVED_AT) == READ


def test_a_page_of_campaigns_is_read() -> None:
    page = {"success": True, "data": [{"id": 7, "title": "Spring [ab]"}, {"id": "8", "title": None}]}
    assert read_campaigns(orjson.dumps(page)) == [(7, "Spring [ab]"), (8, "")]
    assert orjson.loads(list_body(100, 200, "token")) == {
        "apptoken": "token",
        "limit": 100,
        "offset": 200,
        "select": ["id", "title"],
        "order": ["id DESC"],
    }


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"success": false, "data": []}', b'{"data": [7]}', b'{"data": [{"title": "a"}]}'],
)
def test_what_is_no_page_of_campaigns_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        read_campaigns(content)


@pytest.mark.parametrize(
    ("errors", "sentences"),
    [
        (["a", "b"], ("a", "b")),
        ({"title": ["is empty", "is short"]}, ("title: is empty", "title: is short")),
        ([{"field": "title", "message": "is empty"}], ("title: is empty",)),
        ("a", ("a",)),
        (None, ()),
        (5, ()),
    ],
)
def test_errors_are_read_whatever_their_shape(errors: Any, sentences: tuple[str, ...]) -> None:
    assert read_reply(400, orjson.dumps({"success": False, "errors": errors})).errors == sentences


DEEP = b"[" * 1000 + b"]" * 1000


@pytest.mark.parametrize(
    ("errors", "sentences"),
    [
        (DEEP, ()),
        (b'["a", %b, "b"]' % DEEP, ("a", "b")),
        (b'[{"field": "title", "message": %b}, "a"]' % DEEP, ("a",)),
        (b'[{"field": %b, "message": "is empty"}]' % DEEP, ("message: is empty",)),
    ],
    ids=range(4),
)
def test_errors_are_read_however_deep_they_are(errors: bytes, sentences: tuple[str, ...]) -> None:
    assert read_reply(200, b'{"success": true, "errors": %b}' % errors).errors == sentences


@pytest.mark.parametrize(
    ("begin", "end", "prefix"),
    [(b"[", b"]", ""), (b'{"b":', b"}", "b: "), (b'{"field":"b","message":', b"}", "b: ")],
)
def test_errors_are_read_eight_levels_deep(begin: bytes, end: bytes, prefix: str) -> None:
    for levels, sentences in ((8, (f"{8 * prefix}a",)), (9, ())):
        errors = begin * levels + b'"a"' + end * levels
        assert read_reply(200, b'{"success": true, "errors": %b}' % errors).errors == sentences


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b"null", b"{}", b'{"success": 1}', b'{"success": tr']
)
def test_a_reply_that_does_not_say_whether_it_is_a_success_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        read_reply(200, content)


def test_what_the_service_said_is_in_no_repr() -> None:
    reply = read_reply(400, b'{"success": false, "message": "device 123456", "errors": ["device 123456"]}')
    assert "123456" not in repr(reply)


# Post-backs

NESTED = {
    "time": 1795161600,
    "device": {"id": 17},
    "profile": {"id": 18, "user_id": "cust-9"},
    "send": {"id": 19},
    "campaign": {"id": 20},
}
DOTTED = {
    "time": "1795161600",
    "device.id": "17",
    "profile.id": "18",
    "profile.user_id": "cust-9",
    "send.id": 19,
    "campaign.id": "20",
}
READ = PostBackBody(datetime(2026, 11, 20, 8, tzinfo=UTC), 17, 18, "cust-9", 19, 20)
RECEIVED_AT = datetime(2026, 11, 20, 8, 1, tzinfo=UTC)


def read(body: dict[str, Any]) -> PostBackBody:
    return read_post_back(orjson.dumps(body), RECEIVED_AT)


@pytest.mark.rule(
    "6/time", "6/device_id", "6/profile_id", "6/user_id", "6/send_id", "6/campaign_id", side="client"
)
@pytest.mark.parametrize("content", [NESTED, DOTTED, {**NESTED, "more": [1]}])
def test_a_post_back_may_be_nested_or_dotted(content: dict[str, Any]) -> None:
    assert read(content) == READ


def test_a_post_back_may_lack_all_but_a_person() -> None:
    assert read({"time": 0, "profile": {"user_id": 44, "id": None}}).user_id == "44"
    assert read({"time": 0, "profile": {"user_id": "", "id": 9}}).user_id is None
    assert read({"profile": {"user_id": "44"}}) == PostBackBody(RECEIVED_AT, user_id="44")


@pytest.mark.rule("6/time", side="client")
@pytest.mark.parametrize(
    ("time", "moment"),
    [
        (1795161600, READ.time),
        (1795161600.5, datetime(2026, 11, 20, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("1795161600", READ.time),
        (1795161600_000, READ.time),
        ("1795161600000", READ.time),
        (1795161600_500_000, datetime(2026, 11, 20, 8, 0, 0, 500_000, tzinfo=UTC)),
        (1795161600_000_000_000, READ.time),
        ("2026-11-20T08:00:00Z", READ.time),
        ("2026-11-20T09:00:00+01:00", READ.time),
        ("2026-11-20 08:00:00", READ.time),
        (99_999_999_999, datetime(5138, 11, 16, 9, 46, 39, tzinfo=UTC)),
    ],
)
def test_the_time_of_a_post_back_is_read(time: Any, moment: datetime) -> None:
    assert read({**NESTED, "time": time}).time == moment


@pytest.mark.parametrize(
    "time",
    [
        None, True, "", "yesterday", "²", "Fri, 20 Nov 2026 08:00:00 GMT", "9999-12-31T23:59:59-23:00",
        1e25, -(10**18), 1e300, "9" * 400, [1795161600], {"date": "2026-11-20"},
    ],
)  # fmt: skip
def test_without_a_time_that_can_be_read_a_post_back_has_the_time_of_its_arrival(time: Any) -> None:
    assert read({**NESTED, "time": time}) == replace(READ, time=RECEIVED_AT)


@pytest.mark.parametrize(
    ("given", "number"), [(1, 1), ("1", 1), (2**63 - 1, 2**63 - 1), (str(2**63 - 1), 2**63 - 1)]
)
def test_each_positive_number_of_63_bits_is_an_id(given: int | str, number: int) -> None:
    assert read({**NESTED, "device": {"id": given}}).device_id == number
    page = {"success": True, "data": [{"id": given, "title": "A"}]}
    assert read_campaigns(orjson.dumps(page)) == [(number, "A")]


@pytest.mark.parametrize("given", [0, -1, 1.5, 2**63, True, "", "6b1f-4c", "1" * 5_000, [17], {}])
def test_ids_that_decide_no_verdict_may_have_any_type(given: Any) -> None:
    others = {name: {"id": given} for name in ("send", "campaign")}
    profile = {"id": given, "user_id": "cust-9"}
    expected = replace(READ, profile_id=None, send_id=None, campaign_id=None)
    assert read({**NESTED, **others, "profile": profile}) == expected


@pytest.mark.parametrize("device", [None, {}, [], {"id": None}, {"id": 0}, {"id": "0"}, {"id": ""}])
def test_a_person_may_have_no_device(device: Any) -> None:
    assert read({**NESTED, "device": device}) == replace(READ, device_id=None)


@pytest.mark.parametrize(
    "change",
    [
        {"device": {"id": str(2**63)}}, {"device": {"id": "1" * 5_000}}, {"device": {"id": "²"}},
        {"device": {"id": -1}}, {"device": {"id": 2**63}}, {"device": {"id": 1.5}}, {"device": {"id": True}},
        {"device": {"id": "seventeen"}}, {"device": {"id": [17]}},
        {"profile": {"user_id": "a\0"}}, {"profile": {"user_id": ["a"]}}, {"profile": {"user_id": True}},
        {"device": {}, "profile": {}}, {"device": {"id": 0}, "profile": {"id": "x"}},
    ],
)  # fmt: skip
def test_a_post_back_that_names_nobody_as_expected_is_unreadable_and_not_quoted(
    change: dict[str, Any],
) -> None:
    with pytest.raises(Unreadable) as error:
        read({**NESTED, **change})
    assert "17" not in str(error.value)


@pytest.mark.parametrize(
    "content", [b"", b"time=1", b"[]", b'{"time":', b"\xff", b"[" * 100_000, b"0" * 5000]
)
def test_a_post_back_that_is_no_json_object_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable):
        read_post_back(content, RECEIVED_AT)


def test_a_person_is_in_no_repr() -> None:
    assert "17" not in repr(READ)
    assert "cust-9" not in repr(READ)
    assert "123456" not in repr(Targeting("device_id", ids(123456)))
