"""Decisions in the ledger: what was decided of a launch, by whom and why; and the state of the launch that follows.

.. code-block:: text

    held ──approved, released──▶ released ──held──▶ held
    held ──rejected──▶ rejected
    held, released ──stopped──▶ stopped
    released ──wave──▶ released, with the next wave open
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger.database import Database
from sendoff.ledger.tables import decisions, launches

_MOVES = {
    "approved": (("held",), "released"),
    "released": (("held",), "released"),
    "rejected": (("held",), "rejected"),
    "held": (("released",), "held"),
    "stopped": (("held", "released"), "stopped"),
    "wave": (("released",), "released"),
}
"""What a kind of decision does to a launch: the states from which it is possible, and the one it leads to."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided of a launch, and what it was decided on: counts, never people."""

    launch_key: str | None  # None: of every launch
    kind: str
    who: str  # a person, or what decided by itself
    why: str | None
    detail: Mapping[str, Any] | None
    decided_at: datetime


class Decisions:
    """The decisions of a ledger: appended, never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        launch_key: str | None,
        kind: str,
        who: str,
        why: str | None,
        detail: Mapping[str, Any] | None = None,
        *,
        now: datetime,
    ) -> None:
        """Append a decision that changes no launch, such as what its gates said."""
        with self._database.write() as connection:
            _append(connection, Decision(launch_key, kind, who, why, detail, now))

    def decide(
        self,
        launch_key: str,
        kind: str,
        who: str,
        why: str | None,
        *,
        now: datetime,
        detail: Mapping[str, Any] | None = None,
        wave: int | None = None,
    ) -> bool:
        """Change the state of a launch and append the decision, both or neither; say whether that was possible.

        It is not where the launch is in a state from which the kind leads nowhere: then nothing happens, so a decision
        may be repeated. With ``wave`` it is possible only while that is the newest open wave, and kind ``wave`` opens
        the next one. Raises NotFoundError for a launch that the ledger does not hold.
        """
        before, after = _MOVES[kind]
        change = sa.update(launches).where(launches.c.launch_key == launch_key, launches.c.state.in_(before))
        if wave is not None:
            change = change.where(launches.c.wave == wave)
        values: dict[str, Any] = {"state": after}
        if kind == "wave":
            values["wave"] = launches.c.wave + 1
        with self._database.write() as connection:
            if not connection.execute(change.values(values)).rowcount:
                _check_there(connection, launch_key)
                return False
            _append(connection, Decision(launch_key, kind, who, why, detail, now))
        return True

    def of_launch(self, launch_key: str) -> list[Decision]:
        """Give the decisions of a launch, oldest first."""
        query = _DECISIONS.where(decisions.c.launch_key == launch_key).order_by(decisions.c.id)
        with self._database.read() as connection:
            return [Decision(**row._mapping) for row in connection.execute(query)]


_DECISIONS = sa.select(*(decisions.c[name] for name in Decision.__slots__))


def _append(connection: sa.Connection, decision: Decision) -> None:
    connection.execute(sa.insert(decisions), {name: getattr(decision, name) for name in Decision.__slots__})


def _check_there(connection: sa.Connection, launch_key: str) -> None:
    known = sa.select(launches.c.launch_key).where(launches.c.launch_key == launch_key)
    if connection.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no launch {launch_key}")
