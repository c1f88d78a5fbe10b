"""The ledger's database: one engine, reading and writing transactions, migrations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from sendoff.errors import LedgerUnavailableError, SettingsError
from sendoff.ledger.tables import receivers

_BUSY_SECONDS = 30


class Database:
    """Connections to the database behind one SQLAlchemy URL, opened when first needed."""

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
            self._engine = _engine(parsed)
        except (exc.ArgumentError, ImportError) as error:
            raise SettingsError(
                f"the ledger URL cannot be used ({type(error).__name__}); it looks like "
                "sqlite:////data/sendoff.db or postgresql+psycopg://user@host/name "
                "(the latter needs: pip install 'sendoff[postgres]')"
            ) from None
        self._writing = self._engine.execution_options(writing=True)
        self.name = parsed.render_as_string(hide_password=True)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction for reading; on PostgreSQL each of its statements sees what is committed by then."""
        with _translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction that commits at its end; on SQLite it waits for its turn before it reads."""
        with _translated(), self._writing.begin() as connection:
            yield connection

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
        """Bring the tables to the newest form; safe to repeat and to call from several processes at once."""
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
        with self.write() as connection:
            if not self._is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def ping(self) -> None:
        """Return if the database can be written, else raise LedgerUnavailableError."""
        with self.write() as connection:
            # An INSERT of nothing: a receiver may do nothing else with the ledger.
            nothing = sa.select(*(sa.null() for _ in receivers.columns)).where(sa.false())
            connection.execute(sa.insert(receivers).from_select(receivers.columns.keys(), nothing))

    def close(self) -> None:
        """Close every connection of this process."""
        self._engine.dispose()


_FORBIDDEN = "42501"  # insufficient_privilege
_MIGRATION_LOCK = 0x53454E44  # any number that nothing else in the database uses


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except exc.ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) == _FORBIDDEN:
            raise LedgerUnavailableError(
                "the ledger's user may not do this; its rights are those of: sendoff grants"
            ) from None
        raise LedgerUnavailableError("the ledger has no tables, or old ones; run: sendoff migrate") from None
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, exc.InternalError) as error:
        if "no such table" in str(getattr(error, "orig", "")):
            raise LedgerUnavailableError(
                "the ledger has no tables, or old ones; run: sendoff migrate"
            ) from None
        raise LedgerUnavailableError(f"the ledger database did not answer ({type(error).__name__})") from None


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, hide_parameters=True, pool_pre_ping=True)
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver starts no transaction of its own; _begin_sqlite does
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads and then writes must hold the lock from its start: taking it later can fail at once.
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
