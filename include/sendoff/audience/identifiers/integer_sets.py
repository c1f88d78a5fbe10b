"""Sets of whole numbers, in compressed bitmaps (64-bit Roaring) or in sorted arrays.

A bitmap suits numbers that were assigned one after another: a hundred million of them take a few megabytes. Scattered
numbers, such as hashes, would take about 150 bytes each in a bitmap, but take eight in an array. Which of the two a set
uses depends on its members only, but a subset of scattered numbers may be a bitmap of places in the array of all.
Callers cannot tell the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sendoff.audience.identifiers import sorted_array
from sendoff.audience.identifiers.places import Places, placed, whole
from sendoff.audience.identifiers.selection import MarkNumbers, Numbers, chosen, packed

LARGEST = 2**63 - 1

# Bytes besides a container: its key and place, and those of its 2**32 numbers if it is alone there.
_AROUND = 21
_BLOCK = 1 << 20  # identifiers to unpack at once
# With fewer than one member in so many numbers, a bitmap of the range is larger than the members.
_SPARSE = 1_000
_FIRST_LOOK = 1 << 12  # members after which a builder first checks whether they are scattered
_WAITING = 1 << 20  # numbers to collect before sorting, which also shows whether they are scattered
_ROOM = 16  # a full array grows by a sixteenth


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IntegerIdentifiers:
    """A set of whole numbers from 1 to 2**63 - 1."""

    _held: BitMap64 | Numbers | Places  # the first two as returned by _settled
    kind: ClassVar[Literal["integer"]] = "integer"

    @classmethod
    def of(cls, members: BitMap64 | Numbers) -> IntegerIdentifiers:
        """Return the set with the members of a bitmap, or of a sorted array without duplicates.

        The caller must not change either of them afterwards.
        """
        return cls(_settled(members))

    @classmethod
    def from_bytes(cls, blob: bytes) -> IntegerIdentifiers:
        """Read a set that ``to_bytes`` wrote. Raise ValueError if ``blob`` is something else or incomplete."""
        if not blob:
            raise ValueError("an empty value is not a set of identifiers")
        members = sorted_array.from_bytes(blob)
        return cls.of(BitMap64.deserialize(blob) if members is None else members)

    @property
    def _members(self) -> BitMap64 | Numbers:
        return _settled(self._held.numbers()) if isinstance(self._held, Places) else self._held

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, identifier: object) -> bool:
        if not isinstance(identifier, int | np.integer) or not 0 < int(identifier) <= LARGEST:
            return False
        number = int(identifier)
        if isinstance(self._held, Places):
            return self._held.has(number)
        if isinstance(self._members, BitMap64):
            return number in self._members
        return bool(len(sorted_array.shared(np.array([number], np.uint64), self._members)))

    def __iter__(self) -> Iterator[int]:
        return iter(members) if isinstance(members := self._members, BitMap64) else map(int, members)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        if len(self) != len(other):
            return False
        one, two = self._members, other._members
        if isinstance(one, BitMap64) or isinstance(two, BitMap64):
            return type(one) is type(two) and bool(one == two)
        return np.array_equal(one, two)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} integer identifiers>"

    def __or__(self, other: object) -> IntegerIdentifiers:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        return united([self, other])

    def __and__(self, other: object) -> IntegerIdentifiers:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        if places := _in_one_array(self, other):
            return IntegerIdentifiers(places[0] & places[1])
        return IntegerIdentifiers.of(_shared(self._members, other._members))

    def __sub__(self, other: object) -> IntegerIdentifiers:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        if not len(other):
            return self
        if places := _in_one_array(self, other):
            return IntegerIdentifiers(places[0] - places[1])
        return IntegerIdentifiers.of(_less(self._members, other._members))

    def within(self, other: IntegerIdentifiers) -> IntegerIdentifiers:
        """Return the members that are also in another set, in the memory of that set if both are scattered."""
        base = _array_of(other)
        if _array_of(self) is base or base is None or isinstance(members := self._members, BitMap64):
            return self & other
        return IntegerIdentifiers(placed(members, base)) & other

    def chosen(self, rule: MarkNumbers, answers: int) -> list[IntegerIdentifiers]:
        """Return the members that a rule chooses, one set for each of its masks; ``answers`` is their number.

        The rule must treat each number by itself, and is also applied to numbers that are not members.
        """
        if not isinstance(self._held, BitMap64):
            return [IntegerIdentifiers(places) for places in _places(self._held).chosen(rule, answers)]
        sets = [BitMap64() for _ in range(answers)]
        for part in _runs(self._held, _BLOCK):
            for place, more in enumerate(chosen(part, rule)):
                sets[place] |= more
        return [IntegerIdentifiers.of(bitmap) for bitmap in sets]

    def slices(self, size: int) -> Iterator[IntegerIdentifiers]:
        """Yield consecutive slices in sorted order, each with ``size`` members except the last; none is empty."""
        if size < 1:
            raise ValueError("a slice needs at least one identifier")
        if isinstance(self._held, BitMap64):
            yield from map(IntegerIdentifiers.of, _runs(self._held, size))
        elif isinstance(self._held, Places):
            yield from map(IntegerIdentifiers, self._held.slices(size))
        else:
            for start in range(0, len(self), size):
                yield IntegerIdentifiers.of(self._held[start : start + size])

    def values(self) -> Numbers:
        """Return the members in sorted order, eight bytes each."""
        if isinstance(self._held, Places):
            return self._held.numbers()
        return np.asarray(self._held.to_array()) if isinstance(self._held, BitMap64) else self._held

    def column(self) -> pa.UInt64Array:
        """Return the members in sorted order, as an Arrow array."""
        return pa.array(self.values(), pa.uint64())

    @property
    def stored_bytes(self) -> int:
        """An upper limit for the size of ``to_bytes``, computed without writing them."""
        members = self._members
        if not isinstance(members, BitMap64):
            return sorted_array.most_bytes(len(self))
        stats = members.get_statistics()
        lists = stats["n_bytes_array_containers"] + stats["n_bytes_run_containers"]
        return lists + stats["n_bytes_bitset_containers"] + stats["n_containers"] * _AROUND + 8

    def to_bytes(self) -> bytes:
        """Return the set in the portable 64-bit Roaring format, or as an array's first number and gaps."""
        members = self._members
        if not isinstance(members, BitMap64):
            return sorted_array.to_bytes(members)
        members.run_optimize()  # changes the representation only
        return bytes(members.serialize())

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that depend on the members only."""
        digest = hashlib.blake2b(b"integer", digest_size=16)
        for part in self.slices(_BLOCK):
            digest.update(part.values().astype("<u8", copy=False).data)
        return digest.hexdigest()


class IntegerSetBuilder:
    """Builds a set of whole numbers from arrays of usable unsigned 64-bit integers."""

    def __init__(self) -> None:
        # An array may have room at its end: the first self._filled numbers count, and self._ordered of them are sorted.
        self._members: BitMap64 | Numbers = BitMap64()
        self._filled = self._ordered = 0
        self._looks_at = _FIRST_LOOK
        self._is_given_away = False

    def __len__(self) -> int:
        return len(self._in_order())

    def add(self, column: pa.UInt64Array) -> None:
        """Add an array without nulls; sorted arrays are faster."""
        if not len(column):
            return
        numbers = column.to_numpy(zero_copy_only=True)
        if not isinstance(self._members, BitMap64):
            self._append(self._members, numbers)
            # Sorting only when the new numbers match the sorted ones keeps the total cost near that of one sort.
            if self._filled - self._ordered > max(_WAITING, self._ordered):
                self._in_order()
            return
        if self._is_given_away:
            self._members, self._is_given_away = self._members.copy(), False
        self._members.update(packed(numbers))
        if len(self._members) >= self._looks_at:
            self._hold(_settled(self._members))

    def identifiers(self) -> IntegerIdentifiers:
        """Return the set so far."""
        held = self._in_order()
        if isinstance(held, BitMap64):
            held.run_optimize()
        self._is_given_away = True
        return IntegerIdentifiers.of(held)

    def _append(self, held: Numbers, numbers: Numbers) -> None:
        """Write numbers behind the others; growing the array in its place is cheaper than keeping parts to join."""
        end = self._filled + len(numbers)
        if self._is_given_away or not held.flags.owndata:
            larger = np.empty(end + end // _ROOM, np.uint64)
            larger[: self._filled] = held[: self._filled]
            self._members, self._is_given_away, held = larger, False, larger
        held.flags.writeable = True
        if end > len(held):
            held.resize(end + end // _ROOM, refcheck=False)
        held[self._filled : end] = numbers
        self._filled = end

    def _in_order(self) -> BitMap64 | Numbers:
        held = self._members
        if not isinstance(held, BitMap64) and self._filled > self._ordered:
            held.resize(self._filled, refcheck=False)
            self._hold(_settled(sorted_array.ordered(held)))
        return self._members

    def _hold(self, members: BitMap64 | Numbers) -> None:
        self._members = members
        self._filled = self._ordered = len(members)
        self._looks_at = 2 * len(members)


def united(sets: Iterable[IntegerIdentifiers]) -> IntegerIdentifiers:
    """Return the union of sets."""
    given = [each for each in sets if len(each)]
    if len(given) == 1:
        return given[0]
    if places := _in_one_array(*given):
        return IntegerIdentifiers(reduce(or_, places))
    parts = [part._members for part in given]
    bitmaps = [part for part in parts if isinstance(part, BitMap64)]
    arrays = [part for part in parts if not isinstance(part, BitMap64)]
    members: BitMap64 | Numbers = sorted_array.joined(arrays)
    if any(bitmaps):
        members = BitMap64().union(*bitmaps, _bitmap(members))
    return IntegerIdentifiers.of(members)


def _array_of(identifiers: IntegerIdentifiers) -> Numbers | None:
    """Return the array that a set is in, or a part of; None if it is a bitmap."""
    held = identifiers._held
    return held.base if isinstance(held, Places) else None if isinstance(held, BitMap64) else held


def _in_one_array(*sets: IntegerIdentifiers) -> list[Places]:
    """Return sets by their places in one array if all are parts of the same one, and nothing otherwise."""
    arrays = [_array_of(each) for each in sets]
    if not arrays or any(each is None or each is not arrays[0] for each in arrays):
        return []
    return [_places(each._held) for each in sets if not isinstance(each._held, BitMap64)]


def _places(held: Numbers | Places) -> Places:
    return held if isinstance(held, Places) else whole(held)


def usable_numbers(column: pa.UInt64Array) -> pa.BooleanArray | None:
    """Return a mask of the numbers that can be identifiers, or None if all can."""
    signed = column.view(pa.int64())  # makes numbers above 2**63 - 1 negative
    if not column.null_count and (not len(column) or pc.min(signed).as_py() > 0):
        return None
    return pc.fill_null(pc.greater(signed, 0), False)


def _settled(members: BitMap64 | Numbers) -> BitMap64 | Numbers:
    """Return the members as a bitmap or as an array, whichever suits them."""
    if isinstance(members, BitMap64):
        if not sorted_array.is_scattered(members.get_statistics()["n_containers"], len(members)):
            return members
        members = np.asarray(members.to_array())
    elif not sorted_array.is_scattered(sorted_array.containers_of(members), len(members)):
        return _bitmap(members)
    members.flags.writeable = False  # values() returns this array itself
    return members


def _bitmap(members: BitMap64 | Numbers) -> BitMap64:
    return members if isinstance(members, BitMap64) else sorted_array.bitmap_of(members)


def _shared(one: BitMap64 | Numbers, other: BitMap64 | Numbers) -> BitMap64 | Numbers:
    if isinstance(one, BitMap64):
        return one & other if isinstance(other, BitMap64) else sorted_array.shared_with(other, one)
    if isinstance(other, BitMap64):
        return sorted_array.shared_with(one, other)
    return sorted_array.shared(one, other)


def _less(members: BitMap64 | Numbers, gone: BitMap64 | Numbers) -> BitMap64 | Numbers:
    if isinstance(members, BitMap64):
        near = gone if isinstance(gone, BitMap64) else sorted_array.shared_with(gone, members)
        return members - _bitmap(near)
    if isinstance(gone, BitMap64):
        return sorted_array.less_bitmap(members, gone)
    return sorted_array.less(members, gone)


def _runs(bitmap: BitMap64, size: int) -> Iterator[BitMap64]:
    """Yield consecutive runs of a bitmap, each with ``size`` members except the last."""
    # pyroaring finds a run by counting from the start. So large blocks are cut first, and small runs from them.
    block = size * max(1, _BLOCK // size)
    for start in range(0, len(bitmap), block):
        part = _cut(bitmap, start, block)
        for offset in range(0, len(part), size):
            yield _cut(part, offset, size)


def _cut(bitmap: BitMap64, start: int, size: int) -> BitMap64:
    stop = min(start + size, len(bitmap))
    first, last = bitmap[start], bitmap[stop - 1]
    if last - first > size * _SPARSE:
        return bitmap[start:stop]
    # An intersection with a range copies whole containers, while pyroaring's own slices go number by number.
    span = BitMap64()
    span.add_range(first, last + 1)
    return bitmap & span
