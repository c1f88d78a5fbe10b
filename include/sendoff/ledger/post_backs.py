"""Post-backs in the ledger: stored as they arrive, in the order of each receiver's commits, and aggregated later.

Only one receiver process writes under its number, and it commits in order. So the post-backs up to number n never
change. Aggregation remembers n and moves it in the transaction that stores the totals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from sendoff.ledger.bulk import Row
from sendoff.ledger.database import Database
from sendoff.ledger.schema import dispatch_totals, post_backs, receivers
from sendoff.service import PostBack
from sendoff.states import PostBackKind

OPEN, READABLE, SCRUBBED = 1, 2, 4
"""The bits of the column ``what`` that aggregation reads. One number costs less than a text and a flag.

A post-back is scrubbed if it named a person who was erased since.
"""

_WHAT = sa.cast(
    sa.case((post_backs.c.readable, READABLE), else_=0)
    + sa.case((post_backs.c.kind == PostBackKind.OPEN, OPEN), else_=0)
    + sa.case((sa.and_(post_backs.c.readable, sa.func.length(post_backs.c.body) == 0), SCRUBBED), else_=0),
    sa.SmallInteger,
)
_COLUMNS = (
    _WHAT.label("what"),
    post_backs.c.number,
    post_backs.c.dispatch_key,
    post_backs.c.received_at,
    post_backs.c.campaign_id,
)


@dataclass(frozen=True, slots=True)
class Parked:
    """Post-backs of one dispatch, from a run of one receiver, that cannot be checked against the dispatch yet."""

    receiver: int
    first: int  # the range of their numbers; other dispatches' post-backs may lie between
    last: int
    dispatch_key: str
    post_backs: int
    newest_at: datetime


class PendingRun(NamedTuple):
    """One receiver's post-backs that are stored and not yet aggregated."""

    receiver: int
    after: int  # number of the last aggregated post-back
    newest: int


class Reception(NamedTuple):
    """How many receivers ever started, and when any of them received its newest post-back."""

    receivers: int
    newest_at: datetime | None


class PostBacks:
    """The post-backs of a ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register_receiver(self, name: str, now: datetime) -> int:
        """Register a receiver process and return its number. Under it, the process numbers its post-backs from 1."""
        row = {"name": name, "started_at": now, "aggregated_to": 0}
        with self._database.write() as db:
            return int(db.execute(sa.insert(receivers).returning(receivers.c.receiver), row).scalar_one())

    def is_registered(self, receiver: int, name: str, started_at: datetime) -> bool:
        """Check whether ``register_receiver`` assigned this number to this process at this time."""
        query = sa.select(receivers.c.name, receivers.c.started_at).where(receivers.c.receiver == receiver)
        with self._database.read() as db:
            return db.execute(query).one_or_none() == (name, started_at)

    def check(self) -> None:
        """Raise LedgerUnavailableError or UnusableLedgerError if post-backs cannot be stored."""
        self._database.ping(receivers, post_backs)

    def store(self, receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> None:
        """Store post-backs in one transaction. They are durable when this returns.

        Numbers that are already stored are skipped, so a commit whose reply was lost can be repeated.
        """
        self._database.append(
            post_backs, [_row(receiver, number, post_back) for number, post_back in numbered]
        )

    def pending(self) -> list[PendingRun]:
        """Return the pending run of each receiver that has one."""
        newest = (
            sa.select(sa.func.max(post_backs.c.number))
            .where(post_backs.c.receiver == receivers.c.receiver)
            .scalar_subquery()
        )
        query = sa.select(receivers.c.receiver, receivers.c.aggregated_to, newest).where(
            newest > receivers.c.aggregated_to
        )
        with self._database.read() as db:
            return [PendingRun(*row) for row in db.execute(query)]

    def aggregated_to(self, receiver: int) -> int:
        """Return the number of a receiver's last aggregated post-back."""
        query = sa.select(receivers.c.aggregated_to).where(receivers.c.receiver == receiver)
        with self._database.read() as db:
            return int(db.execute(query).scalar_one())

    def read(
        self, receiver: int, *, after: int, up_to: int, named_by: Collection[str]
    ) -> AbstractContextManager[Iterator[pa.RecordBatch]]:
        """Read one receiver's post-backs with numbers above ``after`` up to ``up_to``, as batches in any order.

        The columns are those that aggregation always reads, and the ones in ``named_by``.
        """
        query = _read(named_by).where(
            post_backs.c.receiver == receiver, post_backs.c.number > after, post_backs.c.number <= up_to
        )
        return self._database.arrow(query, is_large=up_to - after >= _LARGE)

    @contextmanager
    def read_parked(
        self, parked: Sequence[Parked], *, named_by: Collection[str]
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Read one receiver's parked post-backs as :meth:`read` does; each dispatch may be parked only once."""
        first, last = (
            min(post_back.first for post_back in parked),
            max(post_back.last for post_back in parked),
        )
        query = _read(named_by).where(
            post_backs.c.receiver == parked[0].receiver, post_backs.c.number.between(first, last)
        )
        rows = last - first + 1
        if len(parked) <= _KEYS_AT_ONCE:  # one query takes no more keys; otherwise read the whole range
            query = query.where(
                post_backs.c.dispatch_key.in_([post_back.dispatch_key for post_back in parked])
            )
            rows = sum(post_back.post_backs for post_back in parked)
        with self._database.arrow(query, is_large=rows >= _LARGE) as batches:
            yield _only(batches, parked)

    def find_parked(
        self, receiver: int, *, after: int, up_to: int, dispatch_keys: Collection[str]
    ) -> list[Parked]:
        """Return the post-backs of some dispatches, from the range that :meth:`read` takes, as parked."""
        query = sa.select(
            post_backs.c.receiver,
            sa.func.min(post_backs.c.number),
            sa.func.max(post_backs.c.number),
            post_backs.c.dispatch_key,
            sa.func.count(),
            sa.func.max(post_backs.c.received_at),
        ).where(post_backs.c.receiver == receiver, post_backs.c.number > after, post_backs.c.number <= up_to)
        with self._database.read() as db:
            return [
                Parked(*row)
                for keys in chunked(dispatch_keys)
                for row in db.execute(
                    query.where(post_backs.c.dispatch_key.in_(keys)).group_by(
                        post_backs.c.receiver, post_backs.c.dispatch_key
                    )
                )
            ]

    def reception(self) -> Reception:
        """Return how many receivers started, and when the newest post-back was received."""
        numbered = post_backs.alias("numbered")
        newest = (
            sa.select(sa.func.max(numbered.c.number))
            .where(numbered.c.receiver == receivers.c.receiver)
            .scalar_subquery()
        )
        query = sa.select(sa.func.count(), sa.func.max(post_backs.c.received_at)).select_from(
            receivers.outerjoin(
                post_backs,
                sa.and_(post_backs.c.receiver == receivers.c.receiver, post_backs.c.number == newest),
            )
        )
        with self._database.read() as db:
            count, newest_at = db.execute(query).one()
            if count and newest_at is None:  # it was deleted after aggregation, which kept its time
                newest_at = db.scalar(sa.select(sa.func.max(dispatch_totals.c.newest_at)))
        return Reception(count, newest_at)


_LARGE = 5_000  # post-backs that justify a separate connection
_KEYS_AT_ONCE = 5_000  # dispatch keys in one query


def chunked(dispatch_keys: Iterable[str], size: int = _KEYS_AT_ONCE) -> Iterator[list[str]]:
    """Yield dispatch keys in order, in lists that fit into one query."""
    keys = sorted(dispatch_keys)
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def _read(named_by: Collection[str]) -> sa.Select[Any]:
    return sa.select(*_COLUMNS, *(post_backs.c[name] for name in sorted(named_by)))


def _only(batches: Iterable[pa.RecordBatch], parked: Sequence[Parked]) -> Iterator[pa.RecordBatch]:
    """Keep only the parked post-backs. Aggregated ones of the same dispatches may lie between them."""
    keys = pa.array([post_back.dispatch_key for post_back in parked], pa.string())
    firsts = np.array([post_back.first for post_back in parked])
    lasts = np.array([post_back.last for post_back in parked])
    for batch in batches:
        indices = pc.index_in(batch["dispatch_key"], value_set=keys)
        of, numbers = pc.fill_null(indices, 0).to_numpy(), batch["number"].to_numpy()
        is_parked = indices.is_valid().to_numpy(zero_copy_only=False)
        is_parked &= (firsts[of] <= numbers) & (numbers <= lasts[of])
        if is_parked.any():
            yield batch.filter(pa.array(is_parked))


def _row(receiver: int, number: int, post_back: PostBack) -> Row:
    """Return the values of a post-back in the order of the table's columns."""
    what = (receiver, number, post_back.kind, post_back.dispatch_key, post_back.received_at)
    if (fields := post_back.fields) is None:
        return (*what, None, None, None, None, None, None, False, post_back.body)
    return (
        *what,
        fields.time,
        fields.device_id,
        fields.profile_id,
        fields.user_id,
        fields.send_id,
        fields.campaign_id,
        True,
        post_back.body,
    )
