"""Read MySQL and MariaDB through PyMySQL, row by row, with a Python object for each value."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from sendoff.warehouse.adbc import attempt, open_connection
from sendoff.warehouse.dbapi import rows_of
from sendoff.warehouse.query import Query
from sendoff.warehouse.urls import CONNECT_SECONDS, Fields, check_options

OPTIONS = (
    "unix_socket",
    "charset",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "ssl_verify_cert",
    "ssl_verify_identity",
)
"""The options of the driver that a URL or a connection may have."""

_IGNORED = ("client", "cursor")  # extras that choose how Airflow's hook reads
_CANCEL_SECONDS = 5
# A session in UTC, whose transaction cannot write.
_BEGIN = ("SET time_zone = '+00:00'", "START TRANSACTION READ ONLY")


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of the driver, and the options that opened it."""

    opened: Any = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)


def accepts(url: sa.URL) -> bool:
    """Check whether a URL names no driver of SQLAlchemy after a plus sign, or PyMySQL."""
    return url.drivername.partition("+")[2] in ("", "pymysql")


def connect(query: Query, stack: ExitStack) -> Connection:
    """Open a connection."""
    driver: Any = attempt(_driver, query)
    options = driver_options(query.url)
    opened = open_connection(lambda: driver.connect(**options), query, Exception)
    stack.callback(opened.close)
    return Connection(opened, options)


def batches(connection: Connection, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query in a read-only transaction, in UTC, and yield its rows while they arrive."""
    # Exception is the only base class of all errors of the driver.
    cursors: Any = importlib.import_module("pymysql.cursors")
    cursor = attempt(lambda: connection.opened.cursor(cursors.SSCursor), query, Exception)
    sql, values = query.with_places("%s")

    def execute() -> None:
        for statement in _BEGIN:
            connection.opened.query(statement)
        cursor.execute(sql, values or None)

    try:
        attempt(execute, query, Exception)
        yield from rows_of(cursor, query)
    except GeneratorExit:
        cancel(connection)  # because the driver reads all other rows before it closes a cursor
        raise
    finally:
        with suppress(Exception):
            cursor.close()


def cancel(connection: Connection) -> None:
    """End the query on the server, through another connection."""
    limits = {"connect_timeout": _CANCEL_SECONDS, "read_timeout": _CANCEL_SECONDS}
    with suppress(Exception), closing(_driver().connect(**{**connection.options, **limits})) as other:
        other.query(f"KILL QUERY {connection.opened.thread_id()}")


def driver_options(url: sa.URL) -> dict[str, Any]:
    """Return the driver's options for ``mysql://user:password@host:3306/database?ssl_ca=…``.

    Raise QueryError for an unknown parameter.
    """
    check_options(url, "MySQL", OPTIONS)
    options = {
        "host": url.host or "localhost",
        "port": url.port or 3306,
        "user": url.username,
        "password": str(url.password or ""),
        "database": url.database,
        "charset": "utf8mb4",
        "connect_timeout": CONNECT_SECONDS,
        **{name: str(value) for name, value in url.query.items()},
    }
    flags = {name: options[name] == "true" for name in options if name.startswith("ssl_verify")}
    return {**options, **flags}


def url_of(fields: Fields, name: str = "mysql") -> sa.URL | None:
    """Return the URL of a connection in Airflow, or None if a URL cannot hold all its extras."""
    extra = {key: value for key, value in fields.extra.items() if value and key not in _IGNORED}
    if isinstance(ssl := extra.pop("ssl", {}), dict):
        extra |= {f"ssl_{key}": value for key, value in ssl.items()}
    else:
        return None
    if not extra.keys() <= set(OPTIONS):
        return None
    return fields.url(name, extra, host=fields.host or "localhost")


def _driver() -> Any:
    return importlib.import_module("pymysql")
