"""Copying a ledger into another database, for example from SQLite to PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.errors import UnusableLedgerError
from sendoff.ledger.control.audit_log import ALL
from sendoff.ledger.storage.bulk import streamed
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import (
    IN_FLIGHT,
    dispatches,
    erasure_state,
    metadata,
    pauses,
)

_ROWS = 200  # at a time; a row may have a chunk of a set


def copy_ledger(source: Database, target: Database) -> dict[str, int]:
    """Copy all rows of a ledger into an empty one in one transaction, and return their numbers by table.

    Other processes that write to ``source`` wait meanwhile.

    Raise UnusableLedgerError, and change nothing, in these cases: ``source`` is not paused or has requests in flight.
    The versions of the tables differ. ``target`` is not empty, or its database does not take a row.
    """
    with target.write() as into, source.write() as db:
        if db.dialect.name == "postgresql":
            db.exec_driver_sql(f"LOCK TABLE {', '.join(metadata.tables)} IN SHARE MODE")
        _check_source(db, source.name)
        _check_target(into, target.name, _revision(db))
        copied = {}
        for table in metadata.sorted_tables:
            try:
                copied[table.name] = _copy(db, into, table)
            except (exc.DataError, exc.IntegrityError) as error:
                problem = type(error.orig).__name__
                break
        else:
            return copied
        into.rollback()
    raise UnusableLedgerError(
        f"{target.name}: the database does not take a row of the table {table.name} ({problem}). Nothing was copied"
    )


def _check_source(db: sa.Connection, name: str) -> None:
    if not db.scalar(sa.select(pauses.c.scope).where(pauses.c.scope == ALL)):
        raise UnusableLedgerError(
            f"{name}: a ledger can be copied only while everything is paused, or requests could be sent from both. "
            f'Run this first: sendoff pause --all --why "moving the ledger" --ledger {name}'
        )
    if in_flight := db.scalar(sa.select(sa.func.count()).select_from(dispatches).where(IN_FLIGHT)):
        raise UnusableLedgerError(
            f"{name}: {in_flight} requests are in flight. Wait until they are made. If their worker has died, run "
            "`sendoff report` for their launches five minutes later"
        )


def _check_target(db: sa.Connection, name: str, revision: str) -> None:
    if _revision(db) != revision:
        raise UnusableLedgerError(
            f"{name}: the two ledgers have tables of different versions. Run `sendoff migrate` for both"
        )
    for table in metadata.sorted_tables:
        if table is not erasure_state and db.scalar(sa.select(sa.exists().select_from(table))):
            raise UnusableLedgerError(
                f"{name}: this ledger is not empty: its table {table.name} has rows. Give the copy a new database"
            )


def _revision(db: sa.Connection) -> str:
    return str(db.exec_driver_sql("SELECT version_num FROM alembic_version").scalar())


def _copy(db: sa.Connection, into: sa.Connection, table: sa.Table) -> int:
    """Copy the rows of a table, and let its own numbers continue after them. Return how many there are."""
    if table is erasure_state:  # its row was made with the tables
        into.execute(sa.delete(table))
    insert, rows = sa.insert(_with_texts(table)), 0
    with db.execute(streamed(sa.select(*map(_as_text, table.columns)), _ROWS)) as found:
        for some in found.mappings().partitions(_ROWS):
            into.execute(insert, list(map(dict, some)))
            rows += len(some)
    if rows and into.dialect.name == "postgresql" and (number := table.autoincrement_column) is not None:
        newest = sa.select(sa.func.max(number)).scalar_subquery()
        into.execute(
            sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, number.name), newest))
        )
    return rows


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
