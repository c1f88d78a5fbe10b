"""Read Trino through its Python client, page by page, with a Python object for each value."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import requests
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import ProblemError, attempt, in_short, open_connection, system_error
from sendoff.warehouse.query import NO_ROWS, Query
from sendoff.warehouse.rows import batches_of_rows
from sendoff.warehouse.urls import CONNECT_SECONDS, Fields, check_options, json_option

OPTIONS = ("http_scheme", "verify", "source", "client_tags", "session_properties")
"""The options of the client that a URL may have."""

_EXTRAS = {"protocol": "http_scheme", **{name: name for name in OPTIONS[1:]}}
_DEFAULT_CATALOG = "hive"  # of Airflow's hook
_ANSWER_SECONDS = 60  # the server answers within a second, also while the query runs

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Connection:
    """A connection, and the cursor of the query that it runs."""

    opened: Any = field(repr=False)
    cursor: Any = None


def connect(query: Query, stack: ExitStack) -> Connection:
    """Open a connection. The client asks the server only when a query runs."""
    library: Any = attempt(lambda: importlib.import_module("trino.dbapi"), query)
    options = {**client_options(query.url), "auth": _authentication(query.url)}
    opened = attempt(lambda: _in_short(lambda: library.connect(**options)), query)
    return Connection(stack.enter_context(closing(opened)))


def batches(connection: Connection, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query in UTC, and yield its rows page by page. Only the user's rights prevent it from writing."""
    sql = query.with_literals()
    cursor = connection.cursor = connection.opened.cursor()

    def execute() -> Any:
        cursor.execute(sql)
        return cursor.description

    try:
        description = open_connection(lambda: _in_short(execute), query)
        if not description:
            raise QueryError(NO_ROWS)
        yield from batches_of_rows(
            [column[0] for column in description],
            lambda: attempt(lambda: _in_short(lambda: cursor.fetchmany(query.batch_rows)), query),
        )
    finally:
        cancel(connection)


def cancel(connection: Connection) -> None:
    """End the query on the server."""
    if connection.cursor is not None:
        with suppress(ProblemError):
            _in_short(connection.cursor.cancel)


def client_options(url: sa.URL) -> dict[str, Any]:
    """Return the client's options for ``trino://user:password@host:8443/catalog/schema?source=…``.

    With a password, the client uses HTTPS. Raise QueryError for a URL without a host, or with an unknown parameter.
    """
    check_options(url, "Trino", OPTIONS)
    if not url.host:
        raise QueryError("the URL of Trino has no host; write trino://user@host:8080/catalog")
    catalog, _, schema = (url.database or "").partition("/")
    given = {name: str(value) for name, value in url.query.items()}
    tags = given.pop("client_tags", "")
    return {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "catalog": catalog or None,
        "schema": schema or None,
        "http_scheme": "https" if url.password else None,
        "source": "sendoff",
        "timezone": "UTC",
        "encoding": None,  # rows come in the answers themselves, in pages that the server limits
        "request_timeout": (CONNECT_SECONDS, _ANSWER_SECONDS),
        **given,
        "client_tags": tags.split(",") if tags else None,
        "session_properties": json_option(url, "Trino", "session_properties"),
        "verify": _verification(given.get("verify", "true")),
    }


def _authentication(url: sa.URL) -> Any:
    auth: Any = importlib.import_module("trino.auth")
    return auth.BasicAuthentication(url.username, str(url.password)) if url.password else None


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a ``trino`` connection in Airflow, or None if a URL cannot hold all its fields."""
    extra = fields.filled_in
    catalog = extra.pop("catalog", _DEFAULT_CATALOG)
    if not fields.host or not extra.keys() <= _EXTRAS.keys():
        return None
    if fields.password and extra.get("protocol", "http") == "http":
        return None  # the hook names the mistake
    options = {_EXTRAS[name]: value for name, value in extra.items()}
    return fields.url("trino", options, database=fields.within(catalog))


def _verification(text: str) -> bool | str:
    """Return whether to verify the server's certificate, or the path of the authorities' certificates."""
    return {"true": True, "false": False}.get(text, text)


def _in_short(step: Callable[[], _Result]) -> _Result:
    """Run a step of the client. Raise its error in short."""
    from trino.exceptions import Error

    return in_short(step, (Error, requests.RequestException, ValueError), _short, _is_of_function)


def _is_of_function(error: Exception) -> bool:
    return getattr(error, "error_name", None) == "GENERIC_USER_ERROR"  # of the function fail


def _short(error: BaseException) -> str:
    message = getattr(error, "message", None)  # of an error that the server reports
    if isinstance(message, str):
        return message
    return system_error(error) or str(error)
