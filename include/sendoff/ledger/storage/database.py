"""The ledger's database: transactions for reading and writing, and migrations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from sendoff.errors import SettingsError, UnusableLedgerError
from sendoff.ledger.storage import bulk
from sendoff.ledger.storage.bulk import Row
from sendoff.ledger.storage.engines import engine_of, shown
from sendoff.ledger.storage.migration import (
    known_revisions,
    made_by_newer,
    missing_columns,
    prepare_file,
    upgrade,
)
from sendoff.ledger.storage.private_files import make_private
from sendoff.ledger.storage.problems import NO_TABLES, LedgerAddress, problem_of
from sendoff.ledger.storage.rewriting import rewrite_postgresql, rewrite_sqlite
from sendoff.ledger.storage.schema import receivers
from sendoff.warehouse import has_two_ats

_log = logging.getLogger(__name__)

_PLACES = "the ledger URL (SENDOFF_LEDGER_URL, --ledger, or the password of the connection sendoff_ledger)"
_SHARE = 0.2  # of the time, which a long series of transactions may hold SQLite's write lock


class Database:
    """Connections to the database behind one SQLAlchemy URL, opened when first needed."""

    def __init__(self, url: str) -> None:
        if has_two_ats(url):
            raise SettingsError(f"{_PLACES} has more than one @; write an @ in its password as %40")
        try:
            parsed = sa.make_url(url)
            if parsed.drivername == "postgres":  # as hosting services write it
                parsed = parsed.set(drivername="postgresql")
            self._engine = engine_of(parsed)
            if parsed.get_backend_name() not in ("sqlite", "postgresql"):
                raise ValueError(parsed.get_backend_name())
        except (exc.ArgumentError, ImportError, ValueError) as error:
            raise SettingsError(
                f"{_PLACES} cannot be used ({type(error).__name__}). Write it as "
                "sqlite:////data/sendoff.db or postgresql+psycopg://user@host/name "
                "(PostgreSQL needs: pip install 'airflow-provider-sendoff[postgres]')"
            ) from None
        self.name = shown(parsed)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        if self._is_sqlite and ":memory:" in (parsed.database or ":memory:"):
            raise SettingsError(
                f"{_PLACES} names no file, so the ledger would be lost. Write it as sqlite:////data/sendoff.db"
            )
        self.can_combine = not self._is_sqlite  # one statement may change several tables
        self._insert: Any = sqlite.insert if self._is_sqlite else postgresql.insert
        self._may_be_made = False
        self._is_compared = False
        self._problem_of_tables = NO_TABLES
        self._place = LedgerAddress.of(parsed)
        if self._is_sqlite:
            event.listen(self._engine, "do_connect", self._find_file)
        event.listen(self._engine, "connect", self._compare_once)
        # SQLite admits one writer at a time, and the others poll for the lock. Threads of one process take turns here
        # instead.
        self._turn = threading.RLock() if self._is_sqlite else nullcontext()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction for reading. On PostgreSQL, each statement sees everything committed before it starts."""
        with self.translated(), self._engine.begin() as db:
            db.exec_driver_sql("BEGIN")
            yield db

    def rows(self, query: Any, parameters: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Return all rows of a query, which is read in a transaction of its own."""
        with self.read() as db:
            return db.execute(query, parameters).all()

    def first(self, query: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the first row of a query, or None. It is read as :meth:`rows` does."""
        with self.read() as db:
            return db.execute(query, parameters).first()

    def one(self, query: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the only row of a query. It is read as :meth:`rows` does."""
        with self.read() as db:
            return db.execute(query, parameters).one()

    def scalars(self, query: Any, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the first value of each row of a query. They are read as :meth:`rows` does."""
        with self.read() as db:
            return list(db.scalars(query, parameters))

    def scalar(self, query: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the first value of the first row of a query, or None. It is read as :meth:`rows` does."""
        with self.read() as db:
            return db.scalar(query, parameters)

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction for writing and commit it at the end. SQLite waits for the write lock first."""
        with self.translated(), self._turn, self._engine.begin() as db:
            # On SQLite, taking the lock after a read can fail at once.
            db.exec_driver_sql("BEGIN IMMEDIATE" if self._is_sqlite else "BEGIN")
            yield db

    @contextmanager
    def write_in_turn(self) -> Iterator[sa.Connection]:
        """Open a transaction for writing, one of a long series, and let other processes write after it.

        On SQLite, this waits after each transaction, because processes that wait for the lock only look for it at
        times. Without the wait, a receiver would hardly ever find it free.
        """
        with self.write() as db:
            started = monotonic()
            yield db
        if self._is_sqlite:
            sleep((monotonic() - started) * (1 / _SHARE - 1))

    def append(self, table: sa.Table, rows: Sequence[Row]) -> None:
        """Store rows in one transaction and skip rows whose primary key already exists.

        Each row has one value per column, in the order of the table. A single row is its own transaction on PostgreSQL:
        one message to the server, which the driver prepares, and one back.
        """
        if not rows:
            return
        if len(rows) == 1 and not self._is_sqlite:
            with self.translated(), self._engine.connect() as db:
                bulk.insert_row(db, table, rows[0])
            return
        with self.write() as db:
            insert = bulk.insert_by_position(table, db.dialect)
            db.exec_driver_sql(insert, bulk.as_driver_rows(table, rows, db.dialect))

    def execute_alone(self, statement: sa.Select[Any], parameters: Mapping[str, Any]) -> Any:
        """Execute one statement as a transaction on PostgreSQL, and return its first row or None.

        The server gets one message, instead of three for the beginning, the statement and the commit.
        """
        with self.translated(), self._engine.connect() as db:
            return bulk.first_row(db, statement, parameters)

    @contextmanager
    def arrow(self, query: sa.Select[Any], *, is_large: bool) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run a query and provide its rows as Arrow batches, which are read as they are consumed.

        The batches take their types from the query's columns and show one state of the database. ``is_large``: the
        result is worth a separate connection. On PostgreSQL, its rows then never become Python objects; on SQLite they
        always do.
        """
        if is_large and self._engine.dialect.driver == "psycopg" and (driver := bulk.driver()):
            with bulk.by_adbc(driver, self._libpq_address(), self._place, query) as batches:
                yield batches
            return
        with (
            self.read() as db,
            closing(bulk.by_rows(db, query, is_large)) as batches,
        ):
            yield batches

    def _libpq_address(self) -> str:
        """Return a libpq connection string for the engine's database."""
        from psycopg.conninfo import make_conninfo  # imported here because psycopg is an optional extra

        _, parameters = self._engine.dialect.create_connect_args(self._engine.url)
        # Other types of values are options of psycopg only.
        plain: dict[str, Any] = {
            name: value for name, value in parameters.items() if isinstance(value, str | int)
        }
        return make_conninfo(**plain)

    def insert_or_ignore(self, table: sa.Table) -> Any:
        """Return an INSERT that skips rows whose primary key already exists."""
        return self._insert(table).on_conflict_do_nothing()

    def insert_or_increment(self, table: sa.Table, *columns: str) -> Any:
        """Return an INSERT that adds to ``columns`` if the primary key already exists."""
        insert = self._insert(table)
        sums = {name: table.c[name] + insert.excluded[name] for name in columns}
        return insert.on_conflict_do_update(index_elements=table.primary_key, set_=sums)

    def insert_or_replace(self, table: sa.Table, where: sa.ColumnElement[bool] | None = None) -> Any:
        """Return an INSERT that replaces all other columns if the primary key already exists.

        ``where``: only if the existing row meets this condition.
        """
        insert = self._insert(table)
        new = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
        return insert.on_conflict_do_update(index_elements=table.primary_key, set_=new, where=where)

    def migrate(self) -> None:
        """Migrate the tables to the newest revision. Safe to repeat, and safe to call from several processes at once.

        Raise UnusableLedgerError if the tables are newer than this version of Sendoff, if some or their columns are
        missing, or if the database belongs to another application.
        """
        self._may_be_made = True
        if self.file is not None:
            prepare_file(self.file, self.name)
        with self.write() as db:
            if self.file is not None:
                make_private(self.file)
            upgrade(db, self.name)

    def rewrite_files(self, columns: Iterable[sa.Column[Any]]) -> list[str]:
        """Rewrite the files of some columns' tables without the bytes of old rows, and return the statements.

        On SQLite, the whole file is rewritten. Raise LedgerUnavailableError if another process is in the way.
        PostgreSQL also makes the statistics of the columns again, because they have samples of old values.
        """
        with self.translated(), self._turn:
            if self._is_sqlite:
                return rewrite_sqlite(self._engine, self.name)
            return rewrite_postgresql(self._engine, columns)

    def ping(self, *tables: sa.Table) -> None:
        """Raise LedgerUnavailableError or UnusableLedgerError if the database cannot be written."""
        with self.write() as db:
            # An INSERT of no rows works with the rights of a receiver, which may do little else.
            for table in tables or (receivers,):
                nothing = sa.select(*(sa.null() for _ in table.columns)).where(sa.false())
                db.execute(sa.insert(table).from_select(table.columns.keys(), nothing))

    def check_tables(self) -> None:
        """Raise UnusableLedgerError if a table or a column is missing. This needs no rights on their rows."""
        with self.read() as db:
            if missing_columns(db):
                raise UnusableLedgerError(self._problem_of_tables)

    def close(self) -> None:
        """Close all connections of this process."""
        self._engine.dispose()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the driver's errors in the block as those of the ledger, without the driver's text."""
        try:
            yield
        except (exc.DBAPIError, exc.TimeoutError) as error:
            if isinstance(error, _OF_ROWS):
                raise
            raise problem_of(error, self._place, tables=self._problem_of_tables) from None

    @property
    def file(self) -> Path | None:
        """The SQLite file, if the URL names one as a plain path."""
        name = self._engine.url.database or ":memory:"
        return None if not self._is_sqlite or name.startswith((":", "file:")) else Path(name)

    def _find_file(self, _dialect: Any, _record: Any, _arguments: Any, _options: Any) -> None:
        """Raise UnusableLedgerError if the file does not exist and no migration creates it."""
        if not self._may_be_made and (file := self.file) and not file.exists():
            raise UnusableLedgerError(
                f"there is no ledger at {file.absolute()}. Check the path, or run this to create one: sendoff migrate"
            )

    def _compare_once(self, connection: Any, _record: Any) -> None:
        """Warn once per process if a newer Sendoff created the tables."""
        if self._is_compared:
            return
        cursor = connection.cursor()
        try:
            cursor.execute("SELECT version_num FROM alembic_version")
            row = cursor.fetchone()
        except self._engine.dialect.loaded_dbapi.Error:  # no tables yet, or no right to read them
            return
        finally:
            cursor.close()
            connection.rollback()
        self._is_compared = row is not None
        if row is not None and row[0] not in known_revisions():
            self._problem_of_tables = made_by_newer(row[0])
            _log.warning("%s", self._problem_of_tables)


class LedgerPart:
    """A part of the ledger, such as its launches."""

    def __init__(self, database: Database) -> None:
        self._database = database


# Errors of the rows, not of the ledger.
_OF_ROWS = (exc.IntegrityError, exc.DataError, exc.NotSupportedError)
