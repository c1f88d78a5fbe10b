"""The receiver as ``sendoff receiver`` runs it: real processes, real HTTP, killed at any moment."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from sendoff.ledger import Ledger
from sendoff.ledger.tables import post_backs
from sendoff.postbacks import Addresses

SECRET = "planted-secret-" + "s" * 32
KEY = "0123456789abcdef" * 2
ADDRESSES = Addresses("https://events.example.com", [SECRET])
PATH = ADDRESSES.sign("delivery", KEY).removeprefix(ADDRESSES.public_url)
SENDOFF = [sys.executable, "-c", "from sendoff.cli import main; main()"]


@dataclass
class Receiver:
    """A running ``sendoff receiver``, with what it wrote, and the ledger that it stores in."""

    process: subprocess.Popen[bytes]
    port: int
    url: str
    output: Path

    def log(self) -> str:
        return self.output.read_text()

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def end(self, how: signal.Signals) -> int:
        """Signal all of its processes, as a terminal or a container does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        return self.process.wait(60)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated ledger."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
        with closing_engine(url) as engine, engine.begin() as connection:
            connection.execute(sa.text("DROP SCHEMA public CASCADE"))
            connection.execute(sa.text("CREATE SCHEMA public"))
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
    return url


@contextmanager
def closing_engine(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def receiving(url: str, port: int, folder: Path, workers: int = 1, wait: bool = True) -> Iterator[Receiver]:
    output = folder / f"receiver-{time.monotonic_ns()}.log"
    environment = os.environ | {
        "SENDOFF_LEDGER_URL": url,
        "SENDOFF_PUBLIC_URL": ADDRESSES.public_url,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    command = [*SENDOFF, "receiver", "--port", str(port), "--workers", str(workers)]
    with output.open("wb") as written:
        process = subprocess.Popen(
            command, env=environment, stdout=written, stderr=written, start_new_session=True
        )
    receiver = Receiver(process, port, url, output)
    try:
        if wait:
            until(lambda: status(receiver, "/readyz", "GET") == 200, receiver)
            until(lambda: receiver.log().count("the ledger is available") == workers, receiver)
        yield receiver
    finally:
        receiver.end(signal.SIGKILL)


def until(check: object, receiver: Receiver, seconds: float = 60) -> None:
    assert callable(check)
    deadline = time.monotonic() + seconds
    while not check():
        if receiver.process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"it never came about; the receiver wrote:\n{receiver.log()}")
        time.sleep(0.05)


def status(receiver: Receiver, path: str, method: str = "POST", body: bytes | None = None) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=20)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request(method, path, body)
        return connection.getresponse().status
    return None


def body_of(device: int) -> bytes:
    return json.dumps({"time": 1_772_355_600, "device": {"id": device}}).encode()


@dataclass
class Sender(threading.Thread):
    """One connection that sends post-backs, one after the other, and remembers which were answered 200."""

    receiver: Receiver
    devices: Iterator[int]
    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.receiver.port, timeout=20)
        for device in self.devices:
            if self.stop.is_set():
                break
            self.sent.append(device)
            try:
                connection.request("POST", PATH, body_of(device))
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.stop.wait(0.05)
            else:
                if answer.status == 200:
                    self.answered.append(device)
        connection.close()


@contextmanager
def under_load(receiver: Receiver, first: int, connections: int = 16) -> Iterator[list[Sender]]:
    """Post-backs with devices from ``first`` on, each sent once."""
    senders = [
        Sender(receiver, iter(range(first + place, first + 1_000_000, connections)))
        for place in range(connections)
    ]
    for sender in senders:
        sender.start()
    yield senders
    for sender in senders:
        sender.stop.set()
    for sender in senders:
        sender.join(60)


def answered_by(senders: list[Sender]) -> list[int]:
    return [device for sender in senders for device in sender.answered]


def stored(url: str) -> list[tuple[int, int, int]]:
    """What the ledger holds: receiver, number, device."""
    columns = (post_backs.c.receiver, post_backs.c.number, post_backs.c.device_id)
    with closing_engine(url) as engine, engine.connect() as connection:
        rows = connection.execute(sa.select(*columns).order_by(*columns[:2])).all()
        return [(receiver, number, device) for receiver, number, device in rows]


def assert_numbered_from_one(rows: list[tuple[int, int, int]]) -> None:
    numbers: dict[int, list[int]] = {}
    for receiver, number, _ in rows:
        numbers.setdefault(receiver, []).append(number)
    for each in numbers.values():
        assert each == list(range(1, len(each) + 1))


@pytest.mark.parametrize("workers", [1, 2])
def test_whatever_was_answered_200_is_stored_when_the_receiver_is_killed_under_load(
    ledger_url: str, free_port: int, tmp_path: Path, workers: int
) -> None:
    answered: list[int] = []
    for kill in range(3):
        with receiving(ledger_url, free_port, tmp_path, workers) as receiver:
            with under_load(receiver, first=1 + kill * 1_000_000) as senders:
                until(lambda senders=senders: len(answered_by(senders)) > 50, receiver)
                time.sleep(random.random() / 2)
                receiver.end(signal.SIGKILL)
            answered += answered_by(senders)
    rows = stored(ledger_url)
    kept = [device for _, _, device in rows]
    assert set(answered) <= set(kept)
    assert len(kept) == len(set(kept))
    # a worker may be killed before any post-back came to it; but whoever stored, did so under a number of its own
    generations = [
        {receiver for receiver, _, device in rows if (device - 1) // 1_000_000 == kill} for kill in range(3)
    ]
    assert all(1 <= len(receivers) <= workers for receivers in generations)
    assert sum(map(len, generations)) == len(set.union(*generations))
    assert_numbered_from_one(rows)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_receiver_that_is_asked_to_stop_answers_exactly_what_it_stored(
    ledger_url: str, free_port: int, tmp_path: Path, how: signal.Signals
) -> None:
    with receiving(ledger_url, free_port, tmp_path, workers=2) as receiver:
        with under_load(receiver, first=1) as senders:
            until(lambda: len(answered_by(senders)) > 200, receiver)
            assert receiver.end(how) == 0
        answered = answered_by(senders)
    assert sorted(device for _, _, device in stored(ledger_url)) == sorted(answered)


def test_a_worker_that_is_killed_is_replaced_and_loses_nothing(
    ledger_url: str, free_port: int, tmp_path: Path
) -> None:
    with receiving(ledger_url, free_port, tmp_path) as receiver:
        with under_load(receiver, first=1) as senders:
            until(lambda: len(answered_by(senders)) > 50, receiver)
            (worker,) = receiver.workers()
            worker.kill()
            before = len(answered_by(senders))
            until(lambda: len(answered_by(senders)) > before + 100, receiver)
        receiver.end(signal.SIGTERM)
        answered = answered_by(senders)
    rows = stored(ledger_url)
    assert set(answered) <= {device for _, _, device in rows}
    assert len({number for number, _, _ in rows}) == 2
    assert_numbered_from_one(rows)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
    return url


def test_workers_end_when_their_parent_is_killed(sqlite_url: str, free_port: int, tmp_path: Path) -> None:
    with receiving(sqlite_url, free_port, tmp_path, workers=2) as receiver:
        workers = receiver.workers()
        assert len(workers) == 2
        receiver.process.kill()
        _, left = psutil.wait_procs(workers, timeout=20)
        assert left == []


def test_slow_and_broken_clients_keep_nobody_from_being_served(
    sqlite_url: str, free_port: int, tmp_path: Path
) -> None:
    beginnings = [
        b"POST / HTTP/1.1\r\nX-Slow: ",
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{{".encode(),
        f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab".encode(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 200_000,
        b"POST /%ff%00/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
    ]
    with receiving(sqlite_url, free_port, tmp_path) as receiver:
        clients = []
        for place in range(270):
            client = socket.create_connection(("127.0.0.1", free_port), timeout=5)
            clients.append(client)
            with suppress(OSError):  # some are turned away while they still talk
                client.sendall(beginnings[place % len(beginnings)])
        start = time.monotonic()
        assert [status(receiver, PATH, body=body_of(device)) for device in range(1, 21)] == [200] * 20
        assert time.monotonic() - start < 5
        for client in clients:
            client.close()
        receiver.end(signal.SIGTERM)
    assert [device for _, _, device in stored(sqlite_url)] == list(range(1, 21))


def test_a_body_that_is_cut_off_is_not_stored(sqlite_url: str, free_port: int, tmp_path: Path) -> None:
    whole = body_of(5)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(whole) + 1}\r\n\r\n".encode()
    with receiving(sqlite_url, free_port, tmp_path) as receiver:
        with socket.create_connection(("127.0.0.1", free_port), timeout=5) as client:
            client.sendall(head + whole)
            client.shutdown(socket.SHUT_WR)
            assert not client.recv(100).startswith(b"HTTP/1.1 2")
        assert status(receiver, PATH, body=body_of(6)) == 200
    assert [device for _, _, device in stored(sqlite_url)] == [6]


def test_sizes_methods_and_addresses_are_checked_on_the_wire(
    sqlite_url: str, free_port: int, tmp_path: Path
) -> None:
    with receiving(sqlite_url, free_port, tmp_path) as receiver:
        assert status(receiver, PATH, body=b" " * 16_385) == 413
        assert status(receiver, PATH, body=iter([b" " * 10_000, b" " * 10_000])) == 413  # type: ignore[arg-type]
        assert status(receiver, PATH, "GET") == 405
        assert status(receiver, PATH + "x", body=body_of(1)) == 404
        assert status(receiver, PATH.replace("/v1", "/%761", 1), body=body_of(2)) == 200  # the same path
        assert status(receiver, PATH, body=b"\xff" * 16_384) == 200
        assert status(receiver, "/healthz", "GET") == 200
    assert [device for _, _, device in stored(sqlite_url)] == [2, None]


def test_a_receiver_waits_for_its_tables(free_port: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with receiving(url, free_port, tmp_path, wait=False) as receiver:
        until(lambda: status(receiver, "/healthz", "GET") == 200, receiver)
        assert status(receiver, PATH, body=body_of(1)) == 503
        with closing(Ledger(url)) as ledger:
            ledger.migrate()
        until(lambda: status(receiver, PATH, body=body_of(2)) == 200, receiver)
    assert {device for _, _, device in stored(url)} == {2}


def test_nothing_of_a_post_back_is_in_the_output(sqlite_url: str, free_port: int, tmp_path: Path) -> None:
    device = 987_654_321
    with receiving(sqlite_url, free_port, tmp_path) as receiver:
        for path, body in (
            (PATH, body_of(device)),
            (PATH, b"not JSON: %d" % device),
            (PATH + "x", body_of(device)),
            (PATH, b" " * 20_000),
        ):
            status(receiver, path, body=body)
        receiver.end(signal.SIGTERM)
        log = receiver.log()
    assert "stored=2 commits=2 largest_commit=1 unreadable=1 wrong_address=1 too_large=1" in log
    for planted in (str(device), KEY, PATH.rpartition("/")[2][:20], SECRET[:20], "/v1/"):
        assert planted not in log


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ({"SENDOFF_PUBLIC_URL": None}, "SENDOFF_PUBLIC_URL"),
        ({"SENDOFF_POST_BACK_SECRETS": None}, "SENDOFF_POST_BACK_SECRETS"),
        ({"SENDOFF_POST_BACK_SECRETS": "short"}, "SENDOFF_POST_BACK_SECRETS"),
    ],
)
def test_a_missing_setting_is_one_line_that_names_it(
    missing: dict[str, str | None], named: str, sqlite_url: str, free_port: int
) -> None:
    settings: dict[str, str | None] = {
        "SENDOFF_LEDGER_URL": sqlite_url,
        "SENDOFF_PUBLIC_URL": ADDRESSES.public_url,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    given = {name: value for name, value in (settings | missing).items() if value}
    environment = {name: value for name, value in os.environ.items() if name not in settings} | given
    command = [*SENDOFF, "receiver", "--port", str(free_port)]
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert named in ended.stderr.decode()
    assert ended.stderr.count(b"\n") == 1


def test_a_port_that_is_taken_is_one_line_that_says_so(sqlite_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with receiving(sqlite_url, port, tmp_path, wait=False) as receiver:
            assert receiver.process.wait(60) == 1
            log = receiver.log()
    assert log == f"sendoff: cannot listen on 127.0.0.1, port {port}: Address already in use\n"
