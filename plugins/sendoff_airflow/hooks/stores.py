"""Where a deployment keeps what is not the service's: its ledger, its receiver, its warehouses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from sqlalchemy import URL, Engine
from sqlalchemy.exc import ArgumentError

from sendoff.errors import SendoffError, SettingsError
from sendoff.ledger import Ledger
from sendoff.service import Addresses
from sendoff.settings import load_settings
from sendoff_airflow import LEDGER, RECEIVER

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    from sendoff.warehouse import Cursors, Source

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
"""Extras of a ``postgres`` connection that are passed on to the database driver."""

_SNOWFLAKE_OPTIONS = {"warehouse", "role", "region", "authenticator", "private_key_file"}
_WITHOUT_HOOK = {"generic", "email"}  # types that Airflow knows by itself
_DIALECTS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg", "sqlite": "sqlite"}


class LedgerHook(BaseHook):
    """Open the ledger of this deployment.

    It is named by the connection ``sendoff_ledger`` (a database URL in the password, or any ``postgres`` or ``sqlite``
    connection), or by SENDOFF_LEDGER_URL where there is no such connection. Never by a default: to Airflow a connection
    that is missing and one that it could not look up are the same, and a second, empty ledger would not know what was
    sent.
    """

    conn_name_attr = "ledger_conn_id"
    default_conn_name = LEDGER
    conn_type = "sendoff_ledger"
    hook_name = "Sendoff ledger"

    def __init__(self, ledger_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.ledger_conn_id = ledger_conn_id

    def get_conn(self) -> Ledger:
        """Give the ledger; nothing is opened before its first use. Raises SettingsError."""
        return Ledger(self.url())

    def url(self) -> str:
        """Give the SQLAlchemy URL of the ledger, password included."""
        if connection := find_connection(self.ledger_conn_id):
            if connection.conn_type != self.conn_type:
                return database_url(connection)
            if connection.password:
                return connection.password
            raise SettingsError(
                f"connection {self.ledger_conn_id}: the database URL (password field) is empty"
            )
        settings = load_settings()
        if settings.ledger_url is None:
            raise SettingsError(
                f"there is no ledger: add the connection {self.ledger_conn_id}, or set SENDOFF_LEDGER_URL"
            )
        return settings.ledger_url

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the ledger can be written; nothing is stored."""
        try:
            ledger = self.get_conn()
            try:
                ledger.ping()
            finally:
                ledger.close()
        except SendoffError as error:
            return False, str(error)
        return True, "The ledger can be read and written."


class ReceiverHook(BaseHook):
    """Know the public address of the receiver and the secrets that sign post-back addresses.

    They are the host and the password of the connection ``sendoff_receiver``, or SENDOFF_PUBLIC_URL and
    SENDOFF_POST_BACK_SECRETS where there is no such connection. The receiver itself runs outside of Airflow and
    reads the settings.
    """

    conn_name_attr = "receiver_conn_id"
    default_conn_name = RECEIVER
    conn_type = "sendoff_receiver"
    hook_name = "Sendoff post-back receiver"

    def __init__(self, receiver_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.receiver_conn_id = receiver_conn_id

    def get_conn(self) -> Addresses:
        """Give what signs the addresses of post-backs. Raises SettingsError."""
        connection = find_connection(self.receiver_conn_id)
        if connection is None:
            try:
                return Addresses.from_settings(load_settings())
            except SettingsError as error:
                raise SettingsError(f"there is no connection {self.receiver_conn_id}, and {error}") from None
        secrets = [part.strip() for part in (connection.password or "").split(",") if part.strip()]
        if not connection.host or not secrets:
            missing = "public URL (host field)" if not connection.host else "secret (password field)"
            raise SettingsError(f"connection {self.receiver_conn_id}: the {missing} is empty")
        return Addresses(connection.host.rstrip("/"), secrets)

    def test_connection(self) -> tuple[bool, str]:
        """Say whether addresses can be signed; nothing is called."""
        try:
            addresses = self.get_conn()
        except SendoffError as error:
            return False, str(error)
        return True, f"Post-backs will be asked for at {addresses.public_url}; nothing was called."


def ledger(conn_id: str = LEDGER) -> Ledger:
    """Give the ledger of this deployment."""
    return LedgerHook(conn_id).get_conn()


def addresses(conn_id: str = RECEIVER) -> Addresses:
    """Give what signs the post-back addresses of this deployment."""
    return ReceiverHook(conn_id).get_conn()


def warehouse(conn_id: str) -> Source:
    """Give what an audience query runs on: a URL where Sendoff reads a database by itself, else what its hook gives.

    A URL stands for ``postgres`` and ``sqlite``, for ``duckdb`` with a file and for ``snowflake`` where its own driver
    is installed and knows every extra of the connection. The connection type's own hook gives an engine for the rest,
    or, where SQLAlchemy has no dialect for it, its connections: whatever Airflow can query is a warehouse.
    """
    from sendoff.warehouse import adbc_driver

    connection = find_connection(conn_id)
    if connection is None:
        raise SettingsError(
            f"there is no connection {conn_id}, which is named as a warehouse; add it in Airflow"
        )
    if connection.conn_type in _DIALECTS:
        return database_url(connection)
    if connection.conn_type == "duckdb" and connection.host and not extras(connection):
        return f"duckdb:///{connection.host}"
    if connection.conn_type == "snowflake" and adbc_driver("snowflake"):
        return _snowflake_url(connection) or _from_hook(connection)
    return _from_hook(connection)


def _snowflake_url(connection: Connection) -> str | None:
    """Give the URL of a ``snowflake`` connection, password included; None where it says what the URL cannot."""
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
    """Return the hook of a connection's type. Raise SettingsError if the type has none, or one without SQL."""
    from airflow.providers.common.sql.hooks.sql import DbApiHook

    try:
        hook = connection.get_hook()  # type: ignore[no-untyped-call]
    except (
        AirflowException,
        AttributeError,
        ImportError,
    ):  # AttributeError: "generic" and "email" name no hook
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
            "brings), then set the connection's type, such as postgres"
        )
    return f"{problem}. Install the Airflow provider of that database, or use a postgres or sqlite connection"


def database_url(connection: Connection) -> str:
    """Give the SQLAlchemy URL of a ``postgres`` or ``sqlite`` connection, password included."""
    dialect = _DIALECTS.get(connection.conn_type or "")
    if dialect is None:
        known = ", ".join(sorted({*_DIALECTS, LedgerHook.conn_type}))
        raise SettingsError(
            f"connection {connection.conn_id}: type {connection.conn_type} is none of {known}. Set its type to "
            f"{LedgerHook.hook_name} ({LedgerHook.conn_type}), with the database URL in the password field"
        )
    if dialect == "sqlite":
        return _sqlite_url(connection)
    if not connection.host:
        raise SettingsError(f"connection {connection.conn_id}: the host is empty")
    options = extras(connection)
    return URL.create(
        dialect,
        username=connection.login,
        password=connection.password,
        host=connection.host,
        port=connection.port,
        database=connection.schema,
        query={name: str(options[name]) for name in POSTGRES_OPTIONS if options.get(name) is not None},
    ).render_as_string(hide_password=False)


def _sqlite_url(connection: Connection) -> str:
    # sqlite:////data/w.db comes apart with the path in the schema; a form, or JSON, has it in the host.
    path = connection.host or connection.schema
    if not path:
        raise SettingsError(
            f"connection {connection.conn_id}: the path of the database (host field) is empty"
        )
    return f"sqlite:///{path}"


def find_connection(conn_id: str) -> Connection | None:
    """Look a connection up, or give None where Airflow knows none of that name."""
    try:
        connection: Connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None
    return connection


def extras(connection: Connection) -> dict[str, Any]:
    """Give the extras of a connection; raises SettingsError where they are no JSON object."""
    try:
        values = json.loads(connection.extra or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise SettingsError(f"connection {connection.conn_id}: the extra fields are not a JSON object")
    connection.extra_dejson  # noqa: B018  # has Airflow hide the secret ones in logs
    return values
