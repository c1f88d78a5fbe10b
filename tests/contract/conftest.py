"""The real messaging service on a free loopback port, and a real endpoint for its post-backs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import requests
from typer.testing import CliRunner

from messaging_service.cli.main import main

from ..waiting import PATIENCE

COMMAND = Path(sys.executable).with_name("messaging-service")
PLATFORMS = ("android", "ios", "chrome", "firefox", "opera", "safari", "edge")
QUICK = ("--delay-from", "0", "--delay-to", "0.05", "--first-pause", "0.05")


@dataclass
class LocalService:
    """A running service with one app, one secret client ID and 700 devices, ids 1 to 700, 100 on each platform.

    Device n has the platform PLATFORMS[n % 7], the profile n + 10000, the user cust-n (two devices each from 601
    on), and, where n is even, an email address.
    """

    base_url: str
    database: str
    app_token: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    process: subprocess.Popen[str]
    _kept_token: str | None = field(default=None, repr=False)

    def command(self, *arguments: str, expect: int = 0) -> dict[str, Any]:
        return run_command(*arguments, "--database", self.database, expect=expect)

    def token(self, **more: Any) -> str:
        form = {"client_id": self.client_id, "client_secret": self.client_secret, **more}
        answer = self.post("/api/oauth/token", data={"grant_type": "client_credentials", **form})
        assert answer.status_code == 200, answer.text
        return answer.json()["access_token"]

    def post(self, path: str, **how: Any) -> requests.Response:
        return requests.post(self.base_url + path, timeout=PATIENCE, **how)

    def create(self, **fields: Any) -> requests.Response:
        body = {"title": "a test", "push_text": "hello", **fields}
        return self.post("/api/external/create/campaign", json=body, headers=self.bearer())

    def execute(self, **fields: Any) -> requests.Response:
        return self.post("/api/external/execute/campaign", json=fields, headers=self.bearer())

    def bearer(self) -> dict[str, str]:
        if self._kept_token is None:
            self._kept_token = self.token()
        return {"Authorization": f"Bearer {self._kept_token}"}

    def admin(self, path: str) -> dict[str, Any]:
        answer = requests.get(f"{self.base_url}/admin/{path}", timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_until_quiet(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not (progress := self.admin("progress"))["quiet"]:
            assert time.monotonic() < deadline, f"not quiet after {PATIENCE:g} s: {progress}"
            time.sleep(0.05)
        return progress

    def stop(self) -> int:
        """Stop it if it still runs, and give the status it ended with."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


class _Server(ThreadingHTTPServer):
    """Keeps its connections, so that it can be closed whether or not the thread of one has begun."""

    # A full queue would make a burst of new connections wait for a second.
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
    """A real endpoint that takes post-backs: ``received`` holds (path, body); ``statuses`` are answered first.

    ``unreadable`` holds the bodies that are no post-backs, which ``refuses`` answers 400.
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
        """Keep a post-back and give the status that answers it; the threads of several come here at once."""
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


def run_command(*arguments: str, expect: int = 0) -> dict[str, Any]:
    """Run a command of the service, and give the JSON it printed.

    It runs in this process, which saves the time of starting one; ``serve`` takes over signals and logs, so it has a
    process of its own.
    """
    if arguments[0] == "serve":
        return run_process(*arguments, expect=expect)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == expect, done.output
    return json.loads(done.stdout if expect == 0 else done.stderr)


def run_process(*arguments: str, expect: int = 0) -> dict[str, Any]:
    """Run a command of the service in a process of its own, and give the JSON it printed."""
    done = subprocess.run(
        [COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == expect, done.stderr
    return json.loads(done.stdout if expect == 0 else done.stderr)


def write_devices(path: Path, count: int = 700) -> Path:
    lines = ["device_id,platform,profile_id,user_id,language,time_zone,external_id,email,tier"]
    for n in range(1, count + 1):
        user = n if n <= 600 else 600 + (n + 1 - 600) // 2
        email = f"person{n}@example.org" if n % 2 == 0 else ""
        tier = "gold" if n % 3 else ""
        person = f"{n},{PLATFORMS[n % 7]},{n + 10_000},cust-{user},en,Europe/Dublin"
        lines.append(f"{person},ext-{n},{email},{tier}")
    path.write_text("\n".join(lines) + "\n")
    return path


def start_service(database: str, known: Mapping[str, str], *options: str) -> LocalService:
    """Start a service on a database; ``known`` holds what the commands that filled it printed."""
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--database", database, *options], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["listening"]
    return LocalService(
        address, database, known["apptoken"], known["client_id"], known["client_secret"], process
    )


def fill(database: str, folder: Path) -> Mapping[str, str]:
    """Add an app, a client ID and the devices to a database, and give what the commands printed."""
    at = ("--database", database)
    app = run_command("apps", "add", "--name", "shop", *at)
    client = run_command("client-ids", "add", "--name", "tests", "--type", "secret", *at)
    run_command("devices", "import", str(write_devices(folder / "devices.csv")), *at)
    return {**app, **client}


@pytest.fixture(scope="session")
def service_database(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """A database with an app, a client ID and the devices, to be copied, and what the commands printed."""
    folder = tmp_path_factory.mktemp("service")
    return folder / "service.db", fill(f"sqlite:///{folder}/service.db", folder)


@pytest.fixture(scope="module")
def service_process(
    service_database: tuple[Path, Mapping[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalService]:
    """A service that everything of a module shares: quick, with the usual shares."""
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
    """Starts services with options of their own; those with one ``name`` share a database, one after another."""
    file, known = service_database
    started: list[LocalService] = []

    def start(*options: str, name: str = "one") -> LocalService:
        folder = tmp_path / name
        if not folder.exists():
            folder.mkdir()
            copyfile(file, folder / "service.db")
        started.append(start_service(f"sqlite:///{folder}/service.db", known, *QUICK, *options))
        return started[-1]

    yield start
    for service in started:
        service.stop()


@pytest.fixture(scope="module")
def service_on() -> Iterator[Callable[..., LocalService]]:
    """Starts services on databases of any kind, filled first unless ``known`` is a service that used them."""
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
    """Runs a command of the service and gives the JSON it printed."""
    return run_command


@pytest.fixture
def service_listener() -> Iterator[Listener]:
    """A real endpoint for post-backs."""
    listener = Listener()
    yield listener
    listener.close()
