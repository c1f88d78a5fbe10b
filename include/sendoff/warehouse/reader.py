"""An SQL query becomes Arrow batches, streamed, by the fastest way that its warehouse has.

.. code-block:: text

    postgresql ... ADBC, by COPY; on request several parts at once, of one snapshot
    sqlite ....... ADBC; through SQLAlchemy where a column may hold two types
    duckdb ....... its own Arrow stream
    snowflake .... ADBC
    engine ....... SQLAlchemy, for every other database: a Python object of each value
    cursors ...... the connections of a Python driver alone, where there is no dialect of SQLAlchemy: the same

Nothing is written: docs/reference/warehouses.md says what keeps each warehouse from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import sqlalchemy as sa

from sendoff.warehouse.adbc import adbc_driver
from sendoff.warehouse.dbapi import Cursors, read_cursors
from sendoff.warehouse.duckdb import read_duckdb
from sendoff.warehouse.postgresql import read_partitions, read_postgresql
from sendoff.warehouse.query import Parameter, Query
from sendoff.warehouse.snowflake import read_snowflake
from sendoff.warehouse.sqlalchemy import engine_of, read_engine
from sendoff.warehouse.sqlite import read_sqlite
from sendoff.warehouse.urls import is_sqlite_file, parse_url

Source = str | sa.Engine | Cursors
"""What a query runs on: a SQLAlchemy URL, an engine, or what opens connections of a Python driver."""

_log = logging.getLogger(__name__)


def address_of(source: Source) -> sa.URL:
    """Return the URL of a warehouse; raise QueryError if a text is none."""
    if isinstance(source, str):
        return parse_url(source)
    return source.url if isinstance(source, sa.Engine) else source.address


@contextmanager
def read(
    source: Source,
    sql: str,
    *,
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
    partitions: int | None = None,
    batch_rows: int = 65_536,
) -> Iterator[Iterator[pa.RecordBatch]]:
    r"""Run a query and give its rows in Arrow batches of about ``batch_rows``; at least one, which may be empty.

    A URL of PostgreSQL or SQLite is read through its ADBC driver where that is installed, one of Snowflake through its
    own, one of DuckDB as Arrow; any other, and every engine, through SQLAlchemy, which makes a Python object of each
    value.

    The query may name ``parameters`` as ``:name``; a colon that is meant as such is written ``\:``. Datetimes must be
    aware; SQLite gets them as the text ``YYYY-MM-DD HH:MM:SS`` in UTC, others with their time zone.

    ``partitions``: the query gives one of so many disjoint parts of its rows, by ``:part`` (from 0) and ``:parts``.
    All are read, each row once and all of one moment: at the same time where the warehouse gives several connections
    one snapshot (a URL of PostgreSQL), else as part 0 of 1. Their batches come in any order.

    Raises QueryError with what the database said, less any word that may be data, and WarehouseUnavailableError where
    nothing answers at its address. Raises AudienceError for a column that holds values of two types, as SQLite allows,
    with its name and the row.
    """
    query = Query(sql, parameters, batch_rows, address_of(source))
    is_postgresql = isinstance(source, str) and query.url.get_backend_name() == "postgresql"
    driver = adbc_driver("postgresql") if is_postgresql else None
    with ExitStack() as stack:
        if partitions and partitions > 1 and driver:
            queries = [_part(query, number, partitions) for number in range(partitions)]
            yield read_partitions(queries, driver, stack)
            return
        if partitions:
            if partitions > 1:
                _log.info("read in 1 part, not %d: the warehouse shares no snapshot", partitions)
            query = _part(query, 0, 1)
        yield read_postgresql(query, driver, stack) if driver else _batches(source, query, stack)


def _batches(source: Source, query: Query, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    if isinstance(source, Cursors):
        return read_cursors(query, source, stack)
    if isinstance(source, sa.Engine):
        return read_engine(query, source, stack)
    if is_sqlite_file(query.url) and (driver := adbc_driver("sqlite")):
        return read_sqlite(query, driver, stack)
    if query.url.get_backend_name() == "duckdb":
        return read_duckdb(query, stack)
    if query.url.get_backend_name() == "snowflake" and (driver := adbc_driver("snowflake")):
        return read_snowflake(query, driver, stack)
    return read_engine(query, engine_of(query.url, stack), stack)


def _part(query: Query, number: int, parts: int) -> Query:
    return replace(query, parameters={**query.parameters, "part": number, "parts": parts})
