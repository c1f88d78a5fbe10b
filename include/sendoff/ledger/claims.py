"""Claims: which planned dispatch of a launch comes next, and when its request may be made.

The next is the first of the open waves, in the order of segments, among the time zones whose people may be sent to now.
The first of each zone is one look-up in an index of the dispatches: what is planned before it in zones that are closed,
and behind it in waves that are not open yet, is never read.

All workers of a connection share its rate. ``next_at`` is the first moment that is free for a request. Each request
moves it on by the time between two requests, and the service's ``Retry-After`` moves it at once for everybody (the
generic cell rate algorithm, without a burst). Moments are those of the workers' clocks: synchronize them, as by NTP.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sendoff.audience import Segment
from sendoff.audience.identifiers import from_bytes
from sendoff.campaign import Variation
from sendoff.ledger.audit_log import ALL, scope_of
from sendoff.ledger.database import Database, LedgerTime
from sendoff.ledger.evidence import HAS_EVIDENCE, accept_by_evidence
from sendoff.ledger.schema import attempts, audiences, dispatches, launches, pauses, rate_limits, segments
from sendoff.ledger.verdicts import bump_revision_if_reported
from sendoff.states import DispatchState, LaunchState


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one dispatch once, and what to send; its intent is committed."""

    dispatch_key: str
    launch_key: str
    segment: int
    attempt: int
    content: Segment  # whom it is for, and what they get
    claimed_at: datetime
    not_before: datetime | None = None  # the moment that the connection's rate keeps for it


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What somebody wants to claim, and until when they may be silent about it.

    ``ready_by``: the service must not have asked to wait beyond it. ``alone``: nobody else has the worker's name,
    and whoever has it holds one claim at a time.
    """

    launch_key: str
    worker: str
    now: datetime
    lease: timedelta
    closed_zones: Collection[str | None]  # None stands for people without one
    ready_by: datetime
    alone: bool = False

    def execute(self, db: sa.Connection) -> Claim | None:
        """Move the next dispatch to ``in_flight`` and append the intent to send it, or return None where there is none.

        The move is a compare-and-set. A worker that is alone and holds a claim already is given that one: it claimed
        before, and did not learn of it. What evidence is in the ledger of is accepted on the way, and not row.
        """
        values = {
            "launch": self.launch_key,
            "name": self.worker,
            "lease": self.lease.total_seconds(),
            "closed": [zone or "" for zone in self.closed_zones],
            "ready_by": self.ready_by,
        }
        if self.alone:
            row = db.execute(_CLAIM_UNLESS_HOLDING_ONE, values).first()
            if row is None and (claim := claim_held_by(db, self.launch_key, self.worker)):
                return claim
        else:
            row = db.execute(_CLAIM, values).first()
        row = self._skip_proven(db, values, row or _claim_in_any_zone(db, values))
        if row is None:
            return None
        intent = {"number": row.attempt, "worker": self.worker, "started_at": self.now}
        db.execute(_INTENT, {"dispatch_key": row.dispatch_key, **intent})
        return _claim(db, self.launch_key, row, self.now)

    def _skip_proven(
        self, db: sa.Connection, values: dict[str, Any], row: sa.Row[Any] | None
    ) -> sa.Row[Any] | None:
        """Accept what was row, and what is next, as long as something came back from it; give the first other."""
        while row is not None and row.has_evidence:
            db.execute(_UNCLAIM, {"of": row.dispatch_key})
            (_,) = accept_by_evidence(db, [row.dispatch_key], self.now)  # or it is next without end
            bump_revision_if_reported(db, [self.launch_key])
            row = db.execute(_CLAIM, values).first() or _claim_in_any_zone(db, values)
        return row


def claim_held_by(db: sa.Connection, launch_key: str, worker: str) -> Claim | None:
    """Return the claim that a worker of a name of its own holds of a launch; None where it holds none."""
    row = db.execute(_HELD, {"launch": launch_key, "name": worker}).first()
    return None if row is None else _claim(db, launch_key, row, row.started_at)


def _claim(db: sa.Connection, launch_key: str, row: Any, claimed_at: datetime) -> Claim:
    content = segment_of(db, launch_key, row.segment)
    return Claim(row.dispatch_key, launch_key, row.segment, row.attempt, content, claimed_at)


def segment_of(db: sa.Connection, launch_key: str, number: int) -> Segment:
    """Return one segment of a launch."""
    row = db.execute(_SEGMENT, {"launch": launch_key, "number_of_it": number}).one()
    identifiers = None if row.identifiers is None else from_bytes(row.kind, row.identifiers)
    variation = Variation(row.language, row.variant, row.time_zone)
    return Segment(identifiers, variation, row.wave, row.template_values)


def _claim_in_any_zone(db: sa.Connection, values: dict[str, Any]) -> sa.Row[Any] | None:
    """Try zone after zone: other workers may be taking all that is left of the first one at this moment."""
    for zone in db.scalars(_OPEN_ZONES, values).all():
        if row := db.execute(_CLAIM_IN_ZONE, {**values, "zone": zone}).first():
            return row
    return None


def _planned(table: Any) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.launch_key == sa.bindparam("launch"), table.c.state == DispatchState.PLANNED)


def _open_wave() -> sa.CTE:
    """Select the newest wave that may be sent; nothing while no request of the launch may be made."""
    is_paused = sa.exists().where(
        pauses.c.scope.in_((sa.literal(ALL), sa.literal(scope_of("")) + launches.c.connection))
    )
    must_wait = sa.exists().where(
        rate_limits.c.connection == launches.c.connection, rate_limits.c.next_at > sa.bindparam("ready_by")
    )
    return (
        sa.select(launches.c.wave)
        .where(
            launches.c.launch_key == sa.bindparam("launch"),
            launches.c.state == LaunchState.RELEASED,
            sa.not_(is_paused.correlate(launches)),
            sa.not_(must_wait.correlate(launches)),
        )
        .cte("open")
    )


_OPEN_WAVE = _open_wave()


def _first_of(zone: Any, name: str) -> tuple[Any, Any]:
    """Select from the planned dispatches of a zone, first of the open waves first."""
    first = dispatches.alias(name)
    return (
        sa.select()
        .select_from(first)
        .where(
            _planned(first),
            first.c.time_zone == zone,
            first.c.wave <= sa.select(_OPEN_WAVE.c.wave).scalar_subquery(),
        )
        .order_by(first.c.wave, first.c.segment)
        .limit(1)
    ), first


def _open_zones() -> Any:
    """Select the zones of planned dispatches that may be sent now, that of the first segment first."""
    least, more = dispatches.alias("least"), dispatches.alias("more")
    zones = (
        sa.select(sa.func.min(least.c.time_zone).label("time_zone"))
        .where(_planned(least))
        .cte("zones", recursive=True)
    )
    following = (
        sa.select(sa.func.min(more.c.time_zone))
        .where(_planned(more), more.c.time_zone > zones.c.time_zone)
        .correlate(zones)
        .scalar_subquery()
    )
    zones = zones.union_all(sa.select(following).where(zones.c.time_zone.is_not(None)))
    query, first = _first_of(zones.c.time_zone, "first")
    number = query.add_columns(first.c.segment).correlate(zones).scalar_subquery()
    open_zones = (
        sa.select(zones.c.time_zone, number.label("segment"))
        .where(
            zones.c.time_zone.is_not(None),
            zones.c.time_zone.not_in(sa.bindparam("closed", expanding=True)),
        )
        .subquery("found")
    )
    return (
        sa.select(open_zones.c.time_zone)
        .where(open_zones.c.segment.is_not(None))
        .order_by(open_zones.c.segment)
    )


def _claim_statement(zone: Any) -> Any:
    query, first = _first_of(zone, "next")
    # For PostgreSQL, where two workers would otherwise choose the same; SQLite lets one writer in at a time anyway.
    locked = query.add_columns(first.c.dispatch_key).with_for_update(skip_locked=True, of=first)
    return (
        sa.update(dispatches)
        .where(
            dispatches.c.dispatch_key == locked.scalar_subquery(), dispatches.c.state == DispatchState.PLANNED
        )
        .values(
            state=DispatchState.IN_FLIGHT,
            worker=sa.bindparam("name"),
            lease_until=LedgerTime(sa.bindparam("lease", type_=sa.Float)),
            attempt=dispatches.c.attempt + 1,
        )
        .returning(
            *(dispatches.c[name] for name in ("dispatch_key", "segment", "attempt")),
            HAS_EVIDENCE.label("has_evidence"),
        )
    )


_OPEN_ZONES = _open_zones()
_CLAIM = _claim_statement(_OPEN_ZONES.limit(1).scalar_subquery())
_CLAIM_IN_ZONE = _claim_statement(sa.bindparam("zone"))

_in_hand = dispatches.alias("in_hand")
_IS_IN_HAND = sa.and_(
    _in_hand.c.launch_key == sa.bindparam("launch"),
    _in_hand.c.state == DispatchState.IN_FLIGHT,
    _in_hand.c.worker == sa.bindparam("name"),
)
_CLAIM_UNLESS_HOLDING_ONE = _CLAIM.where(sa.not_(sa.exists(sa.select(_in_hand.c.segment).where(_IS_IN_HAND))))
_HELD = (
    sa.select(_in_hand.c.dispatch_key, _in_hand.c.segment, _in_hand.c.attempt, attempts.c.started_at)
    .join(
        attempts,
        sa.and_(attempts.c.dispatch_key == _in_hand.c.dispatch_key, attempts.c.number == _in_hand.c.attempt),
    )
    .where(_IS_IN_HAND)
)
_UNCLAIM = (
    sa.update(dispatches)
    .where(dispatches.c.dispatch_key == sa.bindparam("of"))
    .values(state=DispatchState.PLANNED, lease_until=None, attempt=dispatches.c.attempt - 1)
)
_INTENT = sa.insert(attempts)
_SEGMENT = (
    sa.select(audiences.c.kind, segments)
    .join(audiences, audiences.c.launch_key == segments.c.launch_key)
    .where(segments.c.launch_key == sa.bindparam("launch"), segments.c.number == sa.bindparam("number_of_it"))
)


LOOKAHEAD = timedelta(seconds=0.5)
"""How long before its moment a request may be claimed: so workers are in time, and a pause still has effect soon."""


def check_rate(per_second: float) -> None:
    """Raise ValueError unless a number of requests per second is one that can be kept."""
    if not (math.isfinite(per_second) and per_second >= 1 / 86_400):
        raise ValueError("requests per second must be a number above 0, and at least one request a day")


def interval(per_second: float) -> timedelta:
    """Return the least time between two requests, rounded up to what the ledger can tell apart."""
    check_rate(per_second)
    return timedelta(microseconds=math.ceil(1_000_000 / per_second))


class RateLimits:
    """The rates of a ledger's connections."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next_at(self, connection: str) -> datetime | None:
        """Return the first moment at which a connection may make a request, or None where it always may."""
        with self._database.read() as db:
            return db.scalar(sa.select(rate_limits.c.next_at).where(rate_limits.c.connection == connection))

    def delay(self, connection: str, until: datetime) -> None:
        """Keep the workers of a connection from requests before a moment, as the service asked."""
        with self._database.write() as db:
            _move(self._database, db, connection, until, timedelta(0))


def reserve(
    database: Database, db: sa.Connection, connection: str, per_second: float, now: datetime
) -> datetime:
    """Take the next free moment of a connection, within a transaction, and give it."""
    return _move(database, db, connection, now, interval(per_second))


def _move(
    database: Database, db: sa.Connection, connection: str, least: datetime, step: timedelta
) -> datetime:
    row = {"connection": connection, "next_at": least}
    db.execute(database.insert_or_ignore(rate_limits), row)
    of_connection = rate_limits.c.connection == connection
    locked = sa.select(rate_limits.c.next_at).where(of_connection).with_for_update()
    moment: datetime = max(db.execute(locked).scalar_one(), least)
    db.execute(sa.update(rate_limits).where(of_connection).values(next_at=moment + step))
    return moment
