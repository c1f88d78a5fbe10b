"""The processes that a service starts, which end with it however it ends: their standard input does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

_STOP_WITHIN = 5.0


def start_child(module: str, line: bytes, inherited: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process that reads its settings as one line on standard input."""
    # A group of its own, so that Ctrl-C reaches only this process, which then closes the other's input.
    child = subprocess.Popen(  # noqa: S603  # modules of our own
        [sys.executable, "-P", "-m", f"messaging_service.{module}"],
        stdin=subprocess.PIPE,
        process_group=0,
        pass_fds=inherited,
    )
    assert child.stdin is not None
    child.stdin.write(line)
    child.stdin.flush()
    return child


def stop_children(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the processes end, all at once, and kill those that do not."""
    for child in children:
        if child.stdin is not None:
            child.stdin.close()
    for child in children:
        try:
            child.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def settings_line() -> bytes:
    """Read, in a child, the line with its settings."""
    return sys.stdin.buffer.readline()


def when_input_ends(stop: Callable[[], object]) -> None:
    """Call ``stop``, in a child, when the process that started it has ended or wants it to end."""
    number = sys.stdin.fileno()

    def wait() -> None:
        # Not through the buffer, whose lock a daemon thread would hold when the interpreter ends.
        while os.read(number, 1):
            pass
        stop()

    threading.Thread(target=wait, daemon=True).start()
