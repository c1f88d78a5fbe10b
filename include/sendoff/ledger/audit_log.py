"""What people and Sendoff decided: the state of each launch, the global pauses, and the log of every decision.

.. code-block:: text

    held ──approved, released──▶ released ──held──▶ held
    held ──rejected──▶ rejected
    released ──paused──▶ paused ──resumed──▶ released
    held, released, paused ──stopped──▶ stopped
    released ──wave──▶ released, with the next wave open

A launch is held because something went wrong or a person must agree, and paused because a person wanted it. A global
pause holds every launch, or every launch of one connection: each claim looks at the pauses in the statement that takes
a dispatch, so a pause holds from the next request on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger.database import Database
from sendoff.ledger.schema import decisions, launches, pauses
from sendoff.ledger.verdicts import REVISION_AFTER_CHANGE
from sendoff.states import LaunchState

_TRANSITIONS = {
    "approved": ((LaunchState.HELD,), LaunchState.RELEASED),
    "released": ((LaunchState.HELD,), LaunchState.RELEASED),
    "rejected": ((LaunchState.HELD,), LaunchState.REJECTED),
    "held": ((LaunchState.RELEASED,), LaunchState.HELD),
    "paused": ((LaunchState.RELEASED,), LaunchState.PAUSED),
    "resumed": ((LaunchState.PAUSED,), LaunchState.RELEASED),
    "stopped": ((LaunchState.HELD, LaunchState.RELEASED, LaunchState.PAUSED), LaunchState.STOPPED),
    "wave": ((LaunchState.RELEASED,), LaunchState.RELEASED),
}
"""What a kind of decision does to a launch: the states from which it is possible, and the one it leads to."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided of a launch, and what it was decided on: counts, never people."""

    launch_key: str | None  # None: of every launch
    kind: str
    who: str  # a person, or what decided by itself
    why: str | None
    decided_at: datetime
    detail: Mapping[str, Any] | None = None


class AuditLog:
    """The decisions about launches, and the states that follow: appended, never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, decision: Decision) -> None:
        """Append a decision that changes no launch, such as what its gates said."""
        with self._database.write() as db:
            append_decision(db, decision)

    def decide(self, decision: Decision, *, wave: int | None = None, since: int | None = None) -> bool:
        """Change the state of a launch and append the decision, both or neither. Return whether that was possible.

        It is not possible, and nothing happens, if the kind leads nowhere from the launch's state: so a decision may be
        repeated. With ``wave``, it is possible only while that is the newest open wave, and the kind ``wave`` opens the
        next one. With ``since``, what :meth:`newest` returned before the launch was judged, it is possible only if
        nothing was decided about the launch in the meantime. Raise NotFoundError for a launch that the ledger does not
        hold.
        """
        launch_key = decision.launch_key
        assert launch_key is not None
        before, after = _TRANSITIONS[decision.kind]
        change = sa.update(launches).where(launches.c.launch_key == launch_key, launches.c.state.in_(before))
        if wave is not None:
            change = change.where(launches.c.wave == wave)
        values: dict[str, Any] = {"state": after, "revision": REVISION_AFTER_CHANGE}
        if decision.kind == "wave":
            values["wave"] = launches.c.wave + 1
        with self._database.write() as db:
            if since is not None:
                _lock(db, launch_key)
                change = change.where(_newest(launch_key) == since)
            if not db.execute(change.values(values)).rowcount:
                _check_there(db, launch_key)
                return False
            append_decision(db, decision)
        return True

    def newest(self, launch_key: str) -> int:
        """Return the number of the newest decision of a launch; 0 where nothing was decided of it."""
        with self._database.read() as db:
            return db.scalar(sa.select(_newest(launch_key))) or 0

    def of_launch(self, launch_key: str) -> list[Decision]:
        """Return the decisions of a launch, oldest first."""
        query = _DECISIONS.where(decisions.c.launch_key == launch_key).order_by(decisions.c.id)
        with self._database.read() as db:
            return [Decision(**row._mapping) for row in db.execute(query)]


_DECISIONS = sa.select(*(decisions.c[name] for name in Decision.__slots__))


def _newest(launch_key: str) -> sa.ScalarSelect[int]:
    newest = sa.func.coalesce(sa.func.max(decisions.c.id), 0)
    return sa.select(newest).where(decisions.c.launch_key == launch_key).scalar_subquery()


def _lock(db: sa.Connection, launch_key: str) -> None:
    """Wait for whoever decides of the launch at this moment, so that what follows sees that decision."""
    db.execute(sa.select(launches.c.state).where(launches.c.launch_key == launch_key).with_for_update())


def append_decision(db: sa.Connection, decision: Decision) -> None:
    """Append a decision within a transaction."""
    db.execute(sa.insert(decisions), {name: getattr(decision, name) for name in Decision.__slots__})


def _check_there(db: sa.Connection, launch_key: str) -> None:
    known = sa.select(launches.c.launch_key).where(launches.c.launch_key == launch_key)
    if db.scalar(known) is None:
        raise NotFoundError(f"the ledger holds no launch {launch_key}")


ALL = "all"


def scope_of(connection: str | None) -> str:
    """Return the scope of a pause: one connection, or all if that is None."""
    return ALL if connection is None else f"connection:{connection}"


@dataclass(frozen=True, slots=True)
class GlobalPause:
    """Nothing of its scope is sent: of all launches, or of those of one connection."""

    scope: str  # all, or connection:<name>
    who: str
    why: str
    paused_at: datetime


class Pauses:
    """The global pauses of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pause(self, scope: str, who: str, why: str, *, now: datetime) -> bool:
        """Pause a scope and append the decision. Return False, and do nothing, if it is paused already."""
        with self._database.write() as db:
            row = asdict(GlobalPause(scope, who, why, now))
            insert = self._database.insert_or_ignore(pauses).returning(pauses.c.scope)
            if db.scalar(insert, row) is None:
                return False
            append_decision(db, Decision(None, "paused", who, why, now, {"scope": scope}))
        return True

    def resume(self, scope: str, who: str, why: str, *, now: datetime) -> bool:
        """Resume a scope and append the decision. Return False, and do nothing, if it is not paused."""
        with self._database.write() as db:
            if not db.execute(sa.delete(pauses).where(pauses.c.scope == scope)).rowcount:
                return False
            append_decision(db, Decision(None, "resumed", who, why, now, {"scope": scope}))
        return True

    def of_connection(self, connection: str) -> list[GlobalPause]:
        """Return the pauses that hold the launches of one connection."""
        return [pause for pause in self.all() if pause.scope in (ALL, scope_of(connection))]

    def all(self) -> list[GlobalPause]:
        """Return the pauses, in the order of their scopes."""
        query = sa.select(pauses.c.scope, pauses.c.who, pauses.c.why, pauses.c.paused_at)
        with self._database.read() as db:
            return [GlobalPause(*row) for row in db.execute(query.order_by(pauses.c.scope))]
