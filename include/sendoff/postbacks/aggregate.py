"""Folding: new post-backs are added to what came back of their dispatches, each exactly once.

A run of post-backs is read in batches, counted by a :class:`~sendoff.postbacks.batch_totals.Tally`, and stored
in one transaction together with the mark of how far it went. Which receiver took a post-back, in which order and how
often changes no set.

A post-back is set aside, and folded later, while there is nothing to hold it against: its dispatch is not in this
ledger, as after a backup was restored; or the service is being asked at this moment, and its reply will tell the
campaign's number, without which a forgery cannot be told. A reply is waited for no longer than its worker's lease.
Where there is none, and where an earlier attempt may have made a campaign of another number, post-backs are taken for
sound: they are the only evidence, and who forges one must have come by a signed address.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from sendoff import metrics
from sendoff.ledger import Fold, Ledger, SetAside
from sendoff.postbacks.batch_totals import MATCHED_BY, Tally
from sendoff.postbacks.recipient_index import Places

__all__ = ["MATCHED_BY", "fold"]

_log = logging.getLogger(__name__)

_RUN = 8_000_000
"""Post-backs folded in one transaction. They are read in batches; what stays of them until then is a bitmap."""

_TOGETHER = 5_000  # post-backs that were set aside and are folded in one transaction, unless they lie apart
_SPAN = 50_000  # post-backs among which those are looked for

_TEXT_ROWS = (
    1 << 19
)  # post-backs that are looked up in texts at once, since that takes a step for each dispatch


def fold(ledger: Ledger, *, run: int = _RUN, now: datetime | None = None) -> int:
    """Fold every post-back that has not been folded yet, and resolve doubts by them; gives the number folded.

    May be stopped at any moment and run by several processes at once: each run is stored in one transaction together
    with the mark of how far it went.
    """
    moment = now or datetime.now(UTC)
    folded = 0
    places = Places(ledger)
    for receiver, start, newest in ledger.post_backs.unfolded():
        after = start
        while after < newest:
            places = _with_room(ledger, places)
            up_to = min(after + run, newest)
            tally = _tally_run(ledger, places, receiver, after, up_to)
            if ledger.returns.store_fold(_run_fold(ledger, tally, receiver, after, up_to)):
                folded += tally.post_backs
                after = up_to
            else:  # another process was faster; what it has not folded is still to be done
                after = ledger.post_backs.folded(receiver)
    for asides in _gathered(ledger.returns.set_aside()):
        places = _with_room(ledger, places)
        folded += _fold_set_aside(ledger, places, asides)
    metrics.folded(folded)
    # Also where nothing was new: a dispatch may go into doubt after its evidence came.
    if resolved := ledger.returns.resolve_doubts(moment):
        _log.info("%d dispatches in doubt are accepted: post-backs came from them", resolved)
    return folded


def _with_room(ledger: Ledger, places: Places) -> Places:
    """Give the places read so far, or none where they are too many to be kept from run to run."""
    return Places(ledger) if places.is_full() else places


def _tally_run(ledger: Ledger, places: Places, receiver: int, after: int, up_to: int) -> Tally:
    named_by = _named_by(ledger)
    tally = Tally(ledger, places, named_by)
    with ledger.post_backs.read(receiver, after=after, up_to=up_to, named_by=named_by) as batches:
        for batch in _blocks(batches):
            tally.add(batch)
    return tally


def _run_fold(ledger: Ledger, tally: Tally, receiver: int, after: int, up_to: int) -> Fold:
    keys = tally.aside()
    set_aside = ledger.post_backs.aside(receiver, after=after, up_to=up_to, dispatch_keys=keys)
    if strays := sum(each.post_backs for each in set_aside if each.dispatch_key not in tally.origins):
        _log.warning("%d post-backs are set aside: the ledger does not hold their dispatches", strays)
    return Fold(
        receiver=receiver,
        after=after,
        up_to=up_to,
        returned=tally,
        launches=tally.launches(),
        minutes=tally.minutes(),
        set_aside=set_aside,
    )


def _gathered(asides: Iterable[SetAside]) -> Iterator[list[SetAside]]:
    """Put together what lies close together of one receiver, and each dispatch once."""
    ordered = sorted(asides, key=attrgetter("receiver", "first"))
    for _, of_receiver in groupby(ordered, key=attrgetter("receiver")):
        together: list[SetAside] = []
        keys: set[str] = set()
        post_backs = last = 0
        for each in of_receiver:
            is_enough = post_backs >= _TOGETHER or (together and each.last - together[0].first >= _SPAN)
            # What overlaps is of one run: read apart, its post-backs would be gone through again and again.
            if (is_enough and each.first > last) or each.dispatch_key in keys:
                yield together
                together, keys, post_backs, last = [], set(), 0, 0
            together.append(each)
            keys.add(each.dispatch_key)
            post_backs, last = post_backs + each.post_backs, max(last, each.last)
        yield together


def _fold_set_aside(ledger: Ledger, places: Places, asides: Sequence[SetAside]) -> int:
    """Fold what was set aside where it can be held against its dispatch by now; gives the number folded."""
    named_by = _named_by(ledger)
    tally = Tally(ledger, places, named_by)
    with ledger.post_backs.read_set_aside(asides, named_by=named_by) as batches:
        for batch in _blocks(batches):
            tally.add(batch)
    waiting = set(tally.aside())
    ready = [each for each in asides if each.dispatch_key not in waiting]
    if not ready:
        return 0
    folding = Fold(
        receiver=ready[0].receiver,
        after=ready[0].first - 1,
        up_to=max(each.last for each in ready),
        returned=tally,
        launches=tally.launches(),
        minutes=tally.minutes(),
    )
    return tally.post_backs if ledger.returns.store_set_aside(ready, folding) else 0


def _named_by(ledger: Ledger) -> set[str]:
    """Give the members of a post-back by which the people of any launch can be known."""
    return {MATCHED_BY[name] for name in ledger.returns.identified_by() if name in MATCHED_BY}


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
