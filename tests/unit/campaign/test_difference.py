"""Comparing two versions of a campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from sendoff.campaign import Campaign, Change, Part, compare_campaigns, load_campaign, load_journey
from sendoff.campaign.difference import _FIELDS, CampaignDifference

PUSH = """
title: Back
message: {title: Hello, text: Come back}
channels:
  android_push:
  ios_push:
"""
SPOKEN = """
title: Back
language: en
message: {title: Hello, text: Come back, translations: {fr: {title: Bonjour, text: Revenez}}}
channels:
  android_push:
  ios_push:
"""
SQL = "SELECT device_id FROM devices"


def write(folder: Path, campaign: str, **files: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "campaign.yaml").write_text(campaign)
    (folder / "audience.sql").write_text(files.pop("audience", SQL))
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


def compare(place: Path, old: str, new: str) -> CampaignDifference:
    folders = (write(place / "old/back", old), write(place / "new/back", new))
    return compare_campaigns(*map(load_campaign, folders))


def told(change: Change) -> tuple[str, str | None, str | None, list[str]]:
    places = [" ".join(filter(None, (at.variant, at.channel, at.language))) for at in change.places]
    return change.name, change.before, change.after, places


def test_equal_campaigns_do_not_differ_and_a_comment_changes_nothing_for_recipients(tmp_path: Path) -> None:
    same = compare(tmp_path / "1", PUSH, PUSH)
    assert (same.changes, same.files, same.affects_recipients) == ((), (), False)
    commented = compare(tmp_path / "2", PUSH, f"# A comment\n{PUSH}on_doubt: hold\n")
    assert (commented.changes, commented.files, commented.affects_recipients) == (
        (),
        ("campaign.yaml",),
        False,
    )


def test_a_shared_text_is_one_change_for_the_channels_that_show_it(tmp_path: Path) -> None:
    own = PUSH.replace("android_push:", "android_push: {title: Own}")
    found = compare(tmp_path, own, own.replace("Hello", "Welcome").replace("Come back", "Be back"))
    assert [told(change) for change in found.changes] == [
        ("text", "Come back", "Be back", ["android_push", "ios_push"]),
        ("title", "Hello", "Welcome", ["ios_push"]),
    ]


def test_a_new_translation_is_a_change_for_its_speakers_only(tmp_path: Path) -> None:
    link = "text: Come back, url: https://shop.example.com"  # a translation without one has the same
    found = compare(tmp_path, *(each.replace("text: Come back", link) for each in (PUSH, SPOKEN)))
    assert [told(change) for change in found.changes] == [
        ("title", "Hello", "Bonjour", ["android_push fr", "ios_push fr"]),
        ("text", "Come back", "Revenez", ["android_push fr", "ios_push fr"]),
    ]


def test_a_flag_is_compared_as_in_the_file(tmp_path: Path) -> None:
    email = "title: Back\nchannels: {email: {from_address: 1, subject: Hello, text: Hi, unsubscribe_header: %s}}\n"
    found = compare(tmp_path, email % "true", email % "false")
    assert [told(change)[:3] for change in found.changes] == [("unsubscribe_header", None, "false")]
    found = compare(tmp_path / "2", PUSH, PUSH.replace("ios_push:", "ios_push: {sandbox: true}"))
    assert [told(change)[:3] for change in found.changes] == [("sandbox", None, "true")]


def test_an_added_channel_comes_with_its_texts(tmp_path: Path) -> None:
    found = compare(tmp_path, PUSH, f"{PUSH}  sms: {{sender: Shop, text: Hi}}\n")
    assert [told(change) for change in found.changes] == [
        ("channel", None, "on", ["sms"]),
        ("sender", None, "Shop", ["sms"]),
        ("text", None, "Hi", ["sms"]),
    ]


@pytest.mark.parametrize("is_forwards", [True, False])
def test_a_variant_is_compared_with_the_text_that_everyone_got(tmp_path: Path, is_forwards: bool) -> None:
    varied = f"{PUSH}variants:\n  a: {{percent: 60}}\n  b: {{percent: 40, message: {{title: Hi}}}}\n"
    found = compare(tmp_path, *([PUSH, varied] if is_forwards else [varied, PUSH]))
    titles = ("Hello", "Hi") if is_forwards else ("Hi", "Hello")
    texts, *shares = found.changes
    assert told(texts) == ("title", *titles, ["b android_push", "b ios_push"])
    assert {change.part for change in shares} == {Part.SHARES}
    assert {change.name for change in shares} == {"variants", "variants.a.percent", "variants.b.percent"}


@pytest.mark.parametrize(
    ("lines", "part", "name", "value"),
    [
        ("audience: {holdout: {percent: 5}}", Part.SHARES, "audience.holdout.percent", "5"),
        (
            "audience: {cap: {messages: 3, days: 7, scope: channel:sms}}",
            Part.AUDIENCE,
            "audience.cap",
            "messages 3 days 7 scope channel:sms",
        ),
        (
            "audience: {exclude: [{kind: list, name: a}, {kind: list, name: b}]}",
            Part.AUDIENCE,
            "audience.exclude",
            "kind list name a; kind list name b",
        ),
        ("warehouse: other", Part.AUDIENCE, "warehouse", "other"),
        ("schedule: '@daily'\nstart: 2026-01-01", Part.TIMES, "schedule", "@daily"),
        ("gates: {most: 5}", Part.TIMES, "gates.most", "5"),
        ("approval: {needed: always}", Part.TIMES, "approval.needed", "always"),
        ("owner: crm", Part.NO_EFFECT, "owner", "crm"),
        ("tags: [spring, crm]", Part.NO_EFFECT, "tags", "spring, crm"),
        ("segment_size: 5", Part.NO_EFFECT, "segment_size", "5"),
        ("post_backs: {kinds: [open]}", Part.NO_EFFECT, "post_backs.kinds", "open"),
    ],
)
def test_a_field_belongs_to_the_part_that_it_acts_on(
    tmp_path: Path, lines: str, part: Part, name: str, value: str
) -> None:
    found = compare(tmp_path, PUSH, f"{PUSH}{lines}\n")
    assert (part, name, value) in [(change.part, change.name, change.after) for change in found.changes]
    assert found.affects_recipients is (part is not Part.NO_EFFECT)


MAIL = "title: Back\nlanguage: {}\nchannels: {{email: {{from_address: 1, subject: {}, text: T, translations: {}}}}}\n"
VARIED = f"{PUSH}variants: {{a: {{percent: 50}}, b: {{percent: 50, message: {{title: Hi}}}}}}\n"


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (
            PUSH,
            f"{PUSH}transactional: a receipt\n",
            (Part.AUDIENCE, "transactional", None, "a receipt", []),
        ),
        (f"{PUSH}topic: news\n", PUSH, (Part.AUDIENCE, "topic", "news", None, [])),
        (
            f"{PUSH}formerly: [old, older]\n",
            f"{PUSH}formerly: [older]\n",
            (Part.SHARES, "formerly", "old, older", "older", []),
        ),
        (
            VARIED,
            VARIED.replace("a: {percent: 50}, ", "").replace("}}}", "}}, a: {percent: 50}}"),
            (Part.SHARES, "variants", "a, b", "b, a", []),
        ),
        (
            MAIL.format("en", "Hello", "{fr: {subject: Salut, text: T}}"),
            MAIL.format("fr", "Salut", "{en: {subject: Hello, text: T}}"),
            (Part.MESSAGES, "subject", "Hello", "Salut", ["email other"]),
        ),
    ],
)
def test_a_change_of_who_gets_which_message_affects_recipients(
    tmp_path: Path, old: str, new: str, change: tuple[Part, str, str | None, str | None, list[str]]
) -> None:
    found = compare(tmp_path, old, new)
    assert [(each.part, *told(each)) for each in found.changes] == [change]
    assert found.affects_recipients
    assert found.may_send_again is (change[1] == "formerly")


def test_a_new_wait_of_a_step_affects_recipients(tmp_path: Path) -> None:
    step = f"    {PUSH.strip()}\n".replace("\n", "\n    ").rstrip()
    sides = []
    for side, wait in (("old", "{length: 2, unit: days}"), ("new", "{length: 5, unit: minutes}")):
        folder = tmp_path / side / "welcome"
        folder.mkdir(parents=True)
        steps = f"  - name: a\n{step}\n  - name: b\n    wait: {wait}\n    when: {{of: a, are: [delivered]}}\n{step}\n"
        (folder / "journey.yaml").write_text(f"title: Welcome\nsteps:\n{steps}")
        (folder / "audience.sql").write_text(SQL)
        sides.append(load_journey(folder).campaigns)
    first, second = (compare_campaigns(*pair) for pair in zip(*sides, strict=True))
    assert not first.changes
    assert [(each.part, *told(each)) for each in second.changes] == [
        (Part.TIMES, "wait", "2 days", "5 minutes", [])
    ]
    assert second.affects_recipients


def test_every_field_of_a_campaign_is_in_one_part() -> None:
    listed = [name for names in _FIELDS.values() for name in names.split()]
    assert sorted(name for name in listed if "." not in name) == sorted([*Campaign.model_fields, "wait"])


def test_queries_are_compared_and_a_list_of_people_is_only_counted(tmp_path: Path) -> None:
    rules = "audience: {exclude: [{kind: query, file: away.sql}, {kind: file, file: staff.csv}]}\n"
    old = write(tmp_path / "old/back", PUSH + rules, away_sql=SQL, staff_csv="device_id\n1\n")
    new = write(
        tmp_path / "new/back",
        PUSH + rules,
        audience=f"{SQL} WHERE 1",
        away_sql=f"{SQL} WHERE 2",
        staff_csv="device_id\n777\n888\n",
    )
    found = compare_campaigns(load_campaign(old), load_campaign(new))
    assert [(change.name, change.before, change.after, change.is_file) for change in found.changes] == [
        ("audience.sql", SQL, f"{SQL} WHERE 1", True),
        ("away.sql", SQL, f"{SQL} WHERE 2", True),
        ("staff.csv", "2 lines", "3 lines", False),
    ]
    assert found.files == ("audience.sql", "away.sql", "staff.csv")


def test_a_new_list_of_people_is_counted_and_an_empty_list_is_no_value(tmp_path: Path) -> None:
    rules = "tags: [crm]\naudience: {exclude: [{kind: file, file: staff.csv}]}\n"
    old = load_campaign(write(tmp_path / "old/back", PUSH))
    new = load_campaign(write(tmp_path / "new/back", PUSH + rules, staff_csv="device_id\n1\n"))
    (change,) = (each for each in compare_campaigns(old, new).changes if each.name == "staff.csv")
    assert (change.before, change.after) == (None, "2 lines")
    (change,) = (each for each in compare_campaigns(new, old).changes if each.name == "tags")
    assert (change.before, change.after) == ("crm", None)


def test_queries_for_comparisons_are_compared_and_have_no_effect_on_recipients(tmp_path: Path) -> None:
    old = write(tmp_path / "old/back", PUSH, outcome_sql=SQL)
    new = write(tmp_path / "new/back", PUSH, outcome_sql=f"{SQL} WHERE 1", before_sql=SQL)
    found = compare_campaigns(load_campaign(old), load_campaign(new))
    assert [(change.part, change.name, change.before, change.after) for change in found.changes] == [
        (Part.NO_EFFECT, "outcome.sql", SQL, f"{SQL} WHERE 1"),
        (Part.NO_EFFECT, "before.sql", None, SQL),
    ]
    assert found.files == ("before.sql", "outcome.sql")
    assert not found.affects_recipients


def test_the_address_and_the_headers_of_a_webhook_stay_secret(tmp_path: Path) -> None:
    body = "body: {kind: raw, content: Hello}"
    webhook = f"{{address: https://a.example/planted-1, headers: {{Key: planted-2}}, {body}}}"
    hook = f"title: Hook\nchannels:\n  webhook: {webhook}\n"
    found = compare(tmp_path, hook, hook.replace("planted-", "planted-9").replace("Hello", "Welcome"))
    assert {change.name for change in found.changes} == {"address", "headers.Key", "body.content"}
    assert "planted" not in repr([told(change) for change in found.changes])
    assert ("Hello", "Welcome") in [(change.before, change.after) for change in found.changes]


def test_a_new_name_or_connection_may_send_a_period_again(tmp_path: Path) -> None:
    old = load_campaign(write(tmp_path / "back", PUSH))
    assert compare_campaigns(old, load_campaign(write(tmp_path / "again", PUSH))).may_send_again
    known = load_campaign(write(tmp_path / "known", f"{PUSH}formerly: [back]\n"))
    assert not compare_campaigns(old, known).may_send_again
    assert compare(tmp_path / "1", PUSH, f"{PUSH}connection: other\n").may_send_again
    assert not compare(tmp_path / "2", PUSH, f"{PUSH}warehouse: other\n").may_send_again
    assert not compare_campaigns(None, old).may_send_again


def test_a_new_campaign_shows_everything_but_its_defaults(tmp_path: Path) -> None:
    found = compare_campaigns(None, load_campaign(write(tmp_path / "back", PUSH)))
    assert [change.name for change in found.changes] == ["channel", "title", "text", "title", "audience.sql"]
    assert all(change.after for change in found.changes)
    assert found.files == ("audience.sql", "campaign.yaml")
