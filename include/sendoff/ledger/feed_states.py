"""Silences in the ledger: what was last certain of each source of post-backs, and what to judge them by."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from sendoff.figures import Figures
from sendoff.ledger.database import Database
from sendoff.ledger.launches import Launch
from sendoff.ledger.schema import attempts, dispatches, launches, reports, silences

_LONGEST_WAIT = timedelta(days=7)  # from the moment a launch was to be sent at until its last request


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Where post-backs come from: one kind of them, of one connection, of everybody or of those on one platform."""

    connection: str  # empty: the receiver, of all connections
    kind: str  # delivery, open or receiver
    platform: str = ""  # empty: everybody

    def __str__(self) -> str:
        if self.kind == "receiver":
            return "receiver"
        what = {"delivery": "deliveries", "open": "opens"}[self.kind]
        return f"{what} of {self.connection}" + (f" on {self.platform}" if self.platform else "")


@dataclass(frozen=True, slots=True)
class Known:
    """What was last certain of a source, since when and why."""

    source: Source
    state: str
    why: str
    since: datetime


class Silences:
    """The silences of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[Known]:
        """Give what was last certain of each source, in the order of the sources."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(silences)).all()
        found = [
            Known(Source(row.connection, row.kind, row.platform), row.state, row.why, row.since)
            for row in rows
        ]
        return sorted(found, key=lambda known: known.source)

    def states(self) -> dict[str, int]:
        """Give how many sources are in each state that was last certain."""
        return dict(Counter(known.state for known in self.all()))

    def move(self, source: Source, before: str | None, after: str, why: str, now: datetime) -> bool:
        """Change what is certain of a source; False, and nothing happens, where another process was first.

        ``before``: the state that it was judged against, None where nothing was certain yet.
        """
        values = {"state": after, "why": why, "since": now}
        with self._database.write() as connection:
            if before is None:
                made = self._database.insert_or_pass(silences).returning(silences.c.since)
                return connection.execute(made, asdict(source) | values).first() is not None
            change = sa.update(silences).where(
                silences.c.connection == source.connection,
                silences.c.kind == source.kind,
                silences.c.platform == source.platform,
                silences.c.state == before,
            )
            return bool(connection.execute(change.values(values)).rowcount)

    def sent(self, since: datetime) -> dict[str, dict[str, datetime]]:
        """Give the accepted dispatches that the service sent after a moment, by launch: dispatch key -> when it sent.

        Not of what the service sends again and again.
        """
        query = (
            sa.select(
                dispatches.c.launch_key, dispatches.c.dispatch_key, attempts.c.started_at, launches.c.sends_at
            )
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(
                attempts,
                sa.and_(
                    attempts.c.dispatch_key == dispatches.c.dispatch_key,
                    attempts.c.number == dispatches.c.attempt,
                ),
            )
            .where(launches.c.sends_at > since - _LONGEST_WAIT, dispatches.c.state == "accepted")
        )
        found: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
        with self._database.read() as connection:
            for row in connection.execute(query):
                if (at := max(row.started_at, row.sends_at)) > since:
                    found[row.launch_key][row.dispatch_key] = at
        return dict(found)

    def earlier(self, launch: Launch, limit: int) -> list[tuple[datetime, Figures]]:
        """Give the newest reports of settled launches of a launch's campaign that were sent before it, and when."""
        query = (
            sa.select(launches.c.sends_at, reports.c.figures)
            .join(reports, reports.c.launch_key == launches.c.launch_key)
            .where(
                launches.c.connection == launch.connection,
                launches.c.campaign == launch.campaign,
                launches.c.sends_at < launch.sends_at,
                launches.c.settled_at.is_not(None),
            )
            .order_by(launches.c.sends_at.desc(), launches.c.launch_key)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [(row.sends_at, Figures.from_json(row.figures)) for row in connection.execute(query)]
