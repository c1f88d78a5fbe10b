"""The simulator: no seed breaks a rule, a seed is always the same history, and wrong protocols are found."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

from tools.mutation.mutants import SOURCES
from tools.simulator import command
from tools.simulator.checker import check
from tools.simulator.mutants import MUTANTS, changed
from tools.simulator.shrinking import shrunk, timeline

# The first seeds to play. With the first mutant, the history of seed 1 is longer than forty others.
EVERY_DAY = {"intent after the request": 2, "suppression only when frozen": 1}


@pytest.fixture(scope="module")
def child() -> Iterator[Pool]:
    """A process that plays seeds: the product's modules there have virtual time."""
    with get_context("spawn").Pool(1, command.begin, (None,)) as pool:
        yield pool


@pytest.mark.promise("twice/once", "twice/intent", "twice/doubt", "lost/stored", "lost/aggregated")
def test_seeds_break_no_rule(child: Pool) -> None:
    assert broken_by(child, range(1, 36)) == []


@pytest.mark.parametrize("part", range(3))
def test_fresh_seeds_of_each_commit_break_no_rule(child: Pool, part: int) -> None:
    """Each commit plays 300 others, and `make proof` many more. To see one: ``python -m tools.simulator --seed N``."""
    first = command.of_commit() + 100 * part
    assert broken_by(child, range(first, first + 100)) == []


def broken_by(child: Pool, seeds: range) -> list[int]:
    return [seed for seed in seeds if check(child.apply(command.events_of, (seed,)))]


@pytest.mark.proof
def test_some_seeds_are_played_however_short_the_time_is() -> None:
    played, _, found = command.run(1, seconds=0, processes=1)
    assert found is None
    assert played >= command.AT_ONCE


@pytest.mark.parametrize("seed", command.known_seeds())
def test_seeds_that_once_failed_break_no_rule(child: Pool, seed: int) -> None:
    assert check(child.apply(command.events_of, (seed,))) == []


@pytest.mark.parametrize("seeds", [range(1, 6), pytest.param(range(6, 26), marks=pytest.mark.proof)], ids=str)
def test_a_seed_is_always_the_same_history(child: Pool, seeds: range) -> None:
    assert [seed for seed in seeds if not child.apply(command.is_repeated, (seed,))] == []


@pytest.mark.proof
def test_another_process_plays_the_same_history(child: Pool) -> None:
    with get_context("spawn").Pool(1, command.begin, (None,)) as other:
        for seed in range(1, 11):
            assert other.apply(command.events_of, (seed,)) == child.apply(command.events_of, (seed,)), seed


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_changes_one_line_that_is_there(name: str) -> None:
    mutant = MUTANTS[name]
    source = (SOURCES / f"{mutant.module.replace('.', '/')}.py").read_text()
    compile(changed(source, mutant), name, "exec")


@pytest.mark.promise("twice/proof")
@pytest.mark.parametrize(("name", "first"), EVERY_DAY.items())
def test_a_protocol_that_is_wrong_on_purpose_is_found_and_its_seed_replays(name: str, first: int) -> None:
    found, replays = command.found_and_replayed(name, seconds=60, processes=1, replays=5, first=first)
    assert found is not None
    assert replays == 5


def test_a_failing_history_is_made_smaller() -> None:
    def fails(given: object) -> object:
        assert isinstance(given, dict)
        return given if {"crash", "lost reply"} <= given.keys() else None

    taken = {"crash": 1, "lost reply": 2} | {f"switch {number}": 1 for number in range(40)}
    assert shrunk(taken, fails) == {"crash": 1, "lost reply": 2}  # type: ignore[arg-type]


def test_a_history_is_shown_as_a_timeline(child: Pool) -> None:
    lines = list(timeline(child.apply(command.events_of, (1,))))
    assert any("claims dispatch 1, attempt 1" in line for line in lines)
    assert all("?" not in line for line in lines), lines


def test_a_broken_protocol_is_printed_with_its_smallest_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command.main(["--mutant", "intent missing", "--seconds", "20", "--processes", "1", "--first", "1"])
        == 1
    )
    printed = capsys.readouterr().out
    assert "BROKEN: intent: request 1 has no claim before it" in printed
    assert "per hour" in printed


def test_a_seed_becomes_a_test_by_one_line(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_text("# a comment\n17  # what it showed\n\n4\n")
    assert command.known_seeds(file) == [17, 4]
