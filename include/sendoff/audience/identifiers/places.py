"""Subsets of a sorted array of scattered numbers, as bitmaps of places in it: about two bytes per member, not eight.

An audience and its groups, variants, waves and segments are subsets of one array. Comparing two of them compares
bitmaps, without a look at the numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from sendoff.audience.identifiers.selection import MarkNumbers, Numbers

_BLOCK = 1 << 20  # numbers to look at once


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The numbers of a sorted array without duplicates at some places."""

    base: Numbers
    places: BitMap

    def __len__(self) -> int:
        return len(self.places)

    def __and__(self, other: Places) -> Places:
        return Places(self.base, self.places & other.places)

    def __or__(self, other: Places) -> Places:
        return Places(self.base, self.places | other.places)

    def __sub__(self, other: Places) -> Places:
        return Places(self.base, self.places - other.places)

    def has(self, number: int) -> bool:
        """Check whether a number is a member."""
        place = int(np.searchsorted(self.base, np.uint64(number)))
        return place in self.places and int(self.base[place]) == number

    def numbers(self) -> Numbers:
        """Return the members in sorted order, eight bytes each."""
        found: Numbers = self.base[np.asarray(self.places.to_array())]
        found.flags.writeable = False
        return found

    def chosen(self, rule: MarkNumbers, answers: int) -> list[Places]:
        """Return the members that a rule chooses, for each of its masks; ``answers`` is their number."""
        found = [BitMap() for _ in range(answers)]
        for places in self._blocks(_BLOCK):
            for number, answer in enumerate(rule(self.base[places])):
                found[number] |= _bitmap(places[np.flatnonzero(answer)])
        return [Places(self.base, bitmap) for bitmap in found]

    def slices(self, size: int) -> Iterator[Places]:
        """Yield consecutive slices in sorted order, each with ``size`` members except the last."""
        for places in self._blocks(size):
            yield Places(self.base, _bitmap(places))

    def _blocks(self, size: int) -> Iterator[Numbers]:
        whole = np.asarray(self.places.to_array())
        for start in range(0, len(whole), size):
            yield whole[start : start + size]


def whole(base: Numbers) -> Places:
    """Return all numbers of an array, which has fewer than 2**32."""
    return Places(base, BitMap(range(len(base))))


def placed(members: Numbers, base: Numbers) -> Places:
    """Return the numbers that are in both sorted arrays, by their places in ``base``."""
    found = BitMap()
    for start in range(0, len(members) if len(base) else 0, _BLOCK):
        block = members[start : start + _BLOCK]
        places = np.minimum(np.searchsorted(base, block), len(base) - 1)
        found |= _bitmap(places[base[places] == block])
    return Places(base, found)


def _bitmap(places: Numbers) -> BitMap:
    packed = array("I")
    packed.frombytes(places.astype(np.uint32, copy=False).view(np.uint8).data)
    return BitMap(packed)
