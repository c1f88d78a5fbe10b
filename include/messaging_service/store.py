"""The database of the service, and its read and write transactions. SQLite runs in WAL mode."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Row, Table, create_engine, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError

from messaging_service.tables import METADATA

_LONGEST_WAIT = 20.0
_TABLES_ARE_MADE = 7_365_110


class Store:
    """The database of one service, at an SQLAlchemy URL. Missing tables are created."""

    def __init__(self, url: str) -> None:
        _make_private(make_url(url))
        self.engine = create_engine(url, pool_size=8, max_overflow=8)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        # SQLite has one writer. Threads that wait for it with BEGIN IMMEDIATE would take the interpreter from it.
        self._writer = threading.Lock() if self.is_sqlite else nullcontext()
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        with self.write() as connection:
            if not self.is_sqlite:  # several processes may start at once
                connection.execute(select(func.pg_advisory_xact_lock(_TABLES_ARE_MADE)))
            METADATA.create_all(connection)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read-only transaction."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction; on SQLite it waits for other writers at the start, never later."""
        with (
            self._writer,
            self.engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def without_password(url: str) -> str:
    """Return a database URL without its password and without its options, which may contain another password."""
    return make_url(url).set(query={}).render_as_string(hide_password=True)


def _make_private(url: URL) -> None:
    """Create an SQLite file with mode 0600, or remove the permissions of others from an existing one."""
    name = url.database or ":memory:"
    if url.get_backend_name() != "sqlite" or name.startswith((":", "file:")):
        return
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        for file in (Path(name), Path(f"{name}-wal"), Path(f"{name}-shm")):
            with suppress(OSError):  # it does not exist, or belongs to another user
                file.chmod(file.stat().st_mode & 0o770)
    except OSError:  # SQLite will report the reason
        return


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    wait = f"busy_timeout = {_LONGEST_WAIT * 1_000:.0f}"
    for pragma in (wait, "journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    if not connection.get_execution_options().get("writes", False):
        connection.exec_driver_sql("BEGIN")
        return
    # SQLite's own busy handler waits longer at each step, so a request could starve while a campaign is sent.
    # Short steps catch the gap between two transactions.
    execute = connection.connection.driver_connection.execute  # type: ignore[union-attr]
    deadline = time.monotonic() + _LONGEST_WAIT
    execute("PRAGMA busy_timeout = 2")
    while True:
        try:
            execute("BEGIN IMMEDIATE")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise OperationalError("BEGIN IMMEDIATE", None, error) from None
    execute(f"PRAGMA busy_timeout = {_LONGEST_WAIT * 1_000:.0f}")


def find(connection: Connection, table: Table, key: int) -> Row[tuple[Any, ...]] | None:
    """Return the row with this id, or None. The database has no ids outside the range of 64 bits."""
    [column] = table.primary_key
    return connection.execute(select(table).where(column == key)).one_or_none() if 0 < key < 2**63 else None


def count_rows(connection: Connection, table: FromClause, *where: ColumnElement[bool]) -> int:
    """Return the number of rows of a table or a query that meet all conditions."""
    return connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one()


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows, replacing rows with the same primary key."""
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
    keys = [column.name for column in table.primary_key]
    replacement = {c.name: insert.excluded[c.name] for c in table.columns if c.name not in keys}
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=replacement), list(rows))
