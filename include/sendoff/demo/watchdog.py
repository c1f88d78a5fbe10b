"""End the sessions of an owner process when the owner is gone, even if it was killed.

The watchdog runs as a separate process, in its own session, with only the standard library. On standard input, a line
``123`` names a session that began and ``-123`` one that ended. The end of the input means that the owner is gone. The
watchdog ends whole sessions, because Airflow gives each task its own process group, which would outlive the scheduler.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

GRACE = 8.0
_TICK = 0.05


def watch(lines: Iterable[bytes]) -> set[int]:
    """Read ``lines`` to the end and return the sessions that began and did not end."""
    sessions: set[int] = set()
    for line in lines:
        number = int(line)
        if number > 0:
            sessions.add(number)
        else:
            sessions.discard(-number)
    return sessions


def end(sessions: Collection[int], grace: float = GRACE) -> None:
    """Ask the leaders of the sessions to stop. Kill the rest of a session when its leader is gone or too slow.

    ``grace`` is in seconds. On return, no process of these sessions runs, unless it could not be killed.
    """
    for leader in sessions:
        _signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while (members := list(_members(sessions))) and time.monotonic() < deadline + grace:
        leaders = {session for process, session in members if process == session}
        for process, session in members:
            if session not in leaders or time.monotonic() > deadline:
                _signal(process, signal.SIGKILL)
        time.sleep(_TICK)


def _members(sessions: Collection[int]) -> Iterator[tuple[int, int]]:
    for process in _running():
        try:
            session = os.getsid(process)
        except (ProcessLookupError, PermissionError):  # gone meanwhile, or another user's
            continue
        if session in sessions:
            yield process, session


def _running() -> Iterator[int]:
    """Yield the IDs of all processes except zombies."""
    if not Path("/proc/self/stat").exists():
        yield from _listed()
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_bytes().rpartition(b") ")[2][:1]
            except OSError:
                continue
            if state not in {b"Z", b"X"}:
                yield int(entry.name)


def _listed() -> Iterator[int]:
    command = ["/bin/ps", "-A", "-o", "pid=,stat="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # a constant
    for line in listing.stdout.splitlines():
        number, state = line.split(maxsplit=1)
        if not state.startswith("Z"):
            yield int(number)


def _signal(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    for polite in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(polite, signal.SIG_IGN)  # it ends after its owner, never before
    end(watch(sys.stdin.buffer), float(sys.argv[1]))
