"""Run the receiver again and again. Kill it each time one step later while it takes its first post-back.

``killed_receiver.py PORT [hasty]`` takes the settings of ``sendoff receiver`` from the environment. For each line on
standard input, a number n, it serves a receiver as ``sendoff receiver`` does: the same server, with its worker in a
separate process. The worker is traced. At the n-th step it kills itself and its parent with SIGKILL, or never if n is
0. A step is a line, or a return, in the modules that take a post-back, in any thread. The program writes the process
ID when the receiver starts, and the number of steps when it has ended.

A ``hasty`` receiver is broken on purpose: it answers before it stores.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import granian._loops
import granian._signals  # noqa: F401

import sendoff.ledger.post_backs.post_backs
import sendoff.ledger.storage.database
import sendoff.ledger.storage.engines
import sendoff.postbacks.endpoint
import sendoff.postbacks.group_commit
import sendoff.postbacks.receiver
import sendoff.service.postbacks
from sendoff.errors import SettingsError
from sendoff.ledger import Ledger
from sendoff.postbacks.endpoint import PostBackEndpoint
from sendoff.postbacks.group_commit import Limits
from sendoff.postbacks.receiver import ReceiverApp, app_of
from sendoff.postbacks.server import serve
from sendoff.service.postbacks import PostBack
from sendoff.settings import Settings, load_settings

TRACED = {
    str(module.__file__)
    for module in (
        sendoff.postbacks.endpoint,
        sendoff.postbacks.group_commit,
        sendoff.ledger.storage.database,
        sendoff.ledger.storage.engines,
        sendoff.ledger.post_backs.post_backs,
        sendoff.service.postbacks,
    )
}
BEGINNING = PostBackEndpoint.__call__.__code__
steps = mmap.mmap(-1, 8)  # shared with the forked processes


class HastyEndpoint(PostBackEndpoint):
    async def _store(self, post_back: PostBack) -> int:
        asyncio.get_running_loop().call_later(0.25, self.commit.submit, post_back)
        return 200


def main(port: str, variant: str = "") -> None:
    sendoff.postbacks.receiver.create_app = partial(
        sendoff.postbacks.receiver.create_app, limits=Limits(answer_timeout=120)
    )  # a disk may stall
    if variant == "hasty":
        sendoff.postbacks.receiver.PostBackEndpoint = HastyEndpoint  # type: ignore[misc]
    Ledger(load_settings().ledger()).close()  # import the modules here once, not in each receiver
    for line in sys.stdin:
        steps[:] = bytes(8)
        child = os.fork()
        if not child:
            os.setsid()
            receive(int(port), int(line))
            os._exit(0)
        tell(child)
        os.waitpid(child, 0)
        tell(taken())


def tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def receive(port: int, last: int) -> None:
    while True:
        try:
            return serve("127.0.0.1", port, load_settings(), make_app=partial(traced_app, last))
        except SettingsError:  # the previous worker is dead but still holds its port
            time.sleep(0.01)


def traced_app(last: int, settings: Settings) -> ReceiverApp:
    tracer = partial(enter, partial(step, last))
    threading.settrace(tracer)
    sys.settrace(tracer)
    return app_of(settings)


def enter(
    trace: Callable[..., Any], frame: FrameType, event: str, argument: Any
) -> Callable[..., Any] | None:
    if frame.f_code is BEGINNING and not taken():
        count()
    return trace if frame.f_code.co_filename in TRACED else None


def step(last: int, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
    if taken() and event in {"line", "return"}:
        if taken() == last:
            os.killpg(0, signal.SIGKILL)
        count()
    return partial(step, last)


def taken() -> int:
    """Return the number of steps so far. Counting starts with the first post-back."""
    return int(struct.unpack("q", steps[:])[0])


def count() -> None:
    steps[:] = struct.pack("q", taken() + 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
