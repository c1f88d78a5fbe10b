"""``sendoff send`` against the real service: a campaign's folder, from a shell, to a report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from sendoff import campaign
from sendoff.campaign import last_period, launch_key, load_campaign
from sendoff.dispatch import pause, pause_all, resume, resume_all
from sendoff.errors import GateError
from sendoff.ledger import Ledger

from ..commands import clear_settings, run_command
from ..local_receiver import local_receiver
from ..local_service import LocalService
from ..waiting import until
from .sending import fault, sent_to, service

__all__ = ["service"]

SECRET = "s" * 32
QUERY = "WITH d (device_id) AS (VALUES (7), (14), (21), (28)) SELECT device_id, 'chrome' AS platform FROM d"
FIELDS = """
title: Welcome
message: {title: Hello, text: Welcome}
channels: {web_push: {browsers: [chrome]}}
schedule: "0 * * * *"
start: 2026-01-01
report: {quiet_for: {length: 1, unit: seconds}}
"""
Send = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(service: LocalService, tmp_path: Path, ledger: Ledger) -> Iterator[dict[str, str]]:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with local_receiver(url, SECRET) as address:
        yield {
            "SENDOFF_LEDGER_URL": url,
            "SENDOFF_WAREHOUSE_URL": "sqlite://",
            "SENDOFF_SERVICE_URL": service.base_url,
            "SENDOFF_CLIENT_ID": service.client_id,
            "SENDOFF_CLIENT_SECRET": service.client_secret,
            "SENDOFF_APP_TOKEN": service.app_token,
            "SENDOFF_PUBLIC_URL": address,
            "SENDOFF_POST_BACK_SECRETS": SECRET,
        }


@pytest.fixture
def send(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Send:
    """Runs ``sendoff send`` in this process, or another command."""
    clear_settings(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, command: str = "send") -> subprocess.CompletedProcess[str]:
        return run_command(monkeypatch, command, *arguments)

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def campaign(fields: str) -> str:
        folder = tmp_path / "welcome"
        folder.mkdir()
        (folder / "campaign.yaml").write_text(fields)
        (folder / "audience.sql").write_text(QUERY)
        return str(folder)

    return campaign


def test_a_folder_is_sent_once_however_often_the_command_runs(
    service: LocalService, send: Send, write: Callable[[str], str]
) -> None:
    folder = write(FIELDS)
    period = last_period(load_campaign(Path(folder)).campaign, datetime.now(UTC))
    assert period is not None
    first = send(folder, "--period", period.key)
    assert first.returncode == 0, first.stderr
    key = launch_key("sendoff_default", "welcome", period)
    assert first.stdout == (
        f"launch {key[:12]} of welcome, period {period.key}: 4 people, 1 request\n"
        f"sent: 1 accepted\nFor its report, run: sendoff report {key[:12]}\n"
    )
    assert first.stderr == f"preparing welcome for {period.key}\nsending\n"
    for named, same in (folder, send(folder, "--period", period.key)), ("FOLDER", send(key[:8])):
        head, what, how, only, report = same.stdout.splitlines()
        assert [head, report] == [first.stdout.splitlines()[number] for number in (0, 2)]
        assert re.fullmatch(r"already sent: 1 accepted, the last at .{16} UTC\. Nothing was sent now\.", what)
        assert how.endswith(f"run: sendoff send {named} --period {period.key} --resend NUMBER --reason TEXT")
        assert only == "To leave out those who got it, add: --only-unsent"
        assert "sending" not in same.stderr
        assert same.returncode == 0
    assert sent_to(service) == [7, 14, 21, 28]
    anew = ("--period", period.key, "--resend", "1", "--reason", "lost")
    to_no_one = send(folder, *anew, "--only-unsent")
    assert "none of the 4 rows is left (4 already_sent); nothing was sent" in to_no_one.stderr
    again = send(folder, *anew, "--size-limit", "2")
    assert again.returncode == 0
    assert len(sent_to(service)) == 6


def test_nothing_is_frozen_while_a_setting_cannot_be_used(
    send: Send, write: Callable[[str], str], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_SERVICE_URL", "shop.example.com")
    done = send(write(FIELDS))
    assert done.returncode == 1
    assert "SENDOFF_SERVICE_URL: the base URL must start with https://" in done.stderr
    assert list(ledger.launches.campaigns()) == []


def test_people_in_the_control_group_are_not_counted_as_sent_to(
    send: Send, write: Callable[[str], str], service: LocalService
) -> None:
    folder = write(FIELDS + "audience: {holdout: {percent: 50}}\n")
    first, again = send(folder), send(folder, "--json")
    assert first.returncode == 0, first.stderr
    result, reached = json.loads(again.stdout), len(sent_to(service))
    assert 0 < reached < 4
    assert (result["people"], result["held_out"]) == (4, 4 - reached)
    assert f": 4 people, {4 - reached} of them in the control group, 1 request\n" in first.stdout


@pytest.mark.proof
def test_without_a_period_it_is_that_of_the_schedule_and_with_wait_there_is_a_report(
    send: Send, write: Callable[[str], str]
) -> None:
    folder = write(FIELDS)
    before, done = datetime.now(UTC), send(folder, "--wait", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    campaign = load_campaign(Path(folder)).campaign
    periods = [last_period(campaign, at) for at in (before, datetime.now(UTC))]
    assert result["period"] in [period.key for period in periods if period]
    assert (result["status"], result["requests"], result["people"]) == ("sent", {"accepted": 1}, 4)
    assert result["report"]["audience"] == 4
    assert sum(result["report"]["verdicts"].values()) == 4
    shown = send(result["launch"], "--wait")
    assert "What became of the audience" in shown.stdout
    assert "waiting until no post-back comes for 1 second (report.quiet_for)" in shown.stderr


@pytest.mark.proof
def test_a_launch_that_needs_approval_waits_for_a_yes(
    service: LocalService, send: Send, write: Callable[[str], str]
) -> None:
    folder = write(f"{FIELDS}approval: {{needed: always}}\n")
    held = send(folder)
    assert held.returncode == 3
    [_, why] = held.stdout.splitlines()
    assert why.startswith("held: it waits for approval. To approve it, run: sendoff send ")
    assert service.admin("campaigns")["total"] == 0
    assert send(*why.rpartition("sendoff send ")[2].split()).returncode == 0
    assert service.admin("campaigns")["total"] == 1


def test_approval_by_a_role_is_not_given_by_a_yes(send: Send, write: Callable[[str], str]) -> None:
    folder = write(f"{FIELDS}approval: {{needed: always, role: crm}}\n")
    for given in ((), ("--yes",)):
        refused = send(folder, *given)
        assert refused.returncode == 3
        [launch, held] = refused.stdout.splitlines()
        key = launch.split()[1]
        assert held.startswith("held: ")
        assert "crm" in held
        assert held.endswith(f"run: sendoff release {key} --without-approval --why TEXT")


def test_a_file_is_answered_with_its_folder(send: Send, write: Callable[[str], str]) -> None:
    folder = Path(write(FIELDS))
    file = send(str(folder / "campaign.yaml"))
    assert (file.returncode, file.stderr) == (
        1,
        f"sendoff: {folder}/campaign.yaml: this is a file. Name the folder: {folder}\n",
    )


def test_too_early_is_said_with_its_time_or_waited_for(
    ledger: Ledger, send: Send, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(f"{FIELDS}approval: {{needed: always}}\n")
    key = json.loads(send(folder, "--json").stdout)["launch"]
    pause_all(ledger, "ann", "the shop is closed")
    early = send(key, "--yes", "--json")
    assert early.returncode == 3
    result = json.loads(early.stdout)
    assert result["status"] == "not yet"
    assert "the shop is closed" in result["message"]
    until = datetime.fromisoformat(result["until"])
    assert until > datetime.now(UTC)
    shown = result["message"].partition("(try again at ")[2].removesuffix(" UTC)")
    assert until <= datetime.fromisoformat(f"{shown}+00:00") < until + timedelta(minutes=1)
    assert f"To continue, run: sendoff send {key[:12]}" in send(key).stdout
    pause(ledger, key, "ann", "the link is wrong")
    _, early_line, how = send(key).stdout.splitlines()
    assert re.search(r"is paused by ann: the link is wrong \(try again at 2\S+ \d\d:\d\d UTC\)$", early_line)
    assert how == f"To continue, run: sendoff resume {key[:12]} --why TEXT; sendoff send {key[:12]}"
    resume(ledger, key, "ann", "it is right")
    real = time.sleep

    def sleep(seconds: float) -> None:
        with suppress(GateError):  # it is open already
            resume_all(ledger, "ann", "it is open")
        real(min(seconds, 1))

    monkeypatch.setattr(time, "sleep", sleep)
    done = send(key, "--wait")
    assert done.returncode == 0
    assert "waiting until " in done.stderr
    assert "What became of the audience" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--period", "2026-03-01"), 3, "not sent: campaign welcome: nothing was sent: gates.lateness"),
        (("--period", "yesterday"), 2, "is not a day or time"),
        (("--resend", "1"), 2, "Add a reason"),
        (("--resend", "1", "--reason", " "), 2, "Add a reason"),
        (("--resend", f"{2**31}", "--reason", "lost"), 2, "found resend 2147483648. Use a whole number"),
        (("--only-unsent",), 2, "only_unsent: there is no resend number"),
    ],
)
def test_what_is_not_sent_ends_with_its_own_code(
    service: LocalService,
    send: Send,
    write: Callable[[str], str],
    arguments: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    done = send(write(FIELDS), *arguments)
    assert done.returncode == code
    assert told in " ".join((done.stdout + done.stderr).replace("│", "").split())
    assert service.admin("campaigns")["total"] == 0


def test_a_campaign_without_a_schedule_needs_a_period(send: Send, write: Callable[[str], str]) -> None:
    done = send(write(FIELDS.replace("schedule", "# schedule").replace("start", "# start")))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--period 2026-11-16" in done.stderr


def test_missing_settings_are_listed_before_anything_is_frozen(
    environment: dict[str, str], send: Send, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SENDOFF_WAREHOUSE_URL", "SENDOFF_CLIENT_ID", "SENDOFF_PUBLIC_URL"):
        monkeypatch.delenv(name)
    done = send(write(FIELDS), "--period", "2026-03-01", "--send-late")
    assert (done.returncode, done.stdout) == (1, "")
    head, *lines = done.stderr.splitlines()
    assert head == "sendoff: 3 settings are not set. Set all of them:"
    assert [line.split(":")[0] for line in lines] == [
        "- SENDOFF_WAREHOUSE_URL",
        "- SENDOFF_CLIENT_ID",
        "- SENDOFF_PUBLIC_URL",
    ]
    with closing(Ledger(environment["SENDOFF_LEDGER_URL"])) as ledger:
        assert ledger.launches.search() == []


def test_a_name_that_is_neither_a_folder_nor_a_launch_is_an_error(send: Send) -> None:
    assert "There is no folder nowhere, and no launch starts with it" in send("nowhere").stderr
    assert "--size-limit: a launch that exists" in send("nowhere", "--size-limit", "3").stderr


def test_a_refusal_is_an_error(service: LocalService, send: Send, write: Callable[[str], str]) -> None:
    fault(service, "403", 1)
    done = send(folder := write(FIELDS))
    assert (done.returncode, done.stdout) == (1, "")
    [refused, report, how] = done.stderr.splitlines()[-3:]
    assert "refused 1 request: " in refused
    key = report.removeprefix("For its report, run: sendoff report ")
    assert send(key).returncode == 1
    again = how.partition(f" {folder} ")[2].replace("NUMBER", "1").replace("TEXT", "corrected").split()
    assert send(folder, *again).returncode == 0
    assert sent_to(service) == [7, 14, 21, 28]


def test_nothing_proposes_to_leave_out_recipients_that_the_service_chooses(
    service: LocalService, send: Send, write: Callable[[str], str]
) -> None:
    fault(service, "403", 1)
    folder = write(FIELDS + "targeting: {kind: broadcast}\n")
    Path(folder, "audience.sql").unlink()
    refused = send(folder)
    assert "To send to those who got nothing, correct the cause and run: " in refused.stderr
    again = (
        refused.stderr.partition(f"send {folder} ")[2]
        .replace("NUMBER", "1")
        .replace("TEXT", "corrected")
        .split()
    )
    assert send(folder, *again).returncode == 0
    assert "--only-unsent" not in refused.stderr + send(folder, *again).stdout


def test_an_error_ends_with_the_command_that_continues_the_launch(
    send: Send, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(FIELDS)
    with monkeypatch.context() as patch:
        patch.setenv("SENDOFF_CLIENT_SECRET", "another-secret")
        refused = send(folder)
    assert refused.returncode == 1
    place = "SENDOFF_SERVICE_URL, SENDOFF_CLIENT_ID, SENDOFF_CLIENT_SECRET or SENDOFF_APP_TOKEN: no token: the service"
    assert place in refused.stderr
    how = refused.stderr.splitlines()[-1]
    assert how.startswith("To continue, run: sendoff send ")
    assert send(how.rpartition(" ")[2]).returncode == 0


def test_the_error_about_a_wrong_app_token_names_its_variable(
    send: Send, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_APP_TOKEN", "another-token")
    refused = send(write(FIELDS))
    assert refused.returncode == 1
    assert "SENDOFF_CLIENT_SECRET or SENDOFF_APP_TOKEN: the service refused the token" in refused.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.proof
def test_an_interrupted_launch_continues_and_sends_nothing_twice(
    service: LocalService,
    environment: dict[str, str],
    ledger: Ledger,
    send: Send,
    write: Callable[[str], str],
    how: signal.Signals,
) -> None:
    folder = write(f"{FIELDS}segment_size: 1\n")
    slow = {
        **os.environ,
        **environment,
        "SENDOFF_REQUESTS_PER_SECOND": "0.2",
        "SENDOFF_REQUESTS_AT_ONCE": "1",
    }
    command = [sys.executable, "-c", "from sendoff.cli import main; main()", "send", folder]
    with subprocess.Popen(command, env=slow, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: process.poll() is not None or accepted(ledger))
        process.send_signal(how)
        try:
            told, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted: " in told
    [key] = [line.rpartition(" ")[2] for line in told.splitlines() if "To continue, run: " in line]
    assert accepted(ledger) < 4
    assert send(key).returncode == 0
    assert sent_to(service) == [7, 14, 21, 28]


def accepted(ledger: Ledger) -> int:
    launches = ledger.launches.search(limit=1)
    return ledger.dispatch_queries.states(launches[0].launch_key).get("accepted", 0) if launches else 0


def test_the_first_period_that_has_not_ended_is_too_early(send: Send, write: Callable[[str], str]) -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    done = send(write(FIELDS.replace("2026-01-01", f"{tomorrow}")))
    assert done.returncode == 3
    assert done.stdout.startswith("not yet: the first period of the campaign ends at ")


STEP = "    message: {title: Hello, text: Welcome}\n    channels: {web_push: {browsers: [chrome]}}\n"
JOURNEY = f"""title: Welcome
steps:
  - name: a
{STEP}  - name: b
    when: {{of: a, are: [in_doubt]}}
{STEP}  - name: c
    wait: {{length: 1, unit: hours}}
    when: {{of: a, are: [missing, delivered, engaged]}}
{STEP}  - name: d
    when: {{of: c, are: [delivered]}}
{STEP}"""


@pytest.fixture
def journey(tmp_path: Path) -> Path:
    folder = tmp_path / "journey"
    folder.mkdir()
    (folder / "journey.yaml").write_text(JOURNEY)
    (folder / "audience.sql").write_text(QUERY)
    return folder


def test_a_journey_sends_each_step_that_is_due_and_says_what_it_waits_for(
    service: LocalService, send: Send, journey: Path
) -> None:
    period = "2026-03-02T00:00:00Z/2026-03-03T00:00:00Z"
    for status in ("sent: 1 accepted", "already sent: 1 accepted, the last at "):
        done = send(str(journey), "--period", "2026-03-02")
        assert done.returncode == 3, done.stderr
        launch, sent, _, skipped, waiting, rest = done.stdout.splitlines()
        assert launch.endswith(f"of journey.a, period {period}: 4 people, 1 request")
        assert sent.startswith(status)
        assert skipped.startswith("skipped: campaign journey.b: ")
        assert waiting.startswith("not yet: step c is not due yet (try again at ")
        assert rest == f"For what is left, run: sendoff send {journey} --period {period}"
    assert sent_to(service) == [7, 14, 21, 28]


def test_a_refused_request_does_not_stop_the_steps_after_it(
    service: LocalService, send: Send, journey: Path
) -> None:
    small = JOURNEY.replace("  - name: a\n", "  - name: a\n    segment_size: 2\n").replace("hours", "seconds")
    (journey / "journey.yaml").write_text(small)
    fault(service, "403", 1)
    for _ in range(2):
        done = send(str(journey), "--period", "2026-03-02")
        assert done.returncode == 1
        launch, refused, report, how = done.stdout.splitlines()[:4]
        assert " of journey.a, period 2026-03-02T00:00:00Z/" in launch
        assert refused.startswith("refused: ")
        assert "the service refused 1 request: " in refused
        assert report == f"For its report, run: sendoff report {launch.split()[1]}"
        assert f" run: sendoff send {journey / 'a'} --period " in how
        assert how.endswith("--resend NUMBER --reason TEXT --only-unsent")
        assert "To continue, run" not in done.stdout
        rest = done.stdout.splitlines()[-1]
        assert rest.startswith("For what is left") == ("not yet: " in done.stdout)
        time.sleep(1)
    step = json.loads(send(str(journey / "a"), "--period", "2026-03-02", "--json").stdout)
    assert (step["status"], step["campaign"], step["people"]) == ("refused", "journey.a", 4)
    assert len(sent_to(service)) == 4  # two people got both steps


def test_a_named_step_is_sent_when_it_is_due(service: LocalService, send: Send, journey: Path) -> None:
    first = send(str(journey / "c"), "--period", "2026-03-02")
    assert first.returncode == 3
    why = "step c: the step journey.a has no launch for this period. Send it first"
    assert first.stdout.startswith(f"not sent: {why}\n")
    assert send(str(journey / "a"), "--period", "2026-03-02").returncode == 0
    early = send(str(journey / "c"), "--period", "2026-03-02", "--json")
    assert early.returncode == 3
    result = json.loads(early.stdout)
    assert (result["status"], result["period"][:10]) == ("not yet", "2026-03-02")
    assert datetime.fromisoformat(result["until"]) > datetime.now(UTC) + timedelta(minutes=50)
    assert sent_to(service) == [7, 14, 21, 28]
    (journey / "journey.yaml").write_text(
        JOURNEY.replace("length: 1, unit: hours", "length: 1, unit: seconds")
    )
    time.sleep(1)
    done = send(str(journey / "c"), "--period", "2026-03-02")
    assert done.returncode == 0, done.stderr
    assert sent_to(service) == [7, 7, 14, 14, 21, 21, 28, 28]


def test_a_step_that_was_sent_is_not_due_again_after_a_resend_of_the_one_before(
    service: LocalService, send: Send, journey: Path
) -> None:
    short = JOURNEY.replace("length: 1, unit: hours", "length: 1, unit: seconds").replace(
        "delivered]}", "missing]}"
    )
    (journey / "journey.yaml").write_text(short)
    day = ("--period", "2026-03-02")
    send(str(journey), *day)
    time.sleep(1)
    assert send(str(journey), *day).returncode == 0
    (journey / "journey.yaml").write_text(JOURNEY)  # the next step would wait for an hour after the resend
    send(str(journey / "a"), *day, "--resend", "1", "--reason", "a wrong link")
    done = send(str(journey), *day)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("already sent: ") == 3


def test_a_launch_continues_by_its_key_in_the_folder_of_a_journey(
    send: Send, journey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(journey)
    done = send("a", "--period", "2026-03-02")
    assert done.returncode == 0, done.stderr
    again = send(done.stdout.split()[1])
    assert again.returncode == 0, again.stderr
    assert "already sent: 1 accepted" in again.stdout


def test_a_preview_of_a_step_has_the_period_of_the_journey(send: Send, journey: Path) -> None:
    daily = JOURNEY.replace("steps:", 'schedule: "0 9 * * *"\nstart: 2026-01-01\nsteps:')
    (journey / "journey.yaml").write_text(daily)
    assert send(str(journey / "a")).returncode == 0
    done = send(str(journey / "c"), "--json", command="preview")
    assert done.returncode == 0, done.stderr
    preview = json.loads(done.stdout)
    assert re.fullmatch("(.{10}T09:00:00Z/?){2}", preview["period"])
    assert not any("has no schedule" in warning for warning in preview["warnings"])


@pytest.mark.proof
def test_a_journey_that_waits_keeps_its_period_when_the_schedule_has_the_next(
    service: LocalService, send: Send, journey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = f"{STEP}    report: {{quiet_for: {{length: 1, unit: seconds}}}}\n"
    text = JOURNEY.replace("length: 1, unit: hours", "length: 2, unit: seconds").replace(STEP, quick)
    text = text.replace("steps:", 'schedule: "0 * * * *"\nstart: 2026-01-01\nsteps:').partition(
        "  - name: d"
    )[0]
    (journey / "journey.yaml").write_text(text)
    later = count()
    monkeypatch.setattr(
        campaign, "last_period", lambda of, now: last_period(of, now - timedelta(hours=4 - next(later)))
    )
    done = send(str(journey), "--wait", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(f"{{{each}") for each in f"\n{done.stdout}".split("\n{")[1:]]
    assert [each["status"] for each in results] == ["sent", "skipped", "sent"]
    assert len({each["period"] for each in results}) == 1
    assert sent_to(service) == [7, 7, 14, 14, 21, 21, 28, 28]


def test_an_interrupted_journey_sends_no_further_step(
    service: LocalService, send: Send, journey: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = f"{STEP}    report: {{quiet_for: {{length: 1, unit: seconds}}}}\n"
    d = "of: c, are: [delivered]", "of: a, are: [missing, delivered, engaged]"  # due, unlike c
    (journey / "journey.yaml").write_text(JOURNEY.replace(STEP, quick).replace(*d))
    real = time.sleep
    monkeypatch.setattr(
        time, "sleep", lambda seconds: real(seconds) if seconds < 10 else signal.raise_signal(signal.SIGTERM)
    )
    done = send(str(journey), "--period", "2026-03-02", "--wait")
    assert done.returncode == 130
    assert "waiting until " in done.stderr
    assert done.stdout.splitlines()[-1].startswith("For what is left, run: sendoff send ")
    assert sent_to(service) == [7, 14, 21, 28]


def test_a_journey_is_not_sent_again_but_a_step_is(service: LocalService, send: Send, journey: Path) -> None:
    again = ("--period", "2026-03-02", "--resend", "1", "--reason", "lost")
    refused = send(str(journey), *again)
    assert refused.returncode == 2
    assert f"Name the step to send again, such as {journey / 'a'}" in refused.stderr
    assert sent_to(service) == []
