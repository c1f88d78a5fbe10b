"""The engine behind a ledger's URL: its driver, its limits, and what it does when a connection opens or was idle."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from sendoff.ledger.storage import bulk
from sendoff.warehouse import LIBPQ_TIMEOUTS

_BUSY_SECONDS = 30
_IDLE_SECONDS = 1.0  # after which a connection is pinged before it is used
_WRITABLE = {"target_session_attrs": "read-write"}
"""If the URL names several servers, libpq skips standbys and servers that are read-only at the moment."""
_PATIENCE = (
    "-c statement_timeout=30min "  # much longer than any of our statements takes, except migrations
    "-c lock_timeout=5min "  # a process that holds a lock this long is stuck
    "-c idle_in_transaction_session_timeout=30min "  # measured by the server
    r"-c default_transaction_isolation=read\ committed "  # the ledger's statements must see what others commit
    "-c jit=off"  # compiling a query of a page takes longer than the query
)
_HARMLESS = frozenset({"host", "port", "sslmode", "target_session_attrs", "connect_timeout", "mode", "uri"})


def shown(url: sa.URL) -> str:
    """Return a URL without its password and without option values that may be secret."""
    options = (
        f"{name}={','.join(values) if name in _HARMLESS else '***'}"
        for name, values in url.normalized_query.items()
        if name.isidentifier()
    )
    query = "&".join(options)
    return url.set(query={}).render_as_string(hide_password=True) + (f"?{query}" if query else "")


def engine_of(url: sa.URL) -> sa.Engine:
    """Return an engine whose driver begins no transaction by itself."""
    if url.get_backend_name() == "postgresql":
        url = _within_limits(url.set(drivername="postgresql+psycopg"))  # the driver whose COPY bulk uses
        engine = sa.create_engine(url, hide_parameters=True, isolation_level="AUTOCOMMIT")
        event.listen(engine, "handle_error", _leave_read_only)
        event.listen(engine, "checkin", _note_use)
        event.listen(engine, "checkout", _ping_if_idle)
        return engine
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _within_limits(url: sa.URL) -> sa.URL:
    """Return a PostgreSQL URL with our limits. The URL's own options come last, so they win."""
    options = " ".join([_PATIENCE, *url.normalized_query.get("options", ())])
    return url.update_query_dict({**LIBPQ_TIMEOUTS, **_WRITABLE, **url.query, "options": options})


def _leave_read_only(context: sa.ExceptionContext) -> None:
    """Drop the connection if the server is read-only: the next connection may reach one that takes writes."""
    if bulk.is_read_only(context.original_exception):
        context.is_disconnect = True


def _note_use(_connection: Any, record: Any) -> None:
    record.info["used_at"] = monotonic()


def _ping_if_idle(connection: Any, record: Any, _fairy: Any) -> None:
    """Replace all connections if the server has ended this one while it was idle.

    A connection that was used just now is not pinged, because that takes as long as a statement. If the server has
    ended it, its transaction fails like any that the server ends.
    """
    if monotonic() - record.info.get("used_at", math.inf) > _IDLE_SECONDS:
        try:
            connection.execute("SELECT 1").close()
            connection.rollback()
        except connection.Error:
            raise exc.InvalidatePoolError from None


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions; read and write do
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
