"""Whole numbers that lie far apart, such as hashes, in sorted arrays of eight bytes a number.

An array that these functions take holds unsigned 64-bit numbers in ascending order, each once; so does what they give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pyroaring import BitMap64

from sendoff.audience.identifiers.selection import Answer, Numbers, packed

_FEWEST = (
    64  # members of a container of 65,536, on average: with fewer, an array is smaller or as good as a bitmap
)
_BLOCK = 1 << 20  # numbers that are packed into a bitmap at once


def is_scattered(containers: int, members: int) -> bool:
    """Say whether so many members that fall into so many containers of Roaring are better held in an array."""
    return containers * _FEWEST > members


def containers_of(members: Numbers) -> int:
    """Count the containers of Roaring that members fall into."""
    highest = members >> np.uint64(16)
    return int(np.count_nonzero(highest[1:] != highest[:-1])) + min(1, len(members))


def joined(arrays: Sequence[Numbers]) -> Numbers:
    """Join arrays in any order, with duplicates within and among them."""
    members = np.concatenate([np.empty(0, np.uint64), *arrays])
    if np.all(members[:-1] < members[1:]):
        return members
    members.sort()
    return members[np.flatnonzero(np.append(True, members[1:] != members[:-1]))]


def shared(one: Numbers, other: Numbers) -> Numbers:
    """Give what is in both."""
    smaller, larger = sorted((one, other), key=len)
    return smaller[_are_in(smaller, larger)]


def less(members: Numbers, gone: Numbers) -> Numbers:
    """Give members without those that are gone."""
    if len(gone) > len(members):
        return members[~_are_in(members, gone)]
    stays = np.ones(len(members), np.bool_)
    stays[np.searchsorted(members, gone[_are_in(gone, members)])] = False
    return members[stays]


def shared_with(members: Numbers, bitmap: BitMap64) -> Numbers:
    """Give what is in a bitmap too."""
    return np.concatenate(
        [np.empty(0, np.uint64), *((each & bitmap).to_array() for each in _bitmaps(members))]
    )


def less_bitmap(members: Numbers, gone: BitMap64) -> Numbers:
    """Give members without those of a bitmap."""
    return np.concatenate([np.empty(0, np.uint64), *((each - gone).to_array() for each in _bitmaps(members))])


def bitmap_of(members: Numbers) -> BitMap64:
    """Give members as a bitmap, which takes many times their memory where they lie far apart."""
    return BitMap64(packed(members))


def _bitmaps(members: Numbers) -> Iterator[BitMap64]:
    return (bitmap_of(members[start : start + _BLOCK]) for start in range(0, len(members), _BLOCK))


def _are_in(few: Numbers, many: Numbers) -> Answer:
    if not len(many):
        return np.zeros(len(few), np.bool_)
    places = np.searchsorted(many, few)
    found: Answer = many[np.minimum(places, len(many) - 1)] == few
    return found
