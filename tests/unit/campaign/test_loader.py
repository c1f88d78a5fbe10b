"""Reading campaign folders, and the messages about their mistakes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from sendoff.campaign import Campaign, Channel, campaign_schema, check_campaign, load_campaign, model
from sendoff.campaign.audience_rules import AudienceRules, ListExclusion
from sendoff.campaign.schedule import Once
from sendoff.errors import CampaignError

from .campaigns import EMAIL, EVENING, PUSH, SECRET_WORDS, SENT, campaign, load, problems, write

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "dags/campaigns").glob("*/campaign.yaml"))


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that only root may enter, while the test runs as another user."""
    user, home = os.geteuid(), Path(tempfile.mkdtemp(dir="/tmp"))  # only root may enter pytest's own folders
    folder = home / "back_in_stock"
    write(folder, PUSH).chmod(0)
    home.chmod(0o755)
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)
    shutil.rmtree(home)


def test_a_folder_is_read_with_its_name_its_query_and_its_defaults(tmp_path: Path) -> None:
    folder = load(tmp_path, PUSH)

    assert (folder.name, folder.audience_sql) == ("back_in_stock", "SELECT device_id FROM devices")
    assert folder.campaign.title == "Back in stock"
    assert folder.campaign.channels_used() == (Channel.ANDROID_PUSH,)
    assert folder.campaign.targeting.kind == "query"
    assert folder.campaign.send.kind == "now"
    assert folder.campaign.post_backs.kinds == ("delivery", "open")
    assert (folder.campaign.send_mode, folder.campaign.segment_size) == ("create", 10_000)


def test_a_sound_folder_is_read_without_the_schema_which_takes_long_to_make(tmp_path: Path) -> None:
    model._schema.cache_clear()
    load(tmp_path, PUSH)
    assert model._schema.cache_info().currsize == 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_campaigns_of_the_tree_are_sound_and_the_same_after_the_ledger_kept_them(
    tmp_path: Path, file: Path
) -> None:
    resolved = load(tmp_path, file.read_text()).campaign.resolved(EVENING)
    assert Campaign.frozen(resolved.model_dump_json()) == resolved


def test_what_a_launch_froze_is_read_though_its_first_period_resolves_to_a_day_before_start() -> None:
    made = campaign(
        **SENT,
        schedule="0 */6 * * *",
        schedule_time_zone="Asia/Tokyo",
        start="2026-06-01",
        send={"kind": "once", "time": "23:00", "time_zone": "America/Los_Angeles"},
    )
    first_period_ends = datetime(2026, 5, 31, 21, tzinfo=UTC)  # 06:00 on 1 June in Tokyo
    resolved = made.resolved(first_period_ends)
    assert isinstance(resolved.send, Once)
    assert resolved.send.date == date(2026, 5, 31)
    assert Campaign.frozen(resolved.model_dump_json()) == resolved


def test_a_rule_that_is_younger_than_a_launch_is_not_asked_of_it() -> None:
    old = campaign(**SENT).model_copy(update={"schedule_time_zone": "Europe/Dublin"})
    with pytest.raises(CampaignError, match="schedule_time_zone without schedule"):
        check_campaign(old)
    assert Campaign.frozen(old.model_dump_json()) == old


@pytest.mark.parametrize(
    ("changed", "place"),
    [({"shape": SECRET_WORDS}, "shape"), ({"title": 7}, "title"), ({"send": {"kind": "later"}}, "send")],
)
def test_what_another_version_froze_is_an_error_of_sendoffs_own(changed: dict[str, Any], place: str) -> None:
    definition = {**campaign(**SENT).model_dump(mode="json"), **changed}
    with pytest.raises(CampaignError, match=rf"frozen by another version .*: {place}\.") as error:
        Campaign.frozen(json.dumps(definition))
    assert SECRET_WORDS not in str(error.value)


@pytest.mark.parametrize("definition", ["", "[]", "{"])
def test_a_definition_that_is_none_is_an_error_of_sendoffs_own(definition: str) -> None:
    with pytest.raises(CampaignError, match="all of it"):
        Campaign.frozen(definition)


def test_nothing_reads_the_definition_of_a_launch_as_if_it_were_a_file() -> None:
    sources = [file for folder in ("include", "plugins", "dags") for file in (ROOT / folder).rglob("*.py")]
    reading = [file.name for file in sources if "Campaign.model_validate_json(" in file.read_text("utf-8")]
    assert len(sources) > 50
    assert reading == []


def test_there_are_campaigns_in_the_tree() -> None:
    assert {"lapsed_buyers", "evening_offer"} <= {file.parent.name for file in FILES}


def test_the_schema_knows_every_field_and_offers_the_kinds(tmp_path: Path) -> None:
    schema = campaign_schema()
    assert set(schema["properties"]) == set(Campaign.model_fields) - {"rules"}
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]["send"]["discriminator"]["mapping"]) == {
        "now",
        "once",
        "recurring",
        "triggered",
    }
    assert "null" in str(schema["$defs"]["Channels"]["properties"]["android_push"])


def test_words_for_people_are_in_no_repr() -> None:
    whole = campaign(
        message={"text": SECRET_WORDS},
        channels={"ios_push": {}, "email": {**EMAIL, "subject": SECRET_WORDS, "html": SECRET_WORDS}},
        targeting={"kind": "conditions", "where": {"all": [{"attribute": "email", "value": SECRET_WORDS}]}},
    )
    assert "medicine" not in repr(whole)
    assert "medicine" not in str(whole.channels.email)


@pytest.mark.parametrize(
    "value",
    ["no", "on", "18:30", "2027-01-31", "0x1F", "1_000", "012", ".inf", "1e3x"],
)
def test_yaml_does_not_make_something_else_of_a_word(tmp_path: Path, value: str) -> None:
    assert load(tmp_path, PUSH.replace("Back in stock", value)).campaign.title == value


# Mistakes, each with its line, its path, the value found and the values allowed


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tilte: x", "campaign.yaml:6: tilte: 'tilte' is not a field (did you mean 'title'?). Use "),
        ("title: Twice", "campaign.yaml:6: title: found 'title' twice, first on line 2. Use it once"),
        ("segment_size: many", "campaign.yaml:6: segment_size: found 'many'. Use a whole number"),
        ('segment_size: "10"', "campaign.yaml:6: segment_size: found '10'. Use a whole number"),
        ("segment_size: true", "campaign.yaml:6: segment_size: found true. Use a whole number"),
        ("segment_size: 0", "campaign.yaml:6: segment_size: found 0. Use a number greater than or equal to 1"),
        ("tags: sale", "campaign.yaml:6: tags: found 'sale'. Use a list"),
        ("start: 05.01.2027", "campaign.yaml:6: start: found '05.01.2027'. Use a date as YYYY-MM-DD"),
        ("start: 2027-02-30", "campaign.yaml:6: start: found '2027-02-30'. Use a date as YYYY-MM-DD"),
        ("start: 5", "campaign.yaml:6: start: found 5. Use a date"),
        ("schedule: daily", "campaign.yaml:6: schedule: found 'daily' (did you mean '@daily'?). Use a cron exp"),
        ("schedule: at noon", "campaign.yaml:6: schedule: found 2 fields. Use a cron expression of five fields"),
        ("language: bh", "campaign.yaml:6: language: found 'bh'. Use a language of two letters (ISO 639-1)"),
        ("language: gb", "campaign.yaml:6: language: found 'gb'. Use a language of two letters (ISO 639-1)"),
        ("send: now", "campaign.yaml:6: send: found 'now'. Use a mapping with kind"),
        ("alert_after: 3", "campaign.yaml:6: alert_after: found 3. Use a mapping with length and unit"),
        ("audience: {cap: 3}", "campaign.yaml:6: audience.cap: found 3. Use a mapping with messages and days"),
        ("audience: {cap: [{messages: 3}]}", "campaign.yaml:6: audience.cap[0]: the required field 'days' is missing"),
        (
            "audience: {cap: {messages: 3, days: 7, scope: sms}}",
            "campaign.yaml:6: audience.cap.scope: found 'sms'. Use account, everything, topic:NAME, channel:",
        ),
        ("topic: News!", "campaign.yaml:6: topic: found 'News!'. Use a text that matches '^[a-z0-9]"),
        ("send: {kind: later}", "campaign.yaml:6: send: 'later' is not a kind. Use 'now', 'once'"),
        ("send: {kind: onse}", "campaign.yaml:6: send: 'onse' (did you mean 'once'?) is not a kind. Use 'now'"),
        ("on_doubt: resent", "campaign.yaml:6: on_doubt: found 'resent' (did you mean 'resend'?). Use 'hold' or"),
        ("on_doubt: RESEND", "campaign.yaml:6: on_doubt: found 'RESEND' (did you mean 'resend'?). Use 'hold' or"),
        ("on_doubt: wait", "campaign.yaml:6: on_doubt: found 'wait'. Use 'hold' or 'resend'"),
        (
            "alert_after: {length: 3, unit: hour}",
            "campaign.yaml:6: alert_after.unit: found 'hour' (did you mean 'hours'?). Use 'seconds'",
        ),
        ("send: {time: x}", "campaign.yaml:6: send: the required field 'kind' is missing. Use one of now, once"),
        (
            "audience: {source: {of: spring}}",
            "campaign.yaml:6: audience.source: the required field 'kind' is missing. Use one of verdicts, dbt_model",
        ),
        ("send: {kind: once, time_zone: UTC}", "campaign.yaml:6: send: the required field 'time' is missing"),
        (
            "send: {kind: once, time: 25:00, time_zone: UTC}",
            "campaign.yaml:6: send.time: found '25:00'. Use a time of day as \"HH:MM\", from 00:00 to 23:59",
        ),
        (
            "send: {kind: once, time: 18:30, time_zone: Europe/Dubln}",
            "campaign.yaml:6: send.time_zone: found 'Europe/Dubln'. Use an IANA time zone, such as Europe/Dublin",
        ),
        (
            "send: {kind: once, tiem: 18:30, time: 18:30, time_zone: UTC}",
            "campaign.yaml:6: send.tiem: 'tiem' is not a field (did you mean 'time'?). Use date,",
        ),
        ("post_backs: {kinds: [click]}", "campaign.yaml:6: post_backs.kinds[0]: found 'click'. Use 'delivery' or"),
        ("push_expiry: {length: 3}", "campaign.yaml:6: push_expiry: found a length or a unit alone"),
        ("no: 1", "campaign.yaml:6: no: 'no' is not a field. Use after,"),
        (
            "holdout: {percent: 10}",
            "campaign.yaml:6: holdout: 'holdout' is not a field (did you mean 'audience.holdout'?). Use ",
        ),
        ("kind: now", "campaign.yaml:6: kind: 'kind' is not a field. Use "),
        (
            "quiet_hours: {earliest: '08:00', latest: '20:00'}",
            "campaign.yaml:6: quiet_hours: 'quiet_hours' is no field of a campaign, but a rule for all campaigns. Use ",
        ),
        ("3: 1", "campaign.yaml:6: 3: found a key that is not text. Use text (put it in quotes)"),
        ("owner: &me crm", "campaign.yaml:6: not YAML: anchors and aliases are not supported"),
        ("owner: !!python/name:os.system x", "campaign.yaml:6: not YAML: tags are not supported"),
        ("owner: !!timestamp abc", "campaign.yaml:6: not YAML: tags are not supported"),
        ("owner: !!bool xyz", "campaign.yaml:6: not YAML: tags are not supported"),
        ("owner: !!int ''", "campaign.yaml:6: not YAML: tags are not supported"),
        ("owner: !!float ''", "campaign.yaml:6: not YAML: tags are not supported"),
        ("owner: ! crm", "campaign.yaml:6: not YAML: tags are not supported"),
        ("tags: !!set {sale}", "campaign.yaml:6: not YAML: tags are not supported"),
        ("!!str owner: crm", "campaign.yaml:6: not YAML: tags are not supported"),
        ("owner: " + "[" * 3000, "campaign.yaml:6: not YAML: more than 50 levels are not supported"),
        ("owner: " + "{a: " * 3000, "campaign.yaml:6: not YAML: more than 50 levels are not supported"),
        ("owner:\n " + "- " * 3000 + "x", "campaign.yaml:7: not YAML: more than 50 levels are not supported"),
        ('owner: "\\UFFFFFFFF"', "campaign.yaml:6: not YAML: found a number that is too large"),
        ('owner: "\\U00110000"', "campaign.yaml:6: not YAML: found a number that is too large"),
        ("segment_size: " + "9" * 5000, "campaign.yaml:6: segment_size: found a number that is too large"),
        ("owner: [", "campaign.yaml:7: not YAML: "),
        ("send:\n\tkind: now", "campaign.yaml:7: not YAML: found character '\\t' that cannot start any token; indent"),
        (
            "schedule: */5 * * * *",
            "campaign.yaml:6: not YAML: expected alphabetic or numeric character, but found '/'; quote a text that",
        ),
        (
            'owner:"crm"\ntags: [sale]',
            "campaign.yaml:6: not YAML: could not find expected ':'; write a space after the colon",
        ),
        ('owner: "crm\ntags: [sale]', "campaign.yaml:6: not YAML: found unexpected end of stream; close the quote"),
        ("audience: {cap: {days: 7\ntags: [sale]", "campaign.yaml:6: not YAML: expected ',' or '}', but got ':'"),
        ("tags: [a, b\nowner: crm", "campaign.yaml:6: not YAML: expected ',' or ']', but got ':'; close the [ before"),
        ("owner: @crm", "campaign.yaml:6: not YAML: found character '@' that cannot start any token; quote a text"),
        ("owner: now: crm", "campaign.yaml:6: not YAML: mapping values are not allowed here; quote a text that"),
        ("owner: {{ x }} y", "campaign.yaml:6: not YAML: expected <block end>, but found '<scalar>'; quote a text"),
        ('owner: "A" team', "campaign.yaml:6: not YAML: expected <block end>, but found '<scalar>'; quote a text"),
        (
            "send:\n    kind: now\n  time: x",
            "campaign.yaml:8: not YAML: expected <block end>, but found '<block mapping start>'; start the fields",
        ),
        ('schedule: "0 0 9 * * 1"', "campaign.yaml:6: schedule: found 6 fields. Use a cron expression of five"),
        ('schedule: "0 25 * * *"', "campaign.yaml:6: schedule: found hour 25. Use 0 to 23"),
        ('schedule: "61 9 * * *"', "campaign.yaml:6: schedule: found minute 61. Use 0 to 59"),
        ('schedule: "0 9 0-7 * *"', "campaign.yaml:6: schedule: found day '0-7'. Use 1 to 31"),
        ('schedule: "0 9 1 13 *"', "campaign.yaml:6: schedule: found month 13. Use 1 to 12 or jan to dec"),
        ('schedule: "0 9 * * 8"', "campaign.yaml:6: schedule: found weekday 8. Use 0 to 7 or sun to sat"),
        ('schedule: "0 9 * * Monday"', "campaign.yaml:6: schedule: found weekday 'monday'. Use 0 to 7 or sun"),
        ("targeting: {kind: saved_segments, ids: []}",
         "campaign.yaml:6: targeting.ids: found an empty list. Use"),
        ('schedule: "0 9 1 13 8"', "campaign.yaml:6: schedule: found month 13. Use 1 to 12 or jan to dec"),
        ('schedule: "0 9 1 6-0 *"', "campaign.yaml:6: schedule: found month '6-0'. Use 1 to 12 or jan to dec"),
        ('schedule: "0 9 15W,20 * *"', "campaign.yaml:6: schedule: found day '15w,20'. Use 1 to 31, alone"),
        ('schedule: "0 9 * * mon#2,fri"', "campaign.yaml:6: schedule: found weekday 'mon#2,fri'. Use 0 to 7"),
        ('schedule: "*/0 * * * *"', "campaign.yaml:6: schedule: found minute '*/0'. Use 0 to 59, alone or"),
        ('schedule: "0 -9 * * *"', "campaign.yaml:6: schedule: found hour '-9'. Use 0 to 23, alone or with"),
        ('schedule: "? 9 * * *"', "campaign.yaml:6: schedule: found minute '?'. Use 0 to 59, alone or with"),
        ('schedule: "r 9 * * *"', "campaign.yaml:6: schedule: found minute 'r'. Use 0 to 59"),
        ('schedule: "0 9 * * 1#6"', "campaign.yaml:6: schedule: found weekday '1#6'. Use 0 to 7 or sun"),
        ('schedule: "0 9 30 2 *"', "campaign.yaml:6: schedule: found day 30 in month 2, which never comes. Use"),
        ('schedule: "0 9 31 feb,4-6/2 ?"', "campaign.yaml:6: schedule: found day 31 in month feb,4-6/2, which never c"),
        (f'schedule: "{"0," * 40}0 9 * * *"', "campaign.yaml:6: schedule: found a text of 89 characters. Use at"),
        ("owner: " + "x" * 501, "campaign.yaml:6: owner: found a text of 501 characters. Use a text of"),
        ("tags: [" + "x" * 101 + "]", "campaign.yaml:6: tags[0]: found a text of 101 characters. Use a text of"),
        ("pool: " + "x" * 257, "campaign.yaml:6: pool: found a text of 257 characters. Use a text of"),
        ("warehouse: " + "x" * 251, "campaign.yaml:6: warehouse: found a text of 251 characters. Use a text of"),
        ("connection: " + "x" * 251, "campaign.yaml:6: connection: found a text of 251 characters. Use a text of"),
        ("after: [" + "x" * 1501 + "]", "campaign.yaml:6: after[0]: found a text of 1501 characters. Use a text of"),
        ('owner: "a\\0"', "campaign.yaml:6: owner: found the character \\u0000. Use characters that a database"),
        ('owner: "a\\uD800"', "campaign.yaml:6: owner: found the character \\ud800. Use characters that"),
        ('variants: {"a\\0": {percent: 5}}', "campaign.yaml:6: variants.a?: found the character \\u0000. Use"),
        ("alert_after: {length: 2147483647, unit: weeks}",
         "campaign.yaml:6: alert_after: found 2147483647 weeks. Use at most 36500 days"),
        ("tags: [" + "a," * 10_000 + "a]", "campaign.yaml:6: not YAML: more than 10,000 values are not supported"),
        ("owner: {{ x }}, hi", "campaign.yaml:6: not YAML: expected <block end>, but found ','; quote a text"),
        ("owner: {{ x }}", "campaign.yaml:6: owner.?: found a key that begins with { or [. Use text"),
        ('schedule: "0 9 * * ä"', "campaign.yaml:6: schedule: found a text of 9 characters. Use a cron"),
        ("audience: {holdout: {percent: few}}",
         "campaign.yaml:6: audience.holdout.percent: found 'few'. Use a number, such as 5"),
        ("audience: {holdout: {percent: [5]}}",
         "campaign.yaml:6: audience.holdout.percent: found a list. Use a number, such as 5"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_line_path_what_was_found_and_what_is_allowed(
    tmp_path: Path, line: str, problem: str
) -> None:
    found = problems(tmp_path, PUSH + line + "\n")
    assert any(each.startswith(problem) for each in found), found


@pytest.mark.parametrize(
    "schedule",
    [
        "@daily", "*/5 * * * *", "0 9 * * MON-fri", "0,30 22-2 * * 7", "0 9 L * *", "0 9 29 2 *", "0 9 15W * ?",
        "0 9 ? jan-mar/2 5#3", "0 9 * * L5", "5/10 9 1-5/2,20 * *", "0 9 30 2 1", "0 9 31 4,5 *",
    ],
)  # fmt: skip
def test_a_schedule_that_comes_is_taken(tmp_path: Path, schedule: str) -> None:
    assert load(tmp_path, PUSH + f'schedule: "{schedule}"\n').campaign.schedule == schedule


def test_a_schedule_that_an_older_version_took_is_read_where_a_launch_froze_it() -> None:
    old = campaign(**SENT).model_copy(update={"schedule": "r 9 * * *"})
    assert Campaign.frozen(old.model_dump_json()) == old


def test_a_reason_that_an_older_version_took_is_read_where_a_launch_froze_it() -> None:
    exclusion = ListExclusion(name="staff").model_copy(update={"reason": "suppressed"})
    old = campaign(**SENT).model_copy(update={"audience": AudienceRules().replace(exclude=(exclusion,))})
    assert Campaign.frozen(old.model_dump_json()) == old


def test_of_very_many_mistakes_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    found = problems(tmp_path, PUSH + "".join(f"k{number}:\n" for number in range(4_000)))
    assert len(found) == 51
    assert found[-1].startswith("campaign.yaml:56: k50: there are 3950 more mistakes")


def test_all_mistakes_of_a_folder_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "title: 5\nowner: a\nowner: b\nchannels:\n  web_push: {browsers: [edge]}\nsegment_size: -1\n",
        sql=None,
    )
    assert [each.split(": ")[:2] for each in found] == [
        ["campaign.yaml:1", "title"],
        ["campaign.yaml:3", "owner"],
        ["campaign.yaml:5", "channels.web_push.browsers[0]"],
        ["campaign.yaml:6", "segment_size"],
        ["audience.sql", "the file does not exist. Add the query of the recipients"],
    ]


def test_a_query_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert load(tmp_path, PUSH, sql="\ufeffSELECT 1 AS device_id").audience_sql == "SELECT 1 AS device_id"


def test_a_browser_is_named_once(tmp_path: Path) -> None:
    web = "title: A\nchannels:\n  web_push: {browsers: [safari, safari], title: A, text: B}\n"
    [problem] = problems(tmp_path, web)
    assert problem.endswith("channels.web_push.browsers: found safari twice. Use each browser once")


def test_rules_are_checked_as_well_where_only_unknown_fields_are_wrong(tmp_path: Path) -> None:
    found = problems(
        tmp_path, "title: A\ncolour: red\nchannels: {sms: {sender: S, text: T, sise: 3}, inbox: {}}\n"
    )
    assert [each.split(":")[2].strip() for each in found] == [
        "colour",
        "channels.sms.sise",
        "channels.inbox",
        "channels.inbox",
    ]


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("message: {title: T, text: T, channels: 4}", "message.channels"),  # the name of another field
        ("send: {kind: once, time: '18:00', time_zone: UTC, title: A}", "send.title"),
        (
            "audience: {exclude: [{kind: campaign, name: b, days: 3}, {kind: list, name: c, days: 3}]}",
            "audience.exclude[1].days",
        ),
    ],
)
def test_an_unknown_field_is_the_only_mistake_that_is_told_of_it(
    tmp_path: Path, wrong: str, place: str
) -> None:
    rest = "" if wrong.startswith("message") else "message: {title: T, text: T}\n"
    (found,) = problems(tmp_path, f"title: A\nchannels: {{inbox: }}\n{rest}{wrong}\n")
    assert f": {place}: '{place.rpartition('.')[2]}' is not a field" in found


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("channels: {andriod_push: }", "channels.andriod_push"),
        ("channels: {andriod_push: , sms: {sender: S, text: T}}", "channels.andriod_push"),
        (
            "channels: {andriod_push: }\nvariants: {a: {percent: 50}, b: {percent: 50, channels: {ios_push: {}}}}",
            "channels.andriod_push",
        ),
        (
            "channels: {inbox: }\nvariants: {a: {percent: 50}, b: {percent: 50, channels: {imbox: {title: T}}}}",
            "variants.b.channels.imbox",
        ),
    ],
)
def test_a_channel_with_a_wrong_name_is_the_only_mistake_that_is_told_of_channels(
    tmp_path: Path, line: str, place: str
) -> None:
    rest = "message: {title: T, text: T}\npush_expiry: {length: 1, unit: hours}\n" + line
    (found,) = problems(tmp_path, f"title: A\n{rest}\n")
    assert f": {place}: '{place.rpartition('.')[2]}' is not a field" in found


def test_what_is_not_of_channels_is_told_beside_a_wrong_name_of_one(tmp_path: Path) -> None:
    found = problems(
        tmp_path, "title: A\nschedule_time_zone: Asia/Tokyo\nmessage: {text: T}\nchannels: {pusch: }\n"
    )
    assert [each.split(": ")[1] for each in found] == ["schedule_time_zone", "channels.pusch"]


def test_the_text_of_a_message_is_never_quoted(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        f"""
title: A
message: {SECRET_WORDS}
language: {SECRET_WORDS}
channels:
  email: {{from_address: {SECRET_WORDS.replace(",", "")}, subject: [{SECRET_WORDS.replace(",", "")}]}}
  webhook: {{address: "http://{SECRET_WORDS}"}}
""",
    )
    assert len(found) >= 5
    assert "medicine" not in "\n".join(found)


@pytest.mark.parametrize(
    "content",
    [
        "message: planted47",
        "message: {text: [planted47], payload: planted47}",
        "message: {text: Hi, translations: {de: planted47}}",
        "message: {text: Hi, translations: planted47}",
        "message: {text: 47474747}",
        "channels: {email: planted47}",
        "channels: {email: {from_address: planted47, subject: Hi, text: Hi}}",
        "channels: {inbox: {title: Hi, text: Hi, translations: {de: planted47}}}",
        "channels: {webhook: {address: planted47, headers: planted47, query: planted47, body: planted47}}",
        "channels: {webhook: {address: 'https://a.ie', headers: {X-Token: 47474747}}}",
        "variants: {a: {percent: 50, message: planted47}, b: {percent: 50, channels: {sms: planted47}}}",
    ],
)
def test_not_even_a_word_or_a_number_of_a_message_is_quoted(tmp_path: Path, content: str) -> None:
    found = problems(tmp_path, f"title: A\n{content}\n")
    assert found
    assert not any("planted47" in each or "4747" in each for each in found)


def test_a_wrong_word_from_a_list_is_quoted_in_a_message_too(tmp_path: Path) -> None:
    found = problems(tmp_path, "title: A\nmessage: {text: Hi, open_in: web_vew}\nchannels: {inbox: }\n")
    assert any("found 'web_vew' (did you mean 'web_view'?)" in each for each in found)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty. Add the campaign"),
        (b"# nothing\n", "the file is empty. Add the campaign"),
        (b"- a\n- b\n", "found a list. Use a mapping"),
        (b"just words", "found a text of 10 characters. Use a mapping"),
        (b"title: \xff\n", "found bytes that are not UTF-8. Use UTF-8"),
        (b"title: \x07\n", "not YAML: it holds characters that YAML does not allow"),
        (b"%YAML " + b"1" * 5000 + b".1\n", "not YAML: found a number that is too large"),
        (b"title: a\n---\ntitle: b\n", "not YAML: but found another document"),
    ],
)
def test_a_file_that_is_no_mapping_is_told_as_such(tmp_path: Path, content: bytes, problem: str) -> None:
    folder = write(tmp_path / "back_in_stock", "")
    (folder / "campaign.yaml").write_bytes(content)
    with pytest.raises(CampaignError, match=problem):
        load_campaign(folder)


def test_a_file_and_a_folder_of_campaigns_are_told_with_the_folder_to_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "spring", PUSH)
    with pytest.raises(CampaignError, match=rf"this is a file\. Name the folder: {folder}"):
        load_campaign(folder / "campaign.yaml")
    with pytest.raises(
        CampaignError, match=rf"this folder is no campaign, but contains some\. Name one, such as {folder}"
    ):
        load_campaign(tmp_path)


def test_a_folder_without_a_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CampaignError) as error:
        load_campaign(tmp_path)
    assert str(error.value).splitlines() == [
        f"{tmp_path}/campaign.yaml: the file does not exist. Add the campaign",
        f"{tmp_path}/audience.sql: the file does not exist. Add the query of the recipients",
    ]


def test_a_file_with_the_other_ending_is_to_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "campaign.yml").write_text(PUSH)
    with pytest.raises(CampaignError, match=r"does not exist. Rename campaign.yml to campaign.yaml"):
        load_campaign(tmp_path)


def test_a_file_that_cannot_be_read_is_told_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "campaign.yaml").mkdir()
    with pytest.raises(CampaignError, match=r"campaign\.yaml: found a file that cannot be read \(Is a dir"):
        load_campaign(tmp_path)


@pytest.mark.parametrize("name", ["campaign.yaml", "audience.sql", "outcome.sql", "before.sql"])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda file: file.symlink_to(file.name),
            "a file that cannot be read (Too many levels of symbolic links)",
        ),
        (os.mkfifo, "something that is not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "a link that leads out of the campaign's folder"),
        (lambda file: file.mkdir(), "a file that cannot be read (Is a directory)"),
        (
            lambda file: file.write_bytes(b" " * (1 << 20) + b" "),
            "a file that is too large. Use at most",
        ),
        (lambda file: file.write_bytes(b"SELECT '\0'"), "a NUL character, which no database can store"),
    ],
    ids=["loop", "pipe", "device", "folder", "large", "nul"],
)
def test_what_is_no_plain_file_is_told_and_not_read(
    tmp_path: Path, name: str, make: Callable[[Path], None], found: str
) -> None:
    folder = write(tmp_path / "back_in_stock", PUSH)
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(CampaignError) as error:
        load_campaign(folder)
    assert f"{folder / name}: found {found}" in str(error.value)
    assert str(error.value).count(name) == 1 + (name == "before.sql")  # which also lacks an outcome


def test_files_may_be_as_large_as_is_said(tmp_path: Path) -> None:
    sql = "SELECT device_id FROM devices".ljust(1 << 20)
    text = PUSH + "#" * ((1 << 18) - len(PUSH))
    assert load(tmp_path, text, sql).audience_sql == sql
    assert problems(tmp_path, text + "#") == [
        "campaign.yaml: found a file that is too large. Use at most 256 KiB"
    ]


def test_a_folder_that_cannot_be_entered_is_told_as_such(locked: Path) -> None:
    with pytest.raises(CampaignError) as error:
        load_campaign(locked)
    problem = "the folder cannot be read (Permission denied)"
    assert str(error.value) == f"{locked}: {problem}"


def test_a_list_of_channels_is_told_how_a_channel_is_named(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "title: A\nchannels: [push, android_push]\n")
    place, allowed = problem.split(" Use ")
    assert place == "campaign.yaml:2: channels: found a list."
    assert allowed == "a mapping, for example `android_push:` on a line of its own"


def test_a_folder_whose_name_is_no_dag_id_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=r"found a folder 'two words'\. Use at most 100 letters, digits"):
        load_campaign(write(tmp_path / "two words", PUSH))


def test_a_query_that_would_not_be_asked_is_a_mistake(tmp_path: Path) -> None:
    text = PUSH + "targeting: {kind: broadcast}\n"
    assert problems(tmp_path, text) == [
        "audience.sql: found a query with targeting.kind: broadcast. Remove one of them"
    ]
    (tmp_path / "back_in_stock/audience.sql").unlink()
    assert load(tmp_path, text, None).audience_sql is None


@pytest.mark.parametrize(
    "sql", [" \n", "-- later", "-- everybody\n;\n", "/* SELECT device_id\nFROM devices */\n"]
)
def test_an_empty_query_is_a_mistake(tmp_path: Path, sql: str) -> None:
    assert problems(tmp_path, PUSH, sql) == [
        "audience.sql: the file is empty. Add the query of the recipients"
    ]


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT device_id\nFROM devices\nWHERE seen > {{ ds }}", 3),
        ("SELECT device_id FROM devices\n{% if params.all %} WHERE true {% endif %}", 2),
        # in quotes, as people often write it; the database would compare with the text itself
        ("SELECT device_id FROM devices WHERE seen\n > '{{ data_interval_end }}'", 2),
        ("SELECT device_id FROM devices WHERE seen > '{{ds}}'::date", 1),
    ],
)
def test_jinja_in_a_query_is_refused_with_the_parameters_to_use(tmp_path: Path, sql: str, line: int) -> None:
    folder = write(tmp_path / "back_in_stock", PUSH)
    (folder / "audience.sql").write_text(sql)
    with pytest.raises(CampaignError) as error:
        load_campaign(folder)
    assert str(error.value).startswith(
        f"{folder}/audience.sql:{line}: found Jinja, such as {{{{ ds }}}}, which "
    )
    assert ":period_end, without quotes" in str(error.value)


@pytest.mark.parametrize(("kind", "file"), [("file", "away.csv"), ("query", "away.sql")])
def test_recipients_to_leave_out_are_not_read_from_outside_the_folder(
    tmp_path: Path, kind: str, file: str
) -> None:
    exclusion = f"{{kind: {kind}, file: {file}}}"
    folder = write(tmp_path / "back_in_stock", f"{PUSH}audience: {{exclude: [{exclusion}]}}\n")
    (tmp_path / "away").write_text("SELECT 1 AS device_id")
    (folder / file).symlink_to(tmp_path / "away")
    with pytest.raises(CampaignError, match=f"{file}: found a link that leads out of the campaign's"):
        load_campaign(folder)


@pytest.mark.parametrize("name", ["outcome.sql", "before.sql"])
def test_queries_for_comparisons_cannot_name_models_of_dbt(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "back_in_stock", f"{PUSH}dbt: {{artifacts: /dbt/target}}\n")
    for each in ("outcome.sql", "before.sql"):
        (folder / each).write_text(
            "SELECT device_id\nFROM {{ ref('orders') }}" if each == name else "SELECT 1"
        )
    with pytest.raises(CampaignError, match=f"{name}:2: found Jinja"):
        load_campaign(folder)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT device_id FROM messages WHERE text LIKE '%{{ first_name }}%' -- {{ ds }}",
        "SELECT {'a': {'b': 1}} AS s, device_id FROM devices /* {% if %} */",
    ],
)
def test_braces_that_are_meant_as_they_are_may_stand_in_a_query(tmp_path: Path, sql: str) -> None:
    folder = write(tmp_path / "back_in_stock", PUSH)
    (folder / "audience.sql").write_text(sql)
    assert load_campaign(folder).audience_sql == sql
