"""Read Redshift through psycopg, row by row, with a Python object for each value.

The ADBC driver of PostgreSQL would hold all rows in memory, because Redshift has no COPY to the client.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import ExitStack, closing, suppress
from itertools import islice
from typing import Any

import pyarrow as pa
import requests
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import attempt, open_connection
from sendoff.warehouse.query import Query
from sendoff.warehouse.rows import batches_of_rows
from sendoff.warehouse.urls import LIBPQ_TIMEOUTS, Fields, check_options

OPTIONS = ("sslmode", "sslrootcert", "application_name", "connect_timeout")
"""The options of the driver that a URL may have."""

EXTRAS = {"sslmode": "sslmode", "application_name": "application_name", "timeout": "connect_timeout"}
"""The extras of a connection that a URL can hold, and their names there. ``ssl`` can be held too."""

_PORT = 5439
_CANCEL_SECONDS = 5


def connect(query: Query, stack: ExitStack) -> Any:
    """Open a connection whose transactions cannot write."""
    driver: Any = attempt(lambda: importlib.import_module("psycopg"), query)
    options = driver_options(query.url)
    # Redshift has no DEALLOCATE ALL, which psycopg runs to forget prepared statements.
    connection = open_connection(
        lambda: driver.connect(**options, prepare_threshold=None), query, driver.Error
    )
    stack.callback(connection.close)
    connection.read_only = True
    return connection


def batches(connection: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query in a read-only transaction, in UTC, and yield its rows while they arrive.

    Closing this generator ends the query.
    """
    driver: Any = importlib.import_module("psycopg")
    cursor = connection.cursor()
    sql, values = query.with_places("%s")
    rows = cursor.stream(sql, values or None, size=query.batch_rows)

    def next_rows() -> list[Any]:
        return attempt(lambda: list(islice(rows, query.batch_rows)), query, driver.Error)

    def columns() -> Any:
        if cursor.description is None:  # without rows, psycopg does not keep their columns
            cursor.execute(f"SELECT * FROM (\n{sql}) AS nothing LIMIT 0", values or None)  # noqa: S608
        return cursor.description

    with closing(rows):
        attempt(lambda: connection.execute("SET timezone TO 'UTC'"), query, driver.Error)
        first = [next_rows()]
        description = attempt(columns, query, driver.Error)
        yield from batches_of_rows(
            [column[0] for column in description], lambda: first.pop() if first else next_rows()
        )


def cancel(connection: Any) -> None:
    """End the query on the server, through another connection."""
    with suppress(Exception):
        connection.cancel_safe(timeout=_CANCEL_SECONDS)


def driver_options(url: sa.URL) -> dict[str, Any]:
    """Return the driver's options for ``redshift://user:password@host:5439/database?sslmode=…``.

    The connection is encrypted, and the server's certificate and name are verified, unless ``sslmode`` differs. Raise
    QueryError for a URL without a host, or with an unknown parameter.
    """
    check_options(url, "Redshift", OPTIONS)
    if not url.host:
        raise QueryError("the URL of Redshift has no host; write redshift://user@host:5439/database")
    options = {
        **LIBPQ_TIMEOUTS,
        "host": url.host,
        "port": url.port or _PORT,
        "user": url.username,
        "password": url.password and str(url.password),
        "dbname": url.database,
        "application_name": "sendoff",
        "client_encoding": "UTF8",
        "sslmode": "verify-full",
        "sslrootcert": requests.utils.DEFAULT_CA_BUNDLE_PATH,  # has the authorities of Amazon
        **{name: str(value) for name, value in url.query.items()},
    }
    return {name: value for name, value in options.items() if value is not None}


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a ``redshift`` connection in Airflow, or None if a URL cannot hold all its extras."""
    extra = fields.filled_in
    if extra.pop("ssl", True) in (False, "false", "False"):
        extra["sslmode"] = "disable"
    if not fields.host or not extra.keys() <= EXTRAS.keys():
        return None
    return fields.url("redshift", {EXTRAS[name]: value for name, value in extra.items()})
