"""Check the columns of a query against what ``audience.columns`` promises, while the rows stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sendoff.campaign import AudienceColumn, did_you_mean
from sendoff.errors import AudienceError
from sendoff.figures import counted
from sendoff.warehouse import QUERY, Wording, is_number, is_text, sql_type_name, value_type

_MOST_VALUES = 10  # accepted values to show in an error


_CHECKS: Mapping[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean,
    "date": pa.types.is_date,
    "integer": pa.types.is_integer,
    "number": lambda type_: pa.types.is_integer(type_) or is_number(type_),
    "text": is_text,
    "timestamp": pa.types.is_timestamp,
}


@dataclass(slots=True)
class _Count:
    """The rows of a column so far that break its contract, by rule."""

    wrong_type: int = 0
    found_type: str = ""
    wrong_value: int = 0
    empty: int = 0


def checked_columns(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, AudienceColumn], wording: Wording = QUERY
) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged, and check them against ``columns``. Rows that are dropped later count too.

    Raise AudienceError before the first batch if a column is missing or there twice, and after the last batch if rows
    differ. It names the columns, what was expected, and how many rows differ, but no value.
    """
    counts = {name: _Count() for name in columns}
    places: dict[str, int] = {}
    rows = 0
    for batch in batches:
        places = places or _places(batch.schema.names, columns, wording)
        for name, expected in columns.items():
            _count(counts[name], expected, batch.column(places[name]))
        rows += len(batch)
        yield batch
    problems = [
        problem
        for name, expected in columns.items()
        for problem in _problems(name, expected, counts[name], rows)
    ]
    if problems:
        raise _error(problems)


def _places(names: list[str], columns: Iterable[str], wording: Wording) -> dict[str, int]:
    found = [name.lower() for name in names]
    missing = [name for name in columns if name.lower() not in found]
    if missing:
        raise _error(
            f"{wording.subject} has no column {name}, which audience.columns expects{did_you_mean(name, names)}"
            for name in missing
        )
    if twice := [name for name in columns if found.count(name.lower()) > 1]:
        raise _error(f"{wording.subject} has the column {name} more than once" for name in twice)
    return {name: found.index(name.lower()) for name in columns}


def _error(problems: Iterable[str]) -> AudienceError:
    error = AudienceError("; ".join(problems))
    error.not_launched = "its query does not return what audience.columns expects"
    return error


def _count(count: _Count, expected: AudienceColumn, column: pa.Array) -> None:
    count.empty += column.null_count
    filled = len(column) - column.null_count
    if not filled:
        return
    type_ = value_type(column)
    if expected.type and not _CHECKS[expected.type](type_):
        count.wrong_type += filled
        count.found_type = sql_type_name(type_)
    elif expected.values:
        count.wrong_value += filled - _accepted(column, expected.texts)


def _accepted(column: pa.Array, texts: tuple[str, ...]) -> int:
    """Return how many rows have one of the values."""
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    try:
        written = column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return 0
    return int(pc.sum(pc.is_in(written, value_set=pa.array(texts, pa.large_string()))).as_py() or 0)


def _problems(name: str, expected: AudienceColumn, count: _Count, rows: int) -> Iterator[str]:
    of_all = f"of {counted(rows, 'row')}"
    if count.wrong_type:
        differ = f"{count.wrong_type:,} {of_all} have {count.found_type}"
        yield f"column {name} must have the type {expected.type}, but {differ}"
    if count.wrong_value:
        more = len(expected.texts) - _MOST_VALUES
        values = ", ".join(expected.texts[:_MOST_VALUES]) + (f" and {more} more" if more > 0 else "")
        yield f"column {name} must be one of {values}, but {count.wrong_value:,} {of_all} have another value"
    if expected.required and (rows - count.empty) * 100 < expected.required * rows:
        share = "every row" if expected.required == 100 else f"{expected.required:g} % of the rows"
        yield f"column {name} must have a value in {share}, but {count.empty:,} {of_all} have none"
