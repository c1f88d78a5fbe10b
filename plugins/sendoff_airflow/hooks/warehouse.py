"""The connections of warehouses: those Sendoff reads itself, and all others that Airflow can query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException
from sqlalchemy import URL, Engine
from sqlalchemy.exc import ArgumentError

from sendoff.errors import SettingsError
from sendoff_airflow.errors import TaskEndedError
from sendoff_airflow.hooks.connections import DIALECTS, database_url, extras, find_connection

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    from sendoff.warehouse import Cursors, Source

_WITHOUT_HOOK = {"generic", "email"}  # types without a hook


def warehouse_source(conn_id: str) -> Source:
    """Return the source that an audience query runs on: a URL, an engine, or the connections of a hook.

    It is a URL for ``postgres`` and ``sqlite``, and for each type in Sendoff's table of drivers, if the driver is
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
    from sendoff.warehouse import Fields, driver_of_type

    if connection.conn_type in DIALECTS:
        return database_url(connection)
    driver = driver_of_type(connection.conn_type)
    if driver is None or not driver.is_installed:
        return None
    fields = Fields(
        connection.host,
        connection.port,
        connection.login,
        connection.password,
        connection.schema,
        extras(connection),
    )
    url = driver.url_of(fields)
    return None if url is None else url.render_as_string(hide_password=False)


def end_query() -> None:
    """End the query that this task is reading, if there is one, by raising TaskEndedError.

    Airflow calls ``on_kill`` in the thread that waits for the rows, and kills the process five seconds later.
    """
    from sendoff.warehouse import is_reading

    if is_reading():
        raise TaskEndedError("Airflow ended the task while it was reading the warehouse. Retry the task.")


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
    from sendoff.warehouse import driver_of_type

    problem = f"connection {connection.conn_id}: type {connection.conn_type} cannot be queried ({why})"
    if connection.conn_type in _WITHOUT_HOOK:
        return (
            f"{problem}. Airflow stores a connection as generic if the provider of its database is not installed. "
            "Install the provider (for PostgreSQL apache-airflow-providers-postgres, which the extra 'airflow' "
            "includes), then set the connection's type, such as postgres"
        )
    driver = driver_of_type(connection.conn_type)
    if driver and not driver.is_installed:
        return f"{problem}, and Sendoff's driver of {driver.title} is not installed. {driver.remedy}"
    return f"{problem}. Install the Airflow provider of that database, or use a postgres or sqlite connection"
