"""Stream the rows of an SQL query as Arrow batches, in the fastest way that its warehouse allows.

The table in ``drivers`` has the databases that are read as Arrow. SQLAlchemy reads every other database, and
``Cursors`` a Python driver without a SQLAlchemy dialect, both with a Python object for each value.

Queries cannot write: docs/reference/warehouses.md describes what prevents it in each warehouse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain
from types import MappingProxyType

import pyarrow as pa
import sqlalchemy as sa

from sendoff.errors import QueryError, SettingsError
from sendoff.warehouse.dbapi import Cursors, read_cursors
from sendoff.warehouse.drivers import Driver, driver_of
from sendoff.warehouse.parallel import together
from sendoff.warehouse.query import Parameter, Query
from sendoff.warehouse.sqlalchemy import engine_of, read_engine
from sendoff.warehouse.urls import parse_url

Source = str | sa.Engine | Cursors
"""A warehouse: a SQLAlchemy URL or engine, or the cursors of a Python driver."""

_log = logging.getLogger(__name__)
_open: set[ExitStack] = set()  # what this process is reading


def address_of(source: Source) -> sa.URL:
    """Return the URL of a warehouse.

    Raise QueryError if ``source`` is a text but not a URL, and SettingsError if it is anything else, such as a
    connection.
    """
    if isinstance(source, str):
        return parse_url(source)
    if isinstance(source, sa.Engine):
        return source.url
    if isinstance(source, Cursors):
        return source.address
    raise SettingsError(
        f"found {type(source).__name__} as a warehouse. Use the text of a SQLAlchemy URL, or an engine of SQLAlchemy"
    )


def is_reading() -> bool:
    """Check whether this process is reading a warehouse. An exception that is raised meanwhile ends the query."""
    return bool(_open)


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

    The URL of a database in the table of drivers is read as Arrow, if its driver is installed. Other URLs, and engines,
    use SQLAlchemy, which makes a Python object of each value.

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
    driver = driver_of(query.url) if isinstance(source, str) else None
    with ExitStack() as stack:
        _open.add(stack)
        stack.callback(_open.discard, stack)
        if partitions and partitions > 1:
            if driver and driver.in_parts and driver.is_installed:
                yield driver.in_parts(query, partitions, stack)
                return
            _log.info("Read in 1 part, not %d: the warehouse cannot share a snapshot", partitions)
        if partitions:
            query = query.part(0, 1)
        yield _batches(source, driver, query, stack)


def _batches(
    source: Source, driver: Driver | None, query: Query, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    if isinstance(source, Cursors):
        return read_cursors(query, source, stack)
    if isinstance(source, sa.Engine):
        return read_engine(query, source, stack)
    if driver and driver.is_installed:
        return _as_arrow(driver, query, stack)
    return read_engine(query, _engine_instead(driver, query, stack), stack)


def _as_arrow(driver: Driver, query: Query, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read through a driver. Errors of the query are raised here, and not with the first batch."""
    connection = driver.connect(query, stack)
    reader = driver.batches(connection, query)
    if driver.cancel is None:
        batches: Iterator[pa.RecordBatch] = stack.enter_context(closing(reader))
    else:  # in a thread, so that a signal reaches this one meanwhile, and the query can be ended
        batches = together([reader], [partial(driver.cancel, connection)], stack)
    return chain([next(batches)], batches)


def _engine_instead(driver: Driver | None, query: Query, stack: ExitStack) -> sa.Engine:
    """Return SQLAlchemy's engine. If it has none, raise QueryError, and name the driver that is missing."""
    try:
        return engine_of(query, stack)
    except QueryError as error:
        problem = str(error)
    raise QueryError(
        problem if driver is None else f"the driver of {driver.title} is not installed. {driver.remedy}"
    )
