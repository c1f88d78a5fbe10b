"""Read Databricks as Arrow through its Python connector."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

import pyarrow as pa
import requests
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import attempt, open_connection
from sendoff.warehouse.query import Query, without_signatures
from sendoff.warehouse.rows import with_whole_numbers
from sendoff.warehouse.urls import CONNECT_SECONDS, Fields, check_options, json_option, probe

OPTIONS = ("http_path", "session_configuration", "ca_file")
"""The options of the connector that a URL may have."""

EXTRAS = ("http_path", "token", "host", "catalog", "session_configuration", "service_principal_oauth")
"""The extras of a ``databricks`` connection in Airflow that a URL can hold."""

_TOKEN = "token"  # noqa: S105 # the user of a URL whose password is a token
_PORT = 443
_BYTES_AT_ONCE = 16 << 20
_FILES_AHEAD = 4  # each has some 20 MB, and the connector's default is 10
_POLLS = (0.05, 2.0)  # seconds between two questions whether the query has ended: at first, and at most
_RENEW_SECONDS = 300  # before a token expires

# They log the signed URLs of files with rows.
_DOWNLOADERS = ("databricks.sql.cloudfetch.downloader", "databricks.sql.common.unified_http_client")


class _WithoutSignatures(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_signatures(record.getMessage()), ()
        return True


_FILTER = _WithoutSignatures()


def connect(query: Query, stack: ExitStack) -> Any:
    """Open a session, and return its cursor."""
    library: Any = attempt(lambda: importlib.import_module("databricks.sql"), query)
    options = client_options(query.url)
    for name in _DOWNLOADERS:
        logging.getLogger(name).addFilter(_FILTER)

    def open_session() -> Any:
        probe(query.url)
        return library.connect(**options, **_authentication(query.url))

    # Exception is the only base class of all errors of the connector.
    connection = stack.enter_context(closing(open_connection(open_session, query, Exception)))
    cursor = connection.cursor(arraysize=query.batch_rows, buffer_size_bytes=_BYTES_AT_ONCE)
    return stack.enter_context(closing(cursor))


def batches(cursor: Any, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query in UTC, and yield its rows part by part. Only the user's rights prevent it from writing."""
    sql, values = query.with_places("?")

    def execute() -> None:
        cursor.execute("SET TIME ZONE 'UTC'")
        # So that the query has an ID, and can be ended, before it returns anything.
        cursor.execute_async(sql, list(values) or None)
        pause, longest = _POLLS
        while cursor.is_query_pending():
            time.sleep(pause)
            pause = min(2 * pause, longest)
        cursor.get_async_execution_result()

    def fetch() -> pa.Table:
        return attempt(lambda: cursor.fetchmany_arrow(query.batch_rows), query, Exception)

    attempt(execute, query, Exception)
    table = fetch()
    yield from _batches_of(table) or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    while table.num_rows:
        table = fetch()
        yield from _batches_of(table)


def _batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    return [with_whole_numbers(batch) for batch in table.to_batches() if batch.num_rows]


def cancel(cursor: Any) -> None:
    """End the query on the server."""
    if cursor.active_command_id is not None:
        with suppress(Exception):
            cursor.cancel()


def client_options(url: sa.URL) -> dict[str, Any]:
    """Return the connector's options for ``databricks://token:…@host/catalog/schema?http_path=…``.

    Raise QueryError for a URL without a host or a path, or with an unknown parameter.
    """
    check_options(url, "Databricks", OPTIONS)
    given = {name: str(value) for name, value in url.query.items()}
    if not url.host or not url.password or not given.get("http_path"):
        raise QueryError(
            "the URL of Databricks needs a host, a token and http_path; write "
            "databricks://token:TOKEN@host/catalog?http_path=/sql/1.0/warehouses/ID"
        )
    catalog, _, schema = (url.database or "").partition("/")
    return {
        "server_hostname": url.host,
        "_port": url.port or _PORT,
        "http_path": given["http_path"],
        "catalog": catalog or None,
        "schema": schema or None,
        "session_configuration": json_option(url, "Databricks", "session_configuration"),
        "_tls_trusted_ca_file": given.get("ca_file"),
        "user_agent_entry": "sendoff",
        "max_download_threads": _FILES_AHEAD,
        "enable_telemetry": False,  # the connector must not report on this machine
    }


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a ``databricks`` connection in Airflow, or None if a URL cannot hold all its fields."""
    extra = fields.filled_in
    host = str(extra.get("host") or fields.host or "").removeprefix("https://").rstrip("/")
    user, secret = (fields.login or _TOKEN), extra.get("token") or fields.password
    if extra.get("service_principal_oauth") is True and fields.login:
        secret = fields.password
    elif fields.login and "token" not in extra:
        return None  # the hook names the mistake
    else:
        user = _TOKEN
    if not host or not secret or "http_path" not in extra or not extra.keys() <= set(EXTRAS):
        return None
    options = {name: extra[name] for name in OPTIONS if name in extra}
    database = fields.within(extra.get("catalog"))
    return fields.url("databricks", options, username=user, password=secret, host=host, database=database)


def _authentication(url: sa.URL) -> dict[str, Any]:
    """Return a token, or what requests tokens with the ID and secret of a service principal."""
    if url.username in (None, _TOKEN):
        return {"access_token": str(url.password)}
    return {"credentials_provider": lambda: _Tokens(url).headers}


class _Tokens:
    """Tokens of a service principal (OAuth M2M), requested again before they expire."""

    def __init__(self, url: sa.URL) -> None:
        self._url = url
        self._token = ""
        self._until = 0.0

    def headers(self) -> Mapping[str, str]:
        if time.monotonic() > self._until:
            self._request()
        return {"Authorization": f"Bearer {self._token}"}

    def _request(self) -> None:
        url = self._url
        answer = requests.post(
            f"https://{url.host}:{url.port or _PORT}/oidc/v1/token",
            data={"grant_type": "client_credentials", "scope": "all-apis"},
            auth=(str(url.username), str(url.password)),
            timeout=CONNECT_SECONDS,
            verify=str(url.query.get("ca_file", "")) or True,
        )
        if not answer.ok:
            raise QueryError(f"the login of the service principal was refused ({answer.status_code})")
        found = answer.json()
        self._token = str(found["access_token"])
        self._until = time.monotonic() + max(int(found["expires_in"]) - _RENEW_SECONDS, 0)
