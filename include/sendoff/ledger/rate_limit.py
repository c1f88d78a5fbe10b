"""The rate of each connection, shared by all of its workers through the ledger.

``next_at`` is the first moment that is free for a request. Each request moves it on by the time between two requests,
and the service's wish for patience moves it at once for everybody (the generic cell rate algorithm, without a burst).
Moments are those of the workers' clocks: keep them together, as with NTP.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import sqlalchemy as sa

from sendoff.ledger.database import Database
from sendoff.ledger.schema import rates

AHEAD = timedelta(seconds=0.5)
"""How long before its moment a request may be claimed: so workers are in time, and a pause still has effect soon."""


def check_rate(per_second: float) -> None:
    """Raise ValueError unless a number of requests per second is one that can be kept."""
    if not (math.isfinite(per_second) and per_second >= 1 / 86_400):
        raise ValueError("requests per second must be a number above 0, and at least one request a day")


def interval(per_second: float) -> timedelta:
    """Give the least time between two requests, rounded up to what the ledger can tell apart."""
    check_rate(per_second)
    return timedelta(microseconds=math.ceil(1_000_000 / per_second))


class Rates:
    """The rates of a ledger's connections."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next_at(self, connection: str) -> datetime | None:
        """Give the first moment at which a connection may make a request, or None where it always may."""
        with self._database.read() as link:
            return link.scalar(sa.select(rates.c.next_at).where(rates.c.connection == connection))

    def delay(self, connection: str, until: datetime) -> None:
        """Let no worker of a connection make a request before a moment, as the service asked for patience."""
        with self._database.write() as link:
            _move(self._database, link, connection, until, timedelta(0))


def reserve(
    database: Database, link: sa.Connection, connection: str, per_second: float, now: datetime
) -> datetime:
    """Take the next free moment of a connection, within a transaction, and give it."""
    return _move(database, link, connection, now, interval(per_second))


def _move(
    database: Database, link: sa.Connection, connection: str, least: datetime, step: timedelta
) -> datetime:
    row = {"connection": connection, "next_at": least}
    link.execute(database.insert_or_pass(rates), row)
    of_connection = rates.c.connection == connection
    locked = sa.select(rates.c.next_at).where(of_connection).with_for_update()
    moment: datetime = max(link.execute(locked).scalar_one(), least)
    link.execute(sa.update(rates).where(of_connection).values(next_at=moment + step))
    return moment
