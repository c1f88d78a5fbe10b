"""The crash proof in its short form: real processes killed, faults injected, everything counted."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@cache
def rows() -> dict[str, dict[str, Any]]:
    """Return the counts of one short run, by the name of the scenario."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.chaos", "--short", "--json", "--seconds", "3600"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=3600,
        check=False,
    )
    assert done.returncode in (0, 1), "the crash proof could not be made; what it wrote stands above"
    return {row["fault"]: row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.promise("twice/once")
def test_nothing_is_sent_twice_and_nothing_lost() -> None:
    promised = [row for row in rows().values() if row["expected"] == "none"]
    assert len(promised) > 25
    damaged = {row["fault"]: row for row in promised if not row["is_as_expected"]}
    assert damaged == {}
    assert all(row["dispatches"] >= 4 and row["unfinished"] == 0 for row in promised)


def test_it_is_about_processes_that_died_and_faults_that_struck() -> None:
    assert rows()["worker killed between two lines"]["killed"] >= 5
    assert rows()["aggregation killed between two lines"]["killed"] >= 5
    assert sum(row["faults"] for row in rows().values()) > 50
    assert sum(row["post_backs"] for row in rows().values()) > 500


def test_what_nobody_knows_is_in_doubt_and_post_backs_resolve_it() -> None:
    assert rows()["500 before"]["in_doubt"] > 0
    assert rows()["500 before"]["resolved"] == 0
    assert rows()["answer lost"]["resolved"] > 0


@pytest.mark.parametrize(
    ("protocol", "shows"),
    [
        ("intent written after the request", "duplicates"),
        ("doubt sent again", "duplicates"),
        ("mark moved before the post-backs are stored", "lost_post_backs"),
        ("key of a notebook", "duplicates"),
        ("request key with the attempt", "duplicates"),
        ("counted after the request", "above_limit"),
        ("verdicts asked only when the launch is frozen", "sent_after_open"),
        ("file that replaces entries of every source", "sent_after_opt_out"),
        ("winner judged at each claim", "other_variants"),
        ("own hours ignored", "wrong_hours"),
        ("erasure that skips blocks", "kept"),
    ],
)
@pytest.mark.promise("twice/proof")
def test_the_same_counting_finds_a_protocol_that_is_wrong(protocol: str, shows: str) -> None:
    assert rows()[protocol][shows] > 0


def test_a_wrong_protocol_makes_the_command_fail() -> None:
    line = [sys.executable, "-c", _WRONG]
    done = subprocess.run(line, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=1200, check=False)
    assert done.returncode == 1


_WRONG = """
import sys
from dataclasses import replace

from tools.chaos import command

if __name__ == "__main__":
    wrong = next(each for each in command.SCENARIOS if each.name == "doubt sent again")
    command.SCENARIOS = (replace(wrong, expected="none"),)
    sys.argv = ["chaos", "--short"]
    sys.exit(command.main())
"""
