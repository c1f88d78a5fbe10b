"""A small server that speaks BigQuery's REST interface and its Storage API. DuckDB runs its queries."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa

_SERVICE = "google.cloud.bigquery.storage.v1.BigQueryRead"
_TYPES = {pa.int64(): "INTEGER", pa.int32(): "INTEGER", pa.string(): "STRING", pa.float64(): "FLOAT"}
_PAGE = 10_000  # rows of one answer of the Storage API
_COMMENT = re.compile(r"#[^\n]*")
_TEXT = re.compile(r"'''.*?'''", re.DOTALL)
_CASTS = {"INT64": "BIGINT", "STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}
_RAISED = "Invalid Input Error: "  # DuckDB says so before the words of its function error


class _Job:
    """A query. One with the words "a slow one" runs until it is cancelled."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        import duckdb

        self.id = str(uuid4())
        self.configuration = configuration
        self.sql: str = configuration["query"]["query"]
        self.values = [
            each["parameterValue"].get("value") for each in configuration["query"].get("queryParameters", [])
        ]
        self.state = "RUNNING" if "a slow one" in self.sql else "DONE"
        self.problem: dict[str, str] | None = None
        self.kind = "SCRIPT"
        self.table: pa.Table | None = None
        self.database = duckdb.connect()
        self.database.execute("SET TimeZone = 'UTC'")
        sql = _COMMENT.sub("", _TEXT.sub("''", self.sql))  # DuckDB does not have these kinds
        for each in configuration["query"].get("queryParameters", []):
            sql = sql.replace("?", f"CAST($ AS {_CASTS[each['parameterType']['type']]})", 1)
        sql = sql.replace("$", "?")
        try:
            if len(statements := duckdb.extract_statements(sql)) == 1:
                self.kind = statements[0].type.name
            if self.kind == "SELECT" and configuration.get("dryRun"):
                self.database.execute(f"EXPLAIN {sql}", self.values)
            elif self.kind == "SELECT" and self.state == "DONE":
                self.table = self.database.sql(sql, params=self.values).to_arrow_table()
        except duckdb.Error as error:
            said = str(error).splitlines()[0].removeprefix(_RAISED)
            message = f"Query error: {said} at [1:1]"
            self.problem = {"reason": "invalidQuery", "message": message}
        if not configuration["query"].get("maximumBytesBilled", "0").isdecimal():
            self.problem = {
                "reason": "invalid",
                "message": "Invalid value at maximum_bytes_billed (TYPE_INT64)",
            }

    def cancel(self) -> None:
        self.state = "DONE"
        self.problem = {"reason": "stopped", "message": "Job execution was cancelled: User requested it"}

    def resource(self) -> dict[str, Any]:
        status: dict[str, Any] = {"state": self.state}
        if self.problem:
            status |= {"errorResult": self.problem, "errors": [self.problem]}
        query = {**self.configuration["query"]}
        query["destinationTable"] = {"projectId": "shop", "datasetId": "_hidden", "tableId": self.id}
        return {
            "kind": "bigquery#job",
            "id": f"shop:EU.{self.id}",
            "jobReference": {"projectId": "shop", "jobId": self.id, "location": "EU"},
            "configuration": {**self.configuration, "jobType": "QUERY", "query": query},
            "status": status,
            "statistics": {"query": {"statementType": self.kind}},
        }


class BigQuery:
    """The warehouse. ``jobs`` has every job in its order, ``planned`` the dry runs."""

    def __init__(self) -> None:
        self.jobs: list[_Job] = []
        self.planned: list[_Job] = []
        self.sent = 0  # rows
        self.logins: list[str] = []

    def job(self, job_id: str) -> _Job:
        return next(each for each in self.jobs if each.id == job_id)

    # The Storage API

    def create_read_session(self, request: Any, _: Any) -> Any:
        from google.cloud.bigquery_storage_v1 import types

        name = request.read_session.table.rpartition("/")[2]
        table = self.job(name).table
        assert table is not None
        schema = table.schema.serialize().to_pybytes()
        return types.ReadSession(
            name=f"sessions/{name}",
            arrow_schema=types.ArrowSchema(serialized_schema=schema),
            streams=[types.ReadStream(name=f"streams/{name}")] if table.num_rows else [],
        )

    def read_rows(self, request: Any, _: Any) -> Iterator[Any]:
        from google.cloud.bigquery_storage_v1 import types

        table = self.job(request.read_stream.rpartition("/")[2]).table
        assert table is not None
        schema = types.ArrowSchema(serialized_schema=table.schema.serialize().to_pybytes())
        for batch in table.to_batches(_PAGE):
            self.sent += batch.num_rows
            data = types.ArrowRecordBatch(serialized_record_batch=batch.serialize().to_pybytes())
            yield types.ReadRowsResponse(
                arrow_record_batch=data, row_count=batch.num_rows, arrow_schema=schema
            )


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    warehouse: ClassVar[BigQuery]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[-1] == "token":
            self.warehouse.logins.append(body.decode())
            self._answer(200, {"access_token": "t", "expires_in": 3_600, "token_type": "Bearer"})
        elif parts[-1] == "cancel":
            job = self.warehouse.job(parts[-2])
            job.cancel()
            self._answer(200, {"job": job.resource()})
        else:
            job = _Job(json.loads(body)["configuration"])
            is_dry = job.configuration.get("dryRun")
            (self.warehouse.planned if is_dry else self.warehouse.jobs).append(job)
            self._answer_job(job, job.resource()) if is_dry else self._answer(200, job.resource())

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        job = self.warehouse.job(parts[-1])
        if parts[-2] == "jobs":
            self._answer(200, job.resource())
            return
        if job.state == "RUNNING":
            threading.Event().wait(0.1)
        body: dict[str, Any] = {
            "jobComplete": job.state == "DONE",
            "jobReference": job.resource()["jobReference"],
        }
        if job.table is not None:
            fields = [{"name": field.name, "type": _TYPES[field.type]} for field in job.table.schema]
            body |= {"schema": {"fields": fields}, "totalRows": str(job.table.num_rows)}
        self._answer_job(job, body)

    def _answer_job(self, job: _Job, body: dict[str, Any]) -> None:
        if job.problem:
            error = {"code": 400, "message": job.problem["message"], "errors": [job.problem]}
            self._answer(400, {"error": error})
        else:
            self._answer(200, body)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *what: object) -> None:
        pass


def _storage_handler(warehouse: BigQuery) -> Any:
    import grpc
    from google.cloud.bigquery_storage_v1 import types

    create = grpc.unary_unary_rpc_method_handler(
        warehouse.create_read_session,
        types.CreateReadSessionRequest.deserialize,
        types.ReadSession.serialize,
    )
    read = grpc.unary_stream_rpc_method_handler(
        warehouse.read_rows, types.ReadRowsRequest.deserialize, types.ReadRowsResponse.serialize
    )
    methods = {"CreateReadSession": create, "ReadRows": read}
    return grpc.method_handlers_generic_handler(_SERVICE, methods)


@contextmanager
def bigquery_server() -> Iterator[tuple[BigQuery, str]]:
    """Run the server in threads, and yield it with its URL."""
    import grpc

    warehouse = BigQuery()
    storage = grpc.server(ThreadPoolExecutor(8))
    storage.add_generic_rpc_handlers((_storage_handler(warehouse),))
    port = storage.add_insecure_port("127.0.0.1:0")
    storage.start()
    handler = type("Requests", (_Requests,), {"warehouse": warehouse})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        where = f"api_endpoint=http://127.0.0.1:{server.server_port}&storage_endpoint=http://127.0.0.1:{port}"
        yield warehouse, f"bigquery://shop/sales?location=EU&{where}"
        server.shutdown()
    storage.stop(None).wait()
