"""Advice on a campaign: settings that are allowed but seldom intended."""

from __future__ import annotations

from typing import Any

import pytest

from sendoff.campaign import Campaign
from sendoff.campaign.lint import advice, sms_parts

from .campaigns import DAILY, ENDLESS

EMAIL = {"from_address": 1, "subject": "Hello", "text": "Words"}
PICTURE = "https://shop.example.com/p.png"


def campaign(**fields: Any) -> Campaign:
    return Campaign.model_validate({"title": "A campaign", "channels": {"android_push": {}}, **fields})


def push(*channels: str, **message: Any) -> Campaign:
    used: dict[str, Any] = {channel: {} for channel in channels}
    if "web_push" in used:
        used["web_push"] = {"browsers": ["chrome"]}
    return campaign(message={"title": "Title", "text": "Text", **message}, channels=used)


def sms(text: str, **more: Any) -> Campaign:
    return campaign(channels={"sms": {"sender": "Shop", "text": text, **more}})


def test_a_shared_text_is_named_once_with_every_channel_that_cuts_it() -> None:
    assert advice(push("android_push", "ios_push", "web_push", text="x" * 200)) == [
        "message.text: 200 characters; ios_push shows about 178, web_push shows about 120"
    ]


def test_words_of_a_channel_of_its_own_are_named_there() -> None:
    own = {"android_push": {"title": "x" * 66}, "ios_push": {}}
    assert advice(campaign(message={"title": "Short", "text": "Text"}, channels=own)) == [
        "channels.android_push.title: 66 characters; android_push shows about 65"
    ]


@pytest.mark.parametrize(
    ("channel", "part", "most"),
    [
        ("android_push", "title", 65),
        ("android_push", "text", 240),
        ("ios_push", "title", 50),
        ("ios_push", "text", 178),
        ("web_push", "title", 50),
        ("web_push", "text", 120),
    ],
)
def test_what_a_channel_shows_in_full_is_not_too_long(channel: str, part: str, most: int) -> None:
    assert advice(push(channel, **{part: "x" * most})) == []
    assert len(advice(push(channel, **{part: "x" * (most + 1)}))) == 1


def test_translations_are_measured_too() -> None:
    translations = {"de": {"title": "x" * 51, "text": "Text"}}
    message = {"title": "Title", "text": "Text", "translations": translations}
    made = campaign(language="en", message=message, channels={"ios_push": {}})
    assert advice(made) == ["message.translations.de.title: 51 characters; ios_push shows about 50"]


def test_tags_are_not_counted_and_are_told() -> None:
    assert advice(push("ios_push", title="x" * 45 + "{{first_name}}")) == []
    assert advice(push("ios_push", title="x" * 51 + "{{first_name}}")) == [
        "message.title: 51 characters without its tags; ios_push shows about 50"
    ]


def test_a_push_that_no_platform_takes_is_named() -> None:
    assert advice(push("ios_push", payload={"a": "é" * 2043})) == []  # 4,096 bytes
    assert len(advice(push("ios_push", payload={"ab": "é" * 2043}))) == 1
    assert advice(push("ios_push", payload={"a": "é" * 2050})) == [
        "channels.ios_push: 4,110 bytes of texts, addresses and payload; a push message can have at most 4,096"
    ]


def test_subjects_are_measured_in_each_language() -> None:
    assert advice(campaign(channels={"email": {**EMAIL, "subject": "x" * 70}})) == []
    translations = {"fr": {"subject": "x" * 80, "text": "Mots"}}
    email = {**EMAIL, "subject": "x" * 71, "translations": translations}
    assert [
        line.partition(";")[0] for line in advice(campaign(language="en", channels={"email": email}))
    ] == [
        "channels.email.subject: 71 characters",
        "channels.email.translations.fr.subject: 80 characters",
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x" * 160, 1),
        ("x" * 161, 2),
        ("x" * 306, 2),
        ("x" * 307, 3),
        ("é" * 160, 1),  # in the GSM alphabet
        ("€" * 80, 1),  # counts twice, because of its escape
        ("€" * 81, 2),
        ("ê" + "x" * 69, 1),  # one letter outside of the alphabet makes all letters wide
        ("ê" + "x" * 70, 2),
        ("ê" + "x" * 133, 2),
        ("ê" + "x" * 134, 3),
        ("😀" * 35, 1),  # two units each
        ("😀" * 36, 2),
        ("x" * 160 + "{{first_name}}", 1),
    ],
)
def test_a_text_message_is_cut_by_its_alphabet(text: str, parts: int) -> None:
    assert sms_parts(text)[0] == parts
    assert (advice(sms(text)) == []) == (parts == 1)


def test_several_parts_are_told_with_the_reason_and_without_the_words() -> None:
    translations = {"de": {"text": "x" * 161}}
    made = campaign(
        language="fr", channels={"sms": {"sender": "Shop", "text": "ê" * 80, "translations": translations}}
    )
    assert advice(made) == [
        f"channels.sms.text: 80 characters, sent and charged as 2 messages; {sms_parts('ê')[1]}",
        "channels.sms.translations.de.text: 161 characters, sent and charged as 2 messages; one holds 160 characters",
    ]


@pytest.mark.parametrize(
    ("channels", "where"),
    [
        ({"web_push": {"browsers": ["firefox", "safari"]}}, ["channels.web_push.browsers"]),
        ({"web_push": {"browsers": ["chrome", "safari"]}}, []),  # Chrome shows it
        ({"web_push": {"browsers": ["chrome"], "text": "Own"}}, ["channels.web_push"]),
        ({"inbox": {"text": "Own"}, "ios_push": {}}, ["channels.inbox"]),
        ({"inbox": {"style": "card"}}, ["channels.inbox"]),
        ({"inbox": {}, "ios_push": {}}, []),
    ],
)
def test_a_picture_that_a_channel_does_not_show_is_named(channels: dict[str, Any], where: list[str]) -> None:
    shown = campaign(message={"title": "Title", "text": "Text", "picture": PICTURE}, channels=channels)
    assert [line.partition(":")[0] for line in advice(shown)] == where
    assert advice(campaign(message={"title": "Title", "text": "Text"}, channels=channels)) == []


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"channels": {"email": EMAIL}, "post_backs": {"kinds": ["open"]}}, ["post_backs.kinds"]),
        ({"channels": {"email": EMAIL}, "post_backs": {"kinds": ["delivery"]}}, ["post_backs.kinds"]),
        ({"channels": {"ios_push": {"text": "Text"}}, "post_backs": {"kinds": ["open"]}}, []),
        ({"channels": {"email": EMAIL}, "gates": {"rollout": {"missing": 5}}}, []),
        (
            {"channels": {"ios_push": {"text": "Text"}}, "gates": {"rollout": {"missing": 5}}},
            ["gates.rollout.missing"],
        ),
        ({"channels": {"email": EMAIL}, "gates": {"hold_above": {"missing": 5}}}, []),
        ({"channels": {"ios_push": {"text": "Text"}}, "gates": {"hold_above": {"refused": 5}}}, []),
        (
            {"channels": {"ios_push": {"text": "Text"}}, "gates": {"hold_above": {"missing": 5}}},
            ["gates.hold_above.missing"],
        ),
        (
            {
                "channels": {"email": EMAIL},
                "targeting": {"kind": "broadcast"},
                "gates": {"hold_above": {"missing": 5}},
            },
            ["gates.hold_above"],
        ),
        (
            {"channels": {"email": EMAIL}, "send": DAILY, "gates": {"hold_above": {"missing": 5}}},
            ["send.kind", "gates.hold_above.missing"],
        ),
    ],
)
def test_what_a_report_cannot_say_is_told(fields: dict[str, Any], where: list[str]) -> None:
    assert [line.partition(":")[0] for line in advice(campaign(**fields))] == where


EVENT = {"kind": "event", "name": "basket_left"}


@pytest.mark.parametrize(
    ("send", "is_told"),
    [
        ({"kind": "now"}, False),
        ({"kind": "once", "time": "08:00", "time_zone": "UTC"}, False),
        (DAILY, True),
        ({"kind": "triggered", "trigger": EVENT, **ENDLESS}, True),
        (
            {"kind": "triggered", "trigger": {"kind": "api"}, **ENDLESS},
            False,
        ),  # each call names its recipients
    ],
)
def test_opt_outs_do_not_reach_what_the_service_repeats(send: dict[str, Any], is_told: bool) -> None:
    told = [line for line in advice(campaign(channels={"email": EMAIL}, send=send)) if "opt-outs" in line]
    assert len(told) == is_told
    assert all(line.startswith("send.kind: ") and "stop the campaign in the service" in line for line in told)


@pytest.mark.parametrize(
    ("schedule", "send", "ends"),
    [
        ("0 9 * * *", {"time": "09:00", "time_zone": "UTC"}, "09:00 in UTC"),
        ("0 9 * * *", {"time": "09:01", "time_zone": "UTC"}, ""),
        ("0 9 * * *", {"time": "09:30", "time_zone": "Europe/Dublin"}, "10:00 in Europe/Dublin"),  # in summer
        ("0 9 * * *", {"time": "10:30", "time_zone": "Europe/Dublin"}, ""),
        ("0 9 * * *", {"time": "09:00", "time_zone": "UTC", "date": "2027-01-31"}, ""),
        ("0 9 * * *", {"time": "09:00", "time_zone": "user"}, ""),
        ("0 9 * * *", {"time": "09:00", "time_zone": "query", "default_time_zone": "UTC"}, ""),
        (None, {"time": "00:00", "time_zone": "UTC"}, ""),
    ],
)
def test_a_time_that_is_over_when_the_period_ends_is_told(
    schedule: str | None, send: dict[str, Any], ends: str
) -> None:
    made = campaign(
        channels={"email": EMAIL}, send={"kind": "once", **send}, schedule=schedule, start="2030-01-01"
    )
    told = [line for line in advice(made) if line.startswith("send.time: ")]
    assert [f"a period ends at {ends}, so" in line for line in told] == [True] * bool(ends)


def test_a_query_without_platform_is_told_where_channels_differ() -> None:
    mixed = push("ios_push", "web_push")
    [line] = advice(mixed, columns=["device_id"])
    assert line == (
        "audience: no column platform; no deliveries are reported for ios_push, so without this column the "
        "report cannot show which people are missing"
    )
    assert advice(mixed, columns=["device_id", "platform"]) == []
    assert advice(mixed) == []  # the columns are unknown
    assert advice(push("ios_push"), columns=["device_id"]) == []  # the column platform would add nothing
    assert advice(push("web_push"), columns=["device_id"]) == []
    safari = {"web_push": {"browsers": ["chrome", "safari"], "title": "Title", "text": "Text"}}
    [line] = advice(campaign(channels=safari), columns=["device_id"])
    assert "safari" in line
    broadcast = mixed.model_copy(update={"targeting": campaign_of_everybody().targeting})
    assert advice(broadcast, columns=[]) == []


def campaign_of_everybody() -> Campaign:
    return campaign(message={"text": "Text"}, targeting={"kind": "broadcast"})


def test_variants_are_advised_on_what_is_theirs() -> None:
    made = campaign(
        message={"title": "x" * 70, "text": "Text"},
        variants={
            "same": {"percent": 50},
            "longer": {"percent": 50, "message": {"text": "x" * 300}},
        },
    )
    assert advice(made) == [
        "message.title: 70 characters; android_push shows about 65",
        "variants.longer: message.text: 300 characters; android_push shows about 240",
    ]


@pytest.mark.parametrize("run", [{"schedule": "@daily"}, {"after": ["orders"]}])
def test_a_date_on_which_every_run_sends_is_named(run: dict[str, Any]) -> None:
    once = {"kind": "once", "date": "2026-12-24", "time": "10:00", "time_zone": "UTC"}
    fields = {"message": {"title": "Title", "text": "Text"}, "send": once}
    (line,) = advice(campaign(**fields, **run))
    assert line.startswith("send.date: each run before this date sends the message once more on it.")
    assert advice(campaign(**fields)) == []


def test_a_template_brings_words_that_nobody_here_knows() -> None:
    assert advice(campaign(channels={}, template={"id": 1, "channels": ["email"]})) == []


def test_tags_without_an_end_are_counted_as_text_and_soon() -> None:
    tags = "{{ first_name }}" * 30
    assert sms_parts(tags) == (1, "one holds 160 characters")
    parts, _ = sms_parts("{{" * 100_000 + "}}")
    assert parts == -(-2 * 199_998 // 153)


def test_a_column_with_the_name_of_a_tag_does_not_fill_it_in() -> None:
    made = campaign(channels={"email": {**EMAIL, "text": "Dear {{ first_name }}"}})
    (line,) = advice(made, columns=["device_id", "First_Name"])
    assert line.startswith("audience: the column first_name does not fill in {{first_name}}")
    assert advice(made, columns=["device_id", "name"]) == advice(made) == []


def test_a_tag_for_opting_out_is_explained() -> None:
    (line,) = advice(campaign(channels={"email": {**EMAIL, "text": "Stop: {{ unsubscribe_url }}"}}))
    assert "executed as a template with template.unsubscribe_url" in line
    assert advice(campaign(channels={"email": EMAIL})) == []
