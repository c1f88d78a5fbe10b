"""Sets of texts, each in a sorted Arrow array."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from sendoff.audience.identifiers.string_sort import (
    SortedRun,
    lengths_and_text,
    merged,
    run_of,
    sorted_run,
)

LONGEST_TEXT = 1_000
"""The number of bytes of the longest text that can be an identifier. PostgreSQL's indexes have room for about 2,700."""

UNUSABLE_TEXT = f"longer than {LONGEST_TEXT:,} bytes, or has a character that cannot be stored"
"""What is wrong with a text that cannot be an identifier although it is not blank, in the words of errors."""

_AROUND = 1 << 10  # upper limit for the bytes of an Arrow IPC stream besides its texts
_HASHED_AT_ONCE = 1 << 16  # changing this changes fingerprints, because lengths and bytes alternate
_RUN = 4 << 20  # bytes of text to sort at once
_NUL = "\0"  # PostgreSQL cannot store it
_MOST_RUNS = 64  # about; more text makes longer runs instead of more


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StringIdentifiers:
    """A set of texts, sorted by their UTF-8 bytes."""

    _array: pa.LargeStringArray
    kind: ClassVar[Literal["string"]] = "string"

    def __len__(self) -> int:
        return len(self._array)

    def __contains__(self, identifier: object) -> bool:
        if not isinstance(identifier, str):
            return False
        place = bisect_left(self._array, identifier, key=lambda member: member.as_py())
        return place < len(self) and self._array[place].as_py() == identifier

    def __iter__(self) -> Iterator[str]:
        return (scalar.as_py() for scalar in self._array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        return bool(self._array.equals(other._array))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} string identifiers>"

    def __or__(self, other: object) -> StringIdentifiers:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        return StringIdentifiers(merged([run_of(self._array), run_of(other._array)]))

    def __and__(self, other: object) -> StringIdentifiers:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        smaller, larger = sorted((self._array, other._array), key=len)
        is_in = _are_in(larger, smaller)
        return StringIdentifiers(smaller if is_in.true_count == len(smaller) else larger.filter(is_in))

    def __sub__(self, other: object) -> StringIdentifiers:
        if not isinstance(other, StringIdentifiers):
            return NotImplemented
        gone = other if len(other) <= len(self) else self & other
        is_gone = _are_in(self._array, gone._array)
        return StringIdentifiers(self._array.filter(pc.invert(is_gone))) if is_gone.true_count else self

    def slices(self, size: int) -> Iterator[StringIdentifiers]:
        """Yield consecutive slices in sorted order, each with ``size`` members except the last; none is empty."""
        if size < 1:
            raise ValueError("a slice needs at least one identifier")
        for start in range(0, len(self), size):
            yield StringIdentifiers(self._array.slice(start, size))

    def values(self) -> list[str]:
        """Return the members in sorted order, as Python objects; take a slice of a large set first."""
        members: list[str] = self._array.to_pylist()
        return members

    def longest(self) -> int:
        """Return the number of bytes of the longest member; 0 if there are none."""
        return pc.max(pc.binary_length(self._array)).as_py() or 0

    @property
    def stored_bytes(self) -> int:
        """An upper limit for the size of ``to_bytes``, computed without writing them."""
        return int(self._array.nbytes) + _AROUND

    def column(self) -> pa.LargeStringArray:
        """Return the members in sorted order, as an Arrow array."""
        return self._array

    def to_bytes(self) -> bytes:
        """Return the set as an Arrow IPC stream, compressed with Zstandard."""
        batch = pa.record_batch([self._array], names=["identifier"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    def fingerprint(self) -> str:
        """Return 32 hexadecimal digits that depend on the members only."""
        digest = hashlib.blake2b(b"string", digest_size=16)
        for part in self.slices(_HASHED_AT_ONCE):
            lengths, text = lengths_and_text(part._array)
            digest.update(lengths.astype("<u8").data)
            digest.update(text.data)
        return digest.hexdigest()


class StringSetBuilder:
    """Builds a set of texts from arrays of usable large strings."""

    def __init__(self) -> None:
        self._runs: list[SortedRun] = []
        self._waiting: list[pa.LargeStringArray] = []  # texts that are not sorted yet
        self._waits = self._bytes = 0

    def __len__(self) -> int:
        return len(self._in_order())

    def add(self, column: pa.LargeStringArray) -> None:
        """Add an array without nulls."""
        rows = max(1, len(column) // max(1, column.nbytes // _RUN))
        for start in range(0, len(column), rows):
            part = column.slice(start, rows)
            self._waiting.append(part)
            self._waits += part.nbytes
            if self._waits > max(_RUN, self._bytes // _MOST_RUNS):
                self._sort()

    def identifiers(self) -> StringIdentifiers:
        """Return the set so far."""
        return StringIdentifiers(self._in_order())

    def _sort(self) -> None:
        self._runs.append(sorted_run(self._waiting))
        self._bytes += self._waits
        self._waiting, self._waits = [], 0

    def _in_order(self) -> pa.LargeStringArray:
        if self._waiting:
            self._sort()
        if len(self._runs) > 1:
            pa.default_memory_pool().release_unused()  # what reading has used, before merging uses more
        column = merged(self._runs)
        self._runs = [deque([column])] if len(column) else []
        return column


def _are_in(texts: pa.LargeStringArray, few: pa.LargeStringArray) -> pa.BooleanArray:
    # Arrow builds a hash table of value_set, which costs many times more than the look-ups; so it gets the smaller set.
    return pc.is_in(texts, value_set=few)


def trimmed(column: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return the texts without white space around them, as ``str.strip`` does.

    All identifiers that come in are trimmed, so that an audience from a column of type CHAR has the same ones as a list
    that someone wrote.
    """
    return pc.utf8_trim_whitespace(column)


def not_blank(column: pa.LargeStringArray) -> pa.BooleanArray:
    """Return a mask of the texts that have a character other than white space."""
    return pc.and_not(pc.binary_length(column).cast(pa.bool_()), pc.utf8_is_space(column))


def usable_texts(column: pa.LargeStringArray) -> pa.BooleanArray | None:
    """Return a mask of the texts that can be identifiers, as :func:`is_usable` says, or None if all can."""
    usable = pc.and_(not_blank(column), pc.less_equal(pc.binary_length(column), LONGEST_TEXT))
    if not lengths_and_text(column)[1].all():  # this is much faster than to look into each text
        usable = pc.and_not(usable, pc.match_substring(column, _NUL))
    return None if pc.all(usable, skip_nulls=False, min_count=0).as_py() else pc.fill_null(usable, False)


def is_usable(text: str) -> bool:
    """Check whether a text can be an identifier: it is not blank, not too long, and has no character that is NUL."""
    if not text.strip() or _NUL in text:
        return False
    try:
        return len(text.encode()) <= LONGEST_TEXT
    except UnicodeEncodeError:  # half of a character
        return False
