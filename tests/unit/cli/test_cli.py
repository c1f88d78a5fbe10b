"""The command as a process: its arguments, its two streams and its exit code."""

from __future__ import annotations

import getpass
import json
import os
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml
from typer.main import get_command

from sendoff.audience.identifiers import integers
from sendoff.campaign import (
    Campaign,
    Period,
    campaign_schema,
    defaults_schema,
    last_period,
    launch_key,
    load_campaign,
)
from sendoff.cli.commands import app
from sendoff.cli.shared import GROUPS
from sendoff.ledger import Ledger, NotLaunched
from sendoff.report import dbt_sources
from sendoff.states import Accepted

from ...factories import KEY, PERIOD, make_launch, make_warehouse

Command = Callable[..., "subprocess.CompletedProcess[str]"]

TOMORROW = datetime.now(UTC).date() + timedelta(days=1)
PUSH = Campaign.model_validate(
    {"title": "Spring", "message": {"title": "Hello", "text": "Spring"}, "channels": {"android_push": {}}}
)


@pytest.fixture
def ledger_url(migrated_url: str) -> str:
    with closing(Ledger(migrated_url)) as ledger:
        freeze(ledger)
    return migrated_url


def freeze(ledger: Ledger, resend: int = 0, made_at: datetime = PERIOD.end) -> None:
    members = integers([1, 2, 3])
    make_launch(ledger, members, campaign=PUSH, resend=resend, created_at=made_at, sends_at=PERIOD.end)


def test_the_name_of_a_connection_is_no_markup(migrated_url: str, sendoff: Command) -> None:
    with closing(Ledger(migrated_url)) as ledger:
        make_launch(ledger, integers([1, 2, 3]), campaign=PUSH, connection="[/crm]", sends_at=PERIOD.end)
    counted = sendoff("metrics", "--ledger", migrated_url)
    assert counted.returncode == 0, counted.stderr
    assert "[/crm]" in counted.stdout
    assert sendoff("feeds", "--ledger", migrated_url).returncode == 0


def test_the_version_is_that_of_the_project(sendoff: Command) -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    done = sendoff("--version")
    assert (done.returncode, done.stdout) == (0, f"sendoff {project['version']}\n")


def test_an_interruption_while_the_commands_are_imported_ends_without_a_traceback() -> None:
    interrupted = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Interrupt(MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'sendoff.errors': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt()); from sendoff.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "sendoff: interrupted\n")


def test_migrating_twice_is_harmless(tmp_path: Path, sendoff: Command) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert sendoff("migrate", "--ledger", url).returncode == 0
    assert sendoff("migrate", "--ledger", url).returncode == 0


def test_migrating_shows_no_password_wherever_the_url_has_it(postgres_url: str, sendoff: Command) -> None:
    url = sa.make_url(postgres_url).set(password="planted-1")
    secrets = {
        "password": "planted-2",
        "sslpassword": "planted-3",
        "options": "-c application_name=planted-4",
    }
    given = url.update_query_dict({**secrets, "sslmode": "prefer"}).render_as_string(hide_password=False)
    done = sendoff("migrate", "--ledger", given)
    assert done.returncode == 0
    assert "planted" not in done.stdout + done.stderr
    shown = url.set(query={}).render_as_string()
    assert done.stdout == (
        f"the ledger is up to date: {shown}?options=***&password=***&sslmode=prefer&sslpassword=***\n"
    )


def test_a_ledger_is_copied_once_it_is_paused(ledger_url: str, tmp_path: Path, sendoff: Command) -> None:
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    refused = sendoff("copy-ledger", ledger_url, "--ledger", copy)
    assert refused.returncode == 1
    assert "sendoff pause --all" in refused.stderr
    sendoff("pause", "--all", "--why", "moving", "--ledger", ledger_url)
    done = sendoff("copy-ledger", ledger_url, "--ledger", copy)
    assert done.returncode == 0, done.stderr
    assert "among them 1 launch, to sqlite" in done.stdout
    assert "the old one sends nothing more" in done.stdout
    of_copy, of_source = (sendoff("report", "--ledger", url).stdout for url in (copy, ledger_url))
    assert of_copy == of_source
    again = sendoff("copy-ledger", ledger_url, "--ledger", copy)
    assert again.returncode == 1
    assert "this ledger was moved to" in again.stderr
    resumed = sendoff("resume", "--all", "--why", "moved", "--ledger", ledger_url)
    assert resumed.returncode == 1
    assert f"this ledger was moved to {copy} by " in resumed.stderr
    undo = ("resume", "--discarded-copy", "--why", "the copy was deleted", "--ledger", ledger_url)
    assert sendoff(*undo).returncode == 2
    undone = sendoff(*undo, "--all")
    assert undone.returncode == 0, undone.stderr
    assert "every launch is resumed" in undone.stdout


def test_a_ledger_that_does_not_exist_is_not_copied(
    migrated_url: str, tmp_path: Path, sendoff: Command
) -> None:
    done = sendoff("copy-ledger", f"sqlite:///{tmp_path / 'absent.db'}", "--ledger", migrated_url)
    assert done.returncode == 1
    assert f"there is no ledger at {tmp_path / 'absent.db'}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause", "--all", "--why", " "),
        ("release", "--all", "--why", ""),
        ("resolve", "0", "resend", "--why", ""),
        ("export-person", "1", "-o", "missing/person.json", "--reason", " "),
        ("suppress", "add", "7", "--reason", " "),
    ],
)
def test_a_reason_is_not_blank(arguments: tuple[str, ...], migrated_url: str, sendoff: Command) -> None:
    done = sendoff(*arguments, "--ledger", migrated_url)
    assert (done.returncode, done.stderr) == (2, "sendoff: The reason is blank. Say why, in a few words.\n")


def test_a_ledger_that_nobody_named_is_not_made(tmp_path: Path, sendoff: Command) -> None:
    done = sendoff("migrate")
    assert done.returncode == 1
    assert "SENDOFF_LEDGER_URL is not set" in done.stderr


def test_the_help_has_every_command_in_a_group(sendoff: Command) -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    command = get_command(app)
    assert sorted(command.commands) == sorted(grouped)  # type: ignore[attr-defined]
    shown = sendoff("--help").stdout
    places = [shown.index(f" {title} ") for title in GROUPS]
    assert places == sorted(places)
    assert shown.index(" demo ") < shown.index(" send ") < shown.index(" pause ") < shown.index(" grants ")


def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    for words, completed in (("verd", ["verdicts"]), ("verdicts --o", ["--out"])):
        typed = ["sendoff", *words.split()]
        asked = {"_SENDOFF_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(typed)}
        done = subprocess.run(
            [Path(sys.executable).with_name("sendoff")],
            env=os.environ | asked | {"COMP_CWORD": str(len(typed) - 1)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == completed, done.stderr


def test_help_shows_where_defaults_come_from(sendoff: Command) -> None:
    assert "default: SENDOFF_LEDGER_URL" in " ".join(
        sendoff("report", "--help").stdout.replace("│", "").split()
    )


def test_help_fills_its_lines(sendoff: Command) -> None:
    words, width = sendoff("send", "--help").stdout.split(" Arguments ")[0], 80
    lines = [line.strip() for line in words.splitlines()][1:]
    for line, following in pairwise(lines):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > width - 2, line


def test_a_report_needs_no_more_of_the_key_than_its_beginning(ledger_url: str, sendoff: Command) -> None:
    done = sendoff("report", KEY[:8], "--ledger", ledger_url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdicts"]["not_sent"] == 3
    assert json.loads(done.stdout)["adds_up"] is True


def test_exports_are_in_the_audit_log(ledger_url: str, sendoff: Command, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "w.db").close()
    places = ("--out", str(tmp_path / "a.csv")), ("--to", f"sqlite:///{tmp_path}/w.db", "--table", "a")
    for place in places:
        assert sendoff("verdicts", KEY, *place, "--ledger", ledger_url).returncode == 0
    assert (
        sendoff("tables", KEY, "--to", f"sqlite:///{tmp_path}/w.db", "--ledger", ledger_url).returncode == 0
    )
    with closing(Ledger(ledger_url)) as ledger:
        exports = [each for each in ledger.audit_log.of_launch(KEY) if each.kind == "exported"]
    assert [(each.who, each.detail) for each in exports] == [
        (getpass.getuser(), {"verdict": None, "people": 3})
    ] * 3


def test_a_report_without_a_launch_lists_the_newest(ledger_url: str, sendoff: Command) -> None:
    told = sendoff("report", "--ledger", ledger_url)
    assert told.returncode == 0, told.stderr
    assert told.stdout == (
        f"{KEY[:12]}  spring, period 2026-03-01T00:00:00Z/2026-03-02T00:00:00Z, stuck, "
        "created 2026-03-02 00:00 UTC, 3 people, 1 request\n"
    )
    (shown,) = json.loads(sendoff("report", "--json", "--ledger", ledger_url).stdout)
    assert shown == {
        "launch": KEY,
        "campaign": "spring",
        "period": "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z",
        "state": "released",
        "stage": "stuck",
        "made_at": "2026-03-02T00:00:00+00:00",
        "audience": 3,
        "requests": 1,
    }


def test_what_was_not_launched_is_listed_below_with_its_reason(ledger_url: str, sendoff: Command) -> None:
    later = Period(PERIOD.end, PERIOD.end + timedelta(days=1))
    entry = NotLaunched("f" * 32, "spring", "Spring", later, 0, later.end, "8 people, at least 1,000 wanted")
    with closing(Ledger(ledger_url)) as ledger:
        ledger.not_launched.store(entry)
    lines = sendoff("report", "--ledger", ledger_url).stdout.splitlines()
    assert lines[1:] == [
        f"Not launched: spring, period {later.key}, checked 2026-03-03 00:00 UTC: 8 people, at least 1,000 wanted"
    ]
    listed = json.loads(sendoff("report", "--json", "--ledger", ledger_url).stdout)
    assert [(each["launch"], each["state"]) for each in listed] == [(KEY, "released"), (None, "not_launched")]
    assert listed[1]["why"] == "8 people, at least 1,000 wanted"


def test_no_more_than_twenty_launches_are_listed_the_newest_first(ledger_url: str, sendoff: Command) -> None:
    with closing(Ledger(ledger_url)) as ledger:
        for resend in range(1, 22):
            freeze(ledger, resend, made_at=PERIOD.end + timedelta(minutes=resend))
    listed = json.loads(sendoff("report", "--json", "--ledger", ledger_url).stdout)
    assert [each["launch"] for each in listed] == [
        launch_key("service", "spring", PERIOD, resend) for resend in range(21, 1, -1)
    ]


def test_an_empty_ledger_has_nothing_to_list(tmp_path: Path, sendoff: Command) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    sendoff("migrate", "--ledger", url)
    assert sendoff("report", "--ledger", url).stdout == "the ledger has no launches\n"
    assert sendoff("report", "--json", "--ledger", url).stdout == "[]\n"
    assert sendoff("lists", "show", "--ledger", url).stdout == "there are no lists\n"
    assert sendoff("stop", "--all", "--why", "over", "--ledger", url).stdout == "stopped: 0 launches\n"
    assert sendoff("release", "--all", "--why", "fine", "--ledger", url).stdout == (
        "nothing to release: no launch is held because something went wrong\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "--picture", "report.png"), "--picture needs a launch"),
        (("report", KEY, "--detect", "some"), "--detect: 'some' is not a percentage above 0"),
        (("verdicts", KEY), "Give a destination: --out FILE"),
        (("pause", KEY, "--all", "--why", "tests"), "Give exactly one of: a launch key, --all"),
        (("release", "--all", "--why", "tests", "--variant", "a"), "--variant needs a launch"),
        (("grants", "ann", "--role", "boss"), "--role: 'boss' is not a role"),
        (("forget",), "Give identifiers or --file FILE"),
        (("forget", "7"), "Give a reason: --reason TEXT"),
        (("suppress", "add", "--reason", "tests"), "Name the recipients: give identifiers, or --file"),
        (("suppress", "add"), "Missing option '--reason'"),
        (("grants", "--boss"), "No such option: --boss"),
        (("verdicts", KEY, "--out", "a.csv", "--verdict", "lost"), "--verdict: 'lost' is not a verdict"),
        (("suppress", "add", "7", "--reason", "tests", "--channel", "fax"), "found the channel 'fax'"),
        (("suppress", "add", "7", "--reason", "tests", "--until", "soon"), "found 'soon' as the end"),
        (("history", os.fsdecode(b"\xff")), "Argument 2 is not text in UTF-8"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], said: str, sendoff: Command) -> None:
    done = sendoff(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from sendoff.cli import main; main()", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    problem = "sendoff: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, problem)


def test_stopping_a_launch_says_whether_anything_was_left(ledger_url: str, sendoff: Command) -> None:
    with closing(Ledger(ledger_url)) as ledger:
        claim = ledger.dispatches.claim(KEY, worker="w", now=PERIOD.end, lease=timedelta(minutes=5))
        assert claim is not None
        ledger.dispatches.record(claim, Accepted(200, campaign_id=7), PERIOD.end)
    done = sendoff("stop", KEY, "--why", "over", "--ledger", ledger_url)
    assert done.stdout == f"launch {KEY} is stopped; all its requests had been made already\n"


def test_stopping_a_launch_says_what_the_service_sends_anyway(ledger_url: str, sendoff: Command) -> None:
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with closing(Ledger(ledger_url)) as ledger:
        launch = make_launch(ledger, [1, 2], size=1, name="evening", campaign=PUSH, sends_at=tomorrow)
        claim = ledger.dispatches.claim(
            launch.launch_key, worker="w", now=PERIOD.end, lease=timedelta(minutes=5)
        )
        assert claim is not None
        ledger.dispatches.record(claim, Accepted(200, campaign_id=7), PERIOD.end)
    done = sendoff("stop", launch.launch_key, "--why", "over", "--ledger", ledger_url)
    assert done.stdout.splitlines() == [
        f"launch {launch.launch_key} is stopped: 1 request will never be made",
        (
            "but the service has accepted messages and sends them to 1 recipient until "
            f"{tomorrow:%Y-%m-%d %H:%M} UTC; stop its campaigns there: 7"
        ),
    ]


def test_the_help_of_a_preview_names_its_options_by_what_they_take(sendoff: Command) -> None:
    lines = [line.strip(" \u2502") for line in sendoff("preview", "--help").stdout.splitlines()]
    assert any(line.split()[:2] == ["--warehouse", "URL"] for line in lines)
    (paragraph,) = (number for number, line in enumerate(lines) if line.startswith("With --json"))
    assert lines[paragraph - 1] == ""


def test_a_report_writes_its_picture(ledger_url: str, tmp_path: Path, sendoff: Command) -> None:
    picture = tmp_path / "report.png"
    done = sendoff("report", KEY, "--ledger", ledger_url, "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in done.stdout


def test_an_unknown_launch_is_one_line_and_exit_code_1(ledger_url: str, sendoff: Command) -> None:
    done = sendoff("report", "ffff", "--ledger", ledger_url)
    assert done.returncode == 1
    assert done.stderr == "sendoff: No launch starts with 'ffff'. List the newest with: sendoff report\n"


def test_a_ledger_without_tables_says_what_to_run(tmp_path: Path, sendoff: Command) -> None:
    done = sendoff("report", "ffff", "--ledger", f"sqlite:///{tmp_path / 'empty.db'}")
    assert done.returncode == 1
    assert "to create one: sendoff migrate" in done.stderr


def test_a_broken_campaign_is_told_with_its_file_and_line(tmp_path: Path, sendoff: Command) -> None:
    (tmp_path / "spring").mkdir()
    (tmp_path / "spring" / "campaign.yaml").write_text("title: Spring\nchannel: push\n")
    done = sendoff("preview", str(tmp_path / "spring"), "--warehouse", "sqlite:///none.db")
    assert done.returncode == 1
    assert "campaign.yaml:2" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def campaign(tmp_path: Path) -> tuple[str, str]:
    """The folder of a campaign, and the URL of the warehouse that it reads."""
    folder = tmp_path / "campaigns" / "spring"
    folder.mkdir(parents=True)
    (folder / "campaign.yaml").write_text(
        'title: Spring\nschedule: "0 * * * *"\nmessage: {title: Hello, text: Spring}\n'
        "channels: {android_push: }\nwarehouse: shop\ngates: {most: 2}\nsegment_size: 2\n"
    )
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    rows = [(4_000_001,), (4_000_002,), (4_000_003,)]
    return str(folder), make_warehouse(tmp_path / "warehouse.db", "devices (device_id INTEGER)", rows)


def open_the_gate(folder: str) -> None:
    file = Path(folder) / "campaign.yaml"
    file.write_text(file.read_text().replace("gates: {most: 2}\n", ""))


def test_a_preview_with_a_closed_gate_says_so_and_ends_with_exit_code_3(
    campaign: tuple[str, str], sendoff: Command
) -> None:
    folder, url = campaign
    done = sendoff("preview", folder, "--warehouse", url)
    assert done.returncode == 3, done.stderr
    assert "WOULD NOT BE SENT (closed gates: most)" in done.stdout
    assert "4000001" not in done.stdout
    few = sendoff("preview", folder, "--warehouse", url, "--size-limit", "2", "--json")
    assert few.returncode == 0, few.stderr
    limited = json.loads(few.stdout)
    assert (limited["would_send"], limited["people"], limited["dropped"]["size_limit"]) == (True, 2, 1)


def test_a_preview_for_machines_shows_the_whole_request(campaign: tuple[str, str], sendoff: Command) -> None:
    folder, url = campaign
    done = sendoff("preview", folder, "--warehouse", f"shop={url}", "--rate", "4", "--json")
    assert done.returncode == 3, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["would_send"], seen["requests"], seen["seconds"]) == (False, 2, 0.5)
    assert seen["request"]["device_ids"] == [4_000_001, 4_000_002]


def test_a_preview_has_the_period_that_send_would_choose(campaign: tuple[str, str], sendoff: Command) -> None:
    folder, url = campaign
    before = datetime.now(UTC)
    chosen = json.loads(sendoff("preview", folder, "--warehouse", url, "--json").stdout)
    periods = [last_period(load_campaign(Path(folder)).campaign, at) for at in (before, datetime.now(UTC))]
    assert chosen["period"] in [period and period.key for period in periods]
    asked = ("--period", "2026-02-23/2026-03-02", "--json")
    done = sendoff("preview", folder, "--warehouse", url, *asked)
    given = json.loads(done.stdout)
    assert {each["name"] for each in given["gates"] if not each["is_open"]} == {"most", "lateness"}
    assert given["period"] == "2026-02-23T00:00:00Z/2026-03-02T00:00:00Z"
    assert chosen["warnings"] == given["warnings"]
    own = "2026-03-01T23:00:00Z/2026-03-02T00:00:00Z"
    assert f"is not an interval of the schedule, such as {own}. It is another launch" in done.stderr
    assert "only the first is sent" in done.stderr
    assert sendoff("preview", folder, "--warehouse", url, "--period", own, "--json").stderr == ""


@pytest.mark.parametrize(
    ("old", "new", "given", "remark"),
    [
        ('schedule: "0 * * * *"\n', "", [], "The campaign has no schedule"),
        ("title", f"start: {TOMORROW + timedelta(days=1)}\ntitle", [], "It is too early to send"),
        ("title", "title", ["--period", TOMORROW.isoformat()], "It is too early to send: the period"),
    ],
)
def test_a_preview_says_if_send_would_not_choose_its_period(
    campaign: tuple[str, str], sendoff: Command, old: str, new: str, given: list[str], remark: str
) -> None:
    file = Path(campaign[0]) / "campaign.yaml"
    file.write_text(file.read_text().replace(old, new, 1))
    done = sendoff("preview", campaign[0], "--warehouse", campaign[1], "--json", *given)
    assert json.loads(done.stdout)["warnings"][0].startswith(remark)


def test_a_preview_refuses_what_is_no_period(campaign: tuple[str, str], sendoff: Command) -> None:
    done = sendoff("preview", campaign[0], "--warehouse", campaign[1], "--period", "yesterday")
    assert done.returncode == 2
    assert "'yesterday' is not a day or time" in done.stderr


def test_the_warehouse_of_an_exclusion_is_given_beside_the_campaigns(
    campaign: tuple[str, str], tmp_path: Path, sendoff: Command
) -> None:
    folder, url = campaign
    with closing(sqlite3.connect(tmp_path / "support.db")) as support, support:
        support.execute("CREATE TABLE complaints (device_id INTEGER)")
        support.execute("INSERT INTO complaints VALUES (4000001)")
    with (Path(folder) / "campaign.yaml").open("a") as file:
        file.write("audience: {exclude: [{kind: query, file: complained.sql, warehouse: support}]}\n")
    (Path(folder) / "complained.sql").write_text("SELECT device_id FROM complaints")
    open_the_gate(folder)
    both = ("--warehouse", url, "--warehouse", f"support=sqlite:///{tmp_path / 'support.db'}")
    done = sendoff("preview", folder, *both, "--json")
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["suppressed"].values()) == 1
    for one in (("--warehouse", url), ("--warehouse", f"shop={url}")):
        wrong = sendoff("preview", folder, *one)
        assert wrong.returncode == 1
        assert wrong.stderr.endswith(
            "No warehouse was given for the connection support. Add --warehouse support=URL.\n"
        )


def test_a_terminal_may_lack_characters_of_a_message(campaign: tuple[str, str]) -> None:
    folder, url = campaign
    with (Path(folder) / "campaign.yaml").open("a", encoding="utf-8") as file:
        file.write("owner: Zoë\n")
    command = [
        sys.executable,
        "-c",
        "from sendoff.cli import main; main()",
        "preview",
        folder,
        "--warehouse",
        url,
    ]
    latin = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=latin, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert r'"Zo\xeb"' in done.stdout


def test_only_one_warehouse_has_no_name(campaign: tuple[str, str], sendoff: Command) -> None:
    folder, url = campaign
    done = sendoff("preview", folder, "--warehouse", url, "--warehouse", "sqlite:///other.db")
    assert done.returncode == 2
    assert done.stderr.startswith("sendoff: --warehouse: found several URLs without a name.")


def test_a_preview_is_compared_with_the_last_launch_of_the_ledger(
    campaign: tuple[str, str], ledger_url: str, sendoff: Command
) -> None:
    folder, url = campaign
    with closing(Ledger(ledger_url)) as ledger:
        members = integers([4_000_001, 5])
        make_launch(
            ledger, members, campaign=PUSH, connection="sendoff_default", created_at=PERIOD.end, sends_at=None
        )
    open_the_gate(folder)
    done = sendoff("preview", folder, "--warehouse", url, "--ledger", ledger_url, "--json")
    assert done.returncode == 0, done.stderr
    change = json.loads(done.stdout)["change"]
    assert [change[name] for name in ("audience", "kept", "new", "gone")] == [2, 1, 2, 1]


@pytest.mark.parametrize("given", [(), ("--warehouse", "other=sqlite:///none.db")])
def test_a_warehouse_that_nobody_gave_is_asked_for_by_its_name(
    campaign: tuple[str, str], given: tuple[str, ...], sendoff: Command
) -> None:
    done = sendoff("preview", campaign[0], *given)
    assert done.returncode == 1
    assert done.stderr == (
        "sendoff: No warehouse was given for the connection shop. Add --warehouse shop=URL.\n"
    )


def test_a_preview_shows_where_each_setting_comes_from(campaign: tuple[str, str], sendoff: Command) -> None:
    folder, url = campaign
    Path(folder).with_name("defaults.yaml").write_text("gates: {unusable: 1}\nowner: Zoë\n", encoding="utf-8")
    rows = [line.split() for line in sendoff("preview", folder, "--warehouse", url).stdout.splitlines()]
    assert ["owner", '"Zoë"', "defaults.yaml:2"] in rows
    assert ["gates.most", "2", "campaign.yaml"] in rows
    assert ["retries", "8", "built", "in"] in rows
    seen = json.loads(sendoff("preview", folder, "--warehouse", url, "--json").stdout)["settings"]
    assert {"path": "gates.unusable", "value": 1.0, "origin": "defaults.yaml", "line": 1} in seen
    assert {"path": "pool", "value": None, "origin": "built in", "line": None} in seen


def test_the_schema_of_the_defaults_is_printed_as_json(sendoff: Command) -> None:
    done = sendoff("schema", "--defaults")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == defaults_schema()


def test_the_source_file_of_dbt_is_printed_as_yaml(sendoff: Command) -> None:
    done = sendoff("schema", "--dbt", "analytics")
    assert done.returncode == 0, done.stderr
    assert done.stdout == dbt_sources("analytics")
    assert "is not a valid table name" in sendoff("schema", "--dbt", "a b").stderr


def test_the_schema_of_campaign_files_is_printed_as_json(sendoff: Command) -> None:
    done = sendoff("schema")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == campaign_schema()


def test_the_exposures_of_dbt_are_the_campaigns_that_read_its_models(
    tmp_path: Path, sendoff: Command
) -> None:
    text = "title: Come back, Zoë\nmessage: {title: A, text: B}\nchannels: {android_push: }\ndbt: {artifacts: target}\n"
    queries = {
        "come-back": "SELECT device_id FROM {{ ref('buyers') }} JOIN {{ source('shop', 'devices') }} USING (id)",
        "others": "SELECT device_id FROM devices",
        "whole": None,
    }
    for name, sql in queries.items():
        (tmp_path / name).mkdir()
        source = "audience: {source: {kind: dbt_model, name: buyers}}\nschedule: '0 9 * * 1'\n"
        (tmp_path / name / "campaign.yaml").write_text(text if sql else text + source)
        if sql:
            (tmp_path / name / "audience.sql").write_text(sql)
    done = sendoff("dbt-exposures", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    first, second = yaml.safe_load(done.stdout)["exposures"]
    assert first == {
        "name": "come_back",
        "label": "Come back, Zoë",
        "type": "application",
        "description": "Campaign come-back, which Sendoff sends without a schedule",
        "depends_on": ["ref('buyers')", "source('shop', 'devices')"],
        "owner": {"name": "sendoff"},
    }
    assert (second["name"], second["depends_on"]) == ("whole", ["ref('buyers')"])
    assert "on the schedule 0 9 * * 1 (UTC)" in second["description"]
    (tmp_path / "come-back").rename(tmp_path / "wh-ole")
    (tmp_path / "whole").rename(tmp_path / "wh.ole")
    assert "another campaign is called wh_ole in dbt" in sendoff("dbt-exposures", str(tmp_path)).stderr
    (tmp_path / "others/campaign.yaml").write_text("title: Nothing")
    assert sendoff("dbt-exposures", str(tmp_path)).returncode == 1
