"""The ledger's database: transactions for reading and writing, and migrations."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sendoff.errors import LedgerUnavailableError, SettingsError, UnusableLedgerError
from sendoff.ledger.storage import bulk
from sendoff.ledger.storage.bulk import Row
from sendoff.ledger.storage.engines import engine_of, shown
from sendoff.ledger.storage.private_files import make_private
from sendoff.ledger.storage.problems import NO_TABLES, LedgerAddress, problem_of
from sendoff.ledger.storage.schema import UtcDateTime, launches, metadata, receivers

_log = logging.getLogger(__name__)

_PLACES = "the ledger URL (SENDOFF_LEDGER_URL, --ledger, or the password of the connection sendoff_ledger)"
_SHARE = 0.2  # of the time, which a long series of transactions may hold SQLite's write lock

# Changes that leave columns as they are, and delete their statistics. ANALYZE keeps those of a table that became empty.
_SAME_TYPES = sa.text("""
    SELECT string_agg(format('ALTER %1$I TYPE %2$s, ALTER %1$I SET STORAGE %3$s', attname,
        format_type(atttypid, atttypmod),
        CASE attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END), ', ')
    FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) AND attname = ANY(:columns)
""")


_OLD_SAMPLES = (
    "%s: pg_stats may keep samples of erased identifiers, because a view, rule or publication uses the table. Drop it, "
    "and repeat sendoff forget --reclaim"
)


class Database:
    """Connections to the database behind one SQLAlchemy URL, opened when first needed."""

    def __init__(self, url: str) -> None:
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
        if "@" in (parsed.host or ""):  # an error would show the end of the password as part of the host
            raise SettingsError(f"{_PLACES} has more than one @; write an @ in its password as %40")
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
        # Imported here, because most commands and tasks migrate nothing, and start sooner without it.
        from alembic import command
        from alembic.config import Config
        from alembic.migration import MigrationContext
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        self._may_be_made = True
        file = self.file
        if file is not None and not file.exists():
            make_private(file)
        if file is not None and _has_other_tables(file):  # before the ledger connects, which changes the file
            raise UnusableLedgerError(f"{self.name}: {_NOT_OURS}")
        with self.write() as db:
            if not self._is_sqlite:
                self._prepare_postgresql(db)
            config.attributes["connection"] = db
            revisions = MigrationContext.configure(db).get_current_heads()
            # Every application that uses Alembic has its table of revisions. A schema of PostgreSQL may have tables of
            # an extension, such as PostGIS.
            if revisions and not sa.inspect(db).has_table(launches.name):
                raise UnusableLedgerError(f"{self.name}: {_NOT_OURS}")
            if file is not None:
                make_private(file)
            try:
                command.upgrade(config, "head")
            except CommandError:
                if _known().issuperset(revisions):
                    raise
                raise UnusableLedgerError(_newer(", ".join(revisions))) from None
            if missing := _missing(db):
                raise UnusableLedgerError(
                    f"{self.name}: the ledger lacks {', '.join(missing)}. If an earlier checkout of Sendoff made it, "
                    "use a new database. Otherwise, restore a backup"
                )

    def _prepare_postgresql(self, db: sa.Connection) -> None:
        """Wait for other migrations. Raise UnusableLedgerError if the database cannot store every text."""
        for limit in ("statement_timeout", "lock_timeout"):  # rewriting a large table takes longer
            db.exec_driver_sql(f"SET LOCAL {limit} = 0")
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        if (encoding := db.exec_driver_sql("SHOW server_encoding").scalar()) != "UTF8":
            raise UnusableLedgerError(
                f"{self.name}: the encoding of this database is {encoding}, which cannot store every text. "
                "Create one with ENCODING 'UTF8'"
            )

    def rewrite_files(self, columns: Iterable[sa.Column[Any]]) -> list[str]:
        """Rewrite the files of some columns' tables without the bytes of old rows, and return the statements.

        On SQLite, the whole file is rewritten. Raise LedgerUnavailableError if another process is in the way.
        PostgreSQL also makes the statistics of the columns again, because they have samples of old values.
        """
        with self.translated(), self._turn:
            if self._is_sqlite:
                return self._rewrite_sqlite()
            names: dict[str, list[str]] = {}
            for column in columns:
                names.setdefault(column.table.name, []).append(column.name)
            statements = []
            with self._engine.connect() as db:
                db.exec_driver_sql("SET statement_timeout = 0")
                try:
                    for table, own in names.items():
                        same = db.scalar(_SAME_TYPES, {"table": table, "columns": own})
                        try:
                            db.exec_driver_sql(alter := f"ALTER TABLE {table} {same}")
                            statements.append(alter)
                        except exc.NotSupportedError:
                            _log.warning(_OLD_SAMPLES, table)
                        db.exec_driver_sql(vacuum := f"VACUUM (FULL, ANALYZE) {table}")
                        statements.append(vacuum)
                finally:  # the connection goes back to a pool that resets nothing
                    db.exec_driver_sql("RESET statement_timeout")
        return statements

    def _rewrite_sqlite(self) -> list[str]:
        statements = ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"]
        connection = self._engine.raw_connection()
        try:
            for statement in statements:
                row = connection.cursor().execute(statement).fetchone()
            if row is not None and row[0]:
                raise LedgerUnavailableError(
                    f"{self.name}: another process is reading, so the old bytes are still in the -wal file. Try again"
                )
        finally:
            connection.close()
        return statements

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
            if _missing(db):
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
        if row is not None and row[0] not in _known():
            self._problem_of_tables = _newer(row[0])
            _log.warning("%s", self._problem_of_tables)


class LedgerPart:
    """A part of the ledger, such as its launches."""

    def __init__(self, database: Database) -> None:
        self._database = database


_MIGRATIONS = Path(__file__).with_name("migrations")
# Errors of the rows, not of the ledger.
_OF_ROWS = (exc.IntegrityError, exc.DataError, exc.NotSupportedError)
_NOT_OURS = "this database belongs to another application; give the ledger a database of its own"
_MIGRATION_LOCK = 0x53454E44  # any number that nothing else in the database uses as a lock


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Return the table revisions that this version of Sendoff knows."""
    return frozenset(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _has_other_tables(file: Path) -> bool:
    """Check whether an SQLite file has tables, but not those of a ledger. One that cannot be read has none."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return False
    return bool(names) and launches.name not in names


def _missing(db: sa.Connection) -> list[str]:
    """Return the tables, and the columns of the others as TABLE.COLUMN, that a database does not have."""
    read = sa.inspect(db).get_multi_columns(filter_names=[*metadata.tables])
    found = {name: {column["name"] for column in columns} for (_, name), columns in read.items()}
    tables = metadata.tables
    return [
        *(name for name in tables if name not in found),
        *(
            str(each)
            for name in tables
            if name in found
            for each in tables[name].c
            if each.name not in found[name]
        ),
    ]


def _newer(revision: str) -> str:
    return (
        f"this ledger was made by a newer Sendoff (its tables have revision {revision}; this version knows up to "
        f"{max(_known())}). Use that version, or restore the backup from before the upgrade. "
        "If another application uses this database, give the ledger a database of its own"
    )


class LedgerTime(FunctionElement[datetime]):
    """SQL for the database's time when it runs the statement, plus a number of seconds."""

    name = "ledger_time"
    type = UtcDateTime()
    inherit_cache = True

    def __init__(self, seconds: sa.ColumnElement[float] | None = None) -> None:
        super().__init__(sa.literal(0.0) if seconds is None else seconds)


@compiles(LedgerTime, "postgresql")
def _on_postgresql(element: LedgerTime, compiler: SQLCompiler, **how: Any) -> str:
    # now() is the start of the transaction, which may have waited for a lock since.
    return f"(clock_timestamp() + {compiler.process(element.clauses, **how)} * interval '1 second')"


@compiles(LedgerTime, "sqlite")
def _on_sqlite(element: LedgerTime, compiler: SQLCompiler, **how: Any) -> str:
    # SQLAlchemy's format for a stored UtcDateTime, so that the two compare as text.
    seconds = compiler.process(element.clauses, **how)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds') || '000')"
