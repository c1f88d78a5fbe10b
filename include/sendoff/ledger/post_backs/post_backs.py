"""Post-backs in the ledger: stored as they arrive, in the order of each receiver's commits, and aggregated later.

Each commit is a block, as :mod:`~sendoff.ledger.post_backs.blocks` describes. A commit whose reply was lost is
repeated with the same numbers. So a number may be in two blocks. It is the same post-back in both, and
reading returns it once.

Only one receiver process writes under its number, and it commits in order. So the post-backs up to number n never
change. Aggregation remembers n and moves it in the transaction that stores the totals.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyroaring import BitMap64

from sendoff.ledger.post_backs.block_batches import as_batch
from sendoff.ledger.post_backs.blocks import BlockSelection, blocks_of
from sendoff.ledger.storage.bulk import ahead, weighed
from sendoff.ledger.storage.database import Database, LedgerPart
from sendoff.ledger.storage.schema import dispatch_totals, post_backs, receivers
from sendoff.service import PostBack


@dataclass(frozen=True, slots=True)
class Parked:
    """Post-backs of one dispatch and day, from a run of one receiver, that cannot be checked yet."""

    receiver: int
    first: int  # the range of their numbers; other dispatches' post-backs may lie between
    last: int
    dispatch_key: str
    post_backs: int
    newest_at: datetime

    def __or__(self, other: Parked) -> Parked:
        """Join the parked post-backs of the same receiver, dispatch and day."""
        return Parked(
            self.receiver,
            min(self.first, other.first),
            max(self.last, other.last),
            self.dispatch_key,
            self.post_backs + other.post_backs,
            max(self.newest_at, other.newest_at),
        )


class PendingRun(NamedTuple):
    """One receiver's post-backs that are stored and not yet aggregated."""

    receiver: int
    after: int  # number of the last aggregated post-back
    newest: int


class Reception(NamedTuple):
    """How many receivers ever started, and when any of them received its newest post-back."""

    receivers: int
    newest_at: datetime | None


class StoredPostBacks(LedgerPart):
    """The post-backs of a ledger."""

    def register_receiver(self, name: str, now: datetime) -> int:
        """Register a receiver process and return its number. Under it, the process numbers its post-backs from 1."""
        row = {"name": name, "started_at": now, "aggregated_to": 0}
        with self._database.write() as db:
            return int(db.execute(sa.insert(receivers).returning(receivers.c.receiver), row).scalar_one())

    def is_registered(self, receiver: int, name: str, started_at: datetime) -> bool:
        """Check whether ``register_receiver`` assigned this number to this process at this time."""
        query = sa.select(receivers.c.name, receivers.c.started_at).where(receivers.c.receiver == receiver)
        return bool(self._database.first(query) == (name, started_at))

    def check(self) -> None:
        """Raise LedgerUnavailableError or UnusableLedgerError if post-backs cannot be stored."""
        self._database.ping(receivers, post_backs)

    def store(self, receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> None:
        """Store post-backs in one transaction. They are durable when this returns.

        A commit whose reply was lost can be repeated, also as a part of a larger one: each number is read once.
        """
        self._database.append(post_backs, list(blocks_of(receiver, numbered)))

    def pending(self) -> list[PendingRun]:
        """Return the pending run of each receiver that has one."""
        return [PendingRun(*row) for row in self._database.rows(_PENDING)]

    @contextmanager
    def read(
        self, runs: Iterable[PendingRun], *, named_by: Collection[str]
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Read the post-backs of runs as batches.

        The columns are those that aggregation always reads, and the ones in ``named_by``.
        """
        with closing(_batches(self._database, runs, named_by)) as batches:
            yield batches

    @contextmanager
    def read_parked(
        self, parked: Sequence[Parked], *, named_by: Collection[str]
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Read one receiver's parked post-backs as :meth:`read` does; each dispatch may be parked only once."""
        first = min(post_back.first for post_back in parked)
        last = max(post_back.last for post_back in parked)
        run = PendingRun(parked[0].receiver, first - 1, last)
        with self.read([run], named_by=named_by) as batches:
            yield _only(batches, parked)

    def reception(self) -> Reception:
        """Return how many receivers started, and when the newest post-back was received."""
        is_newest = sa.and_(post_backs.c.receiver == receivers.c.receiver, post_backs.c.last == _newest)
        query = sa.select(sa.func.count(), sa.func.max(post_backs.c.received_at)).select_from(
            receivers.outerjoin(post_backs, is_newest)
        )
        with self._database.read() as db:
            count, newest_at = db.execute(query).one()
            if count and newest_at is None:  # it was deleted after aggregation, which kept its time
                newest_at = db.scalar(sa.select(sa.func.max(dispatch_totals.c.newest_at)))
        return Reception(count, newest_at)


_numbered = post_backs.alias("numbered")
_newest = (
    sa.select(sa.func.max(_numbered.c.last))
    .where(_numbered.c.receiver == receivers.c.receiver)
    .scalar_subquery()
)
_PENDING = sa.select(receivers.c.receiver, receivers.c.aggregated_to, _newest).where(
    _newest > receivers.c.aggregated_to
)
_LARGE = 5_000  # post-backs that justify a separate connection
_GROUP_BYTES = 3 << 19  # of blocks that are read together; about 80,000 post-backs
_GROUP_BLOCKS = 2_000


def stored_runs(database: Database) -> list[PendingRun]:
    """Return the range of the stored post-backs of each receiver that has some, whether aggregated or not."""
    query = sa.select(
        post_backs.c.receiver, sa.func.min(post_backs.c.first) - 1, sa.func.max(post_backs.c.last)
    ).group_by(post_backs.c.receiver)
    return [PendingRun(*row) for row in database.rows(query.order_by(post_backs.c.receiver))]


def parts_of(database: Database, run: PendingRun) -> Generator[BlockSelection]:
    """Yield the blocks of a run, each with the numbers of the post-backs that are in the run and in no block before."""
    receiver, after, up_to = run
    query = (
        sa.select(post_backs.c.first, post_backs.c.last, post_backs.c.block)
        .where(post_backs.c.receiver == receiver, post_backs.c.last > after, post_backs.c.first <= up_to)
        .order_by(post_backs.c.last, post_backs.c.first)
    )
    seen, highest = BitMap64(), after
    with database.arrow(query, is_large=up_to - after >= _LARGE) as batches:
        for batch in batches:
            for first, last, block in zip(*(column.to_pylist() for column in batch), strict=True):
                wanted = None
                if first <= highest or last > up_to:
                    wanted = frozenset(BitMap64(range(max(first, after + 1), min(last, up_to) + 1)) - seen)
                if wanted is None or wanted:
                    yield BlockSelection(receiver, first, block, wanted)
                seen.add_range(first, last + 1)
                highest = max(highest, last)


def grouped(parts: Iterable[BlockSelection]) -> Iterator[list[BlockSelection]]:
    """Yield blocks in groups that fit into memory as one batch."""
    return weighed(parts, lambda part: len(part.block), most=_GROUP_BLOCKS, heavy=_GROUP_BYTES)


def _batches(
    database: Database, runs: Iterable[PendingRun], named_by: Collection[str]
) -> Generator[pa.RecordBatch]:
    def parts() -> Generator[BlockSelection]:
        for run in runs:
            yield from parts_of(database, run)

    # Reading blocks needs as much processor time as counting, and mostly not in Python.
    with (
        closing(parts()) as of_runs,
        closing(ahead(as_batch(each, named_by) for each in grouped(of_runs))) as them,
    ):
        yield from them


def _only(batches: Iterable[pa.RecordBatch], parked: Sequence[Parked]) -> Iterator[pa.RecordBatch]:
    """Keep only the parked post-backs. Aggregated ones of the same dispatches may lie between them."""
    keys = pa.array([post_back.dispatch_key for post_back in parked], pa.string())
    firsts = np.array([post_back.first for post_back in parked])
    lasts = np.array([post_back.last for post_back in parked])
    for batch in batches:
        encoded = batch["dispatch_key"]
        indices = pc.index_in(encoded.dictionary, value_set=keys).take(encoded.indices)
        of, numbers = pc.fill_null(indices, 0).to_numpy(), batch["number"].to_numpy()
        is_parked = indices.is_valid().to_numpy(zero_copy_only=False)
        is_parked &= (firsts[of] <= numbers) & (numbers <= lasts[of])
        if is_parked.any():
            yield batch.filter(pa.array(is_parked))
