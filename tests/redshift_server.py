"""A proxy in front of PostgreSQL that greets its clients as Redshift does, and records what they run.

Redshift has PostgreSQL's protocol, but says that it is version 8.0.2, and names its encoding UNICODE.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

from sqlalchemy.engine import make_url

GREETING = {b"server_version": b"8.0.2", b"client_encoding": b"UNICODE", b"server_encoding": b"UNICODE"}
_REQUESTS_ENCRYPTION = (80877103, 80877104)
_CANCEL = 80877102


class Redshift(ThreadingTCPServer):
    """``statements`` has what clients ran, in this order, and ``options`` what the last one said when it connected."""

    daemon_threads = True

    def __init__(self, postgres_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.upstream = make_url(postgres_url)
        self.statements: list[str] = []
        self.options: dict[str, str] = {}
        self.cancelled = 0

    @property
    def url(self) -> str:
        """The URL for Sendoff."""
        url = self.upstream.set(drivername="redshift", host="127.0.0.1", port=self.server_address[1])
        return url.set(query={"sslmode": "disable"}).render_as_string(hide_password=False)


class _Client(BaseRequestHandler):
    server: Redshift

    def handle(self) -> None:
        url = self.server.upstream
        with socket.create_connection((url.host, url.port or 5432)) as upstream:
            self._greet(upstream)
            threading.Thread(target=self._answers, args=(upstream,), daemon=True).start()
            with suppress(OSError, EOFError):
                while True:
                    kind, body = _message(self.request)
                    if kind == b"Q":
                        self.server.statements.append(body[:-1].decode())
                    if kind == b"P":  # a statement behind its name
                        self.server.statements.append(body.split(b"\0")[1].decode())
                    upstream.sendall(_packed(kind, body))

    def _greet(self, upstream: socket.socket) -> None:
        while True:
            (length,) = struct.unpack("!i", _exactly(self.request, 4))
            body = _exactly(self.request, length - 4)
            (code,) = struct.unpack("!i", body[:4])
            if code not in _REQUESTS_ENCRYPTION:
                break
            self.request.sendall(b"N")
        if code == _CANCEL:
            self.server.cancelled += 1
        else:
            words = body[4:].decode().split("\0")
            self.server.options = dict(zip(words[::2], words[1::2], strict=False))
        upstream.sendall(struct.pack("!i", length) + body)

    def _answers(self, upstream: socket.socket) -> None:
        """Pass the server's messages on, with the parameters of a Redshift server."""
        with suppress(OSError, EOFError):
            while True:
                kind, body = _message(upstream)
                if kind == b"S":
                    name, value, _ = body.split(b"\0")
                    body = b"\0".join((name, GREETING.get(name, value), b""))
                self.request.sendall(_packed(kind, body))
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    kind, length = struct.unpack("!ci", _exactly(source, 5))
    return kind, _exactly(source, length - 4)


def _packed(kind: bytes, body: bytes) -> bytes:
    return struct.pack("!ci", kind, len(body) + 4) + body


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (more := source.recv(count - len(data))):
            raise EOFError
        data += more
    return bytes(data)


@contextmanager
def redshift_server(postgres_url: str) -> Iterator[Redshift]:
    """Run the proxy in a thread."""
    with Redshift(postgres_url) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()
