"""Read PostgreSQL with COPY through its ADBC driver, optionally in several parts of one snapshot at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from sendoff.warehouse.adbc import adbc_cursor, attempt, batches_of
from sendoff.warehouse.parallel import together
from sendoff.warehouse.query import Query

_BYTES_A_ROW = 16  # an identifier with COPY's framing
_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
# Through a socket file, both addresses are null.
_SHARED_MOMENT = "SELECT pg_export_snapshot(), inet_server_addr() IS NOT DISTINCT FROM inet_client_addr()"
# Without this setting, the query of a killed task would run on until it has a first row to send. Servers before
# version 14 do not have the setting, and some systems cannot check whether a client is connected.
_END_WITH_US = """
DO $$ BEGIN
    PERFORM set_config('client_connection_check_interval', '5s', true);
EXCEPTION WHEN undefined_object OR invalid_parameter_value THEN
END $$"""


_log = logging.getLogger(__name__)


def read_postgresql(query: Query, driver: Any, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query in a read-only transaction, in UTC, in a thread of its own: the caller works meanwhile."""
    cursor = _cursor(query, driver, stack)
    return together([_batches(cursor, query)], [cursor.adbc_cancel], stack)


def read_partitions(query: Query, parts: int, driver: Any, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query in several parts at once, each in its own transaction, and all in the snapshot of the first one.

    The first transaction exports its snapshot, and stays open until all parts are read. On the server's own machine, a
    part needs a core for the server and one to read it, so there may be fewer parts than ``parts``.
    """
    first = _cursor(query, driver, stack)
    snapshot, is_same_machine = attempt(lambda: _shared_moment(first), query)
    if is_same_machine and parts > (most := max(1, (os.cpu_count() or 1) // 2)):
        _log.info("Read in %d parts, not %d: the warehouse uses the cores of this machine", most, parts)
        parts = most
    cursors = [first, *(_cursor(query, driver, stack) for _ in range(1, parts))]

    def join() -> None:
        for cursor in cursors[1:]:
            cursor.execute(_ONE_MOMENT)
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    attempt(join, query)
    readers = [_batches(cursor, query.part(number, parts)) for number, cursor in enumerate(cursors)]
    return together(readers, [cursor.adbc_cancel for cursor in cursors], stack)


def _shared_moment(cursor: Any) -> Any:
    cursor.execute(_ONE_MOMENT)
    cursor.execute(_SHARED_MOMENT)
    return cursor.fetchone()


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
