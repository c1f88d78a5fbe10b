"""Reading the folder of a journey, and the messages about its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sendoff.campaign import (
    CampaignExclusion,
    ListExclusion,
    QueryExclusion,
    VerdictExclusion,
    campaign_schema,
    check_campaign,
    check_folders,
    is_campaign_folder,
    journey_schema,
    load_campaign,
    load_journey,
)
from sendoff.errors import CampaignError

ROOT = Path(__file__).parents[3]
STEP = """    message: {{title: {name}, text: Welcome to the shop}}
    channels: {{android_push: {{}}}}
"""
WHOLE = (
    """title: Welcome
schedule: "0 9 * * *"
start: 2026-01-05
warehouse: shop
exits:
  - {kind: verdicts, are: [engaged]}
  - {kind: query, file: bought.sql}
  - {kind: list, name: staff}
steps:
  - name: hello
"""
    + STEP.format(name="Hello")
    + """  - name: nudge
    wait: {length: 2, unit: days}
    when: {of: hello, are: [delivered], unknowable: include}
"""
    + STEP.format(name="Nudge")
    + """  - name: last
    title: The last one
    when: {of: hello, are: [missing]}
    audience: {cap: {messages: 2, days: 7}}
    gates: {least: 5}
"""
    + STEP.format(name="Last")
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "welcome"
    path.mkdir()
    (path / "journey.yaml").write_text(WHOLE)
    for name in ("audience", "bought"):
        (path / f"{name}.sql").write_text("SELECT 1 AS device_id")
    return path


def mistakes(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Return the mistakes of a changed journey, each with its line."""
    text = WHOLE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "journey.yaml").write_text(text)
    with pytest.raises(CampaignError) as caught:
        load_journey(folder)
    return [str(each).rpartition("/")[2] for each in caught.value.mistakes]


def test_each_step_is_a_campaign_to_recipients_of_an_earlier_one(folder: Path) -> None:
    journey = load_journey(folder)
    hello, nudge, last = journey.campaigns
    assert [each.name for each in journey.campaigns] == ["welcome.hello", "welcome.nudge", "welcome.last"]
    titles = [each.campaign.title for each in journey.campaigns]
    assert titles == ["Welcome: hello", "Welcome: nudge", "The last one"]
    assert [each.audience_sql is None for each in journey.campaigns] == [False, True, True]
    assert [each.campaign.schedule for each in journey.campaigns] == ["0 9 * * *", None, None]
    assert {each.campaign.warehouse for each in journey.campaigns} == {"shop"}
    source = nudge.campaign.audience.source
    assert source
    assert (source.of, source.are, source.unknowable) == ("welcome.hello", ("delivered",), "include")
    assert last.campaign.audience.cap
    assert [journey.earlier(number) for number in range(3)] == [None, hello, hello]
    assert load_campaign(folder / "nudge") == nudge


def test_exits_and_earlier_recipients_are_excluded(folder: Path) -> None:
    hello, nudge, last = (each.campaign.audience.exclude for each in load_journey(folder).campaigns)
    query, on_list = QueryExclusion(file="bought.sql"), ListExclusion(name="staff")
    before = CampaignExclusion(name="welcome.hello", days=36_500, reason="took it before")
    assert hello == (query, on_list, before)
    opened = [VerdictExclusion(of=f"welcome.{name}", are=("engaged",)) for name in ("hello", "nudge")]
    assert nudge == (opened[0], query, on_list)
    assert last == (*opened, query, on_list)
    (folder / "journey.yaml").write_text(WHOLE.replace("exits:", "again: {length: 30, unit: days}\nexits:"))
    assert CampaignExclusion(name="welcome.hello", days=30, reason="took it before") in (
        load_journey(folder).campaigns[0].campaign.audience.exclude
    )


def test_the_messages_of_a_step_without_a_wait_may_end_at_a_time_of_the_day(folder: Path) -> None:
    expiry = "    push_expiry: {until: {time: '21:00', time_zone: UTC}}\n"
    (folder / "journey.yaml").write_text(WHOLE.replace("    gates: {least: 5}\n", expiry))
    assert load_journey(folder).campaigns[2].campaign.push_expiry
    shorter = WHOLE.replace("    gates: {least: 5}\n", f"    wait: {{length: 1, unit: hours}}\n{expiry}")
    (folder / "journey.yaml").write_text(shorter)
    with pytest.raises(CampaignError, match=r"push_expiry.until: found no date in a step"):
        load_journey(folder)


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("of: hello, are: [delivered]", "of: helo, are: [delivered]", "'helo' (did you mean 'hello'?)"),
        ("    wait: {", "    wiat: {", "'wiat' is not a field (did you mean 'wait'?)"),
        ("wait: {length: 2, unit: days}", "wait: {length: 2, unit: dais}", "(did you mean 'days'?)"),
        ("title: Nudge", "titel: Nudge", "'titel' is not a field (did you mean 'title'?)"),
        ("    when: {of: hello, are: [missing]}\n", "", "the required field 'when' is missing"),
        ("  - name: hello\n", "  - name: hello\n    wait: {length: 1, unit: days}\n", "in the first step"),
        ("name: last", "name: nudge", "found 'nudge' twice"),
        ("name: last", "name: a.b", "letters, digits, - and _"),
        ("name: last", "name: last-test", "without -test at the end, which tests have"),
        (
            "    gates: {least: 5}",
            "    schedule: '@daily'",
            "found schedule in a step. Move it to the journey",
        ),
        (
            "    gates: {least: 5}",
            "    after: [spring]",
            "found after in a step. Remove it, because a journey starts by its schedule",
        ),
        (
            "exits:\n",
            "again: {length: 36, unit: hours}\nexits:\n",
            "journey.yaml:5: again: found 36 hours, which is not in whole days. Use days, such as {length: 30,",
        ),
        ("{least: 5}", "{lateness: {length: 1, unit: days}}", "in a later step"),
        (
            "    gates: {least: 5}",
            "    send: {kind: once, time: '09:00', time_zone: Europe/Dublin}",
            "found kind: once without a date in a later step",
        ),
        (
            "    wait: {length: 2, unit: days}",
            "    wait: {length: 2, unit: days}\n    push_expiry: {until: {time: '21:00', time_zone: UTC}}",
            "push_expiry.until: found no date in a step that is due after a wait. Use a date, or length and unit",
        ),
        (
            "    when: {of: hello, are: [missing]}",
            "    when: {of: nudge, are: [missing]}\n    push_expiry: {until: {time: '21:00', time_zone: UTC}}",
            "push_expiry.until: found no date in a step that is due after a wait. Use a date, or length and unit",
        ),
        ("{cap: {messages: 2, days: 7}}", "{source: {kind: verdicts, of: a, are: [engaged]}}", "Use when"),
        ("    gates: {least: 5}", "    targeting: {kind: broadcast}", "whose recipients it chooses"),
        (
            'schedule: "0 9 * * *"',
            'schedule: "0 9 * *"',
            "journey.yaml:2: schedule: found 4 fields. Use a cron",
        ),
        ("file: bought.sql", "file: gone.sql", "gone.sql: the file does not exist"),
        ("kind: list, name", "kind: lists, name", "'lists' (did you mean 'list'?) is not a kind"),
        ("title: Last, text: Welcome to the shop", "title: Last, text: ''", "a text that is not empty"),
        ("title: Welcome\n", "title: Welcome\nstpes: []\n", "(did you mean 'steps'?)"),
        ("file: bought.sql", "file: .bought.sql", "found '.bought.sql'. Use the name of a file"),
    ],
)
def test_a_mistake_has_its_line_and_a_suggestion(folder: Path, old: str, new: str, mistake: str) -> None:
    found = mistakes(folder, (old, new))
    assert any(mistake in each for each in found), found
    assert len(found) <= 2, found
    if "gone" not in mistake:
        assert all(each.startswith("journey.yaml:") for each in found)


def test_the_query_of_the_first_step_is_read_in_parts_only_if_it_selects_them(folder: Path) -> None:
    change = ("  - name: hello\n", "  - name: hello\n    audience: {partitions: 4}\n")
    (mistake,) = mistakes(folder, change)
    assert mistake.startswith(
        "audience.sql: found audience.partitions: 4 without :part and :parts in the query"
    )
    (folder / "audience.sql").write_text("SELECT 1 AS device_id WHERE 1 % :parts = :part")
    assert load_journey(folder).campaigns[0].campaign.audience.partitions == 4


def test_the_mistakes_of_all_steps_are_reported_with_their_lines(folder: Path) -> None:
    found = mistakes(folder, ("unit: days}\n    when", "unit: dais}\n    when"), ("least: 5", "least: 0"))
    assert [each.partition(": ")[0] for each in found] == ["journey.yaml:14", "journey.yaml:22"]
    found = mistakes(
        folder, ("title: Nudge, text: Welcome to the shop", "title: Nudge"), ("name: last", "name: a.b")
    )
    assert [each.partition(": ")[0] for each in found] == ["journey.yaml:18"]


def test_defaults_apply_to_every_step(folder: Path) -> None:
    (folder.parent / "defaults.yaml").write_text(
        "connection: other\nsegment_size: 50\ngates: {lateness: {length: 3, unit: days}}\n"
    )
    campaigns = [each.campaign for each in load_journey(folder).campaigns]
    assert {(each.connection, each.segment_size) for each in campaigns} == {("other", 50)}
    assert [each.gates.lateness is None for each in campaigns] == [False, True, True]


def test_defaults_of_the_query_apply_to_the_first_step(folder: Path) -> None:
    (folder.parent / "defaults.yaml").write_text(
        "audience:\n  columns: {device_id: {type: integer}}\n  partitions: 4\n  priority: {rank: 2}\n"
    )
    (folder / "audience.sql").write_text("SELECT 1 AS device_id WHERE 1 % :parts = :part")
    audiences = [each.campaign.audience for each in load_journey(folder).campaigns]
    assert [(list(each.columns), each.partitions) for each in audiences] == [
        (["device_id"], 4),
        ([], None),
        ([], None),
    ]
    assert [each.priority and each.priority.rank for each in audiences] == [2, 2, 2]
    for own in ("columns: {device_id: {type: integer}}", "partitions: 4"):
        (mistake,) = mistakes(folder, ("{cap: {messages: 2, days: 7}}", f"{{{own}}}"))
        assert f": steps[2].audience.{own.partition(':')[0]}: found" in mistake


@pytest.mark.parametrize("file", ["welcome/journey.yaml", "defaults.yaml"])
def test_every_step_has_the_time_zone_of_the_schedule(folder: Path, file: str) -> None:
    with (folder.parent / file).open("a") as text:
        text.write("schedule_time_zone: Europe/Dublin\n")
    campaigns = [each.campaign for each in load_journey(folder).campaigns]
    assert [each.clock_zone(None) for each in campaigns] == ["Europe/Dublin"] * 3
    assert [each.schedule for each in campaigns] == ["0 9 * * *", None, None]
    for each in campaigns:
        check_campaign(each)


def test_a_default_of_a_step_names_the_file_that_sets_it(folder: Path) -> None:
    (folder.parent / "defaults.yaml").write_text(
        "warehouse: other\nowner: crm\ngates:\n  least: 2\n  lateness: {length: 3, unit: days}\n"
    )
    hello, nudge, last = (
        {each.path: (each.origin, each.line) for each in step.settings()}
        for step in load_journey(folder).campaigns
    )
    for step in (hello, nudge, last):
        assert (step["warehouse"], step["owner"]) == (("journey.yaml", None), ("defaults.yaml", 2))
    assert hello["gates.lateness"] == ("defaults.yaml", 5)
    assert nudge["gates.lateness"] == ("journey.yaml", None)
    assert (hello["start"], nudge["start"]) == (("journey.yaml", None), ("built in", None))
    assert (nudge["gates.least"], last["gates.least"]) == (("defaults.yaml", 4), ("journey.yaml", None))


def test_a_folder_is_a_journey_or_a_campaign(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_campaign_folder(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(CampaignError, match=r"this is a journey. Name one of its steps, such as hello"):
        load_campaign(Path())
    assert load_campaign(Path("nudge")).name == "welcome.nudge"
    with pytest.raises(
        CampaignError, match=r"this is a journey. Name one of its steps, such as .*welcome/hello"
    ):
        load_campaign(folder)
    with pytest.raises(CampaignError, match=r"it has no step 'nugde' \(did you mean 'nudge'\?\)"):
        load_campaign(folder / "nugde")
    (folder / "campaign.yaml").write_text("title: A")
    with pytest.raises(CampaignError, match=r"campaign.yaml: found this file beside journey.yaml"):
        load_journey(folder)


def test_a_folder_inside_a_journey_never_replaces_a_step(folder: Path) -> None:
    inner = folder / "hello"
    inner.mkdir()
    (inner / "campaign.yaml").write_text(
        "title: Other\nschedule: '@daily'\n" + STEP.format(name="x").replace("    ", "")
    )
    (inner / "audience.sql").write_text("SELECT 2 AS device_id")
    problem = r"hello: found a folder with the name of a step.* Move or remove it"
    with pytest.raises(CampaignError, match=problem):
        load_campaign(inner)
    (broken,) = check_folders([folder.parent])
    assert [(each.file, each.text.partition(".")[0]) for each in broken.mistakes] == [
        (inner, "found a folder with the name of a step, whose campaign is in journey")
    ]
    inner.rename(folder / "pictures")
    assert load_campaign(folder / "hello").name == "welcome.hello"
    with pytest.raises(CampaignError, match=r"it has no step 'pictures'"):
        load_campaign(folder / "pictures")


def test_folders_of_journeys_are_checked_step_by_step(folder: Path) -> None:
    checked = check_folders([folder.parent])
    assert [each.name for each in checked] == ["welcome.hello", "welcome.nudge", "welcome.last"]
    assert not any(each.mistakes for each in checked)
    (folder / "journey.yaml").write_text(WHOLE.replace("of: hello, are: [missing]", "of: x, are: [missing]"))
    (broken,) = check_folders([folder.parent])
    assert broken.mistakes[0].line == 20


def test_a_step_and_a_folder_do_not_have_the_same_name(folder: Path) -> None:
    other = folder.parent.parent / "more" / "welcome.nudge"
    other.mkdir(parents=True, exist_ok=True)
    (other / "campaign.yaml").write_text("title: Other\n" + STEP.format(name="x").replace("    ", ""))
    (other / "audience.sql").write_text("SELECT 2 AS device_id")
    for places in ([folder.parent, other.parent], [other.parent, folder.parent, folder.parent]):
        found = {str(each): each for checked in check_folders(places) for each in checked.mistakes}
        (mistake,) = found.values()
        assert mistake.file in (other, folder / "nudge")
        assert mistake.text.endswith("has the same name. Rename one of the two")


def test_the_example_is_a_journey_of_four_steps() -> None:
    journey = load_journey(ROOT / "examples/journeys/welcome")
    assert [each.name.partition(".")[2] for each in journey.campaigns] == [
        "hello",
        "tips",
        "discount",
        "goodbye",
    ]


def test_the_schema_has_the_fields_of_a_step_and_not_those_of_the_journey() -> None:
    schema = journey_schema()
    step = schema["$defs"]["Step"]["properties"]
    assert {"name", "wait", "when", "channels", "gates"} <= step.keys()
    assert not {"schedule", "connection", "rules"} & step.keys()
    assert "source" not in schema["$defs"]["AudienceRules"]["properties"]
    assert {"title", "steps", "exits", "again"} <= schema["properties"].keys()
    assert "Journey" not in campaign_schema()["$defs"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["journey.yaml:1: the file is empty. Add the campaign"]),
        ("# later\n", ["journey.yaml:1: the file is empty. Add the campaign"]),
        ("- 1\n", ["journey.yaml:1: found a list. Use a mapping"]),
    ],
)
def test_a_file_without_fields_is_one_mistake(folder: Path, text: str, said: list[str]) -> None:
    assert mistakes(folder, (WHOLE, text)) == said


def test_a_later_step_may_send_on_a_date(folder: Path) -> None:
    dated = "    gates: {least: 5}\n    send: {kind: once, date: 2027-01-31, time: '09:00', time_zone: UTC}\n"
    (folder / "journey.yaml").write_text(WHOLE.replace("    gates: {least: 5}\n", dated))
    *_, last = load_journey(folder).campaigns
    assert last.campaign.send.kind == "once"
