"""Read any database with a Python driver (PEP 249) but no SQLAlchemy dialect, with a Python object for each value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import attempt, open_connection
from sendoff.warehouse.query import NO_ROWS, Query
from sendoff.warehouse.rows import batches_of_rows


@dataclass(frozen=True, slots=True)
class Cursors:
    """A function that opens connections of a Python driver.

    ``placeholder``: the driver's placeholder for a value, ``?`` or ``%s``. ``address``: the database's URL, for error
    messages.
    """

    connect: Callable[[], Any] = field(repr=False)
    placeholder: str
    address: sa.URL


def read_cursors(query: Query, source: Cursors, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query with a cursor, and close its connection without a commit, which rolls back."""
    # Exception is the only base class that the errors of such drivers share.
    connection = stack.enter_context(closing(open_connection(source.connect, query, Exception)))
    cursor = stack.enter_context(closing(attempt(connection.cursor, query, Exception)))
    sql, values = query.with_places(source.placeholder)
    attempt(lambda: cursor.execute(sql, values) if values else cursor.execute(sql), query, Exception)
    return rows_of(cursor, query)


def rows_of(cursor: Any, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a cursor that has run a query. Raise QueryError if the statement returns none at all."""
    if not cursor.description:
        raise QueryError(NO_ROWS)
    return batches_of_rows(
        [column[0] for column in cursor.description],
        lambda: attempt(lambda: cursor.fetchmany(query.batch_rows), query, Exception),
    )
