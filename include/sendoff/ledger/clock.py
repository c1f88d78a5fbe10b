"""The ledger's clock: the database's own, by which every lease begins and ends.

The clocks of workers may be minutes apart. If each judged leases by its own, one whose clock is ahead would take the
others for dead while they send.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sendoff.ledger.schema import Moment


class LedgerTime(FunctionElement[datetime]):
    """The time of the database when it runs the statement, plus a number of seconds, as SQL."""

    name = "ledger_time"
    type = Moment()
    inherit_cache = True

    def __init__(self, seconds: sa.ColumnElement[float] | None = None) -> None:
        super().__init__(sa.literal(0.0) if seconds is None else seconds)


@compiles(LedgerTime, "postgresql")
def _on_postgresql(element: LedgerTime, compiler: SQLCompiler, **how: Any) -> str:
    # now() would be when the transaction began, which may have waited for a lock since.
    return f"(clock_timestamp() + {compiler.process(element.clauses, **how)} * interval '1 second')"


@compiles(LedgerTime, "sqlite")
def _on_sqlite(element: LedgerTime, compiler: SQLCompiler, **how: Any) -> str:
    # In the form in which SQLAlchemy stores a moment, so that both can be compared as texts.
    seconds = compiler.process(element.clauses, **how)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds') || '000')"
