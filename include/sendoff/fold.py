"""Folding: new post-backs are added to what came back of their dispatches, each exactly once.

The work is done on columns, not on rows: a run of post-backs is sorted by dispatch, and each dispatch's part becomes
sets of identifiers and numbers. Which receiver took a post-back, in which order and how often changes no set.

A post-back is set aside, and folded later, while there is nothing to hold it against: its dispatch is not in this
ledger, as after a backup was restored; or the service is being asked at this moment, and its reply will tell the
campaign's number, without which a forgery cannot be told. A reply is waited for no longer than its worker's lease.
Where there is none, and where an earlier attempt may have made a campaign of another number, post-backs are taken for
sound: they are the only evidence, and who forges one must have come by a signed address.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from sendoff.identifiers import Collector, Identifiers, Kind, empty
from sendoff.ledger import Ledger, Origin, Returned
from sendoff.ledger.post_backs import Fold, SetAside

_log = logging.getLogger(__name__)

MATCHED_BY = {"device_id": "device_id", "user_id": "user_id"}
"""Which member of a post-back names what an audience was identified by (service.md, section 6)."""

_RUN = 50_000  # post-backs folded in one transaction: some megabytes, and a short time for receivers to wait


def fold(ledger: Ledger, *, run: int = _RUN, now: datetime | None = None) -> int:
    """Fold every post-back that has not been folded yet, and resolve doubts by them; gives the number folded.

    May be stopped at any moment and run by several processes at once: each run is stored in one transaction together
    with the mark of how far it went.
    """
    moment = now or datetime.now(UTC)
    folded = 0
    for receiver, start, newest in ledger.post_backs.unfolded():
        after = start
        while after < newest:
            events = ledger.post_backs.read(receiver, after=after, limit=run)
            up_to = events["number"][-1].as_py()
            folding = _fold_run(ledger, receiver, after, up_to, events, moment)
            if ledger.post_backs.store_fold(folding):
                folded += events.num_rows - sum(each.post_backs for each in folding.set_aside)
                after = up_to
            else:  # another process was faster; what it has not folded is still to be done
                after = ledger.post_backs.folded(receiver)
    folded += sum(_fold_set_aside(ledger, aside, moment) for aside in ledger.post_backs.set_aside())
    # Also where nothing was new: a dispatch may go into doubt after its evidence came.
    if resolved := ledger.post_backs.resolve_doubts(moment):
        _log.info("%d dispatches in doubt are accepted: post-backs came from them", resolved)
    return folded


def _fold_run(ledger: Ledger, receiver: int, after: int, up_to: int, events: pa.Table, now: datetime) -> Fold:
    origins = ledger.post_backs.origins(pc.unique(events["dispatch_key"]).to_pylist(), now)
    returned: dict[str, Returned] = {}
    expected: list[pa.Table] = []
    set_aside: list[SetAside] = []
    for dispatch_key, part in _by_dispatch(events):
        origin = origins.get(dispatch_key)
        if origin is None or origin.awaits_reply:
            set_aside.append(_set_aside(receiver, dispatch_key, part))
            continue
        expected.append(part.filter(_is_expected(part, origin)))
        returned[dispatch_key] = _returned(part, expected[-1], origin)
    if strays := sum(each.post_backs for each in set_aside if each.dispatch_key not in origins):
        _log.warning("%d post-backs are set aside: the ledger does not hold their dispatches", strays)
    return Fold(
        receiver=receiver,
        after=after,
        up_to=up_to,
        returned=returned,
        minutes=_minutes(pa.concat_tables(expected), origins) if expected else {},
        set_aside=set_aside,
    )


def _set_aside(receiver: int, dispatch_key: str, part: pa.Table) -> SetAside:
    numbers = pc.min_max(part["number"]).as_py()
    newest_at = pc.max(part["received_at"]).as_py()
    return SetAside(receiver, numbers["min"], numbers["max"], dispatch_key, part.num_rows, newest_at)


def _fold_set_aside(ledger: Ledger, aside: SetAside, now: datetime) -> int:
    """Fold what was set aside where it can be held against its dispatch by now; gives the number folded."""
    events = ledger.post_backs.read_set_aside(aside)
    folding = _fold_run(ledger, aside.receiver, aside.first - 1, aside.last, events, now)
    if folding.set_aside or not ledger.post_backs.store_set_aside(aside, folding):
        return 0
    return aside.post_backs


def _by_dispatch(events: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    ordered = events.sort_by("dispatch_key")
    start = 0
    for count in pc.value_counts(ordered["dispatch_key"]):  # in the order of first appearance
        key, size = count["values"].as_py(), count["counts"].as_py()
        yield key, ordered.slice(start, size)
        start += size


def _is_expected(part: pa.Table, origin: Origin) -> pa.ChunkedArray:
    """Mark the post-backs that can be read, name this dispatch's campaign and somebody it was sent to.

    Where the service chose the people, it was sent to everybody who is named.
    """
    sound = pc.and_(part["readable"], pc.invert(_is_forged(part, origin)))
    column = MATCHED_BY.get(origin.identified_by)
    if column is None:
        return sound
    if origin.identifiers is None:
        return pc.and_(sound, pc.is_valid(part[column]))
    known = _set_of(part[column], origin.kind) & origin.identifiers
    return pc.and_(sound, pc.is_in(part[column], value_set=pa.array(known.values(), part[column].type)))


def _set_of(named: pa.ChunkedArray, kind: Kind) -> Identifiers:
    collector = Collector(kind)
    column = pc.drop_null(named).combine_chunks()
    collector.add(column.cast(pa.uint64() if kind == "integer" else pa.large_string(), safe=False))
    return collector.identifiers()


def _is_forged(part: pa.Table, origin: Origin) -> pa.ChunkedArray:
    """Mark the well-addressed post-backs whose body names another campaign than the service gave this dispatch."""
    if origin.campaign_id is None:
        return pc.and_(part["readable"], False)
    return pc.fill_null(pc.not_equal(part["campaign_id"], origin.campaign_id), False)


def _returned(part: pa.Table, expected: pa.Table, origin: Origin) -> Returned:
    kinds = Counter(part["kind"].to_pylist())
    return Returned(
        delivered=_who(expected, "delivery", origin),
        engaged=_who(expected, "open", origin),
        deliveries=kinds["delivery"],
        opens=kinds["open"],
        anomalies=_anomalies(part, expected, origin),
        newest_at=pc.max(part["received_at"]).as_py(),
        is_evidence=bool(expected.num_rows),
    )


def _who(expected: pa.Table, kind: str, origin: Origin) -> Identifiers:
    column = MATCHED_BY.get(origin.identified_by)
    if column is None:
        return empty(origin.kind)
    return _set_of(expected.filter(pc.equal(expected["kind"], kind))[column], origin.kind)


def _anomalies(part: pa.Table, expected: pa.Table, origin: Origin) -> dict[str, int]:
    unreadable = part.num_rows - (pc.sum(part["readable"]).as_py() or 0)
    forged = pc.sum(_is_forged(part, origin)).as_py() or 0
    late = 0
    if origin.settled_at is not None:
        late = pc.sum(pc.greater(expected["received_at"], pa.scalar(origin.settled_at))).as_py() or 0
    counts = {
        "unexpected": part.num_rows - expected.num_rows - unreadable - forged,
        "forged": forged,
        "late": late,
        "unreadable": unreadable,
    }
    return {kind: count for kind, count in counts.items() if count}


def _minutes(
    expected: pa.Table, origins: Mapping[str, Origin]
) -> dict[tuple[str, datetime], tuple[int, int]]:
    """Count the deliveries and opens of each launch and minute of reception."""
    rows = pa.table(
        {
            "dispatch": expected["dispatch_key"],
            "minute": pc.floor_temporal(expected["received_at"], unit="minute"),
            "delivery": pc.equal(expected["kind"], "delivery").cast(pa.int64()),
            "open": pc.equal(expected["kind"], "open").cast(pa.int64()),
        }
    )
    counted = rows.group_by(["dispatch", "minute"]).aggregate([("delivery", "sum"), ("open", "sum")])
    minutes: dict[tuple[str, datetime], tuple[int, int]] = {}
    for row in counted.to_pylist():
        key = origins[row["dispatch"]].launch_key, row["minute"].astimezone(UTC)
        deliveries, opens = minutes.get(key, (0, 0))
        minutes[key] = deliveries + row["delivery_sum"], opens + row["open_sum"]
    return minutes
