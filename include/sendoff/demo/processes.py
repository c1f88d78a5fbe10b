"""Start processes, watch them, and end them all at every exit: return, error, Ctrl-C, even ``kill -9``.

The demo, the crash tests (``tools/chaos``), and the tests of whole processes use this module.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import requests

from sendoff.demo import watchdog
from sendoff.errors import SendoffError

_Found = TypeVar("_Found")
TIMEOUT = 240.0  # seconds; a busy machine may need half of them

# The shell writes its process ID to the watchdog, through standard input, before it becomes the command. So the
# watchdog knows every process, even if the owner is killed while it starts one.
_ANNOUNCE = ("/bin/sh", "-c", 'echo $$ >&0 && exec "$@" </dev/null', "sh")


class ProcessError(SendoffError):
    """A process failed, or a condition was not met in time. The message says which, and names the log."""


@dataclass(eq=False, slots=True)
class Process:
    """A command in its own session that can be ended and started again. A :class:`Supervisor` creates it.

    It writes to ``log``. A process that ``stays`` runs as long as its supervisor. Any other must end by itself.
    """

    supervisor: Supervisor
    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None
    stays: bool
    ready: Callable[[], object] | None
    user: str | None
    stop: signal.Signals
    _process: subprocess.Popen[bytes] = field(init=False)

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.supervisor.logs / f"{self.name}.log"

    def start(self) -> None:
        """Start or restart the process, and wait until it is ready."""
        with self.log.open("ab") as output:
            self._process = self.supervisor.spawn(
                self.command, self.environment, user=self.user, stdout=output, stderr=output
            )
        self.supervisor.running.append(self)
        if self.ready is not None:
            self.supervisor.wait_until(self.ready, f"{self.name} answers", every=0.05)

    @property
    def pid(self) -> int:
        """Its process ID, which is also the ID of its session and its process group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._process.poll()

    def send_signal(self, how: signal.Signals) -> None:
        """Signal its process group, as a terminal or a container does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, how)

    def wait(self, seconds: float = TIMEOUT) -> int:
        """Wait until it ends, and return its exit code. Raise ProcessError if it takes too long."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(
                f"{self.name} did not end within {seconds:.0f} seconds; see {self.log}"
            ) from None
        if self in self.supervisor.running:
            self.supervisor.running.remove(self)
            self.supervisor.forget(self.pid)
        return code

    def wait_for_end(self) -> None:
        """Wait for it after it was killed, so that the system forgets it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TIMEOUT)

    def end(self, how: signal.Signals | None = None, seconds: float = TIMEOUT) -> int:
        """Signal its process group, wait until it ends, and return its exit code. Kill it if it takes too long."""
        self.send_signal(how or self.stop)
        try:
            return self.wait(seconds)
        except ProcessError:
            self.send_signal(signal.SIGKILL)
            return self.wait()

    def finish(self, seconds: float = TIMEOUT) -> None:
        """Wait until it ends by itself. Raise ProcessError if it fails."""
        self.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise ProcessError, with the end of its log, if it failed, or if it ended but should stay."""
        code = self.poll()
        if code or (code == 0 and self.stays):
            raise ProcessError(f"{self.name} {_ending(code)}; the end of {self.log}:\n{tail(self.log)}")


@dataclass(frozen=True, slots=True)
class Port:
    """A loopback port, the process that needs it, and the option to choose another."""

    number: int
    owner: str
    option: str


class Supervisor:
    """A context manager that starts processes, notices when one dies, and ends them all at its exit.

    Each process has its own session, so that a Ctrl-C in the terminal reaches only their owner. A watchdog process ends
    them, even if this process is killed.
    """

    def __init__(self, logs: Path, grace: float = watchdog.GRACE) -> None:
        self.logs = logs
        self.running: list[Process] = []
        self._grace = grace

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
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
            if self._watchdog.returncode:
                watchdog.end([process.pid for process in self.running], self._grace)
            for process in list(self.running):
                process.wait_for_end()

    def start(  # noqa: PLR0913 - all but two have defaults
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        stays: bool = True,
        ready: Callable[[], object] | None = None,
        user: str | None = None,
        stop: signal.Signals = signal.SIGTERM,
    ) -> Process:
        """Start a process that writes to ``<name>.log``, and return it when it is ``ready``.

        ``environment``: default is that of this process. ``user``: the user it runs as. ``stop``: the signal to end it.
        """
        process = Process(self, name, command, environment, stays, ready, user, stop)
        process.start()
        return process

    def run(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], wait: float = TIMEOUT
    ) -> str:
        """Run a process to its end, within ``wait`` seconds, and return its standard output.

        Raise ProcessError with the end of its log if it fails.
        """
        log = self.logs / f"{name}.log"
        with log.open("ab") as errors:
            process = self.spawn(command, environment, stdout=subprocess.PIPE, stderr=errors)
        try:
            output, _ = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{name} did not end within {wait:.0f} seconds; see {log}") from None
        self.forget(process.pid)
        if process.returncode:
            raise ProcessError(f"{name} {_ending(process.returncode)}:\n{tail(log)}")
        return output.decode()

    def check(self) -> None:
        """Raise ProcessError, with the end of its log, if a process failed, or if it ended but should stay."""
        for process in self.running:
            process.check()

    def wait_until(
        self, look: Callable[[], _Found | None], what: str, wait: float = TIMEOUT, every: float = 0.2
    ) -> _Found:
        """Call ``look`` every ``every`` seconds until it returns a true value, and return the value.

        Raise ProcessError after ``wait`` seconds, or if a process ends meanwhile.
        """
        deadline = time.monotonic() + wait
        while not (found := look()):
            self.check()
            if time.monotonic() > deadline:
                raise ProcessError(f"waited {wait:.0f} seconds in vain until {what}; see {self.logs}")
            time.sleep(every)
        return found

    def spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        user: str | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a process that the watchdog knows, without supervising it further."""
        if user:
            options |= {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        return subprocess.Popen(  # noqa: S603  # commands of our own
            [*_ANNOUNCE, *command],
            stdin=self._line,
            env=None if environment is None else dict(environment),
            start_new_session=True,
            **options,
        )

    def forget(self, pid: int) -> None:
        """Report to the watchdog that a session has ended."""
        os.write(self._line, b"-%d\n" % pid)

    def _collect(self) -> None:
        for process in self.running:
            process.poll()


def answers(address: str) -> bool:
    """Check whether a GET of this URL succeeds."""
    try:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(address, timeout=5).ok
    except requests.RequestException:
        return False


def require_free(ports: Sequence[Port]) -> None:
    """Raise ProcessError if a port is in use. It names each such port, what needs it, and the option for another."""
    taken = [port for port in ports if not _is_free(port.number)]
    if taken:
        lines = (
            f"  {port.number} is needed by {port.owner}; choose another with {port.option}" for port in taken
        )
        raise ProcessError("\n".join(["Another process already uses a port:", *lines]))


def tail(log: Path) -> str:
    """Return the last lines of a log file, indented."""
    text = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    return "\n".join(f"    {line}" for line in text) or "    (it wrote nothing)"


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block on SIGTERM and SIGHUP, as on Ctrl-C."""

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
    # Python delivers signals only to the main thread.
    if threading.current_thread() is not threading.main_thread():
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
        # A port that was just released counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
