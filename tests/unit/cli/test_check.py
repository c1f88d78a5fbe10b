"""``sendoff check``: campaign folders in CI."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

Command = Callable[..., "subprocess.CompletedProcess[str]"]

FINE = "title: Fine\nmessage: {title: Hello, text: Hello}\nchannels:\n  android_push:\n"
LONG = f"title: Long\nmessage:\n  title: {'a' * 90}\n  text: Hello\nchannels:\n  android_push:\n"
WRONG = "titel: Wrong\nmessage: {text: Hello}\nchannels:\n  fax:\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: str, campaign: str, query: str = "SELECT device_id FROM devices") -> None:
    path = Path(folder)
    path.mkdir(parents=True)
    (path / "campaign.yaml").write_text(campaign)
    (path / "audience.sql").write_text(query)


def test_all_mistakes_of_all_campaigns_are_listed_with_file_and_line(sendoff: Command) -> None:
    write("campaigns/fine", FINE)
    write("campaigns/team/wrong", WRONG)
    write("campaigns/team/jinja", FINE, "SELECT device_id FROM devices\nWHERE day = '{{ ds }}'")
    done = sendoff("check", "campaigns")
    assert (done.returncode, done.stderr) == (1, "")
    places = [line.partition(": mistake: ")[0] for line in done.stdout.splitlines()]
    assert places == [
        "campaigns/team/jinja/audience.sql:2",
        "campaigns/team/wrong/campaign.yaml:1",
        "campaigns/team/wrong/campaign.yaml:1",
        "campaigns/team/wrong/campaign.yaml:4",
        "3 folders checked: 4 mistakes, 0 warnings",
    ]
    assert "'titel' is not a field (did you mean 'title'?)" in done.stdout


@pytest.mark.parametrize(
    ("query", "line", "text"),
    [
        ("SELECT device_id\nFROM devices\nWHERE day < :period_ende", 3, "did you mean :period_end?"),
        (
            "SELECT device_id FROM devices WHERE day > :start",
            1,
            "(did you mean :period_start?)",
        ),
        ("-- Everyone\nDELETE FROM devices", 2, "found a statement that begins with DELETE"),
        ("SELECT device_id FROM devices;\nDROP TABLE devices", 1, "found more than one statement"),
    ],
)
@pytest.mark.parametrize("file", ["audience.sql", "outcome.sql", "returned.sql"])
def test_a_query_that_a_launch_refuses_is_a_mistake(
    sendoff: Command, file: str, query: str, line: int, text: str
) -> None:
    write("one", f"{FINE}audience: {{exclude: [{{kind: query, file: returned.sql}}]}}\n")
    Path("one/returned.sql").write_text("SELECT device_id FROM devices WHERE day >= :period_start")
    Path("one", file).write_text(query)
    done = sendoff("check", "one")
    assert done.returncode == 1
    mistake, total = done.stdout.splitlines()
    assert mistake.startswith(f"one/{file}:{line}: mistake: ")
    assert text in mistake
    assert total == "1 folder checked: 1 mistake, 0 warnings"


@pytest.mark.parametrize("zone", ["user", "Pacific/Pago_Pago", "query, default_time_zone: UTC"])
def test_a_day_after_which_no_time_is_left_is_a_mistake(sendoff: Command, zone: str) -> None:
    last = f"time: '23:59', time_zone: {zone}, date: 9999-12-31"
    write("one", f"{FINE}send: {{kind: once, {last}}}\n")
    write("two", f"{FINE}push_expiry: {{until: {{time: '23:59', time_zone: UTC, date: 9999-12-31}}}}\n")
    days = "time_zone: UTC, start: 2026-12-02, end: 9999-12-31"
    write("three", f"{FINE}send: {{kind: recurring, time: '09:00', {days}}}\n")
    done = sendoff("check", "one", "two", "three")
    assert (done.returncode, done.stderr) == (1, "")
    line, found = FINE.count("\n") + 1, "found the date 9999-12-31. Use a date before the year 9000"
    assert f"one/campaign.yaml:{line}: mistake: send.date: {found}" in done.stdout
    assert f"two/campaign.yaml:{line}: mistake: push_expiry.until.date: {found}" in done.stdout
    assert f"three/campaign.yaml:{line}: mistake: send.end: {found}, or never" in done.stdout


def test_a_parameter_in_quotes_is_a_warning(sendoff: Command) -> None:
    query = """SELECT device_id FROM devices -- not :period_end
WHERE ':period_start' < day AND note <> 'of :period_end' AND
kind <> ':kind' AND ended < ":period_end" """
    write("one", FINE, query)
    Path("one/outcome.sql").write_text("SELECT device_id FROM orders WHERE ordered_at >= ':sent_at'")
    done = sendoff("check", "one")
    text = "in quotes is a text, which is not replaced by the parameter's value. Remove the quotes"
    assert (done.returncode, done.stdout.splitlines()[:-1]) == (
        0,
        [
            f"one/audience.sql:2: warning: :period_start {text}",
            f"one/audience.sql:3: warning: :period_end {text}",
            f"one/outcome.sql:1: warning: :sent_at {text}",
        ],
    )


def test_parameters_of_partitions_are_offered_only_if_the_query_has_one(sendoff: Command) -> None:
    query = "SELECT device_id FROM devices WHERE day > :start"
    write("one", FINE, query)
    write("two", f"{FINE}audience: {{partitions: 2}}\n", f"{query} AND device_id % :parts = :part")
    one, two, _ = sendoff("check", ".").stdout.splitlines()
    assert "its parameters are :partition, :period_end, :period_start (did" in one
    assert "its parameters are :part, :partition, :parts, :period_end, :period_start (did" in two


@pytest.mark.parametrize(
    ("campaign", "line", "files"),
    [
        (WRONG, 1, ["audience.sql", "outcome.sql"]),
        (
            """\
title: No message
channels:
  android_push:
audience: {exclude: [{kind: query, file: returned.sql}]}
""",
            3,
            ["audience.sql", "returned.sql", "outcome.sql"],
        ),
    ],
)
def test_mistakes_of_queries_are_listed_with_those_of_the_campaign(
    sendoff: Command, campaign: str, line: int, files: list[str]
) -> None:
    write("one", campaign, "DELETE FROM devices")
    Path("one/returned.sql").write_text("SELECT device_id FROM devices WHERE day > :start")
    Path("one/outcome.sql").write_text("SELECT device_id FROM orders; SELECT 1")
    *mistakes, _ = sendoff("check", "one").stdout.splitlines()
    assert mistakes[0].startswith(f"one/campaign.yaml:{line}: mistake: ")
    of_queries = [each for each in mistakes if "campaign.yaml" not in each]
    assert [each.partition(":")[0] for each in of_queries] == [f"one/{file}" for file in files]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT device_id FROM [devices;1]",  # SQLite
        "SELECT device_id FROM devices WHERE day >= :period_start AND part = :partition;",
        "WITH d AS (SELECT $$;$$ AS note) SELECT device_id FROM devices, d WHERE x::int = 1",
    ],
)
def test_a_query_that_some_database_reads_is_no_mistake(sendoff: Command, query: str) -> None:
    write("one", FINE, query)
    Path("one/outcome.sql").write_text("SELECT device_id FROM orders WHERE ordered_at >= :sent_at")
    done = sendoff("check", "one")
    assert (done.returncode, done.stdout) == (0, "1 folder checked: 0 mistakes, 0 warnings\n")


def test_a_journey_is_one_folder_whatever_the_number_of_its_steps(sendoff: Command) -> None:
    write("campaigns/fine", FINE)
    step = "    message: {title: Hello, text: Hello}\n    channels: {android_push: {}}\n"
    later = f"  - name: b\n    when: {{of: a, are: [delivered], unknowable: include}}\n{step}"
    write("campaigns/way", "")
    Path("campaigns/way/campaign.yaml").unlink()
    Path("campaigns/way/journey.yaml").write_text(f"title: Way\nsteps:\n  - name: a\n{step}{later}")
    done = sendoff("check", "campaigns")
    assert (done.returncode, done.stdout) == (0, "2 folders checked: 0 mistakes, 0 warnings\n")


def test_an_earlier_name_that_another_campaign_still_has_is_a_warning(sendoff: Command) -> None:
    write("campaigns/spring", FINE)
    write("campaigns/summer", f"{FINE}formerly: [gone, spring]\n")
    line, _ = sendoff("check", "campaigns").stdout.splitlines()
    assert line.partition(": warning: ")[2].startswith("formerly: the campaign spring still exists")


def test_another_campaign_that_is_probably_misspelled_is_a_warning(sendoff: Command) -> None:
    named = "kind: campaign, days: 7, name"
    exclude = "".join(f"    - {{{named}: {name}}}\n" for name in ("spring2", "spring", "of_another_folder"))
    verdicts = "    - {kind: verdicts, are: [engaged], of: springs}\n"
    write("campaigns/spring", FINE)
    write("campaigns/more", f"{FINE}audience:\n  exclude:\n{exclude}{verdicts}")
    assets = "after: [sprinng.report, spring.report, sprong, spring.daily, invoices.report]\n"
    write("campaigns/later", FINE + assets)
    source = "audience: {source: {kind: verdicts, of: spring1, are: [delivered]}}\n"
    write("campaigns/again", FINE + source)
    Path("campaigns/again/audience.sql").unlink()
    done = sendoff("check", "campaigns")
    assert done.returncode == 0
    *warnings, _ = [line.partition(": warning: ") for line in done.stdout.splitlines()]
    meant = "beside this one (did you mean 'spring'?)"
    assert [(place, text) for place, _, text in warnings] == [
        ("campaigns/again/campaign.yaml:5", f"audience.source.of: there is no campaign 'spring1' {meant}"),
        ("campaigns/later/campaign.yaml:5", f"after[0]: there is no campaign 'sprinng' {meant}"),
        (
            "campaigns/more/campaign.yaml:7",
            f"audience.exclude[0].name: there is no campaign 'spring2' {meant}",
        ),
        (
            "campaigns/more/campaign.yaml:10",
            f"audience.exclude[3].of: there is no campaign 'springs' {meant}",
        ),
    ]


TEMPLATE = "title: T\ntemplate: {id: 1, channels: [email]}\n"
BY_USER = "a campaign cannot be created for recipients identified by user_id, only by device_id, "


@pytest.mark.parametrize(
    ("campaign", "query", "found"),
    [
        (FINE, "SELECT\n  c.user_id FROM customers AS c", f"audience.sql:2: mistake: {BY_USER}"),
        (FINE, "SELECT max(a, b) AS\nUSER_ID, 'x, y' FROM c", f"audience.sql:2: mistake: {BY_USER}"),
        (
            FINE,
            "WITH c AS (SELECT device_id FROM d)\nSELECT DISTINCT user_id FROM c",
            f"audience.sql:2: mistake: {BY_USER}",
        ),
        (
            f"{FINE}audience:\n  columns:\n    user_id: {{type: text}}\n",
            "SELECT * FROM c",
            f"campaign.yaml:7: mistake: {BY_USER}",
        ),
        (
            TEMPLATE,
            "SELECT device_uuid FROM d",
            "audience.sql:1: mistake: a template cannot be executed for recipients ",
        ),
        (
            FINE,
            "SELECT external_id,\n  device_id FROM d",
            "audience.sql:2: mistake: the query has device_id and external_id. Use exactly one of device_id, ",
        ),
        (
            FINE,
            "SELECT device_id, platform,\n  d.Device_ID FROM d",
            "audience.sql:2: mistake: the query has the column device_id more than once. Name it once",
        ),
        (
            f"{FINE}audience:\n  columns:\n    Shop: {{type: text}}\n",
            "SELECT device_id, shop, lower(name) AS shop FROM d",
            "audience.sql:1: mistake: the query has the column shop more than once. Name it once",
        ),
        (
            FINE,
            "SELECT\n  d.device_ref, lower(d.platform) AS platform FROM d",
            "audience.sql:2: mistake: the query has no identifier column: found device_ref, platform. Use exactly one ",
        ),
    ],
)
def test_an_identifier_that_the_service_does_not_take_is_a_mistake_if_the_files_show_it(
    sendoff: Command, campaign: str, query: str, found: str
) -> None:
    write("one", campaign, query)
    done = sendoff("check", "one")
    assert done.returncode == 1
    mistake, total = done.stdout.splitlines()
    assert mistake.startswith(f"one/{found}")
    assert total == "1 folder checked: 1 mistake, 0 warnings"


@pytest.mark.parametrize(
    ("campaign", "query"),
    [
        (TEMPLATE, "SELECT user_id FROM customers"),
        (FINE, "SELECT external_id FROM customers"),
        (FINE, "SELECT * FROM (SELECT user_id FROM customers) AS c"),
        (FINE, "SELECT device_id # , user_id\nFROM devices"),  # a comment in MySQL
        (
            FINE,
            "SELECT device_id, [a, user_id, b], 1 + user_id FROM devices WHERE a IN (SELECT 1, user_id FROM c)",
        ),
        (FINE, "SELECT 1 AS n, 'of user_id' FROM devices"),
        (FINE, "SELECT device_id, shop, shop FROM devices"),  # which nothing uses
        (FINE, "SELECT device_id # , device_id\nFROM devices"),
        (FINE, 'SELECT user_id "external_id" FROM devices'),
        (FINE, "SELECT user_id 'external_id' FROM devices"),
        (FINE, 'SELECT platform, "Device" FROM devices'),
        (FINE, "SELECT platform, id device_id FROM devices"),
        (FINE, "SELECT platform, d.* FROM devices AS d"),
        (FINE, "SELECT platform # , device_id\nFROM devices"),  # a comment in MySQL only
        (FINE, "VALUES (7)"),
        (FINE, "WITH a AS (SELECT 1) (SELECT device_id FROM a LIMIT 5) UNION SELECT id FROM b"),
        (FINE, "SELECT * RENAME platform AS p FROM devices"),
        (FINE, "SELECT unnest(s) AS s FROM devices"),
        (FINE, "SELECT id, platform FROM devices |> RENAME id AS device_id"),
    ],
)
def test_an_identifier_that_the_service_takes_or_that_only_the_warehouse_knows_is_no_mistake(
    sendoff: Command, campaign: str, query: str
) -> None:
    write("one", campaign, query)
    done = sendoff("check", "one")
    assert (done.returncode, done.stdout) == (0, "1 folder checked: 0 mistakes, 0 warnings\n")


EXCLUDED = f"{FINE}audience: {{exclude: [{{kind: query, file: returned.sql}}]}}\n"


@pytest.mark.parametrize("file", ["outcome.sql", "before.sql", "returned.sql"])
@pytest.mark.parametrize(
    ("query", "text"),
    [
        (
            "SELECT\n  customer_id FROM orders",
            "the query has no identifier column: found customer_id. Use {}",
        ),
        ("SELECT\n  user_id, 1 AS value FROM orders", "found the identifier column user_id. Use {}"),
        ("SELECT device_id,\n  external_id FROM d", "the query has device_id and external_id. Use {}"),
        (
            "SELECT device_id,\n  device_id FROM d",
            "the query has the column device_id more than once. Name it once",
        ),
    ],
)
def test_other_queries_need_the_identifier_column_of_the_audience(
    sendoff: Command, file: str, query: str, text: str
) -> None:
    write("one", EXCLUDED)
    for other in ("outcome.sql", "before.sql", "returned.sql"):
        Path("one", other).write_text(query if other == file else "SELECT device_id, 1 AS value FROM orders")
    mistake, total = sendoff("check", "one").stdout.splitlines()
    assert mistake == f"one/{file}:2: mistake: {text.format('device_id, as in audience.sql')}"
    assert total == "1 folder checked: 1 mistake, 0 warnings"


@pytest.mark.parametrize(
    ("audience", "query"),
    [
        ("SELECT * FROM devices", "SELECT external_id FROM orders"),
        ("SELECT device_id FROM devices", "SELECT * FROM orders"),
        ("SELECT device_id FROM devices", "SELECT id device_id, sum(price) AS value FROM orders GROUP BY 1"),
        ("SELECT device_id FROM devices", 'SELECT "Device_Id" FROM orders'),
        ("SELECT device_id FROM devices", "SELECT DEVICE_ID, count(*) FROM orders GROUP BY 1"),
    ],
)
def test_an_identifier_column_that_is_not_known_for_certain_is_no_mistake(
    sendoff: Command, audience: str, query: str
) -> None:
    write("one", EXCLUDED, audience)
    for file in ("outcome.sql", "before.sql", "returned.sql"):
        Path("one", file).write_text(query)
    done = sendoff("check", "one")
    assert (done.returncode, done.stdout) == (0, "1 folder checked: 0 mistakes, 0 warnings\n")


def test_a_mistake_in_the_defaults_of_several_campaigns_is_listed_once(sendoff: Command) -> None:
    write("campaigns/one", FINE)
    write("campaigns/two", FINE)
    Path("campaigns/defaults.yaml").write_text("ownr: crm\n")
    done = sendoff("check", "campaigns")
    assert done.returncode == 1
    mistake, total = done.stdout.splitlines()
    assert mistake.startswith("campaigns/defaults.yaml:1: mistake: ")
    assert total == "2 folders checked: 1 mistake, 0 warnings"


def test_a_warning_has_its_line_and_does_not_fail(sendoff: Command) -> None:
    write("campaigns/long", LONG)
    done = sendoff("check", "campaigns/long")
    assert (done.returncode, done.stdout) == (
        0,
        (
            "campaigns/long/campaign.yaml:3: warning: message.title: 90 characters; android_push shows about 65\n"
            "1 folder checked: 0 mistakes, 1 warning\n"
        ),
    )


def test_a_default_is_shown_once_with_its_line_and_not_if_the_campaign_replaces_it(sendoff: Command) -> None:
    write("one", FINE)
    write("two", FINE)
    write("other", FINE + "owner: sales\n")
    Path("defaults.yaml").write_text("owner: crm\n")
    lines = sendoff("check", ".").stdout.splitlines()
    assert lines == [
        'defaults.yaml:1: note: owner is the default of all campaigns: "crm"',
        "3 folders checked: 0 mistakes, 0 warnings",
    ]
    assert sendoff("check", "other").stdout == "1 folder checked: 0 mistakes, 0 warnings\n"


def test_two_campaigns_of_one_name_clash_but_a_campaign_never_with_itself(sendoff: Command) -> None:
    write("one/spring", FINE)
    write("two/spring", FINE)
    assert sendoff("check", "one", "one/spring", ".").returncode == 1
    assert sendoff("check", "one", "one/spring").returncode == 0
    lines = sendoff("check", "one", "two").stdout.splitlines()
    assert lines[0].startswith("two/spring: mistake: the campaign ")
    assert "one/spring has the same name" in lines[0]
    assert lines[1] == "2 folders checked: 1 mistake, 0 warnings"


def test_a_campaign_cannot_have_the_name_of_a_housekeeping_dag(sendoff: Command) -> None:
    write("sendoff_doubts", FINE)
    assert "a housekeeping DAG has this name" in sendoff("check", "sendoff_doubts").stdout


def test_a_campaign_cannot_have_the_name_of_the_tests_of_another(sendoff: Command) -> None:
    write("spring-test", FINE)
    assert sendoff("check", ".").returncode == 0
    write("spring", FINE)
    line, _ = sendoff("check", ".").stdout.splitlines()
    assert line.startswith("spring-test: mistake: tests of the campaign ")


def test_a_folder_may_have_no_name_but_the_end_of_a_test(sendoff: Command) -> None:
    write("-test", FINE)
    assert sendoff("check", ".").returncode == 0


def test_names_control_no_terminal_and_no_log(sendoff: Command) -> None:
    write("esc\x1b[31m", f'{FINE}"a\\x1b[31m\\n::stop-commands::b\\u202e": 1\n')
    printed = sendoff("check", ".").stdout
    assert set(printed) >= {"?"}
    assert all(line.isprintable() for line in printed.split("\n"))
    assert not re.search(r"^::", printed, re.MULTILINE)


def test_a_place_without_campaigns_is_a_mistake_so_that_ci_notices_a_wrong_path(sendoff: Command) -> None:
    Path("empty/.hidden/fine").mkdir(parents=True)
    write("empty/.git/fine", FINE)
    done = sendoff("check", "empty")
    assert done.returncode == 1
    assert done.stdout.startswith("empty: mistake: there is no campaign in this folder")
    assert sendoff("check", "nowhere").returncode == 2
    assert sendoff("check").returncode == 2


def test_links_are_followed_to_a_campaign_and_never_in_a_circle(sendoff: Command) -> None:
    write("elsewhere/fine", FINE)
    Path("campaigns").mkdir()
    Path("campaigns/circle").symlink_to(Path("campaigns").absolute())
    Path("campaigns/fine").symlink_to(Path("elsewhere/fine").absolute())
    assert sendoff("check", "campaigns").stdout == "1 folder checked: 0 mistakes, 0 warnings\n"


def test_json_holds_what_the_lines_hold(sendoff: Command) -> None:
    write("fine", FINE)
    write("long", LONG)
    write("wrong", WRONG)
    Path("defaults.yaml").write_text("owner: crm\n")
    done = sendoff("check", ".", "--json")
    assert done.returncode == 1
    fine, long, wrong = json.loads(done.stdout)["campaigns"]
    settings = fine.pop("settings")
    assert {"path": "owner", "value": "crm", "origin": "defaults.yaml", "line": 1} in settings
    assert {"path": "retries", "value": 8, "origin": "built in", "line": None} in settings
    assert wrong.pop("settings") == []
    note = {
        "file": "defaults.yaml",
        "line": 1,
        "text": 'owner is the default of all campaigns: "crm"',
    }
    assert fine == {"name": "fine", "folder": "fine", "mistakes": [], "warnings": [], "notes": [note]}
    assert [(each["file"], each["line"]) for each in long["warnings"]] == [("long/campaign.yaml", 3)]
    assert [each["line"] for each in wrong["mistakes"]] == [1, 1, 4]
    assert wrong["mistakes"][0]["text"] == "the required field 'title' is missing"


def test_junit_has_a_test_for_each_campaign_that_fails_with_its_mistakes(sendoff: Command) -> None:
    write("fine", FINE)
    write("long", LONG)
    write("wrong\x07", WRONG)
    assert sendoff("check", ".", "--junit", "check.xml").returncode == 1
    [suite] = ET.parse("check.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    fine, long, wrong = suite
    assert (fine.get("name"), list(fine)) == ("fine", [])
    assert [each.tag for each in long] == ["system-out"]
    assert [each.tag for each in wrong] == ["failure"]
    assert len((wrong[0].text or "").splitlines()) == 4  # three in the file, and the name of the folder


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(sendoff: Command) -> None:
    write("fine", FINE)
    done = sendoff("check", "fine", "--junit", "no/such/folder/check.xml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no/such/folder/check.xml cannot be written" in done.stderr
