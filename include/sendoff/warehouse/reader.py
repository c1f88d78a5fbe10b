"""An SQL query becomes Arrow batches, streamed, by the fastest way that its warehouse has.

.. code-block:: text

    postgresql ... ADBC, by COPY; on request several parts at once, of one snapshot
    sqlite ....... ADBC; through SQLAlchemy where a column may hold two types
    duckdb ....... its own Arrow stream
    snowflake .... ADBC
    engine ....... SQLAlchemy, for every other database: a Python object of each value
    cursors ...... the connections of a Python driver alone, where there is no dialect of SQLAlchemy: the same

What they share: ``address`` (where a warehouse is), ``driver`` (its errors, made fit to be shown, and ADBC), ``parts``
(several readers, one stream) and ``rows`` (Python rows to Arrow). Nothing is written:
docs/reference/warehouses.md says what keeps each warehouse from it.
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
from sendoff.warehouse.postgresql import read_parts, read_postgresql
from sendoff.warehouse.query import Parameter, Query
from sendoff.warehouse.snowflake import read_snowflake
from sendoff.warehouse.sqlalchemy import engine_of, read_engine
from sendoff.warehouse.sqlite import read_sqlite
from sendoff.warehouse.urls import address_of, is_sqlite_file

__all__ = ["Cursors", "Source", "read"]

Source = str | sa.Engine | Cursors
"""What a query runs on: a SQLAlchemy URL, an engine, or what opens connections of a Python driver."""

_log = logging.getLogger(__name__)


@contextmanager
def read(
    source: Source,
    sql: str,
    *,
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
    parts: int | None = None,
    batch_rows: int = 65_536,
) -> Iterator[Iterator[pa.RecordBatch]]:
    r"""Run a query and give its rows in Arrow batches of about ``batch_rows``; at least one, which may be empty.

    A URL of PostgreSQL or SQLite is read through its ADBC driver where that is installed, one of Snowflake through its
    own, one of DuckDB as Arrow; any other, and every engine, through SQLAlchemy, which makes a Python object of each
    value.

    The query may name ``parameters`` as ``:name``; a colon that is meant as such is written ``\:``. Datetimes must be
    aware; SQLite gets them as the text ``YYYY-MM-DD HH:MM:SS`` in UTC, others with their time zone.

    ``parts``: the query gives one of so many disjoint parts of its rows, by ``:part`` (from 0) and ``:parts``. All are
    read, each row once and all of one moment: at the same time where the warehouse gives several connections one
    snapshot (a URL of PostgreSQL), else as part 0 of 1. Their batches come in any order.

    Raises QueryError with what the database said, less any word that may be data, and WarehouseUnavailableError where
    nothing answers at its address. Raises AudienceError for a column that holds values of two types, as SQLite allows,
    with its name and the row.
    """
    query = Query(sql, parameters, batch_rows, address_of(source))
    driver = adbc_driver("postgresql") if _is_url(source, query, "postgresql") else None
    with ExitStack() as stack:
        if parts and parts > 1 and driver:
            yield read_parts([_part(query, number, parts) for number in range(parts)], driver, stack)
            return
        if parts:
            if parts > 1:
                _log.info("read in 1 part, not %d: the warehouse shares no snapshot", parts)
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


def _is_url(source: Source, query: Query, backend: str) -> bool:
    return isinstance(source, str) and query.url.get_backend_name() == backend


def _part(query: Query, number: int, parts: int) -> Query:
    return replace(query, parameters={**query.parameters, "part": number, "parts": parts})
