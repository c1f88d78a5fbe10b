"""Sets of whole numbers, in compressed bitmaps (Roaring, 64 bits).

The bitmap is made for numbers that were given out one after another: then a hundred million take some megabytes.
Numbers scattered over all 64 bits, such as hashes, take some hundred and fifty bytes each.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

if TYPE_CHECKING:
    from sendoff.identifiers import Identifiers

LARGEST = 2**63 - 1

_BLOCK = 1 << 20  # identifiers that are unpacked at once
_SCATTERED = 64  # so many members to a container of 65,536, or fewer
_SPARSE = 1_000  # one number in so many: where a range of them would be larger than the numbers


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
        if size < 1:
            raise ValueError("a slice holds at least one identifier")
        if self._is_scattered():
            members = self.values()
            for start in range(0, len(members), size):
                yield IntegerIdentifiers(BitMap64(_packed(members[start : start + size])))
            return
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
        self._bitmap.run_optimize()  # changes how the members are held, and no member
        return bytes(self._bitmap.serialize())

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that depend on the members and nothing else."""
        digest = hashlib.blake2b(b"integer", digest_size=16)
        for members in (
            [self.values()] if self._is_scattered() else (each.values() for each in self.slices(_BLOCK))
        ):
            digest.update(members.astype("<u8", copy=False).data)
        return digest.hexdigest()

    def _is_scattered(self) -> bool:
        # Then counting from the front is slow, and the members as numbers are small beside the bitmap.
        return bool(self._bitmap.get_statistics()["n_containers"] * _SCATTERED > len(self))


class IntegerGathering:
    """A set of whole numbers in the making, from arrays of usable unsigned 64-bit integers."""

    def __init__(self) -> None:
        self._bitmap = BitMap64()
        self._is_given_away = False

    def __len__(self) -> int:
        return len(self._bitmap)

    def add(self, column: pa.UInt64Array) -> None:
        """Take one array without nulls; sorted ones are faster."""
        if self._is_given_away:
            self._bitmap, self._is_given_away = self._bitmap.copy(), False
        if len(column):
            self._bitmap.update(_packed(column.to_numpy(zero_copy_only=True)))

    def identifiers(self) -> IntegerIdentifiers:
        """Return the set so far."""
        self._bitmap.run_optimize()
        self._is_given_away = True
        return IntegerIdentifiers(self._bitmap)


def usable_numbers(column: pa.UInt64Array) -> pa.BooleanArray | None:
    """Tell which numbers can be identifiers; None for all."""
    signed = column.view(pa.int64())  # whatever is above 2**63 - 1 is negative then
    if not column.null_count and (not len(column) or pc.min(signed).as_py() > 0):
        return None
    return pc.fill_null(pc.greater(signed, 0), False)


def _packed(members: npt.NDArray[np.uint64]) -> array[int]:
    # pyroaring takes this type in one piece, any other number by number.
    packed = array("Q")
    packed.frombytes(members.view(np.uint8).data)
    return packed


def _cut(bitmap: BitMap64, start: int, size: int) -> BitMap64:
    stop = min(start + size, len(bitmap))
    first, last = bitmap[start], bitmap[stop - 1]
    if last - first > size * _SPARSE:
        return bitmap[start:stop]
    # Meeting a range copies whole containers, where pyroaring's own slices go number by number.
    span = BitMap64()
    span.add_range(first, last + 1)
    return bitmap & span
