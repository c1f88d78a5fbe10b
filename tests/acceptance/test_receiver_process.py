"""The receiver as ``sendoff receiver`` runs it: real processes, real HTTP, killed at any moment."""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from sendoff.ledger import Ledger

WAIT_SECONDS = 120
Receiving = Callable[..., AbstractContextManager[Any]]
DROWSY = (sys.executable, str(Path(__file__).with_name("drowsy_receiver.py")), "receiver")


def answered_by(senders: list[Any]) -> list[int]:
    return [device for sender in senders for device in sender.answered]


def assert_numbered_from_one(rows: list[tuple[int, int, int]]) -> None:
    numbers: dict[int, list[int]] = {}
    for receiver, number, _ in rows:
        numbers.setdefault(receiver, []).append(number)
    for each in numbers.values():
        assert each == list(range(1, len(each) + 1))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.promise("lost/stored")
def test_whatever_was_answered_200_is_stored_when_the_receiver_is_killed_under_load(
    ledger_url: str, receiving: Receiving, workers: int
) -> None:
    answered: list[int] = []
    for kill in range(3):
        with receiving(ledger_url, workers=workers) as receiver:
            with receiver.under_load(first=1 + kill * 1_000_000) as senders:
                receiver.until(lambda senders=senders: len(answered_by(senders)) > 50)
                time.sleep(random.random() / 2)
                receiver.end(signal.SIGKILL)
            answered += answered_by(senders)
    rows = receiver.stored()
    kept = [device for _, _, device in rows]
    assert set(answered) <= set(kept)
    assert len(kept) == len(set(kept))
    # a worker may die before its first post-back, but each worker that stored used its own number
    generations = [
        {receiver for receiver, _, device in rows if (device - 1) // 1_000_000 == kill} for kill in range(3)
    ]
    assert all(1 <= len(receivers) <= workers for receivers in generations)
    assert sum(map(len, generations)) == len(set.union(*generations))
    assert_numbered_from_one(rows)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_receiver_that_is_asked_to_stop_answers_exactly_what_it_stored(
    ledger_url: str, receiving: Receiving, how: signal.Signals
) -> None:
    with receiving(ledger_url, workers=2) as receiver:
        with receiver.under_load(first=1) as senders:
            receiver.until(lambda: len(answered_by(senders)) > 200)
            assert receiver.end(how) == 0
        answered = answered_by(senders)
    assert sorted(device for _, _, device in receiver.stored()) == sorted(answered)


def test_signals_that_are_repeated_stop_a_receiver_as_one_does(sqlite_url: str, receiving: Receiving) -> None:
    with receiving(sqlite_url, workers=2) as receiver:
        with receiver.under_load(first=1) as senders:
            receiver.until(lambda: len(answered_by(senders)) > 200)
            while receiver.process.poll() is None:  # also while Python ends
                receiver.tell(signal.SIGTERM)
                receiver.tell(signal.SIGINT)
                time.sleep(0.001)
            assert receiver.end() == 0
        answered = answered_by(senders)
    assert sorted(device for _, _, device in receiver.stored()) == sorted(answered)


def use(receiver: Any) -> None:
    """Send post-backs for a moment: the server can lose a signal that comes in a worker's first milliseconds."""
    for device in range(1, 101):
        assert receiver.post(device) == 200


def has_ended(process: psutil.Process) -> bool:
    """Check whether a process has ended, also one that its parent has waited for."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_workers_that_stop_before_their_parent_hears_of_it_have_not_failed(
    sqlite_url: str, receiving: Receiving
) -> None:
    with receiving(sqlite_url, workers=2) as receiver:
        workers = receiver.workers()
        use(receiver)
        os.kill(receiver.process.pid, signal.SIGSTOP)  # as on a machine without time for it
        receiver.tell(signal.SIGTERM)
        receiver.until(lambda: all(map(has_ended, workers)))
        os.kill(receiver.process.pid, signal.SIGCONT)
        assert receiver.process.wait(120) == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_receiver_can_be_stopped_while_it_waits_for_its_ledger(
    receiving: Receiving, how: signal.Signals
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(120)
        url = f"postgresql+psycopg://nobody@127.0.0.1:{silent.getsockname()[1]}/ledger?connect_timeout=2"
        with receiving(url, workers=2, wait=False) as receiver:
            receiver.until(lambda: len(receiver.workers()) == 2)
            connections = [silent.accept()[0] for _ in range(2)]
            assert receiver.end(how) == 0
            for connection in connections:
                connection.close()


def test_no_worker_that_stopped_is_said_to_have_refused(sqlite_url: str, receiving: Receiving) -> None:
    with receiving(sqlite_url, command=DROWSY, workers=2) as receiver:
        use(receiver)
        assert receiver.end(signal.SIGTERM) == 0
        log = receiver.log()
    assert "refused" not in log
    assert [line.rpartition(" ")[2] for line in log.splitlines() if "Stopped worker" in line] == [
        "worker-1",
        "worker-2",
    ]


def test_a_worker_that_is_killed_is_replaced_and_loses_nothing(ledger_url: str, receiving: Receiving) -> None:
    with receiving(ledger_url) as receiver:
        with receiver.under_load(first=1) as senders:
            receiver.until(lambda: len(answered_by(senders)) > 50)
            (worker,) = receiver.workers()
            worker.kill()
            before = len(answered_by(senders))
            receiver.until(lambda: len(answered_by(senders)) > before + 100)
        receiver.end(signal.SIGTERM)
        answered = answered_by(senders)
    rows = receiver.stored()
    assert set(answered) <= {device for _, _, device in rows}
    assert len({number for number, _, _ in rows}) == 2
    assert_numbered_from_one(rows)


def test_workers_end_when_their_parent_is_killed(sqlite_url: str, receiving: Receiving) -> None:
    with receiving(sqlite_url, workers=2) as receiver:
        workers = receiver.workers()
        assert len(workers) == 2
        os.kill(receiver.process.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(workers, timeout=120)
        assert left == []


def test_slow_and_broken_clients_keep_nobody_from_being_served(sqlite_url: str, receiving: Receiving) -> None:
    with receiving(sqlite_url) as receiver:
        beginnings = [
            b"POST / HTTP/1.1\r\nX-Slow: ",
            f"POST {receiver.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{{".encode(),
            f"POST {receiver.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab".encode(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 200_000,
            b"POST /%ff%00/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST / HTTP/9.9\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"",
        ]
        clients = []
        for place in range(270):
            client = receiver.connect()
            clients.append(client)
            with suppress(OSError):  # the server rejects some before they are finished
                client.sendall(beginnings[place % len(beginnings)])
        assert [receiver.post(device) for device in range(1, 21)] == [200] * 20
        for client in clients:
            client.close()
        receiver.end(signal.SIGTERM)
    assert [device for _, _, device in receiver.stored()] == list(range(1, 21))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_receiver_without_tables_says_what_to_run_and_ends(
    receiving: Receiving, tmp_path: Path, is_there: bool
) -> None:
    file = tmp_path / "ledger.db"
    if is_there:
        file.touch()
    with receiving(f"sqlite:///{file}", wait=False) as receiver:
        assert receiver.process.wait(WAIT_SECONDS) == 1
        assert ": sendoff migrate" in receiver.log()
        assert receiver.status("/healthz", "GET") is None
    with closing(Ledger(f"sqlite:///{file}")) as ledger:
        ledger.migrate()
    with receiving(f"sqlite:///{file}") as receiver:
        assert receiver.post(1) == 200


def test_a_receiver_starts_while_its_database_is_away_and_says_why(
    receiving: Receiving, free_port: int
) -> None:
    with receiving(f"postgresql://ann:planted@127.0.0.1:{free_port}/ledger", wait=False) as receiver:
        receiver.until(lambda: receiver.status("/healthz", "GET") == 200)
        assert receiver.post(1) == 503
        assert receiver.status("/readyz", "GET") == 503
        assert f"nothing answers at 127.0.0.1:{free_port}" in receiver.log()
        assert "planted" not in receiver.log()


@pytest.mark.promise("private/secrets")
def test_nothing_of_a_post_back_is_in_the_output(sqlite_url: str, receiving: Receiving) -> None:
    device = 987_654_321
    with receiving(sqlite_url) as receiver:
        for path, body in (
            (receiver.path, receiver.body(device)),
            (receiver.path, b"not JSON: %d" % device),
            (receiver.path + "x", receiver.body(device)),
            (receiver.path, b" " * 20_000),
        ):
            receiver.status(path, body=body)
        receiver.end(signal.SIGTERM)
        log = receiver.log()
    assert "stored=2 commits=2 largest_commit=1 unreadable=1 wrong_address=1 too_large=1" in log
    for planted in (
        str(device),
        receiver.key,
        receiver.path.rpartition("/")[2][:20],
        receiver.secret[:20],
        "/v1/",
    ):
        assert planted not in log


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ({}, "SENDOFF_PUBLIC_URL"),
        ({}, "SENDOFF_POST_BACK_SECRETS"),
        ({"SENDOFF_POST_BACK_SECRETS": "short"}, "SENDOFF_POST_BACK_SECRETS"),
    ],
)
def test_a_missing_setting_is_one_line_that_names_it(
    missing: dict[str, str], named: str, sqlite_url: str, receiving: Receiving
) -> None:
    with receiving(sqlite_url, wait=False, without=named, environment=missing) as receiver:
        assert receiver.process.wait(60) == 1
    assert named in receiver.log()
    assert receiver.log().count("\n") == 1


def test_a_port_that_is_taken_is_one_line_that_says_so(sqlite_url: str, receiving: Receiving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with receiving(sqlite_url, port=port, wait=False) as receiver:
            assert receiver.process.wait(60) == 1
            log = receiver.log()
    assert log == f"sendoff: cannot listen on 127.0.0.1, port {port}: Address already in use\n"
