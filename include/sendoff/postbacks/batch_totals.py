"""Totals of a run: counts post-backs by dispatch in columns, batch by batch, without a Python step per dispatch.

Each dispatch gets sets of its own only at the end, when the totals are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sendoff.audience.identifiers import Identifiers, Marks, Numbers, empty
from sendoff.ledger import (
    AT_OPENS,
    ERASED,
    OPEN,
    READABLE,
    SCRUBBED,
    AggregatedRun,
    DispatchContext,
    DispatchTotals,
    ErasedPeople,
    Parked,
    PendingRun,
    column_of,
    marks,
    values,
)
from sendoff.postbacks.machine_opens import suspected
from sendoff.postbacks.recipient_index import (
    Codes,
    Encoding,
    PlaceSet,
    RecipientIndex,
    bitmap,
    longer,
    numbers_of,
    set_of_numbers,
)
from sendoff.service import MATCHED_BY
from sendoff.states import PostBackKind

_SUSPECTS = "suspects"
_ALL = "all"
_EVIDENCE = "evidence"
_ANOMALIES = ("unexpected", "forged", "unreadable", ERASED, "late", AT_OPENS)
"""Each post-back counts as one of the first four at most."""
_NEVER = np.iinfo(np.int64).max  # as a time in microseconds
_MINUTE = 60_000_000
_HOUR, _HOURS = 60 * _MINUTE, 24
_DAY = 1_440 * _MINUTE
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = 500  # dispatches whose sets are in memory
_PLACES_AT_ONCE = 1 << 19  # places of these dispatches, unless a single one has more

Counts = npt.NDArray[np.int64]
_Heard = PlaceSet | BitMap64
"""Places of recipients who responded."""


class BatchTotals:
    """The totals that one run of post-backs adds to each dispatch.

    ``named_by``: the identifier columns of the batches. ``erased``: the people who were erased. ``seconds``: an open
    within so many seconds of its delivery is suspected to be a machine's.
    """

    def __init__(
        self, index: RecipientIndex, named_by: Collection[str], erased: ErasedPeople, seconds: float
    ) -> None:
        self._index, self._named_by, self._erased, self._seconds = index, named_by, erased, seconds
        self._erased_numbers: dict[int, list[int]] = {}
        self._parked: dict[tuple[int, int, int], Parked] = {}
        self.contexts: dict[str, DispatchContext] = {}
        self._waves: dict[tuple[str, int], int] = {}  # number of a launch's wave
        self._is_known = np.zeros(0, np.bool_)  # whether the context of a code was looked up
        self._is_waiting = np.zeros(0, np.bool_)
        self._is_deleted = np.zeros(0, np.bool_)  # the recipients of its launch were deleted
        self._names_nobody = np.zeros(0, np.bool_)  # no post-back can identify the dispatch's recipients
        self._campaign = np.zeros(0, np.int64)
        self._has_campaign = np.zeros(0, np.bool_)
        self._settled = np.zeros(0, np.int64)
        self._wave = np.zeros(0, np.int64)
        self._newest = np.zeros(0, np.int64)
        self._counts = {
            name: np.zeros(0, np.int64) for name in (_ALL, PostBackKind.OPEN, _EVIDENCE, *_ANOMALIES)
        }
        self._delivered = PlaceSet()  # most recipients; the sets of opens are smaller
        self._suspects = BitMap64()
        self._opened: dict[int, BitMap64] = {}  # by hour: recipients with an open that is not suspected
        self._open: dict[tuple[int, str], BitMap64] = {}
        self._minutes = {name: Counter[int]() for name in (_ALL, PostBackKind.OPEN)}
        self.post_backs = 0
        self.ignored = 0  # post-backs of launches whose recipients were deleted
        self.has_unreadable = False  # also among those that were left out

    def codes(self, batch: pa.RecordBatch) -> Codes:
        """Return the code of each post-back's dispatch."""
        codes = self._index.codes(batch["dispatch_key"])
        self._grow(len(self._index.keys))
        return codes

    def new(self, codes: Codes) -> dict[str, int]:
        """Return the dispatches that are not loaded yet: key -> code."""
        if self._is_known.all():
            return {}
        return {self._index.keys[code]: code for code in np.unique(codes[~self._is_known[codes]]).tolist()}

    def load(self, new: Mapping[str, int], contexts: Mapping[str, DispatchContext]) -> None:
        """Load the contexts of dispatches and their recipients.

        Post-backs wait if their dispatch has no context, or if a reply is awaited.
        """
        codes = np.fromiter(new.values(), np.intp, len(new))
        self._is_known[codes] = self._is_waiting[codes] = True
        self.contexts |= contexts
        for key, context in contexts.items():
            code, column = new[key], MATCHED_BY.get(context.identified_by)
            if context.is_deleted:
                self._is_deleted[code], self._is_waiting[code] = True, False
                continue
            # A column is missing only if the first launch that needs it was made just now.
            is_there = column is None or column in self._named_by
            self._is_waiting[code] = context.awaits_reply or not is_there
            self._names_nobody[code] = column is None
            self._has_campaign[code] = context.campaign_id is not None
            self._campaign[code] = context.campaign_id or 0
            self._settled[code] = _NEVER if context.settled_at is None else _microseconds(context.settled_at)
            wave = context.launch_key, context.wave
            self._wave[code] = self._waves.setdefault(wave, len(self._waves))
        has_recipients = ~(self._is_waiting | self._names_nobody | self._is_deleted)
        self._index.load(codes[has_recipients[codes]].tolist())

    def add(self, codes: Codes, batch: pa.RecordBatch) -> None:
        """Count post-backs of loaded dispatches. Post-backs of waiting dispatches are left out.

        Those of launches whose recipients were deleted are ignored, because the figures of these launches stay.
        """
        names_erased = self._name_erased(batch)
        self.has_unreadable |= not (values(batch["what"]) & READABLE).all()
        if self._is_waiting.any() or self._is_deleted.any():
            is_waiting, is_deleted = self._is_waiting[codes], self._is_deleted[codes]
            waiting, rows = np.flatnonzero(is_waiting), np.flatnonzero(~(is_waiting | is_deleted))
            self.ignored += int(is_deleted.sum())
            if len(waiting):
                self._park(codes[waiting], batch.take(column_of(waiting)))
            if not len(rows):
                return
            codes, batch, names_erased = codes[rows], batch.take(column_of(rows)), names_erased[rows]
        self.post_backs += len(codes)
        at, what = values(batch["received_at"]), values(batch["what"])
        readable, is_open = (what & READABLE).astype(np.bool_), (what & OPEN).astype(np.bool_)
        kinds: dict[str, Marks] = {PostBackKind.DELIVERY: ~is_open, PostBackKind.OPEN: is_open}
        forged = self._are_forged(codes, batch["campaign_id"])
        names_erased = readable & ~forged & (names_erased | (what & SCRUBBED).astype(np.bool_))
        sound = readable & ~forged & ~names_erased
        expected = sound & self._note_who(codes, batch, sound, kinds)
        unnamed = sound & self._name_no_one(codes, batch)  # it may be any recipient's
        unread = ~readable | unnamed
        self._count(_ALL, codes)
        of_some = {
            PostBackKind.OPEN: is_open,
            _EVIDENCE: expected | unnamed,
            "unexpected": sound & ~(expected | unnamed),
            "forged": forged,
            "unreadable": unread,
            ERASED: names_erased,
            "late": expected & (at > self._settled[codes]),
            AT_OPENS: is_open & (forged | unread),
        }
        for name, some in of_some.items():
            self._count(name, codes[np.flatnonzero(some)])
        self._count_minutes(codes, at, is_open, expected)
        np.maximum.at(self._newest, codes, at)

    def _name_erased(self, batch: pa.RecordBatch) -> Marks:
        """Mark the post-backs that name a person who was erased, and note their numbers."""
        named = np.zeros(len(batch), np.bool_)
        for (identified_by, kind), people in self._erased.by_column.items():
            column = MATCHED_BY.get(identified_by)
            if column in self._named_by and (kind == "integer") == (column == "device_id"):
                named |= people.marked(batch[column])
        if named.any():
            of_receiver, numbers = (values(batch[name])[named] for name in ("receiver", "number"))
            for receiver in np.unique(of_receiver).tolist():
                self.note_erased(receiver, numbers[of_receiver == receiver].tolist())
        return named

    def note_erased(self, receiver: int, numbers: Collection[int]) -> None:
        """Note the numbers of post-backs that name a person who was erased, so that they are emptied."""
        self._erased_numbers.setdefault(receiver, []).extend(numbers)

    def _park(self, codes: Codes, batch: pa.RecordBatch) -> None:
        """Note post-backs that cannot be counted yet, by receiver, dispatch, and day in UTC."""
        of_receiver, numbers, at = (values(batch[name]) for name in ("receiver", "number", "received_at"))
        groups = np.stack([of_receiver, codes, at // _DAY])
        order = np.lexsort(groups)
        begins = np.flatnonzero(np.diff(groups[:, order], axis=1, prepend=-1).any(axis=0))
        for rows in np.split(order, begins[1:]):
            receiver, code, day = groups[:, rows[0]].tolist()
            new = Parked(
                receiver,
                int(numbers[rows].min()),
                int(numbers[rows].max()),
                self._index.keys[code],
                len(rows),
                _EPOCH + timedelta(microseconds=int(at[rows].max())),
            )
            known = self._parked.get((receiver, code, day))
            self._parked[receiver, code, day] = new if known is None else known | new

    def _grow(self, size: int) -> None:
        of_codes = (
            "_is_known",
            "_is_waiting",
            "_is_deleted",
            "_names_nobody",
            "_campaign",
            "_has_campaign",
            "_settled",
        )
        for name in (*of_codes, "_wave", "_newest"):
            setattr(self, name, longer(getattr(self, name), size))
        self._counts = {name: longer(column, size) for name, column in self._counts.items()}

    def _are_forged(self, codes: Codes, campaigns: pa.Int64Array) -> Marks:
        """Mark the post-backs whose body names another campaign than the one the service assigned to the dispatch."""
        forged: Marks = self._has_campaign[codes] & (values(campaigns) != self._campaign[codes])
        return forged & marks(campaigns.is_valid()) if campaigns.null_count else forged

    def _note_who(
        self, codes: Codes, batch: pa.RecordBatch, sound: Marks, kinds: Mapping[str, Marks]
    ) -> Marks:
        """Mark the post-backs that name a recipient of their dispatch, and record the recipients in the sound ones.

        If the service chose the recipients, everyone named counts as one. If no post-back can identify the dispatch's
        recipients, all post-backs are marked.
        """
        places, known = self._index.locate(codes, batch)
        self._note_places(codes, places, batch, sound & known, kinds)
        encodings = self._index.encodings[codes]
        if (encodings == Encoding.NOT_LOADED).any():
            known = known | self._names_nobody[codes]
        if (encodings == Encoding.OPEN).any():
            numbers = numbers_of(batch)
            for code in np.unique(codes[encodings == Encoding.OPEN]).tolist():
                for kind, is_kind in kinds.items():
                    named = numbers[sound & is_kind & (codes == code)]
                    self._open.setdefault((code, kind), BitMap64()).update(bitmap(named))
            known = known | ((encodings == Encoding.OPEN) & marks(batch["device_id"].is_valid()))
        return known

    def _name_no_one(self, codes: Codes, batch: pa.RecordBatch) -> Marks:
        """Mark the post-backs without the identifier of their dispatch's recipients, if post-backs can contain it."""
        encodings = self._index.encodings[codes]
        by_user = encodings == Encoding.TEXT
        unnamed = np.zeros(len(codes), np.bool_)
        for column, rows in (
            ("user_id", by_user),
            ("device_id", ~by_user & (encodings != Encoding.NOT_LOADED)),
        ):
            if rows.any() and batch[column].null_count:
                unnamed |= rows & marks(batch[column].is_null())
        return unnamed

    def _note_places(
        self, codes: Codes, places: Numbers, batch: pa.RecordBatch, rows: Marks, kinds: Mapping[str, Marks]
    ) -> None:
        """Record the recipients who responded, and if a machine probably opened for them."""
        deliveries, opens = (np.flatnonzero(rows & is_kind) for is_kind in kinds.values())
        at = values(batch["occurred_at"])
        self._delivered.add(places[deliveries])
        machine = suspected(
            codes,
            places.view(np.int64),
            at,
            deliveries,
            opens,
            self._index.sizes,
            self._seconds,
        )
        by_person = opens[~machine]
        hours = at[by_person] // _HOUR % _HOURS
        for hour in np.flatnonzero(np.bincount(hours)).tolist():
            opened = self._opened.setdefault(hour, BitMap64())
            opened |= bitmap(places[by_person[hours == hour]])
        self._suspects |= bitmap(places[opens[machine]])

    def _count(self, name: str, codes: Codes) -> None:
        if len(codes):
            counts = self._counts[name]
            counts += np.bincount(codes, minlength=len(counts))

    def _count_minutes(self, codes: Codes, at: Counts, is_open: Marks, rows: Marks) -> None:
        of_wave = self._wave[codes] << 32 | at // _MINUTE
        for name, some in (_ALL, rows), (PostBackKind.OPEN, rows & is_open):
            counted = pc.value_counts(column_of(of_wave[np.flatnonzero(some)]))
            for each in counted.to_pylist():
                self._minutes[name][each["values"]] += each["counts"]

    def waiting(self) -> list[str]:
        """Return the keys of the dispatches whose post-backs were left out."""
        return [self._index.keys[code] for code in np.flatnonzero(self._is_waiting)]

    def parked(self) -> list[Parked]:
        """Return the post-backs that were left out."""
        return list(self._parked.values())

    def as_run(self, runs: Sequence[PendingRun] = (), parked: Sequence[Parked] = ()) -> AggregatedRun:
        """Return the counted run, to be stored in one transaction; totals are computed when read."""
        waves = list(self._waves)
        touched = {waves[number][0] for number in np.unique(self._wave[self._touched()])}
        opens = self._minutes[PostBackKind.OPEN]
        minutes = {
            (*waves[at >> 32], _EPOCH + timedelta(minutes=at & 0xFFFF_FFFF)): (count - opens[at], opens[at])
            for at, count in sorted(self._minutes[_ALL].items())
        }
        return AggregatedRun(
            runs,
            self,
            touched,
            minutes,
            parked,
            self._erased_numbers,
            self._erased.version,
        )

    def __iter__(self) -> Iterator[Mapping[str, DispatchTotals]]:
        """Yield the totals of each dispatch, for a group of dispatches at a time."""
        codes = self._touched()
        codes = codes[np.argsort(self._index.begins[codes], kind="stable")]
        opened = BitMap64.union(BitMap64(), *self._opened.values())
        heard: dict[str, _Heard] = {
            PostBackKind.DELIVERY: self._delivered,
            PostBackKind.OPEN: opened | self._suspects,
            _SUSPECTS: self._suspects - opened,
        }
        if not len(codes):
            return
        width = np.cumsum(self._index.widths[codes]).astype(np.int64)
        part = width // _PLACES_AT_ONCE + np.arange(len(codes)) // _AT_ONCE
        for some in np.split(codes, np.flatnonzero(np.diff(part)) + 1):
            who = [dict(self._who(kind, places, some)) for kind, places in heard.items()]
            hours: dict[int, dict[int, Identifiers]] = {}
            for hour, opened in sorted(self._opened.items()):
                for code, people in self._named_at(opened, some):
                    hours.setdefault(code, {})[hour] = people
            yield {
                self._index.keys[code]: self._totals_of(
                    code, [each.get(code) for each in who], hours.get(code, {})
                )
                for code in some.tolist()
            }

    def _touched(self) -> Codes:
        return np.flatnonzero(self._counts[_ALL])

    def _who(self, kind: str, heard: _Heard, codes: Codes) -> Iterator[tuple[int, Identifiers]]:
        is_open = self._index.encodings[codes] == Encoding.OPEN
        for code in codes[is_open].tolist():
            if kind == _SUSPECTS:  # opens of unknown recipients are not suspected
                break
            numbers = np.asarray(self._open[code, kind].to_array(), np.uint64)
            yield code, set_of_numbers(numbers[(numbers > 0) & (numbers < 1 << 63)])
        yield from self._named_at(heard, codes)

    def _named_at(self, heard: _Heard, codes: Codes) -> Iterator[tuple[int, Identifiers]]:
        """Yield each code whose recipients have places, with those at some places, if there are any."""
        placed = codes[self._index.widths[codes] > 0]
        placed = placed[self._index.encodings[placed] != Encoding.OPEN]
        if isinstance(heard, PlaceSet):
            yield from self._index.people_in(placed, heard)
        elif len(placed):
            span, last = BitMap64(), placed[-1]
            span.add_range(
                int(self._index.begins[placed[0]]), int(self._index.begins[last] + self._index.widths[last])
            )
            yield from self._index.people(placed, np.asarray((heard & span).to_array(), np.uint64))

    def _totals_of(
        self, code: int, who: Sequence[Identifiers | None], hours: Mapping[int, Identifiers]
    ) -> DispatchTotals:
        delivered, engaged, suspects = who
        counts = {name: int(column[code]) for name, column in self._counts.items()}
        kind = self.contexts[self._index.keys[code]].kind
        return DispatchTotals(
            delivered=empty(kind) if delivered is None else delivered,
            engaged=empty(kind) if engaged is None else engaged,
            suspects=empty(kind) if suspects is None else suspects,
            deliveries=counts[_ALL] - counts[PostBackKind.OPEN],
            opens=counts[PostBackKind.OPEN],
            anomalies={name: counts[name] for name in _ANOMALIES if counts[name]},
            newest_at=_EPOCH + timedelta(microseconds=int(self._newest[code])),
            is_evidence=counts[_EVIDENCE] > 0,
            hours=hours,
        )


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
