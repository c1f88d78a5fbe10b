"""The commands about people: suppression lists, and why a person was left out or sent to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers, strings
from sendoff.audience.segmentation import Segment
from sendoff.figures import counted
from sendoff.ledger import Ledger

from ...factories import KEY, PERIOD, make_launch

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def url(migrated_url: str) -> str:
    """Return the URL of a ledger whose launch goes to device 4711 and leaves out 4712."""
    ledger = Ledger(migrated_url)
    people = integers([4711])
    make_launch(
        ledger,
        segments=[Segment(people)],
        audience=Audience("device_id", people, 2, {"cap": 1}, {}),
        created_at=PERIOD.end,
        sends_at=PERIOD.end,
        suppressed={"cap": integers([4712])},
    )
    ledger.close()
    return migrated_url


def test_a_list_is_uploaded_shown_and_deleted(url: str, tmp_path: Path, sendoff: Command) -> None:
    file = tmp_path / "complaints.csv"
    file.write_text("user_id,since\nann4711,2026\nzoë,2026\n,2026\n", encoding="utf-8")
    upload = (
        "lists",
        "upload",
        "complaints",
        str(file),
        "--column",
        "user_id",
        "--ledger",
        url,
    )
    done = sendoff(*upload)
    assert (done.stdout, done.stderr) == ("list complaints: 2 people by user_id\n", "")
    ledger = Ledger(url)
    assert ledger.uploaded_lists.get("complaints")[1] == strings(["ann4711", "zoë"])
    ledger.close()

    shown_to_people = sendoff("lists", "show", "--ledger", url).stdout
    assert shown_to_people.startswith("complaints: 2 people by user_id, uploaded by ")
    (shown,) = json.loads(sendoff("lists", "show", "--json", "--ledger", url).stdout)
    assert f"uploaded by {shown.pop('uploaded_by')} on" in shown_to_people
    assert datetime.fromisoformat(shown.pop("uploaded_at")).tzinfo is not None
    assert shown == {
        "name": "complaints",
        "identified_by": "user_id",
        "kind": "string",
        "size": 2,
    }

    assert sendoff("lists", "delete", "complaints", "--ledger", url).stdout == "list complaints is deleted\n"
    again = sendoff("lists", "delete", "complaints", "--ledger", url)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "no list 'complaints'" in again.stderr
    assert json.loads(sendoff("lists", "show", "--json", "--ledger", url).stdout) == []


def test_a_list_of_one_is_one_person(url: str, tmp_path: Path, sendoff: Command) -> None:
    file = tmp_path / "complaints.csv"
    file.write_text("device_id\n4711\n")
    done = sendoff("lists", "upload", "complaints", str(file), "--ledger", url)
    assert done.stdout == "list complaints: 1 person by device_id\n"
    assert sendoff("lists", "show", "--ledger", url).stdout.startswith("complaints: 1 person by device_id, ")


def test_an_upload_of_what_names_nobody_is_one_line_without_a_value(
    url: str, tmp_path: Path, sendoff: Command
) -> None:
    file = tmp_path / "complaints.csv"
    file.write_text("device_id\nann4711\n")
    for column, code in (("device_id", 1), ("email", 2)):
        done = sendoff("lists", "upload", "complaints", str(file), "--column", column, "--ledger", url)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
        assert "4711" not in done.stderr


def test_why_says_in_one_sentence_what_became_of_somebody(url: str, sendoff: Command) -> None:
    done = sendoff("why", KEY[:8], "4711", "--ledger", url)
    said = "not sent yet: its turn comes later (segment 1, wave 1, request planned)\n"
    assert (done.stdout, done.stderr) == (said, "")
    assert sendoff("why", KEY, "4712", "--ledger", url).stdout == (
        "left out: they already get as many messages as the cap allows\n"
    )
    found = json.loads(sendoff("why", KEY, "4712", "--json", "--ledger", url).stdout)
    assert (found["reason"], found["segment"], found["is_named"]) == ("cap", None, True)
    listed = sendoff("history", "4711", "--ledger", url).stdout.splitlines()
    assert listed[0].endswith(f" UTC, spring, {KEY[:12]}: {said.strip()}")
    assert listed[1:] == []
    [found] = json.loads(sendoff("history", "4711", "--campaign", "spring", "--json", "--ledger", url).stdout)
    assert (found["campaign"], found["launch_key"], found["segment"]) == ("spring", KEY, 1)
    for nothing, launches in (("4713",), 1), (("4711", "--campaign", "autumn"), 0), (("ann4711",), 1):
        said = f"not named in {counted(launches, 'launch', 'launches')}\n"
        assert sendoff("history", *nothing, "--ledger", url).stdout == said
    wrong = sendoff("why", KEY, "ann4711", "--ledger", url)
    assert wrong.returncode == 1
    assert "identifies recipients by device_id, as whole numbers" in wrong.stderr
