"""Record which tests execute which line, and how long each takes.

As a pytest plugin (``-p tools.mutation.record``), this module records in each process of the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from tools.mutation.mutants import ROOT, SOURCES, Mutant, lines_that_use

OPTIONS = ["-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not proof"]
FOLDERS = ("tests/unit", "tests/contract")
_FOLDER = "SENDOFF_MUTANTS_FOLDER"
_PROCESS = "PYTEST_XDIST_WORKER"


class Record:
    """The tests of each line. They are recorded again after a change of Sendoff."""

    def __init__(self, tests: Sequence[str] = FOLDERS, *, again: bool = False) -> None:
        folder = ROOT / "build" / "mutants" / _digest(tests)
        if again or not folder.exists():
            _record(tests, folder)
        self.tests = tests
        self.seconds: dict[str, float] = {}
        self._data = []
        for file in folder.glob("*.coverage"):
            self.seconds |= json.loads(file.with_suffix(".json").read_text())
            self._data.append(CoverageData(no_disk=True))
            self._data[-1].loads(file.read_bytes())

    def tests_of(self, mutant: Mutant, collected: Iterable[str]) -> list[str]:
        """Return the tests that execute a changed line.

        First come those that also execute the following line, then those of its own package, then the fastest. Tests on
        PostgreSQL come last, because the first of them creates the tables.
        A line that runs on import is executed before the tests. Its tests are those that use by name what it defines,
        and then those that execute any line of the file. The latter are also those of a function that runs only in
        other processes. A test that was not recorded may execute anything.
        """
        path, place = mutant.path, mutant.place
        is_seen = place.function and self._tests(path, place.function) and not self.runs_on_import(mutant)
        found = self._tests(path, place.statement if is_seen else self._contexts(path))
        users: set[str] = set()
        if self.runs_on_import(mutant):
            for file, lines in lines_that_use(path, mutant.line, self._runs_on_import).items():
                users |= self._tests(file, lines)
            found |= users
        following = self._tests(path, [place.statement.stop])  # the body of a condition
        own = f"/{path.split('/')[1]}/"
        return sorted(
            (test for test in collected if test in found or test not in self.seconds),
            key=lambda test: (
                test in self.seconds,
                bool(users) and test not in users,
                "postgresql" in test,
                test not in following,
                own not in test,
                self.seconds.get(test, 0),
            ),
        )

    def runs_on_import(self, mutant: Mutant) -> bool:
        """Check whether a changed line was executed while the tests were collected."""
        place = mutant.place
        return not place.function or any(self._runs_on_import(mutant.path, line) for line in place.statement)

    def _runs_on_import(self, path: str, line: int) -> bool:
        return "" in self._contexts(path).get(line, ())

    def _tests(self, path: str, lines: Iterable[int]) -> set[str]:
        contexts = self._contexts(path)
        found = {
            context.rpartition("|")[::2] for line in lines for context in contexts.get(line, ()) if context
        }
        # What one test sets up may be shared by others of its file.
        files = {_file(test) for test, step in found if step == "setup"}
        return {test for test, _ in found} | {test for test in self.seconds if _file(test) in files}

    @cache  # noqa: B019 (one object for a whole run)
    def _contexts(self, path: str) -> dict[int, list[str]]:
        found: defaultdict[int, list[str]] = defaultdict(list)
        for data in self._data:
            for line, contexts in data.contexts_by_lineno(str(SOURCES / path)).items():
                found[line] += contexts
        return found


def _record(tests: Sequence[str], folder: Path) -> None:
    unfinished = folder.with_name(f"{folder.name}-{os.getpid()}")
    unfinished.mkdir(parents=True)
    options = [*OPTIONS, "-n", str((os.cpu_count() or 1) + 1), "-p", __name__, *tests]
    environment = {**os.environ, _FOLDER: str(unfinished)}
    environment.pop(_PROCESS, None)  # only the processes that run tests record, also if a test starts this
    # A test that fails here does not count later.
    subprocess.run(  # noqa: S603 (our own tests)
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env=environment,
        check=False,
    )
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


class _Recorder:
    """A pytest plugin. The data stays in memory until the end, because some tests give up the right to write."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: defaultdict[str, float] = defaultdict(float)
        source = [str(SOURCES / "sendoff")]  # threads only: recording greenlets can hang Python 3.11
        self._coverage = Coverage(data_file=None, source=source, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        self._coverage.switch_context(f"{item.nodeid}|setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        self._coverage.switch_context(f"{item.nodeid}|call")
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._file.write_bytes(self._coverage.get_data().dumps())
        self._file.with_suffix(".json").write_text(json.dumps(self._seconds))


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Record in this process if it runs tests for ``_record``."""
    process = os.environ.get(_PROCESS)
    if process and _FOLDER in os.environ:
        early_config.pluginmanager.register(_Recorder(Path(os.environ[_FOLDER], f"{process}.coverage")))


def _file(test: str) -> str:
    return test.partition("::")[0]


def _digest(tests: Sequence[str]) -> str:
    found = hashlib.sha256(" ".join(tests).encode())
    for file in sorted(SOURCES.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
