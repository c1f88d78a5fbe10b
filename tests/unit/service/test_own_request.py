"""Requests that someone else wrote: reading their JSON, and the bytes of the request."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sendoff.campaign import Channel
from sendoff.errors import CampaignError
from sendoff.service.wire import (
    LARGEST_BODY,
    FieldNames,
    OwnBody,
    PostBackAddresses,
    completed,
    read_own_body,
)

from ...examples import examples

ADDRESSES = PostBackAddresses("https://events.example.com/d", "https://events.example.com/o")
SECRET = "zoe@example.com"


def created(names: FieldNames | None = None, **members: Any) -> OwnBody:
    return read_own_body({"title": "Spring", **members}, "create", names or FieldNames())


def executed(names: FieldNames | None = None, **members: Any) -> OwnBody:
    return read_own_body({"id": 7, **members}, "execute", names or FieldNames())


def test_the_bytes_of_a_mapping_keep_its_order_numbers_and_texts() -> None:
    own = created(b=1.0, a=12345678901234567890123, c={"z": "Zoë <&> \u2028", "y": [None, True, -0.5]})
    assert (
        own.encoded
        == (
            '{"title":"Spring","b":1.0,"a":12345678901234567890123,"c":{"z":"Zoë <&> \u2028","y":[null,true,-0.5]}}'
        ).encode()
    )


def test_the_bytes_of_a_text_stay_as_they_are() -> None:
    text = ' {"title" : "Spr\\u00edng",\n "rate": 1.50e+2, "n": 1E400 } \n'
    assert read_own_body(text, "create", FieldNames()).encoded == text.strip().encode()
    assert read_own_body(text.encode(), "create", FieldNames()).encoded == text.strip().encode()


def test_only_missing_members_are_added_and_at_the_end() -> None:
    body = b'{"title":"Spring", "n":1.50 }'
    assert completed(body, ADDRESSES, "token") == (
        b'{"title":"Spring", "n":1.50 ,"apptoken":"token","webhook_delivery":"https://events.example.com/d",'
        b'"webhook_open":"https://events.example.com/o"}'
    )
    assert completed(body, PostBackAddresses(), None) == body
    own = b'{"apptoken":"mine","webhook_delivery":null,"webhook_open":"https://me.example.com"}'
    assert completed(own, ADDRESSES, "token") == own


JSON = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=12,
)
OTHERS = some.dictionaries(
    some.text(min_size=1).filter(lambda name: name not in _READ), JSON, min_size=1, max_size=6
)
_READ = {
    "title", "apptoken", "webhook_delivery", "webhook_open", "broadcast", "send_type", "ios_push_sandbox", "device_ids",
    "device_tokens", "device_uuids", "external_ids", "web_push_chrome", "web_push_firefox", "web_push_opera",
    "web_push_safari", "target", "target_by", "target_with_params", *Channel,
}  # fmt: skip


@pytest.mark.proof
@settings(max_examples=examples(200))
@given(
    body=OTHERS,
    own=some.sets(some.sampled_from(["apptoken", "webhook_delivery", "webhook_open"])),
    as_text=some.booleans(),
)
def test_what_is_sent_is_the_given_json_and_the_added_members(
    body: dict[str, Any], own: set[str], as_text: bool
) -> None:
    given_body = {**dict.fromkeys(sorted(own), "mine"), **body}
    body_or_text = json.dumps(given_body, indent=2) if as_text else given_body
    encoded = read_own_body(body_or_text, "execute", FieldNames()).encoded
    sent = completed(encoded, ADDRESSES, "token")
    added = {"apptoken": "token", "webhook_delivery": ADDRESSES.delivery, "webhook_open": ADDRESSES.open}
    expected = {**given_body, **{name: value for name, value in added.items() if name not in own}}
    assert list(json.loads(sent).items()) == list(expected.items())
    assert sent.startswith(encoded[:-1])


def test_the_title_the_channels_and_the_missing_addresses_are_read() -> None:
    own = created(
        android_push=1, email=True, sms=0, ios_push_sandbox=1, web_push_s=1, webhook_open="https://x.example"
    )
    assert own.title == "Spring"
    assert own.channels == (Channel.ANDROID_PUSH, Channel.IOS_PUSH, Channel.EMAIL)
    assert own.post_backs == ("delivery",)
    named = created(FieldNames({"web_push_safari": "safari_flag"}), safari_flag=1)
    assert named.channels == (Channel.WEB_PUSH,)
    assert executed(android_push=1).channels == ()


@pytest.mark.parametrize(
    ("members", "column", "people"),
    [
        ({"device_ids": [3, 1, 3]}, "device_id", [1, 3]),
        ({"device_ids": ["17"]}, "device_id", [17]),
        ({"device_tokens": ["b", "a"]}, "device_token", ["a", "b"]),
        ({"device_uuids": ["u"]}, "device_uuid", ["u"]),
        ({"external_ids": ["x", "x"], "broadcast": 0}, "external_id", ["x"]),
    ],
)
def test_one_list_of_a_creation_names_the_recipients(members: Any, column: str, people: list[Any]) -> None:
    audience = created(**members).audience
    assert audience is not None
    assert audience.identified_by == column
    assert list(audience.identifiers.values()) == people
    assert audience.rows == sum(len(each) for each in members.values() if isinstance(each, list))
    assert audience.rows == len(people) + sum(audience.dropped.values())


@pytest.mark.parametrize(
    ("members", "column", "people"),
    [
        ({"target": [3, 1], "target_by": "id"}, "device_id", [1, 3]),
        ({"target_with_params": {"17": {"name": "Ann"}}, "target_by": "id"}, "device_id", [17]),
        ({"target": ["c-1"], "target_by": "user_id"}, "user_id", ["c-1"]),
        ({"target": ["c-1"], "target_by": "external_id"}, "external_id", ["c-1"]),
    ],
)
def test_the_targets_of_an_execution_are_the_recipients(members: Any, column: str, people: list[Any]) -> None:
    audience = executed(**members).audience
    assert audience is not None
    assert (audience.identified_by, list(audience.identifiers.values())) == (column, people)


def test_the_connection_can_spell_the_lists_differently() -> None:
    names = FieldNames(
        {"device_ids": "devices", "target_by": "by", "target": "to", "target_by_user_id": "user"}
    )
    assert created(names, devices=[1]).audience is not None
    assert created(names, device_ids=[1]).audience is None
    assert executed(names, to=["a"], by="user").audience is not None


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"broadcast": 1, "device_ids": [1]},
        {"conditions": {"operator": "AND"}, "device_ids": [1]},
        {"segment_ids": [4], "device_ids": [1]},
        {"device_ids": [1], "external_ids": ["x"]},
        {"people": [1, 2]},
    ],
)
def test_otherwise_the_service_chooses_the_recipients_of_a_creation(members: Any) -> None:
    assert created(**members).audience is None


@pytest.mark.parametrize(
    "members",
    [
        {"target": [1]},
        {"target": [1], "target_by": "loyalty_number"},
        {"target": [1], "target_with_params": {"1": {}}, "target_by": "id"},
        {"target": [1], "target_by": "id", "conditions": {"operator": "AND"}},
    ],
)
def test_otherwise_the_service_chooses_the_recipients_of_an_execution(members: Any) -> None:
    assert executed(**members).audience is None


ONCE = {"send_type": 1, "send_date": "2026-03-02", "send_time": "09:30"}


def test_without_a_send_type_the_service_sends_at_once() -> None:
    for own in (created(), created(send_type=0)):
        assert (own.sends_at, own.is_repeated) == (None, False)


def test_a_once_off_without_a_zone_counts_as_sent_when_the_last_zone_on_earth_reaches_its_time() -> None:
    assert created(**ONCE, timezone="Europe/Dublin").sends_at == datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    for unknown in ({}, {"timezone": "Europe/Nowhere"}, {"timezone": 1}):
        assert created(**ONCE, **unknown).sends_at == datetime(2026, 3, 2, 21, 30, tzinfo=UTC)


def test_a_recurring_or_triggered_request_is_repeated() -> None:
    assert created(send_type=2).is_repeated
    assert created(trigger=3).is_repeated


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "body: found an empty object. Use a JSON object"),
        ("", "body: found text that is not valid JSON. Write one JSON object"),
        (f'{{"title": "{SECRET}"', "body: found text that is not valid JSON"),
        (f'["{SECRET}"]', "body: found a list. Use a JSON object"),
        ([SECRET], "body: found a list. Use a JSON object: a dict, or JSON as text"),
        (b"\xff", "body: found text that is not valid JSON"),
        ("\ud800", "body: found text that is not valid Unicode. Use UTF-8"),
        ('{"n": NaN}', "body: found text that is not valid JSON"),
        ("[" * 200_000, "body: found text that is not valid JSON"),
        (f'{{"a": {{"{SECRET}": 1, "{SECRET}": 2}}}}', "body: found an object with the same name twice"),
        ({1: SECRET}, "body: found a name that is a number. Use text"),
        ({"n": math.inf}, "body.n: found a value that contains itself, or a number that is not finite"),
        ({"n": circle}, "body.n: found a value that contains itself, or a number that is not finite"),
        ({"day": datetime(2026, 3, 1, tzinfo=UTC)}, "body.day: found a value that JSON does not have"),
        ({"text": "\ud800"}, "body.text: found text that is not valid Unicode"),
        ({"title": 7}, "body.title: found a number. Use text"),
        ({"apptoken": [SECRET]}, "body.apptoken: found a list. Use text"),
        ({"webhook_open": {}}, "body.webhook_open: found an object. Use text"),
        ({"email": SECRET}, "body.email: found text. Use 0 or 1"),
        ({"broadcast": 2}, "body.broadcast: found a number other than 0 and 1. Use 0 or 1"),
        ({"send_type": "1"}, "body.send_type: found text. Use 0, 1 or 2"),
        ({"send_type": 3}, "body.send_type: found a number. Use 0, 1 or 2"),
        ({"send_type": -1}, "body.send_type: found a number. Use 0, 1 or 2"),
        (
            {"send_type": 1, "send_date": SECRET},
            "body.send_type: found 1 without a valid send_date and send_time",
        ),
        *(
            (
                {"send_type": 1, "send_date": day, "send_time": hour},
                "body.send_type: found 1 without a valid send_date and send_time",
            )
            for day, hour in (
                ("2026-W10-1", "09:30"),
                ("2026-03-02", "T0930"),
                ("2026-03-02", "09:30:15"),
                ("2026-03-02", "09:30+05:00"),
                ("9999-12-31", "13:00"),  # in the year 10000 in UTC
            )
        ),
        ({"device_ids": SECRET}, "body.device_ids: found text. Use a list of identifiers"),
        ({"device_ids": []}, "body.device_ids: found no identifiers. Add at least one"),
        ({"device_ids": [1, SECRET]}, "body.device_ids: identifier 2 is text. Use a whole number from 1"),
        ({"device_ids": [2**63]}, "body.device_ids: identifier 1 is a number. Use a whole number from 1"),
        ({"device_ids": [None]}, "body.device_ids: identifier 1 is null. Use a whole number from 1"),
        ({"device_ids": [1.5]}, "body.device_ids: identifier 1 is a number. Use a whole number from 1"),
        ({"device_ids": [[1]]}, "body.device_ids: identifier 1 is a list. Use a whole number from 1"),
        ({"device_ids": [{}]}, "body.device_ids: identifier 1 is an object. Use a whole number from 1"),
        ({"device_ids": [0]}, "body.device_ids: identifier 1 is a number. Use a whole number from 1"),
        ({"device_ids": ["²"]}, "body.device_ids: identifier 1 is text. Use a whole number from 1"),
        ({"device_ids": ["1" * 5_000]}, "body.device_ids: identifier 1 is text. Use a whole number from 1"),
        ({"device_ids": [True]}, "body.device_ids: identifier 1 is true or false. Use a whole number"),
        (
            {"external_ids": [SECRET, 7]},
            "body.external_ids: identifier 2 is a number. Use text that is not blank",
        ),
        ({"external_ids": [" "]}, "body.external_ids: identifier 1 is text. Use text that is not blank"),
        ({"external_ids": ["a", SECRET * 200]}, "body.external_ids: identifier 2 is text. Use text that is"),
        ({"external_ids": ["ann", "bob "]}, "body.external_ids: identifier 2 is text. Use text that is not"),
        ({"external_ids": ["a\0b"]}, "body.external_ids: identifier 1 is text. Use text that is not blank"),
    ],
)
def test_an_error_says_what_is_wrong_and_where_and_quotes_nothing(body: Any, message: str) -> None:
    with pytest.raises(CampaignError) as error:
        read_own_body(body, "create", FieldNames())
    assert str(error.value).startswith(message)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"target": {}, "target_by": "id"}, "body.target: found an object. Use a list of identifiers"),
        (
            {"target_with_params": [SECRET], "target_by": "id"},
            "body.target_with_params: found a list. Use an object",
        ),
        ({"target_by": 7}, "body.target_by: found a number. Use text"),
        (
            {"target_with_params": {SECRET: {}}, "target_by": "id"},
            "body.target_with_params: identifier 1 is text",
        ),
    ],
)
def test_an_error_in_an_execution_quotes_nothing(members: Any, message: str) -> None:
    with pytest.raises(CampaignError) as error:
        executed(**members)
    assert str(error.value).startswith(message)
    assert SECRET not in str(error.value)


def test_a_body_has_a_maximum_size() -> None:
    fits = "x" * (LARGEST_BODY - len('{"title":""}'))
    assert len(read_own_body({"title": fits}, "create", FieldNames()).encoded) == LARGEST_BODY
    with pytest.raises(
        CampaignError, match=r"body: found 16,777,217 bytes of JSON; at most 16,777,216 are allowed"
    ):
        read_own_body({"title": fits + "x"}, "create", FieldNames())


def test_the_repr_holds_no_texts_or_recipients() -> None:
    assert SECRET not in repr(created(title=SECRET, external_ids=[SECRET]))
