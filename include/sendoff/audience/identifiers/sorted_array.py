"""Sorted arrays of scattered numbers, such as hashes, with eight bytes per number.

Unless stated otherwise, arrays passed to and returned by these functions hold unsigned 64-bit numbers in ascending
order, without duplicates.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
from pyroaring import BitMap64

from sendoff.audience.identifiers.selection import Marks, Numbers, packed

_FEWEST = 64  # average members per container of 65,536 numbers; with fewer, an array is as good as a bitmap
_BLOCK = 1 << 20  # numbers to compare at once
_PACKED = 1 << 16  # numbers to pack into a bitmap at once, because each takes about 150 bytes there

# How an array is stored: this mark, the bytes of each gap, the count of numbers, the first number, and the gap before
# each further one. A bitmap begins with the number of its parts, at most 2**32, so it never begins with the mark.
_MARK = b"numbers"
_HEAD = struct.Struct("<7sBQQ")


def is_scattered(containers: int, members: int) -> bool:
    """Check whether an array suits a set better than a bitmap, by its numbers of Roaring containers and members."""
    return containers * _FEWEST > members


def containers_of(members: Numbers) -> int:
    """Count the Roaring containers that the members would need."""
    count = min(1, len(members))
    for start in range(0, len(members), _BLOCK):
        highest = members[start : start + _BLOCK + 1] >> np.uint64(16)
        count += int(np.count_nonzero(highest[1:] != highest[:-1]))
    return count


def most_bytes(members: int) -> int:
    """Return an upper limit for the size of ``to_bytes``."""
    return _HEAD.size + 8 * members


def to_bytes(members: Numbers) -> bytes:
    """Store an array, which must not be empty: each gap takes as many bytes as the widest one."""
    gaps = np.diff(members).astype("<u8", copy=False)
    width = (int(gaps.max(initial=0)).bit_length() + 7) // 8
    head = _HEAD.pack(_MARK, width, len(members), int(members[0]))
    return head + gaps.view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def from_bytes(blob: bytes) -> Numbers | None:
    """Read an array that ``to_bytes`` stored; None if the value is not one. Raise ValueError if it is incomplete."""
    if not blob.startswith(_MARK):
        return None
    _, width, count, first = _HEAD.unpack(blob[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    if not count or width > 8 or len(blob) != _HEAD.size + (count - 1) * width:
        raise ValueError("this value is not a complete set of numbers")
    gaps = np.zeros((count, 8), np.uint8)
    gaps[1:, :width] = np.frombuffer(blob, np.uint8, offset=_HEAD.size).reshape(count - 1, width)
    members: Numbers = gaps.view("<u8").ravel().astype(np.uint64, copy=False)
    members[0] = first
    return np.cumsum(members, out=members)


def joined(arrays: Sequence[Numbers]) -> Numbers:
    """Join arrays, which may be unsorted and contain duplicates, into one sorted array without duplicates."""
    return ordered(np.concatenate([np.empty(0, np.uint64), *arrays]))


def ordered(numbers: Numbers) -> Numbers:
    """Sort an array that owns its memory, without duplicates, in this memory; the caller must not use it afterwards."""
    if not _rises(numbers):
        numbers.sort()
        count = 0
        for start in range(0, len(numbers), _BLOCK):
            block = numbers[start : start + _BLOCK].copy()
            is_new = np.append(not count or block[0] != numbers[count - 1], block[1:] != block[:-1])
            if count < start or not is_new.all():
                block = block[is_new]
                numbers[count : count + len(block)] = block
            count += len(block)
        numbers.resize(count, refcheck=False)
    return numbers


def _rises(numbers: Numbers) -> bool:
    blocks = (numbers[start : start + _BLOCK + 1] for start in range(0, len(numbers), _BLOCK))
    return all(bool(np.all(block[:-1] < block[1:])) for block in blocks)


def shared(one: Numbers, other: Numbers) -> Numbers:
    """Return the numbers in both arrays; one of them itself if all its numbers are in the other."""
    smaller, larger = sorted((one, other), key=len)
    are_in = _are_in(smaller, larger)
    return smaller if are_in.all() else smaller[are_in]


def less(members: Numbers, gone: Numbers) -> Numbers:
    """Return ``members`` without the numbers in ``gone``."""
    if len(gone) > len(members):
        return members[~_are_in(members, gone)]
    stays = np.ones(len(members), np.bool_)
    stays[np.searchsorted(members, gone[_are_in(gone, members)])] = False
    return members[stays]


def shared_with(members: Numbers, bitmap: BitMap64) -> Numbers:
    """Return the members that are in a bitmap too."""
    first, end = _reach(members, bitmap)
    return _by_block(members[first:end], lambda block: block & bitmap)


def less_bitmap(members: Numbers, gone: BitMap64) -> Numbers:
    """Return the members that are not in a bitmap."""
    first, end = _reach(members, gone)
    stay = _by_block(members[first:end], lambda block: block - gone)
    return np.concatenate([members[:first], stay, members[end:]])


def bitmap_of(members: Numbers) -> BitMap64:
    """Return the members as a bitmap, which needs many times the memory if they are scattered."""
    return BitMap64(packed(members))


def _reach(members: Numbers, bitmap: BitMap64) -> tuple[int, int]:
    """Return where the members between the smallest and the largest number of a bitmap begin and end."""
    if not bitmap:
        return 0, 0
    first, last = np.array([bitmap.min(), bitmap.max()], np.uint64)
    return int(np.searchsorted(members, first)), int(np.searchsorted(members, last, "right"))


def _by_block(members: Numbers, operation: Callable[[BitMap64], BitMap64]) -> Numbers:
    blocks = (bitmap_of(members[start : start + _PACKED]) for start in range(0, len(members), _PACKED))
    return np.concatenate([np.empty(0, np.uint64), *(operation(block).to_array() for block in blocks)])


def _are_in(few: Numbers, many: Numbers) -> Marks:
    answer: Marks = np.zeros(len(few), np.bool_)
    for start in range(0, len(few) if len(many) else 0, _BLOCK):
        block = few[start : start + _BLOCK]
        places = np.searchsorted(many, block)
        answer[start : start + len(block)] = many[np.minimum(places, len(many) - 1)] == block
    return answer
