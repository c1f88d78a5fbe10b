"""The connections of warehouses: those Sendoff reads itself, and all others that Airflow can query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException
from sqlalchemy import URL, Engine
from sqlalchemy.exc import ArgumentError

from sendoff.errors import SettingsError
from sendoff_airflow.hooks.connections import DIALECTS, database_url, extras, find_connection

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    from sendoff.warehouse import Cursors, Source

_SNOWFLAKE_OPTIONS = {"warehouse", "role", "region", "authenticator", "private_key_file"}
_WITHOUT_HOOK = {"generic", "email"}  # types without a hook


def warehouse_source(conn_id: str) -> Source:
    """Return the source that an audience query runs on: a URL, an engine, or the connections of a hook.

    It is a URL for ``postgres`` and ``sqlite``, for ``duckdb`` with a file, and for ``snowflake`` if its own driver is
    installed and supports every extra of the connection. For all others it is the engine of the connection type's hook,
    or the hook's connections if SQLAlchemy has no dialect. So any database that Airflow can query is a warehouse.
    """
    connection = find_connection(conn_id)
    if connection is None:
        raise SettingsError(
            f"there is no connection {conn_id}, which is named as a warehouse; add it in Airflow"
        )
    return warehouse_url(connection) or _from_hook(connection)


def warehouse_url(connection: Connection) -> str | None:
    """Return the SQLAlchemy URL of a warehouse that Sendoff reads itself, password included, or None for all others."""
    from sendoff.warehouse import adbc_driver

    if connection.conn_type in DIALECTS:
        return database_url(connection)
    if connection.conn_type == "duckdb" and connection.host and not extras(connection):
        return f"duckdb:///{connection.host}"
    if connection.conn_type == "snowflake" and adbc_driver("snowflake"):
        return _snowflake_url(connection)
    return None


def _snowflake_url(connection: Connection) -> str | None:
    """Return the URL of a ``snowflake`` connection, password included, or None if a URL cannot hold all its fields."""
    options = {name: str(value) for name, value in extras(connection).items() if value}
    account, database = options.pop("account", None), options.pop("database", "")
    if not account or not options.keys() <= _SNOWFLAKE_OPTIONS:
        return None
    return URL.create(
        "snowflake",
        username=connection.login,
        password=connection.password,
        host=account,
        database=f"{database}/{connection.schema}" if connection.schema else database,
        query=options,
    ).render_as_string(hide_password=False)


def _from_hook(connection: Connection) -> Engine | Cursors:
    from sendoff.warehouse import Cursors

    hook = sql_hook(connection)
    try:
        engine = hook.get_sqlalchemy_engine()
    except (AirflowException, ArgumentError, ImportError, NotImplementedError):
        return Cursors(hook.get_conn, hook.placeholder, _address(connection))
    assert isinstance(engine, Engine)
    return engine


def sql_hook(connection: Connection) -> DbApiHook:
    """Return the hook of a connection's type. Raise SettingsError if there is none, or if it has no SQL."""
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    try:
        hook = connection.get_hook()  # type: ignore[no-untyped-call]
    except (
        AirflowException,
        AttributeError,
        ImportError,
    ):  # AttributeError: "generic" and "email" have no hook
        raise SettingsError(_unusable(connection, "no installed Airflow provider can open it")) from None
    if not isinstance(hook, DbApiHook):
        raise SettingsError(_unusable(connection, f"{type(hook).__name__} has no SQL"))
    return hook


def _address(connection: Connection) -> URL:
    return URL.create(
        connection.conn_type or "",
        username=connection.login,
        password=connection.password,
        host=connection.host,
        port=connection.port,
        database=connection.schema,
    )


def _unusable(connection: Connection, why: str) -> str:
    problem = f"connection {connection.conn_id}: type {connection.conn_type} cannot be queried ({why})"
    if connection.conn_type in _WITHOUT_HOOK:
        return (
            f"{problem}. Airflow stores a connection as generic if the provider of its database is not installed. "
            "Install the provider (for PostgreSQL apache-airflow-providers-postgres, which the extra 'airflow' "
            "includes), then set the connection's type, such as postgres"
        )
    return f"{problem}. Install the Airflow provider of that database, or use a postgres or sqlite connection"
