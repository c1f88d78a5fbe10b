"""Forgetting post-backs that were folded: the reports do not need them any more.

On PostgreSQL they lie in a partition for each day, which is dropped in one piece; those that came on a day without a
partition, and all on SQLite, are deleted a few at a time. What is not folded yet, and what is set aside, stays, however
old it is.
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
from sendoff.ledger.schema import post_backs, receivers
from sendoff.ledger.schema import set_aside as set_aside_table

_AT_ONCE = 50_000  # numbers of a receiver that one transaction looks at
_NAME = re.compile(r"post_backs_(before_)?(\d{4})_(\d{2})_(\d{2})")  # of a day, or of all before one
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
    """A part of the table, with the days whose post-backs lie in it."""

    name: str
    first: date
    last: date


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
        present = {each.last for each in self._partitions()}
        return [day for day in wanted if day not in present and self._is_made(day)]

    def ahead(self, now: datetime) -> int | None:
        """Give how many days after today have partitions, up to the first without; None where nothing is kept by day.

        Post-backs of a day without one are stored all the same, and cost more to forget.
        """
        present = {each.last for each in self._partitions()}
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
            if _start(partition.last + timedelta(days=1)) > before:
                break
            fate = self._dropped(partition)
            {True: dropped, False: needed, None: in_use}[fate].append(partition.last)
            if fate is None:
                until = min(until, _start(partition.first))
        # One by one goes what has no partition, and what lies beside something that is needed.
        deleted = sum(self._delete(receiver, folded, until) for receiver, folded in self._folded())
        return Forgotten(tuple(dropped), deleted, tuple(needed), tuple(in_use))

    def _partitions(self) -> list[_Partition]:
        """Give the partitions of a day, and of all that came before the first one, oldest first; none on SQLite."""
        with self._database.read() as connection:
            if connection.dialect.name != "postgresql":
                return []
            names = connection.scalars(
                sa.text(
                    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
                    "WHERE inhparent = 'post_backs'::regclass"
                )
            )
            found = [_NAME.fullmatch(name) for name in names]
        return sorted(map(_partition, filter(None, found)), key=lambda each: each.last)

    def _is_made(self, day: date) -> bool:
        start, end = _start(day), _start(day + timedelta(days=1))
        with self._database.read() as connection:
            # Looked for without a lock: PostgreSQL would look for them while everybody who stores waits.
            if connection.dialect.name != "postgresql" or _has_come(connection, start, end):
                return False
        with self._alone() as connection:
            connection.execute(
                sa.text(
                    f"CREATE TABLE {_name(day)} PARTITION OF post_backs "
                    f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
                )
            )
            return True
        return False

    def _dropped(self, partition: _Partition) -> bool | None:
        """Drop a partition; False where it is needed, None where others use it."""
        with self._database.read() as connection:
            if _is_needed(connection, partition.name):
                return False
        with self._alone() as connection:
            # From here on nobody adds to it: what a receiver held on to for long may be that old.
            connection.execute(sa.text(f"LOCK TABLE {partition.name} IN ACCESS EXCLUSIVE MODE"))
            if _is_needed(connection, partition.name):
                return False
            connection.execute(sa.text(f"DROP TABLE {partition.name}"))
            return True
        return None

    @contextmanager
    def _alone(self) -> Iterator[sa.Connection]:
        """Open a transaction that waits briefly for tables, and ends its block where somebody else has them."""
        with self._database.write() as connection:
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_PATIENCE}'"))
            try:
                with connection.begin_nested():
                    yield connection
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _BUSY + _TAKEN:
                    raise

    def _folded(self) -> list[tuple[int, int]]:
        with self._database.read() as connection:
            rows = connection.execute(sa.select(receivers.c.receiver, receivers.c.folded))
            return [(receiver, folded) for receiver, folded in rows]

    def _delete(self, receiver: int, folded: int, before: datetime) -> int:
        """Delete a receiver's post-backs up to a number, a few in each transaction; those who store wait briefly."""
        deleted = 0
        for first, last in self._ranges(receiver, folded, before):
            with self._database.write() as connection:
                deleted += connection.execute(
                    sa.delete(post_backs).where(
                        post_backs.c.receiver == receiver,
                        post_backs.c.number.between(first, last),
                        post_backs.c.received_at < before,
                        sa.not_(_IS_SET_ASIDE),
                    )
                ).rowcount
        return deleted

    def _ranges(self, receiver: int, folded: int, before: datetime) -> Iterator[tuple[int, int]]:
        own = (
            post_backs.c.receiver == receiver,
            post_backs.c.number <= folded,
            post_backs.c.received_at < before,
        )
        with self._database.read() as connection:
            first, last = connection.execute(
                sa.select(sa.func.min(post_backs.c.number), sa.func.max(post_backs.c.number)).where(*own)
            ).one()
        if first is not None:
            for start in range(first, last + 1, _AT_ONCE):
                yield start, min(start + _AT_ONCE - 1, last)


_IS_SET_ASIDE = (
    sa.exists()
    .where(
        set_aside_table.c.receiver == post_backs.c.receiver,
        post_backs.c.number.between(set_aside_table.c.first, set_aside_table.c.last),
        set_aside_table.c.dispatch_key == post_backs.c.dispatch_key,
    )
    .correlate(post_backs)
)


def _partition(match: re.Match[str]) -> _Partition:
    day = date(*map(int, match.groups()[1:]))
    if match[1]:
        return _Partition(match[0], date.min, day - timedelta(days=1))
    return _Partition(match[0], day, day)


def _is_needed(connection: sa.Connection, partition: str) -> bool:
    part = sa.table(partition, *(sa.column(name) for name in ("receiver", "number", "dispatch_key")))
    # The newest of each receiver, which the primary key tells at once: a join would read the whole partition.
    newest = sa.select(sa.func.max(part.c.number)).where(part.c.receiver == receivers.c.receiver)
    unfolded = sa.select(receivers.c.receiver).where(newest.scalar_subquery() > receivers.c.folded)
    waiting = sa.select(set_aside_table.c.receiver).join(
        part,
        sa.and_(
            part.c.receiver == set_aside_table.c.receiver,
            part.c.number.between(set_aside_table.c.first, set_aside_table.c.last),
            part.c.dispatch_key == set_aside_table.c.dispatch_key,
        ),
    )
    return any(connection.scalar(sa.select(sa.exists(query))) for query in (unfolded, waiting))


def _has_come(connection: sa.Connection, start: datetime, end: datetime) -> bool:
    """Say whether post-backs of a day lie where those without a partition are."""
    rest = sa.table("post_backs_rest", sa.column("received_at", post_backs.c.received_at.type))
    inside = sa.and_(rest.c.received_at >= start, rest.c.received_at < end)
    return bool(connection.scalar(sa.select(sa.exists().where(inside))))


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _name(day: date) -> str:
    return f"post_backs_{day:%Y_%m_%d}"
