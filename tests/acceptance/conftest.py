"""A receiver as ``sendoff receiver`` runs it, the ledgers it stores in, and clients that send to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from sendoff.demo.processes import Process, Supervisor
from sendoff.ledger import Ledger
from sendoff.service.postbacks import PostBackSigner

from ..factories import stored_post_backs
from ..ports import is_free
from .browser import browser  # noqa: F401  # a fixture of every module here

SECRET = "planted-secret-" + "s" * 32
KEY = "0123456789abcdef" * 2
ADDRESSES = PostBackSigner("https://events.example.com", [SECRET])
RECEIVER = (sys.executable, str(Path(__file__).with_name("receiver_with_long_timeouts.py")), "receiver")
AVAILABLE = re.compile(r"Receiver (\d+): the ledger is available")
WAIT_SECONDS = 120


@dataclass
class Receiver:
    """A running receiver with its output and the ledger it stores in."""

    process: Process
    port: int
    url: str
    secret = SECRET
    key = KEY
    path = ADDRESSES.sign("delivery", KEY).removeprefix(ADDRESSES.public_url)

    def log(self) -> str:
        return self.process.log.read_text()

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def tell(self, how: signal.Signals) -> None:
        """Signal all of its processes, as a terminal or a container does."""
        self.process.send_signal(how)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal all of its processes, wait until they are gone, and return the exit status."""
        self.tell(how)
        return self.process.wait(WAIT_SECONDS)

    def until(self, check: Callable[[], bool]) -> None:
        """Wait until a condition holds. Fail if it does not, or if the receiver ends."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not check():
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"it never came about; the receiver wrote:\n{self.log()}")
            time.sleep(0.05)

    def status(self, path: str, method: str = "POST", body: object = None) -> int | None:
        """Return the status of one request on its own connection, or None without an answer."""
        answer = self.answer(path, method, body)
        return answer and answer[0]

    def post(self, device: int) -> int | None:
        return self.status(self.path, body=self.body(device))

    def answer(
        self, path: str, method: str = "POST", body: object = None
    ) -> tuple[int, dict[str, str]] | None:
        """Return the status and the headers of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request(method, path, body)  # type: ignore[arg-type]
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}
        return None

    def exchange(self, *parts: bytes, finish: bool = False) -> bytes:
        """Send bytes unchanged. Return everything that comes back until the connection ends or is quiet."""
        with self.connect() as client:
            with suppress(OSError):  # the server rejects some before they are finished
                for part in parts:
                    client.sendall(part)
                if finish:
                    client.shutdown(socket.SHUT_WR)
            return everything(client)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS)

    def stored(self) -> list[tuple[int, int, int]]:
        return stored_in(self.url)

    @staticmethod
    def body(device: int) -> bytes:
        return json.dumps({"time": 1_772_355_600, "device": {"id": device}}).encode()

    @contextmanager
    def under_load(self, first: int, connections: int = 16) -> Iterator[list[Sender]]:
        """Yield post-backs with devices from ``first`` on, each sent once."""
        senders = [
            Sender(self, iter(range(first + place, first + 1_000_000, connections)))
            for place in range(connections)
        ]
        for sender in senders:
            sender.start()
        try:
            yield senders
        finally:
            for sender in senders:
                sender.stop.set()
        for sender in senders:
            sender.join(WAIT_SECONDS)
        assert not any(sender.is_alive() for sender in senders)


@dataclass(eq=False)
class Sender(threading.Thread):
    """One connection that sends post-backs one after the other and records how each was answered."""

    receiver: Receiver
    devices: Iterator[int]
    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.receiver.port, timeout=WAIT_SECONDS)
        for device in self.devices:
            if self.stop.is_set():
                break
            self.sent.append(device)
            try:
                connection.request("POST", self.receiver.path, self.receiver.body(device))
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.stop.wait(0.05)
            else:
                if answer.status == 200:
                    self.answered.append(device)
                else:
                    self.refused.append(answer.status)
                    self.stop.wait(0.05)
        connection.close()


def everything(client: socket.socket) -> bytes:
    """Read until the other side ends the connection."""
    answer = b""
    with suppress(OSError):
        while part := client.recv(65_536):
            answer += part
    return answer


def stored_in(url: str) -> list[tuple[int, int, int]]:
    """Return the stored post-backs of a ledger: receiver, number, device."""
    with closing(Ledger(url)) as ledger:
        return [(each.receiver, each.number, each.device_id or 0) for each in stored_post_backs(ledger)]


@pytest.fixture
def stored() -> Callable[[str], list[tuple[int, int, int]]]:
    """Return the stored post-backs of the ledger at this URL: receiver, number, device."""
    return stored_in


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a migrated ledger in a file."""
    return migrated(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a migrated ledger on each database."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    url = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.execute(sa.text("DROP SCHEMA public CASCADE"))
        db.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return migrated(url)


def migrated(url: str) -> str:
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
    return url


Receiving = Callable[..., AbstractContextManager[Receiver]]


@pytest.fixture
def receiving(free_port: int, tmp_path: Path) -> Iterator[Receiving]:
    """Start receivers: ``with receiving(url, workers=2) as receiver``. Kill the remaining ones at the end."""

    @contextmanager
    def receiving(
        url: str,
        *,
        command: Sequence[str] = RECEIVER,
        port: int = free_port,
        workers: int = 1,
        wait: bool = True,
        secrets: str = SECRET,
        environment: dict[str, str] | None = None,
        without: str = "",
    ) -> Iterator[Receiver]:
        if wait:
            _until_free(port)
        name = f"receiver-{time.monotonic_ns()}"
        settings = {
            "SENDOFF_LEDGER_URL": url,
            "SENDOFF_PUBLIC_URL": ADDRESSES.public_url,
            "SENDOFF_POST_BACK_SECRETS": secrets,
        }
        surroundings = {name: value for name, value in (os.environ | settings).items() if name != without}
        process = supervisor.start(
            name,
            [*command, "--port", str(port), "--workers", str(workers)],
            surroundings | (environment or {}),
            stays=False,
        )
        receiver = Receiver(process, port, url)
        try:
            if wait:
                receiver.until(lambda: len(set(AVAILABLE.findall(receiver.log()))) >= workers)
                receiver.until(lambda: receiver.status("/readyz", "GET") == 200)
            yield receiver
        finally:
            receiver.end(signal.SIGKILL)

    with Supervisor(tmp_path) as supervisor:
        yield receiving


def _until_free(port: int) -> None:
    """Wait until the workers of a killed receiver are gone too and its port is free."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_free(port):
        assert time.monotonic() < deadline, f"somebody else listens on port {port}"
        time.sleep(0.01)
