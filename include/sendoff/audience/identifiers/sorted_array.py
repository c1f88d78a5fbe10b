"""Sorted arrays of scattered numbers, such as hashes, with eight bytes per number.

Unless stated otherwise, arrays passed to and returned by these functions hold unsigned 64-bit numbers in ascending
order, without duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pyroaring import BitMap64

from sendoff.audience.identifiers.selection import Answer, Numbers, packed

_FEWEST = 64  # average members per container of 65,536 numbers; with fewer, an array is as good as a bitmap
_BLOCK = 1 << 20  # numbers to pack into a bitmap at once


def is_scattered(containers: int, members: int) -> bool:
    """Check whether an array suits a set better than a bitmap, by its numbers of Roaring containers and members."""
    return containers * _FEWEST > members


def containers_of(members: Numbers) -> int:
    """Count the Roaring containers that the members would need."""
    highest = members >> np.uint64(16)
    return int(np.count_nonzero(highest[1:] != highest[:-1])) + min(1, len(members))


def joined(arrays: Sequence[Numbers]) -> Numbers:
    """Join arrays, which may be unsorted and contain duplicates, into one sorted array without duplicates."""
    members = np.concatenate([np.empty(0, np.uint64), *arrays])
    if np.all(members[:-1] < members[1:]):
        return members
    members.sort()
    return members[np.flatnonzero(np.append(True, members[1:] != members[:-1]))]


def shared(one: Numbers, other: Numbers) -> Numbers:
    """Return the numbers in both arrays."""
    smaller, larger = sorted((one, other), key=len)
    return smaller[_are_in(smaller, larger)]


def less(members: Numbers, gone: Numbers) -> Numbers:
    """Return ``members`` without the numbers in ``gone``."""
    if len(gone) > len(members):
        return members[~_are_in(members, gone)]
    stays = np.ones(len(members), np.bool_)
    stays[np.searchsorted(members, gone[_are_in(gone, members)])] = False
    return members[stays]


def shared_with(members: Numbers, bitmap: BitMap64) -> Numbers:
    """Return the members that are in a bitmap too."""
    return _by_block(members, lambda block: block & bitmap)


def less_bitmap(members: Numbers, gone: BitMap64) -> Numbers:
    """Return the members that are not in a bitmap."""
    return _by_block(members, lambda block: block - gone)


def bitmap_of(members: Numbers) -> BitMap64:
    """Return the members as a bitmap, which needs many times the memory if they are scattered."""
    return BitMap64(packed(members))


def _by_block(members: Numbers, operation: Callable[[BitMap64], BitMap64]) -> Numbers:
    blocks = (bitmap_of(members[start : start + _BLOCK]) for start in range(0, len(members), _BLOCK))
    return np.concatenate([np.empty(0, np.uint64), *(operation(block).to_array() for block in blocks)])


def _are_in(few: Numbers, many: Numbers) -> Answer:
    if not len(many):
        return np.zeros(len(few), np.bool_)
    places = np.searchsorted(many, few)
    answer: Answer = many[np.minimum(places, len(many) - 1)] == few
    return answer
