"""Read PostgreSQL with COPY through its ADBC driver, optionally in several parts of one snapshot at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa

from sendoff.warehouse.adbc import adbc_cursor, attempt, batches_of
from sendoff.warehouse.parallel import together
from sendoff.warehouse.query import Query

_BYTES_A_ROW = 16  # an identifier with COPY's framing
_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
# Without this setting, the query of a killed task would run on until it has a first row to send. Servers before
# version 14 do not have the setting, and some systems cannot check whether a client is connected.
_END_WITH_US = """
DO $$ BEGIN
    PERFORM set_config('client_connection_check_interval', '5s', true);
EXCEPTION WHEN undefined_object OR invalid_parameter_value THEN
END $$"""


def read_postgresql(query: Query, driver: Any, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query in a read-only transaction, in UTC."""
    cursor = _cursor(query, driver, stack)
    return stack.enter_context(closing(_batches(cursor, query)))


def read_partitions(queries: Sequence[Query], driver: Any, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read several queries at once, each in its own transaction, and all in the snapshot of the first one.

    The first transaction exports its snapshot, and stays open until all queries are read.
    """
    cursors = [_cursor(query, driver, stack) for query in queries]

    def share_one_snapshot() -> None:
        for cursor in cursors:
            cursor.execute(_ONE_MOMENT)
        cursors[0].execute("SELECT pg_export_snapshot()")
        snapshot = cursors[0].fetchone()[0]
        for cursor in cursors[1:]:
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    attempt(share_one_snapshot, queries[0])
    readers = [_batches(cursor, query) for cursor, query in zip(cursors, queries, strict=True)]
    return together(readers, [cursor.adbc_cancel for cursor in cursors], stack)


def _cursor(query: Query, driver: Any, stack: ExitStack) -> Any:
    uri = query.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return adbc_cursor(query, lambda: driver.connect(uri), stack)


def _batches(cursor: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    def execute() -> pa.RecordBatchReader:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")
        cursor.execute(_END_WITH_US)
        size = str(query.batch_rows * _BYTES_A_ROW)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": size})
        # Parameters are literals in the query: if they were bound, the driver would neither use COPY nor stream.
        cursor.execute(query.with_literals())
        return cursor.fetch_record_batch()

    with attempt(execute, query) as reader:
        yield from batches_of(reader, query)
