"""The database's own time in SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sendoff.ledger.storage.schema import UtcDateTime


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
