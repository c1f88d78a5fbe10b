"""Places: a number for everybody whom a dispatch was sent to, so that many dispatches are counted at once.

Each dispatch has an interval of one line, and each of its people a place in it. Places lie close together whatever
the identifiers are, so that who was heard of is a small bitmap over the line, for all dispatches together.

.. code-block:: text

    numbers that lie close together ..... by their distance from the lowest of the segment
    numbers that are scattered .......... by their rank in the segment
    texts ............................... by their rank in the segment
    chosen by the service ............... none: anybody can be among them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sendoff.audience import packed
from sendoff.audience.identifiers import Identifiers, IntegerIdentifiers, StringIdentifiers, gathering
from sendoff.ledger import Ledger, column_of, marks, values

UNKNOWN, CLOSE, SCATTERED, TEXT, ANYBODY = range(5)

_CLOSE = 64  # numbers of a span for each member of it
_TEXT_BYTES = 64 << 20  # of segments that are kept to be looked into again
_SCATTERED_BYTES = 256 << 20
_NUMBERS_AT_ONCE = 1 << 18
_LINE = 1 << 63

Numbers = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.intp]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Scattered:
    """Some segments of scattered numbers, one behind the other and each from 0, in sorted order."""

    numbers: Numbers
    first_place: int


class Places:
    """The places of the dispatches that it was told of, each under a code of its own, from 0.

    What it read of a segment it keeps: a bit or so for each person where numbers lie close together, eight bytes where
    they are scattered, and texts up to a limit. One that is full, as :meth:`is_full` says, is to be replaced by an
    empty one.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._codes: dict[str, int] = {}
        self.keys: list[str] = []
        self.ways = np.zeros(0, np.uint8)
        self.begins = np.zeros(0, np.uint64)  # the first place of each dispatch
        self.widths = np.zeros(0, np.uint64)
        self._lowest = np.zeros(0, np.uint64)
        self._start = np.zeros(0, np.uint64)  # of scattered numbers, in their group
        self._group = np.zeros(0, np.intp)
        self._groups: list[_Scattered] = []
        self._members = BitMap64()  # places where somebody is, of numbers that lie close together
        self._texts: dict[int, pa.LargeStringArray] = {}
        self._text_bytes = 0
        self._end = 0

    def is_full(self) -> bool:
        """Say whether what is kept of scattered numbers has reached its limit; codes that were given need it still."""
        return sum(group.numbers.nbytes for group in self._groups) >= _SCATTERED_BYTES

    def codes(self, dispatch_keys: pa.StringArray) -> Codes:
        """Give the code of each dispatch key; new ones get one."""
        encoded = dispatch_keys.dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        for key in keys:
            if key not in self._codes:
                self._codes[key] = len(self.keys)
                self.keys.append(key)
        self._grow()
        of_batch: Codes = np.fromiter((self._codes[key] for key in keys), np.intp, len(keys))
        codes: Codes = of_batch[values(encoded.indices)]
        return codes

    def _grow(self) -> None:
        for name in ("ways", "begins", "widths", "_lowest", "_start", "_group"):
            of_all = getattr(self, name)
            if more := len(self.keys) - len(of_all):
                setattr(self, name, np.append(of_all, np.zeros(more, of_all.dtype)))

    def learn(self, codes: Iterable[int]) -> None:
        """Read whom some dispatches were sent to, unless that is known already."""
        keys = [self.keys[code] for code in codes if self.ways[code] == UNKNOWN]
        scattered: list[tuple[int, Numbers]] = []
        close: list[Numbers] = []
        waiting = 0  # numbers in close
        for key, people in self._ledger.returns.sent_to(keys):
            code = self._codes[key]
            if people is None:
                self.ways[code] = ANYBODY
            elif isinstance(people, StringIdentifiers):
                self._take(code, TEXT, len(people))
                self._keep(code, people)
            else:
                numbers = people.values()
                if _lie_close(numbers):
                    close.append(self._take_close(code, numbers))
                    waiting += len(numbers)
                else:
                    scattered.append((code, numbers))
            if waiting > _NUMBERS_AT_ONCE:
                self._add_members(close)
                waiting = 0
        self._add_members(close)
        for group in _groups(scattered):
            self._take_scattered(group)

    def _take(self, code: int, way: int, width: int) -> None:
        self.ways[code], self.begins[code], self.widths[code] = way, self._end, width
        self._end += width

    def _take_close(self, code: int, numbers: Numbers) -> Numbers:
        self._lowest[code] = numbers[0] if len(numbers) else 0
        self._take(code, CLOSE, int(numbers[-1] - numbers[0]) + 1 if len(numbers) else 0)
        places: Numbers = numbers - self._lowest[code] + self.begins[code]
        return places

    def _add_members(self, close: list[Numbers]) -> None:
        if close:
            self._members.update(packed(np.concatenate(close)))
            self._members.run_optimize()
            close.clear()

    def _take_scattered(self, segments: list[tuple[int, Numbers]]) -> None:
        first, start, lines = self._end, 0, []
        for code, numbers in segments:
            self._take(code, SCATTERED, len(numbers))
            self._lowest[code], self._start[code], self._group[code] = numbers[0], start, len(self._groups)
            lines.append(numbers - numbers[0] + np.uint64(start))
            start = int(lines[-1][-1]) + 1
        self._groups.append(_Scattered(np.concatenate(lines), first))

    def _keep(self, code: int, people: StringIdentifiers) -> None:
        texts = people.column()
        if self._text_bytes + texts.nbytes > _TEXT_BYTES:
            self._texts, self._text_bytes = {}, 0
        self._texts[code] = texts
        self._text_bytes += texts.nbytes

    def find(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        """Give the place of whom each post-back names, and mark those that name somebody it was sent to.

        ``codes`` and ``batch`` are of the same length; places stand where it is marked.
        """
        ways = self.ways[codes]
        places, known = np.zeros(len(codes), np.uint64), np.zeros(len(codes), np.bool_)
        for way, look in (
            (CLOSE, self._find_close),
            (SCATTERED, self._find_scattered),
            (TEXT, self._find_text),
        ):
            rows = np.flatnonzero(ways == way)
            if len(rows) == len(codes):
                return look(codes, batch)
            if len(rows):
                places[rows], known[rows] = look(codes[rows], batch.take(column_of(rows)))
        return places, known

    def _find_close(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        distances = numbers_of(batch) - self._lowest[codes]  # of whoever is below it, beyond any width
        known = distances < self.widths[codes]
        places = distances + self.begins[codes]
        strangers = bitmap(places[known]) - self._members
        if strangers:
            known &= ~np.isin(places, np.asarray(strangers.to_array()))
        return places, known

    def _find_scattered(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
        numbers = numbers_of(batch)
        places, known = np.zeros(len(codes), np.uint64), np.zeros(len(codes), np.bool_)
        groups = self._group[codes]
        for number in np.unique(groups):
            group, rows = self._groups[number], np.flatnonzero(groups == number)
            of = codes[rows]
            wanted = numbers[rows] - self._lowest[of] + self._start[of]
            ranks = np.minimum(np.searchsorted(group.numbers, wanted), len(group.numbers) - 1)
            found = (ranks + group.first_place).astype(np.uint64)
            # Of another segment of the group is whoever lies beyond the dispatch's own places.
            known[rows] = (group.numbers[ranks] == wanted) & (found - self.begins[of] < self.widths[of])
            places[rows] = found
        return places, known

    def _find_text(self, codes: Codes, batch: pa.RecordBatch) -> tuple[Numbers, Marks]:
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
        for key, people in self._ledger.returns.sent_to(
            self.keys[code] for code in codes if code not in kept
        ):
            assert isinstance(people, StringIdentifiers)
            self._keep(self._codes[key], people)
            yield self._codes[key], people.column()

    def people(self, codes: Codes, places: Numbers) -> Iterator[tuple[int, Identifiers]]:
        """Yield codes, each with who is meant by its places; ``codes`` stand in the order of their places."""
        begins = np.searchsorted(places, self.begins[codes])
        ends = np.searchsorted(places, self.begins[codes] + self.widths[codes])
        of = {code: places[a:b] for code, a, b in zip(codes.tolist(), begins, ends, strict=True)}
        texts = [code for code in of if self.ways[code] == TEXT]
        for code, segment in self._text_segments(texts):
            ranks = of[code] - self.begins[code]
            yield code, _set_of_texts(segment.take(column_of(ranks.view(np.int64))))
        for code, some in of.items():
            if self.ways[code] == CLOSE:
                yield code, set_of_numbers(some - self.begins[code] + self._lowest[code])
            elif self.ways[code] == SCATTERED:
                group = self._groups[self._group[code]]
                numbers = group.numbers[some - np.uint64(group.first_place)]
                yield code, set_of_numbers(numbers - self._start[code] + self._lowest[code])


def numbers_of(batch: pa.RecordBatch) -> Numbers:
    """Give the device of each post-back; 0, which is nobody's number, where it names none."""
    devices = batch["device_id"]
    numbers: Numbers = values(devices).view(np.uint64)
    return np.where(marks(devices.is_valid()), numbers, np.uint64(0)) if devices.null_count else numbers


def bitmap(places: Numbers) -> BitMap64:
    """Give a set of places, which come in any order."""
    return BitMap64(packed(np.sort(places)))  # sorting first makes it several times faster


def set_of_numbers(numbers: Numbers) -> IntegerIdentifiers:
    """Give the set of usable identifiers, in ascending order."""
    members = BitMap64(packed(numbers))
    members.run_optimize()
    return IntegerIdentifiers(members)


def _set_of_texts(texts: pa.LargeStringArray) -> Identifiers:
    gathered = gathering("string")
    gathered.add(texts)
    return gathered.identifiers()


def _lie_close(numbers: Numbers) -> bool:
    return not len(numbers) or int(numbers[-1] - numbers[0]) < _CLOSE * len(numbers)


def _groups(segments: list[tuple[int, Numbers]]) -> Iterator[list[tuple[int, Numbers]]]:
    """Cut segments into groups whose numbers can stand one behind the other in 63 bits."""
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
