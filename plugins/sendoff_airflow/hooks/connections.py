"""Find Airflow's connections, and read their fields."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import SplitResult, urlsplit

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from sqlalchemy import URL

from sendoff.errors import SettingsError

DIALECTS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg", "sqlite": "sqlite"}
"""The SQLAlchemy dialect of each connection type that Sendoff opens itself."""

POSTGRES_OPTIONS = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "options",
    "application_name",
)
"""The extras of a ``postgres`` connection that the database driver receives."""


def find_connection(conn_id: str) -> Connection | None:
    """Return a connection, or None if Airflow has none with this ID."""
    try:
        connection: Connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None
    return connection


def extras(connection: Connection) -> dict[str, Any]:
    """Return the extras of a connection. Raise SettingsError if they are not a JSON object."""
    try:
        values = json.loads(connection.extra or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise SettingsError(f"connection {connection.conn_id}: the extra fields are not a JSON object")
    connection.extra_dejson  # noqa: B018  # makes Airflow mask secret extras in logs
    return values


def web_address(connection: Connection) -> str:
    """Return the URL in the host field without a slash at its end, with the port of the port field.

    Raise SettingsError if both have a port and these differ.
    """
    url = (connection.host or "").strip().rstrip("/")
    parts: SplitResult = urlsplit(url if "://" in url else f"//{url}")
    try:
        port = parts.port
    except ValueError:
        return url  # whoever uses it says that it is wrong
    if not connection.port or port == connection.port:
        return url
    if port is not None:
        raise SettingsError(
            f"connection {connection.conn_id}: the port field is {connection.port}, but the URL in the host field has "
            f"the port {port}. Empty the port field, or correct one of them"
        )
    return parts._replace(netloc=f"{parts.netloc}:{connection.port}").geturl().removeprefix("//")


def database_url(connection: Connection) -> str:
    """Return the SQLAlchemy URL of a connection whose type is one of DIALECTS, password included."""
    dialect = DIALECTS[connection.conn_type or ""]
    if dialect == "sqlite":
        return _sqlite_url(connection)
    if not connection.host:
        raise SettingsError(f"connection {connection.conn_id}: the host is empty")
    options = extras(connection)
    query = {name: str(options[name]) for name in POSTGRES_OPTIONS if options.get(name) is not None}
    is_socket = connection.host.startswith("/")  # of Unix, which a URL cannot have in place of a host
    return URL.create(
        dialect,
        username=connection.login,
        password=connection.password,
        host=None if is_socket else connection.host,
        port=connection.port,
        database=connection.schema,
        query=query | ({"host": connection.host} if is_socket else {}),
    ).render_as_string(hide_password=False)


def _sqlite_url(connection: Connection) -> str:
    # The URI sqlite:////data/w.db puts the path into the schema. A form or JSON puts it into the host.
    path = connection.host or connection.schema
    if not path:
        raise SettingsError(
            f"connection {connection.conn_id}: the path of the database (host field) is empty"
        )
    return f"sqlite:///{path}"
