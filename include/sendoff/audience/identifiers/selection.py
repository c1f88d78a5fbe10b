"""Choose members of a bitmap by a rule on single numbers, without unpacking the bitmap.

If most numbers in a range are members, it is faster to apply the rule to all numbers of the range than to list the
members first. The answers become a bitmap in the portable Roaring format, which is then intersected with the members.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from struct import pack

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Numbers = npt.NDArray[np.uint64]
Marks = npt.NDArray[np.bool_]

MarkNumbers = Callable[[Numbers], Sequence[Marks]]
"""Takes sorted numbers, and returns one or more masks of the numbers chosen."""

_CONTAINER = 1 << 16  # numbers in the range of one Roaring container
_BYTES = _CONTAINER // 8
_DENSE = 4  # if at least one number in four is a member, it is faster to apply the rule to all numbers
_LARGEST_ARRAY = 4096  # members that a container can list; a container with more has a bit for each number
_NO_RUNS = 12346  # Roaring's cookie for a bitmap without run containers
_LOWEST = np.arange(_CONTAINER, dtype=np.uint64)


def chosen(members: BitMap64, rule: MarkNumbers) -> list[BitMap64]:
    """Return the members that a rule chooses, one bitmap for each of its masks; ``members`` must not be empty."""
    first, last = members.min(), members.max()
    if last - first >= len(members) * _DENSE:
        return [BitMap64(packed(each)) for each in picked(np.asarray(members.to_array()), rule)]
    keys = range(first // _CONTAINER, last // _CONTAINER + 1)
    answers = zip(*(rule(_LOWEST + np.uint64(key * _CONTAINER)) for key in keys), strict=True)
    first = keys[0] * _CONTAINER
    return [
        bitmap_from(np.packbits(np.concatenate(each), bitorder="little"), first) & members for each in answers
    ]


def picked(members: Numbers, rule: MarkNumbers) -> list[Numbers]:
    """Return the members that a rule chooses, one array for each of its masks."""
    # Indexing by positions: a mask is several times slower in numpy if it selects about half of the members.
    return [members[np.flatnonzero(answer)] for answer in rule(members)]


def packed(numbers: Numbers) -> array[int]:
    """Return numbers in the only type that pyroaring reads as a whole; it reads any other number by number."""
    whole = array("Q")
    whole.frombytes(numbers.view(np.uint8).data)
    return whole


def bitmap_from(bits: npt.NDArray[np.uint8], first: int) -> BitMap64:
    """Return the numbers whose bits are set, in the portable Roaring format.

    ``bits``: eight numbers in a byte, the lowest bit first. ``first``: the number of the first bit, a multiple of 8.
    """
    place, parts = first // 8, []
    while len(bits):
        key, before = divmod(place, _BYTES)
        parts.append((key, before, bits[: _BYTES - before]))
        place, bits = place + _BYTES - before, bits[_BYTES - before :]
    halves = [(high, _half(some)) for high, some in groupby(parts, key=lambda part: part[0] >> 16)]
    return BitMap64.deserialize(
        pack("<Q", len(halves)) + b"".join(pack("<I", high) + half for high, half in halves)
    )


def _half(parts: Iterable[tuple[int, int, npt.NDArray[np.uint8]]]) -> bytes:
    """Serialize the part of a bitmap whose numbers share their upper 32 bits.

    ``parts``: the number of a container, the zeros before its bits in bytes, and its bits.
    """
    sizes = [(key & 0xFFFF, int(np.bitwise_count(bits).sum()), before, bits) for key, before, bits in parts]
    filled = [each for each in sizes if each[1]]
    bodies = [
        bytes(before) + bits.tobytes() + bytes(_BYTES - before - len(bits))
        if size > _LARGEST_ARRAY
        else (np.flatnonzero(np.unpackbits(bits, bitorder="little")) + 8 * before).astype("<u2").tobytes()
        for _, size, before, bits in filled
    ]
    heads = np.array([(key, size - 1) for key, size, *_ in filled], "<u2").tobytes()
    start = 8 + len(heads) + 4 * len(filled)
    places = np.cumsum([start, *map(len, bodies)])[:-1].astype("<u4").tobytes()
    return b"".join([pack("<II", _NO_RUNS, len(filled)), heads, places, *bodies])
