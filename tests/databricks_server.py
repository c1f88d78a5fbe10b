"""A small server that speaks Databricks' Thrift protocol over HTTPS. DuckDB runs its queries."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PATH = "/sql/1.0/warehouses/small"
TOKEN, SECRET = "dapi-7f3a", "secret-of-the-principal"
SIGNATURE = "?signature=s1gned"
_SQL_TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING", pa.float64(): "DOUBLE"}
_RAISED = "Invalid Input Error: "  # DuckDB says so before the words of its function error


class _Query:
    """A statement. One with the words "a slow one" runs until it is cancelled."""

    def __init__(self, sql: str, values: list[Any]) -> None:
        import duckdb

        self.sql = sql
        self.state = "RUNNING" if "a slow one" in sql else "FINISHED"
        self.problem = ""
        self.fetched = 0  # rows
        self.schema = pa.schema([])
        self._rows: Any = None
        self._rest: list[pa.RecordBatch] = []
        if self.state == "RUNNING" or sql.startswith("SET "):
            return
        try:
            database = duckdb.connect()
            database.execute("SET TimeZone = 'UTC'")
            self._rows = database.sql(sql, params=values).to_arrow_reader(10_000)
            self.schema = self._rows.schema
        except duckdb.Error as error:
            self.state, self.problem = "ERROR", str(error)
            if self.problem.startswith(_RAISED):
                said = self.problem.removeprefix(_RAISED)
                self.problem = f"[USER_RAISED_EXCEPTION] {said} SQLSTATE: P0001"

    def next_rows(self, count: int) -> list[pa.RecordBatch]:
        """Return up to this many rows."""
        batches = []
        while count > 0 and (batch := self._rest.pop() if self._rest else self._next()) is not None:
            batches.append(batch.slice(0, count))
            if batch.num_rows > count:
                self._rest.append(batch.slice(count))
            count -= batches[-1].num_rows
        self.fetched += sum(batch.num_rows for batch in batches)
        return batches

    def has_more(self) -> bool:
        if not self._rest and (batch := self._next()) is not None:
            self._rest.append(batch)
        return bool(self._rest)

    def _next(self) -> pa.RecordBatch | None:
        return next(self._rows, None) if self._rows else None


class Databricks:
    """The warehouse. ``queries`` has every statement in its order, and ``sessions`` what opened the sessions."""

    def __init__(self) -> None:
        self.queries: list[_Query] = []
        self.sessions: list[Any] = []
        self.values: list[Any] = []
        self.files: dict[str, bytes] = {}
        self.logins: list[str] = []
        self.reports: list[str] = []  # other requests, such as telemetry
        self.files_are_gone = False
        self.address = ""
        self._known: dict[bytes, _Query] = {}

    # The Thrift service

    def open_session(self, request: Any) -> Any:
        types = _types()
        self.sessions.append(request)
        return types.TOpenSessionResp(
            status=_fine(),
            serverProtocolVersion=types.TProtocolVersion.SPARK_CLI_SERVICE_PROTOCOL_V7,
            sessionHandle=types.TSessionHandle(sessionId=_new_id()),
            canUseMultipleCatalogs=True,
            initialNamespace=request.initialNamespace,
        )

    def close_session(self, _: Any) -> Any:
        return _types().TCloseSessionResp(status=_fine())

    def execute_statement(self, request: Any) -> Any:
        types = _types()
        values = [_value(each) for each in request.parameters or ()]
        self.values.extend(values)
        query, handle = _Query(request.statement, values), _new_id()
        self._known[handle.guid] = query
        self.queries.append(query)
        operation = types.TOperationHandle(handle, types.TOperationType.EXECUTE_STATEMENT, True)
        direct = None
        if request.getDirectResults and query.state != "RUNNING":
            direct = types.TSparkDirectResults(
                operationStatus=self._status(query), resultSetMetadata=self._metadata(query)
            )
        return types.TExecuteStatementResp(status=_fine(), operationHandle=operation, directResults=direct)

    def get_operation_status(self, request: Any) -> Any:
        threading.Event().wait(0.02)
        return self._status(self._query(request))

    def get_result_set_metadata(self, request: Any) -> Any:
        return self._metadata(self._query(request))

    def fetch_results(self, request: Any) -> Any:
        types = _types()
        query = self._query(request)
        rows = types.TRowSet(startRowOffset=query.fetched, rows=[])
        batches = query.next_rows(request.maxRows)
        if "in files" in query.sql:
            rows.resultLinks = [self._link(batch, rows.startRowOffset) for batch in batches[:1]]
            rows.resultLinks += [
                self._link(batch, rows.startRowOffset + sum(each.num_rows for each in batches[:place]))
                for place, batch in enumerate(batches)
                if place
            ]
        else:
            rows.arrowBatches = [
                types.TSparkArrowBatch(batch.serialize().to_pybytes(), batch.num_rows) for batch in batches
            ]
        return types.TFetchResultsResp(
            status=_fine(),
            hasMoreRows=query.has_more(),
            results=rows,
            resultSetMetadata=self._metadata(query),
        )

    def cancel_operation(self, request: Any) -> Any:
        self._query(request).state = "CANCELED"
        return _types().TCancelOperationResp(status=_fine())

    def close_operation(self, request: Any) -> Any:
        self._query(request).state = "CLOSED"
        return _types().TCloseOperationResp(status=_fine())

    def _query(self, request: Any) -> _Query:
        return self._known[request.operationHandle.operationId.guid]

    def _status(self, query: _Query) -> Any:
        types = _types()
        return types.TGetOperationStatusResp(
            status=_fine(),
            operationState=getattr(types.TOperationState, f"{query.state}_STATE"),
            errorMessage=query.problem or None,
            displayMessage=query.problem or None,
        )

    def _metadata(self, query: _Query) -> Any:
        types = _types()
        columns = []
        for place, field in enumerate(query.schema):
            kind = getattr(types.TTypeId, f"{_SQL_TYPES.get(field.type, 'STRING')}_TYPE")
            entry = types.TTypeEntry(primitiveEntry=types.TPrimitiveTypeEntry(kind))
            columns.append(types.TColumnDesc(field.name, types.TTypeDesc([entry]), place))
        formats = types.TSparkRowSetType
        return types.TGetResultSetMetadataResp(
            status=_fine(),
            schema=types.TTableSchema(columns),
            resultFormat=formats.URL_BASED_SET if "in files" in query.sql else formats.ARROW_BASED_SET,
            arrowSchema=query.schema.serialize().to_pybytes(),
            lz4Compressed=False,
        )

    def _link(self, batch: pa.RecordBatch, start: int) -> Any:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        name = f"/files/{uuid4()}{SIGNATURE}"
        self.files[name] = sink.getvalue().to_pybytes()
        until = int((datetime.now(UTC) + timedelta(minutes=5)).timestamp() * 1_000)
        where = f"https://{self.address}{name}"
        return _types().TSparkArrowResultLink(where, until, start, batch.num_rows, len(self.files[name]))


class _ByThriftName:
    """The warehouse with the names that Thrift gives its methods, such as ``OpenSession``."""

    def __init__(self, warehouse: Databricks) -> None:
        self._warehouse = warehouse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._warehouse, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    warehouse: ClassVar[Databricks]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = self.headers.get("Authorization", "")
        if self.path == "/oidc/v1/token":
            self.warehouse.logins.append(said)
            good = said == _basic("principal", SECRET)
            token = {"access_token": TOKEN, "expires_in": 3_600}
            self._answer(200 if good else 401, json.dumps(token if good else {}).encode())
        elif self.path != PATH:
            self.warehouse.reports.append(self.path)
            self._answer(404, b"")
        elif said != f"Bearer {TOKEN}":
            self._answer(403, b"", "Invalid access token.")
        else:
            self._answer(200, _thrift(self.warehouse, body))

    def do_GET(self) -> None:
        data = None if self.warehouse.files_are_gone else self.warehouse.files.get(self.path)
        if data is None:
            self.warehouse.reports.append(self.path)
        self._answer(404 if data is None else 200, data or b"")

    def log_message(self, *what: object) -> None:
        pass

    def _answer(self, status: int, data: bytes, reason: str = "") -> None:
        with suppress(OSError):
            self.send_response(status)
            if reason:
                self.send_header("x-databricks-reason-phrase", reason)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


def _thrift(warehouse: Databricks, body: bytes) -> bytes:
    from databricks.sql.thrift_api.TCLIService import TCLIService
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.transport.TTransport import TMemoryBuffer

    answer = TMemoryBuffer()
    TCLIService.Processor(_ByThriftName(warehouse)).process(
        TBinaryProtocol(TMemoryBuffer(body)), TBinaryProtocol(answer)
    )
    return bytes(answer.getvalue())


def _types() -> Any:
    from databricks.sql.thrift_api.TCLIService import ttypes

    return ttypes


def _fine() -> Any:
    types = _types()
    return types.TStatus(types.TStatusCode.SUCCESS_STATUS)


def _new_id() -> Any:
    return _types().THandleIdentifier(uuid4().bytes, uuid4().bytes)


def _value(parameter: Any) -> Any:
    text = parameter.value and parameter.value.stringValue
    if parameter.type in ("INT", "BIGINT"):
        return int(text)
    return datetime.fromisoformat(text) if parameter.type == "TIMESTAMP" else text


def _basic(user: str, password: str) -> str:
    import requests

    return str(requests.auth._basic_auth_str(user, password))


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "databricks.pem", folder / "databricks.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return files


@contextmanager
def databricks_server(folder: Path) -> Iterator[tuple[Databricks, str]]:
    """Run the server in a thread, and yield it with its URL. The folder gets its certificate."""
    certificate, key = _certificate(folder)
    warehouse = Databricks()
    handler = type("Requests", (_Requests,), {"warehouse": warehouse})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        warehouse.address = f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever).start()
        yield (
            warehouse,
            f"databricks://token:{TOKEN}@{warehouse.address}/sales/public?http_path={PATH}&ca_file={certificate}",
        )
        server.shutdown()
