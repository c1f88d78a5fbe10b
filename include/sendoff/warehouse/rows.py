"""Convert rows of Python values to Arrow batches with one type per column, and integral decimals to integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sendoff.errors import AudienceError

_LARGEST_EXACT = 2**53  # doubles hold all whole numbers up to it


def batches_of_rows(
    names: Sequence[str], next_rows: Callable[[], Sequence[Sequence[Any]]]
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows that ``next_rows`` returns, until it returns none; the first batch may be empty.

    The first batch with a value sets the type of a column. A column of doubles may have whole numbers too, but none
    that a double cannot hold. Otherwise, raise AudienceError with the column and the row if a column has values of two
    types.
    """
    columns = [_Column(name) for name in names]
    rows = next_rows()
    while True:
        values = zip(*rows, strict=True) if rows else ((),) * len(columns)
        arrays = [column.array(each) for column, each in zip(columns, values, strict=True)]
        yield pa.record_batch(arrays, names=[column.name for column in columns])
        rows = next_rows()
        if not rows:
            return


def with_whole_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert columns of decimals without a fraction to 64-bit integers, if all values fit."""
    for place, column in enumerate(batch.columns):
        if pa.types.is_decimal(column.type) and column.type.scale == 0:
            batch = batch.set_column(place, batch.schema.names[place], _as_whole_numbers(column))
    return batch


def _as_whole_numbers(column: pa.Array) -> pa.Array:
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return column.cast(type_)
        except pa.ArrowInvalid:
            continue
    return column


class _Column:
    """One column of a result; its first batch with a value sets the type."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._type: type | None = None
        self._type_since = self._rows = 0

    def array(self, values: tuple[Any, ...]) -> pa.Array:
        types = _types(values)
        # SQLite returns each number with its own type.
        is_mixed = types == {int, float} or (types == {int} and self._type is float)
        if is_mixed and self._type in (None, float):
            doubles = tuple(map(_as_double, values))
            values = doubles if _types(doubles) == {float} else values
        if _types(values) - {self._type}:
            self._settle(values)
        self._rows += len(values)
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError):  # TypeError: Decimal("Infinity")
            problem = f"column {self.name} contains values that cannot be used as numbers or texts"
        raise AudienceError(
            f"{problem}; write CAST({self.name} AS TEXT), or remove the column from the query"
        )

    def _settle(self, values: tuple[Any, ...]) -> None:
        for row, value in enumerate(values, self._rows + 1):
            if value is not None and self._type is None:
                self._type, self._type_since = type(value), row
            elif value is not None and type(value) is not self._type:
                assert self._type is not None
                is_number = {self._type, type(value)} == {int, float}
                other = "DOUBLE PRECISION) for numbers with a fraction" if is_number else "TEXT) for texts"
                raise AudienceError(
                    f"column {self.name} has {_spoken(self._type)} in row {self._type_since} of the result and "
                    f"{_spoken(type(value))} in row {row}, but a column needs one type; write CAST({self.name} AS "
                    f"BIGINT) AS {self.name} in the query, or CAST({self.name} AS {other}"
                )


def _types(values: tuple[Any, ...]) -> set[type]:
    return set(map(type, values)) - {type(None)}


def _as_double(value: Any) -> Any:
    """Return a number as a double, or unchanged if no double has all its digits."""
    return float(value) if isinstance(value, int) and abs(value) <= _LARGEST_EXACT else value


def _spoken(type_: type) -> str:
    names = {"int": "a whole number", "str": "text", "float": "a number with a fraction", "bytes": "bytes"}
    return names.get(type_.__name__, type_.__name__)
