"""The mutants of `make mutants`: the changed lines, the sample, and the order of tests."""

from __future__ import annotations

import pytest

from tools.mutation.__main__ import NOTICED, SURVIVED, TIME_OVER, drawn, known_survivors, run_tests
from tools.mutation.mutants import SOURCES, Mutant, all_mutants, mutants_of
from tools.mutation.tests import Imports

CLAIMS = "sendoff/ledger/requests/claims.py"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a and b", {"x = a or b", "x = a"}),
        ("x = not a", {"x = a"}),
        ("x = f(3, True)", {"x = f(4, True)", "x = f(3, False)"}),
        ("query.where(a, b)", {"query.where(*(), b)", "query.where(a, *())", "pass"}),
        ("x = sa.or_(a)", {"x = sa.and_(a)"}),
        ("count += n", {"pass"}),
        ('x = "é" == y', {'x = "é" != y'}),
        ("x: Literal[1] = f()", set()),
        ('_log.info("%d", 1)', set()),
        ('raise ValueError("found " + 1)', set()),
    ],
)
def test_lines_are_changed_in_one_place(line: str, changed: set[str]) -> None:
    assert {mutant.after for mutant in mutants_of("a.py", line.encode())} == changed


def test_a_function_returns_nothing_unless_it_did_before() -> None:
    source = b"def f():\n    if a:\n        return False\n    return b\n"
    assert {mutant.after for mutant in mutants_of("a.py", source)} == {
        "if False:",
        "return None",
        "return True",
    }


def test_a_seed_draws_the_same_mutants_again() -> None:
    mutants = all_mutants()
    assert drawn(mutants, 5, seed=1) == drawn(mutants, 5, seed=1) != drawn(mutants, 5, seed=2)


def test_the_nearest_tests_come_first() -> None:
    nearest, *others = Imports().tests_of(CLAIMS)
    assert nearest == "tests/unit/ledger/test_claims.py"
    assert "tests/unit/dispatch/test_worker.py" in others


def test_a_noticed_mutant_fails_a_test_and_the_file_stays_as_it_is() -> None:
    before = (SOURCES / CLAIMS).read_bytes()
    mutants = mutants_of(CLAIMS, before)
    mutant = next(each for each in mutants if each.after == "attempt=dispatches.c.attempt - 1,")
    assert run_tests(mutant, ["tests/unit/ledger/test_claims.py"], seconds=300) == NOTICED
    assert (SOURCES / CLAIMS).read_bytes() == before


def test_each_listed_survivor_still_exists_and_has_a_reason() -> None:
    listed = known_survivors()
    assert listed.keys() <= {mutant.key for mutant in all_mutants()}
    assert all(listed.values())


def test_a_mutant_that_changes_nothing_is_not_noticed() -> None:
    line = (SOURCES / "sendoff/campaign/period.py").read_text().splitlines()[0]
    mutant = Mutant("sendoff/campaign/period.py", 1, 0, 0, "", line, line)
    assert run_tests(mutant, ["tests/unit/test_states.py"], seconds=300) == SURVIVED
    assert run_tests(mutant, ["tests/unit/test_states.py"], seconds=0) == TIME_OVER
