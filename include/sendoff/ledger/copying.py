"""Copying a ledger into another database, for example from SQLite to PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.errors import SettingsError, UnusableLedgerError
from sendoff.figures import counted
from sendoff.ledger.control.audit_log import ALL, MOVED, GlobalPause
from sendoff.ledger.storage.bulk import streamed
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import IN_FLIGHT, dispatches, erasure_state, metadata, pauses
from sendoff.ledger.storage.stored_sets import batches

_LARGE_ROWS = 4  # that the database sends at a time, because each may be a chunk of a set
_SMALL_ROWS = 500


def copy_ledger(source: Database, target: Database) -> dict[str, int]:
    """Copy all rows of a ledger into an empty one in one transaction, and return how many each table has.

    ``target`` gets tables first if it has none. Other processes that write to either of the two, or copy ``source``,
    wait meanwhile. At the end, the pause of ``source`` becomes the mark of its move, so it sends nothing more and is
    not copied again. The mark is written before the copy is committed, and committed right after it.

    Raise SettingsError if both are the same file. Raise UnusableLedgerError, and copy nothing, in these cases:
    ``source`` is not paused, was moved already, or has requests in flight. The versions of the tables differ.
    ``target`` is not empty, or its database does not take a row.
    """
    files = [each.file for each in (source, target) if each.file and each.file.exists()]
    if len(files) == 2 and files[0].samefile(files[1]):
        raise SettingsError(f"{target.name}: this is the ledger to copy. Name a new one with --ledger")
    with source.write() as db:
        _check_source(db, source.name)
        revision = _revision(db)
        target.migrate()
        with target.write() as into:
            _check_target(into, target.name, revision)
            _lock(into, "EXCLUSIVE")
            _check_target(into, target.name, revision)  # someone may have written to it before the lock
            copied, problem = {}, ""
            for table in metadata.sorted_tables:
                try:
                    with closing(_read(source, db, table)) as rows:
                        copied[table.name] = _write(into, table, rows)
                except (exc.DataError, exc.IntegrityError, ValueError) as error:
                    problem = type(error).__name__
                    into.rollback()
                    break
            else:
                move = {"scope": MOVED, "why": f"moved to {target.name}"}
                with source.translated():
                    db.execute(sa.update(pauses).where(pauses.c.scope == ALL).values(move))
        if not problem:
            return copied
    raise UnusableLedgerError(
        f"{target.name}: the database does not take a row of the table {table.name} ({problem}), and nothing was "
        "copied. A text may be too long or have a character that the database cannot store, or a number may be too "
        f"large. Correct the row in {source.name}, and copy again"
    )


def _check_source(db: sa.Connection, name: str) -> None:
    if not sa.inspect(db).has_table(pauses.name):
        raise UnusableLedgerError(f"{name}: there is no ledger to copy in this database. Check the URL")
    _lock(db, "SHARE ROW EXCLUSIVE")  # which another copy waits for too
    paused = {row.scope: GlobalPause(**row._mapping) for row in db.execute(sa.select(pauses))}
    if MOVED in paused:
        raise UnusableLedgerError(f"{name}: {paused[MOVED]}")
    if ALL not in paused:
        raise UnusableLedgerError(
            f"{name}: a ledger is copied only while everything is paused, or requests could be sent from both. Run "
            'this for it first: sendoff pause --all --why "moving the ledger"'
        )
    if in_flight := db.scalars(sa.select(dispatches.c.launch_key).where(IN_FLIGHT)).all():
        launch = min(in_flight)
        raise UnusableLedgerError(
            f"{name}: still in flight: {counted(len(in_flight), 'request')}. Wait for the workers. If one has died, "
            f"run this for the ledger after five minutes: sendoff report {launch}"
        )


def _check_target(db: sa.Connection, name: str, revision: str) -> None:
    if _revision(db) != revision:
        raise UnusableLedgerError(
            f"{name}: the two ledgers have tables of different versions. Run `sendoff migrate` for the one to copy"
        )
    for table in metadata.sorted_tables:
        if table is not erasure_state and db.scalar(sa.select(sa.exists().select_from(table))):
            raise UnusableLedgerError(
                f"{name}: this ledger is not empty: its table {table.name} has rows. Give the copy a new database"
            )


def _lock(db: sa.Connection, mode: str) -> None:
    """Make other processes that write wait until the end of the transaction. On SQLite, they do so anyway."""
    if db.dialect.name == "postgresql":
        db.exec_driver_sql(f"LOCK TABLE {', '.join(metadata.tables)} IN {mode} MODE")


def _revision(db: sa.Connection) -> str:
    return str(db.exec_driver_sql("SELECT version_num FROM alembic_version").scalar())


def _read(source: Database, db: sa.Connection, table: sa.Table) -> Generator[dict[str, Any]]:
    """Yield the rows of a table, few at a time, and JSON as text."""
    is_large = any(isinstance(column.type, sa.LargeBinary) for column in table.columns)
    query = streamed(sa.select(*map(_as_text, table.columns)), _LARGE_ROWS if is_large else _SMALL_ROWS)
    with source.translated(), db.execute(query) as found:
        yield from map(dict, found.mappings())


def _write(into: sa.Connection, table: sa.Table, rows: Iterator[dict[str, Any]]) -> int:
    """Write the rows of a table, and let its own numbers continue after them. Return how many there are."""
    if table is erasure_state:  # its row was made with the tables
        into.execute(sa.delete(table))
    insert, written = sa.insert(_with_texts(table)), 0
    for batch in batches(rows):
        into.execute(insert, batch)
        written += len(batch)
    if written and into.dialect.name == "postgresql" and (number := table.autoincrement_column) is not None:
        newest = sa.select(sa.func.max(number)).scalar_subquery()
        into.execute(
            sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, number.name), newest))
        )
    return written


def _as_text(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return a column of JSON as its text, because a null of SQL and one of JSON are the same value in Python."""
    return sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column


def _with_texts(table: sa.Table) -> sa.TableClause:
    """Return a table that takes the values of :func:`_as_text`."""
    columns = (
        sa.column(each.name, sa.types.NullType() if isinstance(each.type, sa.JSON) else each.type)
        for each in table.columns
    )
    return sa.table(table.name, *columns)
