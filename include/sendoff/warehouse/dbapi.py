"""Any database with a Python driver (PEP 249) and no dialect of SQLAlchemy, with a Python object of each value."""

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
    """What opens connections of a Python driver.

    ``placeholder``: how its SQL marks the place of a value, ``?`` or ``%s``. ``address``: where it is, for what is said
    of its errors.
    """

    connect: Callable[[], Any] = field(repr=False)
    placeholder: str
    address: sa.URL


def read_cursors(query: Query, source: Cursors, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Read a query by a cursor; its connection is closed without a commit, which rolls back."""
    # The errors of such drivers have no class in common but this.
    connection = stack.enter_context(closing(open_connection(source.connect, query, Exception)))
    cursor = stack.enter_context(closing(attempt(connection.cursor, query, Exception)))
    sql, values = query.with_places(source.placeholder)
    attempt(lambda: cursor.execute(sql, values) if values else cursor.execute(sql), query, Exception)
    if not cursor.description:
        raise QueryError(NO_ROWS)
    return batches_of_rows(
        [column[0] for column in cursor.description],
        lambda: attempt(lambda: cursor.fetchmany(query.batch_rows), query, Exception),
    )
