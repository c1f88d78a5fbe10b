"""Decisions in the ledger: what was decided of a launch, by whom and why; and the state of the launch that follows.

.. code-block:: text

    held ──approved, released──▶ released ──held──▶ held
    held ──rejected──▶ rejected
    released ──paused──▶ paused ──resumed──▶ released
    held, released, paused ──stopped──▶ stopped
    released ──wave──▶ released, with the next wave open

A launch is held because something went wrong or somebody must agree, and paused because a person wanted it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger.database import Database
from sendoff.ledger.schema import decisions, launches
from sendoff.ledger.staleness import ONE_MORE_IF_REPORTED

_MOVES = {
    "approved": (("held",), "released"),
    "released": (("held",), "released"),
    "rejected": (("held",), "rejected"),
    "held": (("released",), "held"),
    "paused": (("released",), "paused"),
    "resumed": (("paused",), "released"),
    "stopped": (("held", "released", "paused"), "stopped"),
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
        since: int | None = None,
    ) -> bool:
        """Change the state of a launch and append the decision, both or neither; say whether that was possible.

        It is not where the launch is in a state from which the kind leads nowhere: then nothing happens, so a decision
        may be repeated. With ``wave`` it is possible only while that is the newest open wave, and kind ``wave`` opens
        the next one. With ``since``, what :meth:`newest` gave before the launch was judged, it is possible only if
        nothing was decided of the launch in the meantime. Raises NotFoundError for a launch that the ledger does not
        hold.
        """
        before, after = _MOVES[kind]
        change = sa.update(launches).where(launches.c.launch_key == launch_key, launches.c.state.in_(before))
        if wave is not None:
            change = change.where(launches.c.wave == wave)
        values: dict[str, Any] = {"state": after, "news": ONE_MORE_IF_REPORTED}
        if kind == "wave":
            values["wave"] = launches.c.wave + 1
        with self._database.write() as connection:
            if since is not None:
                _lock(connection, launch_key)
                change = change.where(_newest(launch_key) == since)
            if not connection.execute(change.values(values)).rowcount:
                _check_there(connection, launch_key)
                return False
            _append(connection, Decision(launch_key, kind, who, why, detail, now))
        return True

    def newest(self, launch_key: str) -> int:
        """Give the number of the newest decision of a launch; 0 where nothing was decided of it."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(_newest(launch_key))) or 0

    def of_launch(self, launch_key: str) -> list[Decision]:
        """Give the decisions of a launch, oldest first."""
        query = _DECISIONS.where(decisions.c.launch_key == launch_key).order_by(decisions.c.id)
        with self._database.read() as connection:
            return [Decision(**row._mapping) for row in connection.execute(query)]


_DECISIONS = sa.select(*(decisions.c[name] for name in Decision.__slots__))


def _newest(launch_key: str) -> sa.ScalarSelect[int]:
    newest = sa.func.coalesce(sa.func.max(decisions.c.id), 0)
    return sa.select(newest).where(decisions.c.launch_key == launch_key).scalar_subquery()


def _lock(connection: sa.Connection, launch_key: str) -> None:
    """Wait for whoever decides of the launch at this moment, so that what follows sees that decision."""
    connection.execute(
        sa.select(launches.c.state).where(launches.c.launch_key == launch_key).with_for_update()
    )


def _append(connection: sa.Connection, decision: Decision) -> None:
    connection.execute(sa.insert(decisions), {name: getattr(decision, name) for name in Decision.__slots__})


def _check_there(connection: sa.Connection, launch_key: str) -> None:
    known = sa.select(launches.c.launch_key).where(launches.c.launch_key == launch_key)
    if connection.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no launch {launch_key}")
