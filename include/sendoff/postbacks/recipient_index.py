"""The recipient index: numbers the recipients of dispatches, so that many dispatches are counted at once.

Each dispatch has an interval on one number line, and each of its recipients has a place in it. Places are close
together for all kinds of identifiers. So the recipients of all dispatches who responded are one small bitmap.

.. code-block:: text

    dense: numbers close together ....... by their distance from the lowest of the segment
    sparse: numbers far apart ........... by their rank in the segment
    text ................................ by their rank in the segment
    open: chosen by the service ......... none: anyone may be among them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sendoff.audience import bitmap_from, packed
from sendoff.audience.identifiers import (
    Identifiers,
    IntegerIdentifiers,
    Marks,
    Numbers,
    StringIdentifiers,
    builder,
)
from sendoff.ledger import column_of, marks, values


class Encoding(IntEnum):
    """How the recipients of a dispatch are numbered."""

    NOT_LOADED = 0
    DENSE = 1
    SPARSE = 2
    TEXT = 3
    OPEN = 4
    """Not numbered: the service chose them, and anyone may be among them."""


_DENSE = 16  # the maximum range per member
_TEXT_BYTES = 64 << 20  # of segments that are kept for later look-ups
_KEPT_BYTES = 256 << 20  # of numbers that are kept for the next run
_LINE = 1 << 63
_BYTE = np.uint64(3)  # places >> 3: eight places in a byte
_BITS = np.uint8(1) << np.arange(8, dtype=np.uint8)

Codes = npt.NDArray[np.intp]
Bits = npt.NDArray[np.uint8]
"""A bit for each place: eight in a byte, the lowest bit first."""

ReadRecipients = Callable[[Iterable[str]], Iterator[tuple[str, Identifiers | None]]]
"""Reads the recipients of dispatches by their keys; None if the service chose them."""


@dataclass(frozen=True, slots=True)
class _SparseGroup:
    """Segments of sparse numbers, one after the other, each shifted to follow the one before."""

    numbers: Numbers
    first_place: int


class PlaceSet:
    """A set of places: a bit for each place up to the last. Places may come in any order, and need not be sorted."""

    def __init__(self) -> None:
        self._bits = np.zeros(1, np.uint8)

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return self._bits.nbytes

    def add(self, places: Numbers) -> None:
        """Add places."""
        numbers, bits = _byte_and_bit(places)
        self._reach(int(numbers.max()) + 1 if len(numbers) else 0)
        wanted = _BITS[bits]
        while len(numbers):
            self._bits[numbers] |= wanted  # of several places in a byte, only one is set each time
            lost = np.flatnonzero(self._bits[numbers] & wanted == 0)
            numbers, wanted = numbers[lost], wanted[lost]

    def add_near(self, places: Numbers) -> None:
        """Add places that are close together, in ascending order. This takes a fraction of the time."""
        if len(places):
            first, end = int(places[0]) // 8, int(places[-1]) // 8 + 1
            marked = np.zeros(8 * (end - first), np.bool_)
            marked[(places - np.uint64(8 * first)).view(np.intp)] = True
            self._reach(end)
            self._bits[first:end] |= np.packbits(marked, bitorder="little")

    def _reach(self, size: int) -> None:
        if size > len(self._bits):
            longer = np.zeros(max(size, 2 * len(self._bits)), np.uint8)
            longer[: len(self._bits)] = self._bits
            self._bits = longer

    def marked(self, places: Numbers) -> Marks:
        """Mark the places that are in the set. All must be 0 or at most the last."""
        numbers, bits = _byte_and_bit(places)
        marked: Marks = (self._bits.take(numbers) >> bits & np.uint8(1)).view(np.bool_)
        return marked

    def between(self, begin: int, end: int) -> Bits:
        """Return the bits of places, the first ones from that of ``begin // 8 * 8``, where others are 0."""
        last = -(-end // 8)
        bits = self._bits[begin // 8 : last].copy()
        if len(bits):
            bits[0] &= 0xFF << begin % 8 & 0xFF
            if end % 8 and last <= len(self._bits):
                bits[-1] &= 0xFF >> 8 - end % 8
        return bits


def _byte_and_bit(places: Numbers) -> tuple[Codes, Bits]:
    return (places >> _BYTE).view(np.intp), (places & np.uint64(7)).astype(np.uint8)


class RecipientIndex:
    """The places of the recipients of dispatches. Each dispatch has a code, counted from 0.

    The index keeps what it reads: a bit per place for dense numbers, eight bytes per person for sparse ones, and texts
    up to a limit. Replace it with an empty one when :meth:`is_full` returns True.
    """

    def __init__(self, read: ReadRecipients) -> None:
        self._read = read
        self._codes: dict[str, int] = {}
        self.keys: list[str] = []
        self.encodings = np.zeros(0, np.uint8)
        self.begins = np.zeros(0, np.uint64)  # the first place of each dispatch
        self.widths = np.zeros(0, np.uint64)
        self.sizes = np.zeros(0, np.int64)  # the recipients of each dispatch
        self._lowest = np.zeros(0, np.uint64)
        self._start = np.zeros(0, np.uint64)  # of sparse numbers, within their group
        self._group = np.zeros(0, np.intp)
        self._groups: list[_SparseGroup] = []
        self._members = PlaceSet()  # occupied places, of dense numbers
        self._texts: dict[int, pa.LargeStringArray] = {}
        self._text_bytes = 0
        self._end = 0

    def is_full(self) -> bool:
        """Check whether the numbers have reached their limit. They stay, because assigned codes need them."""
        sparse = sum(group.numbers.nbytes for group in self._groups)
        return sparse + self._members.nbytes >= _KEPT_BYTES

    def codes(self, dispatch_keys: pa.StringArray) -> Codes:
        """Return the code of each dispatch key, assigning codes to new keys."""
        encoded, known = dispatch_keys.dictionary_encode(), self._codes
        of_batch = [known.setdefault(key, len(known)) for key in encoded.dictionary.to_pylist()]
        self.keys.extend(islice(known, len(self.keys), None))
        self._grow()
        codes: Codes = np.array(of_batch, np.intp)[values(encoded.indices)]
        return codes

    def _grow(self) -> None:
        for name in ("encodings", "begins", "widths", "sizes", "_lowest", "_start", "_group"):
            setattr(self, name, longer(getattr(self, name), len(self.keys)))

    def load(self, codes: Iterable[int]) -> None:
        """Read the recipients of dispatches that are not loaded yet."""
        keys = [self.keys[code] for code in codes if self.encodings[code] == Encoding.NOT_LOADED]
        sparse: list[tuple[int, Numbers]] = []
        for key, people in self._read(keys):
            code = self._codes[key]
            if people is None:
                self.encodings[code] = Encoding.OPEN
            elif isinstance(people, StringIdentifiers):
                self._take(code, Encoding.TEXT, people, len(people))
                self._keep(code, people)
            else:
                numbers = people.values()
                if _are_dense(numbers):
                    self._take_dense(code, numbers)
                else:
                    sparse.append((code, numbers))
        for group in _groups(sparse):
            self._take_sparse(group)

    def _take(self, code: int, encoding: int, people: Sized, width: int) -> None:
        self.encodings[code], self.begins[code], self.widths[code] = encoding, self._end, width
        self.sizes[code] = len(people)
        self._end += width

    def _take_dense(self, code: int, numbers: Numbers) -> None:
        lowest = int(numbers[0]) if len(numbers) else 0
        self._end += (lowest - self._end) % 8  # so a byte of places is a byte of numbers
        self._lowest[code] = lowest
        self._take(code, Encoding.DENSE, numbers, int(numbers[-1]) - lowest + 1 if len(numbers) else 0)
        self._members.add_near(numbers - self._lowest[code] + self.begins[code])

    def _take_sparse(self, segments: list[tuple[int, Numbers]]) -> None:
        first, start, lines = self._end, 0, []
        for code, numbers in segments:
            self._take(code, Encoding.SPARSE, numbers, len(numbers))
            self._lowest[code], self._start[code], self._group[code] = numbers[0], start, len(self._groups)
            lines.append(numbers - numbers[0] + np.uint64(start))
            start = int(lines[-1][-1]) + 1
        self._groups.append(_SparseGroup(np.concatenate(lines), first))

    def _keep(self, code: int, people: StringIdentifiers) -> None:
        texts = people.column()
        if self._text_bytes + texts.nbytes > _TEXT_BYTES:
            self._texts, self._text_bytes = {}, 0
        self._texts[code] = texts
        self._text_bytes += texts.nbytes

    def locate(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        """Return the place that each post-back names, and mark those that name a recipient of their dispatch.

        ``codes`` and ``batch`` have the same length. A place is valid only if it is marked.
        """
        encodings = self.encodings[codes]
        places, known = np.zeros(len(codes), np.uint64), np.zeros(len(codes), np.bool_)
        for encoding, look in (
            (Encoding.DENSE, self._locate_dense),
            (Encoding.SPARSE, self._locate_sparse),
            (Encoding.TEXT, self._locate_text),
        ):
            rows = np.flatnonzero(encodings == encoding)
            if len(rows) == len(codes):
                return look(codes, batch)
            if len(rows):
                places[rows], known[rows] = look(codes[rows], batch.take(column_of(rows)))
        return places, known

    def _locate_dense(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        distances = numbers_of(batch) - self._lowest[codes]  # wraps around for numbers below the lowest
        known = distances < self.widths[codes]
        places = np.where(known, distances + self.begins[codes], np.uint64(0))
        known &= self._members.marked(places)
        return places, known

    def _locate_sparse(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        numbers = numbers_of(batch)
        places, known = np.zeros(len(codes), np.uint64), np.zeros(len(codes), np.bool_)
        groups = self._group[codes]
        for number in np.unique(groups):
            group, rows = self._groups[number], np.flatnonzero(groups == number)
            of = codes[rows]
            wanted = numbers[rows] - self._lowest[of] + self._start[of]
            ranks = np.minimum(np.searchsorted(group.numbers, wanted), len(group.numbers) - 1)
            found = (ranks + group.first_place).astype(np.uint64)
            # A place outside the dispatch's own interval belongs to another segment of the group.
            known[rows] = (group.numbers[ranks] == wanted) & (found - self.begins[of] < self.widths[of])
            places[rows] = found
        return places, known

    def _locate_text(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        places, known = np.zeros(len(codes), np.uint64), np.zeros(len(codes), np.bool_)
        texts = batch["user_id"].cast(pa.large_string())
        order = np.argsort(codes, kind="stable")
        found, begins = np.unique(codes[order], return_index=True)
        rows_of = dict(zip(found.tolist(), np.split(order, begins[1:]), strict=True))
        for code, people in self._text_segments(rows_of):
            rows = rows_of[code]
            ranks = pc.index_in(texts.take(column_of(rows)), value_set=people)
            known[rows] = marks(ranks.is_valid())
            places[rows] = values(ranks).astype(np.uint64) + self.begins[code]
        return places, known

    def _text_segments(self, codes: Iterable[int]) -> Iterator[tuple[int, pa.LargeStringArray]]:
        kept = {code: self._texts[code] for code in codes if code in self._texts}
        yield from kept.items()
        others = [self.keys[code] for code in codes if code not in kept]
        for key, people in self._read(others) if others else ():
            assert isinstance(people, StringIdentifiers)
            self._keep(self._codes[key], people)
            yield self._codes[key], people.column()

    def people(self, codes: Codes, places: Numbers) -> Iterator[tuple[int, Identifiers]]:
        """Yield each code with the identifiers at its places, if there are any. Both must be in ascending order."""
        begins = np.searchsorted(places, self.begins[codes])
        ends = np.searchsorted(places, self.begins[codes] + self.widths[codes])
        of = {code: places[a:b] for code, a, b in zip(codes.tolist(), begins, ends, strict=True) if a < b}
        for code, some in of.items():
            if self.encodings[code] == Encoding.DENSE:
                yield code, set_of_numbers(some - self.begins[code] + self._lowest[code])
            elif self.encodings[code] == Encoding.SPARSE:
                group = self._groups[self._group[code]]
                numbers = group.numbers[some - np.uint64(group.first_place)]
                yield code, set_of_numbers(numbers - self._start[code] + self._lowest[code])
        texts = [code for code in of if self.encodings[code] == Encoding.TEXT]
        for code, segment in self._text_segments(texts):
            ranks = of[code] - self.begins[code]
            yield code, _set_of_texts(segment.take(column_of(ranks.view(np.int64))))

    def people_in(self, codes: Codes, heard: PlaceSet) -> Iterator[tuple[int, Identifiers]]:
        """Yield the same for the places of a set. This is faster if most of them are in it."""
        is_dense = self.encodings[codes] == Encoding.DENSE
        for code in codes[is_dense].tolist():
            bits = heard.between(int(self.begins[code]), int(self.begins[code] + self.widths[code]))
            if bits.any():
                yield code, _set_of(bitmap_from(bits, int(self._lowest[code]) // 8 * 8))
        if len(others := codes[~is_dense]):
            begin, end = int(self.begins[others[0]]), int(self.begins[others[-1]] + self.widths[others[-1]])
            places = np.flatnonzero(np.unpackbits(heard.between(begin, end), bitorder="little"))
            yield from self.people(others, places.astype(np.uint64) + np.uint64(begin // 8 * 8))


def longer(column: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return a column of dispatches with zeros for new ones."""
    return np.append(column, np.zeros(size - len(column), column.dtype)) if size > len(column) else column


def numbers_of(batch: pa.RecordBatch) -> Numbers:
    """Return the device ID of each post-back; 0, which no device has, if it has none."""
    devices = batch["device_id"]
    numbers: Numbers = values(devices).view(np.uint64)
    return np.where(marks(devices.is_valid()), numbers, np.uint64(0)) if devices.null_count else numbers


def bitmap(places: Numbers) -> BitMap64:
    """Return the set of places, which may come in any order."""
    return BitMap64(packed(np.sort(places)))  # sorting first is several times faster


def set_of_numbers(numbers: Numbers) -> IntegerIdentifiers:
    """Return the set of some valid identifiers, which must be in ascending order."""
    return _set_of(BitMap64(packed(numbers)))


def _set_of(members: BitMap64) -> IntegerIdentifiers:
    members.run_optimize()
    return IntegerIdentifiers(members)


def _set_of_texts(texts: pa.LargeStringArray) -> Identifiers:
    gathered = builder("string")
    gathered.add(texts)
    return gathered.identifiers()


def _are_dense(numbers: Numbers) -> bool:
    return not len(numbers) or int(numbers[-1] - numbers[0]) < _DENSE * len(numbers)


def _groups(segments: list[tuple[int, Numbers]]) -> Iterator[list[tuple[int, Numbers]]]:
    """Split segments into groups whose numbers, placed one after the other, fit into 63 bits."""
    group: list[tuple[int, Numbers]] = []
    end = 0
    for code, numbers in segments:
        span = int(numbers[-1] - numbers[0]) + 1
        if group and end + span > _LINE:
            yield group
            group, end = [], 0
        group.append((code, numbers))
        end += span
    if group:
        yield group
