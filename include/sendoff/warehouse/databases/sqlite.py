"""Read an SQLite file through its ADBC driver, or through SQLAlchemy if a column may contain two types."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import adbc_cursor, attempt, batches_of
from sendoff.warehouse.query import Query
from sendoff.warehouse.sqlalchemy import engine_of, read_engine
from sendoff.warehouse.urls import read_only_uri


def connect(query: Query, stack: ExitStack) -> Any:
    """Open a file read-only and return a cursor."""
    if not (file := Path(query.url.database or "")).is_file():
        raise QueryError(f"there is no SQLite database at {file.absolute()}; correct the path")
    uri = read_only_uri(query.url)
    return adbc_cursor(query, lambda driver: driver.connect(uri), stack)


def batches(cursor: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query and yield its rows; through SQLAlchemy, if a column may contain two types."""

    def execute() -> pa.RecordBatchReader:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(query.batch_rows)})
        cursor.execute(query.with_literals())
        return cursor.fetch_record_batch()

    with ExitStack() as stack:
        found = batches_of(stack.enter_context(attempt(execute, query)), query)
        first = next(found)
        if any(_leaves_doubt(column) for column in first.columns):
            yield from read_engine(query, engine_of(query, stack), stack)
        else:
            yield from _or_name_the_row(chain([first], found), query, stack)


def _leaves_doubt(column: pa.Array) -> bool:
    # The driver takes a column's type from the first batch, and converts numbers among texts to texts there.
    if not len(column):
        return False
    if pa.types.is_string(column.type) and column.null_count < len(column):
        return bool(pc.any(pc.match_substring_regex(column, r"^[-+]?([0-9.]+(e[-+][0-9]+)?|inf)$")).as_py())
    return column.null_count == len(column) or not pa.types.is_integer(column.type)


def _or_name_the_row(
    batches: Iterator[pa.RecordBatch], query: Query, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except QueryError:
        # If another type appeared after the first batch, reading again through SQLAlchemy raises an error with its row.
        for _ in read_engine(query, engine_of(query, stack), stack):
            pass
        raise
