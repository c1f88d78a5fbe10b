"""Recognise identifiers by a keyed hash, so that a set of people can be known without storing who they are.

An identifier is kept as its HMAC-SHA256 and a *bucket* of 20 bits, both under a secret. The bucket is computed on
whole arrays at once and excludes almost all members of a large set. Only the others cost an HMAC each. A bucket alone
does not identify anyone: a million identifiers share a million buckets.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from sendoff.audience.bucketing import mix
from sendoff.audience.build import KINDS
from sendoff.audience.csv_list import kind_of
from sendoff.audience.identifiers import (
    UNUSABLE_TEXT,
    Identifiers,
    IntegerIdentifiers,
    Kind,
    Marks,
    Numbers,
    as_integer,
    as_member,
    empty,
    from_texts,
    integers,
    strings,
)
from sendoff.errors import AudienceError

_BITS = 20
_IN_CACHE = 1 << 15  # numbers to mix at once
_TEXTS_AT_ONCE = 1 << 17
# Masks of the bytes of a short text, by its length.
_OWN_BYTES = np.array([256**length - 1 for length in range(9)], np.uint64)


@dataclass(frozen=True, slots=True)
class HashedIdentifier:
    """One identifier as it is remembered."""

    digest: str  # HMAC-SHA256, 64 hexadecimal digits
    bucket: int


class KeyedHash:
    """The hash of the identifiers of one column and kind under a secret."""

    def __init__(self, secret: str, identified_by: str, kind: Kind) -> None:
        self.kind = kind
        self._hmac = hmac.new(secret.encode(), f"identifier {identified_by} {kind}:".encode(), "sha256")
        keys = hmac.digest(secret.encode(), f"bucket {identified_by} {kind}".encode(), "sha256")
        self._keys = [np.uint64(int.from_bytes(keys[at : at + 8])) for at in (0, 8)]

    def digest(self, identifier: int | str) -> str:
        """Return the HMAC-SHA256 of one identifier as 64 hexadecimal digits."""
        own = self._hmac.copy()
        own.update(str(identifier).encode())
        return own.hexdigest()

    def hashed(self, identifiers: Identifiers) -> list[HashedIdentifier]:
        """Return the hash of each identifier, in sorted order of the identifiers."""
        if isinstance(identifiers, IntegerIdentifiers):
            buckets = self.buckets_of_numbers(identifiers.values())
        else:
            buckets = self.buckets_of_texts(identifiers.column())
        members: list[int | str] = list(identifiers)
        pairs = zip(members, buckets.tolist(), strict=True)
        return [HashedIdentifier(self.digest(identifier), bucket) for identifier, bucket in pairs]

    def buckets_of_numbers(self, numbers: Numbers) -> Numbers:
        """Return the bucket of each number."""
        mixed = numbers ^ self._keys[0]
        for start in range(0, len(mixed), _IN_CACHE):
            part = mixed[start : start + _IN_CACHE]
            mix(part)
            part += self._keys[1]
            mix(part)
            part >>= np.uint64(64 - _BITS)
        return mixed

    def buckets_of_texts(self, texts: pa.LargeStringArray) -> Numbers:
        """Return the bucket of each text: a hash of its length and of its first, middle and last eight bytes."""
        found = [
            self._of_texts(texts[at : at + _TEXTS_AT_ONCE]) for at in range(0, len(texts), _TEXTS_AT_ONCE)
        ]
        return np.concatenate([np.empty(0, np.uint64), *found])

    def _of_texts(self, texts: pa.LargeStringArray) -> Numbers:
        _, offsets, buffer = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        text = np.frombuffer(buffer or b"", np.uint8)[ends[0] : ends[-1]]
        padded = np.concatenate([text, np.zeros(8, np.uint8)])
        # At each byte, the next eight.
        words: Numbers = np.ndarray(len(padded) - 7, np.uint64, padded, strides=(1,))
        starts, lengths = ends[:-1] - ends[0], np.diff(ends)
        room, own = np.maximum(lengths - 8, 0), _OWN_BYTES[np.minimum(lengths, 8)]
        mixed = lengths.astype(np.uint64) ^ self._keys[0]
        for begin in (np.zeros_like(room), room // 2, room):
            mixed ^= words[starts + begin] & own
            mix(mixed)
            mixed += self._keys[1]
        mix(mixed)
        return mixed >> np.uint64(64 - _BITS)


@dataclass(frozen=True, slots=True)
class KnownPeople:
    """People who are known by their hashes only."""

    hash: KeyedHash = field(repr=False)
    digests: frozenset[str] = field(repr=False)
    _table: Marks = field(repr=False)

    @classmethod
    def of(cls, keyed_hash: KeyedHash, hashed: Iterable[HashedIdentifier]) -> KnownPeople:
        """Return the people with these hashes."""
        table = np.zeros(1 << _BITS, np.bool_)
        known = list(hashed)
        table[[each.bucket for each in known]] = True
        return cls(keyed_hash, frozenset(each.digest for each in known), table)

    def __len__(self) -> int:
        return len(self.digests)

    def __contains__(self, identifier: int | str) -> bool:
        return self.hash.digest(identifier) in self.digests

    def among(self, identifiers: Identifiers) -> Identifiers:
        """Return the members of a set who are known."""
        if not self.digests:
            return empty(identifiers.kind)
        if isinstance(identifiers, IntegerIdentifiers):
            (likely,) = identifiers.chosen(lambda numbers: [self._likely_numbers(numbers)], 1)
            return integers(number for number in likely if number in self)
        found = []
        texts = identifiers.column()
        for at in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts[at : at + _TEXTS_AT_ONCE]
            likely_texts = part.filter(pa.array(self._likely_texts(part)))
            found += [text for text in likely_texts.to_pylist() if text in self]
        return strings(found)

    def marked(self, column: pa.Array) -> Marks:
        """Mark the values of a column, signed integers or texts, that name known people; nulls name no one."""
        if self.hash.kind == "integer":
            numbers = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            marks = self._likely_numbers(numbers.view(np.uint64))
        else:
            marks = self._likely_texts(column.fill_null("").cast(pa.large_string()))
        for row in np.flatnonzero(marks).tolist():
            value = column[row].as_py()
            marks[row] = value is not None and value in self
        return marks

    def _likely_numbers(self, numbers: Numbers) -> Marks:
        return self._table[self.hash.buckets_of_numbers(numbers)]

    def _likely_texts(self, texts: pa.LargeStringArray) -> Marks:
        return self._table[self.hash.buckets_of_texts(texts)]


def as_kinds(identified_by: str, identifiers: Iterable[int | str]) -> dict[Kind, Identifiers]:
    """Return identifiers as sets of the kinds that audiences of this column may have, without empty sets.

    A token or UUID that is a whole number is in both sets: some warehouses store them as numbers.
    """
    texts = [str(each) for each in identifiers]
    found = {kind: from_texts(kind, texts) for kind in KINDS[identified_by]}
    return {kind: people for kind, people in found.items() if len(people)}


def checked_texts(identified_by: str, identifiers: Iterable[int | str]) -> list[str]:
    """Return the identifiers of a column as texts, sorted and each once, and device IDs without leading zeros.

    White space around them is removed. Raise UsageError if it is not an identifier column, and AudienceError if an
    identifier is blank or cannot be one. The message has the place of the identifier and does not quote it.
    """
    kind = kind_of(identified_by)
    texts = set()
    for place, text in enumerate((str(each).strip() for each in identifiers), start=1):
        if not text:
            raise AudienceError(f"identifier {place} is blank. Use the {identified_by} of a person")
        if kind == "string":
            if as_member(kind, text) is None:
                raise AudienceError(f"identifier {place} is {UNUSABLE_TEXT}. Correct it")
            texts.add(text)
            continue
        number = as_integer(text)
        if number is None:
            raise AudienceError(
                f"identifier {place} is not a whole number from 1 to {2**63 - 1:,}, as a {identified_by} must be. "
                "Correct it, or name the column of the identifiers"
            )
        texts.add(str(number))
    return sorted(texts)
