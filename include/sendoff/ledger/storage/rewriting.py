"""Rewriting the files of a database without the bytes of old rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sendoff.errors import LedgerUnavailableError

_log = logging.getLogger(__name__)

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


def rewrite_postgresql(engine: sa.Engine, columns: Iterable[sa.Column[Any]]) -> list[str]:
    """Rewrite the tables of some columns and make their statistics again, and return the statements."""
    names: dict[str, list[str]] = {}
    for column in columns:
        names.setdefault(column.table.name, []).append(column.name)
    statements = []
    with engine.connect() as db:
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


def rewrite_sqlite(engine: sa.Engine, name: str) -> list[str]:
    """Rewrite a whole file, and return the statements. ``name``: of the database, for errors."""
    statements = ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"]
    connection = engine.raw_connection()
    try:
        for statement in statements:
            row = connection.cursor().execute(statement).fetchone()
        if row is not None and row[0]:
            raise LedgerUnavailableError(
                f"{name}: another process is reading, so the old bytes are still in the -wal file. Try again"
            )
    finally:
        connection.close()
    return statements
