"""Run steps of database drivers and make their errors safe to show; open connections of ADBC drivers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import adbc_driver_manager
import pyarrow as pa
import sqlalchemy as sa

from sendoff.errors import QueryError, WarehouseUnavailableError
from sendoff.warehouse.query import Query, database_message
from sendoff.warehouse.urls import is_silent

_Result = TypeVar("_Result")
_MONEY = pa.opaque(pa.int64(), "money", "PostgreSQL")


class ProblemError(Exception):
    """What a server or the network said, in a few words. ``is_of_function``: its words may be values of a row."""

    def __init__(self, problem: str, *, is_of_function: bool = False) -> None:
        super().__init__(problem)
        self.is_of_function = is_of_function


_FAILURES = (
    adbc_driver_manager.Error,
    sa.exc.SQLAlchemyError,
    pa.ArrowException,
    OSError,
    ImportError,
    ProblemError,
)


def attempt(step: Callable[[], _Result], query: Query, *further: type[Exception]) -> _Result:
    """Run a step of a driver. Raise QueryError with the database's message if it fails.

    ``further``: error classes of a driver that is imported only when needed.
    """
    try:
        return step()
    except (*_FAILURES, *further) as error:
        problem = database_message(error, query)
    # Raised here and not above, so that the driver's own error is not attached as the context.
    raise QueryError(problem)


def in_short(
    step: Callable[[], _Result],
    failures: tuple[type[Exception], ...],
    short: Callable[[Exception], str],
    is_of_function: Callable[[Exception], bool] = lambda _: False,
) -> _Result:
    """Run a step of a client whose errors say too much. Raise ProblemError with the words that ``short`` chooses."""
    try:
        return step()
    except failures as error:
        problem = ProblemError(short(error), is_of_function=is_of_function(error))
    raise problem


def system_error(error: BaseException) -> str | None:
    """Return what the operating system said, if that is among the causes of an error."""
    cause: Any = error
    while isinstance(cause, BaseException):
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
        inner = cause.args[0] if cause.args and isinstance(cause.args[0], BaseException) else None
        cause = inner or getattr(cause, "reason", None) or cause.__cause__ or cause.__context__
    return None


def open_connection(connect: Callable[[], _Result], query: Query, *further: type[Exception]) -> _Result:
    """Open a connection. Raise WarehouseUnavailableError if the server cannot be reached, or QueryError otherwise."""
    try:
        return attempt(connect, query, *further)
    except QueryError as error:
        problem = str(error)
    raise (WarehouseUnavailableError if is_silent(query.url) else QueryError)(problem)


def adbc_driver(backend: str) -> Any | None:
    """Return the ADBC driver of a database, or None if it is not installed."""
    try:
        return importlib.import_module(f"adbc_driver_{backend}.dbapi")
    except ImportError:
        return None


def adbc_cursor(query: Query, connect: Callable[[Any], Any], stack: ExitStack) -> Any:
    """Open a connection of an ADBC driver and return a cursor; closing the stack closes both."""
    driver = adbc_driver(query.url.get_backend_name())
    connection = stack.enter_context(open_connection(lambda: connect(driver), query))
    return stack.enter_context(connection.cursor())


def batches_of(
    reader: pa.RecordBatchReader, query: Query, *further: type[Exception]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader; if there are no rows, yield an empty batch that has the columns."""
    rows = 0
    while (batch := attempt(lambda: next(reader, None), query, *further)) is not None:
        rows += batch.num_rows
        yield _named(batch)
    if not rows:
        yield pa.RecordBatch.from_arrays(
            [pa.nulls(0, each.type) for each in reader.schema], schema=reader.schema
        )


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with its columns of PostgreSQL's money as such: the driver returns them as numbers of cents."""
    for place, each in enumerate(batch.schema):
        if (each.metadata or {}).get(b"POSTGRESQL:type") == b"money":
            batch = batch.set_column(
                place, each.name, pa.ExtensionArray.from_storage(_MONEY, batch.column(place))
            )
    return batch
