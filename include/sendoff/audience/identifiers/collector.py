"""Gathering a set from Arrow arrays, batch by batch, with every row accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from sendoff.audience.identifiers.integer_sets import IntegerGathering, usable_numbers
from sendoff.audience.identifiers.string_sets import StringGathering, usable_texts

if TYPE_CHECKING:
    from sendoff.audience.identifiers import Identifiers

Kind = Literal["integer", "string"]
Gathering = IntegerGathering | StringGathering


class Collector:
    """Gathers a set from Arrow arrays, batch by batch, and accounts for every row.

    ``rows`` is always the number of ``identifiers()`` plus ``null``, ``invalid`` and ``duplicate``.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows = self.null = self.invalid = 0
        self._gathering = gathering(kind)

    @property
    def duplicate(self) -> int:
        """Rows whose identifier came before; counted by subtraction, so it costs nothing while rows arrive."""
        return self.rows - self.null - self.invalid - len(self._gathering)

    def add(self, column: pa.Array) -> pa.BooleanArray | None:
        """Take one array of unsigned 64-bit integers or large strings; return which rows were usable, None for all."""
        usable = _usable(column, self.kind)
        kept = column if usable is None else column.filter(usable)
        self.rows += len(column)
        self.null += column.null_count
        self.invalid += len(column) - column.null_count - len(kept)
        self._gathering.add(kept)
        return usable

    def identifiers(self) -> Identifiers:
        """Return the set of everything usable so far."""
        return self._gathering.identifiers()


def gathering(kind: Kind) -> Gathering:
    """Return a new, empty gathering of that kind."""
    return IntegerGathering() if kind == "integer" else StringGathering()


def _usable(column: pa.Array, kind: Kind) -> pa.BooleanArray | None:
    return usable_numbers(column) if kind == "integer" else usable_texts(column)
