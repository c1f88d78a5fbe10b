"""Builders of identifier sets from Arrow arrays, and a counter that accounts for every row."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from sendoff.audience.identifiers.integer_sets import IntegerIdentifiers, IntegerSetBuilder, usable_numbers
from sendoff.audience.identifiers.string_sets import StringIdentifiers, StringSetBuilder, usable_texts

Identifiers = IntegerIdentifiers | StringIdentifiers
Kind = Literal["integer", "string"]
IdentifierSetBuilder = IntegerSetBuilder | StringSetBuilder


class RowCounter:
    """Builds a set from Arrow arrays, batch by batch, and counts every row.

    ``rows`` always equals the size of ``identifiers()`` plus ``null``, ``invalid`` and ``duplicate``.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.rows = self.null = self.invalid = 0
        self._builder = builder(kind)

    @property
    def duplicate(self) -> int:
        """Number of rows that repeat an identifier; computed by subtraction, so it costs nothing in ``add``."""
        return self.rows - self.null - self.invalid - len(self._builder)

    def add(self, column: pa.Array) -> pa.BooleanArray | None:
        """Add an array of unsigned 64-bit integers or large strings; return a mask of usable rows, or None for all."""
        usable = usable_numbers(column) if self.kind == "integer" else usable_texts(column)
        identifiers = column if usable is None else column.filter(usable)
        self.rows += len(column)
        self.null += column.null_count
        self.invalid += len(column) - column.null_count - len(identifiers)
        self._builder.add(identifiers)
        return usable

    def identifiers(self) -> Identifiers:
        """Return the set of all usable identifiers so far."""
        return self._builder.identifiers()


def builder(kind: Kind) -> IdentifierSetBuilder:
    """Return a new builder for sets of a kind."""
    return IntegerSetBuilder() if kind == "integer" else StringSetBuilder()
