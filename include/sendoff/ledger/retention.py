"""Forgetting post-backs that were aggregated: the reports do not need them any more.

On PostgreSQL they lie in a partition for each day, which is dropped in one piece; those that came on a day without a
partition, and all on SQLite, are deleted a few at a time. What is not aggregated yet, and what is parked, stays,
however old it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import count

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.ledger.database import Database
from sendoff.ledger.schema import parked_post_backs, post_backs, receivers

_AT_ONCE = 50_000  # numbers of a receiver that one transaction looks at
_NAME = re.compile(r"post_backs_(\d{4})_(\d{2})_(\d{2})")  # of a day
_PATIENCE = "3s"  # for which a partition is waited for; receivers wait as long, and lose nothing
_BUSY = ("55P03", "40P01")  # lock_not_available, deadlock_detected
_TAKEN = ("23514", "42P07", "42P17")  # that day lies elsewhere already, or another process was faster


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was forgotten, and what was not: days that hold post-backs which are still needed, or that were in use."""

    days: tuple[date, ...]  # whose partitions were dropped
    post_backs: int  # that were deleted one by one
    needed: tuple[date, ...]
    in_use: tuple[date, ...]


@dataclass(frozen=True, slots=True)
class _Partition:
    """The part of the table that holds the post-backs of one day."""

    name: str
    day: date


class Retention:
    """The days of a ledger's post-backs. Only the owner of the tables may add and forget them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def prepare(self, now: datetime, days: int = 7) -> list[date]:
        """Make the partitions of today and the days after, and give those that are new; none on SQLite.

        A day whose post-backs have come already gets none: they stay where they are.
        """
        today = now.astimezone(UTC).date()
        wanted = [today + timedelta(days=number) for number in range(days)]
        present = {partition.day for partition in self._partitions()}
        return [day for day in wanted if day not in present and self._is_made(day)]

    def ahead(self, now: datetime) -> int | None:
        """Return how many days after today have partitions, up to the first without; None where nothing is kept by day.

        Post-backs of a day without one are stored all the same, and cost more to forget.
        """
        present = {partition.day for partition in self._partitions()}
        if not present:
            return None
        today = now.astimezone(UTC).date()
        return next(days for days in count() if today + timedelta(days=days + 1) not in present)

    def forget(self, before: datetime) -> Forgotten:
        """Forget the post-backs that were received before a moment and that no report needs any more."""
        dropped: list[date] = []
        needed: list[date] = []
        in_use: list[date] = []
        until = before
        for partition in self._partitions():
            if _start(partition.day + timedelta(days=1)) > before:
                break
            was_dropped = self._dropped(partition)
            {True: dropped, False: needed, None: in_use}[was_dropped].append(partition.day)
            if was_dropped is None:
                until = min(until, _start(partition.day))
        # One by one goes what has no partition, and what lies beside something that is needed.
        deleted = sum(self._delete(receiver, mark, until) for receiver, mark in self._marks())
        return Forgotten(tuple(dropped), deleted, tuple(needed), tuple(in_use))

    def _partitions(self) -> list[_Partition]:
        """Return the partitions, the oldest day first; none on SQLite."""
        with self._database.read() as db:
            if db.dialect.name != "postgresql":
                return []
            names = db.scalars(
                sa.text(
                    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
                    "WHERE inhparent = 'post_backs'::regclass"
                )
            )
            matches = [_NAME.fullmatch(name) for name in names]
        partitions = (_Partition(match[0], date(*map(int, match.groups()))) for match in matches if match)
        return sorted(partitions, key=lambda partition: partition.day)

    def _is_made(self, day: date) -> bool:
        start, end = _start(day), _start(day + timedelta(days=1))
        with self._database.read() as db:
            # Looked for without a lock: PostgreSQL would look for them while everybody who stores waits.
            if db.dialect.name != "postgresql" or _has_come(db, start, end):
                return False
        with self._alone() as db:
            db.execute(
                sa.text(
                    f"CREATE TABLE {_name(day)} PARTITION OF post_backs "
                    f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
                )
            )
            return True
        return False

    def _dropped(self, partition: _Partition) -> bool | None:
        """Drop a partition; False where it is needed, None where others use it."""
        with self._database.read() as db:
            if _is_needed(db, partition.name):
                return False
        with self._alone() as db:
            # From here on nobody adds to it: what a receiver held on to for long may be that old.
            db.execute(sa.text(f"LOCK TABLE {partition.name} IN ACCESS EXCLUSIVE MODE"))
            if _is_needed(db, partition.name):
                return False
            db.execute(sa.text(f"DROP TABLE {partition.name}"))
            return True
        return None

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        """Open a transaction that waits briefly for tables, and ends its block where somebody else has them."""
        with self._database.write() as db:
            db.execute(sa.text(f"SET LOCAL lock_timeout = '{_PATIENCE}'"))
            try:
                with db.begin_nested():
                    yield db
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _BUSY + _TAKEN:
                    raise

    def _marks(self) -> list[tuple[int, int]]:
        with self._database.read() as db:
            rows = db.execute(sa.select(receivers.c.receiver, receivers.c.aggregated_to))
            return [(receiver, mark) for receiver, mark in rows]

    def _delete(self, receiver: int, mark: int, before: datetime) -> int:
        """Delete a receiver's post-backs up to a number, a few in each transaction; those who store wait briefly."""
        deleted = 0
        for first, last in self._ranges(receiver, mark, before):
            with self._database.write() as db:
                deleted += db.execute(
                    sa.delete(post_backs).where(
                        post_backs.c.receiver == receiver,
                        post_backs.c.number.between(first, last),
                        post_backs.c.received_at < before,
                        sa.not_(_IS_PARKED),
                    )
                ).rowcount
        return deleted

    def _ranges(self, receiver: int, mark: int, before: datetime) -> Iterator[tuple[int, int]]:
        own = (
            post_backs.c.receiver == receiver,
            post_backs.c.number <= mark,
            post_backs.c.received_at < before,
        )
        with self._database.read() as db:
            first, last = db.execute(
                sa.select(sa.func.min(post_backs.c.number), sa.func.max(post_backs.c.number)).where(*own)
            ).one()
        if first is not None:
            for start in range(first, last + 1, _AT_ONCE):
                yield start, min(start + _AT_ONCE - 1, last)


_IS_PARKED = (
    sa.exists()
    .where(
        parked_post_backs.c.receiver == post_backs.c.receiver,
        post_backs.c.number.between(parked_post_backs.c.first, parked_post_backs.c.last),
        parked_post_backs.c.dispatch_key == post_backs.c.dispatch_key,
    )
    .correlate(post_backs)
)


def _is_needed(db: sa.Connection, partition: str) -> bool:
    partition_table = sa.table(
        partition, *(sa.column(name) for name in ("receiver", "number", "dispatch_key"))
    )
    # The newest of each receiver, which the primary key tells at once: a join would read the whole partition.
    newest = sa.select(sa.func.max(partition_table.c.number)).where(
        partition_table.c.receiver == receivers.c.receiver
    )
    pending = sa.select(receivers.c.receiver).where(newest.scalar_subquery() > receivers.c.aggregated_to)
    parked = sa.select(parked_post_backs.c.receiver).join(
        partition_table,
        sa.and_(
            partition_table.c.receiver == parked_post_backs.c.receiver,
            partition_table.c.number.between(parked_post_backs.c.first, parked_post_backs.c.last),
            partition_table.c.dispatch_key == parked_post_backs.c.dispatch_key,
        ),
    )
    return any(db.scalar(sa.select(sa.exists(query))) for query in (pending, parked))


def _has_come(db: sa.Connection, start: datetime, end: datetime) -> bool:
    """Check whether post-backs of a day lie where those without a partition are."""
    rest = sa.table("post_backs_rest", sa.column("received_at", post_backs.c.received_at.type))
    inside = sa.and_(rest.c.received_at >= start, rest.c.received_at < end)
    return bool(db.scalar(sa.select(sa.exists().where(inside))))


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _name(day: date) -> str:
    return f"post_backs_{day:%Y_%m_%d}"
