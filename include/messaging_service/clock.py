"""The time by which campaigns are sent, events happen and retries fall due."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Clock:
    """The machine's time plus ``offset`` seconds.

    Access tokens and assertions follow the machine's time, because the client that signs them does.
    """

    offset: float = 0.0

    def time(self) -> float:
        """Give the time in seconds since 1970."""
        return time.time() + self.offset

    def now(self) -> datetime:
        """Give the time as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)
