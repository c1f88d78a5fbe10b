"""Which dispatch comes next: the first planned one in the open waves and in the time zones that are not closed.

Zones are ordered by their first segment, and the dispatches of a zone by wave and segment. One index look-up finds the
first dispatch of each zone. It never reads the planned dispatches of closed zones or of waves that are not open yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from sendoff.ledger.control.audit_log import ALL, MOVED, scope_of
from sendoff.ledger.requests.evidence import HAS_EVIDENCE
from sendoff.ledger.storage.ledger_time import LedgerTime
from sendoff.ledger.storage.schema import dispatches, launches, pauses, rate_limits
from sendoff.states import DispatchState, LaunchState


def _planned(table: Any) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.launch_key == sa.bindparam("launch"), table.c.state == DispatchState.PLANNED)


def _open_wave() -> sa.CTE:
    """Select the newest open wave of the launch and its connection, or nothing while its requests must wait."""
    is_paused = sa.exists().where(
        pauses.c.scope.in_(
            (sa.literal(ALL), sa.literal(MOVED), sa.literal(scope_of("")) + launches.c.connection)
        )
    )
    must_wait = sa.exists().where(
        rate_limits.c.connection == launches.c.connection, rate_limits.c.next_at > sa.bindparam("ready_by")
    )
    return (
        sa.select(launches.c.wave, launches.c.connection)
        .where(
            launches.c.launch_key == sa.bindparam("launch"),
            launches.c.state == LaunchState.RELEASED,
            sa.not_(is_paused.correlate(launches)),
            sa.not_(must_wait.correlate(launches)),
        )
        .cte("open")
    )


OPEN_WAVE = _open_wave()


def _first_of(zone: Any, name: str) -> tuple[Any, Any]:
    """Return a query for the first planned dispatch of a zone in the open waves, and the table's alias."""
    first = dispatches.alias(name)
    return (
        sa.select()
        .select_from(first)
        .where(
            _planned(first),
            first.c.time_zone == zone,
            first.c.wave <= sa.select(OPEN_WAVE.c.wave).scalar_subquery(),
        )
        .order_by(first.c.wave, first.c.segment)
        .limit(1)
    ), first


def open_zones(is_open: Callable[[sa.ColumnElement[str]], sa.ColumnElement[bool]]) -> Any:
    """Select the time zones with planned dispatches that may be sent now, ordered by their first segment.

    ``is_open``: returns the condition that a zone is not closed.
    """
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
        .where(zones.c.time_zone.is_not(None), is_open(zones.c.time_zone))
        .subquery("found")
    )
    return (
        sa.select(open_zones.c.time_zone)
        .where(open_zones.c.segment.is_not(None))
        .order_by(open_zones.c.segment)
    )


def next_planned(zone: Any, *conditions: sa.ColumnElement[bool]) -> Any:
    """Return the statement that selects and locks the first planned dispatch of a zone in the open waves."""
    query, first = _first_of(zone, "next")
    # On PostgreSQL, this keeps two workers from choosing the same row. SQLite admits one writer at a time anyway.
    return (
        query.add_columns(first.c.dispatch_key).where(*conditions).with_for_update(skip_locked=True, of=first)
    )


def claim_statement(following: sa.Select[Any]) -> Any:
    """Return the statement that claims the dispatch whose key another statement selects."""
    return (
        sa.update(dispatches)
        .where(
            dispatches.c.dispatch_key == following.scalar_subquery(),
            dispatches.c.state == DispatchState.PLANNED,
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
