"""Read BigQuery as Arrow: a job runs the query, and the Storage API returns its rows."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import sqlalchemy as sa

from sendoff.errors import QueryError
from sendoff.warehouse.adbc import ProblemError, attempt, in_short, open_connection, system_error
from sendoff.warehouse.query import Parameter, Query
from sendoff.warehouse.urls import Fields, check_options, json_object, probe

OPTIONS = ("key_path", "location", "maximum_bytes_billed", "api_endpoint", "storage_endpoint")
"""The options that a URL may have."""

EXTRAS = ("project", "key_path", "keyfile_dict", "location")
"""The extras of a ``google_cloud_platform`` or ``gcpbigquery`` connection in Airflow that a URL can hold."""

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Extras that Airflow's form stores even if they are not filled in.
_USUAL = {"scope": _SCOPE, "is_anonymous": False, "use_legacy_sql": False}
_IGNORED = ("num_retries",)  # of the hook's own requests
_CANCEL_SECONDS = 5
_REFUSED = (401, 403)  # status of a request without the right to make it

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Connection:
    """The clients, and the job of the query that they run."""

    library: Any = field(repr=False)
    client: Any = field(repr=False)
    storage: Any = field(repr=False)
    job: Any = None


def connect(query: Query, stack: ExitStack) -> Connection:
    """Make the clients for ``bigquery://project/dataset?key_path=…&location=…``.

    They ask the server only when a query runs. Raise QueryError for an unknown parameter.
    """
    check_options(query.url, "BigQuery", OPTIONS)
    library: Any = attempt(lambda: importlib.import_module("google.cloud.bigquery"), query)
    endpoint = query.url.query.get("api_endpoint")

    def connection() -> Connection:
        probe(query.url)
        credentials, project = credentials_of(query.url)
        client = library.Client(
            project=query.url.host or project,
            credentials=credentials,
            location=query.url.query.get("location"),
            client_options={"api_endpoint": endpoint} if endpoint else None,
        )
        stack.callback(client.close)
        storage = _storage_client(query.url, credentials)
        stack.callback(storage.transport.close)
        return Connection(library, client, storage)

    return open_connection(lambda: _in_short(connection), query)


def batches(connection: Connection, query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Run a query, and yield its rows while they arrive.

    BigQuery first says what the query would do, which costs nothing. Anything but a SELECT is refused.
    """
    library, client = connection.library, connection.client
    sql, values = query.with_places("?")
    limit = query.url.query.get("maximum_bytes_billed")
    more: dict[str, Any] = {"maximum_bytes_billed": limit} if limit else {}
    if query.url.database:
        more["default_dataset"] = f"{client.project}.{query.url.database}"
    more["query_parameters"] = [
        library.ScalarQueryParameter(None, _type_of(value), value) for value in values
    ]

    def plan() -> str:
        return str(client.query(sql, library.QueryJobConfig(dry_run=True, **more)).statement_type)

    def execute() -> Any:
        connection.job = client.query(sql, library.QueryJobConfig(**more))
        connection.job.result()
        return _read_session(connection, client.project)

    if (kind := attempt(lambda: _in_short(plan), query)) != "SELECT":
        raise QueryError(f"found a statement of the type {kind}. Use a query, which only reads")
    session = attempt(lambda: _in_short(execute, reads=True), query)
    schema = pa.ipc.read_schema(pa.py_buffer(session.arrow_schema.serialized_schema))
    if not session.streams:  # no rows
        yield pa.RecordBatch.from_pylist([], schema=schema)
    pages = chain.from_iterable(connection.storage.read_rows(stream.name) for stream in session.streams)

    def next_page() -> Any:
        return _in_short(lambda: next(pages, None), reads=True)

    while (page := attempt(next_page, query)) is not None:
        if page.row_count:
            data = pa.py_buffer(page.arrow_record_batch.serialized_record_batch)
            yield pa.ipc.read_record_batch(data, schema)


def _read_session(connection: Connection, project: str) -> Any:
    """Return what reads the table of a job's result, in one stream."""
    types: Any = importlib.import_module("google.cloud.bigquery_storage_v1.types")
    codec = types.ArrowSerializationOptions.CompressionCodec.LZ4_FRAME
    serialization = types.ArrowSerializationOptions(buffer_compression=codec)
    wanted = types.ReadSession(
        table=connection.job.destination.to_bqstorage(),
        data_format=types.DataFormat.ARROW,
        read_options=types.ReadSession.TableReadOptions(arrow_serialization_options=serialization),
    )
    return connection.storage.create_read_session(
        parent=f"projects/{project}", read_session=wanted, max_stream_count=1
    )


def cancel(connection: Connection) -> None:
    """End the query on the server, and stop waiting for its rows."""
    with suppress(ProblemError):
        if connection.job is not None:
            _in_short(lambda: connection.job.cancel(retry=None, timeout=_CANCEL_SECONDS))
    connection.storage.transport.close()


def url_of(fields: Fields) -> sa.URL | None:
    """Return the URL of a connection of Google Cloud in Airflow, or None if a URL cannot hold all its extras.

    The URL's password is the key of ``keyfile_dict`` in Base64.
    """
    extra = {
        name.removeprefix("extra__google_cloud_platform__"): value for name, value in fields.extra.items()
    }
    extra = {
        name: value
        for name, value in extra.items()
        if value not in (None, "") and name not in _IGNORED and value != _USUAL.get(name)
    }
    key = json_object(extra.get("keyfile_dict", {}))
    if key is None or not extra.keys() <= set(EXTRAS):
        return None
    return fields.url(
        "bigquery",
        {name: extra[name] for name in ("key_path", "location") if name in extra},
        username="key" if key else None,  # without a user, a URL has no password
        password=base64.b64encode(json.dumps(key).encode()).decode() if key else None,
        host=extra.get("project") or key.get("project_id"),
        port=None,
    )


def credentials_of(url: sa.URL) -> tuple[Any, str | None]:
    """Return the credentials of a URL, and the project that they belong to."""
    if str(url.query.get("api_endpoint", "")).startswith("http:"):
        anonymous: Any = importlib.import_module("google.auth.credentials")
        # Nothing secret is sent to an emulator without encryption.
        return anonymous.AnonymousCredentials(), None
    library: Any = importlib.import_module("google.oauth2.service_account")
    path, key = url.query.get("key_path"), url.password
    if path:
        credentials = library.Credentials.from_service_account_file(str(path), scopes=[_SCOPE])
    elif key:
        info = json.loads(base64.b64decode(str(key)))
        credentials = library.Credentials.from_service_account_info(info, scopes=[_SCOPE])
    else:
        auth: Any = importlib.import_module("google.auth")
        credentials, project = auth.default(scopes=[_SCOPE])
        return credentials, project
    return credentials, credentials.project_id


def _storage_client(url: sa.URL, credentials: Any) -> Any:
    library: Any = importlib.import_module("google.cloud.bigquery_storage_v1")
    endpoint = str(url.query.get("storage_endpoint", ""))
    if not endpoint.startswith("http:"):
        options = {"api_endpoint": endpoint} if endpoint else None
        return library.BigQueryReadClient(credentials=credentials, client_options=options)
    grpc: Any = importlib.import_module("grpc")
    transport = library.BigQueryReadClient.get_transport_class("grpc")
    channel = grpc.insecure_channel(urlsplit(endpoint).netloc)
    return library.BigQueryReadClient(transport=transport(channel=channel))


def _type_of(value: Parameter) -> str:
    if isinstance(value, datetime):
        return "TIMESTAMP"
    return "INT64" if isinstance(value, int) else "STRING"


def _in_short(step: Callable[[], _Result], *, reads: bool = False) -> _Result:
    """Run a step of the clients. Raise its error in short.

    ``reads``: the step reads rows. Behind a colon, its errors may have a value, even without quotes.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    def short(error: Exception) -> str:
        problem = _short(error)
        if reads and getattr(error, "code", None) not in _REFUSED:
            return problem.removeprefix("Query error: ").partition(":")[0]
        return problem

    def is_of_function(error: Exception) -> bool:
        # The dry run finds the query's own mistakes. Limits and rights have other reasons.
        return reads and _details(error).get("reason") == "invalidQuery"

    # OSError: also those of requests
    return in_short(step, (GoogleAPIError, GoogleAuthError, OSError, ValueError), short, is_of_function)


def _short(error: BaseException) -> str:
    error = getattr(error, "cause", None) or error  # of requests that were repeated in vain
    if said := _details(error).get("message"):
        return str(said)
    return system_error(error) or str(getattr(error, "message", None) or error)


def _details(error: BaseException) -> dict[str, Any]:
    details = getattr(error, "errors", None)
    return details[0] if details and isinstance(details[0], dict) else {}
