"""Read a DuckDB file through DuckDB's own Arrow stream.

DuckDB's ADBC driver is not used: it returns batches of 2,048 rows and takes three times as long.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import attempt, batches_of
from sendoff.warehouse.query import Query
from sendoff.warehouse.rows import with_whole_numbers

_SETTINGS = {
    "autoinstall_known_extensions": "false",  # a query must not download programs
    "python_enable_replacements": "false",  # nor use variables of this process as tables
    "TimeZone": "UTC",
}
_OTHER_FILES = "enable_external_access"  # a DuckDB setting that a URL may set to true


def read_duckdb(query: Query, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query from a file that is opened read-only, in UTC.

    The query cannot reach other files or the network, unless the URL has ``?enable_external_access=true``.
    """
    file = query.url.database or ":memory:"
    if not Path(file).is_file():
        raise QueryError(f"there is no DuckDB database at {file}")
    duckdb: Any = attempt(lambda: importlib.import_module("duckdb"), query)
    settings = {**_SETTINGS, _OTHER_FILES: query.url.query.get(_OTHER_FILES, "false")}
    connection = stack.enter_context(
        closing(attempt(lambda: duckdb.connect(file, True, settings), query, duckdb.Error))
    )

    def execute() -> pa.RecordBatchReader:
        # A relation streams the rows; a cursor would keep all of them in memory.
        return connection.sql(query.with_literals()).to_arrow_reader(query.batch_rows)

    reader = stack.enter_context(attempt(execute, query, duckdb.Error))
    return map(with_whole_numbers, batches_of(reader, query, duckdb.Error))
