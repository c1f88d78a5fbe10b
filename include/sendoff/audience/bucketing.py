"""Random but reproducible shares of an audience, for holdouts, variants and waves.

Each identifier has a *hash* from 0 to 2**64 - 1 under each salt, and a share is a range of hashes. The hash depends on
the identifier and the salt only: a recipient stays in the same share over all launches, and different salts are
independent. Other systems can compute the same hash, with unsigned 64-bit numbers that wrap around:

.. code-block:: text

    s = the 8 bytes of unkeyed BLAKE2b (digest size 8) of the salt's UTF-8, read with the highest byte first
    of a text:          the 8 bytes of BLAKE2b (digest size 8, key: the 8 bytes of s) of its UTF-8, read in the same way
    of a whole number:  z = (identifier XOR s) + 0x9E3779B97F4A7C15
                        z = (z XOR (z >> 30)) * 0xBF58476D1CE4E5B9
                        z = (z XOR (z >> 27)) * 0x94D049BB133111EB
                        z XOR (z >> 31)                                (SplitMix64)

No two whole numbers have the same hash under one salt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, isqrt

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sendoff.audience.identifiers import Identifiers, IntegerIdentifiers, builder, empty, union

_Hashes = npt.NDArray[np.uint64]

_ALL = 2**64
_BLOCK = 1 << 20  # identifiers to unpack at once
_IN_CACHE = 1 << 15  # numbers to mix at once
_ERROR = 3  # times the square root of the set's size: the error of an estimated count is hardly ever larger


def hashes(identifiers: Identifiers, salt: str) -> _Hashes:
    """Return the hash of each identifier under a salt, in the order of ``values()``."""
    return np.concatenate([np.empty(0, np.uint64), *(part for _, part in _blocks(identifiers, salt))])


def sample(identifiers: Identifiers, salt: str, percent: float) -> Identifiers:
    """Return the identifiers whose hash is below ``percent`` / 100 * 2**64.

    A larger percent returns the same identifiers and more. The percent is taken as a decimal: 0.1 is exactly 1/1000.
    """
    return _ranges(identifiers, salt, _ends([percent]))[0]


def split(identifiers: Identifiers, salt: str, percents: Sequence[float]) -> list[Identifiers]:
    """Split a set by consecutive ranges of hashes, one for each percent; the last one takes the rest.

    Each identifier is in exactly one share. The sizes are random, close to the percents.
    """
    if not percents:
        raise ValueError("a split needs at least one share")
    return _ranges(identifiers, salt, _ends([*percents[:-1], 100]))


def sample_exactly(identifiers: Identifiers, salt: str, size: int) -> Identifiers:
    """Return the ``size`` identifiers with the smallest hashes, or the whole set if it is not larger."""
    size = max(size, 0)
    if size >= len(identifiers):
        return identifiers
    certain, likely = _about_the_smallest(identifiers, salt, size)
    if len(certain) == size:
        return certain
    blocks = list(_blocks(likely, salt))
    members, found = (
        pa.concat_arrays([block for block, _ in blocks]),
        np.concatenate([part for _, part in blocks]),
    )
    # A stable sort: if two texts have the same hash, the first in byte order wins.
    places = np.argsort(found, kind="stable")[: size - len(certain)]
    chosen = builder(identifiers.kind)
    chosen.add(members.take(pa.array(np.sort(places))))
    return certain | chosen.identifiers()


def _about_the_smallest(identifiers: Identifiers, salt: str, size: int) -> tuple[Identifiers, Identifiers]:
    """Return identifiers that certainly are among the ``size`` smallest, and a set that contains the others."""
    people = len(identifiers)
    error = _ERROR * (isqrt(people) + 1)
    while True:
        sizes = max(size - error, 0), min(size + error, people)
        certain, likely = _ranges(identifiers, salt, [end * _ALL // people for end in sizes])
        if len(certain) <= size <= len(certain) + len(likely):
            return certain, likely
        error *= 16  # in the end, this covers the whole set


def _ranges(identifiers: Identifiers, salt: str, ends: Sequence[int]) -> list[Identifiers]:
    """Return the identifiers in consecutive ranges of hashes, given by their ends; the first range begins at 0."""
    if not isinstance(identifiers, IntegerIdentifiers):
        builders = [builder(identifiers.kind) for _ in ends]
        for block, found in _blocks(identifiers, salt):
            for (start, end), people in zip(pairwise([0, *ends]), builders, strict=True):
                people.add(block.filter(pa.array((start <= found) & (found < end))))
        return [people.identifiers() for people in builders]
    key, inner = int.from_bytes(_key(salt), "big"), [end for end in ends if end < _ALL]

    def are_in(numbers: npt.NDArray[np.uint64]) -> list[npt.NDArray[np.bool_]]:
        found = _mixed(numbers, key)
        below = [np.zeros(len(found), np.bool_), *(found < np.uint64(end) for end in inner)]
        return [less ^ more for less, more in pairwise(below)]

    ranges: list[Identifiers] = [*identifiers.chosen(are_in, len(inner))]
    if len(inner) < len(ends):
        ranges.append(identifiers - union(identifiers.kind, ranges))  # cheaper than gathering the rest
    return ranges + [empty(identifiers.kind)] * (len(ends) - len(ranges))


def mix(numbers: _Hashes) -> None:
    """Mix the bits of each number in place (SplitMix64)."""
    numbers += np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)


def _ends(percents: Sequence[float]) -> list[int]:
    """Return the end of each range of hashes, which is the start of the next one."""
    if any(percent < 0 for percent in percents):
        raise ValueError("a share must not be negative")
    return [ceil(end * _ALL) for end in accumulate(Fraction(str(percent)) / 100 for percent in percents)]


def _blocks(identifiers: Identifiers, salt: str) -> Iterator[tuple[pa.Array, _Hashes]]:
    """Yield consecutive parts of a set, each with its hashes."""
    key = _key(salt)
    for part in identifiers.slices(_BLOCK):
        if isinstance(part, IntegerIdentifiers):
            members = part.values()
            yield pa.array(members), _mixed(members, int.from_bytes(key, "big"))
        else:
            texts = part.values()
            yield pa.array(texts, pa.large_string()), _hashed(texts, key)


def _key(salt: str) -> bytes:
    return hashlib.blake2b(salt.encode(), digest_size=8).digest()


def _mixed(members: npt.NDArray[np.uint64], salt: int) -> _Hashes:
    mixed = members ^ np.uint64(salt)
    for start in range(0, len(mixed), _IN_CACHE):
        mix(mixed[start : start + _IN_CACHE])
    return mixed


def _hashed(texts: list[str], key: bytes) -> _Hashes:
    keyed = hashlib.blake2b(key=key, digest_size=8)
    digests = bytearray()
    for text in texts:
        own = keyed.copy()
        own.update(text.encode())
        digests += own.digest()
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64)
