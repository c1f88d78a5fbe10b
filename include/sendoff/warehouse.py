"""An SQL query becomes Arrow batches, streamed: from PostgreSQL and SQLite by ADBC, from the rest by SQLAlchemy.

The query is read in a transaction that cannot write and is rolled back. On PostgreSQL the time zone of that
transaction is UTC.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from sendoff.errors import AudienceError, QueryError, WarehouseUnavailableError
from sendoff.query import Parameter, Query, what_the_database_said

_ADBC_DRIVERS = {"postgresql": "adbc_driver_postgresql.dbapi", "sqlite": "adbc_driver_sqlite.dbapi"}
_BYTES_A_ROW = 16  # an identifier and the frame that COPY puts around it
_CONNECT_SECONDS = "10"
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}
_FAILURES = (adbc_driver_manager.Error, sa.exc.SQLAlchemyError, pa.ArrowException, OSError, ImportError)

_Result = TypeVar("_Result")


@contextmanager
def read(
    source: str | sa.Engine,
    sql: str,
    *,
    parameters: Mapping[str, Parameter] = MappingProxyType({}),
    batch_rows: int = 65_536,
) -> Iterator[Iterator[pa.RecordBatch]]:
    r"""Run a query and give its rows in Arrow batches of about ``batch_rows``; at least one, which may be empty.

    ``source`` is a SQLAlchemy URL or engine. A URL of PostgreSQL or SQLite is read through its ADBC driver where that
    is installed; any other, and every engine, through SQLAlchemy, which makes a Python object of each value.

    The query may name ``parameters`` as ``:name``; a colon that is meant as such is written ``\:``. Datetimes must be
    aware; SQLite gets them as the text ``YYYY-MM-DD HH:MM:SS`` in UTC, others with their time zone.

    Raises QueryError with what the database said, less any word that may be data, and WarehouseUnavailableError where
    nothing answers at its address. Raises AudienceError for a column that holds values of two types, as SQLite allows,
    with its name and the row.
    """
    url = _url(source)
    query = Query(sql, parameters, batch_rows, url)
    with ExitStack() as stack:
        if isinstance(source, sa.Engine):
            yield _through_sqlalchemy(query, source, stack)
        elif url.get_backend_name() == "postgresql" and (driver := _adbc_driver("postgresql")):
            yield _with_columns(_postgresql(query, driver, stack), query)
        elif _is_sqlite_file(url) and (driver := _adbc_driver("sqlite")):
            yield _sqlite(query, driver, stack)
        else:
            yield _through_sqlalchemy(query, _engine(url, stack), stack)


def _postgresql(query: Query, driver: Any, stack: ExitStack) -> pa.RecordBatchReader:
    uri = query.url.set(drivername="postgresql").render_as_string(hide_password=False)
    cursor = _adbc_cursor(query, lambda: driver.connect(uri), stack)

    def execute() -> pa.RecordBatchReader:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")
        size = str(query.batch_rows * _BYTES_A_ROW)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": size})
        # The parameters are written into the query: with bound ones, the driver does not use COPY and does not stream.
        cursor.execute(query.with_literals())
        return stack.enter_context(cursor.fetch_record_batch())

    return _attempt(execute, query)


def _sqlite(query: Query, driver: Any, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    if not Path(query.url.database or "").is_file():
        raise QueryError(f"there is no SQLite database at {query.url.database}")
    uri = _read_only(query.url)
    cursor = _adbc_cursor(query, lambda: driver.connect(uri), stack)

    def execute() -> pa.RecordBatchReader:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(query.batch_rows)})
        cursor.execute(query.with_literals())
        return stack.enter_context(cursor.fetch_record_batch())

    batches = _with_columns(_attempt(execute, query), query)
    first = next(batches)
    if any(_leaves_doubt(column) for column in first.columns):
        return _through_sqlalchemy(query, _engine(query.url, stack), stack)
    return _or_name_the_row(chain([first], batches), query, stack)


def _leaves_doubt(column: pa.Array) -> bool:
    # The driver settles a column's type by its first batch, and there turns numbers among texts into texts.
    if not len(column):
        return False
    if pa.types.is_string(column.type) and column.null_count < len(column):
        return bool(pc.any(pc.match_substring_regex(column, r"^[-+]?[0-9.]+$")).as_py())
    return column.null_count == len(column) or not pa.types.is_integer(column.type)


def _or_name_the_row(
    batches: Iterator[pa.RecordBatch], query: Query, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except QueryError:
        # Where another type turned up after the first batch, reading once more with care tells its row.
        for _ in _through_sqlalchemy(query, _engine(query.url, stack), stack):
            pass
        raise


def _adbc_driver(backend: str) -> Any | None:
    try:
        return importlib.import_module(_ADBC_DRIVERS[backend])
    except ImportError:
        return None


def _adbc_cursor(query: Query, connect: Callable[[], Any], stack: ExitStack) -> Any:
    connection = stack.enter_context(_connected(connect, query))
    return stack.enter_context(connection.cursor())


def _with_columns(reader: pa.RecordBatchReader, query: Query) -> Iterator[pa.RecordBatch]:
    rows = 0
    while (batch := _attempt(lambda: next(reader, None), query)) is not None:
        rows += batch.num_rows
        yield batch
    if not rows:
        yield pa.RecordBatch.from_arrays(
            [pa.nulls(0, each.type) for each in reader.schema], schema=reader.schema
        )


def _through_sqlalchemy(query: Query, engine: sa.Engine, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    connection = stack.enter_context(_connected(engine.connect, query))
    result = _attempt(lambda: _execute(query, connection, stack), query)
    return _partitions(result, query)


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


def _partitions(result: sa.CursorResult[Any], query: Query) -> Iterator[pa.RecordBatch]:
    names = result.keys()
    columns = [_Column(name) for name in names]
    partitions = result.partitions(query.batch_rows)
    rows = _attempt(lambda: next(partitions, []), query)
    while True:
        values = zip(*rows, strict=True) if rows else ((),) * len(columns)
        arrays = [column.array(each) for column, each in zip(columns, values, strict=True)]
        yield pa.record_batch(arrays, names=[column.name for column in columns])
        rows = _attempt(lambda: next(partitions, []), query)
        if not rows:
            return


class _Column:
    """One column of a result: what its first value is, the others must be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._type: type | None = None
        self._type_since = self._rows = 0

    def array(self, values: tuple[Any, ...]) -> pa.Array:
        types = set(map(type, values)) - {type(None)}
        if types - {self._type}:
            self._settle(values)
        self._rows += len(values)
        try:
            return pa.array(values)
        except (pa.ArrowException, OverflowError):
            problem = f"column {self.name} holds values that are no usable numbers or texts"
        raise AudienceError(
            f"{problem}; write CAST({self.name} AS TEXT), or leave the column out of the query"
        )

    def _settle(self, values: tuple[Any, ...]) -> None:
        for row, value in enumerate(values, self._rows + 1):
            if value is not None and self._type is None:
                self._type, self._type_since = type(value), row
            elif value is not None and type(value) is not self._type:
                assert self._type is not None
                raise AudienceError(
                    f"column {self.name} holds {_spoken(self._type)} in row {self._type_since} of the result and "
                    f"{_spoken(type(value))} in row {row}; a column needs one type: write CAST({self.name} AS BIGINT) "
                    f"AS {self.name} in the query, or AS TEXT where texts are wanted"
                )


def _spoken(type_: type) -> str:
    names = {"int": "a whole number", "str": "text", "float": "a number with a fraction", "bytes": "bytes"}
    return names.get(type_.__name__, type_.__name__)


def _url(source: str | sa.Engine) -> sa.URL:
    if isinstance(source, sa.Engine):
        return source.url
    try:
        url = sa.make_url(source)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is None:
        raise QueryError("the warehouse is not named by a URL such as postgresql://user@host/database")
    if url.get_backend_name() == "postgres":  # as Airflow writes it
        url = url.set(drivername="postgresql")
    if url.get_backend_name() == "postgresql" and "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": _CONNECT_SECONDS})
    return url


def _engine(url: sa.URL, stack: ExitStack) -> sa.Engine:
    if _is_sqlite_file(url):
        url = sa.make_url(f"sqlite:///{_read_only(url)}&uri=true")
    elif url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = _attempt(lambda: sa.create_engine(url, poolclass=NullPool), Query("", {}, 1, url))
    stack.callback(engine.dispose)
    return engine


def _is_sqlite_file(url: sa.URL) -> bool:
    name = url.database or ":memory:"
    return url.get_backend_name() == "sqlite" and not url.query and not name.startswith((":", "file:"))


def _read_only(url: sa.URL) -> str:
    return f"file:{quote(url.database or '')}?mode=ro"


def _connected(connect: Callable[[], _Result], query: Query) -> _Result:
    try:
        return _attempt(connect, query)
    except QueryError as error:
        problem = str(error)
    raise (WarehouseUnavailableError if _is_silent(query.url) else QueryError)(problem)


def _is_silent(url: sa.URL) -> bool:
    """Say whether nothing answers at a database's address; what refuses to let us in does answer."""
    port = url.port or _PORTS.get(url.get_backend_name())
    if not url.host or port is None or url.host.startswith("/"):
        return False
    try:
        socket.create_connection((url.host, port), timeout=float(_CONNECT_SECONDS)).close()
    except OSError:
        return True
    return False


def _attempt(step: Callable[[], _Result], query: Query) -> _Result:
    try:
        return step()
    except _FAILURES as error:
        problem = what_the_database_said(error, query)
    # Raised here and not above, so that the driver's own text does not travel along as the context.
    raise QueryError(problem)
