"""Outcomes and evidence: how they are stored, and which dispatches they prove accepted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa

from sendoff.ledger.storage.schema import DOUBTFUL, dispatch_totals, dispatches, outcomes, reports
from sendoff.states import DispatchState, Outcome, OutcomeKind, Refused

HAS_EVIDENCE = sa.exists().where(
    dispatch_totals.c.dispatch_key == sa.literal_column("dispatches.dispatch_key"),
    dispatch_totals.c.is_evidence,
)
"""The condition that the post-backs of a dispatch show that one of its requests was accepted.

It uses a literal column, because SQLAlchemy names no table for a column in RETURNING on SQLite. SQLite would then
compare the column with itself.
"""

IS_REPORTED = sa.exists().where(reports.c.launch_key == sa.literal_column("dispatches.launch_key"))
"""The condition that the launch of a dispatch has a report. It uses a literal column for the same reason."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of an acceptance, which came after the outcome of an attempt was recorded."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.EVIDENCE
    reason: str


def outcome_row(key: str, attempt: int, outcome: Outcome | Evidence, now: datetime) -> dict[str, Any]:
    """Return the row that stores an outcome, or evidence."""
    return {
        "dispatch_key": key,
        "attempt": attempt,
        "kind": outcome.kind,
        "status": getattr(outcome, "status", None),
        "reason": outcome.message if isinstance(outcome, Refused) else getattr(outcome, "reason", None),
        "recorded_at": now,
    }


def accept_by_earlier_outcome(db: sa.Connection, dispatch_keys: Collection[str], now: datetime) -> None:
    """Move dispatches to ``accepted`` if any of their attempts is known to have been accepted.

    Call it after the same transaction has moved these dispatches, so that it runs as separate statements. They see what
    another worker recorded, or another process aggregated, while this transaction waited.
    """
    for key in dispatch_keys:
        db.execute(_ACCEPT, {"of": key})
    accept_by_evidence(db, dispatch_keys, now)


def accept_by_evidence(
    db: sa.Connection, dispatch_keys: Collection[str], now: datetime
) -> Sequence[sa.Row[tuple[str, int, str]]]:
    """Move dispatches to ``accepted`` if a post-back proves it, unless they are in flight.

    Return the key, attempt, and launch of each one moved. Evidence overrides a person who wrote a dispatch off or
    planned it again. The campaign ID is not taken from a post-back, because its body may name any ID. Only the
    service's own reply can expose a forgery.
    """
    moved = db.execute(_ACCEPT_EVIDENT, {"of": list(dispatch_keys)}).all()
    if moved:
        rows = [outcome_row(row.dispatch_key, row.attempt, _POST_BACK, now) for row in moved]
        db.execute(sa.insert(outcomes), rows)
    return moved


_POST_BACK = Evidence("a post-back came from it")
_ACCEPT = (
    sa.update(dispatches)
    .where(
        dispatches.c.dispatch_key == sa.bindparam("of"),
        dispatches.c.state.in_((DispatchState.PLANNED, DispatchState.REFUSED, DispatchState.IN_DOUBT)),
        sa.exists().where(
            outcomes.c.dispatch_key == sa.bindparam("of"),
            outcomes.c.kind.in_((OutcomeKind.ACCEPTED, OutcomeKind.EVIDENCE)),
        ),
    )
    .values(state=DispatchState.ACCEPTED)
)
_ACCEPT_EVIDENT = (
    sa.update(dispatches)
    .where(DOUBTFUL, dispatches.c.dispatch_key.in_(sa.bindparam("of", expanding=True)), HAS_EVIDENCE)
    .values(state=DispatchState.ACCEPTED)
    .returning(dispatches.c.dispatch_key, dispatches.c.attempt, dispatches.c.launch_key)
)
