"""How often workers look at something while they send, so that looking takes little of their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SHARE = 0.05  # of a worker's time at most, because a large launch has many requests and post-backs
_QUICK = 0.02  # seconds; looks that take less may follow each other at once


class Pace:
    """Runs something at most every ``between`` seconds, on one thread at a time, and for a share of the time."""

    def __init__(self, between: float) -> None:
        self._between = between
        self._next_at = 0.0  # by the monotonic clock
        self._running = threading.Lock()

    @property
    def is_due(self) -> bool:
        """Whether :meth:`run` would look now."""
        return time.monotonic() >= self._next_at

    def run(self, look: Callable[[], object]) -> None:
        """Look, unless it is too early or another thread is looking."""
        if not self._running.acquire(blocking=False):
            return
        try:
            began = time.monotonic()
            if began >= self._next_at:
                look()
                ended = time.monotonic()
                rest = (ended - began) / _SHARE if ended - began > _QUICK else 0.0
                self._next_at = ended + max(self._between, rest)
        finally:
            self._running.release()
