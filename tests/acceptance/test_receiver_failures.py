"""Attempts to break a receiver: kill it at every step, send it nonsense, and take its ledger away."""

import asyncio
import http.client
import os
import pwd
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from sendoff.ledger import Ledger
from sendoff.service.postbacks import PostBackSigner

from ..factories import stored_post_backs
from ..ports import reserve_ports
from ..waiting import PATIENCE

Receiving = Callable[..., AbstractContextManager[Any]]
Stored = Callable[[str], list[tuple[int, int, int]]]

HERE = Path(__file__).parent
LOUD = (sys.executable, str(HERE / "receiver_with_traceback.py"), "receiver")
URL = "https://events.example.com"
OLD, NEW = "planted-secret-" + "o" * 32, "planted-secret-" + "n" * 32
KEY = "0123456789abcdef" * 2


def path_under(secret: str, kind: str = "delivery", key: str = KEY) -> str:
    return PostBackSigner(URL, [secret]).sign(kind, key).removeprefix(URL)


@dataclass(frozen=True)
class History:
    """The result of one post-back whose receiver was killed."""

    answered: bool
    stored: bool


class KilledReceivers:
    """Receivers one after the other on one port, each killed at its own step."""

    def __init__(self, url: str, folder: Path, variant: str) -> None:
        [self.port] = reserve_ports()
        settings = {
            "SENDOFF_LEDGER_URL": url,
            "SENDOFF_PUBLIC_URL": URL,
            "SENDOFF_POST_BACK_SECRETS": NEW,
        }
        with (folder / f"killed-{self.port}.log").open("wb") as written:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "killed_receiver.py", str(self.port), variant],
                env=os.environ | settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                bufsize=1,
            )

    def close(self) -> None:
        self.process.communicate(timeout=PATIENCE)

    def take(self, step: int, device: int) -> tuple[bool, int]:
        """Post to a receiver that dies at a step (0: never). Return whether it answered 200, and its step count."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        receiver = self._told()
        deadline = time.monotonic() + PATIENCE
        while self._status("GET", "/readyz") != 200:
            assert time.monotonic() < deadline, "the receiver does not start"
            time.sleep(0.005)
        body = b'{"time": 1772355600, "device": {"id": %d}}' % device
        answered = self._status("POST", path_under(NEW), body) == 200
        with suppress(ProcessLookupError):
            os.killpg(receiver, signal.SIGTERM)
        return answered, self._told()

    def _told(self) -> int:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert readable, "the receiver neither lives nor dies"
        return int(self.process.stdout.readline())

    def _status(self, method: str, path: str, body: bytes = b"") -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request(method, path, body)
            return connection.getresponse().status
        return None


def histories(url: str, folder: Path, stored: Stored, variant: str = "", every: int = 1) -> list[History]:
    """Kill receivers at each step of a post-back, or at every ``every``-th step, until one ends normally."""
    with ExitStack() as stack:
        lanes = [stack.enter_context(closing(KilledReceivers(url, folder, variant))) for _ in range(2)]
        answered, last = lanes[0].take(0, device=last_device)
        assert answered
        steps = range(1, last + 1, every)

        def work(lane: int) -> dict[int, bool]:
            return {step: lanes[lane].take(step, device=step)[0] for step in steps[lane::2]}

        with ThreadPoolExecutor(2) as pool:
            answers = {step: answered for lane in pool.map(work, range(2)) for step, answered in lane.items()}
    rows = stored(url)
    kept = Counter(device for _, _, device in rows)
    assert set(kept.values()) <= {1}  # each was sent once
    assert {number for _, number, _ in rows} <= {1}  # and each to its own receiver
    return [History(answered, device in kept) for device, answered in answers.items()]


last_device = 1_000_000


@pytest.mark.promise("lost/stored")
def test_a_receiver_that_is_killed_at_any_step_has_stored_what_it_answered_200(
    ledger_url: str, tmp_path: Path, stored: Stored
) -> None:
    every = 1 if ledger_url.startswith("sqlite") else 3  # most steps are the same on both
    counts = Counter(histories(ledger_url, tmp_path, stored, every=every))
    assert sum(counts.values()) > 100 / every
    assert not counts[History(answered=True, stored=False)]
    # killed before the commit, between the commit and the answer, and after the answer
    assert counts[History(answered=False, stored=False)]
    assert counts[History(answered=False, stored=True)]
    assert counts[History(answered=True, stored=True)]


@pytest.mark.promise("twice/proof")
def test_a_receiver_that_answers_before_it_commits_is_found_out(
    sqlite_url: str, tmp_path: Path, stored: Stored
) -> None:
    counts = Counter(histories(sqlite_url, tmp_path, stored, variant="hasty", every=7))
    assert counts[History(answered=True, stored=False)]


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    return head(path, f"Content-Length: {len(body)}", *headers, method=method) + body


def head_of(size: int, path: str, *headers: str) -> bytes:
    """Return a head of this many bytes, with one long header."""
    filling = size - len(head(path, *headers, "X-Long: "))
    return head(path, *headers, "X-Long: " + "x" * filling)


def chunked(path: str, *chunks: bytes) -> bytes:
    return head(path, "Transfer-Encoding: chunked") + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


def statuses(answers: bytes) -> list[int]:
    """Return the statuses of answers without bodies."""
    lines = [line for line in answers.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [int(line.split()[1]) for line in lines]


PERSON = b'{"time": 1772355600, "device": {"id": 987654321}}'
UNREADABLE = {
    "nothing": b"",
    "no JSON": b"device=987654321",
    "not an object": b"[987654321]",
    "an id of the wrong type": b'{"time": 1772355600, "device": {"id": [987654321]}}',
    "an id that is not whole": b'{"time": 1772355600, "device": {"id": 987654321.5}}',
    "a user of the wrong type": b'{"time": 1772355600, "profile": {"user_id": {"is": "987654321"}}}',
    "a member of the wrong type": b'{"time": 1772355600, "device": 987654321}',
    "16,000 levels of lists": b"[" * 16_000,
    "2,500 levels of objects": b'{"a":' * 2_500 + b"1" + b"}" * 2_500,
    "a number beyond 63 bits": b'{"time": 1772355600, "device": {"id": 9223372036854775808}}',
    "a number of 15,000 digits": b'{"time": 1772355600, "device": {"id": ' + b"9" * 15_000 + b"}}",
    "an infinite number": b'{"time": 1e999, "device": {"id": 987654321}}',
    "not a number": b'{"time": NaN, "device": {"id": 987654321}}',
    "not UTF-8": b'{"time": 1772355600, "profile": {"user_id": "987654321\xff"}}',
    "UTF-16": '{"time": 1772355600, "device": {"id": 987654321}}'.encode("utf-16"),
    "half of a surrogate pair": b'{"time": 1772355600, "profile": {"user_id": "987654321\\ud800"}}',
    "a zero in a name": b'{"time": 1772355600, "profile": {"user_id": "987654321\\u0000"}}',
    "zeros": b"\0" * 1_000,
    "compressed": b"\x1f\x8b\x08\x00987654321",
}
READABLE = {
    "as it should be": PERSON,
    "the same key twice": b'{"time": 1772355600, "device": {"id": 1}, "device": {"id": 987654321}}',
    "members that nobody knows": b'{"time": 1772355600, "device": {"id": 987654321}, "x": {"y": ["z"]}}',
    "a time of the wrong type": b'{"time": {"at": 1}, "device": {"id": 987654321}}',
    "a time before there was any": b'{"time": "0001-01-01T00:00:00+14:00", "device": {"id": 987654321}}',
}


def refused(path: str) -> dict[str, tuple[bytes, list[int]]]:
    """Requests that are not stored, with the statuses of the answers. There are none if the server hangs up."""
    forged = path[:-2] + ("A" if path[-2] != "A" else "B") + path[-1]
    return {
        "a forged signature": (request(forged, PERSON), [404]),
        "another kind": (request(path.replace("delivery", "open"), PERSON), [404]),
        "a zero in the path": (request(path + "%00", PERSON), [404]),
        "a path that is not UTF-8": (request(path + "%ff", PERSON), [404]),
        "another method": (request(path, PERSON, method="PUT"), [405]),
        "a method that nobody knows": (request(path, PERSON, method="BREW"), [405]),
        "a question": (head(path, method="GET"), [405]),
        "too large": (request(path, b" " * 16_385), [413]),
        "100,000 levels": (request(path, b"[" * 100_000), [413]),
        "too large, announced, and held back": (head(path, "Content-Length: 99999999"), [413]),
        "too large in parts": (chunked(path, *[b" " * 4_000] * 5), [413]),
        "too large in one part": (chunked(path, b" " * 40_000), [413]),
        "too large in parts, with a length before": (
            head(path, "Content-Length: 5", "Transfer-Encoding: chunked") + chunk(b" " * 40_000),
            [413],
        ),
        "too large in parts, with a length behind": (
            head(path, "Transfer-Encoding: chunked", "Content-Length: 5") + chunk(b" " * 40_000),
            [413],
        ),
        "headers behind the body": (chunked(path, PERSON)[:-2] + b"X-Behind: x\r\n\r\n", [400]),
        "two lengths": (head(path, "Content-Length: 5", "Content-Length: 6") + b"12345", [400]),
        "a length that is no number": (head(path, "Content-Length: x") + b"12345", [400]),
        "a length below nothing": (head(path, "Content-Length: -1"), [400]),
        "a length of 5,000 digits": (head(path, "Content-Length: " + "9" * 5_000), [400]),
        "a head of 16 KiB and a byte": (head_of(16_385, path, "Content-Length: 0"), [431]),
        "a head of 100,000 bytes": (head_of(100_000, path, "Content-Length: 0"), [431]),
        "a path of 16 KiB": (head(path + "?" + "x" * 16_384, "Content-Length: 0"), [431]),
        "a path of 70,000 bytes": (head(path + "?" + "x" * 70_000, "Content-Length: 0"), [431]),
        "101 headers": (head(path, "Content-Length: 0", *["X-Many: x"] * 99), [431]),
        "a byte at a time": (chunked(path, *[b" "] * 300), [400]),
        "a head of 200,000 characters": (head(path, "X-Long: " + "x" * 200_000), [431]),
        "a thousand headers": (head(path, *["X-Many: x"] * 1_000), [431]),
        "a chunk that is no number": (head(path, "Transfer-Encoding: chunked") + b"xyz\r\n", [400]),
    }


def test_bad_input_makes_no_error_and_no_loss_and_is_told_to_no_log(
    sqlite_url: str, receiving: Receiving
) -> None:
    with receiving(sqlite_url, command=LOUD, environment=ALL_LOGS) as receiver:
        path = receiver.path
        cases = refused(path)
        told = {name: statuses(receiver.exchange(raw)) for name, (raw, _) in cases.items()}
        assert told == {name: expected for name, (_, expected) in cases.items()}

        bodies = UNREADABLE | READABLE
        assert {name: receiver.status(path, body=body) for name, body in bodies.items()} == dict.fromkeys(
            bodies, 200
        )
        assert receiver.status(path.replace("/v1", "/%761", 1), body=PERSON) == 200  # the same path
        with receiver.connect() as client:
            client.sendall(chunked(path, PERSON[:5], PERSON[5:]))
            assert statuses(client.recv(1_000)) == [200]
        largest = (
            head_of(16_384, path, f"Content-Length: {len(PERSON)}"),
            head(path, f"Content-Length: {len(PERSON)}", *["X-Many: x"] * 98),
        )
        for beginning in largest:
            with receiver.connect() as client:
                client.sendall(beginning + PERSON)
                assert statuses(client.recv(1_000)) == [200]
        for cut in (head(path, f"Content-Length: {len(PERSON) + 1}") + PERSON, chunked(path, PERSON)[:-3]):
            assert 200 not in statuses(receiver.exchange(cut, finish=True))
        receiver.end()
    found = bodies_in(sqlite_url)
    assert found == [*UNREADABLE.values(), *[None] * (len(READABLE) + 4)]
    assert_nothing_told(receiver)


ALL_LOGS = {"GRANIAN_LOG_ACCESS_ENABLED": "1", "RUST_LOG": "trace", "PYTHONASYNCIODEBUG": "1"}


def assert_nothing_told(receiver: Any) -> None:
    """The output of the processes holds no secret, no signature or part of a URL, and no device."""
    log = receiver.log()
    assert " DEBUG " in log
    for planted in ("987654321", KEY, "/v1/", "planted-secret", receiver.path.rpartition("/")[2][:12]):
        assert planted not in log


def bodies_in(url: str) -> list[bytes | None]:
    """Return the bodies of the stored post-backs; None for those that were read."""
    with closing(Ledger(url)) as ledger:
        return [each.body for each in stored_post_backs(ledger)]


@contextmanager
def closing_engine(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    finally:
        engine.dispose()


def test_a_traceback_tells_nothing_of_a_post_back(sqlite_url: str, receiving: Receiving) -> None:
    environment = ALL_LOGS | {"BROKEN_CLOCK": "1"}
    with receiving(sqlite_url, command=LOUD, environment=environment) as receiver:
        assert receiver.status(receiver.path, body=PERSON) == 500
        receiver.end()
    assert "the clock stopped" in receiver.log()
    assert_nothing_told(receiver)


def test_slow_clients_are_turned_away_and_keep_nobody_waiting(sqlite_url: str, receiving: Receiving) -> None:
    with receiving(sqlite_url, command=LOUD, environment={"CLIENT_SECONDS": "5"}) as receiver:
        beginnings = {
            b"": b"",  # sends nothing at all
            b"POST / HTTP/1.1\r\nX-Slow: ": b"x",
            head(receiver.path, "Content-Length: 9999"): b" ",
            head(receiver.path, "Transfer-Encoding: chunked"): b"1\r\n \r\n",
        }
        clients = []
        for beginning, more in beginnings.items():
            client = receiver.connect()
            client.sendall(beginning)
            clients.append((client, more))
        stop = threading.Event()
        dribbling = threading.Thread(target=dribble, args=(clients, stop))
        dribbling.start()
        assert [receiver.post(device) for device in range(1, 11)] == [200] * 10
        answers = [statuses(everything(client)) for client, _ in clients]
        stop.set()
        dribbling.join()
        for client, _ in clients:
            client.close()
    assert answers == [[], [], [408], [408]]
    assert [device for _, _, device in receiver.stored()] == list(range(1, 11))


def dribble(clients: list[tuple[socket.socket, bytes]], stop: threading.Event) -> None:
    """Send a little now and then, so that no connection is idle."""
    while not stop.wait(0.2):
        for client, more in clients:
            with suppress(OSError):
                client.sendall(more)


def everything(client: socket.socket) -> bytes:
    """Read until the other side ends the connection. Fail if it does not."""
    answer = b""
    with suppress(ConnectionError):
        while part := client.recv(65_536):
            answer += part
    return answer


def test_requests_that_follow_each_other_closely_are_answered_in_their_order(
    sqlite_url: str, receiving: Receiving
) -> None:
    with receiving(sqlite_url) as receiver:
        rightly = [request(receiver.path, receiver.body(device)) for device in range(1, 51)]
        last = request(receiver.path + "x", receiver.body(51))  # the server hangs up and ignores what follows
        answers = receiver.exchange(b"".join([*rightly, last, request(receiver.path, receiver.body(52))]))
    assert statuses(answers) == [200] * 50 + [404]
    assert [device for _, _, device in receiver.stored()] == list(range(1, 51))


def test_many_connections_at_once_are_all_served(sqlite_url: str, receiving: Receiving) -> None:
    with receiving(sqlite_url) as receiver, ExitStack() as stack:
        clients = [stack.enter_context(receiver.connect()) for _ in range(1_000)]
        for device, client in enumerate(clients, 1):
            client.sendall(request(receiver.path, receiver.body(device)))
        answers = [statuses(client.recv(1_000)) for client in clients]
    assert answers == [[200]] * 1_000
    assert sorted(device for _, _, device in receiver.stored()) == list(range(1, 1_001))


def test_a_post_back_that_is_sent_again_is_stored_again_and_changes_no_figure(
    sqlite_url: str, receiving: Receiving
) -> None:
    """The aggregation counts it as a duplicate: test_reconcile.py checks that against the figures."""
    with receiving(sqlite_url) as receiver:
        assert [receiver.post(5) for _ in range(3)] == [200] * 3
        assert [number for _, number, device in receiver.stored() if device == 5] == [1, 2, 3]


def test_a_secret_is_replaced_while_addresses_under_the_old_one_are_still_in_use(
    sqlite_url: str, receiving: Receiving
) -> None:
    old, new = path_under(OLD), path_under(NEW)
    answers = {}
    for valid in (OLD, f"{NEW},{OLD}", NEW):
        with receiving(sqlite_url, secrets=valid, command=LOUD) as receiver:
            answers[valid] = [receiver.status(path, body=PERSON) for path in (old, new)]
            receiver.end()
        log = receiver.log()
        for planted in ("987654321", "planted-secret", old.rpartition("/")[2], new.rpartition("/")[2]):
            assert planted not in log
    assert answers == {OLD: [200, 404], f"{NEW},{OLD}": [200, 200], NEW: [404, 200]}
    assert len(receiver.stored()) == 4


@dataclass(frozen=True)
class Cluster:
    """A separate PostgreSQL server that the test may stop."""

    programs: Path
    folder: Path
    port: int
    user: str | None  # the user of the server, which refuses to run as root

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def command(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [self.programs / name, "-D", self.folder / "data", *arguments],
            user=self.user,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        waiting = ("-w", "-t", str(PATIENCE))
        self.command("pg_ctl", *waiting, "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self.command("pg_ctl", "-w", "-t", str(PATIENCE), "-m", mode, "stop")

    def take_writes(self, *, be: bool) -> None:
        """Start or stop accepting writes in new sessions, and end the existing ones."""
        change = "RESET default_transaction_read_only" if be else "SET default_transaction_read_only = on"
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        with closing_engine(engine), engine.connect() as db:
            db.execute(sa.text("SET default_transaction_read_only = off"))
            db.execute(sa.text(f"ALTER DATABASE postgres {change}"))
            if not be:
                db.execute(sa.text(END_THE_OTHERS))

    def signal(self, number: signal.Signals) -> None:
        """Signal every process of the server, first the one that starts the others, so that none is missed."""
        postmaster = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        postmaster.send_signal(number)
        for process in postmaster.children():
            with suppress(psutil.NoSuchProcess):  # some end meanwhile
                process.send_signal(number)


END_THE_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, which Debian does not put on the path."""
    found = shutil.which("initdb") or max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
    return Path(found).parent if found else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A running server with an empty, migrated ledger."""
    if not (folder := programs()):
        pytest.skip("needs PostgreSQL's programs: there is no initdb")
    user = "postgres" if os.geteuid() == 0 else None
    if user and user not in (entry.pw_name for entry in pwd.getpwall()):
        pytest.skip("needs PostgreSQL's programs: there is no user postgres to run them")
    with tempfile.TemporaryDirectory() as name:
        cluster = Cluster(folder, Path(name), *reserve_ports(), user)
        if user:
            shutil.chown(name, user)
        cluster.command("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        cluster.start()
        with closing(Ledger(cluster.url)) as ledger:
            ledger.migrate()
        yield cluster
        cluster.stop("immediate")


LOSSES: dict[str, tuple[Callable[[Cluster], None], Callable[[Cluster], None]]] = {
    "stopped": (lambda cluster: cluster.stop("fast"), Cluster.start),
    "crashed": (lambda cluster: cluster.stop("immediate"), Cluster.start),
    "silent": (
        lambda cluster: cluster.signal(signal.SIGSTOP),
        lambda cluster: cluster.signal(signal.SIGCONT),
    ),
    "read-only": (
        lambda cluster: cluster.take_writes(be=False),
        lambda cluster: cluster.take_writes(be=True),
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.promise("lost/stored")
def test_a_lost_database_is_answered_503_until_it_is_back_and_nothing_is_lost(
    cluster: Cluster, receiving: Receiving, loss: str
) -> None:
    lose, bring_back = LOSSES[loss]
    first = 1 + list(LOSSES).index(loss) * 1_000_000
    with receiving(cluster.url, command=LOUD, environment={"LEDGER_SECONDS": "1"}) as receiver:
        with receiver.under_load(first, connections=8) as senders:
            receiver.until(lambda: sum(len(sender.answered) for sender in senders) > 50)
            lose(cluster)
            try:
                assert_unavailable(receiver)
            finally:
                bring_back(cluster)
            before = sum(len(sender.answered) for sender in senders)
            receiver.until(lambda: sum(len(sender.answered) for sender in senders) > before + 50)
        receiver.end()
    answered = {device for sender in senders for device in sender.answered}
    refused = [status for sender in senders for status in sender.refused]
    kept = [device for _, _, device in receiver.stored() if device >= first]
    assert answered <= set(kept)
    assert len(kept) == len(set(kept))
    assert set(refused) <= {503}
    assert_nothing_told(receiver)


def assert_unavailable(receiver: Any) -> None:
    """It reports this where it should, and rejects a wrong URL without a ledger."""
    receiver.until(lambda: receiver.status("/readyz", "GET") == 503)
    status, headers = receiver.answer(receiver.path, body=PERSON)
    assert status == 503
    assert int(headers["retry-after"]) > 0
    assert receiver.status(receiver.path + "x", body=PERSON) == 404
    assert receiver.status(receiver.path, "GET") == 405
    assert receiver.status("/healthz", "GET") == 200


@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
@pytest.mark.promise("sound/small")
def test_more_than_the_ledger_takes_is_answered_503_and_fills_no_memory(
    ledger_url: str, receiving: Receiving
) -> None:
    limited = {"QUEUE_LIMIT": "100"}
    with receiving(ledger_url, command=LOUD, environment=limited) as receiver, slow(ledger_url):
        (worker,) = receiver.workers()
        before = worker.memory_info().rss
        flood = Flood(receiver, refusals=15_000, storings=301)
        flood.start()
        peak = before
        while flood.is_alive():
            peak = max(peak, worker.memory_info().rss)
            time.sleep(0.02)
        flood.join()
        receiver.end()
    sent = Flood.SIZE * (len(flood.stored) + flood.refused)
    assert sent > 200 << 20
    assert peak - before < 60 << 20
    assert len(flood.stored) > 300  # it stores all the time
    kept = [device for _, _, device in receiver.stored()]
    assert set(flood.stored) <= set(kept)
    assert len(kept) == len(set(kept))


@contextmanager
def slow(url: str) -> Iterator[None]:
    """A ledger that commits a few times per second."""
    stop = threading.Event()
    engine = sa.create_engine(url)

    def be_slow() -> None:
        while not stop.is_set():
            with engine.begin() as db:
                db.execute(sa.text("LOCK TABLE post_backs IN EXCLUSIVE MODE"))
                stop.wait(0.2)

    slowing = threading.Thread(target=be_slow)
    slowing.start()
    try:
        yield
    finally:
        stop.set()
        slowing.join()
        engine.dispose()


@dataclass(eq=False)
class Flood(threading.Thread):
    """Send large post-backs on three hundred connections as fast as they are answered, until enough are refused."""

    receiver: Any
    refusals: int
    storings: int
    stored: list[int] = field(default_factory=list)
    refused: int = 0
    SIZE = 16_000

    def __post_init__(self) -> None:
        super().__init__()
        self.devices = count(1)

    def run(self) -> None:
        asyncio.run(self.flood())

    async def flood(self) -> None:
        await asyncio.gather(*(self.connection() for _ in range(300)))

    async def connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.receiver.port)
        while self.refused < self.refusals or len(self.stored) < self.storings:
            device = next(self.devices)
            writer.write(request(self.receiver.path, self.receiver.body(device).ljust(self.SIZE)))
            answer = await reader.readuntil(b"\r\n\r\n")
            if statuses(answer) == [200]:
                self.stored.append(device)
            else:
                assert statuses(answer) == [503]
                assert b"retry-after: 5" in answer.lower()
                self.refused += 1
        writer.close()


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system that can be filled."""
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", name]
        if os.geteuid() or subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
            pytest.skip("needs a disk of its own: mounting one is not allowed here")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


@contextmanager
def limited_files(sqlite_url: str) -> Iterator[tuple[str, Callable[[Any], None], Callable[[Any], None]]]:
    def limit(receiver: Any, size: int) -> None:
        for worker in receiver.workers():
            worker.rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    yield (
        sqlite_url,
        lambda receiver: limit(receiver, 200_000),
        lambda receiver: limit(receiver, resource.RLIM_INFINITY),
    )


@contextmanager
def full_disk(megabytes: int) -> Iterator[tuple[Path, Callable[[Any], None], Callable[[Any], None]]]:
    """Return a disk, a function that fills it except for the last megabyte, and one that frees it again."""
    with small_disk(megabytes) as disk:
        filler = disk / "filler"
        yield (
            disk,
            lambda _: filler.write_bytes(bytes((megabytes - 1) << 20)) and None,
            lambda _: filler.unlink(),
        )


@pytest.mark.parametrize("what", ["a file", "the disk of SQLite", "the disk of PostgreSQL"])
@pytest.mark.promise("lost/stored")
def test_a_full_disk_is_answered_503_until_there_is_room_and_nothing_is_lost(
    request: pytest.FixtureRequest, sqlite_url: str, receiving: Receiving, what: str
) -> None:
    with ExitStack() as stack:
        if what == "a file":
            url, fill, free = stack.enter_context(limited_files(sqlite_url))
        else:
            disk, fill, free = stack.enter_context(full_disk(16))
            url = f"sqlite:///{disk / 'ledger.db'}"
            if what == "the disk of PostgreSQL":
                url = request.getfixturevalue("cluster").url
                stack.enter_context(moved(url, disk))
            with closing(Ledger(url)) as ledger:
                ledger.migrate()
        receiver = stack.enter_context(receiving(url, command=LOUD))
        answers = {10_000_000: receiver.post(10_000_000)}
        fill(receiver)
        devices = count(10_000_001)
        while 503 not in answers.values():
            device = next(devices)
            assert device < 10_001_000, "the disk was never full"
            answers[device] = receiver.status(receiver.path, body=receiver.body(device)[:-1] + LONG)
        assert_unavailable(receiver)
        free(receiver)
        receiver.until(lambda: receiver.post(next(devices)) == 200)
        receiver.end()
        kept = [device for _, _, device in receiver.stored() if device and device >= 10_000_000]
    assert set(answers.values()) == {200, 503}
    assert {device for device, status in answers.items() if status == 200} <= set(kept)
    assert len(kept) == len(set(kept))
    assert_nothing_told(receiver)


LONG = b', "profile": {"user_id": "%b"}}' % secrets.token_hex(8_000).encode()  # chance, so it stays large


@contextmanager
def moved(url: str, disk: Path) -> Iterator[None]:
    """Keep the post-backs of a ledger in PostgreSQL on another disk."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with closing_engine(engine), engine.connect() as db:
        shutil.chown(disk, "postgres")
        db.execute(sa.text(f"CREATE TABLESPACE small LOCATION '{disk}'"))
        parts = db.scalars(sa.text("SELECT relid::text FROM pg_partition_tree('post_backs')")).all()
        for part in parts:
            db.execute(sa.text(f"ALTER TABLE {part} SET TABLESPACE small"))
        yield
        for part in parts:
            db.execute(sa.text(f"ALTER TABLE {part} SET TABLESPACE pg_default"))
        db.execute(sa.text("DROP TABLESPACE small"))
