"""Stream the rows of an SQL query as Arrow batches, in the fastest way that its warehouse allows.

.. code-block:: text

    postgresql ... ADBC with COPY; optionally several parts of one snapshot at once
    sqlite ....... ADBC; SQLAlchemy if a column may contain two types
    duckdb ....... its own Arrow stream
    snowflake .... ADBC
    engine ....... SQLAlchemy for every other database, with a Python object for each value
    cursors ...... a Python driver without a SQLAlchemy dialect, also with Python objects

Queries cannot write: docs/reference/warehouses.md describes what prevents it in each warehouse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
"""A warehouse: a SQLAlchemy URL or engine, or the cursors of a Python driver."""

_log = logging.getLogger(__name__)


def address_of(source: Source) -> sa.URL:
    """Return the URL of a warehouse. Raise QueryError if ``source`` is a text but not a URL."""
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
    r"""Run a query and yield its rows in Arrow batches of about ``batch_rows``; at least one, which may be empty.

    PostgreSQL, SQLite and Snowflake URLs use an ADBC driver if it is installed, and DuckDB URLs use DuckDB's Arrow
    stream. Other URLs, and engines, use SQLAlchemy, which makes a Python object of each value.

    The query refers to ``parameters`` as ``:name``; any other colon before a word is written ``\:``. Datetimes must be
    aware. SQLite gets them as the text ``YYYY-MM-DD HH:MM:SS`` in UTC, other databases with their time zone.

    ``partitions``: the query returns one of at most this many disjoint parts of its rows, by ``:part`` (from 0) and
    ``:parts``. Each row is read once, and all parts belong to one snapshot. A PostgreSQL URL allows several connections
    to share a snapshot, so its parts are read at the same time if a trial shows that this is faster. On the server's
    own machine, there is at most one part for two cores. Other warehouses read part 0 of 1. Batches come in any order.

    Raise QueryError with the database's message, without words that may be data. Raise WarehouseUnavailableError if the
    warehouse cannot be reached. Raise AudienceError with the column and the row if a column contains values of two
    types, as SQLite allows.
    """
    query = Query(sql, parameters, batch_rows, address_of(source))
    is_postgresql = isinstance(source, str) and query.url.get_backend_name() == "postgresql"
    driver = adbc_driver("postgresql") if is_postgresql else None
    with ExitStack() as stack:
        if partitions and partitions > 1 and driver:
            yield read_partitions(query, partitions, driver, stack)
            return
        if partitions:
            if partitions > 1:
                _log.info("Read in 1 part, not %d: the warehouse cannot share a snapshot", partitions)
            query = query.part(0, 1)
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
