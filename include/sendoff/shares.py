"""Shares of people by chance that is always the same: who is held out, who gets which variant, who is sent to first.

Everybody has a *position* from 0 to 2**64 - 1 under each salt, and a share is a range of positions. It depends on the
identifier and the salt alone: the same person stays in the same share over all launches, and two salts have nothing to
do with each other. Anybody can compute it elsewhere, all numbers being of 64 bits, those above wrapping around:

.. code-block:: text

    s = the 8 bytes of unkeyed BLAKE2b (digest size 8) of the salt's UTF-8, read with the highest byte first
    of a text:          the 8 bytes of BLAKE2b (digest size 8, key: the 8 bytes of s) of its UTF-8, read in the same way
    of a whole number:  z = (identifier XOR s) + 0x9E3779B97F4A7C15
                        z = (z XOR (z >> 30)) * 0xBF58476D1CE4E5B9
                        z = (z XOR (z >> 27)) * 0x94D049BB133111EB
                        z XOR (z >> 31)                                (SplitMix64)

No two whole numbers have the same position under one salt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from math import ceil

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sendoff.identifiers import Gathering, Identifiers, IntegerIdentifiers, gathering, union

_Positions = npt.NDArray[np.uint64]

_ALL = 2**64
_BLOCK = 1 << 20  # identifiers that are unpacked at once
_IN_CACHE = 1 << 15  # numbers that are mixed at once
_BUCKET_BITS = 16  # of a position, by which the smallest are looked for


def positions(identifiers: Identifiers, salt: str) -> _Positions:
    """Give everybody's position under a salt, in the order of ``values()``."""
    return np.concatenate([np.empty(0, np.uint64), *(found for _, found in _blocks(identifiers, salt))])


def below(identifiers: Identifiers, salt: str, percent: float) -> Identifiers:
    """Give those whose position is below ``percent`` / 100 * 2**64; a larger percent gives them and more.

    The percent counts as it is written: 0.1 is a thousandth.
    """
    return _ranges(identifiers, salt, [percent])[0]


def split(identifiers: Identifiers, salt: str, percents: Sequence[float]) -> list[Identifiers]:
    """Share people out among consecutive ranges of positions, each a percent wide; the last takes the rest.

    Each is in exactly one. A share is as large as chance makes it, about its percent.
    """
    if not percents:
        raise ValueError("people are shared out among one share or more")
    ranges = _ranges(identifiers, salt, percents[:-1])
    return [*ranges, identifiers - union(identifiers.kind, ranges)]


def smallest(identifiers: Identifiers, salt: str, size: int) -> Identifiers:
    """Give exactly ``size`` people, those with the smallest positions; everybody where there are no more."""
    if size >= len(identifiers):
        return identifiers
    limit, among_equals = _limit(identifiers, salt, size)
    chosen = gathering(identifiers.kind)
    for block, found in _blocks(identifiers, salt):
        equal = np.flatnonzero(found == limit)[:among_equals]
        among_equals -= len(equal)
        mask = found < limit
        mask[equal] = True
        _add(chosen, block, mask)
    return chosen.identifiers()


def _limit(identifiers: Identifiers, salt: str, size: int) -> tuple[np.uint64, int]:
    """Give the largest of the ``size`` smallest positions, and how many of these people have it."""
    if size < 1:
        return np.uint64(0), 0
    shift = np.uint64(64 - _BUCKET_BITS)
    counts = np.zeros(1 << _BUCKET_BITS, np.int64)
    for _, found in _blocks(identifiers, salt):
        counts += np.bincount((found >> shift).astype(np.int64), minlength=len(counts))
    bucket = int(np.searchsorted(np.cumsum(counts), size))
    wanted = size - int(counts[:bucket].sum())
    inside = np.sort(
        np.concatenate([found[found >> shift == bucket] for _, found in _blocks(identifiers, salt)])
    )
    limit = inside[wanted - 1]
    return limit, wanted - int(np.searchsorted(inside, limit))


def _ranges(identifiers: Identifiers, salt: str, percents: Sequence[float]) -> list[Identifiers]:
    ends = _ends(percents)
    ranges = [gathering(identifiers.kind) for _ in ends]
    for block, found in _blocks(identifiers, salt):
        for start, end, people in zip([0, *ends], ends, ranges, strict=False):
            _add(people, block, (start <= found) & (found < end))
    return [people.identifiers() for people in ranges]


def _ends(percents: Sequence[float]) -> list[int]:
    """Give the position at which each range ends; the next one begins there."""
    if any(percent < 0 for percent in percents):
        raise ValueError("a share is not negative")
    return [ceil(end * _ALL) for end in accumulate(Fraction(str(percent)) / 100 for percent in percents)]


def _add(share: Gathering, block: pa.Array, mask: npt.NDArray[np.bool_]) -> None:
    share.add(block.filter(pa.array(mask)))


def _blocks(identifiers: Identifiers, salt: str) -> Iterator[tuple[pa.Array, _Positions]]:
    """Give consecutive parts of a set with their positions."""
    key = hashlib.blake2b(salt.encode(), digest_size=8).digest()
    for part in identifiers.slices(_BLOCK):
        if isinstance(part, IntegerIdentifiers):
            members = part.values()
            yield pa.array(members), _mixed(members, int.from_bytes(key, "big"))
        else:
            texts = part.values()
            yield pa.array(texts, pa.large_string()), _hashed(texts, key)


def _mixed(members: npt.NDArray[np.uint64], salt: int) -> _Positions:
    mixed = members ^ np.uint64(salt)
    for start in range(0, len(mixed), _IN_CACHE):
        part = mixed[start : start + _IN_CACHE]
        part += np.uint64(0x9E3779B97F4A7C15)
        part ^= part >> np.uint64(30)
        part *= np.uint64(0xBF58476D1CE4E5B9)
        part ^= part >> np.uint64(27)
        part *= np.uint64(0x94D049BB133111EB)
        part ^= part >> np.uint64(31)
    return mixed


def _hashed(texts: list[str], key: bytes) -> _Positions:
    keyed = hashlib.blake2b(key=key, digest_size=8)
    digests = bytearray()
    for text in texts:
        own = keyed.copy()
        own.update(text.encode())
        digests += own.digest()
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64)
