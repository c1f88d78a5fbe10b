"""Rate limits: when the next request of a connection may be sent.

All workers of a connection share its rate limit. ``next_at`` is the first moment that is free for a request. Each
request moves it by the time between two requests, and the service's ``Retry-After`` moves it for all workers at once.
This is the generic cell rate algorithm without a burst. The times come from the workers' clocks, so synchronize them,
for example with NTP.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import sqlalchemy as sa

from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.schema import rate_limits

LOOKAHEAD = timedelta(seconds=0.5)
"""How early a request may be claimed: workers are then on time, and a pause still takes effect soon."""


def check_rate(per_second: float) -> None:
    """Raise ValueError unless the number of requests per second is possible."""
    if not (math.isfinite(per_second) and per_second >= 1 / 86_400):
        raise ValueError("requests per second must be a number above 0, and at least 1 request per day")


def interval(per_second: float) -> timedelta:
    """Return the minimum time between two requests, rounded up to whole microseconds."""
    check_rate(per_second)
    return timedelta(microseconds=math.ceil(1_000_000 / per_second))


class RateLimits(LedgerPart):
    """The rate limits of the ledger's connections."""

    def next_at(self, connection: str) -> datetime | None:
        """Return when a connection may send its next request, or None if it has no limit yet."""
        moment: datetime | None = self._database.scalar(_NEXT_AT, {"of": connection})
        return moment

    def delay(self, connection: str, until: datetime) -> None:
        """Keep all workers of a connection from sending requests before a moment, as the service asked."""
        with self._database.write() as db:
            _move(self._database, db, connection, until, timedelta(0))


def reserve(
    database: Database, db: sa.Connection, connection: str, per_second: float, now: datetime
) -> datetime:
    """Reserve the next free moment of a connection within a transaction, and return it."""
    return _move(database, db, connection, now, interval(per_second))


def _move(
    database: Database, db: sa.Connection, connection: str, least: datetime, step: timedelta
) -> datetime:
    row = {"connection": connection, "next_at": least}
    db.execute(database.insert_or_ignore(rate_limits), row)
    moment: datetime = max(db.execute(_NEXT_AT_LOCKED, {"of": connection}).scalar_one(), least)
    db.execute(_CHANGE, {"of": connection, "next_at": moment + step})
    return moment


_OF_CONNECTION = rate_limits.c.connection == sa.bindparam("of")
_NEXT_AT = sa.select(rate_limits.c.next_at).where(_OF_CONNECTION)
_NEXT_AT_LOCKED = _NEXT_AT.with_for_update()
_CHANGE = sa.update(rate_limits).where(_OF_CONNECTION)
