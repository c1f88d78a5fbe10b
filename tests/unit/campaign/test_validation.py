"""Rules on how the fields of a campaign fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sendoff.campaign import Campaign

from .campaigns import (
    BROADCAST,
    DAILY,
    EMAIL,
    ENDLESS,
    EXECUTED,
    HALF,
    PUSH,
    PUSHED,
    QUERY_ZONE,
    SMS,
    TONIGHT,
    TWO_LANGUAGES,
    WINDOW,
    broken,
    campaign,
    problems,
    until,
)

TRIGGERED = {"kind": "triggered", "trigger": {"kind": "api"}, **ENDLESS}


def nested(groups: int) -> dict[str, Any]:
    where: dict[str, Any] = {"attribute": "tier", "value": "gold"}
    for _ in range(groups):
        where = {"any": [where, {"attribute": "age", "comparison": ">", "value": 1}]}
    return {**PUSHED, "targeting": {"kind": "conditions", "where": where}}


VERDICTS = {"kind": "verdicts", "of": "spring", "are": ["engaged"]}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        # nothing is sent
        ({}, "channels: found no channel. Use one or more of android_push, ios_push"),
        ({**PUSHED, "gates": {"least": 20, "most": 10}}, "gates.least: found 20, above most (10). Use a number of at"),
        # a channel without content
        ({"channels": {"ios_push": {}}}, "channels.ios_push: found no text. Use message.text, or"),
        ({"channels": {"inbox": {"text": "T"}}}, "channels.inbox: found no title. Use message.title, or"),
        ({"channels": {"email": {"from_address": 1, "subject": "S"}}}, "found neither html nor text"),
        # content without a channel
        ({"message": {"text": "T"}, "channels": {"email": EMAIL}}, "message: found a message that no channel shows"),
        (
            {"channels": {"email": EMAIL}, "push_expiry": {"length": 1, "unit": "days"}},
            "push_expiry: found push_expiry without a push channel",
        ),
        # languages
        (
            {"channels": {"email": {**EMAIL, "translations": {"fr": {"subject": "S", "text": "T"}}}}},
            "language: found translations without language",
        ),
        (
            {"language": "fr", "channels": {"sms": {**SMS, "translations": {"fr": {"text": "T"}}}}},
            "language: found 'fr', which is also a translation. Use another language",
        ),
        (
            {"language": "en", "channels": {"email": {**EMAIL, "translations": {"fr": {"subject": "S"}}}}},
            "channels.email.translations.fr: found no text. Use text, as in channels.email",
        ),
        (
            {
                "language": "en",
                "channels": {"email": {**EMAIL, "translations": {"fr": {"subject": "S", "text": "T", "html": "H"}}}},
            },
            "channels.email.translations.fr.html: found html, missing from channels.email",
        ),
        (
            {
                "language": "en",
                "message": {"text": "T", "translations": {"fr": {"text": "T"}}},
                "channels": {"ios_push": {}, "sms": {"sender": "S", "text": "T"}},
            },
            "channels.sms.translations: found no fr. Use every language",
        ),
        (
            {
                "language": "en",
                "message": {"text": "T", "title": "T", "translations": {"fr": {"text": "T", "title": "T"}}},
                "channels": {"ios_push": {"text": "Own"}, "web_push": {"browsers": ["chrome"]}},
            },
            "channels.ios_push.translations: found no fr",
        ),
        (
            {
                "language": "en",
                "message": {"text": "T", "title": "T", "translations": {"fr": {"text": "T", "title": "T"}}},
                "channels": {"web_push": {"browsers": ["chrome"], "text": "Own"}},
            },
            "channels.web_push: found text in a campaign with translations. Use those of message",
        ),
        (
            {
                "language": "en",
                "message": {"text": "T", "title": "T", "translations": {"fr": {"text": "T", "title": "T"}}},
                "channels": {"ios_push": {}, "web_push": {"browsers": ["chrome"], "url": "https://shop.example.com"}},
            },
            "of what web_push sets itself. Put links into the app into channels.android_push.url",
        ),
        (
            {
                "language": "en",
                "message": {
                    "text": "T",
                    "title": "T",
                    "url": "myshop://basket",
                    "translations": {"fr": {"text": "T", "title": "T"}},
                },
                "channels": {"ios_push": {}, "web_push": {"browsers": ["chrome"]}},
            },
            "Use a web address in message.url, because a browser cannot open a link into an app. Put links into",
        ),
        # addresses
        ({"message": {"text": "T", "url": "http://shop.example.com"}, "channels": {"ios_push": {}}}, "https://"),
        ({"message": {"text": "T", "picture": "shop.example.com/a b.png"}, "channels": {"ios_push": {}}}, "https://"),
        # schedules
        (
            {
                "channels": {"email": EMAIL},
                "schedule": "@daily",
                "send": DAILY,
            },
            "schedule: found '@daily' with send.kind: recurring. Use no schedule",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "send": {**DAILY, "start": "2027-02-01", "end": "2027-01-01"},
            },
            "found an end (2027-01-01) before the start (2027-02-01)",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "send": {
                    "kind": "triggered", **ENDLESS, "trigger": {"kind": "api"},
                    "window": {"earliest": "20:00", "latest": "08:00"},
                },
            },
            "found 20:00 to 08:00. Use a window that starts before it ends",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "gates": {"window": {"earliest": "20:00", "latest": "20:00", "time_zone": "UTC"}},
            },
            "found 20:00 to 20:00. Use a window that starts before it ends",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "gates": {"window": {"earliest": "08:00", "latest": "20:00", "time_zone": "qqqqqq"}},
            },
            "found 'qqqqqq'. Use an IANA time zone, such as Europe/Dublin",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "send": {
                    "kind": "triggered", **ENDLESS,
                    "trigger": {"kind": "location", "locations": [4], "when": "dwell"},
                },
            },
            "found no dwell_minutes. Use dwell_minutes with when: dwell",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "send": {"kind": "triggered", **ENDLESS, "trigger": {"kind": "event"}},
            },
            "send.triggered.trigger.event.name\n  Field required",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "send": {"kind": "triggered", **ENDLESS, "trigger": {"kind": "event", "name": ""}},
            },
            "send.triggered.trigger.event.name\n  String should have at least 1 character",
        ),
        ({"channels": {"email": EMAIL}, "encryption": 0}, "encryption\n  Input should be a valid string"),
        (
            {"template": {"id": 1, "channels": ["email"]}, "encryption": "0"},
            "encryption: found both encryption and template",
        ),
        # targeting
        ({"channels": {"email": EMAIL}, "targeting": {"kind": "saved_segments", "ids": []}}, "at least 1 item"),
        (
            {"channels": {"email": EMAIL}, "targeting": {"kind": "conditions", "where": {}}},
            "found neither all nor any. Use one of them",
        ),
        (nested(21), "targeting.where: found 21 groups of conditions inside each other. Use at most 20"),
        *(
            (
                {
                    "channels": {"email": EMAIL},
                    "targeting": {"kind": "conditions", "where": {"all": [{"attribute": "card", "value": value}]}},
                },
                found,
            )
            for value, found in (
                (2**63, "found a whole number of more than 64 bits. Use a text: put it in quotation marks"),
                (float("inf"), "found a number that is infinite or not a number. Use a finite number"),
            )
        ),
        *(
            (
                {"channels": {"webhook": {"address": "https://a.example/", "headers": {"X": f"a{end}Y: b"}}}},
                "found a line break in a header. Use one line for each header",
            )
            for end in ("\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")
        ),
        *(
            (
                {"channels": {"webhook": {"address": "https://a.example/", "headers": {name: "a"}}}},
                f"found the header {found}. Use a name of letters from A to Z, digits and hyphens",
            )
            for name, found in (
                ("X Foo", "a text of 5 characters"), ("Für", "'Für'"), ("X:", "'X:'"), ("", "''"), ("{{a}}", "'{{a}}'"),
            )
        ),
        # verdicts
        (
            {
                "template": {"id": 4, "channels": ["email"], "columns": ["name"]},
                "audience": {"source": VERDICTS},
            },
            "template.columns: found columns for recipients who come from the verdicts of another launch",
        ),
        (
            {**PUSHED, "audience": {"source": VERDICTS, "partitions": 4}},
            "audience.partitions: found partitions with source.kind: verdicts",
        ),
        # templates
        (
            {"template": {"id": 4, "channels": ["email"]}, "channels": {"email": EMAIL}},
            "channels: found both channels and template. Use template.channels",
        ),
        (
            {"template": {"id": 4, "channels": ["email"]}, "message": {"text": "T"}},
            "message: found both message and template",
        ),
        (
            {"template": {"id": 4, "channels": ["email"]}, "targeting": {"kind": "broadcast"}},
            "targeting: found kind: broadcast with a template",
        ),
        (
            {"template": {"id": 4, "channels": ["email"]}, "send": TONIGHT},
            "send: found kind: once with a template",
        ),
        (
            {"template": {"id": 4, "channels": ["email"], "columns": ["stop"], "unsubscribe_url": "stop"}},
            "template.unsubscribe_url: found stop, which has other values too. Use another name",
        ),
        (
            {"template": {**EXECUTED["template"], "unsubscribe_url": "stop"}, "transactional": "a receipt"},
            "found an address to opt out in a transactional campaign without topic. Use topic too, because",
        ),
        (
            {
                **EXECUTED,
                "transactional": "a receipt",
                "variants": {"a": HALF, "b": {**HALF, "template": {**EXECUTED["template"], "unsubscribe_url": "stop"}}},
            },
            "variants.b.template.unsubscribe_url: found an address to opt out in a transactional campaign",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], problem: str) -> None:
    assert problem in broken(**fields)


def test_an_address_to_opt_out_stops_the_campaign_that_shows_it() -> None:
    template = {**EXECUTED["template"], "unsubscribe_url": "stop"}
    assert "account" in campaign(template=template).suppression_scopes()
    made = campaign(template=template, transactional="a receipt", topic="receipts")
    assert "topic:receipts" in made.suppression_scopes()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        # variants
        ({**PUSHED, "variants": {"a": {"percent": 100}}}, "variants: found one variant. Use two or more, or none"),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {"percent": 49.9}}},
            "variants: found percents that add up to 99.9. Use percents that add up to 100",
        ),
        (
            {**PUSHED, "variants": {"a": HALF, "Control group": HALF}},
            "variants.Control group: found the name of the holdout in comparisons. Use another name",
        ),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {**HALF, "channels": {"sms": SMS}}}},
            "variants.b.channels.sms: found sms, which the campaign does not use. Use the campaign's channels",
        ),
        (
            {"channels": {"sms": SMS}, "variants": {"a": HALF, "b": {**HALF, "message": {"text": "W"}}}},
            "variants.b.message: found a message that no channel shows",
        ),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {**HALF, "template": EXECUTED["template"]}}},
            "variants.b.template: found a template in a campaign without one. Use template in both, or in neither",
        ),
        (
            {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "template": {"id": 5, "channels": ["sms"]}}}},
            "variants.b.template.channels: found sms. Use email, as in the campaign",
        ),
        (
            {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "channels": {"sms": SMS}}}},
            "variants.b.channels: found both channels and template. Use template.channels",
        ),
        (
            {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "message": {"text": "T"}}}},
            "variants.b.message: found both message and template",
        ),
        (
            {**TWO_LANGUAGES, "variants": {"a": HALF, "b": {**HALF, "message": {"text": "Other"}}}},
            "variants.b: found texts in en. Use en, fr, as in the campaign",
        ),
        (
            {
                **TWO_LANGUAGES,
                "variants": {
                    "a": HALF,
                    "b": {**HALF, "message": {"text": "Other", "translations": {"fr": {"text": "Autre"}}}},
                },
            },
            "variants.b.message.translations.fr: found no title. Use title, as in message",
        ),
        (
            {
                "message": {"title": "T", "text": "W"},
                "channels": {"inbox": {}},
                "send": DAILY,
                "variants": {"a": HALF, "b": {**HALF, "channels": {"inbox": {"keep": until(None)}}}},
            },
            "variants.b.channels.inbox.keep.until: found no date with send.kind: recurring",
        ),
        # recipients chosen by the service
        *(
            ({**BROADCAST, **fields}, f"{path}: found {path.rpartition('.')[2]} with targeting.kind: broadcast. ")
            for path, fields in {
                "audience.exclude": {"audience": {"exclude": [{"kind": "list", "name": "complaints"}]}},
                "audience.priority": {"audience": {"priority": {"rank": 1}}},
                "audience.cap": {"audience": {"cap": {"messages": 3, "days": 7}}},
                "audience.holdout": {"audience": {"holdout": {"percent": 5}}},
                "variants": {"variants": {"a": HALF, "b": HALF}},
                "gates.least": {"gates": {"least": 2}},
                "gates.most": {"gates": {"most": 2}},
                "gates.change": {"gates": {"change": 10}},
                "gates.unusable": {"gates": {"unusable": 10}},
                "gates.window.time_zone": {"gates": {"window": WINDOW}},
                "gates.rollout": {"gates": {"rollout": {}}},
                "send.time_zone": {"send": {"kind": "once", "time": "20:00", **QUERY_ZONE}},
            }.items()
        ),
        (
            {
                "language": "en",
                "channels": {"sms": {**SMS, "translations": {"fr": {"text": "T"}}}},
                "targeting": {"kind": "saved_segments", "ids": [4]},
            },
            "channels.sms.translations: found translations sent separately with targeting.kind: saved_segments",
        ),
        # the start of the DAG
        (
            {**PUSHED, "schedule_time_zone": "Europe/Dublin"},
            "schedule_time_zone: found schedule_time_zone without schedule. Use schedule_time_zone with schedule",
        ),
        # days
        (
            {**PUSHED, "start": "2027-02-01", "send": {**TONIGHT, "date": "2027-01-31"}},
            "send.date: found 2027-01-31, before start (2027-02-01). Use a date on or after start",
        ),
        (
            {**PUSHED, "start": "2027-02-01", "send": {**DAILY, "end": "2027-01-31"}},
            "send.end: found 2027-01-31, before start (2027-02-01)",
        ),
        (
            {**PUSHED, "start": "2027-02-01", "push_expiry": until("2027-01-31")},
            "push_expiry.until.date: found 2027-01-31, before start (2027-02-01)",
        ),
        (
            {
                "message": {"title": "T", "text": "W"},
                "channels": {"inbox": {"keep": until("2026-11-19")}},
                "send": DAILY,
            },
            "channels.inbox.keep.until.date: found 2026-11-19, before send.start (2026-11-20)",
        ),
        (
            {**PUSHED, "send": DAILY, "push_expiry": until(None)},
            "push_expiry.until: found no date with send.kind: recurring. Use a date, or length and unit",
        ),
        (
            {**PUSHED, "send": {"kind": "now", "own_hours": {}}, "push_expiry": until(None)},
            "push_expiry.until: found no date with send.own_hours. Use a date, or length and unit",
        ),
        *(
            (
                {**PUSHED, "send": {**send, "start": "2026-12-07", "end": "2026-12-08", "days": ["sunday"]}},
                "send.days: found sunday with send.start: 2026-12-07 and send.end: 2026-12-08. Use a day of the week",
            )
            for send in (DAILY, TRIGGERED)
        ),
        # deadlines that the service can read
        (
            {**PUSHED, "push_expiry": until("2038-01-20")},
            "push_expiry.until.date: found 10:00 on 2038-01-20 in UTC. Use a moment up to 2038-01-19 03:14 UTC",
        ),
        (
            {**PUSHED, "push_expiry": {"until": {"time": "03:15", "time_zone": "UTC", "date": "2038-01-19"}}},
            "push_expiry.until.date: found 03:15 on 2038-01-19 in UTC. Use a moment up to 2038-01-19 03:14 UTC",
        ),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {**HALF, "channels": {"inbox": {"keep": until("8999-12-31")}}}}},
            "variants.b.channels.inbox.keep.until.date: found 10:00 on 8999-12-31 in UTC. Use a moment up to 2038",
        ),
        # waves and zones
        (
            {**PUSHED, "send": TONIGHT, "gates": {"rollout": {}}},
            "gates.rollout: found rollout with send.kind: once. Use send.kind: now, because each wave waits",
        ),
        (
            {**PUSHED, "gates": {"rollout": {}, "lateness": {"length": 60, "unit": "minutes"}}},
            "gates.rollout.wait: found 2 waits of 30 minutes with gates.lateness of 60 minutes. Use a shorter time",
        ),
        (
            {
                **PUSHED,
                "send": {"kind": "now", "own_hours": {}},
                "gates": {
                    "rollout": {"shares": [10], "wait": {"length": 3, "unit": "days"}},
                    "lateness": {"length": 1, "unit": "days"},
                },
            },
            "gates.rollout.wait: found 1 wait of 3 days with gates.lateness of 1 day. Use a shorter time",
        ),
        (
            {**PUSHED, "gates": {"window": {"earliest": "09:00", "latest": "20:00", "time_zone": "query"}}},
            "found no default_time_zone. Use default_time_zone with time_zone: query, and only there",
        ),
        (
            {**PUSHED, "gates": {"window": {**WINDOW, "time_zone": "Asia/Tokyo"}}},
            "found default_time_zone with time_zone: Asia/Tokyo. Use default_time_zone with time_zone: query",
        ),
        (
            {
                **PUSHED,
                "gates": {"window": WINDOW},
                "send": {"kind": "once", "time": "20:00", "time_zone": "query", "default_time_zone": "UTC"},
            },
            "gates.window.default_time_zone: found Asia/Tokyo with send.default_time_zone: UTC. Use the same",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_people_variants_and_days_must_fit_together(
    fields: dict[str, Any], problem: str
) -> None:
    assert problem in broken(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {**PUSHED, "variants": {"a": {"percent": 33.3}, "b": {"percent": 33.3}, "c": {"percent": 33.4}}},
        {**PUSHED, "variants": {"a": {"percent": 0.1}, "b": {"percent": 0.2}, "c": {"percent": 99.7}}},
        {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "template": {"id": 5, "channels": ["email"]}}}},
        {**BROADCAST, "approval": {"needed": "always"}, "gates": {"lateness": {"length": 6, "unit": "hours"}}},
        {**BROADCAST, "gates": {"window": {"earliest": "09:00", "latest": "20:00", "time_zone": "Asia/Tokyo"}}},
        {**PUSHED, "schedule": "@daily", "schedule_time_zone": "Europe/Dublin", "start": "2027-01-01"},
        {**PUSHED, "start": "2027-01-01", "send": {**TONIGHT, "date": "2027-01-01"}},
        {**PUSHED, "gates": {"window": WINDOW, "rollout": {"shares": [5]}}},
        {**PUSHED, "gates": {"rollout": {}, "lateness": {"length": 61, "unit": "minutes"}}},
        {**PUSHED, "gates": {"rollout": {"wait": {"length": 3, "unit": "days"}}}},
        {**PUSHED, "send": DAILY, "push_expiry": until("2026-12-24")},
        {**PUSHED, "send": {**DAILY, "start": "2026-12-07", "end": "2026-12-08", "days": ["tuesday"]}},
        {**PUSHED, "send": {**DAILY, "days": ["sunday"]}},
        nested(20),
        {**PUSHED, "push_expiry": until(None)},
        {**PUSHED, "push_expiry": {"until": {"time": "03:14", "time_zone": "UTC", "date": "2038-01-19"}}},
        {**PUSHED, "push_expiry": {"until": {"time": "22:14", "time_zone": "America/New_York", "date": "2038-01-18"}}},
        {**PUSHED, "audience": {"source": VERDICTS}},
        {**EXECUTED, "audience": {"source": VERDICTS}},
        {**PUSHED, "variants": {"decide": HALF, "plain": HALF}},
        {"channels": {"email": EMAIL, "sms": SMS}, "targeting": {"kind": "broadcast"}},
        {
            **TWO_LANGUAGES,
            "variants": {
                "a": HALF,
                "b": {**HALF, "message": {"text": "Other", "translations": {"fr": {"title": "T", "text": "M"}}}},
            },
        },
    ],
)  # fmt: skip
def test_what_fits_together_is_a_campaign_also_after_the_ledger_kept_it(fields: dict[str, Any]) -> None:
    made = campaign(**fields)
    assert Campaign.frozen(made.model_dump_json()) == made


def test_a_broken_rule_of_a_variant_is_told_at_its_line_though_its_name_has_dots(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        PUSH
        + "variants:\n  v1.0: {percent: 50}\n  v1.1:\n    percent: 50\n    channels: {inbox: {title: T}}\n",
    )
    [problem] = found
    assert problem.startswith(
        "campaign.yaml:10: variants.v1.1.channels.inbox: found inbox, which the campaign"
    )


@pytest.mark.rule("2.10/dwell_time", "8/dwell_time", side="client")
def test_dwell_time_is_1_to_30_minutes() -> None:
    def staying(minutes: int) -> dict[str, Any]:
        trigger = {"kind": "location", "locations": [4], "when": "dwell", "dwell_minutes": minutes}
        send = {"kind": "triggered", **ENDLESS, "trigger": trigger}
        return {"channels": {"email": EMAIL}, "send": send}

    assert "greater than or equal to 1" in broken(**staying(0))
    assert "less than or equal to 30" in broken(**staying(31))
    assert [campaign(**staying(minutes)).send.kind for minutes in (1, 30)] == ["triggered"] * 2


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        (
            {"alert_after": {"length": 36_500, "unit": "days"}},
            {"alert_after": {"length": 36_501, "unit": "days"}},
        ),
        ({"gates": {"failures": {"of": 3}}}, {"gates": {"failures": {"of": 2}}}),
        ({"gates": {"failures": {"in_doubt": 20}}}, {"gates": {"failures": {"in_doubt": 21}}}),
        ({"gates": {"rollout": {"shares": [1, 99]}}}, {"gates": {"rollout": {"shares": [1, 100]}}}),
        ({"schedule": f"10 9 * * 1{',1' * 35}"}, {"schedule": f"0 9 * * 1{',1' * 36}"}),
        (
            {"schedule": "@daily", "start": "2026-11-20", "send": {**TONIGHT, "date": "2026-11-20"}},
            {"schedule": "@daily", "start": "2026-11-21", "send": {**TONIGHT, "date": "2026-11-20"}},
        ),
        (
            {"send": {**DAILY, "end": "2026-11-20"}},
            {"send": {**DAILY, "end": "2026-11-19"}},
        ),
        (
            {"targeting": {"kind": "broadcast"}, "gates": {"least": 1}},
            {"targeting": {"kind": "broadcast"}, "gates": {"least": 2}},
        ),
    ],
)
def test_a_value_at_its_limit_is_allowed_and_no_more(fields: dict[str, Any], more: dict[str, Any]) -> None:
    campaign(**{**PUSHED, **fields})
    assert broken(**{**PUSHED, **more})


def test_channels_beside_a_template_are_one_mistake() -> None:
    variants = {"a": HALF, "b": {**HALF, "channels": {"sms": SMS}}}
    assert broken(**EXECUTED, variants=variants).count("found") == 1


def test_every_broken_rule_is_told_at_its_own_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "title: A\nchannels:\n  inbox:\n  sms: {sender: S, text: T, translations: {fr: {text: T}}}\n",
    )
    assert [each.split(": found")[0] for each in found] == [
        "campaign.yaml:1",
        "campaign.yaml:3: channels.inbox",
        "campaign.yaml:3: channels.inbox",
    ]


def test_a_launch_that_was_frozen_with_other_headers_is_still_read() -> None:
    call = {"address": "https://a.example/", "headers": {"X-Shop ": "ie "}}
    frozen = campaign(channels={"webhook": call}).model_dump_json()
    assert '"X-Shop":"ie"' in frozen
    webhook = Campaign.frozen(
        frozen.replace("X-Shop", "X Für").replace('"ie"', r'"a\u2028b"')
    ).channels.webhook
    assert webhook
    assert webhook.headers == {"X Für": "a\u2028b"}


def test_a_launch_that_was_frozen_with_a_former_language_is_still_read() -> None:
    frozen = campaign(**TWO_LANGUAGES).model_dump_json().replace('"fr"', '"bh"')
    assert Campaign.frozen(frozen).languages() == ("en", "bh")
