"""A scripted TCP server on a real socket, and private keys of every kind."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sendoff.service import service_session


@dataclass(frozen=True)
class Request:
    """A request that the server read."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), strict_parsing=True))


Step = Callable[[socket.socket, Callable[[], None]], None]


def answer(status: int = 200, content: Any = b"", **headers: str) -> Step:
    """Read the request and answer it; any content except bytes is sent as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    def step(connection: socket.socket, read: Callable[[], None]) -> None:
        read()
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    return step


def token(text: str = "token-one", expires_in: Any = 3600, **more: Any) -> Step:
    return answer(200, {"access_token": text, "token_type": "Bearer", "expires_in": expires_in, **more})


def raw(content: bytes) -> Step:
    """Read the request, send exactly these bytes, and close."""

    def step(connection: socket.socket, read: Callable[[], None]) -> None:
        read()
        connection.sendall(content)

    return step


def close_at_once(connection: socket.socket, read: Callable[[], None]) -> None:
    """Accept the connection and close it."""


def reset(connection: socket.socket, read: Callable[[], None]) -> None:
    """Read the request, then reset the connection."""
    read()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass
class Script:
    """A server that takes one step per connection, in order, and keeps the requests that it read."""

    context: ssl.SSLContext | None = None
    steps: deque[Step] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    patience: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._by_connection: dict[socket.socket, Request] = {}
        self._start(self._accept)
        scheme = "https" if self.context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.getsockname()[1]}"

    answer = staticmethod(answer)
    token = staticmethod(token)
    raw = staticmethod(raw)
    close_at_once = staticmethod(close_at_once)
    reset = staticmethod(reset)

    def tell(self, *steps: Step) -> None:
        """Add steps, one for each of the next connections."""
        self.steps.extend(steps)

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` requests were read."""
        deadline = time.monotonic() + 60
        while len(self.requests) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def silence(self, connection: socket.socket, read: Callable[[], None]) -> None:
        """Read the request and send nothing until the test is over."""
        read()
        self.patience.wait()

    def once(self, is_so: Callable[[], bool], step: Step) -> Step:
        """Return a step that reads the request and waits until ``is_so()``, or until the test is over."""

        def late(connection: socket.socket, read: Callable[[], None]) -> None:
            read()
            while not is_so() and not self.patience.wait(0.01):
                pass
            step(connection, lambda: None)

        return late

    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def close(self) -> None:
        self.patience.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(60)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                if self.context:
                    connection = self.context.wrap_socket(connection, server_side=True)
                with connection:
                    self._take_step(connection)
        except OSError:
            pass  # the client disconnected, as in some tests

    def _take_step(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        with self._lock:
            step = self.steps.popleft() if self.steps else answer(599, b"the script is over")
        step(connection, lambda: self._keep(connection))

    def _keep(self, connection: socket.socket) -> None:
        request = _read(connection)
        self._by_connection[connection] = request
        self.requests.append(request)

    def request_of(self, connection: socket.socket) -> Request:
        """Return the request of this connection."""
        return self._by_connection[connection]


def _read(connection: socket.socket) -> Request:
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(connection)
    head, body = received.split(b"\r\n\r\n", 1)
    line, *rest = head.decode().split("\r\n")
    headers = dict(each.split(": ", 1) for each in rest)
    while len(body) < int(headers.get("Content-Length", 0)):
        body += _some(connection)
    return Request(line, headers, body)


def _some(connection: socket.socket) -> bytes:
    received = connection.recv(2**16)
    if not received:
        raise ConnectionError
    return received


@pytest.fixture
def script() -> Iterator[Script]:
    """Return a server over plain HTTP."""
    server = Script()
    yield server
    server.close()


@pytest.fixture
def tls_script(tmp_path: Path) -> Iterator[Script]:
    """Return a server over TLS whose certificate no one trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = certificate_of(key, datetime.now(UTC) + timedelta(days=1))
    file = tmp_path / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = Script(context)
    yield server
    server.close()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with service_session(4) as session:
        session.trust_env = False
        yield session


@pytest.fixture(scope="session")
def certified() -> Callable[[Any, datetime], str]:
    """Return a function that makes a certificate in PEM form, for a key and an end."""
    return lambda key, ends: certificate_of(key, ends).public_bytes(Encoding.PEM).decode()


def certificate_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, ends: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    starts = ends - timedelta(days=365)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, starts, ends)
    return builder.sign(key, hashes.SHA256())


@pytest.fixture(scope="session")
def keys() -> dict[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey]:
    """Return a key for each algorithm, and keys that the service does not accept."""
    return {
        "RS256": rsa.generate_private_key(65537, 2048),
        "RS384": mersenne_key(2203, 2281),
        "RS512": mersenne_key(4253, 4423),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "ES384": ec.generate_private_key(ec.SECP384R1()),
        "ES512": ec.generate_private_key(ec.SECP521R1()),
        "short": rsa.generate_private_key(65537, 1024),
        "bitcoin": ec.generate_private_key(ec.SECP256K1()),
    }


def mersenne_key(one: int, other: int) -> rsa.RSAPrivateKey:
    """Make a long RSA key from two known primes; finding new ones would take over ten seconds."""
    q, p = 2**one - 1, 2**other - 1
    d = pow(65537, -1, (p - 1) * (q - 1))
    public = rsa.RSAPublicNumbers(65537, p * q)
    numbers = rsa.RSAPrivateNumbers(p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), public)
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)
