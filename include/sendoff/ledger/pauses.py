"""Brakes in the ledger: what keeps every launch, or every launch of one connection, from being sent.

A claim looks at the brakes in the statement that takes a dispatch, so one that is set holds from the next request on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa

from sendoff.ledger.database import Database
from sendoff.ledger.schema import brakes, decisions

ALL = "all"


def scope_of(connection: str | None) -> str:
    """Give the scope of a brake: of one connection, or of all where that is None."""
    return ALL if connection is None else f"connection:{connection}"


@dataclass(frozen=True, slots=True)
class Brake:
    """Nothing of its scope is sent: of all launches, or of those of one connection."""

    scope: str  # all, or connection:<name>
    who: str
    why: str
    set_at: datetime


class Brakes:
    """The brakes of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, scope: str, who: str, why: str, *, now: datetime) -> bool:
        """Set a brake and keep the decision; False, and nothing happens, where it is set already."""
        with self._database.write() as connection:
            row = asdict(Brake(scope, who, why, now))
            insert = self._database.insert_or_pass(brakes).returning(brakes.c.scope)
            if connection.scalar(insert, row) is None:
                return False
            connection.execute(sa.insert(decisions), _decision("paused", scope, who, why, now))
        return True

    def lift(self, scope: str, who: str, why: str, *, now: datetime) -> bool:
        """Lift a brake and keep the decision; False, and nothing happens, where it is not set."""
        with self._database.write() as connection:
            if not connection.execute(sa.delete(brakes).where(brakes.c.scope == scope)).rowcount:
                return False
            connection.execute(sa.insert(decisions), _decision("resumed", scope, who, why, now))
        return True

    def on(self, connection: str) -> list[Brake]:
        """Give the brakes that hold the launches of one connection."""
        return [each for each in self.all() if each.scope in (ALL, scope_of(connection))]

    def all(self) -> list[Brake]:
        """Give the brakes that are set, in the order of their scopes."""
        query = sa.select(brakes.c.scope, brakes.c.who, brakes.c.why, brakes.c.set_at)
        with self._database.read() as connection:
            return [Brake(*row) for row in connection.execute(query.order_by(brakes.c.scope))]


def _decision(kind: str, scope: str, who: str, why: str, now: datetime) -> dict[str, object]:
    detail = {"scope": scope}
    return {"kind": kind, "who": who, "why": why, "detail": detail, "decided_at": now}
