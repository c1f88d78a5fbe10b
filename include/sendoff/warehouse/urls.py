"""Where a warehouse is: its URL, and whether anything answers there."""

from __future__ import annotations

import socket
from urllib.parse import quote

import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.settings import LIBPQ_TIMEOUTS

CONNECT_SECONDS = 10
"""How long opening a connection may take."""

_OF_LIBPQ = ("psycopg", "psycopg2")  # drivers that hand their options on to it, as that of ADBC does
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}


def parse_url(text: str) -> sa.URL:
    """Return the URL that a text writes, with time-outs for PostgreSQL; raise QueryError if it writes none."""
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is None:  # raised here, because the driver's own text may hold the password
        raise QueryError("the warehouse is not named by a URL such as postgresql://user@host/database")
    if url.get_backend_name() == "postgres":  # as Airflow writes it
        url = url.set(drivername="postgresql")
    if url.get_backend_name() == "postgresql" and url.get_driver_name() in _OF_LIBPQ:
        url = url.update_query_dict({**LIBPQ_TIMEOUTS, **url.query})
    return url


def is_sqlite_file(url: sa.URL) -> bool:
    """Check whether a URL names a file of SQLite, and nothing else about it."""
    name = url.database or ":memory:"
    return url.get_backend_name() == "sqlite" and not url.query and not name.startswith((":", "file:"))


def read_only_uri(url: sa.URL) -> str:
    """Return the URI by which SQLite opens a file to read it alone."""
    return f"file:{quote(url.database or '')}?mode=ro"


def is_silent(url: sa.URL) -> bool:
    """Check whether nothing answers at a database's address; what refuses to let us in does answer."""
    host, port = url.host, url.port or _PORTS.get(url.get_backend_name())
    if url.get_backend_name() == "snowflake":  # whose URL has the account in place of the host
        host = str(url.query.get("host", f"{host}.snowflakecomputing.com"))
        port = int(str(url.query.get("port", 443)))
    if not host or port is None or host.startswith("/"):
        return False
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return True
    return False
