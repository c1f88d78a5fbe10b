"""Read PostgreSQL with COPY through its ADBC driver, optionally in several parts of one snapshot at once."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pyarrow as pa

from sendoff.warehouse.adbc import adbc_cursor, attempt, batches_of
from sendoff.warehouse.parallel import together
from sendoff.warehouse.query import Query

_BYTES_A_ROW = 16  # an identifier with COPY's framing
_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
# Through a socket file, both addresses are null.
_SHARED_MOMENT = "SELECT pg_export_snapshot(), inet_server_addr() IS NOT DISTINCT FROM inet_client_addr()"
_TRIED = 4  # batches to read with one part, and again with several
_LONG = 500_000  # the planner's cost of a query that takes some seconds, and so much longer than a trial
_WORKS_FIRST = 0.1  # part of the cost that comes before the first row
_FASTER = 1.2  # times as fast, below which one part is read
# Without this setting, the query of a killed task would run on until it has a first row to send. Servers before
# version 14 do not have the setting, and some systems cannot check whether a client is connected.
_END_WITH_US = """
DO $$ BEGIN
    PERFORM set_config('client_connection_check_interval', '5s', true);
EXCEPTION WHEN undefined_object OR invalid_parameter_value THEN
END $$"""


_log = logging.getLogger(__name__)


def connect(query: Query, stack: ExitStack) -> Any:
    """Open a connection and return its cursor."""
    uri = query.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return adbc_cursor(query, lambda driver: driver.connect(uri), stack)


def batches(cursor: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query in a read-only transaction, in UTC, and yield its rows."""

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


def cancel(cursor: Any) -> None:
    """Interrupt what a cursor does in another thread."""
    cursor.adbc_cancel()


def read_partitions(query: Query, parts: int, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query in several parts at once, each in its own transaction, and all in the snapshot of the first one.

    The first transaction exports its snapshot, and stays open until all parts are read. Several parts are read only if
    a trial shows that they are faster. On the server's own machine, a part needs a core for the server and one to read
    it, so there may be fewer parts than ``parts``.
    """
    first = connect(query, stack)
    snapshot, is_same_machine = attempt(lambda: _shared_moment(first), query)
    if is_same_machine and parts > (most := max(1, (os.cpu_count() or 1) // 2)):
        _log.info("Read in %d parts, not %d: the warehouse uses the cores of this machine", most, parts)
        parts = most
    if parts > 1 and not _are_faster(query, parts, first, snapshot):
        _log.info("Read in 1 part, not %d: that is at least as fast", parts)
        parts = 1
    cursors = [first, *_sharing(snapshot, query, parts - 1, stack)]
    return _together(query, cursors, stack)


def _are_faster(query: Query, parts: int, first: Any, snapshot: str) -> bool:
    """Check whether several parts are faster than one, by reading the first batches of both ways.

    A query that is short, or works long before its first row, is not tried: the trial would cost more than it gains.
    """
    plan = attempt(lambda: _plan(first, query.part(0, 1)), query)
    # The planner's number of rows is no guide: it expects that one row in 200 has ``:part``, of any number of parts.
    if plan["Total Cost"] < _LONG or plan["Startup Cost"] > _WORKS_FIRST * plan["Total Cost"]:
        return False

    def seconds(parts: int) -> float:
        with ExitStack() as trial:
            cursors = _sharing(snapshot, query, parts, trial)
            start = time.perf_counter()
            list(islice(_together(query, cursors, trial), _TRIED))
            return time.perf_counter() - start

    return seconds(parts) * _FASTER < seconds(1)


def _plan(cursor: Any, query: Query) -> Any:
    cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
    cursor.execute(f"EXPLAIN (FORMAT JSON) {query.with_literals()}")
    (text,) = cursor.fetchone()
    cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "true"})
    return json.loads(text)[0]["Plan"]


def _sharing(snapshot: str, query: Query, count: int, stack: ExitStack) -> list[Any]:
    """Open connections that see a snapshot."""
    cursors = [connect(query, stack) for _ in range(count)]

    def join() -> None:
        for cursor in cursors:
            cursor.execute(_ONE_MOMENT)
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    attempt(join, query)
    return cursors


def _together(query: Query, cursors: list[Any], stack: ExitStack) -> Iterator[pa.RecordBatch]:
    readers = [batches(cursor, query.part(number, len(cursors))) for number, cursor in enumerate(cursors)]
    return together(readers, [cursor.adbc_cancel for cursor in cursors], stack)


def _shared_moment(cursor: Any) -> Any:
    cursor.execute(_ONE_MOMENT)
    cursor.execute(_SHARED_MOMENT)
    return cursor.fetchone()
