"""Choosing among whole numbers by a rule that looks at each number alone, without unpacking and packing bitmaps.

Where most numbers of a stretch are members, it is cheaper to ask the rule about all of them than to find out first
which are. Its answers become a bitmap in the portable Roaring format, and what that shares with the members is chosen.
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
Answer = npt.NDArray[np.bool_]

Rule = Callable[[Numbers], Sequence[Answer]]
"""Says, once or several times, which of some sorted numbers are chosen."""

_CONTAINER = 1 << 16  # numbers that Roaring holds together
_DENSE = 4  # one member in so many numbers, or more: asking about all is cheaper
_LARGEST_ARRAY = 4096  # members of a container that lists them; one of more holds a bit for each number
_NO_RUNS = 12346  # the cookie of a bitmap of arrays and bits
_LOWEST = np.arange(_CONTAINER, dtype=np.uint64)


def chosen(members: BitMap64, rule: Rule) -> list[BitMap64]:
    """Return the members that a rule chooses, one bitmap for each of its answers; there is at least one member."""
    first, last = members.min(), members.max()
    if last - first >= len(members) * _DENSE:
        return [BitMap64(packed(each)) for each in picked(np.asarray(members.to_array()), rule)]
    keys = range(first // _CONTAINER, last // _CONTAINER + 1)
    answers = zip(*(rule(_LOWEST + np.uint64(key * _CONTAINER)) for key in keys), strict=True)
    return [_bitmap(zip(keys, each, strict=True)) & members for each in answers]


def picked(members: Numbers, rule: Rule) -> list[Numbers]:
    """Return the members that a rule chooses, one array for each of its answers."""
    # Picked by their places, for by a mask numpy is several times slower where about half is picked.
    return [members[np.flatnonzero(answer)] for answer in rule(members)]


def packed(numbers: Numbers) -> array[int]:
    """Return numbers in the one type that pyroaring takes in one piece; any other it takes number by number."""
    whole = array("Q")
    whole.frombytes(numbers.view(np.uint8).data)
    return whole


def _bitmap(answers: Iterable[tuple[int, Answer]]) -> BitMap64:
    """Make a bitmap of answers about whole containers, each with the container's number, in ascending order."""
    parts = [(high, _half(each)) for high, each in groupby(answers, key=lambda answer: answer[0] >> 16)]
    return BitMap64.deserialize(
        pack("<Q", len(parts)) + b"".join(pack("<I", high) + half for high, half in parts)
    )


def _half(answers: Iterable[tuple[int, Answer]]) -> bytes:
    """Write the part of a bitmap whose numbers have the same upper 32 bits."""
    sizes = [(key & 0xFFFF, int(np.count_nonzero(answer)), answer) for key, answer in answers]
    filled = [each for each in sizes if each[1]]
    bodies = [
        np.packbits(answer, bitorder="little").tobytes()
        if size > _LARGEST_ARRAY
        else np.flatnonzero(answer).astype("<u2").tobytes()
        for _, size, answer in filled
    ]
    heads = np.array([(key, size - 1) for key, size, _ in filled], "<u2").tobytes()
    start = 8 + len(heads) + 4 * len(filled)
    places = np.cumsum([start, *map(len, bodies)])[:-1].astype("<u4").tobytes()
    return b"".join([pack("<II", _NO_RUNS, len(filled)), heads, places, *bodies])
