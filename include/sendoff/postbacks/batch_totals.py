"""A tally: post-backs are counted by dispatch, in columns, batch by batch, without a step for each dispatch.

Only at its end, when it is stored, does each dispatch get a set of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sendoff.audience.identifiers import Identifiers, empty
from sendoff.ledger import AT_OPENS, OPEN, READABLE, Ledger, Origin, Returned, column_of, marks, values
from sendoff.postbacks.recipient_index import (
    ANYBODY,
    UNKNOWN,
    Codes,
    Marks,
    Places,
    bitmap,
    numbers_of,
    set_of_numbers,
)

MATCHED_BY = {"device_id": "device_id", "user_id": "user_id"}
"""Which member of a post-back names what an audience was identified by (service.md, section 6)."""

_KINDS = ("delivery", "open")
_COUNTED = (*_KINDS, "expected", "forged", "late", "unreadable", AT_OPENS)
_NEVER = np.iinfo(np.int64).max  # as a moment, in microseconds
_MINUTE = 60_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = 500  # dispatches whose sets are in memory
_PLACES_AT_ONCE = 1 << 20  # of such dispatches, unless one has more

Counts = npt.NDArray[np.int64]


class Tally:
    """What one run of post-backs adds to what came back of each dispatch; ``named_by`` are columns of the batches."""

    def __init__(self, ledger: Ledger, places: Places, named_by: Collection[str]) -> None:
        self._ledger, self._places, self._named_by = ledger, places, named_by
        self.origins: dict[str, Origin] = {}
        self._launches: list[str] = []
        self._is_known = np.zeros(0, np.bool_)  # whether the origin of a code was asked for
        self._is_aside = np.zeros(0, np.bool_)
        self._names_nobody = np.zeros(0, np.bool_)  # of its people, in a post-back
        self._campaign = np.zeros(0, np.int64)
        self._has_campaign = np.zeros(0, np.bool_)
        self._settled = np.zeros(0, np.int64)
        self._launch = np.zeros(0, np.int64)
        self._newest = np.zeros(0, np.int64)
        self._counts = {name: np.zeros(0, np.int64) for name in _COUNTED}
        self._heard = {kind: BitMap64() for kind in _KINDS}
        self._anybody: dict[tuple[int, str], BitMap64] = {}
        self._minutes = {kind: Counter[int]() for kind in _KINDS}
        self.post_backs = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count some post-backs; those of a dispatch that they cannot be held against yet are left out."""
        codes = self._places.codes(batch["dispatch_key"])
        self._learn(codes)
        if self._is_aside.any():
            rows = np.flatnonzero(~self._is_aside[codes])
            if not len(rows):
                return
            codes, batch = codes[rows], batch.take(column_of(rows))
        self.post_backs += len(codes)
        at, what = values(batch["received_at"]), values(batch["what"])
        readable, is_open = (what & READABLE).astype(np.bool_), (what & OPEN).astype(np.bool_)
        kinds = {"delivery": ~is_open, "open": is_open}
        forged = self._are_forged(codes, batch["campaign_id"])
        expected = readable & ~forged
        expected &= self._note_who(codes, batch, expected, kinds)
        self._count("expected", codes[expected])
        self._count("forged", codes[forged])
        self._count("unreadable", codes[~readable])
        self._count(AT_OPENS, codes[is_open & (forged | ~readable)])
        self._count("late", codes[expected & (at > self._settled[codes])])
        for kind, is_kind in kinds.items():
            self._count(kind, codes[is_kind])
            self._count_minutes(kind, codes[expected & is_kind], at[expected & is_kind])
        np.maximum.at(self._newest, codes, at)

    def _learn(self, codes: Codes) -> None:
        self._grow(len(self._places.keys))
        if self._is_known[codes].all():
            return
        new = np.unique(codes[~self._is_known[codes]])
        self._is_known[new] = self._is_aside[new] = True
        of = {self._places.keys[code]: code for code in new.tolist()}
        origins = self._ledger.returns.origins(of)
        self.origins |= origins
        launches = {key: number for number, key in enumerate(self._launches)}
        for key, origin in origins.items():
            code = of[key]
            column = MATCHED_BY.get(origin.identified_by)
            # A column is not there only where the first launch that needs it was made a moment ago.
            is_there = column is None or column in self._named_by
            self._is_aside[code] = origin.awaits_reply or not is_there
            self._names_nobody[code] = column is None
            self._has_campaign[code] = origin.campaign_id is not None
            self._campaign[code] = origin.campaign_id or 0
            self._settled[code] = _NEVER if origin.settled_at is None else _microseconds(origin.settled_at)
            self._launch[code] = launches.setdefault(origin.launch_key, len(launches))
        self._launches = list(launches)
        self._places.learn(new[~self._is_aside[new] & ~self._names_nobody[new]].tolist())

    def _grow(self, size: int) -> None:
        arrays = (
            "_is_known",
            "_is_aside",
            "_names_nobody",
            "_campaign",
            "_has_campaign",
            "_settled",
            "_launch",
        )
        for name in (*arrays, "_newest"):
            setattr(self, name, _longer(getattr(self, name), size))
        self._counts = {name: _longer(column, size) for name, column in self._counts.items()}

    def _are_forged(self, codes: Codes, campaigns: pa.Int64Array) -> Marks:
        """Mark the well-addressed post-backs whose body names another campaign than the service gave the dispatch."""
        forged: Marks = self._has_campaign[codes] & (values(campaigns) != self._campaign[codes])
        return forged & marks(campaigns.is_valid()) if campaigns.null_count else forged

    def _note_who(
        self, codes: Codes, batch: pa.RecordBatch, sound: Marks, kinds: Mapping[str, Marks]
    ) -> Marks:
        """Mark the post-backs that name somebody whom their dispatch was sent to, and note whom the sound ones name.

        Where the service chose the people, it was sent to everybody who is named. Where no post-back can name any of
        its people, all are marked.
        """
        places, known = self._places.find(codes, batch)
        for kind, is_kind in kinds.items():
            self._heard[kind] |= bitmap(places[sound & known & is_kind])
        ways = self._places.ways[codes]
        if (ways == UNKNOWN).any():
            known = known | self._names_nobody[codes]
        if (ways == ANYBODY).any():
            numbers = numbers_of(batch)
            for code in np.unique(codes[ways == ANYBODY]).tolist():
                for kind, is_kind in kinds.items():
                    named = numbers[sound & is_kind & (codes == code)]
                    self._anybody.setdefault((code, kind), BitMap64()).update(bitmap(named))
            known = known | ((ways == ANYBODY) & marks(batch["device_id"].is_valid()))
        return known

    def _count(self, name: str, codes: Codes) -> None:
        if len(codes):
            counts = self._counts[name]
            counts += np.bincount(codes, minlength=len(counts))

    def _count_minutes(self, kind: str, codes: Codes, at: Counts) -> None:
        counted = pc.value_counts(column_of(self._launch[codes] << 32 | at // _MINUTE))
        for each in counted.to_pylist():
            self._minutes[kind][each["values"]] += each["counts"]

    def aside(self) -> list[str]:
        """Give the keys of the dispatches whose post-backs were left out."""
        return [self._places.keys[code] for code in np.flatnonzero(self._is_aside)]

    def launches(self) -> list[str]:
        """Give the keys of the launches to which something is added."""
        return [self._launches[number] for number in np.unique(self._launch[self._touched()])]

    def minutes(self) -> dict[tuple[str, datetime], tuple[int, int]]:
        """Give the expected deliveries and opens of each launch and minute of reception."""
        deliveries, opens = (self._minutes[kind] for kind in _KINDS)
        return {
            (self._launches[each >> 32], _EPOCH + timedelta(minutes=each & 0xFFFF_FFFF)): (
                deliveries[each],
                opens[each],
            )
            for each in sorted(deliveries.keys() | opens.keys())
        }

    def __iter__(self) -> Iterator[Mapping[str, Returned]]:
        """Yield what came back of each dispatch, for some dispatches at a time."""
        codes = self._touched()
        codes = codes[np.argsort(self._places.begins[codes], kind="stable")]
        if not len(codes):
            return
        width = np.cumsum(self._places.widths[codes]).astype(np.int64)
        part = width // _PLACES_AT_ONCE + np.arange(len(codes)) // _AT_ONCE
        for some in np.split(codes, np.flatnonzero(np.diff(part)) + 1):
            delivered, engaged = (dict(self._who(kind, some)) for kind in _KINDS)
            yield {
                self._places.keys[code]: self._returned(code, delivered.get(code), engaged.get(code))
                for code in some.tolist()
            }

    def _touched(self) -> Codes:
        return np.flatnonzero(self._counts["delivery"] + self._counts["open"])

    def _who(self, kind: str, codes: Codes) -> Iterator[tuple[int, Identifiers]]:
        of_anybody = self._places.ways[codes] == ANYBODY
        for code in codes[of_anybody].tolist():
            numbers = np.asarray(self._anybody[code, kind].to_array(), np.uint64)
            yield code, set_of_numbers(numbers[(numbers > 0) & (numbers < 1 << 63)])
        placed = codes[~of_anybody & (self._places.widths[codes] > 0)]
        if len(placed):
            span = BitMap64()
            first, last = placed[0], placed[-1]
            span.add_range(
                int(self._places.begins[first]), int(self._places.begins[last] + self._places.widths[last])
            )
            places = np.asarray((self._heard[kind] & span).to_array(), np.uint64)
            yield from self._places.people(placed, places)

    def _returned(self, code: int, delivered: Identifiers | None, engaged: Identifiers | None) -> Returned:
        counts = {name: int(column[code]) for name, column in self._counts.items()}
        post_backs = counts["delivery"] + counts["open"]
        kind = self.origins[self._places.keys[code]].kind
        anomalies = {
            "unexpected": post_backs - counts["expected"] - counts["unreadable"] - counts["forged"],
            "forged": counts["forged"],
            "late": counts["late"],
            "unreadable": counts["unreadable"],
            AT_OPENS: counts[AT_OPENS],
        }
        return Returned(
            delivered=empty(kind) if delivered is None else delivered,
            engaged=empty(kind) if engaged is None else engaged,
            deliveries=counts["delivery"],
            opens=counts["open"],
            anomalies={name: count for name, count in anomalies.items() if count},
            newest_at=_EPOCH + timedelta(microseconds=int(self._newest[code])),
            is_evidence=counts["expected"] > 0,
        )


def _longer(column: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    return np.append(column, np.zeros(size - len(column), column.dtype)) if size > len(column) else column


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
