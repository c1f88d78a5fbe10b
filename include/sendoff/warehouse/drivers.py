"""The databases that Sendoff reads as Arrow, one entry for each. SQLAlchemy and Python drivers read all others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol

import pyarrow as pa
import sqlalchemy as sa

from sendoff.warehouse.databases import (
    bigquery,
    clickhouse,
    databricks,
    duckdb,
    mysql,
    postgresql,
    redshift,
    snowflake,
    sqlite,
    trino,
)
from sendoff.warehouse.query import Query
from sendoff.warehouse.urls import Fields, is_plain, is_sqlite_file


@dataclass(frozen=True, slots=True)
class Driver:
    """How one database is recognised, opened, read and interrupted.

    ``title``: its name in errors. ``backend``: its name in URLs. ``package``: the Python package that reads it, which
    ``extra`` installs.

    ``connect`` opens a connection; closing the stack closes it. ``batches`` runs the query and yields its rows: at
    least one batch, which may be empty. ``cancel`` interrupts that from another thread, and may be called again. A
    query without ``cancel`` ends with this process. ``in_parts`` reads several parts of one snapshot at once.

    ``accepts`` checks whether it reads a URL with this name. ``connection_type`` is its type of connection in Airflow,
    unless ledgers use it too. ``url_of`` returns the URL of such a connection, or None if a URL cannot hold all fields.
    """

    title: str
    backend: str
    package: str
    extra: str
    connect: Callable[[Query, ExitStack], Any]
    batches: Callable[[Any, Query], Generator[pa.RecordBatch, None, None]]
    cancel: Callable[[Any], None] | None
    in_parts: Callable[[Query, int, ExitStack], Iterator[pa.RecordBatch]] | None = None
    accepts: Callable[[sa.URL], bool] = lambda _: True
    connection_type: str | None = None
    url_of: Callable[[Fields], sa.URL | None] = lambda _: None

    @property
    def is_installed(self) -> bool:
        """Check whether the package is installed."""
        try:
            return find_spec(self.package) is not None
        except ImportError:  # of the package above it
            return False

    @property
    def remedy(self) -> str:
        """Return how to install the package, for errors."""
        return f"Install the extra {self.extra}: pip install 'airflow-provider-sendoff[{self.extra}]'"


class _Module(Protocol):
    """A module that reads one database, and the connections of that database in Airflow."""

    def connect(self, query: Query, stack: ExitStack, /) -> Any: ...
    def batches(self, connection: Any, query: Query, /) -> Generator[pa.RecordBatch, None, None]: ...
    def cancel(self, connection: Any, /) -> None: ...
    def url_of(self, fields: Fields, /) -> sa.URL | None: ...


def _driver(
    title: str, package: str, module: _Module, accepts: Callable[[sa.URL], bool] = lambda _: True
) -> Driver:
    """Return the driver of a database that has one name in URLs, in extras and in Airflow."""
    name = title.lower()
    return Driver(
        title=title,
        backend=name,
        package=package,
        extra=name,
        connect=module.connect,
        batches=module.batches,
        cancel=module.cancel,
        accepts=accepts,
        connection_type=name,
        url_of=module.url_of,
    )


_MYSQL = _driver("MySQL", "pymysql", mysql, mysql.accepts)
_BIGQUERY = _driver("BigQuery", "google.cloud.bigquery_storage", bigquery)

DRIVERS = (
    Driver(
        title="PostgreSQL",
        backend="postgresql",
        package="adbc_driver_postgresql.dbapi",
        extra="postgres",
        connect=postgresql.connect,
        batches=postgresql.batches,
        cancel=postgresql.cancel,
        in_parts=postgresql.read_partitions,
    ),
    Driver(
        title="SQLite",
        backend="sqlite",
        package="adbc_driver_sqlite.dbapi",
        extra="",  # installed with Sendoff
        connect=sqlite.connect,
        batches=sqlite.batches,
        cancel=None,
        accepts=is_sqlite_file,
    ),
    _driver("DuckDB", "duckdb", duckdb),
    _driver("Snowflake", "adbc_driver_snowflake.dbapi", snowflake),
    _driver("ClickHouse", "clickhouse_connect", clickhouse, is_plain),
    _MYSQL,
    replace(
        _MYSQL,
        title="MariaDB",
        backend="mariadb",
        connection_type="mariadb",
        url_of=partial(mysql.url_of, name="mariadb"),
    ),
    _driver("Trino", "trino.dbapi", trino),
    _driver("Redshift", "psycopg", redshift, is_plain),
    _driver("Databricks", "databricks.sql", databricks),
    replace(_BIGQUERY, connection_type="google_cloud_platform"),  # Airflow has two names for it
    replace(_BIGQUERY, connection_type="gcpbigquery"),
)


def driver_of(url: sa.URL) -> Driver | None:
    """Return the driver for a URL, installed or not, or None if another way reads this database."""
    backend = url.get_backend_name()
    return next((each for each in DRIVERS if each.backend == backend and each.accepts(url)), None)


def driver_of_type(connection_type: str | None) -> Driver | None:
    """Return the driver for a type of connection in Airflow, installed or not, or None if there is none."""
    return next(
        (each for each in DRIVERS if each.connection_type and each.connection_type == connection_type), None
    )
