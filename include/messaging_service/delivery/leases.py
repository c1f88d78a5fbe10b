"""Leases of the delivery processes, so that several can share a database without sending anything twice.

A process takes a name and renews its lease regularly. It marks the work it claims with that name. If it does not
renew the lease for LEASE seconds, the other processes take over its work, and it must stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Row, Table, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from messaging_service.store import Store
from messaging_service.tables import numbers, post_backs, runs, webhook_calls, workers

LEASE = 10.0
_WORKED_ON = {runs: "waiting", post_backs: "due", webhook_calls: "due"}


class LeaseLostError(Exception):
    """Another process has taken over the work, because this one did not renew its lease in time."""


class Leases:
    """The lease and the claims of one process, which must renew the lease several times within its length."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._renewed_at = 0.0
        self._lock = threading.Lock()
        self.name = ""
        self.renew()

    @property
    def is_alive(self) -> bool:
        """Check whether the lease still holds, with some seconds to spare for work in progress."""
        return time.time() - self._renewed_at < LEASE * 0.7

    def renew(self) -> None:
        """Renew the lease, under a new name if it had expired; release the claims of all expired leases."""
        now = time.time()
        with self._lock, self._store.write() as connection:
            alive = update(workers).where(workers.c.name == self.name).values(seen_at=now)
            if connection.execute(alive).rowcount == 0:
                self.name = uuid4().hex
                connection.execute(workers.insert().values(name=self.name, seen_at=now))
            connection.execute(delete(workers).where(workers.c.seen_at < now - LEASE))
            _release_orphans(connection)
        self._renewed_at = now

    def release(self) -> None:
        """Release the name and all claims, when the process ends."""
        with self._store.write() as connection:
            connection.execute(delete(workers).where(workers.c.name == self.name))
            _release_orphans(connection)

    def take_run(self, now: float) -> Row[tuple[Any, ...]] | None:
        """Claim the run that has been due longest, or return None if none is due."""
        due = (runs.c.state == "waiting", runs.c.due_at <= now, runs.c.claimed_by.is_(None))
        if not self._is_any(runs, *due):
            return None
        query = select(runs).where(*due).order_by(runs.c.due_at, runs.c.id).limit(1)
        with self._store.write() as connection:
            run = connection.execute(query.with_for_update(skip_locked=True)).one_or_none()
            if run is not None:
                connection.execute(update(runs).where(runs.c.id == run.id).values(claimed_by=self.name))
        return run

    def save_progress(self, connection: Connection, run_id: int, **values: Any) -> None:
        """Store the progress of a claimed run. Raise LeaseLostError, and store nothing, if the claim is lost."""
        mine = (runs.c.id == run_id, runs.c.claimed_by == self.name)
        if connection.execute(update(runs).where(*mine).values(values)).rowcount == 0:
            raise LeaseLostError

    def is_due(self, table: Table, now: float) -> bool:
        """Check whether a post-back or a webhook call, a row of ``table``, is due."""
        return self._is_any(table, table.c.state == "due", table.c.due_at <= now)

    def take_due(
        self, connection: Connection, table: Table, now: float, count: int
    ) -> tuple[str, Sequence[Row[tuple[Any, ...]]]]:
        """Claim the rows of ``table`` that have been due longest, and return them with the claiming name."""
        name = self.name
        query = (
            select(table)
            .where(table.c.state == "due", table.c.due_at <= now)
            .order_by(table.c.due_at)
            .limit(count)
        )
        rows = connection.execute(query.with_for_update(skip_locked=True)).all()
        if rows:
            claim = update(table).where(table.c.id.in_([row.id for row in rows]))
            connection.execute(claim.values(state="taken", claimed_by=name))
        return name, rows

    def _is_any(self, table: Table, *where: Any) -> bool:
        with self._store.read() as connection:
            return connection.execute(select(table.c.id).where(*where).limit(1)).first() is not None


def reserve(connection: Connection, name: str, count: int) -> int:
    """Reserve ``count`` consecutive numbers and return the first. Some may stay unused."""
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(numbers)
    statement = insert.values(name=name, last=count).on_conflict_do_update(
        index_elements=["name"], set_={"last": numbers.c.last + count}
    )
    last: int = connection.execute(statement.returning(numbers.c.last)).scalar_one()
    return last - count + 1


def _release_orphans(connection: Connection) -> None:
    """Release the claims under names that have no lease."""
    for table, state in _WORKED_ON.items():
        # The state restricts the query to the few rows in progress, through an index.
        under_way = table.c.state == ("waiting" if table is runs else "taken")
        orphans = table.c.claimed_by.is_not(None) & table.c.claimed_by.not_in(select(workers.c.name))
        connection.execute(update(table).where(under_way, orphans).values(claimed_by=None, state=state))
