"""Claims: which planned dispatch of a launch comes next, found by the index however many others are planned.

The next is the first of the open waves, in the order of segments, among the time zones whose people may be sent to now.
The first of each zone is one look-up in an index of the dispatches: what is planned before it in zones that are closed,
and behind it in waves that are not open yet, is never read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from sendoff.audience import Segment
from sendoff.audience.identifiers import from_bytes
from sendoff.campaign import Edition
from sendoff.ledger.clock import LedgerTime
from sendoff.ledger.doubts import IS_EVIDENT, accept_what_is_evident
from sendoff.ledger.pauses import ALL, scope_of
from sendoff.ledger.schema import attempts, audiences, brakes, dispatches, launches, rates, segments
from sendoff.ledger.staleness import add_news_if_reported


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
class Wanted:
    """What somebody wants to claim, and until when they may be silent about it.

    ``ready_by``: the service must not have asked for patience beyond it. ``alone``: nobody else has the worker's name,
    and whoever has it holds one claim at a time.
    """

    launch_key: str
    worker: str
    now: datetime
    lease: timedelta
    closed_zones: Collection[str | None]  # None stands for people without one
    ready_by: datetime
    alone: bool = False

    def take(self, link: sa.Connection) -> Claim | None:
        """Move the next dispatch to ``in_flight`` and append the intent to send it, or give None where there is none.

        The move is a compare-and-set. A worker that is alone and holds a claim already is given that one: it claimed
        before, and did not learn of it. What evidence is in the ledger of is accepted on the way, and not taken.
        """
        values = {
            "launch": self.launch_key,
            "name": self.worker,
            "lease": self.lease.total_seconds(),
            "closed": [zone or "" for zone in self.closed_zones],
            "ready_by": self.ready_by,
        }
        if self.alone:
            taken = link.execute(_TAKE_WITH_EMPTY_HANDS, values).first()
            if taken is None and (held := held_by(link, self.launch_key, self.worker)):
                return held
        else:
            taken = link.execute(_TAKE, values).first()
        taken = self._beyond_evidence(link, values, taken or _behind_others(link, values))
        if taken is None:
            return None
        intent = {"number": taken.attempt, "worker": self.worker, "started_at": self.now}
        link.execute(_INTENT, {"dispatch_key": taken.dispatch_key, **intent})
        return _claim(link, self.launch_key, taken, self.now)

    def _beyond_evidence(
        self, link: sa.Connection, values: dict[str, Any], taken: sa.Row[Any] | None
    ) -> sa.Row[Any] | None:
        """Accept what was taken, and what is next, as long as something came back from it; give the first other."""
        while taken is not None and taken.is_evident:
            link.execute(_PUT_BACK, {"of": taken.dispatch_key})
            (_,) = accept_what_is_evident(link, [taken.dispatch_key], self.now)  # or it is next without end
            add_news_if_reported(link, [self.launch_key])
            taken = link.execute(_TAKE, values).first() or _behind_others(link, values)
        return taken


def held_by(link: sa.Connection, launch_key: str, worker: str) -> Claim | None:
    """Give the claim that a worker of a name of its own holds of a launch; None where it holds none."""
    held = link.execute(_HELD, {"launch": launch_key, "name": worker}).first()
    return None if held is None else _claim(link, launch_key, held, held.started_at)


def _claim(link: sa.Connection, launch_key: str, taken: Any, claimed_at: datetime) -> Claim:
    content = segment_of(link, launch_key, taken.segment)
    return Claim(taken.dispatch_key, launch_key, taken.segment, taken.attempt, content, claimed_at)


def segment_of(link: sa.Connection, launch_key: str, number: int) -> Segment:
    """Give one segment of a launch."""
    row = link.execute(_SEGMENT, {"launch": launch_key, "number_of_it": number}).one()
    identifiers = None if row.identifiers is None else from_bytes(row.kind, row.identifiers)
    edition = Edition(row.language, row.variant, row.time_zone)
    return Segment(identifiers, edition, row.wave, row.parameters)


def _behind_others(link: sa.Connection, values: dict[str, Any]) -> sa.Row[Any] | None:
    """Try zone after zone: other workers may be taking all that is left of the first one at this moment."""
    for zone in link.scalars(_OPEN_ZONES, values).all():
        if taken := link.execute(_TAKE_OF_ZONE, {**values, "zone": zone}).first():
            return taken
    return None


def _planned(table: Any) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.launch_key == sa.bindparam("launch"), table.c.state == "planned")


def _open_wave() -> sa.CTE:
    """Select the newest wave that may be sent; nothing while no request of the launch may be made."""
    braked = sa.exists().where(
        brakes.c.scope.in_((sa.literal(ALL), sa.literal(scope_of("")) + launches.c.connection))
    )
    told_to_wait = sa.exists().where(
        rates.c.connection == launches.c.connection, rates.c.next_at > sa.bindparam("ready_by")
    )
    return (
        sa.select(launches.c.wave)
        .where(
            launches.c.launch_key == sa.bindparam("launch"),
            launches.c.state == "released",
            sa.not_(braked.correlate(launches)),
            sa.not_(told_to_wait.correlate(launches)),
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
    found = (
        sa.select(zones.c.time_zone, number.label("segment"))
        .where(
            zones.c.time_zone.is_not(None),
            zones.c.time_zone.not_in(sa.bindparam("closed", expanding=True)),
        )
        .subquery("found")
    )
    return sa.select(found.c.time_zone).where(found.c.segment.is_not(None)).order_by(found.c.segment)


def _take_of(zone: Any) -> Any:
    query, first = _first_of(zone, "next")
    # For PostgreSQL, where two workers would otherwise choose the same; SQLite lets one writer in at a time anyway.
    locked = query.add_columns(first.c.dispatch_key).with_for_update(skip_locked=True, of=first)
    return (
        sa.update(dispatches)
        .where(dispatches.c.dispatch_key == locked.scalar_subquery(), dispatches.c.state == "planned")
        .values(
            state="in_flight",
            worker=sa.bindparam("name"),
            lease_until=LedgerTime(sa.bindparam("lease", type_=sa.Float)),
            attempt=dispatches.c.attempt + 1,
        )
        .returning(
            *(dispatches.c[name] for name in ("dispatch_key", "segment", "attempt")),
            IS_EVIDENT.label("is_evident"),
        )
    )


_OPEN_ZONES = _open_zones()
_TAKE = _take_of(_OPEN_ZONES.limit(1).scalar_subquery())
_TAKE_OF_ZONE = _take_of(sa.bindparam("zone"))

_in_hand = dispatches.alias("in_hand")
_IS_IN_HAND = sa.and_(
    _in_hand.c.launch_key == sa.bindparam("launch"),
    _in_hand.c.state == "in_flight",
    _in_hand.c.worker == sa.bindparam("name"),
)
_TAKE_WITH_EMPTY_HANDS = _TAKE.where(sa.not_(sa.exists(sa.select(_in_hand.c.segment).where(_IS_IN_HAND))))
_HELD = (
    sa.select(_in_hand.c.dispatch_key, _in_hand.c.segment, _in_hand.c.attempt, attempts.c.started_at)
    .join(
        attempts,
        sa.and_(attempts.c.dispatch_key == _in_hand.c.dispatch_key, attempts.c.number == _in_hand.c.attempt),
    )
    .where(_IS_IN_HAND)
)
_PUT_BACK = (
    sa.update(dispatches)
    .where(dispatches.c.dispatch_key == sa.bindparam("of"))
    .values(state="planned", lease_until=None, attempt=dispatches.c.attempt - 1)
)
_INTENT = sa.insert(attempts)
_SEGMENT = (
    sa.select(audiences.c.kind, segments)
    .join(audiences, audiences.c.launch_key == segments.c.launch_key)
    .where(segments.c.launch_key == sa.bindparam("launch"), segments.c.number == sa.bindparam("number_of_it"))
)
