"""Ends every session that it was told of, when whoever told it is gone, however that came to pass.

Run as a process of its own, in a session of its own, with only the standard library. On standard input a line
``123`` names a session that began and ``-123`` one that is over; the end of the input is the end of the owner.
Whole sessions, since Airflow gives each task a process group of its own, which would outlive its scheduler's.
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
    """Read to the end of ``lines`` and give the sessions that had begun and were not over by then."""
    sessions: set[int] = set()
    for line in lines:
        number = int(line)
        if number > 0:
            sessions.add(number)
        else:
            sessions.discard(-number)
    return sessions


def end(sessions: Collection[int], grace: float = GRACE) -> None:
    """Ask the sessions' leaders to stop, and kill what is left of a session whose leader is gone or too slow.

    ``grace`` is in seconds. On return no process of these sessions runs, unless it could not even be killed.
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
        except (ProcessLookupError, PermissionError):  # gone meanwhile, or somebody else's
            continue
        if session in sessions:
            yield process, session


def _running() -> Iterator[int]:
    """Return the numbers of all processes that are not merely waiting to be collected by their parent."""
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
        signal.signal(polite, signal.SIG_IGN)  # it ends with its owner, never before
    end(watch(sys.stdin.buffer), float(sys.argv[1]))
