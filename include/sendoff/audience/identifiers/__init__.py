"""Sets of identifiers that can be compared, sliced and stored without a Python object for each member.

Numbers are in a compressed bitmap, or in a sorted array if they are scattered. Texts are in a sorted Arrow array. Both
kinds have the same methods and are immutable. Their repr shows the size, but no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sendoff.audience.identifiers.builders import Identifiers, IdentifierSetBuilder, Kind, RowCounter, builder
from sendoff.audience.identifiers.integer_sets import (
    IntegerIdentifiers,
    IntegerSetBuilder,
    united,
    usable_numbers,
)
from sendoff.audience.identifiers.selection import Marks, Numbers
from sendoff.audience.identifiers.string_sets import (
    LONGEST_TEXT,
    UNUSABLE_TEXT,
    StringIdentifiers,
    is_usable,
    not_blank,
    trimmed,
)
from sendoff.audience.identifiers.string_sort import merged, run_of, sorted_once
from sendoff.errors import RecipientsDeletedError

__all__ = [
    "DELETED",
    "LONGEST_TEXT",
    "UNUSABLE_TEXT",
    "IdentifierSetBuilder",
    "Identifiers",
    "IntegerIdentifiers",
    "Kind",
    "Marks",
    "Numbers",
    "RowCounter",
    "StringIdentifiers",
    "as_integer",
    "as_member",
    "builder",
    "deleted_before",
    "deletion_in_words",
    "empty",
    "from_bytes",
    "from_texts",
    "integers",
    "strings",
    "trimmed",
    "union",
]

DELETED = b"deleted:"
"""The first bytes of what replaces a deleted set. No stored set begins with them."""

_PIECE = 1 << 16
_MOST_DIGITS = 19  # of an identifier; int() refuses texts of thousands of digits
_Set = TypeVar("_Set", IntegerIdentifiers, StringIdentifiers)


def as_integer(text: str) -> int | None:
    """Return the number that a text names as an identifier: 7 for ``7`` and ``007``.

    Return None if the text is not a whole number from 1 to 2**63 - 1 in ASCII digits.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    if not 0 < len(digits) <= _MOST_DIGITS:
        return None
    number = int(digits)
    return number if number < 2**63 else None


def as_member(kind: Kind, text: str) -> int | str | None:
    """Return a text as a member of sets of a kind, or None if it cannot be one."""
    if kind == "integer":
        return as_integer(text)
    return text if is_usable(text) else None


def empty(kind: Kind) -> Identifiers:
    """Return the empty set."""
    return builder(kind).identifiers()


def integers(values: npt.ArrayLike | Iterable[int]) -> IntegerIdentifiers:
    """Return a set of numbers, given in any order and with duplicates.

    Raise ValueError if one is below 1 or above 2**63 - 1.
    """
    numbers = np.ascontiguousarray(values if isinstance(values, np.ndarray) else list(values), np.int64)  # type: ignore[arg-type]
    # Unlike pa.array, this does not import pandas.
    column = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    if usable_numbers(column.view(pa.uint64())) is not None:
        raise ValueError("an identifier must be a whole number from 1 to 2**63 - 1")
    unordered = IntegerSetBuilder()
    for start in range(0, len(column), _PIECE):  # so that the builder notices early if they are scattered
        unordered.add(column.slice(start, _PIECE).view(pa.uint64()))
    return unordered.identifiers()


def strings(values: Iterable[str]) -> StringIdentifiers:
    """Return a set of texts, given in any order and with duplicates. Raise ValueError if one is blank."""
    column = pa.array(values, pa.large_string())
    if not pc.all(not_blank(column), skip_nulls=False, min_count=0).as_py():
        raise ValueError("an identifier must not be blank")
    return StringIdentifiers(sorted_once([column]))


def from_texts(kind: Kind, texts: Iterable[str]) -> Identifiers:
    """Return the set of the texts that can be its members; the others are left out."""
    members = [member for text in texts if (member := as_member(kind, text)) is not None]
    return integers(members) if kind == "integer" else strings(members)  # type: ignore[arg-type]


def union(kind: Kind, sets: Iterable[Identifiers]) -> Identifiers:
    """Return the union of sets of one kind; this is faster than joining them in pairs."""
    if kind == "integer":
        return united(_all_of(IntegerIdentifiers, sets))
    return StringIdentifiers(merged(run_of(each._array) for each in _all_of(StringIdentifiers, sets)))


def from_bytes(kind: Kind, blob: bytes) -> Identifiers:
    """Read a set that ``to_bytes`` wrote. Raise ValueError if ``blob`` is something else or incomplete.

    Raise RecipientsDeletedError if the set was deleted, so that no one takes it for an empty one.
    """
    if blob.startswith(DELETED):
        raise RecipientsDeletedError(deletion_in_words(date.fromisoformat(blob[len(DELETED) :].decode())))
    if kind == "integer":
        return IntegerIdentifiers.from_bytes(blob)
    try:
        column = pa.ipc.open_stream(blob).read_all().column("identifier")
    except (OSError, KeyError) as error:
        raise ValueError("this value is not a set of string identifiers") from error
    return StringIdentifiers(pa.concat_arrays([*column.chunks, pa.array([], pa.large_string())]))


def deleted_before(day: date) -> bytes:
    """Return what replaces the sets of a launch from before a day. :func:`from_bytes` refuses to read it."""
    return DELETED + day.isoformat().encode()


def deletion_in_words(day: date) -> str:
    """Return the sentence that recipients were deleted, without its full stop."""
    return f"the recipients of launches from before {day} were deleted from the ledger"


def _all_of(type_: type[_Set], sets: Iterable[Identifiers]) -> Iterator[_Set]:
    for each in sets:
        if not isinstance(each, type_):
            raise TypeError(f"{each!r} among sets of the other kind")
        yield each
