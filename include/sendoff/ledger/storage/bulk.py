"""Bulk rows: read as Arrow batches, by ADBC on PostgreSQL, and written by one prepared INSERT.

SQLite is never read through its ADBC driver, which contains its own copy of SQLite. If two copies have the same file
open in one process, closing it in one drops the locks of the other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import adbc_driver_manager
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite

from sendoff.ledger.storage.problems import LedgerAddress, problem_of
from sendoff.ledger.storage.schema import UtcDateTime

Row = tuple[Any, ...]
"""One value per column of a table, in the table's order."""

_Each = TypeVar("_Each")

BATCH_ROWS = 256
"""The number of rows in a batch that is not read by ADBC. A row may have a block of many post-backs."""

_MOMENT = pa.timestamp("us", "UTC")
_TYPES: tuple[tuple[type, pa.DataType], ...] = (
    (sa.Boolean, pa.bool_()),
    (sa.SmallInteger, pa.int16()),
    (sa.Integer, pa.int64()),  # also BigInteger
    (sa.String, pa.string()),  # also Text
    (UtcDateTime, _MOMENT),
    (sa.LargeBinary, pa.binary()),
)
BATCH_BYTES = 2 << 20  # of a batch that is read by ADBC


def values(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column's numbers, or its times in microseconds, as a view. Nulls become arbitrary values.

    Arrow's own conversion imports pandas if it is installed, which takes a quarter of a second and tens of MiB.
    """
    of = np.dtype(f"i{column.type.bit_width // 8}")
    _, data = column.buffers()
    if data is None or not len(column):
        return np.zeros(len(column), of)
    return np.frombuffer(data, of, len(column), column.offset * of.itemsize)


def marks(column: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return the booleans of a column that has no nulls."""
    return values(column.cast(pa.uint8())).view(np.bool_)


def column_of(numbers: npt.NDArray[np.int64]) -> pa.Int64Array:
    """Return numbers as a column. Like :func:`values`, it does not import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def schema(query: sa.Select[Any]) -> pa.Schema:
    """Return the Arrow schema of a query."""
    return pa.schema([(column.name, _type(column.type)) for column in query.selected_columns])


def _type(type_: sa.types.TypeEngine[Any]) -> pa.DataType:
    return next(arrow for of, arrow in _TYPES if isinstance(type_, of))


def by_rows(connection: sa.Connection, query: sa.Select[Any], is_large: bool) -> Generator[pa.RecordBatch]:
    """Yield the rows of a query as batches. Each row is a Python object for a moment."""
    types = schema(query)
    if connection.dialect.name == "sqlite":
        # Raw SQL, so that SQLAlchemy does not make a datetime of each stored text.
        text = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
        result = connection.exec_driver_sql(text)
    else:
        result = connection.execution_options(stream_results=is_large, max_row_buffer=BATCH_ROWS).execute(
            query
        )
    with result:
        for rows in result.partitions(BATCH_ROWS):
            columns = zip(*rows, strict=True)
            arrays = [_array(values, field.type) for values, field in zip(columns, types, strict=True)]
            yield pa.record_batch(arrays, schema=types)


def _array(values: tuple[Any, ...], type_: pa.DataType) -> pa.Array:
    if type_ == _MOMENT and isinstance(values[0], str):
        return pc.assume_timezone(pa.array(values, pa.string()).cast(pa.timestamp("us")), "UTC")
    if type_ == pa.bool_() and type(values[0]) is int:
        return pa.array(values, pa.int8()).cast(pa.bool_())
    return pa.array(values, type_)


def driver() -> Any | None:
    """Return the ADBC driver of PostgreSQL, or None if it is not installed."""
    try:
        return importlib.import_module("adbc_driver_postgresql")
    except ImportError:
        return None


@contextmanager
def by_adbc(
    driver: Any, address: str, place: LedgerAddress, query: sa.Select[Any]
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Run a query on a separate PostgreSQL connection and provide its batches, one of them read ahead.

    ``address`` is a libpq connection string for the server in ``place``. Raise LedgerUnavailableError or
    UnusableLedgerError if the query fails.
    """
    with ExitStack() as stack:
        with _translated(place):
            reader = stack.enter_context(_reader(driver, address, query))
        yield stack.enter_context(closing(ahead(_read(reader, schema(query), place))))


@contextmanager
def _reader(driver: Any, address: str, query: sa.Select[Any]) -> Iterator[pa.RecordBatchReader]:
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    # With bound parameters, the driver neither uses COPY nor streams.
    text = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    with (
        # The driver's DB-API would import pandas if it is installed.
        driver.connect(address) as database,
        adbc_driver_manager.AdbcConnection(database) as connection,
        adbc_driver_manager.AdbcStatement(connection) as statement,
    ):
        statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
        statement.set_sql_query(text)
        handle, _ = statement.execute_query()
        with pa.RecordBatchReader._import_from_c(handle.address) as reader:
            yield reader


def ahead(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """Yield batches while a thread reads the next one, so that the driver and the server need not wait.

    An error in the thread is raised here when its batch is due. Closing the generator waits until the thread has ended.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sendoff-read") as reading:
        coming = reading.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reading.submit(next, batches, None)
            yield batch


def _read(reader: pa.RecordBatchReader, types: pa.Schema, place: LedgerAddress) -> Iterator[pa.RecordBatch]:
    while True:
        with _translated(place):
            batch = next(reader, None)
        if batch is None:
            return
        yield batch.cast(types)


@contextmanager
def _translated(place: LedgerAddress) -> Iterator[None]:
    try:
        yield
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        raise problem_of(error, place) from None


@lru_cache(maxsize=8)
def insert_by_position(table: sa.Table, dialect: sa.Dialect) -> str:
    """Return an INSERT with positional values that skips rows whose primary key already exists."""
    if dialect.name == "postgresql":
        by_position = postgresql.dialect(paramstyle="format")  # type: ignore[no-untyped-call]
        return str(postgresql.insert(table).on_conflict_do_nothing().compile(dialect=by_position))
    return str(sqlite.insert(table).on_conflict_do_nothing().compile(dialect=dialect))


def as_driver_rows(table: sa.Table, rows: Sequence[Row], dialect: sa.Dialect) -> list[Row]:
    """Return the rows as the driver expects them."""
    columns = zip(*rows, strict=True)
    return list(
        zip(
            *(
                map(as_bound, values) if as_bound else values
                for as_bound, values in zip(_bindings(table, dialect), columns, strict=True)
            ),
            strict=True,
        )
    )


@lru_cache(maxsize=8)
def _bindings(table: sa.Table, dialect: sa.Dialect) -> list[Callable[[Any], Any] | None]:
    return [column.type.dialect_impl(dialect).bind_processor(dialect) for column in table.columns]


def insert_row(db: sa.Connection, table: sa.Table, row: Row) -> None:
    """Insert one row into a PostgreSQL table, unless its primary key already exists.

    The driver prepares the statement once for each connection. Going around SQLAlchemy halves the processor time.
    """
    statement = insert_by_position(table, db.dialect)
    with _driver_cursor(db, statement) as cursor:
        cursor.execute(statement, as_driver_rows(table, [row], db.dialect)[0], prepare=True)


def first_row(db: sa.Connection, statement: sa.Select[Any], parameters: Mapping[str, Any]) -> Any:
    """Execute a statement on PostgreSQL, and return the first row as a named tuple of the driver's values, or None.

    The driver alone takes less than half the time of SQLAlchemy, which matters if the statement is large. It would also
    translate the names of the parameters of a large statement again at each execution, so they are numbers.
    """
    import psycopg.rows  # imported here because psycopg is an optional extra

    text, names, constants = _compiled(statement)
    values = {**constants, **parameters}
    with _driver_cursor(db, text, psycopg.RawCursor) as cursor:
        cursor.row_factory = psycopg.rows.namedtuple_row
        cursor.execute(text, [values[name] for name in names], binary=True, prepare=True)
        return cursor.fetchone()


@lru_cache(maxsize=8)
def _compiled(statement: sa.Select[Any]) -> tuple[str, Sequence[str], dict[str, Any]]:
    """Return a statement with numbered parameters, their names in order, and the values of the constant ones."""
    dialect = postgresql.psycopg.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    compiled = statement.compile(dialect=dialect)
    return str(compiled), compiled.positiontup or (), dict(compiled.params)


@contextmanager
def _driver_cursor(db: sa.Connection, statement: str, kind: Any = None) -> Iterator[Any]:
    """Provide the driver's own cursor, of a kind if one is given, and raise its errors as SQLAlchemy does."""
    driver: Any = db.connection.driver_connection
    errors: Any = db.dialect.loaded_dbapi
    try:
        with kind(driver) if kind else driver.cursor() as cursor:
            yield cursor
    except errors.Error as error:
        if db.dialect.is_disconnect(error, driver, None) or is_read_only(error):
            db.invalidate(error)
        raise exc.DBAPIError.instance(
            statement, None, error, errors.Error, hide_parameters=True, dialect=db.dialect
        ) from None


_READ_ONLY = "25006"  # read_only_sql_transaction: the server is a standby, or the provider has stopped writes


def is_read_only(error: BaseException) -> bool:
    """Check whether the server refused a write because it is read-only at the moment."""
    return getattr(error, "sqlstate", None) == _READ_ONLY


_KEYS_AT_ONCE = 5_000  # dispatch keys in one query


def chunked(dispatch_keys: Iterable[str], size: int = _KEYS_AT_ONCE) -> Iterator[list[str]]:
    """Return dispatch keys in order, in lists that fit into one query."""
    return in_parts(sorted(dispatch_keys), size)


def in_parts(values: Iterable[_Each], size: int) -> Iterator[list[_Each]]:
    """Return values in lists of a size; the last one may be shorter."""
    remaining = iter(values)
    return iter(lambda: list(islice(remaining, size)), [])


def weighed(
    values: Iterable[_Each], weight: Callable[[_Each], int], *, most: int, heavy: int
) -> Iterator[list[_Each]]:
    """Yield values in lists that fit into memory, or into one transaction.

    A list ends after ``most`` values, or after the value that makes its weight at least ``heavy``.
    """
    part: list[_Each] = []
    total = 0
    for value in values:
        part.append(value)
        total += weight(value)
        if len(part) == most or total >= heavy:
            yield part
            part, total = [], 0
    if part:
        yield part


def streamed(query: Any, rows: int = 20) -> Any:
    """Return a query whose rows the database sends a few at a time."""
    return query.execution_options(stream_results=True, max_row_buffer=rows)
