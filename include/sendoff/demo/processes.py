"""Starts the demo's processes and leaves none behind on any way out: return, error, Ctrl-C, even ``kill -9``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypeVar

from sendoff.demo import watchdog
from sendoff.errors import SendoffError

Found = TypeVar("Found")
PATIENCE = 240.0  # seconds; a machine that does other things as well may need half of them

# The shell tells the watchdog its number, through standard input, before it becomes the command: there is never
# a process that the watchdog does not know, even if the demo is killed while it starts one.
_ANNOUNCE = ("/bin/sh", "-c", 'echo $$ >&0 && exec "$@" </dev/null', "sh")


class DemoError(SendoffError):
    """The demo cannot go on; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started, by the name that people know it by, and the file it writes to.

    One that ``stays`` does so as long as the demo; another is expected to end by itself.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stays: bool

    def require_well(self) -> None:
        """Raise DemoError, with the end of its log, if it failed or is gone although it should stay."""
        code = self.process.poll()
        if code or (code == 0 and self.stays):
            raise DemoError(f"{self.name} {_ending(code)}; the end of {self.log}:\n{tail(self.log)}")


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the loopback address, who needs it, and the option that chooses another."""

    number: int
    owner: str
    option: str


class Supervisor:
    """Starts processes, notices when one dies, and ends them all when it is left.

    Each is a session of its own, so that a Ctrl-C at the terminal reaches only the demo. The ending is done by
    the watchdog process alone, which also does it when this process is killed.
    """

    def __init__(self, logs: Path, grace: float = watchdog.GRACE) -> None:
        self._logs = logs
        self._grace = grace
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        reader, self._line = os.pipe()
        self._watchdog = subprocess.Popen(  # noqa: S603  # our own file
            [sys.executable, "-I", "-S", watchdog.__file__, str(self._grace)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _uninterrupted():
            os.close(self._line)
            while self._watchdog.poll() is None:
                self._collect()
                time.sleep(0.02)
            self._collect()
            if self._watchdog.returncode:
                watchdog.end([child.process.pid for child in self._children], self._grace)

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, stays: bool = True
    ) -> Child:
        """Start a process and go on; what it writes goes to ``<name>.log``."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = self._spawn(command, environment, stdout=output, stderr=output)
        child = Child(name, process, log, stays)
        self._children.append(child)
        return child

    def run(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], wait: float = PATIENCE
    ) -> str:
        """Run a process to its end, within ``wait`` seconds, and give what it wrote to standard output.

        Raises DemoError with the end of its log if it fails.
        """
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = self._spawn(command, environment, stdout=subprocess.PIPE, stderr=errors)
        try:
            output, _ = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{name} did not end within {wait:.0f} seconds; see {log}") from None
        os.write(self._line, b"-%d\n" % process.pid)
        if process.returncode:
            raise DemoError(f"{name} {_ending(process.returncode)}:\n{tail(log)}")
        return output.decode()

    def check(self) -> None:
        """Raise DemoError if a process failed, or is gone that should stay, with the end of its log."""
        for child in self._children:
            child.require_well()

    def finish(self, child: Child, wait: float = PATIENCE) -> None:
        """Wait for a process that was started beside others to end by itself; DemoError if it fails."""
        try:
            child.process.wait(wait)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{child.name} did not end within {wait:.0f} seconds; see {child.log}") from None
        child.require_well()
        self._children.remove(child)
        os.write(self._line, b"-%d\n" % child.process.pid)

    def wait_until(self, look: Callable[[], Found | None], what: str, wait: float = PATIENCE) -> Found:
        """Call ``look`` five times a second until it gives something true, and give that.

        Raises DemoError when ``wait`` seconds have passed or a process is gone meanwhile.
        """
        deadline = time.monotonic() + wait
        while not (found := look()):
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"waited {wait:.0f} seconds in vain until {what}; see {self._logs}")
            time.sleep(0.2)
        return found

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], **streams: object
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]  # noqa: S603  # the demo's commands
            [*_ANNOUNCE, *command], stdin=self._line, env=dict(environment), start_new_session=True, **streams
        )

    def _collect(self) -> None:
        for child in self._children:
            child.process.poll()


def require_free(ports: Sequence[Port]) -> None:
    """Raise DemoError that names each port somebody listens on, who needs it, and the option for another."""
    taken = [port for port in ports if not _is_free(port.number)]
    if taken:
        lines = (
            f"  {port.number} is needed by {port.owner}; choose another with {port.option}" for port in taken
        )
        raise DemoError("\n".join(["Something else listens on a port that the demo needs:", *lines]))


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, indented."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join(f"    {line}" for line in text) or "    (it wrote nothing)"


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a polite kill and a closed terminal end the block as Ctrl-C does, by KeyboardInterrupt."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _signals(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _uninterrupted() -> Iterator[None]:
    with _signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _signals(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python hands signals to no other thread
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a port whose last owner just left is free
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
