"""Read any database that SQLAlchemy supports, with a Python object for each value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import attempt, open_connection
from sendoff.warehouse.query import NO_ROWS, Query
from sendoff.warehouse.rows import batches_of_rows
from sendoff.warehouse.urls import is_sqlite_file, read_only_uri


def read_engine(query: Query, engine: sa.Engine, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query in a transaction that is rolled back; on PostgreSQL and SQLite, it cannot write at all."""
    connection = stack.enter_context(open_connection(engine.connect, query))
    result = attempt(lambda: _execute(query, connection, stack), query)
    if not result.returns_rows:
        raise QueryError(NO_ROWS)
    partitions = result.partitions(query.batch_rows)
    return batches_of_rows(list(result.keys()), lambda: attempt(lambda: next(partitions, []), query))


def engine_of(query: Query, stack: ExitStack) -> sa.Engine:
    """Return an engine for the warehouse of a query; closing the stack disposes of it."""
    url = query.url
    if is_sqlite_file(url):
        url = sa.make_url(f"sqlite:///{read_only_uri(url)}&uri=true")
    elif url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = attempt(lambda: sa.create_engine(url, poolclass=NullPool), query)
    stack.callback(engine.dispose)
    return engine


def _execute(query: Query, connection: sa.Connection, stack: ExitStack) -> sa.CursorResult[Any]:
    backend = connection.dialect.name
    if backend == "postgresql":
        connection.execution_options(postgresql_readonly=True)
        connection.execute(sa.text("SET LOCAL TIME ZONE 'UTC'"))
    elif backend == "sqlite":
        connection.execute(sa.text("PRAGMA query_only = ON"))
        stack.callback(connection.execute, sa.text("PRAGMA query_only = OFF"))
    streamed = connection.execution_options(stream_results=True, max_row_buffer=query.batch_rows)
    result = streamed.execute(query.with_bound_values(backend))
    stack.callback(result.close)
    return result
