"""Child processes. They end when the service does, even if it is killed, because their standard input closes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import orjson

_STOP_WITHIN = 5.0


def start_child(module: str, settings: object, inherited: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process that reads its settings as one line of JSON on standard input."""
    # Its own process group, so that Ctrl-C reaches only this process, which then closes the child's input.
    child = subprocess.Popen(  # noqa: S603  # modules of our own
        [sys.executable, "-P", "-m", f"messaging_service.{module}"],
        stdin=subprocess.PIPE,
        process_group=0,
        pass_fds=inherited,
    )
    assert child.stdin is not None
    child.stdin.write(orjson.dumps(settings) + b"\n")
    child.stdin.flush()
    return child


def stop_children(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop all processes at once, and kill those that do not end in time."""
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
    """Read the line of settings, in a child process."""
    return sys.stdin.buffer.readline()


def when_input_ends(stop: Callable[[], object]) -> None:
    """In a child process, call ``stop`` when the parent process ends or closes the child's input."""
    number = sys.stdin.fileno()

    def wait() -> None:
        # Bypass the buffer: a daemon thread would still hold its lock when the interpreter ends.
        while os.read(number, 1):
            pass
        stop()

    threading.Thread(target=wait, daemon=True).start()
