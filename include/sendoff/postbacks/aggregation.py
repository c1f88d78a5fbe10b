"""Aggregation: add new post-backs to the totals of their dispatches, each exactly once.

A run has post-backs of all receivers. It is read in batches, counted by a
:class:`~sendoff.postbacks.batch_totals.BatchTotals`, and stored in one transaction together with its end marks. The
sets do not depend on the receivers, order, or repetition of post-backs. Only the suspected opens do: see
:mod:`~sendoff.postbacks.machine_opens`.

A post-back is parked and added later if it cannot be checked yet. There are two cases. The ledger may not have its
dispatch, for example after a backup was restored. Or a request is in flight, and its reply will contain the campaign ID
that reveals forgeries; no reply is awaited beyond the worker's lease.

Post-backs count as genuine if there is no reply, or if an earlier attempt may have created a campaign with another ID.
They are then the only evidence, and only someone with a signed address could forge one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from sendoff.ledger import Ledger, Parked, PendingRun
from sendoff.postbacks.batch_totals import BatchTotals
from sendoff.postbacks.recipient_index import RecipientIndex
from sendoff.service import MATCHED_BY
from sendoff.settings import load_settings
from sendoff.telemetry import metrics

_log = logging.getLogger(__name__)

_RUN = 16_000_000
"""Post-backs added in one transaction. They are read in batches; until it ends, only bitmaps stay in memory."""

_TOGETHER = 5_000  # parked post-backs per transaction, unless they are too far apart
_SPAN = 50_000  # maximum range of numbers to read for them

# Post-backs to look up in texts at a time, because each look-up takes a step per dispatch.
_TEXT_ROWS = 1 << 19


def aggregate(ledger: Ledger, *, run: int = _RUN, now: datetime | None = None) -> int:
    """Add every new post-back to the totals of its dispatch, resolve doubts, and return how many were added.

    This may be stopped at any moment and run by several processes at once: each run is stored in one transaction
    together with its end marks.
    """
    moment = now or datetime.now(UTC)
    runs, added = _Runs(ledger), 0
    pending = ledger.post_backs.pending()
    newest = {each.receiver: each.newest for each in pending}
    while some := list(_within(pending, newest, run)):
        added += runs.add(some)
        pending = ledger.post_backs.pending()  # another process may have added some of them
    for parked in _gathered(ledger.aggregates.parked()):
        added += runs.add_parked(parked)
    metrics.aggregated(added)
    # Also do this if nothing was new: a dispatch may go into doubt after its evidence came.
    if resolved := ledger.aggregates.resolve_doubts(moment):
        _log.info("%d dispatches in doubt are accepted: they have post-backs", resolved)
    return added


def _within(pending: Iterable[PendingRun], newest: Mapping[int, int], most: int) -> Iterator[PendingRun]:
    """Yield what to add in one transaction, and nothing that came after the start."""
    for receiver, after, last in pending:
        up_to = min(last, newest.get(receiver, after), after + most)
        if up_to > after:
            yield PendingRun(receiver, after, up_to)
            most -= up_to - after


class _Runs:
    """Reads runs of post-backs and their dispatches' contexts, and stores the totals."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._erased = ledger.erasures.people()
        self._index = RecipientIndex(ledger.aggregates.sent_to)
        self._seconds = load_settings(["machine_open_seconds"]).machine_open_seconds

    def add(self, runs: Sequence[PendingRun]) -> int:
        """Add post-backs and return how many.

        Add none if another process added some of them first, or if people were erased meanwhile.
        """
        named_by = self._named_by()
        with self._ledger.post_backs.read(runs, named_by=named_by) as batches:
            totals = self._total(batches, named_by)
        if totals.has_unreadable and self._erased.by_column:
            for run in runs:
                totals.note_erased(run.receiver, self._ledger.erasures.in_unreadable(self._erased, run))
        parked = totals.parked()
        if orphans := sum(each.post_backs for each in parked if each.dispatch_key not in totals.contexts):
            _log.warning("%d post-backs are parked: the ledger does not have their dispatches", orphans)
        return totals.post_backs if self._ledger.aggregates.store_run(totals.as_run(runs, parked)) else 0

    def add_parked(self, parked: Sequence[Parked]) -> int:
        """Add parked post-backs that can be checked by now, and return how many."""
        named_by = self._named_by()
        with self._ledger.post_backs.read_parked(parked, named_by=named_by) as batches:
            totals = self._total(batches, named_by)
        waiting = set(totals.waiting())
        ready = [each for each in parked if each.dispatch_key not in waiting]
        if not ready:
            return 0
        return totals.post_backs if self._ledger.aggregates.store_parked(ready, totals.as_run()) else 0

    def _total(self, batches: Iterable[pa.RecordBatch], named_by: Collection[str]) -> BatchTotals:
        if self._index.is_full():  # too large to keep for the next run
            self._index = RecipientIndex(self._ledger.aggregates.sent_to)
        totals = BatchTotals(self._index, named_by, self._erased, self._seconds)
        for batch in _blocks(batches):
            codes = totals.codes(batch)
            if new := totals.new(codes):
                totals.load(new, self._ledger.aggregates.contexts(new))
            totals.add(codes, batch)
        if totals.ignored:
            _log.info("%d post-backs are too late to count: their recipients were deleted", totals.ignored)
        return totals

    def _named_by(self) -> set[str]:
        """Follow erasures, and return the members of post-backs that can identify a recipient, or who was erased."""
        self._follow_erasures()
        erased = {identified_by for identified_by, _ in self._erased.by_column}
        used = erased.union(self._ledger.aggregates.identified_by())
        return {MATCHED_BY[name] for name in used if name in MATCHED_BY}

    def _follow_erasures(self) -> None:
        """Read the erased people, and the recipients of dispatches, again if someone was erased."""
        if self._ledger.erasures.version() != self._erased.version:
            self._erased = self._ledger.erasures.people()
            self._index = RecipientIndex(self._ledger.aggregates.sent_to)


def _gathered(parked: Iterable[Parked]) -> Iterator[list[Parked]]:
    """Group parked post-backs of one receiver that are close together, with each dispatch once per group."""
    ordered = sorted(parked, key=attrgetter("receiver", "first"))
    for _, of_receiver in groupby(ordered, key=attrgetter("receiver")):
        together: list[Parked] = []
        keys: set[str] = set()
        post_backs = last = 0
        for each in of_receiver:
            is_enough = post_backs >= _TOGETHER or (together and each.last - together[0].first >= _SPAN)
            # Overlapping ones are from one run; separate groups would read its post-backs again and again.
            if (is_enough and each.first > last) or each.dispatch_key in keys:
                yield together
                together, keys, post_backs, last = [], set(), 0, 0
            together.append(each)
            keys.add(each.dispatch_key)
            post_backs, last = post_backs + each.post_backs, max(last, each.last)
        yield together


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if "user_id" not in batch.schema.names:
            yield batch
            continue
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _TEXT_ROWS:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)
