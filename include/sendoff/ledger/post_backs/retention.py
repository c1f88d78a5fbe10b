"""Deletion of aggregated post-backs that reports no longer need.

On PostgreSQL each day has a partition, which is dropped as a whole. Post-backs of days without a partition, and all
post-backs on SQLite, are deleted in small batches. Post-backs that are parked or not aggregated yet stay, however old
they are. A parked post-back can also keep other blocks of its day.
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

from sendoff.ledger.storage.database import LedgerPart
from sendoff.ledger.storage.schema import parked_post_backs, post_backs, receivers

_AT_ONCE = 50_000  # numbers of a receiver per transaction
_NAME = re.compile(r"post_backs_(\d{4})_(\d{2})_(\d{2})")  # name of a day's partition
_PATIENCE = "3s"  # maximum wait for a partition; receivers wait that long too, and lose nothing
_BUSY = ("55P03", "40P01")  # lock_not_available, deadlock_detected
_TAKEN = ("23514", "42P07", "42P17")  # the day's rows are in another table, or another process was faster


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a deletion. It lists the days that stay because they are needed or in use."""

    days: tuple[date, ...]  # days whose partitions were dropped
    post_backs: int  # in blocks that were deleted one by one
    needed: tuple[date, ...]
    in_use: tuple[date, ...]


class Retention(LedgerPart):
    """Partitions and deletion of a ledger's post-backs. Only the owner of the tables may create and drop partitions."""

    def prepare(self, now: datetime, days: int = 7) -> list[date]:
        """Create the partitions of today and the following days, and return the new ones; none on SQLite.

        A day that already has post-backs gets no partition; they stay where they are.
        """
        today = now.astimezone(UTC).date()
        wanted = [today + timedelta(days=number) for number in range(days)]
        present = set(self._days())
        return [day for day in wanted if day not in present and self._is_made(day)]

    def ahead(self, now: datetime) -> int | None:
        """Return how many days after today have partitions without a gap; None if the ledger has no partitions.

        Post-backs of days without a partition are stored too, but deleting them costs more.
        """
        present = set(self._days())
        if not present:
            return None
        today = now.astimezone(UTC).date()
        return next(days for days in count() if today + timedelta(days=days + 1) not in present)

    def delete_before(self, moment: datetime) -> Deleted:
        """Delete the post-backs that were received before a moment and that no report needs."""
        dropped: list[date] = []
        needed: list[date] = []
        in_use: list[date] = []
        until = moment
        for day in self._days():
            if _start(day + timedelta(days=1)) > moment:
                break
            was_dropped = self._dropped(day)
            {True: dropped, False: needed, None: in_use}[was_dropped].append(day)
            if was_dropped is None:
                until = min(until, _start(day))
        # Delete the rest row by row: post-backs without a partition, and those beside post-backs that are needed.
        marks = self._database.rows(sa.select(receivers.c.receiver, receivers.c.aggregated_to))
        deleted = sum(self._delete(receiver, mark, until) for receiver, mark in marks)
        return Deleted(tuple(dropped), deleted, tuple(needed), tuple(in_use))

    def _days(self) -> list[date]:
        """Return the days that have a partition, oldest first; none on SQLite."""
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
        return sorted(date(*map(int, match.groups())) for match in matches if match)

    def _is_made(self, day: date) -> bool:
        start, end = _start(day), _start(day + timedelta(days=1))
        with self._database.read() as db:
            # Check without a lock first: CREATE TABLE would check while everyone who stores post-backs waits.
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

    def _dropped(self, day: date) -> bool | None:
        """Drop the partition of a day. Return False if it is needed, and None if it is in use."""
        partition = _name(day)
        with self._database.read() as db:
            if _is_needed(db, partition):
                return False
        with self._alone() as db:
            # From here on nothing is added. A receiver may store a post-back late, so check again.
            db.execute(sa.text(f"LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE"))
            if _is_needed(db, partition):
                return False
            db.execute(sa.text(f"DROP TABLE {partition}"))
            return True
        return None

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        """Open a transaction that waits only briefly for tables. End its block if another process holds them."""
        with self._database.write() as db:
            db.execute(sa.text(f"SET LOCAL lock_timeout = '{_PATIENCE}'"))
            try:
                with db.begin_nested():
                    yield db
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _BUSY + _TAKEN:
                    raise

    def _delete(self, receiver: int, mark: int, before: datetime) -> int:
        """Delete a receiver's post-backs up to a number, in batches, so that writers wait only briefly."""
        deleted = 0
        for first, last in self._ranges(receiver, mark, before):
            with self._database.write() as db:
                blocks = db.execute(
                    sa.delete(post_backs)
                    .where(
                        post_backs.c.receiver == receiver,
                        post_backs.c.last.between(first, last),
                        post_backs.c.received_at < before,
                        sa.not_(_IS_PARKED),
                    )
                    .returning(post_backs.c.first, post_backs.c.last)
                )
                deleted += sum(block.last - block.first + 1 for block in blocks)
        return deleted

    def _ranges(self, receiver: int, mark: int, before: datetime) -> Iterator[tuple[int, int]]:
        own = (
            post_backs.c.receiver == receiver,
            post_backs.c.last <= mark,
            post_backs.c.received_at < before,
        )
        bounds = sa.select(sa.func.min(post_backs.c.last), sa.func.max(post_backs.c.last))
        first, last = self._database.one(bounds.where(*own))
        if first is not None:
            for start in range(first, last + 1, _AT_ONCE):
                yield start, min(start + _AT_ONCE - 1, last)


_IS_PARKED = (
    sa.exists()
    .where(
        parked_post_backs.c.receiver == post_backs.c.receiver,
        post_backs.c.first <= parked_post_backs.c.last,
        post_backs.c.last >= parked_post_backs.c.first,
    )
    .correlate(post_backs)
)


def _is_needed(db: sa.Connection, partition: str) -> bool:
    partition_table = sa.table(partition, *(sa.column(name) for name in ("receiver", "first", "last")))
    # The newest number of each receiver, which the primary key finds. A join would read the whole partition.
    newest = sa.select(sa.func.max(partition_table.c.last)).where(
        partition_table.c.receiver == receivers.c.receiver
    )
    pending = sa.select(receivers.c.receiver).where(newest.scalar_subquery() > receivers.c.aggregated_to)
    parked = sa.select(parked_post_backs.c.receiver).join(
        partition_table,
        sa.and_(
            partition_table.c.receiver == parked_post_backs.c.receiver,
            partition_table.c.first <= parked_post_backs.c.last,
            partition_table.c.last >= parked_post_backs.c.first,
        ),
    )
    return any(db.scalar(sa.select(sa.exists(query))) for query in (pending, parked))


def _has_come(db: sa.Connection, start: datetime, end: datetime) -> bool:
    """Check whether the table of post-backs without a partition has rows of a day."""
    rest = sa.table("post_backs_rest", sa.column("received_at", post_backs.c.received_at.type))
    inside = sa.and_(rest.c.received_at >= start, rest.c.received_at < end)
    return bool(db.scalar(sa.select(sa.exists().where(inside))))


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _name(day: date) -> str:
    return f"post_backs_{day:%Y_%m_%d}"
