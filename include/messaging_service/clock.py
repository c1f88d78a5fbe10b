"""The service's clock. It decides when campaigns, events and retries are due, and it can be advanced."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, select

from messaging_service.store import Store
from messaging_service.tables import clock_jumps

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_LONGEST = 20 * 366 * 86_400.0
# How old a process's reading of the advances may become, in seconds.
_READ_AGAIN_AFTER = 0.02


class DurationError(ValueError):
    """A text is not a duration, or the clock cannot be advanced by it."""


class ServiceClock:
    """The machine's time plus all advances. The advances are stored, so every process sees them, even after a restart.

    Without a store, it is the machine's time. Access tokens and assertions always follow the machine's time,
    because the client that signs them does.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._read_at = float("-inf")
        self._jumps: tuple[tuple[float, float], ...] = ()

    def time(self) -> float:
        """Return the time in seconds since 1970."""
        if self._store is not None and time.monotonic() - self._read_at > _READ_AGAIN_AFTER:
            self.read_again()
        return time.time() + self.offset

    def now(self) -> datetime:
        """Return the time as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    @property
    def offset(self) -> float:
        """Return by how many seconds this clock is ahead of the machine's."""
        return sum(seconds for _, seconds in self._jumps)

    def read_again(self) -> None:
        """Read the advances now, including those of other processes."""
        if self._store is None:
            return
        read_at = time.monotonic()
        with self._store.read() as connection:
            rows = connection.execute(select(clock_jumps).order_by(clock_jumps.c.id)).all()
        self._jumps, self._read_at = tuple((row.at, row.seconds) for row in rows), read_at

    def moment_of(self, due_at: float) -> float:
        """Return when something due at ``due_at`` happens: at ``due_at`` if an advance skipped it, else now."""
        now = self.time()
        return due_at if any(at < due_at <= at + seconds for at, seconds in self._jumps) else now


def advance(store: Store, seconds: float) -> None:
    """Advance the clock of every process on this store. Raise DurationError unless 0 < ``seconds`` <= 20 years."""
    if not 0 < seconds <= _LONGEST:
        raise DurationError("the clock can only be advanced, and by at most 20 years at once")
    with store.write() as connection:
        before = connection.execute(select(func.coalesce(func.sum(clock_jumps.c.seconds), 0.0))).scalar_one()
        row = {"at": time.time() + before, "seconds": seconds}
        connection.execute(insert(clock_jumps).values(row))


def seconds_of(duration: str) -> float:
    """Read a duration such as ``3h``, ``90m``, ``1d12h`` or ``45s``, or raise DurationError."""
    if not _DURATION.fullmatch(duration):
        raise DurationError(
            f"{duration[:40]!r} is not a duration; write 45s, 90m, 3h, 1d12h or 2w, for example"
        )
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration))


def described(clock: ServiceClock) -> dict[str, Any]:
    """Return the time, and by how many seconds it is ahead of the machine's, as JSON."""
    clock.read_again()
    return {"now": clock.now().isoformat(), "ahead": clock.offset}
