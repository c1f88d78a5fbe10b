"""Sets of identifiers: deduplicated, compared, sliced and stored without a Python object for each of them.

Whole numbers live in a compressed bitmap (Roaring, 64 bits), text in one sorted Arrow array. Both kinds have the same
methods, never change once made, and show their size but no member when printed.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sendoff.text_order import lengths_and_text, sorted_once

Kind = Literal["integer", "string"]

LARGEST = 2**63 - 1
_SPARSE = 1_000  # one number in so many: where a range of them would be larger than the numbers
_BLOCK = 1 << 20  # identifiers that are unpacked at once
_HASHED_AT_ONCE = 1 << 16  # part of the fingerprint of strings: their lengths and bytes alternate
_SORTED_AT_ONCE = 64 << 20  # bytes of text that wait before they are sorted


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IntegerIdentifiers:
    """A set of whole numbers from 1 to 2**63 - 1."""

    _bitmap: BitMap64
    kind: ClassVar[Literal["integer"]] = "integer"

    def __len__(self) -> int:
        return len(self._bitmap)

    def __contains__(self, identifier: object) -> bool:
        if not isinstance(identifier, int | np.integer):
            return False
        return 0 < int(identifier) <= LARGEST and int(identifier) in self._bitmap

    def __iter__(self) -> Iterator[int]:
        return iter(self._bitmap)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        return bool(self._bitmap == other._bitmap)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} integer identifiers>"

    def __or__(self, other: Identifiers) -> IntegerIdentifiers:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        return IntegerIdentifiers(self._bitmap | other._bitmap)

    def __and__(self, other: Identifiers) -> IntegerIdentifiers:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        return IntegerIdentifiers(self._bitmap & other._bitmap)

    def __sub__(self, other: Identifiers) -> IntegerIdentifiers:
        if not isinstance(other, IntegerIdentifiers):
            return NotImplemented
        return IntegerIdentifiers(self._bitmap - other._bitmap)

    def slices(self, size: int) -> Iterator[IntegerIdentifiers]:
        """Yield consecutive runs in sorted order, each of ``size`` but the last; none is empty."""
        _check_size(size)
        # A slice is found by counting from the front, so large blocks are cut first and small slices from them.
        block = size * max(1, _BLOCK // size)
        for start in range(0, len(self), block):
            part = _cut(self._bitmap, start, block)
            for offset in range(0, len(part), size):
                yield IntegerIdentifiers(_cut(part, offset, size))

    def values(self) -> npt.NDArray[np.uint64]:
        """Return the members in sorted order, eight bytes each."""
        return np.asarray(self._bitmap.to_array())

    def to_bytes(self) -> bytes:
        """Return the set in the portable Roaring format for 64 bits."""
        packed = self._bitmap.copy()
        packed.run_optimize()
        return bytes(packed.serialize())

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that depend on the members and nothing else."""
        digest = hashlib.blake2b(b"integer", digest_size=16)
        for part in self.slices(_BLOCK):
            digest.update(part.values().astype("<u8", copy=False).data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StringIdentifiers:
    """A set of texts, held sorted by their UTF-8 bytes."""

    _array: pa.LargeStringArray
    kind: ClassVar[Literal["string"]] = "string"

    def __len__(self) -> int:
        return len(self._array)

    def __contains__(self, identifier: object) -> bool:
        if not isinstance(identifier, str):
            return False
        place = bisect_left(self._array, identifier, key=lambda member: member.as_py())
        return place < len(self) and self._array[place].as_py() == identifier

    def __iter__(self) -> Iterator[str]:
        return (scalar.as_py() for scalar in self._array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        return bool(self._array.equals(other._array))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} string identifiers>"

    def __or__(self, other: Identifiers) -> StringIdentifiers:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        return StringIdentifiers(sorted_once([self._array, other._array]))

    def __and__(self, other: Identifiers) -> StringIdentifiers:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        return StringIdentifiers(self._array.filter(pc.is_in(self._array, value_set=other._array)))

    def __sub__(self, other: Identifiers) -> StringIdentifiers:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        shared = pc.is_in(self._array, value_set=other._array)
        return StringIdentifiers(self._array.filter(pc.invert(shared)))

    def slices(self, size: int) -> Iterator[StringIdentifiers]:
        """Yield consecutive runs in sorted order, each of ``size`` but the last; none is empty."""
        _check_size(size)
        for start in range(0, len(self), size):
            yield StringIdentifiers(self._array.slice(start, size))

    def values(self) -> list[str]:
        """Return the members in sorted order; take a slice first, for each becomes a Python object here."""
        members: list[str] = self._array.to_pylist()
        return members

    def to_bytes(self) -> bytes:
        """Return the set as an Arrow IPC stream, compressed with Zstandard."""
        batch = pa.record_batch([self._array], names=["identifier"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that depend on the members and nothing else."""
        digest = hashlib.blake2b(b"string", digest_size=16)
        for part in self.slices(_HASHED_AT_ONCE):
            lengths, text = lengths_and_text(part._array)
            digest.update(lengths.astype("<u8").data)
            digest.update(text.data)
        return digest.hexdigest()


Identifiers = IntegerIdentifiers | StringIdentifiers
_Set = TypeVar("_Set", IntegerIdentifiers, StringIdentifiers)


def empty(kind: Kind) -> Identifiers:
    """Return the set without members."""
    return gathering(kind).identifiers()


def integers(values: npt.ArrayLike | Iterable[int]) -> IntegerIdentifiers:
    """Return the set of ``values``, in any order and with duplicates; ValueError for one below 1 or above 2**63 - 1."""
    column = pa.array(np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.int64))  # type: ignore[arg-type]
    if _which_are_usable(column.view(pa.uint64())) is not None:
        raise ValueError("an identifier is a whole number from 1 to 2**63 - 1")
    unordered = IntegerGathering()
    unordered.add(column.view(pa.uint64()))
    return unordered.identifiers()


def strings(values: Iterable[str]) -> StringIdentifiers:
    """Return the set of ``values``, in any order and with duplicates; ValueError for one that is empty or blank."""
    column = pa.array(values, pa.large_string())
    if _which_are_usable(column) is not None:
        raise ValueError("an identifier is not blank")
    return StringIdentifiers(sorted_once([column]))


def union(kind: Kind, sets: Iterable[Identifiers]) -> Identifiers:
    """Return everybody who is in at least one of ``sets``, all of that kind; cheaper than joining them in pairs."""
    if kind == "integer":
        return IntegerIdentifiers(
            BitMap64().union(*(each._bitmap for each in _all_of(IntegerIdentifiers, sets)))
        )
    arrays = [each._array for each in _all_of(StringIdentifiers, sets)]
    return StringIdentifiers(sorted_once(arrays)) if arrays else empty(kind)


def from_bytes(kind: Kind, blob: bytes) -> Identifiers:
    """Read what ``to_bytes`` of a set of that kind gave; ValueError when it is something else or cut short."""
    if kind == "integer":
        if not blob:
            raise ValueError("an empty value is no set of identifiers")
        return IntegerIdentifiers(BitMap64.deserialize(blob))
    try:
        column = pa.ipc.open_stream(blob).read_all().column("identifier")
    except (OSError, KeyError) as error:
        raise ValueError("this value is no set of string identifiers") from error
    return StringIdentifiers(pa.concat_arrays([*column.chunks, pa.array([], pa.large_string())]))


class Collector:
    """Gathers a set from Arrow arrays, batch by batch, and accounts for every row.

    ``rows`` is always the number of ``identifiers()`` plus ``null``, ``invalid`` and ``duplicate``.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows = self.null = self.invalid = 0
        self._gathering = gathering(kind)

    @property
    def duplicate(self) -> int:
        """Rows whose identifier came before; counted by subtraction, so it costs nothing while rows arrive."""
        return self.rows - self.null - self.invalid - len(self._gathering)

    def add(self, column: pa.Array) -> pa.BooleanArray | None:
        """Take one array of unsigned 64-bit integers or large strings; return which rows were usable, None for all."""
        usable = _which_are_usable(column)
        kept = column if usable is None else column.filter(usable)
        self.rows += len(column)
        self.null += column.null_count
        self.invalid += len(column) - column.null_count - len(kept)
        self._gathering.add(kept)
        return usable

    def identifiers(self) -> Identifiers:
        """Return the set of everything usable so far."""
        return self._gathering.identifiers()


class IntegerGathering:
    """A set of whole numbers in the making, from arrays of usable unsigned 64-bit integers."""

    def __init__(self) -> None:
        self._bitmap = BitMap64()

    def __len__(self) -> int:
        return len(self._bitmap)

    def add(self, column: pa.UInt64Array) -> None:
        """Take one array without nulls; sorted ones are faster."""
        if not len(column):
            return
        # pyroaring takes this type in one piece, any other number by number.
        packed = array("Q")
        packed.frombytes(column.to_numpy(zero_copy_only=True).view(np.uint8).data)
        self._bitmap.update(packed)

    def identifiers(self) -> IntegerIdentifiers:
        """Return the set so far."""
        bitmap = self._bitmap.copy()
        bitmap.run_optimize()
        return IntegerIdentifiers(bitmap)


class StringGathering:
    """A set of texts in the making, from arrays of usable large strings."""

    def __init__(self) -> None:
        self._sorted: pa.LargeStringArray = pa.array([], pa.large_string())
        self._waiting: list[pa.LargeStringArray] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._in_order())

    def add(self, column: pa.LargeStringArray) -> None:
        """Take one array without nulls."""
        self._waiting.append(column)
        self._bytes += column.nbytes
        # Sorting again only after three times as much has come keeps all sorting near the cost of the last.
        if self._bytes > max(_SORTED_AT_ONCE, 3 * self._sorted.nbytes):
            self._in_order()

    def identifiers(self) -> StringIdentifiers:
        """Return the set so far."""
        return StringIdentifiers(self._in_order())

    def _in_order(self) -> pa.LargeStringArray:
        if self._waiting:
            self._sorted = sorted_once([self._sorted, *self._waiting])
            self._waiting, self._bytes = [], 0
        return self._sorted


Gathering = IntegerGathering | StringGathering


def gathering(kind: Kind) -> Gathering:
    """Return a new, empty gathering of that kind."""
    return IntegerGathering() if kind == "integer" else StringGathering()


def _which_are_usable(column: pa.Array) -> pa.BooleanArray | None:
    if pa.types.is_large_string(column.type):
        usable = pc.and_not(pc.binary_length(column).cast(pa.bool_()), pc.utf8_is_space(column))
        return None if pc.all(usable, skip_nulls=False, min_count=0).as_py() else pc.fill_null(usable, False)
    signed = column.view(pa.int64())  # whatever is above 2**63 - 1 is negative then
    if not column.null_count and (not len(column) or pc.min(signed).as_py() > 0):
        return None
    return pc.fill_null(pc.greater(signed, 0), False)


def _cut(bitmap: BitMap64, start: int, size: int) -> BitMap64:
    stop = min(start + size, len(bitmap))
    first, last = bitmap[start], bitmap[stop - 1]
    if last - first > size * _SPARSE:
        return bitmap[start:stop]
    # Meeting a range copies whole containers, where pyroaring's own slices go number by number.
    span = BitMap64()
    span.add_range(first, last + 1)
    return bitmap & span


def _all_of(type_: type[_Set], sets: Iterable[Identifiers]) -> Iterator[_Set]:
    for each in sets:
        if not isinstance(each, type_):
            raise TypeError(f"{each!r} among sets of the other kind")
        yield each


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError("a slice holds at least one identifier")
