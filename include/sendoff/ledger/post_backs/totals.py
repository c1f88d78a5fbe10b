"""The totals of the post-backs of one dispatch, and how they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.audience.identifiers import Identifiers, from_bytes
from sendoff.ledger.storage.schema import audiences, dispatch_totals, dispatches

AT_OPENS = "at_opens"
"""The key in ``anomalies`` that counts forged and unreadable post-backs sent to an address for opens.

The other forged and unreadable post-backs came to an address for deliveries.
"""

ERASED = "erased"
"""The key in ``anomalies`` that counts post-backs of erased people, whether they were counted before or not."""


@dataclass(frozen=True, slots=True)
class DispatchTotals:
    """The totals of one dispatch's post-backs: the recipients, the counts, and the anomalies."""

    delivered: Identifiers
    engaged: Identifiers
    suspects: Identifiers  # engaged, but a machine probably made each of their opens
    deliveries: int
    opens: int
    anomalies: Mapping[str, int]
    newest_at: datetime  # when the newest was received
    is_evidence: bool  # a recipient of the dispatch responded
    # By hour in UTC: who opened; only of new post-backs, and without the opens of machines.
    hours: Mapping[int, Identifiers] = field(default_factory=dict)

    @property
    def unread(self) -> int:
        """The number of post-backs that were unreadable or named another campaign. They decide no verdict."""
        return self.anomalies.get("unreadable", 0) + self.anomalies.get("forged", 0)

    @property
    def has_unattributed_events(self) -> bool:
        """Whether an unread post-back may have been a recipient's delivery: it came to the address for deliveries."""
        return self.unread > self.anomalies.get(AT_OPENS, 0)

    @property
    def has_unread_opens(self) -> bool:
        """Whether a recipient may have opened although no readable post-back says so."""
        return self.anomalies.get(AT_OPENS, 0) > 0

    def __or__(self, other: DispatchTotals) -> DispatchTotals:
        """Join two totals, in either order."""
        suspects = self.suspects | other.suspects
        if suspects:  # an open that a person made in either is enough
            suspects -= self.engaged - self.suspects
            suspects -= other.engaged - other.suspects
        anomalies = Counter(self.anomalies)
        anomalies.update(other.anomalies)
        return DispatchTotals(
            delivered=self.delivered | other.delivered,
            engaged=self.engaged | other.engaged,
            suspects=suspects,
            deliveries=self.deliveries + other.deliveries,
            opens=self.opens + other.opens,
            anomalies=dict(anomalies),
            newest_at=max(self.newest_at, other.newest_at),
            is_evidence=self.is_evidence or other.is_evidence,
        )


TOTALS = (
    sa.select(dispatch_totals, audiences.c.kind)
    .join(dispatches, dispatches.c.dispatch_key == dispatch_totals.c.dispatch_key)
    .join(audiences, audiences.c.launch_key == dispatches.c.launch_key)
)


def lock_totals(db: sa.Connection) -> None:
    """Lock the totals on PostgreSQL, so that only one run at a time changes them. SQLite has one writer anyway."""
    if db.dialect.name == "postgresql":
        db.execute(sa.text("LOCK TABLE dispatch_totals IN SHARE ROW EXCLUSIVE MODE"))


def stored_totals(db: sa.Connection, dispatch_keys: Iterable[str]) -> dict[str, DispatchTotals]:
    """Return the totals of those of some dispatches that have a post-back."""
    query = TOTALS.where(dispatch_totals.c.dispatch_key.in_(list(dispatch_keys)))
    return {row.dispatch_key: totals_of(row) for row in db.execute(query)}


def totals_of(row: sa.Row[Any]) -> DispatchTotals:
    """Return the totals of a row with the columns of ``dispatch_totals`` and the ``kind`` of the audience."""
    sets: dict[str, Any] = {name: from_bytes(row.kind, row._mapping[name]) for name in _SETS}
    return DispatchTotals(**sets, **{name: row._mapping[name] for name in _OTHERS})


def totals_row(dispatch_key: str, totals: DispatchTotals) -> dict[str, Any]:
    """Return the row that stores totals."""
    sets = {name: getattr(totals, name).to_bytes() for name in _SETS}
    return {"dispatch_key": dispatch_key, **sets, **{name: getattr(totals, name) for name in _OTHERS}}


_SETS = ("delivered", "engaged", "suspects")
_OTHERS = ("deliveries", "opens", "anomalies", "newest_at", "is_evidence")
