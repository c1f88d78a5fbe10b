"""Judge mutants: fork a process for each after all tests are collected, and run the tests of its line there.

Sendoff is imported from a copy, so nothing changes in place. The forked process replaces the code of the changed
function. If the changed line runs on import, the process starts Python again instead.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import NoReturn

import pytest

from tools.mutation.mutants import ROOT, SOURCES, Mutant
from tools.mutation.record import OPTIONS, Record

NOTICED, SURVIVED, TIME_OVER = "noticed", "SURVIVED", "TIME OVER"
_TIME_OVER = 99  # exit code
_TO_END = 20.0  # seconds for the last test to clean up after the time is over

Report = Callable[[Mutant, str, str], None]


def judge(mutants: Iterator[Mutant], record: Record, folder: Path, seconds: float, report: Report) -> int:
    """Report the result of each mutant and the test that failed. Return pytest's exit code.

    The folder gets a copy of Sendoff. ``seconds`` limits the tests of one mutant.
    """
    shutil.copytree(SOURCES, folder / "include")
    sys.path.insert(0, str(folder / "include"))
    sys.dont_write_bytecode = True  # a compiled mutant could be taken for the original
    os.environ |= {"PYTHONPATH": sys.path[0], "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder)}
    tempfile.tempdir = str(folder)
    watch = _Watch(folder, seconds)
    return _pytest(folder, record.tests, watch, _Judge(mutants, record, watch, report))


class _Watch:
    """A pytest plugin in the process of a mutant. It notes the test that failed, and stops when the time is over."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.failed = folder / "failed"
        self.seconds = seconds
        self._test, self._since = "", 0.0

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._stop)
        signal.setitimer(signal.ITIMER_REAL, max(self.seconds, 0.001), _TO_END)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test, self._since = nodeid, time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the next one ends the process
        if self._test and time.monotonic() - self._since > self.seconds / 2:
            self.failed.write_text(self._test)
            pytest.exit("the test does not end", returncode=1)
        pytest.exit("the time is over", returncode=_TIME_OVER)


class _Judge:
    """A pytest plugin that forks a process for each mutant once the tests are collected."""

    def __init__(self, mutants: Iterator[Mutant], record: Record, watch: _Watch, report: Report) -> None:
        self._mutants = mutants
        self._record = record
        self._watch = watch
        self._report = report
        self._is_parent = True
        self._broken: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if not self._is_parent:
            return None  # pytest runs the tests
        for mutant in self._mutants:
            self._report(mutant, *self._judged(session, mutant))
        return True

    def _judged(self, session: pytest.Session, mutant: Mutant) -> tuple[str, str]:
        items = {item.nodeid: item for item in session.items}
        tests = self._record.tests_of(mutant, items)
        while True:
            chosen = [items[test] for test in tests if test not in self._broken]
            result, failed = self._run(session, chosen, mutant)
            if failed not in items or self._run(session, [items[failed]])[0] == SURVIVED:
                return result, failed
            self._broken.add(failed)  # it fails without the mutant, too

    def _run(
        self, session: pytest.Session, items: list[pytest.Item], mutant: Mutant | None = None
    ) -> tuple[str, str]:
        if not items:
            return SURVIVED, ""
        self._watch.failed.write_text("")
        file = self._watch.folder / "include" / mutant.path if mutant else None
        if mutant and file:
            file.write_bytes(mutant.source())
        child = os.fork()
        if not child:
            os.setsid()
            self._is_parent = False
            if mutant and file and (self._record.runs_on_import(mutant) or not _is_replaced(mutant, file)):
                self._start_again(items)
            self._watch.start()
            _run_items(session, items)
        # Its alarm does not end a process that waits outside of Python.
        until, ended, status = time.monotonic() + self._watch.seconds + 2 * _TO_END, 0, 0
        while not ended and time.monotonic() < until:
            time.sleep(0.005)
            ended, status = os.waitpid(child, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also what its tests started
        if not ended:
            _, status = os.waitpid(child, 0)
        if mutant and file:
            shutil.copy2(SOURCES / mutant.path, file)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return SURVIVED, ""
        if code in {_TIME_OVER, -signal.SIGALRM, -signal.SIGKILL}:
            return TIME_OVER, ""
        return NOTICED, self._watch.failed.read_text()

    def _start_again(self, items: list[pytest.Item]) -> NoReturn:
        (self._watch.folder / "tests").write_text("\n".join(item.nodeid for item in items))
        arguments = ["-m", "tools.mutation.judge", str(self._watch.folder), str(self._watch.seconds)]
        os.chdir(ROOT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 (our own module)


def _pytest(folder: Path, tests: Sequence[str], *plugins: object) -> int:
    return int(pytest.main([*OPTIONS, "-x", f"--basetemp={folder / 'pytest'}", *tests], plugins))


def _run_items(session: pytest.Session, items: list[pytest.Item]) -> NoReturn:
    session.items[:] = items
    code = 1
    try:
        session.config.hook.pytest_runtestloop(session=session)
        code = 0
    except pytest.exit.Exception as stop:
        code = stop.returncode or 1
    except session.Failed:
        pass
    finally:
        try:
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=code)
        finally:  # what the tests left may fail here, and this process must not go on as the parent would
            os._exit(code)


def _is_replaced(mutant: Mutant, file: Path) -> bool:
    """Replace the code of the changed function in this process, also in functions that it returned before."""
    if mutant.path.removesuffix(".py").replace("/", ".") not in sys.modules:
        return True  # the file will be imported
    codes = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _codes(compile(file.read_bytes(), file, "exec"))
        if code.co_firstlineno in (mutant.place.function or ())
    }
    gc.unfreeze()
    found = [
        (each, code)
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and each.__code__.co_filename == str(file)
        and (code := codes.get((each.__code__.co_qualname, each.__code__.co_firstlineno)))
    ]
    for function, code in found:
        if len(function.__code__.co_freevars) != len(code.co_freevars):
            return False
        function.__code__ = code
    return bool(found)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


if __name__ == "__main__":
    _watch = _Watch(Path(sys.argv[1]), float(sys.argv[2]))
    _watch.start()
    raise SystemExit(_pytest(_watch.folder, (f"@{_watch.folder / 'tests'}",), _watch))
