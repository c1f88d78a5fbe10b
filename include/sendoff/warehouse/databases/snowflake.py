"""Read Snowflake through its ADBC driver."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import adbc_cursor, attempt, batches_of
from sendoff.warehouse.query import Query
from sendoff.warehouse.rows import with_whole_numbers
from sendoff.warehouse.urls import CONNECT_SECONDS, Fields, check_options

_SQL = "adbc.snowflake.sql."
_CLIENT = f"{_SQL}client_option."
_OPTIONS = {
    "warehouse": f"{_SQL}warehouse",
    "role": f"{_SQL}role",
    "region": f"{_SQL}region",
    "host": f"{_SQL}uri.host",
    "port": f"{_SQL}uri.port",
    "protocol": f"{_SQL}uri.protocol",
}
_AUTHENTICATORS = {
    "snowflake": "auth_snowflake",
    "snowflake_jwt": "auth_jwt",
    "programmatic_access_token": "auth_pat",
    "oauth": "auth_oauth",
}
CONNECTION_OPTIONS = {"warehouse", "role", "region", "authenticator", "private_key_file"}
"""The further extras of a ``snowflake`` connection in Airflow that a URL can hold."""

_ALLOWED = (*_OPTIONS, "authenticator", "private_key_file")
_BATCHES_AHEAD = "8"  # with the driver's default of 200, most results would be in memory as a whole


def connect(query: Query, stack: ExitStack) -> Any:
    """Open a connection and return its cursor."""
    options = driver_options(query.url)
    return adbc_cursor(query, lambda driver: driver.connect(db_kwargs=_with_key(options, query.url)), stack)


def batches(cursor: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query in UTC, without a commit; only a read-only role can prevent it from writing."""

    def execute() -> pa.RecordBatchReader:
        cursor.execute("ALTER SESSION SET TIMEZONE = 'UTC'")
        cursor.adbc_statement.set_options(**{"adbc.rpc.result_queue_size": _BATCHES_AHEAD})
        cursor.execute(query.with_literals())
        return cursor.fetch_record_batch()

    with attempt(execute, query) as reader:
        yield from map(with_whole_numbers, batches_of(reader, query))


def cancel(cursor: Any) -> None:
    """Interrupt what a cursor does in another thread."""
    cursor.adbc_cancel()


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a ``snowflake`` connection in Airflow, or None if a URL cannot hold all its fields."""
    options = {name: str(value) for name, value in fields.extra.items() if value}
    account, database = options.pop("account", None), options.pop("database", "")
    if not account or not options.keys() <= CONNECTION_OPTIONS:
        return None
    return fields.url("snowflake", options, host=account, port=None, database=fields.within(database))


def driver_options(url: sa.URL) -> dict[str, str]:
    """Return the driver's options for ``snowflake://user:password@account/database/schema?warehouse=…&role=…``.

    The password is a token if ``authenticator`` is ``programmatic_access_token`` or ``oauth``, and the password of the
    private key if it is ``snowflake_jwt``. Raise QueryError for a URL without an account, and for an unknown parameter
    or authenticator.
    """
    check_options(url, "Snowflake", _ALLOWED)
    given = {name: str(value) for name, value in url.query.items()}
    authenticator = given.get(
        "authenticator", "snowflake_jwt" if "private_key_file" in given else "snowflake"
    )
    if authenticator.lower() not in _AUTHENTICATORS:
        raise QueryError(
            f"the URL of Snowflake has authenticator {authenticator}. Use {', '.join(_AUTHENTICATORS)}"
        )
    if not url.host:
        raise QueryError("the URL of Snowflake has no account; write snowflake://user@account/database")
    way = _AUTHENTICATORS[authenticator.lower()]
    database, _, schema = (url.database or "").partition("/")
    options = {
        f"{_SQL}account": url.host,
        f"{_SQL}auth_type": way,
        "username": url.username,
        _password_option(way): url.password and str(url.password),
        f"{_SQL}db": database,
        f"{_SQL}schema": schema,
        **{_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS},
        f"{_CLIENT}use_high_precision": "false",  # otherwise NUMBER(38,0), its usual number, is not an integer
        f"{_CLIENT}login_timeout": f"{CONNECT_SECONDS}s",
        f"{_CLIENT}disable_telemetry": "true",  # the driver must not report on this machine
    }
    return {name: value for name, value in options.items() if value}


def _password_option(way: str) -> str:
    return {
        "auth_snowflake": "password",
        "auth_jwt": f"{_CLIENT}jwt_private_key_pkcs8_password",
    }.get(way, f"{_CLIENT}auth_token")


def _with_key(options: dict[str, str], url: sa.URL) -> dict[str, str]:
    file = url.query.get("private_key_file")
    if not file:
        return options
    return {**options, f"{_CLIENT}jwt_private_key_pkcs8_value": Path(str(file)).read_text(encoding="utf-8")}
