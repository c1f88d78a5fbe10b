"""Feed states in the ledger: the last certain state of each feed of post-backs, and the data to check feeds with."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from sendoff.figures import LaunchStats
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.joins import NEWEST_ATTEMPT
from sendoff.ledger.storage.schema import attempts, dispatches, feed_states, launches, reports
from sendoff.states import DispatchState, FeedHealth

_LONGEST_WAIT = timedelta(days=7)  # from a launch's time of sending to its last request


@dataclass(frozen=True, slots=True, order=True)
class Feed:
    """A source of post-backs: one connection, one kind, and optionally one platform; or the launches of a campaign."""

    connection: str  # empty: the receiver, for all connections; of launches: the campaign
    kind: str  # delivery, open, receiver or launch
    platform: str = ""  # empty: all platforms

    def __str__(self) -> str:
        if self.kind == "receiver":
            return "receiver"
        what = {"delivery": "deliveries", "open": "opens", "launch": "launches"}[self.kind]
        return f"{what} of {self.connection}" + (f" on {self.platform}" if self.platform else "")


@dataclass(frozen=True, slots=True)
class FeedState:
    """The last certain state of a feed, since when, and why."""

    feed: Feed
    state: FeedHealth
    why: str
    since: datetime


class EarlierReport(NamedTuple):
    """The newest report of an earlier launch, and when the service sent its first messages."""

    sent_at: datetime
    stats: LaunchStats


class FeedStates(LedgerPart):
    """The feed states of a ledger."""

    def all(self) -> list[FeedState]:
        """Return the last certain state of each feed, in order."""
        rows = self._database.rows(sa.select(feed_states))
        states = [
            FeedState(Feed(row.connection, row.kind, row.platform), row.state, row.why, row.since)
            for row in rows
        ]
        return sorted(states, key=lambda state: state.feed)

    def states(self) -> dict[FeedHealth, int]:
        """Count the feeds of post-backs by their last certain state."""
        return dict(Counter(state.state for state in self.all() if state.feed.kind != "launch"))

    def move(self, feed: Feed, before: FeedHealth | None, after: FeedHealth, why: str, now: datetime) -> bool:
        """Change the state of a feed. If another process changed it first, change nothing and return False.

        ``before``: the state that the caller compared with; None if no state was certain yet.
        """
        values = {"state": after, "why": why, "since": now}
        with self._database.write() as db:
            if before is None:
                insert = self._database.insert_or_ignore(feed_states).returning(feed_states.c.since)
                return db.execute(insert, asdict(feed) | values).first() is not None
            change = sa.update(feed_states).where(
                feed_states.c.connection == feed.connection,
                feed_states.c.kind == feed.kind,
                feed_states.c.platform == feed.platform,
                feed_states.c.state == before,
            )
            return bool(db.execute(change.values(values)).rowcount)

    def sent(self, since: datetime) -> dict[str, dict[str, datetime]]:
        """Return accepted dispatches that the service sent after ``since``: launch key -> dispatch key -> time.

        Recurring launches are left out.
        """
        query = (
            sa.select(
                dispatches.c.launch_key, dispatches.c.dispatch_key, attempts.c.started_at, launches.c.sends_at
            )
            .join(launches, launches.c.launch_key == dispatches.c.launch_key)
            .join(attempts, NEWEST_ATTEMPT)
            .where(launches.c.sends_at > since - _LONGEST_WAIT, dispatches.c.state == DispatchState.ACCEPTED)
        )
        dispatches_sent: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
        for row in self._database.rows(query):
            if (at := max(row.started_at, row.sends_at)) > since:
                dispatches_sent[row.launch_key][row.dispatch_key] = at
        return dict(dispatches_sent)

    def earlier(self, launch: LaunchRecord, limit: int) -> list[EarlierReport]:
        """Return the newest reports of settled launches of the same campaign that were sent earlier."""
        newest = (
            sa.select(launches.c.launch_key, launches.c.sends_at, reports.c.figures)
            .join(reports, reports.c.launch_key == launches.c.launch_key)
            .where(
                launches.c.connection == launch.connection,
                launches.c.campaign == launch.campaign,
                launches.c.sends_at < launch.sends_at,
                launches.c.settled_at.is_not(None),
            )
            .order_by(launches.c.sends_at.desc(), launches.c.launch_key)
            .limit(limit)
            .subquery()
        )
        first_request = (
            sa.select(sa.func.min(attempts.c.started_at))
            .join(dispatches, NEWEST_ATTEMPT)
            .where(
                dispatches.c.launch_key == newest.c.launch_key, dispatches.c.state == DispatchState.ACCEPTED
            )
            .scalar_subquery()
        )
        query = sa.select(newest.c.sends_at, first_request.label("started_at"), newest.c.figures).order_by(
            newest.c.sends_at.desc(), newest.c.launch_key
        )
        return [
            EarlierReport(max(sends_at, started_at or sends_at), LaunchStats.from_json(figures))
            for sends_at, started_at, figures in self._database.rows(query)
        ]
