"""One statement that records an accepted request and claims the next dispatch of its launch, for PostgreSQL.

It does what the separate statements for dispatches, claims and rate limits do. Waiting for the answers to these took
most of the ledger's time. SQLite cannot change several tables in one statement, and has no answers to wait for.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sendoff.ledger.requests.claims import VARIANT
from sendoff.ledger.requests.evidence import HAS_EVIDENCE, IS_REPORTED
from sendoff.ledger.requests.next_dispatch import OPEN_WAVE, claim_statement, next_planned, open_zones
from sendoff.ledger.storage.schema import (
    UtcDateTime,
    attempts,
    audiences,
    dispatches,
    launches,
    outcomes,
    rate_limits,
    segments,
    suppression_state,
)
from sendoff.ledger.suppression.active_suppressions import STATE
from sendoff.ledger.suppression.active_verdicts import SOURCES_REVISION
from sendoff.states import DispatchState, OutcomeKind

_ZONES = open_zones(lambda zone: zone != sa.all_(sa.bindparam("closed", type_=sa.ARRAY(sa.Text))))
_FIRST_OPEN_ZONE = _ZONES.limit(1).scalar_subquery()
_NOW: sa.BindParameter[Any] = sa.bindparam("now", type_=UtcDateTime())


def _record_and_claim(*, at_rate: bool) -> Any:
    """Return the statement.

    It does nothing, and returns no row, unless the dispatch ``of`` is in flight with the attempt ``by``. Otherwise its
    row has the content of the claim, or nulls if there is none. A dispatch that has evidence is not claimed.
    ``at_rate``: the claim also reserves its moment of the rate limit. Without a near moment, nothing is claimed.
    """
    moved = _moved()
    # The reference to ``moved`` also makes the database wait there first, for another try of the same worker.
    is_moved = sa.select(moved.c.attempt)
    # This statement bumps the revision of a launch with a report last. Claims bump it before they reserve a moment, so
    # reserving one here could make two transactions wait for each other.
    is_free = is_moved.where(sa.not_(moved.c.is_reported)) if at_rate else is_moved
    following = next_planned(_FIRST_OPEN_ZONE, sa.exists(is_free)).cte("following")
    chosen = sa.select(following.c.dispatch_key)
    slot = _slot(sa.exists(chosen)) if at_rate else None
    is_near = sa.true() if slot is None else sa.exists(sa.select(slot.c.slot))
    claimed = claim_statement(chosen.where(is_near)).where(sa.not_(HAS_EVIDENCE)).cte("claimed")
    content = ("identifiers", "language", "time_zone", "wave", "template_values", "body")
    columns = (
        claimed,
        audiences.c.kind,
        *(segments.c[name] for name in content),
        VARIANT,
        *STATE,
        SOURCES_REVISION,
    )
    its_segment = sa.and_(
        segments.c.launch_key == sa.bindparam("launch"), segments.c.number == claimed.c.segment
    )
    found = (
        moved.outerjoin(claimed, sa.true())
        .outerjoin(segments, its_segment)
        .outerjoin(audiences, audiences.c.launch_key == segments.c.launch_key)
        .outerjoin(suppression_state, sa.true())
    )
    if slot is not None:
        columns, found = (slot, *columns), found.outerjoin(slot, sa.true())
    statement = sa.select(*columns).select_from(found)
    return statement.add_cte(_recorded(moved), _attempted(claimed), _revised(moved))


def _moved() -> sa.CTE:
    """Accept the dispatch, and return its attempt and whether its launch has a report."""
    number: sa.BindParameter[int | None] = sa.bindparam("campaign", type_=sa.BigInteger)
    return (
        sa.update(dispatches)
        .where(
            dispatches.c.dispatch_key == sa.bindparam("of"),
            dispatches.c.attempt == sa.bindparam("by"),
            dispatches.c.state == DispatchState.IN_FLIGHT,
        )
        .values(
            state=DispatchState.ACCEPTED,
            lease_until=None,
            campaign_id=sa.func.coalesce(number, dispatches.c.campaign_id),
        )
        .returning(dispatches.c.dispatch_key, dispatches.c.attempt, IS_REPORTED.label("is_reported"))
        .cte("moved")
    )


def _recorded(moved: sa.CTE) -> sa.CTE:
    """Store the outcome of the accepted dispatch."""
    kind = sa.literal(OutcomeKind.ACCEPTED, outcomes.c.kind.type)
    status = sa.bindparam("status", type_=sa.Integer)
    of = sa.select(moved.c.dispatch_key, moved.c.attempt, kind, status, _NOW)
    columns = ["dispatch_key", "attempt", "kind", "status", "recorded_at"]
    return sa.insert(outcomes).from_select(columns, of).cte("recorded")


def _attempted(claimed: sa.CTE) -> sa.CTE:
    """Store the attempt of the claim."""
    of = sa.select(claimed.c.dispatch_key, claimed.c.attempt, sa.bindparam("name", type_=sa.Text), _NOW)
    columns = ["dispatch_key", "number", "worker", "started_at"]
    return sa.insert(attempts).from_select(columns, of).cte("intent")


def _revised(moved: sa.CTE) -> sa.CTE:
    """Bump the revision of the launch if it has a report."""
    is_reported = sa.exists(sa.select(moved.c.attempt).where(moved.c.is_reported))
    return (
        sa.update(launches)
        .where(launches.c.launch_key == sa.bindparam("launch"), is_reported)
        .values(revision=launches.c.revision + 1)
        .cte("revised")
    )


def _slot(*conditions: sa.ColumnElement[bool]) -> sa.CTE:
    """Reserve the next free moment of the connection if it is near, as ``rate_limits.reserve`` does.

    The row of the rate limit must exist. It stays locked until the commit.
    """
    step = sa.bindparam("step", type_=sa.Interval)
    free = sa.func.greatest(rate_limits.c.next_at, _NOW, type_=UtcDateTime())
    return (
        sa.update(rate_limits)
        .where(
            rate_limits.c.connection == sa.select(OPEN_WAVE.c.connection).scalar_subquery(),
            free <= sa.bindparam("ready_by"),
            *conditions,
        )
        .values(next_at=free + step)
        .returning(sa.type_coerce(rate_limits.c.next_at - step, UtcDateTime()).label("slot"))
        .cte("slot")
    )


RECORD_AND_CLAIM = _record_and_claim(at_rate=False)
"""Record that a request was accepted and claim the next dispatch, if nothing moved its dispatch since its claim."""
RECORD_AND_CLAIM_AT_RATE = _record_and_claim(at_rate=True)
"""The same with a rate limit. A launch that has a report gets no claim."""
