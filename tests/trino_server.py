"""A small server that speaks Trino's REST protocol. DuckDB runs its queries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, ClassVar

_PAGE = 1_000  # rows
_TYPES = {
    "BIGINT": "bigint",
    "INTEGER": "integer",
    "VARCHAR": "varchar",
    "BOOLEAN": "boolean",
    "DOUBLE": "double",
}
_RAISED = "Invalid Input Error: "  # DuckDB says so before the words of its function error


class _Query:
    def __init__(self, sql: str) -> None:
        import duckdb

        self.sql = sql
        self.state = "RUNNING"
        self._rows: Any = None
        self._database = duckdb.connect()
        self._database.execute("SET TimeZone = 'UTC'")

    def page(self) -> dict[str, Any]:
        """Return the next rows. A query with the words "a slow one" has none until it is cancelled."""
        import duckdb

        if "a slow one" in self.sql:
            return {}
        try:
            if self._rows is None:
                self._rows = self._database.execute(self.sql)
            rows = self._rows.fetchmany(_PAGE)
        except duckdb.Error as error:
            self.state = "FAILED"
            said = str(error).splitlines()[0]
            problem = {"message": said.removeprefix(_RAISED), "errorType": "USER_ERROR", "errorCode": 1}
            name = {"errorName": "GENERIC_USER_ERROR"} if said.startswith(_RAISED) else {}
            return {"error": problem | name}
        columns = []
        for name, type_, *_ in self._rows.description:
            known = _TYPES.get(str(type_), "varchar")
            arguments = [{"kind": "LONG", "value": 2_147_483_647}] if known == "varchar" else []
            signature = {"rawType": known, "arguments": arguments}
            columns.append({"name": name, "type": known, "typeSignature": signature})
        if not rows:
            self.state = "FINISHED"
        return {"columns": columns, "data": rows} if rows else {"columns": columns}


class Trino(BaseHTTPRequestHandler):
    """The coordinator. ``queries`` has each query by its ID, and ``headers_seen`` what the last client said."""

    protocol_version = "HTTP/1.1"
    queries: ClassVar[dict[str, _Query]] = {}
    headers_seen: ClassVar[dict[str, str]] = {}
    _ids: ClassVar[Iterator[int]] = count(1)

    def do_POST(self) -> None:
        sql = self.rfile.read(int(self.headers["Content-Length"])).decode()
        type(self).headers_seen = {name.lower(): value for name, value in self.headers.items()}
        query_id = f"q{next(self._ids)}"
        self.queries[query_id] = _Query(sql)
        self._answer(query_id, {}, 0)

    def do_GET(self) -> None:
        query_id, token = self.path.rsplit("/", 2)[1:]
        query = self.queries[query_id]
        threading.Event().wait(0.01 if "a slow one" not in query.sql else 0.2)
        self._answer(query_id, query.page(), int(token))

    def do_DELETE(self) -> None:
        query_id = self.path.rsplit("/", 2)[1]
        self.queries[query_id].state = "CANCELLED"
        self.send_response(204)
        self.end_headers()

    def log_message(self, *what: object) -> None:
        pass

    def _answer(self, query_id: str, page: dict[str, Any], token: int) -> None:
        state = self.queries[query_id].state
        where = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
        body = {"id": query_id, "infoUri": f"{where}/ui", "stats": {"state": state}, **page}
        if state == "RUNNING":
            body["nextUri"] = f"{where}/v1/statement/executing/{query_id}/{token + 1}"
        data = json.dumps(body, default=str).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def trino_server() -> Iterator[str]:
    """Run the server in a thread, and yield its URL."""
    Trino.queries.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Trino) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        yield f"trino://ann@127.0.0.1:{server.server_port}/sales/public"
        server.shutdown()
