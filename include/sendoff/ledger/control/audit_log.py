"""Decisions by people and by Sendoff: the state of each launch, the global pauses, and the audit log.

.. code-block:: text

    held ──approved, released──▶ released ──held──▶ held
    held ──rejected──▶ rejected
    released ──paused──▶ paused ──resumed──▶ released
    held, released, paused ──stopped──▶ stopped
    released ──wave, winner──▶ released, with the next wave open

A launch is held because something went wrong or because a person must approve it. It is paused because a person wanted
that. A global pause stops all launches, or all launches of one connection. Each claim checks the pauses in the
statement that takes a dispatch, so a pause takes effect with the next request. When a ledger is moved to another
database, the pause of everything becomes the mark of the move, which no ordinary resume lifts. A ledger with the mark
takes no decision and no opt-out, because they would be missing in the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, cast

import sqlalchemy as sa

from sendoff.errors import GateError, NotFoundError
from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.revisions import REVISION_AFTER_CHANGE
from sendoff.ledger.storage.schema import decisions, launches, pauses
from sendoff.states import DecisionKind, LaunchState

_TRANSITIONS = {
    DecisionKind.APPROVED: ((LaunchState.HELD,), LaunchState.RELEASED),
    DecisionKind.RELEASED: ((LaunchState.HELD,), LaunchState.RELEASED),
    DecisionKind.REJECTED: ((LaunchState.HELD,), LaunchState.REJECTED),
    DecisionKind.HELD: ((LaunchState.RELEASED,), LaunchState.HELD),
    DecisionKind.PAUSED: ((LaunchState.RELEASED,), LaunchState.PAUSED),
    DecisionKind.RESUMED: ((LaunchState.PAUSED,), LaunchState.RELEASED),
    DecisionKind.STOPPED: ((LaunchState.HELD, LaunchState.RELEASED, LaunchState.PAUSED), LaunchState.STOPPED),
    DecisionKind.WAVE: ((LaunchState.RELEASED,), LaunchState.RELEASED),
    DecisionKind.WINNER: ((LaunchState.RELEASED,), LaunchState.RELEASED),
}
"""For each kind of decision: the launch states that allow it, and the state that it leads to."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about a launch, with the counts it was based on; it never contains identifiers."""

    launch_key: str | None  # None: about all launches
    kind: DecisionKind
    who: str  # a person, or the part of Sendoff that decided
    why: str | None
    decided_at: datetime
    detail: Mapping[str, Any] | None = None


class AuditLog(LedgerPart):
    """The decisions about launches and the resulting states. Decisions are appended and never changed."""

    def record(self, decision: Decision) -> None:
        """Append a decision that changes no launch, such as the result of its gates."""
        with self._database.write() as db:
            append_decision(db, decision)

    def decide(
        self,
        decision: Decision,
        *,
        wave: int | None = None,
        since: int | None = None,
        winner: str | None = None,
    ) -> bool:
        """Change the state of a launch and append the decision, both or neither. Return whether that was possible.

        It is impossible if the launch's state does not allow this kind of decision, so repeating a decision is
        harmless. ``wave``: decide only while this is the newest open wave; the kind ``wave`` opens the next one.
        ``winner``: also store the variant that the rest of the launch gets, and open the next wave; this is possible
        only once.
        ``since``: decide only if the log has no decision about the launch newer than this number, which :meth:`newest`
        returned before the launch was judged. Raise NotFoundError if the ledger does not have the launch, and GateError
        if the ledger was moved.
        """
        launch_key = decision.launch_key
        assert launch_key is not None
        before, after = _TRANSITIONS[decision.kind]
        change = _CHANGE.where(launches.c.state.in_(before))
        if wave is not None:
            change = change.where(launches.c.wave == wave)
        values: dict[str, Any] = {"state": after, "revision": REVISION_AFTER_CHANGE}
        if decision.kind == DecisionKind.WAVE or winner is not None:
            values["wave"] = launches.c.wave + 1
        if winner is not None:
            change = change.where(launches.c.winner.is_(None))
            values["winner"] = winner
        with self._database.write() as db:
            if since is not None:
                # Wait for any process that is deciding about the launch, so that the change sees its decision.
                db.execute(_KNOWN_LOCKED, {"launch": launch_key})
                change = change.where(_newest == since)
            if not db.execute(change.values(values), {"launch": launch_key}).rowcount:
                _check_there(db, launch_key)
                return False
            append_decision(db, decision)
        return True

    def newest(self, launch_key: str) -> int:
        """Return the number of the newest decision about a launch; 0 if there is none. An export decides nothing."""
        return self._database.scalar(_NEWEST, {"launch": launch_key}) or 0

    def of_launch(self, launch_key: str) -> list[Decision]:
        """Return the decisions about a launch, oldest first."""
        return [_decision(row) for row in self._database.rows(_DECISIONS_OF, {"launch": launch_key})]

    def released_wave(self, launch_key: str) -> int:
        """Return the newest wave of a launch that held it and was then released by a person; 0 if there is none."""
        held = released = 0
        for decision in self.of_launch(launch_key):
            if decision.kind == DecisionKind.HELD:
                held = (decision.detail or {}).get("wave", 0)
            elif decision.kind == DecisionKind.RELEASED:
                released = held or released
        return released

    def report_holds(self, now: datetime) -> list[Decision]:
        """Return the decisions that hold launches now and were not reported before. Record that they are reported.

        Each is returned to only one of several callers. A launch that waits for its first approval has none.
        """
        with self._database.write() as db:
            db.execute(_HELD_LOCKED)  # another process that reports them waits here
            holds = [_decision(row) for row in db.execute(_UNREPORTED)]
            for hold in holds:
                append_decision(
                    db, Decision(hold.launch_key, DecisionKind.HOLD_REPORTED, "sendoff", None, now)
                )
        return holds

    def of_suppression(self, *, limit: int) -> list[Decision]:
        """Return the latest changes of the suppression list, newest first."""
        kinds = (DecisionKind.SUPPRESSED, DecisionKind.UNSUPPRESSED)
        query = _DECISIONS.where(decisions.c.launch_key.is_(None), decisions.c.kind.in_(kinds))
        newest = query.order_by(decisions.c.id.desc()).limit(limit)
        return [_decision(row) for row in self._database.rows(newest)]


_KINDS = frozenset(DecisionKind)
_DECISIONS = sa.select(*(decisions.c[name] for name in Decision.__slots__))
_DECISIONS_OF = _DECISIONS.where(decisions.c.launch_key == sa.bindparam("launch")).order_by(decisions.c.id)
DECIDES = decisions.c.kind.not_in((DecisionKind.EXPORTED, DecisionKind.HOLD_REPORTED))
"""An export of a launch's people and the report of a hold are entries of the log, but no decisions about the launch."""
_newest = (
    sa.select(sa.func.coalesce(sa.func.max(decisions.c.id), 0))
    .where(decisions.c.launch_key == sa.bindparam("launch"), DECIDES)
    .scalar_subquery()
)
_NEWEST = sa.select(_newest)
_CHANGE = sa.update(launches).where(launches.c.launch_key == sa.bindparam("launch"))
_KNOWN = sa.select(launches.c.launch_key).where(launches.c.launch_key == sa.bindparam("launch"))
_KNOWN_LOCKED = _KNOWN.with_for_update()
_HELD_LOCKED = (
    sa.select(launches.c.launch_key)
    .where(launches.c.state == LaunchState.HELD)
    .order_by(launches.c.launch_key)  # as others lock several launches, to avoid deadlocks
    .with_for_update()
)
_later = decisions.alias()
_UNREPORTED = (
    _DECISIONS.join(launches, launches.c.launch_key == decisions.c.launch_key)
    .where(
        launches.c.state == LaunchState.HELD,
        decisions.c.kind == DecisionKind.HELD,
        ~sa.exists().where(
            _later.c.launch_key == decisions.c.launch_key,
            _later.c.id > decisions.c.id,
            _later.c.kind.in_((DecisionKind.HELD, DecisionKind.HOLD_REPORTED)),
        ),
    )
    .order_by(decisions.c.id)
)
_APPEND = sa.insert(decisions)


def _decision(row: sa.Row[Any]) -> Decision:
    """Return a decision. A kind that a newer version wrote stays a text."""
    kind = DecisionKind(row.kind) if row.kind in _KINDS else cast("DecisionKind", row.kind)
    return Decision(**{**row._mapping, "kind": kind})


def append_decision(db: sa.Connection, decision: Decision) -> None:
    """Append a decision within the current transaction. Raise GateError if the ledger was moved."""
    db.execute(_APPEND, {name: getattr(decision, name) for name in Decision.__slots__})
    check_not_moved(db)


def _check_there(db: sa.Connection, launch_key: str) -> None:
    if db.scalar(_KNOWN, {"launch": launch_key}) is None:
        raise NotFoundError(f"the ledger holds no launch {launch_key}")


def check_not_moved(db: sa.Connection) -> None:
    """Raise GateError if the ledger was moved to another database, where a change would be missing.

    Write first in the transaction. On PostgreSQL, that waits for a copy in progress, so its mark is seen here.
    """
    if row := db.execute(_PAUSES.where(pauses.c.scope == MOVED)).first():
        raise GateError(str(GlobalPause(*row)))


ALL = "all"
MOVED = "moved"


def scope_of(connection: str | None) -> str:
    """Return the scope of a pause: one connection, or all if it is None."""
    return ALL if connection is None else f"connection:{connection}"


@dataclass(frozen=True, slots=True)
class GlobalPause:
    """A pause of all launches, or of all launches of one connection. Or the mark of a ledger that was moved."""

    scope: str  # all, moved, or connection:<name>
    who: str
    why: str
    paused_at: datetime

    @property
    def connection(self) -> str | None:
        """The connection whose launches it stops, or None if it stops all."""
        return self.scope.partition(":")[2] or None

    @property
    def is_move(self) -> bool:
        """Whether it marks a ledger that was moved to another database."""
        return self.scope == MOVED

    def __str__(self) -> str:
        if self.is_move:
            return (
                f"this ledger was {self.why} by {self.who}; set SENDOFF_LEDGER_URL, or the connection "
                "sendoff_ledger, to that one"
            )
        return f"launches are paused ({self.scope}) by {self.who}: {self.why}"


class Pauses(LedgerPart):
    """The global pauses of a ledger."""

    def pause(self, scope: str, who: str, why: str, *, now: datetime) -> bool:
        """Pause a scope and append the decision. If it is already paused, do nothing and return False."""
        with self._database.write() as db:
            row = asdict(GlobalPause(scope, who, why, now))
            insert = self._database.insert_or_ignore(pauses).returning(pauses.c.scope)
            if db.scalar(insert, row) is None:
                return False
            append_decision(db, Decision(None, DecisionKind.PAUSED, who, why, now, {"scope": scope}))
        return True

    def resume(self, scope: str, who: str, why: str, *, now: datetime) -> bool:
        """Resume a scope and append the decision. If it is not paused, do nothing and return False."""
        with self._database.write() as db:
            if not db.execute(sa.delete(pauses).where(pauses.c.scope == scope)).rowcount:
                return False
            append_decision(db, Decision(None, DecisionKind.RESUMED, who, why, now, {"scope": scope}))
        return True

    def of_connection(self, connection: str) -> list[GlobalPause]:
        """Return the pauses that apply to one connection."""
        return [pause for pause in self.all() if pause.connection in (None, connection)]

    def move(self) -> GlobalPause | None:
        """Return the mark of a ledger that was moved to another database, or None."""
        return next((pause for pause in self.all() if pause.is_move), None)

    def check_not_moved(self) -> None:
        """Raise GateError if the ledger was moved to another database."""
        with self._database.read() as db:
            check_not_moved(db)

    def all(self) -> list[GlobalPause]:
        """Return all pauses, ordered by scope."""
        return [GlobalPause(*row) for row in self._database.rows(_PAUSES.order_by(pauses.c.scope))]


_PAUSES = sa.select(*(pauses.c[name] for name in GlobalPause.__slots__))
