"""The ledger's database: one engine, reading and writing transactions, migrations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from sendoff.errors import SettingsError, UnusableLedgerError
from sendoff.ledger import arrow_batches
from sendoff.ledger.problems import NO_TABLES, Place, problem_of
from sendoff.ledger.schema import receivers
from sendoff.network import POSTGRESQL_LIMITS
from sendoff.private_files import make_private

_log = logging.getLogger(__name__)

Row = tuple[Any, ...]
"""A value for each column of a table, in their order."""

_BUSY_SECONDS = 30
_WRITABLE = {"target_session_attrs": "read-write"}
"""Of the servers behind a name, a standby is passed over, and one that is read-only for now."""
_PATIENCE = (
    "-c statement_timeout=30min "  # far beyond what any statement of ours takes, but for migrations
    "-c lock_timeout=5min "  # whoever holds a lock so long is frozen
    "-c idle_in_transaction_session_timeout=30min"  # as the server finds out of a client
)


class Database:
    """Connections to the database behind one SQLAlchemy URL, opened when first needed."""

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
            self._engine = _engine(parsed)
        except (exc.ArgumentError, ImportError, ValueError) as error:
            raise SettingsError(
                f"the ledger URL cannot be used ({type(error).__name__}); it looks like "
                "sqlite:////data/sendoff.db or postgresql+psycopg://user@host/name "
                "(the latter needs: pip install 'airflow-provider-sendoff[postgres]')"
            ) from None
        if "@" in (parsed.host or ""):  # else an error would show the end of the password as a host
            raise SettingsError("the ledger URL has more than one @; write the one in its password as %40")
        self._writing = self._engine.execution_options(writing=True)
        self._at_once = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self.name = _shown(parsed)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        self._can_copy = self._engine.dialect.driver == "psycopg"
        self._may_be_made = False
        self._is_compared = False
        self._problem_of_tables = NO_TABLES
        self._place = Place.of(parsed)
        if self._is_sqlite:
            event.listen(self._engine, "do_connect", self._find_file)
        event.listen(self._engine, "connect", self._compare_once)
        # SQLite lets one writer in at a time, and the others sleep and look again; threads need not.
        self._turn = threading.RLock() if self._is_sqlite else nullcontext()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction for reading; on PostgreSQL each of its statements sees what is committed by then."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction that commits at its end; on SQLite it waits for its turn before it reads."""
        with self._translated(), self._turn, self._writing.begin() as connection:
            yield connection

    def append(self, table: sa.Table, rows: Sequence[Row]) -> None:
        """Store rows in one transaction, passing over those whose primary key is there already.

        A row holds a value for each column of the table, in their order. PostgreSQL takes rows by COPY, at a fraction
        of what an INSERT costs; but COPY passes over nothing, so where it meets a row that is there, all are inserted.
        """
        if not rows:
            return
        if not self._can_copy:
            with self.write() as connection:
                insert = _insert_or_pass_by_place(table, connection.dialect)
                connection.exec_driver_sql(insert, _bound(table, rows, connection.dialect))
            return
        try:
            with self._translated(), self._at_once.connect() as connection:
                _copy(connection, table, rows)
        except exc.IntegrityError:  # and nothing of them was stored
            names = table.columns.keys()
            with self.write() as connection:
                connection.execute(
                    self.insert_or_pass(table), [dict(zip(names, row, strict=True)) for row in rows]
                )

    @contextmanager
    def arrow(self, query: sa.Select[Any], *, is_large: bool) -> Iterator[Iterator[pa.RecordBatch]]:
        """Run a query and give its rows as Arrow batches, typed by its columns, read as they are used.

        They show one state of the database. ``is_large``: worth a connection of its own, by which
        PostgreSQL gives no row a Python object; SQLite always does.
        """
        if is_large and self._engine.dialect.driver == "psycopg" and (driver := arrow_batches.driver()):
            with arrow_batches.by_adbc(driver, self._libpq_address(), self._place, query) as batches:
                yield batches
            return
        with (
            self.read() as connection,
            closing(arrow_batches.by_rows(connection, query, is_large)) as batches,
        ):
            yield batches

    def _libpq_address(self) -> str:
        """Give the address by which libpq connects as the engine does."""
        from psycopg.conninfo import make_conninfo  # not at the top: there is no psycopg without the extra

        _, parameters = self._engine.dialect.create_connect_args(self._engine.url)
        # What is neither text nor number is for psycopg alone.
        plain: dict[str, Any] = {
            name: value for name, value in parameters.items() if isinstance(value, str | int)
        }
        return make_conninfo(**plain)

    def insert_or_pass(self, table: sa.Table) -> Any:
        """Give an INSERT that passes over rows whose primary key is there already."""
        if self._is_sqlite:
            return sqlite.insert(table).on_conflict_do_nothing()
        return postgresql.insert(table).on_conflict_do_nothing()

    def insert_or_add(self, table: sa.Table, *columns: str) -> Any:
        """Give an INSERT that adds to ``columns`` where the primary key is there already."""
        return self._upsert(table, lambda new: {name: table.c[name] + new[name] for name in columns})

    def insert_or_replace(self, table: sa.Table) -> Any:
        """Give an INSERT that replaces every other column where the primary key is there already."""
        names = [column.name for column in table.columns if not column.primary_key]
        return self._upsert(table, lambda new: {name: new[name] for name in names})

    def _upsert(self, table: sa.Table, changes: Any) -> Any:
        insert: Any = sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)
        return insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=changes(insert.excluded)
        )

    def migrate(self) -> None:
        """Bring the tables to the newest form; safe to repeat and to call from several processes at once.

        Raises UnusableLedgerError if they are newer than this version of Sendoff.
        """
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        self._may_be_made = True
        if (file := self._file) is not None:
            make_private(file)
        with self.write() as connection:
            if not self._is_sqlite:
                for limit in ("statement_timeout", "lock_timeout"):  # rewriting large tables takes its time
                    connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError:
                if (found := MigrationContext.configure(connection).get_current_revision()) in _known():
                    raise
                raise UnusableLedgerError(_newer(found)) from None

    def ping(self, *tables: sa.Table) -> None:
        """Return if the database can be written, else raise LedgerUnavailableError or UnusableLedgerError."""
        with self.write() as connection:
            # An INSERT of nothing: a receiver may do nothing else with the ledger.
            for table in tables or (receivers,):
                nothing = sa.select(*(sa.null() for _ in table.columns)).where(sa.false())
                connection.execute(sa.insert(table).from_select(table.columns.keys(), nothing))

    def close(self) -> None:
        """Close every connection of this process."""
        self._engine.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.DBAPIError, exc.TimeoutError) as error:
            if isinstance(error, _OF_ROWS):
                raise
            raise problem_of(error, self._place, tables=self._problem_of_tables) from None

    @property
    def _file(self) -> Path | None:
        """The file of SQLite that the URL names by its path alone."""
        name = self._engine.url.database or ":memory:"
        return None if not self._is_sqlite or name.startswith((":", "file:")) else Path(name)

    def _find_file(self, _dialect: Any, _record: Any, _arguments: Any, _options: Any) -> None:
        """Let SQLite make no file where none is, but to migrate: a path may be mistyped."""
        if not self._may_be_made and (file := self._file) and not file.exists():
            raise UnusableLedgerError(
                f"there is no ledger at {file}; is the path right? For a new one, run: sendoff migrate"
            )

    def _compare_once(self, connection: Any, _record: Any) -> None:
        """Warn, once in a process, of tables that a newer Sendoff made."""
        if self._is_compared:
            return
        cursor = connection.cursor()
        try:
            cursor.execute("SELECT version_num FROM alembic_version")
            found = cursor.fetchone()
        except self._engine.dialect.loaded_dbapi.Error:  # there is none yet, or not everybody may read it
            return
        finally:
            cursor.close()
            connection.rollback()
        self._is_compared = found is not None
        if found is not None and found[0] not in _known():
            self._problem_of_tables = _newer(found[0])
            _log.warning("%s", self._problem_of_tables)


_MIGRATIONS = Path(__file__).with_name("migrations")
_OF_ROWS = (
    exc.IntegrityError,
    exc.DataError,
    exc.NotSupportedError,
)  # what was written is wrong, not the ledger
_READ_ONLY = "25006"  # read_only_sql_transaction: on a standby, or while a provider lets nobody write
_HARMLESS = frozenset({"host", "port", "sslmode", "target_session_attrs", "connect_timeout", "mode", "uri"})
_MIGRATION_LOCK = 0x53454E44  # any number that nothing else in the database uses


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    """Give the revisions of the tables that this version of Sendoff knows."""
    return frozenset(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _newer(revision: str | None) -> str:
    return (
        f"this ledger was made by a newer Sendoff (its tables are of revision {revision}, this one knows "
        f"{max(_known())}): use that one, or the backup from before it"
    )


@lru_cache(maxsize=8)
def _insert_or_pass_by_place(table: sa.Table, dialect: sa.Dialect) -> str:
    return str(sqlite.insert(table).on_conflict_do_nothing().compile(dialect=dialect))


def _bound(table: sa.Table, rows: Sequence[Row], dialect: sa.Dialect) -> list[Row]:
    """Give rows as the driver takes them."""
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


@lru_cache(maxsize=8)
def _type_names(table: sa.Table, dialect: sa.Dialect) -> list[str]:
    """Give what PostgreSQL calls the types of the columns: COPY in binary form casts nothing."""
    return [column.type.compile(dialect).partition("(")[0].lower() for column in table.columns]


def _copy(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    driver: Any = connection.connection.driver_connection
    errors: Any = connection.dialect.loaded_dbapi
    statement = f"COPY {table.name} ({', '.join(table.columns.keys())}) FROM STDIN (FORMAT binary)"
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(_type_names(table, connection.dialect))
            for row in _bound(table, rows, connection.dialect):
                copy.write_row(row)
    except errors.Error as error:  # as SQLAlchemy does for what it executes itself
        if connection.dialect.is_disconnect(error, driver, None) or _is_read_only(error):
            connection.invalidate(error)
        raise exc.DBAPIError.instance(
            statement, None, error, errors.Error, hide_parameters=True, dialect=connection.dialect
        ) from None


def _shown(url: sa.URL) -> str:
    """Return a URL without its password and without the values of options that may hold one."""
    options = (
        f"{name}={','.join(values) if name in _HARMLESS else '***'}"
        for name, values in url.normalized_query.items()
        if name.isidentifier()
    )
    query = "&".join(options)
    return url.set(query={}).render_as_string(hide_password=True) + (f"?{query}" if query else "")


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        url = _within_limits(url.set(drivername="postgresql+psycopg"))  # whose COPY we use
        engine = sa.create_engine(url, hide_parameters=True, pool_pre_ping=True)
        event.listen(engine, "handle_error", _leave_read_only)
        return engine
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _within_limits(url: sa.URL) -> sa.URL:
    """Give a URL of PostgreSQL with the time limits that it does not name itself; of two options, the last counts."""
    options = " ".join([_PATIENCE, *url.normalized_query.get("options", ())])
    return url.update_query_dict({**POSTGRESQL_LIMITS, **_WRITABLE, **url.query, "options": options})


def _leave_read_only(context: sa.ExceptionContext) -> None:
    """Count a server that takes no writes as lost: the next connection may lead to one that does."""
    if _is_read_only(context.original_exception):
        context.is_disconnect = True


def _is_read_only(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) == _READ_ONLY


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver starts no transaction of its own; _begin_sqlite does
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads and then writes must hold the lock from its start: taking it later can fail at once.
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
