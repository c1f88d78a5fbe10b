"""The mutants of `make mutants`: the changed lines, the sample, and the tests that run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.mutation import mutants
from tools.mutation.__main__ import drawn, known_survivors
from tools.mutation.judge import NOTICED, SURVIVED, _run_items
from tools.mutation.mutants import ROOT, SOURCES, Mutant, Place, all_mutants, mutants_of

PERIOD = "sendoff/campaign/period.py"
ON_IMPORT, LATER = "def launch_key", 'return _derived("dispatch"'  # when these lines are executed


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
        ("return NotImplemented", set()),
        ('_log.info("%d", 1)', set()),
        ("count(people=a or 0)", set()),
        ("if a and b: _log.info(c)", set()),
        ("if f(3): _log.info(c)", {"if False: _log.info(c)", "if f(4): _log.info(c)"}),
        ("_AT_ONCE = 1 << 16", set()),
        ("_READ_AT_ONCE = 4", set()),
        ("_TRIES = 5", {"_TRIES = 6"}),
        ("_MOST = 100; x = len(y) < _MOST", set()),
        ("_MOST = 100; x = len(y) == _MOST", {"_MOST = 100; x = len(y) != _MOST"}),
        ("x = zip(a, b, strict=True)", set()),
        ("x = streamed(f(2), 20)", {"x = streamed(f(3), 20)"}),
        ("x = query.execution_options(stream_results=True, max_row_buffer=20)", set()),
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


def test_the_process_of_a_mutant_ends_although_its_tests_left_something() -> None:
    def fail(**_: object) -> None:
        raise ResourceWarning

    hook = SimpleNamespace(pytest_runtestloop=lambda **_: None, pytest_sessionfinish=fail)
    session: Any = SimpleNamespace(items=[], config=SimpleNamespace(hook=hook))
    child = os.fork()
    if not child:
        try:
            _run_items(session, [])
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_seed_draws_the_same_mutants_again() -> None:
    every = all_mutants()
    assert drawn(every, 5, seed=1) == drawn(every, 5, seed=1) != drawn(every, 5, seed=2)


@pytest.mark.parametrize(
    ("line", "statement", "function"),
    [
        (1, range(1, 2), None),
        (4, range(4, 5), None),  # a default value is read on import
        (6, range(5, 7), range(3, 8)),
        (7, range(7, 8), range(3, 8)),
    ],
)
def test_a_line_belongs_to_a_statement_and_the_outermost_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int, statement: range, function: range | None
) -> None:
    source = "X = 1\n\n@cache\ndef f(x=2):\n    if (x\n        and 3):\n        return lambda: 4\n"
    (tmp_path / "a.py").write_text(source)
    monkeypatch.setattr("tools.mutation.mutants.SOURCES", tmp_path)
    assert Mutant("a.py", line, 0, 0, "", "", "").place == Place(statement, function)


def test_what_is_made_on_import_is_used_where_its_name_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/a.py").write_text(
        "def _add(x):\n    return x + 1\n\n\ndef _make(x):\n    return _add(x)\n\n\n"
        "_FIRST = _make(1)\nSECOND = _FIRST\n"
    )
    (tmp_path / "pack/__init__.pyi").write_text("from .a import SECOND as OTHER\n")
    user = "from pack import OTHER\n\n\ndef f(x=OTHER):\n    return x\n\n\ndef g():\n    return f(OTHER)\n"
    (tmp_path / "user.py").write_text(user)
    monkeypatch.setattr("tools.mutation.mutants.SOURCES", tmp_path)
    mutants._importers.cache_clear()
    mutants._tree.cache_clear()
    of_make = mutants.lines_that_use("pack/a.py", 6)
    assert of_make == {"pack/a.py": {5, 6}, "user.py": {9}}
    of_add = mutants.lines_that_use("pack/a.py", 2, lambda file, line: (file, line) == ("pack/a.py", 6))
    assert of_add == {"pack/a.py": {1, 2, 6}, "user.py": {9}}
    assert mutants.lines_that_use("pack/a.py", 2) == {"pack/a.py": {1, 2, 6}}
    mutants._importers.cache_clear()
    mutants._tree.cache_clear()


@pytest.mark.parametrize(
    ("tests", "line", "result"),
    [
        ("tests/unit/campaign/test_period.py", ON_IMPORT, NOTICED),
        ("tests/unit/campaign/test_period.py", LATER, NOTICED),
        ("tests/unit/campaign/test_model.py", LATER, SURVIVED),  # its tests execute other lines of the file
        ("tests/unit/test_settings.py", ON_IMPORT, SURVIVED),  # its tests execute none
    ],
)
def test_a_mutant_is_noticed_if_a_test_of_its_line_fails(tests: str, line: str, result: str) -> None:
    before = (SOURCES / PERIOD).read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutation", "--only", line, "--seconds", "600", "--tests", tests],
        cwd=ROOT,
        env={**os.environ, "PYTEST_XDIST_WORKER": "gw0"},  # which must not mix with those of the command
        capture_output=True,
        text=True,
        check=False,
    )
    found = {line.split(" ")[0] for line in done.stdout.splitlines() if PERIOD in line}
    assert (found, done.returncode) == ({result}, int(result != NOTICED)), done.stdout + done.stderr
    assert (SOURCES / PERIOD).read_bytes() == before


def test_several_processes_judge_each_mutant_once() -> None:
    options = ["--only", PERIOD, "--count", "6", "--processes", "2", "--seconds", "600"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutation", *options, "--tests", "tests/unit/campaign/test_period.py"],
        cwd=ROOT,
        env={**os.environ, "PYTEST_XDIST_WORKER": "gw0"},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = drawn([each for each in all_mutants() if PERIOD in each.key], 6, seed=1)
    judged = [line for line in done.stdout.splitlines() if PERIOD in line]
    assert len(judged) == 6, done.stdout + done.stderr
    for mutant in expected:
        assert any(
            f"{mutant.path}:{mutant.line}: {mutant.before} -> {mutant.after}" in line for line in judged
        )
    noticed = sum(line.startswith(NOTICED) for line in judged)
    assert f"\n{noticed} of 6 meaningful mutants noticed" in done.stdout


def test_each_listed_survivor_still_exists_and_has_a_reason() -> None:
    listed = known_survivors()
    assert listed.keys() <= {mutant.key for mutant in all_mutants()}
    assert all(listed.values())
