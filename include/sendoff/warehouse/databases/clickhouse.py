"""Read ClickHouse as Arrow over HTTP, through the client library of ClickHouse."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa
import urllib3

from sendoff.warehouse.adbc import ProblemError, attempt, batches_of, in_short, open_connection, system_error
from sendoff.warehouse.query import Query
from sendoff.warehouse.rows import with_whole_numbers
from sendoff.warehouse.urls import CONNECT_SECONDS, Fields, json_object

OPTIONS = (
    "secure",
    "verify",
    "ca_cert",
    "client_cert",
    "client_cert_key",
    "connect_timeout",
    "send_receive_timeout",
    "compress",
    "client_name",
    "server_host_name",
    "http_proxy",
    "https_proxy",
)
"""The options of the client that a URL or a connection may have."""

_SETTING = "ch_"  # begins the name of a setting of the server, in a URL
_SETTINGS = {
    "readonly": "2",  # a query cannot write, but may have SETTINGS
    "session_timezone": "UTC",
    "output_format_arrow_string_as_string": "1",
}
_TEXT = re.compile(r"(?:LowCardinality\(|Nullable\()*(?:Enum8|Enum16|UUID|IPv4|IPv6)\b")
_TIME = re.compile(r"(?:LowCardinality\(|Nullable\()*DateTime\b")
_TYPES = "-types"  # ends the ID of the question for the columns' types
_CANCEL_SECONDS = 5
# Behind these words, the server repeats the query with its parameters, or explains what it did.
_SAID = re.compile(
    r"DB::Exception: (.*?)(?:(?<=\)): |[.:]? (?:in scope|while executing|maybe you meant|note: )|\. \((?-i:[A-Z_]+)\)|"
    r"\.? \(version |$)",
    re.DOTALL | re.IGNORECASE,
)
_TAG = "X-ClickHouse-Exception-Tag"  # a server of version 25.11 or later sends it
_MARK = b"__exception__\r\n"
_LONGEST = 64  # bytes of the mark and the tag

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Connection:
    """A client, and the query that it runs."""

    client: Any = field(repr=False)
    query_id: str = field(default_factory=lambda: str(uuid4()))
    answer: urllib3.HTTPResponse | None = None


def connect(query: Query, stack: ExitStack) -> Connection:
    """Open a connection. The server is asked for its version and its settings."""
    library: Any = attempt(lambda: importlib.import_module("clickhouse_connect"), query)
    client = open_connection(
        lambda: _in_short(lambda: library.get_client(**client_options(query.url))), query
    )
    stack.callback(client.close)
    return Connection(client)


def batches(connection: Connection, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query, and yield its rows while they arrive. The server ends it if the connection is closed."""
    client = connection.client
    wanted = {**_SETTINGS, "max_block_size": str(query.batch_rows)}
    changeable = {name for name, setting in client.server_settings.items() if not setting.readonly}
    settings = {name: wanted[name] for name in wanted.keys() & changeable - _own_settings(query.url).keys()}
    settings["query_id"] = connection.query_id
    sql = query.with_literals()

    def execute() -> urllib3.HTTPResponse:
        asked = {**settings, "query_id": f"{connection.query_id}{_TYPES}"}  # an ID may not run twice
        known = _with_known_types(sql, _types(client, sql, asked))
        answer: urllib3.HTTPResponse = client.raw_stream(known, settings=settings, fmt="ArrowStream")
        return answer

    answer = attempt(lambda: _in_short(execute), query)
    connection.answer = answer
    with closing(answer):
        source = pa.PythonFile(_Body(answer), mode="r")
        reader = attempt(lambda: pa.ipc.open_stream(source), query)
        for batch in map(with_whole_numbers, batches_of(reader, query)):
            # A block of the server may be larger than asked, for example the one of a small table.
            for start in range(0, max(batch.num_rows, 1), query.batch_rows):
                yield batch.slice(start, query.batch_rows)


def cancel(connection: Connection) -> None:
    """End the query on the server, and stop waiting for its answer."""
    connection.client.timeout = urllib3.Timeout(connect=_CANCEL_SECONDS, read=_CANCEL_SECONDS)
    with suppress(ProblemError):
        ids = f"'{connection.query_id}', '{connection.query_id}{_TYPES}'"
        _in_short(lambda: connection.client.command(f"KILL QUERY WHERE query_id IN ({ids}) ASYNC"))
    if connection.answer is not None:
        with suppress(OSError, ValueError, RuntimeError):  # it may have ended meanwhile
            connection.answer.shutdown()


def client_options(url: sa.URL) -> dict[str, Any]:
    """Return the client's options for ``clickhouse://user:password@host:8123/database?secure=true&…``.

    A parameter that is none of the client's options is a setting of the server, such as ``max_execution_time``. It may
    begin with ``ch_``, if the client has an option of the same name.
    """
    return {
        "connect_timeout": CONNECT_SECONDS,
        "client_name": "sendoff",
        **{name: str(value) for name, value in url.query.items() if name in OPTIONS},
        "host": url.host,
        "port": url.port,
        "username": url.username,
        "password": str(url.password or ""),
        "database": url.database,
        "settings": _own_settings(url),
        "autogenerate_session_id": False,  # in a session, a query could not be ended while it runs
        "dedicated_pool": True,  # so that closing the client closes its connections
    }


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a ``clickhouse`` connection in Airflow, or None if a URL cannot hold all its extras."""
    extra = fields.filled_in
    settings, further = (json_object(extra.pop(name, {})) for name in ("session_settings", "client_kwargs"))
    if settings is None or further is None:
        return None
    options = {**further, **extra}
    if not options.keys() <= set(OPTIONS):
        return None
    for name, value in settings.items():
        # The server reads the texts of a mapping or list in single quotes, as Python writes them.
        options[f"{_SETTING}{name}"] = value if isinstance(value, bool) else str(value)
    return fields.url("clickhouse", options, host=fields.host or "localhost")


def _types(client: Any, sql: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the types of a query's columns by name, or nothing if it has a mistake, which shows when it runs."""
    from clickhouse_connect.driver.exceptions import DatabaseError

    try:
        rows = client.raw_query(f"DESCRIBE TABLE ({sql})", settings=settings, fmt="JSONCompactEachRow")
    except DatabaseError:
        return {}
    return {name: type_ for name, type_, *_ in map(json.loads, rows.splitlines())}


def _with_known_types(sql: str, types: Mapping[str, str]) -> str:
    """Return the query with text or times for the columns that Arrow would only have as numbers."""
    converted = []
    for name, type_ in types.items():
        quoted = f"`{name.replace(chr(92), chr(92) * 2).replace('`', chr(92) + '`')}`"
        if _TEXT.match(type_):
            converted.append(f"toString({quoted}) AS {quoted}")
        elif _TIME.match(type_):
            converted.append(f"toDateTime64({quoted}, 0) AS {quoted}")
    return f"SELECT * REPLACE ({', '.join(converted)}) FROM ({sql})" if converted else sql  # noqa: S608


def _own_settings(url: sa.URL) -> dict[str, str]:
    return {
        name.removeprefix(_SETTING): str(value) for name, value in url.query.items() if name not in OPTIONS
    }


def _in_short(step: Callable[[], _Result]) -> _Result:
    """Run a step of the client. Raise its error in short: the original repeats the query with its parameters."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    return in_short(step, (ClickHouseError, urllib3.exceptions.HTTPError, OSError), _short)


def _short(error: BaseException) -> str:
    if said := _SAID.search(str(error)):
        return said[1]
    if problem := system_error(error):
        return problem
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return "the connection was closed before the last row"
    return str(error)


class _Body:
    """The body of an answer, as a file. The server writes an error behind the rows that it sent before."""

    closed = False

    def __init__(self, answer: urllib3.HTTPResponse) -> None:
        self._answer = answer
        self._mark = _MARK + str(answer.headers.get(_TAG, "")).encode()
        self._last = b""

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``. Raise the server's error, if it comes instead of rows."""
        problem: BaseException | None = None
        try:
            data = self._answer.read(size)
        except urllib3.exceptions.HTTPError as error:
            # The server ends an answer with an error like a broken one.
            problem, data = error, _received(error)
        seen = self._last + data
        if (at := seen.find(self._mark)) >= 0 and (said := _SAID.search(seen[at:].decode(errors="replace"))):
            raise ProblemError(said[1])
        if problem is not None:
            raise ProblemError(_short(problem))
        self._last = seen[-_LONGEST:]
        return data


def _received(error: urllib3.exceptions.HTTPError) -> bytes:
    received = getattr(error.args[-1], "partial", b"") if error.args else b""
    return received if isinstance(received, bytes) else b""
