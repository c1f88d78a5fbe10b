"""The requests of a launch as people look at them: a page at a time, each with what was recorded of its attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from sendoff.ledger.schema import dispatches, outcomes, returns, segments

_MOST_RECORDED = 5_000  # that are read for one page


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of one attempt: its outcome, or evidence that came later."""

    attempt: int
    kind: str  # accepted, refused, not_processed, in_doubt or evidence
    status: int | None  # of the answer over HTTP, where one was read
    reason: str | None
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a launch, what its people get, and what became of it."""

    dispatch_key: str
    segment: int
    wave: int
    time_zone: str | None
    language: str | None
    variant: str | None
    people: int  # 0 where the service chooses them
    state: str
    attempt: int  # 0 before the first
    campaign_id: int | None
    deliveries: int
    opens: int
    recorded: Sequence[Recorded]  # oldest first

    @property
    def doubts(self) -> int:
        """How many of its attempts went into doubt, and were not said later to be refused or not processed."""
        return len(doubtful(self.recorded))


def doubtful(recorded: Iterable[Recorded]) -> frozenset[int]:
    """Give the numbers of the attempts of which nobody knows, or knew, whether they were processed."""
    found: set[int] = set()
    for each in recorded:
        if each.kind == "in_doubt":
            found.add(each.attempt)
        elif each.kind in ("refused", "not_processed"):
            found.discard(each.attempt)
    return frozenset(found)


def requests_of(
    connection: sa.Connection, launch_key: str, states: Collection[str], offset: int, limit: int
) -> list[Request]:
    """Give some requests of a launch in the order of their segments; ``states``: those in any of them, none for all."""
    query = _REQUESTS.where(dispatches.c.launch_key == launch_key).order_by(dispatches.c.segment)
    if states:
        query = query.where(dispatches.c.state.in_(states))
    rows = connection.execute(query.offset(offset).limit(limit)).all()
    recorded = recorded_of(connection, [row.dispatch_key for row in rows])
    return [
        Request(**{**row._mapping, "time_zone": row.time_zone or None}, recorded=recorded[row.dispatch_key])
        for row in rows
    ]


def recorded_of(
    connection: sa.Connection, dispatch_keys: Collection[str]
) -> Mapping[str, Sequence[Recorded]]:
    """Give what was recorded of some dispatches, oldest first; of very much, the newest."""
    query = (
        sa.select(
            outcomes.c.dispatch_key,
            *(outcomes.c[name] for name in ("attempt", "kind", "status", "reason", "recorded_at")),
        )
        .where(outcomes.c.dispatch_key.in_(dispatch_keys))
        .order_by(outcomes.c.id.desc())
        .limit(_MOST_RECORDED)
    )
    found: dict[str, list[Recorded]] = {key: [] for key in dispatch_keys}
    for key, *values in reversed(connection.execute(query).all()):
        found[key].append(Recorded(*values))
    return found


_REQUESTS = (
    sa.select(
        *(dispatches.c[name] for name in ("dispatch_key", "segment", "wave", "time_zone")),
        segments.c.language,
        segments.c.variant,
        segments.c.size.label("people"),
        *(dispatches.c[name] for name in ("state", "attempt", "campaign_id")),
        sa.func.coalesce(returns.c.deliveries, 0).label("deliveries"),
        sa.func.coalesce(returns.c.opens, 0).label("opens"),
    )
    .join(
        segments,
        sa.and_(segments.c.launch_key == dispatches.c.launch_key, segments.c.number == dispatches.c.segment),
    )
    .outerjoin(returns, returns.c.dispatch_key == dispatches.c.dispatch_key)
)
