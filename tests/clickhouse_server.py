"""A server with ClickHouse's HTTP interface and ClickHouse's engine, which the package chdb-core-lite has in a process.

The engine parses and runs the queries, applies settings, writes Arrow, and ends queries. Written here, as the server of
ClickHouse does it, are: users, the answer's headers, errors behind rows, and the end of queries whose client is gone.
"""

from __future__ import annotations

import base64
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

PASSWORDS = {"ann": "pa55word", "reader": "pa55word"}
"""The users. ``reader`` may neither write nor change settings."""

_TAG = "abcdefghijklmnop"
_TRANSPORT = {"database", "query", "query_id", "session_id", "wait_end_of_query"}
_FORMAT = re.compile(r"\s+FORMAT\s+(\w+)\s*$")
_KILL = re.compile(r"KILL QUERY WHERE query_id IN \('([\w-]+)', .*\) ASYNC")
_CODE = re.compile(r"Code: (\d+)\. DB::Exception: .*", re.DOTALL)
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@contextmanager
def clickhouse_server() -> Iterator[int]:
    """Run the server in a process of its own, and yield its port."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = ""

    def do_GET(self) -> None:
        self._run("")

    def do_POST(self) -> None:
        self._run(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())

    def log_message(self, *what: object) -> None:
        pass

    def _run(self, body: str) -> None:
        import chdb

        given = dict(parse_qsl(urlsplit(self.path).query))
        sql = "\n".join(filter(None, (given.get("query"), body)))
        user = self._user()
        if user is None:
            who = base64.b64decode(self.headers.get("Authorization", "").rpartition(" ")[2]).decode()
            self._fail(
                f"Code: 516. DB::Exception: {who.partition(':')[0]}: Authentication failed. (AUTHENTICATION_FAILED)"
            )
            return
        with closing(chdb.connect(self.folder)) as engine:
            try:
                if user == "reader":
                    engine.query("SET readonly = 1")
                for name in sorted(given.keys() - _TRANSPORT, key=lambda name: name == "readonly"):
                    engine.query(f"SET {name} = '{given[name]}'")
                if database := given.get("database"):
                    engine.query(f"USE {database}")
                self._answer(engine, sql, given)
            except RuntimeError as error:
                self._fail(str(error))

    def _user(self) -> str | None:
        given = base64.b64decode(self.headers.get("Authorization", "").rpartition(" ")[2]).decode()
        name, _, password = given.partition(":")
        return name if PASSWORDS.get(name) == password else None

    def _answer(self, engine: Any, sql: str, given: dict[str, str]) -> None:
        asked = _FORMAT.search(sql)
        kind = asked[1] if asked else "TabSeparated"
        if found := _KILL.search(sql):
            sql = f"KILL QUERY WHERE endsWith(query, '/* {found[1]} */') ASYNC"
        elif asked:
            sql = sql[: asked.start()]
        if kind == "ArrowStream":
            self._stream(engine, sql, given)
            return
        self._begin(kind)
        self._chunk(engine.query(sql, kind).bytes())
        self._end()

    def _stream(self, engine: Any, sql: str, given: dict[str, str]) -> None:
        known = f"{sql}\n/* {given['query_id']} */"  # the engine gives queries IDs of its own
        is_over = threading.Event()
        if given.get("cancel_http_readonly_queries_on_client_close") == "1":
            threading.Thread(target=self._end_with_client, args=(given["query_id"], is_over)).start()
        chunks = iter(engine.send_query(known, "ArrowStream"))
        begun = False
        try:
            # Each chunk is a stream of its own: only the first schema and the last end belong to the whole.
            for result in chunks:
                chunk = bytes(result.bytes())
                if begun:
                    chunk = chunk[8 + int.from_bytes(chunk[4:8], "little") :]
                else:
                    self._begin("ArrowStream")
                if begun and " AS cut " in sql:  # as if the server were killed
                    self.close_connection = True
                    return
                begun = True
                self._chunk(chunk.removesuffix(_END_OF_STREAM))
            if not begun:  # without a row, there is no chunk
                self._begin("ArrowStream")
                self._chunk(engine.query(sql, "ArrowStream").bytes().removesuffix(_END_OF_STREAM))
            self._chunk(_END_OF_STREAM)
            self._end()
        except RuntimeError as error:
            if not begun:
                raise
            said = f"{_said(str(error))}\n".encode()
            tag = _TAG.encode()
            mark = b"__exception__"
            self._chunk(b"\r\n%b\r\n%b\r\n%b%d %b\r\n%b\r\n" % (mark, tag, said, len(said), tag, mark))
            self.close_connection = True  # without the last chunk
        except OSError:  # the client is gone
            self._kill(given["query_id"])
            self.close_connection = True
        finally:
            is_over.set()

    def _end_with_client(self, query_id: str, is_over: threading.Event) -> None:
        while not is_over.wait(0.05):
            try:
                readable, _, _ = select.select([self.connection], [], [], 0)
                if not readable or self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    continue
            except (OSError, ValueError):
                pass
            self._kill(query_id)
            return

    def _kill(self, query_id: str) -> None:
        import chdb

        with closing(chdb.connect(self.folder)) as engine:
            engine.query(f"KILL QUERY WHERE endsWith(query, '/* {query_id} */') ASYNC")

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("X-ClickHouse-Format", kind)
        self.send_header("X-ClickHouse-Exception-Tag", _TAG)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        if data:  # an empty chunk would be the end
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _fail(self, message: str) -> None:
        body = f"{_said(message)}\n".encode()
        code = re.search(r"Code: (\d+)", message)
        self.send_response(500)
        self.send_header("X-ClickHouse-Exception-Code", code[1] if code else "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _said(message: str) -> str:
    found = _CODE.search(message)
    return f"{found[0] if found else message} (version 26.9.2.1 (official build))"


def _main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        import chdb

        _Requests.folder = folder
        with closing(chdb.connect(folder)), ThreadingHTTPServer(("127.0.0.1", 0), _Requests) as server:
            server.daemon_threads = True
            sys.stdout.write(f"{server.server_port}\n")
            sys.stdout.flush()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            sys.stdin.read()  # until the test ends


if __name__ == "__main__":
    _main()
