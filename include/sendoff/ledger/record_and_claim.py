"""One statement that records an accepted request and claims the next dispatch of its launch, for PostgreSQL.

It does what the separate statements of :mod:`~sendoff.ledger.dispatches` and :mod:`~sendoff.ledger.claims` do. Waiting
for the answers to these took most of the ledger's time. SQLite cannot change several tables in one statement, and has
no answers to wait for.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sendoff.ledger.active_suppressions import STATE
from sendoff.ledger.claims import OPEN_ZONES, claim_statement
from sendoff.ledger.evidence import IS_REPORTED
from sendoff.ledger.schema import (
    Moment,
    attempts,
    audiences,
    dispatches,
    outcomes,
    segments,
    suppression_state,
)
from sendoff.states import DispatchState, OutcomeKind


def _record_and_claim() -> Any:
    """Return the statement.

    It does nothing, and returns no row, unless the dispatch ``of`` is in flight with the attempt ``by``. Otherwise its
    row has the content of the claim, or nulls if there is none. A claimed dispatch that has evidence gets no intent.
    """
    now: sa.BindParameter[Any] = sa.bindparam("now", type_=Moment())
    number: sa.BindParameter[int | None] = sa.bindparam("campaign", type_=sa.BigInteger)
    moved = (
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
    kind = sa.literal(OutcomeKind.ACCEPTED, outcomes.c.kind.type)
    status = sa.bindparam("status", type_=sa.Integer)
    recorded = (
        sa.insert(outcomes)
        .from_select(
            ["dispatch_key", "attempt", "kind", "status", "recorded_at"],
            sa.select(moved.c.dispatch_key, moved.c.attempt, kind, status, now),
        )
        .cte("recorded")
    )
    # The reference to ``moved`` also makes the database wait there first, for another try of the same worker.
    is_moved = sa.exists(sa.select(moved.c.attempt))
    claimed = claim_statement(OPEN_ZONES.limit(1).scalar_subquery(), is_moved).cte("claimed")
    intent = (
        sa.insert(attempts)
        .from_select(
            ["dispatch_key", "number", "worker", "started_at"],
            sa.select(
                claimed.c.dispatch_key, claimed.c.attempt, sa.bindparam("name", type_=sa.Text), now
            ).where(sa.not_(claimed.c.has_evidence)),
        )
        .cte("intent")
    )
    content = ("identifiers", "language", "variant", "time_zone", "wave", "template_values", "body")
    return (
        sa.select(
            moved.c.is_reported, claimed, audiences.c.kind, *(segments.c[name] for name in content), *STATE
        )
        .select_from(
            moved.outerjoin(claimed, sa.true())
            .outerjoin(
                segments,
                sa.and_(
                    segments.c.launch_key == sa.bindparam("launch"), segments.c.number == claimed.c.segment
                ),
            )
            .outerjoin(audiences, audiences.c.launch_key == segments.c.launch_key)
            .outerjoin(suppression_state, sa.true())
        )
        .add_cte(recorded, intent)
    )


RECORD_AND_CLAIM = _record_and_claim()
"""Record that a request was accepted and claim the next dispatch, if nothing moved its dispatch since its claim."""
