"""The local messaging service, and a real endpoint for its post-backs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from ..local_service import QUICK, LocalService, fill, run_command, start_service


class _Server(ThreadingHTTPServer):
    """Records its connections, so that it can be closed even if the thread of a connection has not started."""

    # If this queue were full, a new connection in a burst would wait for a second.
    request_queue_size = 128
    daemon_threads = False
    block_on_close = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)


class Listener:
    """A real endpoint for post-backs: ``received`` holds (path, body); ``statuses`` are the first answers.

    ``unreadable`` holds bodies that are not post-backs; if ``refuses`` is set, they get 400.
    """

    def __init__(self) -> None:
        self.unreadable: list[bytes] = []
        self.refuses = False
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.statuses: list[int] = []
        self._taking = threading.Lock()
        self._server = _Server(self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        listener = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                assert self.headers["Content-Type"] == "application/json"
                content = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(listener.take(self.path, content))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def take(self, path: str, content: bytes) -> int:
        """Store a post-back and return the status to answer. Several threads call this at once."""
        with self._taking:
            good = self._keep(path, content)
            usual = 204 if good or not self.refuses else 400
            return self.statuses.pop(0) if self.statuses else usual

    def _keep(self, path: str, content: bytes) -> bool:
        try:
            body = json.loads(content)
            assert body["device"]["id"]
        except (ValueError, TypeError, KeyError):
            self.unreadable.append(content)
            return False
        self.received.append((path, body))
        return True

    def devices(self, path: str) -> list[int]:
        return sorted(body["device"]["id"] for at, body in self.received if at == path)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        for connection in self._server.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()


@pytest.fixture(scope="session")
def service_database(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """A database to copy, with an app, a client ID and devices, and the output of the commands that filled it."""
    folder = tmp_path_factory.mktemp("service")
    return folder / "service.db", fill(f"sqlite:///{folder}/service.db", folder)


@pytest.fixture(scope="module")
def service_process(
    service_database: tuple[Path, Mapping[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalService]:
    """A fast service with the default shares, for all tests of a module."""
    file, known = service_database
    folder = tmp_path_factory.mktemp("service")
    copyfile(file, folder / "service.db")
    service = start_service(f"sqlite:///{folder}/service.db", known, *QUICK)
    yield service
    assert service.stop() == 0


@pytest.fixture
def service_start(
    service_database: tuple[Path, Mapping[str, str]], tmp_path: Path
) -> Iterator[Callable[..., LocalService]]:
    """Starts services with given options; those with the same ``name`` share a database and run one after another."""
    file, known = service_database
    started: list[LocalService] = []

    def start(*options: str, name: str = "one", process: bool = False) -> LocalService:
        folder = tmp_path / name
        if not folder.exists():
            folder.mkdir()
            copyfile(file, folder / "service.db")
        database = f"sqlite:///{folder}/service.db"
        started.append(start_service(database, known, *QUICK, *options, process=process))
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture(scope="module")
def service_on() -> Iterator[Callable[..., LocalService]]:
    """Starts services on databases of any kind; fills a database unless ``known`` is a service that used it."""
    started: list[LocalService] = []

    def start(database: str, folder: Path, *options: str, known: LocalService | None = None) -> LocalService:
        if known is None:
            said = fill(database, folder)
        else:
            names = ("app_token", "client_id", "client_secret")
            said = dict(zip(("apptoken", *names[1:]), (getattr(known, name) for name in names), strict=True))
        started.append(start_service(database, said, *QUICK, *options))
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture
def service_command() -> Callable[..., dict[str, Any]]:
    """Runs a command of the service and returns the JSON it printed."""
    return run_command


@pytest.fixture
def service_listener() -> Iterator[Listener]:
    """A real endpoint for post-backs."""
    listener = Listener()
    yield listener
    listener.close()
