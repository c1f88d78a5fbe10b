"""Read a DuckDB file through DuckDB's own Arrow stream.

DuckDB's ADBC driver is not used: it returns batches of 2,048 rows and takes three times as long.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import attempt, batches_of
from sendoff.warehouse.query import Query
from sendoff.warehouse.rows import with_whole_numbers
from sendoff.warehouse.urls import Fields

_SETTINGS = {
    "autoinstall_known_extensions": "false",  # a query must not download programs
    "python_enable_replacements": "false",  # nor use variables of this process as tables
    "TimeZone": "UTC",
}
_OTHER_FILES = "enable_external_access"  # a DuckDB setting that a URL may set to true


def connect(query: Query, stack: ExitStack) -> Any:
    """Open a file read-only, in UTC.

    The query cannot reach other files or the network, unless the URL has ``?enable_external_access=true``.
    """
    file = query.url.database or ":memory:"
    if not Path(file).is_file():
        raise QueryError(f"there is no DuckDB database at {Path(file).absolute()}; correct the path")
    duckdb: Any = attempt(lambda: importlib.import_module("duckdb"), query)
    settings = {**_SETTINGS, _OTHER_FILES: query.url.query.get(_OTHER_FILES, "false")}
    return stack.enter_context(
        closing(attempt(lambda: duckdb.connect(file, True, settings), query, duckdb.Error))
    )


def batches(connection: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query and yield its rows."""
    duckdb: Any = importlib.import_module("duckdb")

    def execute() -> pa.RecordBatchReader:
        # A relation streams the rows; a cursor would keep all of them in memory.
        return connection.sql(query.with_literals()).to_arrow_reader(query.batch_rows)

    with attempt(execute, query, duckdb.Error) as reader:
        yield from map(with_whole_numbers, batches_of(reader, query, duckdb.Error))


def cancel(connection: Any) -> None:
    """Interrupt a query that another thread runs."""
    connection.interrupt()


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a ``duckdb`` connection in Airflow, or None without a file or with extras."""
    return sa.URL.create("duckdb", database=fields.host) if fields.host and not fields.extra else None
