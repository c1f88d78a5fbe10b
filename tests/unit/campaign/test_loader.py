"""Campaign files: what they may say, what is said of their mistakes, and what follows from a period."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sendoff.campaign import Campaign, CampaignFolder, Channel, Edition, campaign_schema, load_campaign
from sendoff.campaign.content import AndroidPush, Channels, Email, Message, WebPush
from sendoff.campaign.schedule import Keeping, Once, Recurring, Triggered, Until
from sendoff.errors import CampaignError, LateError
from sendoff.period import Period

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "dags/campaigns").glob("*/campaign.yaml"))
EVENING = datetime(2026, 11, 20, 6, tzinfo=UTC)

PUSH = """
title: Back in stock
message: {title: It is back, text: The thing you liked is back., url: https://shop.example.com/thing}
channels:
  android_push:
"""
ENDLESS = {"time_zone": "UTC", "start": "2026-11-20", "end": "never"}
TONIGHT = {"kind": "once", "time": "20:00", "time_zone": "UTC"}
DAILY = {"kind": "recurring", "time": "08:00", **ENDLESS}
SMS = {"sender": "Shop", "text": "Words"}
EMAIL = {"from_address": 7, "subject": "Hello", "text": "Words"}
SENT: dict[str, Any] = {"message": {"text": "Words"}, "channels": {"ios_push": {}}}
SECRET_WORDS = "Dear Ms Example, your medicine is ready"


def write(folder: Path, text: str, sql: str | None = "SELECT device_id FROM devices") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "campaign.yaml").write_text(text, encoding="utf-8")
    if sql is not None:
        (folder / "audience.sql").write_text(sql)
    return folder


def load(tmp_path: Path, text: str, sql: str | None = "SELECT device_id FROM devices") -> CampaignFolder:
    return load_campaign(write(tmp_path / "back_in_stock", text, sql))


def problems(tmp_path: Path, text: str, sql: str | None = "SELECT device_id FROM devices") -> list[str]:
    """Load a file that is wrong, and give its problems without the folder's name."""
    with pytest.raises(CampaignError) as error:
        load(tmp_path, text, sql)
    return str(error.value).replace(f"{tmp_path / 'back_in_stock'}/", "").splitlines()


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that nobody but root may enter, and who is not root for as long as it is there."""
    user, home = os.geteuid(), Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own only root may enter
    folder = home / "back_in_stock"
    write(folder, PUSH).chmod(0)
    home.chmod(0o755)
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)
    shutil.rmtree(home)


def campaign(**fields: Any) -> Campaign:
    return Campaign.model_validate({"title": "A campaign", **fields})


def broken(**fields: Any) -> str:
    with pytest.raises(ValidationError) as error:
        campaign(**fields)
    return str(error.value)


# Reading


def test_a_folder_is_read_with_its_name_its_query_and_its_defaults(tmp_path: Path) -> None:
    folder = load(tmp_path, PUSH)

    assert (folder.name, folder.audience_sql) == ("back_in_stock", "SELECT device_id FROM devices")
    assert folder.campaign.title == "Back in stock"
    assert folder.campaign.used() == (Channel.ANDROID_PUSH,)
    assert folder.campaign.targeting.kind == "query"
    assert folder.campaign.send.kind == "now"
    assert folder.campaign.post_backs.kinds == ("delivery", "open")
    assert (folder.campaign.way, folder.campaign.segment_size) == ("create", 10_000)


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
    old = campaign(**SENT).model_copy(update={"schedule": "@daily", "after": ("orders",)})
    with pytest.raises(ValidationError, match="after beside schedule"):
        Campaign.model_validate_json(old.model_dump_json())
    assert Campaign.frozen(old.model_dump_json()) == old


@pytest.mark.parametrize(
    ("changed", "place"),
    [({"shape": SECRET_WORDS}, "shape"), ({"title": 7}, "title"), ({"send": {"kind": "later"}}, "send")],
)
def test_what_another_version_froze_is_an_error_of_sendoffs_own(changed: dict[str, Any], place: str) -> None:
    definition = {**campaign(**SENT).model_dump(mode="json"), **changed}
    with pytest.raises(CampaignError, match=f"frozen by another version .*: {place};") as error:
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
    assert set(schema["properties"]) == set(Campaign.model_fields)
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


# Mistakes: each with its line, its path, what was found and what is allowed


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tilte: x", "campaign.yaml:6: tilte: found the unknown field 'tilte' (did you mean 'title'?); allowed: "),
        ("title: Twice", "campaign.yaml:6: title: found 'title' twice, first on line 2; allowed: once"),
        ("segment_size: many", "campaign.yaml:6: segment_size: found 'many'; allowed: a whole number"),
        ('segment_size: "10"', "campaign.yaml:6: segment_size: found '10'; allowed: a whole number"),
        ("segment_size: true", "campaign.yaml:6: segment_size: found true; allowed: a whole number"),
        ("segment_size: 0", "campaign.yaml:6: segment_size: found 0; allowed: greater than or equal to 1"),
        ("tags: sale", "campaign.yaml:6: tags: found 'sale'; allowed: a list"),
        ("start: 05.01.2027", "campaign.yaml:6: start: found '05.01.2027'; allowed: a date as YYYY-MM-DD"),
        ("start: 2027-02-30", "campaign.yaml:6: start: found '2027-02-30'; allowed: a date as YYYY-MM-DD"),
        ("start: 5", "campaign.yaml:6: start: found 5; allowed: a date"),
        ("schedule: daily", "campaign.yaml:6: schedule: found 'daily' (did you mean '@daily'?); allowed: a cron exp"),
        ("schedule: at noon", "campaign.yaml:6: schedule: found 2 fields; allowed: a cron expression of five fields"),
        ("language: gb", "campaign.yaml:6: language: found 'gb'; allowed: a language of two letters (ISO 639-1)"),
        ("send: now", "campaign.yaml:6: send: found 'now'; allowed: a mapping"),
        ("send: {kind: later}", "campaign.yaml:6: send: found kind 'later'; allowed: 'now', 'once'"),
        ("send: {kind: onse}", "campaign.yaml:6: send: found kind 'onse' (did you mean 'once'?); allowed: 'now'"),
        ("on_doubt: resent", "campaign.yaml:6: on_doubt: found 'resent' (did you mean 'resend'?); allowed: 'hold' or"),
        ("on_doubt: RESEND", "campaign.yaml:6: on_doubt: found 'RESEND' (did you mean 'resend'?); allowed: 'hold' or"),
        ("on_doubt: wait", "campaign.yaml:6: on_doubt: found 'wait'; allowed: 'hold' or 'resend'"),
        (
            "alert_after: {length: 3, unit: hour}",
            "campaign.yaml:6: alert_after.unit: found 'hour' (did you mean 'hours'?); allowed: 'seconds'",
        ),
        ("send: {time: x}", "campaign.yaml:6: send: found no kind; allowed: kind is one of now, once"),
        ("send: {kind: once, time_zone: UTC}", "campaign.yaml:6: send: found no time; allowed: time is required"),
        (
            "send: {kind: once, time: 25:00, time_zone: UTC}",
            "campaign.yaml:6: send.time: found '25:00'; allowed: a time of day as \"HH:MM\", from 00:00 to 23:59",
        ),
        (
            "send: {kind: once, time: 18:30, time_zone: Europe/Dubln}",
            "campaign.yaml:6: send.time_zone: found 'Europe/Dubln'; allowed: an IANA time zone, such as Europe/Dublin",
        ),
        (
            "send: {kind: once, tiem: 18:30, time: 18:30, time_zone: UTC}",
            "campaign.yaml:6: send.tiem: found the unknown field 'tiem' (did you mean 'time'?); allowed: date,",
        ),
        ("post_backs: {kinds: [click]}", "campaign.yaml:6: post_backs.kinds[0]: found 'click'; allowed: 'delivery' or"),
        ("push_expiry: {length: 3}", "campaign.yaml:6: push_expiry: found a length or a unit alone"),
        ("no: 1", "campaign.yaml:6: no: found the unknown field 'no'; allowed: after,"),
        ("3: 1", "campaign.yaml:6: 3: found a key that is no text; allowed: text (put it in quotes)"),
        ("owner: &me crm", "campaign.yaml:6: not YAML: anchors and aliases are not used here"),
        ("owner: !!python/name:os.system x", "campaign.yaml:6: not YAML: tags are not used here"),
        ("owner: !!timestamp abc", "campaign.yaml:6: not YAML: tags are not used here"),
        ("owner: !!bool xyz", "campaign.yaml:6: not YAML: tags are not used here"),
        ("owner: !!int ''", "campaign.yaml:6: not YAML: tags are not used here"),
        ("owner: !!float ''", "campaign.yaml:6: not YAML: tags are not used here"),
        ("owner: ! crm", "campaign.yaml:6: not YAML: tags are not used here"),
        ("tags: !!set {sale}", "campaign.yaml:6: not YAML: tags are not used here"),
        ("!!str owner: crm", "campaign.yaml:6: not YAML: tags are not used here"),
        ("owner: " + "[" * 3000, "campaign.yaml:6: not YAML: more than 50 levels are not used here"),
        ("owner: " + "{a: " * 3000, "campaign.yaml:6: not YAML: more than 50 levels are not used here"),
        ("owner:\n " + "- " * 3000 + "x", "campaign.yaml:7: not YAML: more than 50 levels are not used here"),
        ('owner: "\\UFFFFFFFF"', "campaign.yaml:6: not YAML: found a number that is too large"),
        ('owner: "\\U00110000"', "campaign.yaml:6: not YAML: found a number that is too large"),
        ("segment_size: " + "9" * 5000, "campaign.yaml:6: segment_size: found a number that is too large"),
        ("owner: [", "campaign.yaml:7: not YAML: "),
        ("send:\n\tkind: now", "campaign.yaml:7: not YAML: found character '\\t' that cannot start any token; indent"),
        ("owner: @crm", "campaign.yaml:6: not YAML: found character '@' that cannot start any token; quote a text"),
        ("owner: now: crm", "campaign.yaml:6: not YAML: mapping values are not allowed here; quote a text that holds"),
        ("owner: {{ x }} y", "campaign.yaml:6: not YAML: expected <block end>, but found '<scalar>'; quote a text"),
        ('owner: "A" team', "campaign.yaml:6: not YAML: expected <block end>, but found '<scalar>'; quote a text"),
        (
            "send:\n    kind: now\n  time: x",
            "campaign.yaml:8: not YAML: expected <block end>, but found '<block mapping start>'; begin the fields",
        ),
        ('schedule: "0 0 9 * * 1"', "campaign.yaml:6: schedule: found 6 fields; allowed: a cron expression of five"),
        ('schedule: "0 25 * * *"', "campaign.yaml:6: schedule: found hour 25; allowed: 0 to 23"),
        ('schedule: "61 9 * * *"', "campaign.yaml:6: schedule: found minute 61; allowed: 0 to 59"),
        ('schedule: "0 9 0-7 * *"', "campaign.yaml:6: schedule: found day 0; allowed: 1 to 31"),
        ('schedule: "0 9 1 13 *"', "campaign.yaml:6: schedule: found month 13; allowed: 1 to 12 or jan to dec"),
        ('schedule: "0 9 * * 8"', "campaign.yaml:6: schedule: found weekday 8; allowed: 0 to 7 or sun to sat"),
        ('schedule: "0 9 * * Monday"', "campaign.yaml:6: schedule: found weekday 'monday'; allowed: 0 to 7 or sun"),
        ('schedule: "*/0 * * * *"', "campaign.yaml:6: schedule: found step 0 of minute; allowed: 1 or more"),
        ('schedule: "0 -9 * * *"', "campaign.yaml:6: schedule: found hour '-9'; allowed: 0 to 23, alone or with"),
        ('schedule: "? 9 * * *"', "campaign.yaml:6: schedule: found minute '?'; allowed: 0 to 59, alone or with"),
        ('schedule: "r 9 * * *"', "campaign.yaml:6: schedule: found minute 'r'; allowed: 0 to 59"),
        ('schedule: "0 9 * * 1#6"', "campaign.yaml:6: schedule: found weekday '1#6'; allowed: 0 to 7 or sun"),
        ('schedule: "0 9 30 2 *"', "campaign.yaml:6: schedule: found day 30 in month 2, which never comes; allowed"),
        ('schedule: "0 9 31 feb,4-6/2 ?"', "campaign.yaml:6: schedule: found day 31 in month feb,4-6/2, which never c"),
        (f'schedule: "{"0," * 40}0 9 * * *"', "campaign.yaml:6: schedule: found a text of 89 characters; allowed: at"),
        ("owner: " + "x" * 501, "campaign.yaml:6: owner: found a text of 501 characters; allowed: at most 500"),
        ("tags: [" + "x" * 101 + "]", "campaign.yaml:6: tags[0]: found a text of 101 characters; allowed: at most 100"),
        ("pool: " + "x" * 257, "campaign.yaml:6: pool: found a text of 257 characters; allowed: at most 256"),
        ("warehouse: " + "x" * 251, "campaign.yaml:6: warehouse: found a text of 251 characters; allowed: at most"),
        ("connection: " + "x" * 251, "campaign.yaml:6: connection: found a text of 251 characters; allowed: at most"),
        ("after: [" + "x" * 1501 + "]", "campaign.yaml:6: after[0]: found a text of 1501 characters; allowed: at most"),
        ('owner: "a\\0"', "campaign.yaml:6: owner: found the character \\u0000; allowed: those that databases take"),
        ('owner: "a\\uD800"', "campaign.yaml:6: owner: found the character \\ud800; allowed: those that"),
        ('variants: {"a\\0": {percent: 5}}', "campaign.yaml:6: variants.a?: found the character \\u0000; allowed"),
        ("alert_after: {length: 2147483647, unit: weeks}",
         "campaign.yaml:6: alert_after: found 2147483647 weeks; allowed: at most 36500 days"),
        ("tags: [" + "a," * 10_000 + "a]", "campaign.yaml:6: not YAML: more than 10000 values are not used here"),
        ("owner: {{ x }}, hi", "campaign.yaml:6: not YAML: expected <block end>, but found ','; quote a text"),
        ("owner: {{ x }}", "campaign.yaml:6: owner.?: found {{ or a like key; allowed: text (quote one that"),
        ('schedule: "0 9 * * ä"', "campaign.yaml:6: schedule: found a text of 9 characters; allowed: a cron"),
        ("audience: {holdout: {percent: few}}",
         "campaign.yaml:6: audience.holdout.percent: found 'few'; allowed: a number, such as 5"),
        ("audience: {holdout: {percent: [5]}}",
         "campaign.yaml:6: audience.holdout.percent: found a list; allowed: a number, such as 5"),
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


def test_of_very_many_mistakes_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    found = problems(tmp_path, PUSH + "".join(f"k{number}:\n" for number in range(4_000)))
    assert len(found) == 51
    assert found[-1].startswith("campaign.yaml:56: k50: found 3950 more mistakes; allowed: none")


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
        ["audience.sql", "found no such file; allowed"],
    ]


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
    ("line", "place"),
    [
        ("channels: {andriod_push: }", "channels.andriod_push"),
        ("channels: {andriod_push: , sms: {sender: S, text: T}}", "channels.andriod_push"),
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
    assert f": {place}: found the unknown field " in found


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
    ("content", "problem"),
    [
        (b"", "found an empty file; allowed: a campaign"),
        (b"# nothing\n", "found an empty file; allowed: a campaign"),
        (b"- a\n- b\n", "found a list; allowed: a mapping"),
        (b"just words", "found a text of 10 characters; allowed: a mapping"),
        (b"title: \xff\n", "found bytes that are not UTF-8; allowed: UTF-8"),
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


def test_a_folder_without_a_file_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CampaignError) as error:
        load_campaign(tmp_path)
    assert str(error.value).splitlines() == [
        f"{tmp_path}/campaign.yaml: found no such file; allowed: a campaign",
        f"{tmp_path}/audience.sql: found no such file; allowed: the query that gives the people",
    ]


def test_a_file_that_cannot_be_read_is_told_without_a_line(tmp_path: Path) -> None:
    (tmp_path / "campaign.yaml").mkdir()
    with pytest.raises(CampaignError, match=r"campaign\.yaml: found a file that cannot be read \(Is a dir"):
        load_campaign(tmp_path)


@pytest.mark.parametrize("name", ["campaign.yaml", "audience.sql", "outcome.sql"])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda file: file.symlink_to(file.name),
            "a file that cannot be read (Too many levels of symbolic links)",
        ),
        (os.mkfifo, "what is no regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "a link that leads out of the campaign's folder"),
        (lambda file: file.mkdir(), "a file that cannot be read (Is a directory)"),
        (
            lambda file: file.write_bytes(b" " * (1 << 20) + b" "),
            "a file that is too large; allowed: at most",
        ),
        (lambda file: file.write_bytes(b"SELECT '\0'"), "a character that no database takes (NUL)"),
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


def test_files_may_be_as_large_as_is_said(tmp_path: Path) -> None:
    sql = "SELECT device_id FROM devices".ljust(1 << 20)
    text = PUSH + "#" * ((1 << 18) - len(PUSH))
    assert load(tmp_path, text, sql).audience_sql == sql
    assert problems(tmp_path, text + "#") == [
        "campaign.yaml: found a file that is too large; allowed: at most 256 KiB"
    ]


def test_a_folder_that_cannot_be_entered_is_told_as_such(locked: Path) -> None:
    with pytest.raises(CampaignError) as error:
        load_campaign(locked)
    problem = "found a folder that cannot be read (Permission denied); allowed: one that can"
    assert str(error.value) == f"{locked}: {problem}"


def test_a_list_of_channels_is_told_how_a_channel_is_named(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "title: A\nchannels: [push, android_push]\n")
    place, allowed = problem.split(" allowed: ")
    assert place == "campaign.yaml:2: channels: found a list;"
    assert allowed == "a mapping, for example `android_push:` on a line of its own"


def test_a_folder_whose_name_is_no_dag_id_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="found a folder 'two words'; allowed: letters, digits"):
        load_campaign(write(tmp_path / "two words", PUSH))


def test_a_query_that_would_not_be_asked_is_a_mistake(tmp_path: Path) -> None:
    text = PUSH + "targeting: {kind: broadcast}\n"
    assert problems(tmp_path, text) == [
        "audience.sql: found a query; allowed: none with targeting.kind: broadcast"
    ]
    (tmp_path / "back_in_stock/audience.sql").unlink()
    assert load(tmp_path, text, None).audience_sql is None


def test_an_empty_query_is_a_mistake(tmp_path: Path) -> None:
    assert problems(tmp_path, PUSH, " \n") == [
        "audience.sql: found an empty file; allowed: the query that gives the people"
    ]


# Rules across fields


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        # nothing is sent
        ({}, "channels: found no channel; allowed: one or more of android_push, ios_push"),
        # a channel without content
        ({"channels": {"ios_push": {}}}, "channels.ios_push: found no text; allowed: message.text, or"),
        ({"channels": {"inbox": {"text": "T"}}}, "channels.inbox: found no title; allowed: message.title, or"),
        ({"channels": {"email": {"from_address": 1, "subject": "S"}}}, "found neither html nor text"),
        # content without a channel
        ({"message": {"text": "T"}, "channels": {"email": EMAIL}}, "message: found a message that no channel shows"),
        (
            {"channels": {"email": EMAIL}, "push_expiry": {"length": 1, "unit": "days"}},
            "push_expiry: found an expiry without push",
        ),
        # languages
        (
            {"channels": {"email": {**EMAIL, "translations": {"fr": {"subject": "S", "text": "T"}}}}},
            "language: found translations without language",
        ),
        (
            {"language": "fr", "channels": {"sms": {**SMS, "translations": {"fr": {"text": "T"}}}}},
            "language: found 'fr', which is also a translation; allowed: another language",
        ),
        (
            {"language": "en", "channels": {"email": {**EMAIL, "translations": {"fr": {"subject": "S"}}}}},
            "channels.email.translations.fr: found no text; allowed: text, as in channels.email",
        ),
        (
            {
                "language": "en",
                "channels": {"email": {**EMAIL, "translations": {"fr": {"subject": "S", "text": "T", "html": "H"}}}},
            },
            "channels.email.translations.fr.html: found html, which channels.email lacks",
        ),
        (
            {
                "language": "en",
                "message": {"text": "T", "translations": {"fr": {"text": "T"}}},
                "channels": {"ios_push": {}, "sms": {"sender": "S", "text": "T"}},
            },
            "channels.sms.translations: found no fr; allowed: every language",
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
            "channels.web_push: found words of its own in a campaign with translations",
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
            "schedule: found '@daily' with send.kind: recurring; allowed: no schedule",
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
            "found 20:00 to 08:00; allowed: a window that starts before it ends",
        ),
        (
            {
                "channels": {"email": EMAIL},
                "send": {
                    "kind": "triggered", **ENDLESS,
                    "trigger": {"kind": "location", "locations": [4], "when": "dwell"},
                },
            },
            "found no dwell_minutes; allowed: dwell_minutes with when: dwell",
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
            "encryption: found encryption beside template",
        ),
        # people
        ({"channels": {"email": EMAIL}, "targeting": {"kind": "saved_segments", "ids": []}}, "at least 1 item"),
        (
            {"channels": {"email": EMAIL}, "targeting": {"kind": "conditions", "where": {}}},
            "found neither all nor any; allowed: one of them",
        ),
        # templates
        (
            {"template": {"id": 4, "channels": ["email"]}, "channels": {"email": EMAIL}},
            "channels: found channels beside template; allowed: template.channels",
        ),
        (
            {"template": {"id": 4, "channels": ["email"]}, "message": {"text": "T"}},
            "message: found message beside template",
        ),
        (
            {"template": {"id": 4, "channels": ["email"]}, "targeting": {"kind": "broadcast"}},
            "targeting: found kind: broadcast with a template",
        ),
        (
            {"template": {"id": 4, "channels": ["email"]}, "send": TONIGHT},
            "send: found kind: once with a template",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], problem: str) -> None:
    assert problem in broken(**fields)


PUSHED: dict[str, Any] = {"message": {"title": "T", "text": "W"}, "channels": {"ios_push": {}}}
TWO_LANGUAGES: dict[str, Any] = {
    "language": "en",
    "message": {"title": "T", "text": "W", "translations": {"fr": {"title": "T", "text": "M"}}},
    "channels": {"ios_push": {}},
}
EXECUTED: dict[str, Any] = {"template": {"id": 4, "channels": ["email"]}}
HALF: dict[str, Any] = {"percent": 50}
BROADCAST: dict[str, Any] = {**PUSHED, "targeting": {"kind": "broadcast"}}
QUERY_ZONE = {"time_zone": "query", "default_time_zone": "Asia/Tokyo"}
WINDOW = {"earliest": "09:00", "latest": "20:00", **QUERY_ZONE}


def until(day: str | None) -> dict[str, Any]:
    return {"until": {"time": "10:00", "time_zone": "UTC", **({"date": day} if day else {})}}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        # variants
        ({**PUSHED, "variants": {"a": {"percent": 100}}}, "variants: found one variant; allowed: two or more, or none"),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {"percent": 49.9}}},
            "variants: found percents that add up to 99.9; allowed: percents that add up to 100",
        ),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {**HALF, "channels": {"sms": SMS}}}},
            "variants.b.channels.sms: found sms, which the campaign lacks; allowed: its own channels",
        ),
        (
            {"channels": {"sms": SMS}, "variants": {"a": HALF, "b": {**HALF, "message": {"text": "W"}}}},
            "variants.b.message: found a message that no channel shows",
        ),
        (
            {**PUSHED, "variants": {"a": HALF, "b": {**HALF, "template": EXECUTED["template"]}}},
            "variants.b.template: found a template in a campaign without one; allowed: template in both, or in neither",
        ),
        (
            {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "template": {"id": 5, "channels": ["sms"]}}}},
            "variants.b.template.channels: found sms; allowed: email, as in the campaign",
        ),
        (
            {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "channels": {"sms": SMS}}}},
            "variants.b.channels: found channels beside template; allowed: template.channels",
        ),
        (
            {**EXECUTED, "variants": {"a": HALF, "b": {**HALF, "message": {"text": "T"}}}},
            "variants.b.message: found message beside template",
        ),
        (
            {**TWO_LANGUAGES, "variants": {"a": HALF, "b": {**HALF, "message": {"text": "Other"}}}},
            "variants.b: found words in en; allowed: en, fr, as in the campaign",
        ),
        (
            {
                **TWO_LANGUAGES,
                "variants": {
                    "a": HALF,
                    "b": {**HALF, "message": {"text": "Other", "translations": {"fr": {"text": "Autre"}}}},
                },
            },
            "variants.b.message.translations.fr: found no title; allowed: title, as in message",
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
        # people whom the service chooses
        *(
            ({**BROADCAST, **fields}, f"{path}: found {path.rpartition('.')[2]} with targeting.kind: broadcast; ")
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
                "gates.spread": {"gates": {"spread": {}}},
                "send.time_zone": {"send": {"kind": "once", "time": "20:00", **QUERY_ZONE}},
            }.items()
        ),
        (
            {
                "language": "en",
                "channels": {"sms": {**SMS, "translations": {"fr": {"text": "T"}}}},
                "targeting": {"kind": "saved_segments", "ids": [4]},
            },
            "channels.sms.translations: found translations that are sent apart with targeting.kind: saved_segments",
        ),
        # what starts the DAG
        (
            {**PUSHED, "schedule": "@daily", "after": ["stock"]},
            "after: found after beside schedule; allowed: what starts the DAG: a clock or assets, not both",
        ),
        (
            {**PUSHED, "schedule_time_zone": "Europe/Dublin"},
            "schedule_time_zone: found schedule_time_zone without schedule; allowed: schedule_time_zone with schedule",
        ),
        # days
        (
            {**PUSHED, "start": "2027-02-01", "send": {**TONIGHT, "date": "2027-01-31"}},
            "send.date: found 2027-01-31, before start (2027-02-01); allowed: a date on or after start",
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
            "push_expiry.until: found no date with send.kind: recurring; allowed: date, or length and unit",
        ),
        # waves and zones
        (
            {**PUSHED, "send": TONIGHT, "gates": {"spread": {}}},
            "gates.spread: found spread with send.kind: once; allowed: send.kind: now, because a wave is judged",
        ),
        (
            {**PUSHED, "gates": {"window": {"earliest": "09:00", "latest": "20:00", "time_zone": "query"}}},
            "found no default_time_zone; allowed: default_time_zone with time_zone: query, and only there",
        ),
        (
            {**PUSHED, "gates": {"window": {**WINDOW, "time_zone": "Asia/Tokyo"}}},
            "found default_time_zone with time_zone: Asia/Tokyo; allowed: default_time_zone with time_zone: query",
        ),
        (
            {
                **PUSHED,
                "gates": {"window": WINDOW},
                "send": {"kind": "once", "time": "20:00", "time_zone": "query", "default_time_zone": "UTC"},
            },
            "gates.window.default_time_zone: found Asia/Tokyo beside send.default_time_zone: UTC; allowed: the same",
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
        {**PUSHED, "gates": {"window": WINDOW, "spread": {"shares": [5]}}},
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


# What a channel says


def test_a_channel_says_what_is_shared_unless_it_has_words_of_its_own() -> None:
    whole = campaign(
        message={
            "title": "T",
            "text": "Shared",
            "url": "https://a.example",
            "picture": "https://a.example/p.png",
        },
        channels={
            "android_push": {},
            "ios_push": {"text": "Own"},
            "web_push": {"browsers": ["chrome"], "title": "W"},
        },
    )
    assert whole.words(Channel.ANDROID_PUSH).text == "Shared"
    ios = whole.words(Channel.IOS_PUSH)
    assert (ios.title, ios.text, ios.url, ios.picture) == (
        "T",
        "Own",
        "https://a.example",
        "https://a.example/p.png",
    )
    assert whole.words(Channel.WEB_PUSH).title == "W"
    assert whole.channels.own_words(Channel.ANDROID_PUSH) == {}


def test_a_campaign_can_be_made_in_python() -> None:
    made = Campaign(
        title="A",
        message=Message(title="T", text="W"),
        channels=Channels(android_push=AndroidPush(), web_push=WebPush(browsers=("chrome",))),
    )
    assert made.used() == (Channel.ANDROID_PUSH, Channel.WEB_PUSH)


# Languages

PERIOD_END = datetime(2026, 3, 2, tzinfo=UTC)


def two_languages(**more: Any) -> Campaign:
    translations = {"fr": {"subject": "Bonjour", "text": "Mots"}, "de": {"subject": "Hallo", "text": "Worte"}}
    return campaign(language="en", channels={"email": {**EMAIL, "translations": translations}, **more})


def test_an_email_in_several_languages_has_an_edition_for_each_its_own_language_first() -> None:
    assert two_languages().languages_apart() == ("en", "de", "fr")


def test_an_edition_has_one_language_and_nothing_left_to_choose() -> None:
    french = two_languages().edition(Edition("fr"), PERIOD_END)
    assert french.channels.email == Email(from_address=7, subject="Bonjour", text="Mots")
    assert french.languages_apart() == ()
    assert two_languages().edition(Edition("en"), PERIOD_END).channels.email == Email(**EMAIL)


def test_an_edition_in_a_language_without_words_is_refused() -> None:
    with pytest.raises(CampaignError, match="no words in 'es'"):
        two_languages().edition(Edition("es"), PERIOD_END)


def test_the_service_chooses_between_the_languages_of_a_push() -> None:
    push = campaign(
        language="en",
        message={"title": "T", "text": "W", "translations": {"fr": {"title": "T", "text": "M"}}},
        channels={"ios_push": {}},
    )
    assert push.languages() == ("en", "fr")
    assert push.languages_apart() == ()


# Variants


def test_a_variant_replaces_what_it_says_and_leaves_the_rest_also_after_the_ledger_kept_it() -> None:
    variants = {"a": HALF, "b": {**HALF, "message": {"text": "Other", "picture": "https://a.example/p.png"}}}
    made = campaign(
        message={"title": "T", "text": "W", "url": "https://a.example"},
        channels={"ios_push": {}, "android_push": {"title": "Own"}},
        variants=variants,
    )
    kept = Campaign.frozen(made.model_dump_json())
    for whole in (made, kept):
        other = whole.edition(Edition(variant="b"), PERIOD_END)
        assert other.words(Channel.IOS_PUSH) == Message(
            title="T", text="Other", url="https://a.example", picture="https://a.example/p.png"
        )
        assert other.words(Channel.ANDROID_PUSH).title == "Own"
        assert other.variants == {}
        assert whole.edition(Edition(variant="a"), PERIOD_END).message == made.message


def test_a_variant_replaces_a_channel_as_a_whole_and_a_template() -> None:
    channels = {"email": EMAIL, "sms": SMS}
    other = {**HALF, "channels": {"email": {**EMAIL, "subject": "Other"}}}
    made = campaign(channels=channels, variants={"a": HALF, "b": other}).edition(
        Edition(variant="b"), PERIOD_END
    )
    assert made.channels == Channels.model_validate({"email": {**EMAIL, "subject": "Other"}, "sms": SMS})
    template = {**HALF, "template": {"id": 5, "channels": ["email"]}}
    executed = campaign(**EXECUTED, variants={"a": HALF, "b": template})
    ids = [executed.edition(Edition(variant=name), PERIOD_END).template for name in ("a", "b")]
    assert [each and each.id for each in ids] == [4, 5]


def test_a_variant_that_the_campaign_lacks_is_refused() -> None:
    with pytest.raises(CampaignError, match="no variant 'c'"):
        campaign(**PUSHED).edition(Edition(variant="c"), PERIOD_END)


def test_the_dates_of_a_variants_inbox_follow_from_the_period_too() -> None:
    resolved = campaign(
        message={"title": "T", "text": "W"},
        channels={"inbox": {}},
        variants={"a": HALF, "b": {**HALF, "channels": {"inbox": {"keep": until(None)}}}},
    ).resolved(PERIOD_END)
    [(path, keep)] = resolved.keepings()
    assert path == ("variants", "b", "channels", "inbox", "keep")
    assert keep.ends_at() == datetime(2026, 3, 2, 10, tzinfo=UTC)


# Time


def once(**fields: Any) -> Campaign:
    send = {"kind": "once", "time": "18:30", "time_zone": "Europe/Dublin", **fields}
    return campaign(channels={"email": EMAIL}, send=send)


@pytest.mark.parametrize(
    ("zone", "period_end", "day"),
    [
        ("Europe/Dublin", "2026-11-20T06:00+00:00", date(2026, 11, 20)),
        # the day is that of the zone, not that of the period's own offset
        ("Pacific/Auckland", "2026-11-20T02:00+00:00", date(2026, 11, 20)),
        ("America/Los_Angeles", "2026-11-20T02:00+00:00", date(2026, 11, 19)),
        ("Europe/Dublin", "2026-06-20T00:30+05:00", date(2026, 6, 19)),
        # each person's own zone: the day in UTC
        ("user", "2026-11-20T23:30-05:00", date(2026, 11, 21)),
    ],
)
def test_a_once_off_is_on_the_day_that_the_period_ends(zone: str, period_end: str, day: date) -> None:
    resolved = once(time_zone=zone, time="23:00").resolved(datetime.fromisoformat(period_end))
    assert isinstance(resolved.send, Once)
    assert resolved.send.date == day


def test_a_once_off_with_a_date_keeps_it() -> None:
    resolved = once(date="2027-03-01").resolved(EVENING)
    assert isinstance(resolved.send, Once)
    assert resolved.send.date == date(2027, 3, 1)


def test_a_once_off_that_is_over_when_its_period_ends_is_refused() -> None:
    with pytest.raises(
        CampaignError, match=r"send: 18:30 on 2026-11-20 in Europe/Dublin is over when the period ends"
    ):
        once().resolved(datetime(2026, 11, 20, 18, 31, tzinfo=UTC))
    with pytest.raises(CampaignError, match="2026-11-19"):
        once(date="2026-11-19").resolved(EVENING)


def test_a_time_that_the_clocks_skip_becomes_the_one_an_hour_later() -> None:
    resolved = once(time="01:30", date="2027-03-28").resolved(EVENING)
    assert isinstance(resolved.send, Once)
    assert (resolved.send.time, resolved.send.date) == ("02:30", date(2027, 3, 28))


def test_a_time_that_comes_twice_is_the_first() -> None:
    until = Until(time="01:30", time_zone="Europe/Dublin", date=date(2026, 10, 25))
    assert datetime.fromtimestamp(until.timestamp(), UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_a_period_without_a_time_zone_is_refused() -> None:
    with pytest.raises(CampaignError, match="aware"):
        once().resolved(datetime(2026, 11, 20))  # noqa: DTZ001


def test_resolving_twice_changes_nothing() -> None:
    resolved = once().resolved(EVENING)
    assert resolved.resolved(EVENING) == resolved


@pytest.mark.rule("2.11/start_date", side="client")
@pytest.mark.parametrize("kind", [{"time": "08:00"}, {"kind": "triggered", "trigger": {"kind": "api"}}])
def test_recurring_and_triggered_campaigns_start_on_a_day_of_their_own(kind: dict[str, Any]) -> None:
    send = {"kind": "recurring", "time_zone": "UTC", "end": "2026-12-24", **kind}
    assert "send." in broken(channels={"email": EMAIL}, send=send)
    running = campaign(channels={"email": EMAIL}, send={**send, "start": "2026-11-20"})
    assert isinstance(running.send, Recurring | Triggered)
    assert running.send.start == date(2026, 11, 20)
    assert running.resolved(EVENING) == running


def test_the_ends_of_expiry_and_inbox_follow_from_the_period() -> None:
    until = {"until": {"time": "23:00", "time_zone": "Europe/Dublin"}}
    resolved = campaign(
        message={"title": "T", "text": "W"},
        channels={"ios_push": {}, "inbox": {"keep": {"length": 3, "unit": "days", **until}}},
        push_expiry=until,
    ).resolved(EVENING)
    assert resolved.push_expiry == Keeping(
        until=Until(time="23:00", time_zone="Europe/Dublin", date=date(2026, 11, 20))
    )
    assert resolved.channels.inbox is not None
    assert resolved.channels.inbox.keep is not None
    assert resolved.channels.inbox.keep.until == resolved.push_expiry.until


def test_a_moment_without_a_date_has_no_timestamp() -> None:
    with pytest.raises(ValueError, match="resolve the campaign first"):
        Until(time="23:00", time_zone="UTC").timestamp()


# What is over


@pytest.mark.parametrize(
    ("fields", "found", "ends"),
    [
        ({"send": {**DAILY, "end": "2026-12-24"}}, "send.end", "2026-12-25T00:00+00:00"),
        ({"send": {**DAILY, "end": "2026-12-24", "time_zone": "Asia/Tokyo"}}, "send.end", "2026-12-24T15:00+00:00"),
        # each person's own zone: the last in which that day ends
        ({"send": {**DAILY, "end": "2026-12-24", "time_zone": "user"}}, "send.end", "2026-12-25T12:00+00:00"),
        ({"push_expiry": until("2026-12-24")}, "push_expiry.until", "2026-12-24T10:00+00:00"),
        (
            {"channels": {"inbox": {"keep": until("2026-12-24")}}},
            "channels.inbox.keep.until",
            "2026-12-24T10:00+00:00",
        ),
    ],
)  # fmt: skip
def test_what_has_ended_by_now_is_refused_and_the_moment_is_told(
    fields: dict[str, Any], found: str, ends: str
) -> None:
    end, minute = datetime.fromisoformat(ends), timedelta(minutes=1)
    made = campaign(**{**PUSHED, **fields})
    made.check_not_over(EVENING, end)
    with pytest.raises(CampaignError) as error:
        made.check_not_over(EVENING, end + minute)
    assert str(error.value) == (
        f"{found}: found an end at {end:%Y-%m-%d %H:%M} UTC; "
        f"allowed: one after {end + minute:%Y-%m-%d %H:%M} UTC, for it is over by now"
    )


def test_what_has_no_end_is_never_over() -> None:
    for send in ({"kind": "now"}, DAILY):
        lasting = {"length": 3, "unit": "days"}
        campaign(**PUSHED, send=send, push_expiry=lasting).check_not_over(
            EVENING, datetime(2099, 1, 1, tzinfo=UTC)
        )


def test_an_end_that_follows_from_the_period_makes_the_launch_too_late() -> None:
    made = campaign(**PUSHED, push_expiry={"until": {"time": "23:30", "time_zone": "UTC"}})
    made.check_not_over(EVENING, EVENING)
    with pytest.raises(LateError, match=r"push_expiry\.until: found an end at"):
        made.check_not_over(EVENING, EVENING + timedelta(days=1))


def test_what_the_service_repeats_has_one_life_whichever_its_end() -> None:
    first = datetime(2026, 11, 20, tzinfo=UTC)
    for end in ("2026-12-24", "2027-12-24", "never"):
        assert campaign(**PUSHED, send={**DAILY, "end": end}).life == Period(first, first)
    assert campaign(**PUSHED, send=TONIGHT).life is None
    assert campaign(**PUSHED).life is None


def test_zones_are_sent_apart_for_what_is_said_or_for_when() -> None:
    windowed = campaign(**PUSHED, gates={"window": WINDOW}, send=TONIGHT)
    assert windowed.default_zone == "Asia/Tokyo"
    assert windowed.edition(Edition(time_zone="Asia/Tokyo"), PERIOD_END).send == windowed.send
    assert campaign(**PUSHED, send=TONIGHT).default_zone is None


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT device_id\nFROM devices\nWHERE seen > {{ ds }}", 3),
        ("SELECT device_id FROM devices\n{% if params.all %} WHERE true {% endif %}", 2),
        # as people write it: in quotes, where the database would compare with these very letters
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
