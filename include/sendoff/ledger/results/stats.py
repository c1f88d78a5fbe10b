"""Counts of the whole ledger for metrics and pages: numbers and times, nothing about a person or message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from sendoff.ledger.results.feed_states import FeedStates
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.joins import OF_SEGMENT
from sendoff.ledger.storage.schema import dispatches, launches, post_backs, receivers, reports, segments
from sendoff.ledger.suppression.withheld import REMAINING
from sendoff.states import LIVING, DispatchState
from sendoff.telemetry import metrics


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """The counts of a ledger at one moment. States and connections without any are included with 0."""

    launches: Mapping[str, int]  # by state, of launches that are not settled
    dispatches: Mapping[tuple[str, str], int]  # by connection and state, of the same launches
    doubts: Mapping[str, int]  # dispatches in doubt by connection, of all launches
    pending_since: datetime | None  # when the oldest post-back that is not aggregated was received
    reported_at: datetime | None  # when the newest report was made


@dataclass(frozen=True, slots=True)
class LaunchDoubts:
    """How many requests and recipients of one launch are in doubt."""

    launch_key: str
    requests: int
    people: int  # of these requests; 0 if the service chooses them


@dataclass(frozen=True, slots=True)
class DoubtTotals:
    """How many launches, requests, and recipients are in doubt together."""

    launches: int
    requests: int
    people: int  # counted once per request; 0 if the service chooses them


class Stats(LedgerPart):
    """The counts of a ledger."""

    def read(self) -> LedgerStats:
        """Return the counts. Parked post-backs do not count as waiting for aggregation."""
        with self._database.read() as db:
            connections = list(db.scalars(sa.select(launches.c.connection).distinct()))
            by_state = {row.state: row.counted for row in db.execute(_LAUNCHES)}
            counts = {(row.connection, row.state): row.counted for row in db.execute(_DISPATCHES)}
            in_doubt = {row.connection: row.counted for row in db.execute(_DOUBTS)}
            waiting = [at for at in db.scalars(_OLDEST_WAITING) if at is not None]
            reported_at = db.scalar(sa.select(sa.func.max(reports.c.as_of)))
        return LedgerStats(
            launches={state: by_state.get(state, 0) for state in LIVING},
            dispatches={
                (name, state): counts.get((name, state), 0) for name in connections for state in DispatchState
            },
            doubts={name: in_doubt.get(name, 0) for name in connections},
            pending_since=min(waiting, default=None),
            reported_at=reported_at,
        )

    def collect_gauges(self, now: datetime | None = None) -> LedgerStats:
        """Read the counts, set the gauges to them, and return them."""
        moment = now or datetime.now(UTC)
        stats = self.read()
        metrics.launches(stats.launches)
        metrics.dispatches(stats.dispatches)
        metrics.doubts(stats.doubts)
        metrics.aggregation_lag(_age(stats.pending_since, moment) or 0)
        if (age := _age(stats.reported_at, moment)) is not None:
            metrics.report_age(age)
        metrics.feeds(FeedStates(self._database).states())
        metrics.observed_at(moment.timestamp())
        return stats

    def doubt_totals(self, campaigns: Collection[str]) -> DoubtTotals:
        """Count the doubts in the launches of some campaigns."""
        query = sa.select(
            sa.func.count(sa.distinct(dispatches.c.launch_key)),
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(REMAINING), 0),
        )
        row = self._database.one(query.select_from(_IN_SEGMENTS).where(*_doubts_among(campaigns)))
        return DoubtTotals(*map(int, row))

    def launch_doubts(
        self,
        campaigns: Collection[str],
        *,
        launch_key: str | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[LaunchDoubts]:
        """Return a page of the launches of some campaigns with doubts, newest first, and count the doubts of each.

        ``launch_key``: only this launch.
        """
        query = (
            sa.select(dispatches.c.launch_key, sa.func.count(), sa.func.coalesce(sa.func.sum(REMAINING), 0))
            .select_from(_IN_SEGMENTS)
            .where(*_doubts_among(campaigns))
            .group_by(dispatches.c.launch_key, launches.c.created_at)
            .order_by(launches.c.created_at.desc(), dispatches.c.launch_key)
        )
        if launch_key is not None:
            query = query.where(dispatches.c.launch_key == launch_key)
        rows = self._database.rows(query.offset(offset).limit(limit))
        return [LaunchDoubts(key, requests, int(people)) for key, requests, people in rows]


_IS_LIVING = sa.and_(launches.c.settled_at.is_(None), launches.c.state.in_(LIVING))
_COUNT = sa.func.count().label("counted")
_LAUNCHES = sa.select(launches.c.state, _COUNT).where(_IS_LIVING).group_by(launches.c.state)
_OF_LAUNCHES = sa.join(dispatches, launches, dispatches.c.launch_key == launches.c.launch_key)
_DISPATCHES = (
    sa.select(launches.c.connection, dispatches.c.state, _COUNT)
    .select_from(_OF_LAUNCHES)
    .where(_IS_LIVING)
    .group_by(launches.c.connection, dispatches.c.state)
)
_IN_SEGMENTS = _OF_LAUNCHES.join(segments, OF_SEGMENT)
_DOUBTS = (
    sa.select(launches.c.connection, _COUNT)
    .select_from(_OF_LAUNCHES)
    .where(dispatches.c.state == DispatchState.IN_DOUBT)
    .group_by(launches.c.connection)
)
_OLDEST_WAITING = sa.select(
    sa.select(post_backs.c.received_at)
    .where(post_backs.c.receiver == receivers.c.receiver, post_backs.c.last > receivers.c.aggregated_to)
    .order_by(post_backs.c.last)
    .limit(1)
    .correlate(receivers)
    .scalar_subquery()
).select_from(receivers)


def _doubts_among(campaigns: Collection[str]) -> tuple[sa.ColumnElement[bool], ...]:
    return (dispatches.c.state == DispatchState.IN_DOUBT, launches.c.campaign.in_(campaigns))


def _age(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())
