"""The receiver, compared with the same server without storing, and with one INSERT and commit per request.

All use the same server, endpoint, and checks, with one process each. 128 connections each send their next post-back as
soon as the last one is answered. The client is another process, which competes for the processors.

``BENCH_SCALE`` times three seconds is the duration of each run, and ``BENCH_ROUNDS`` is the number of rounds.
``SENDOFF_TEST_POSTGRES_URL`` is the server to use. If none answers, only SQLite is measured. ``BENCH_PORT`` is the port
of the receiver. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, cast
from urllib.request import urlopen
from uuid import uuid4

import psutil
import sqlalchemy as sa
import uvloop
from pydantic import SecretStr
from shared import peak_memory, postgres_ledger, sqlite_ledger

from sendoff.ledger import Ledger
from sendoff.ledger.post_backs.blocks import blocks_of
from sendoff.ledger.storage.schema import post_backs
from sendoff.postbacks.group_commit import ReceiverCounts
from sendoff.postbacks.receiver import ReceiverApp, app_of
from sendoff.postbacks.server import serve
from sendoff.service.postbacks import PostBack, PostBackSigner
from sendoff.settings import Settings

SECONDS = 3 * float(os.environ.get("BENCH_SCALE", "1"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
CONNECTIONS = 128  # fewer would show how long an answer takes, not how many there are
THREADS = 15  # of the variant with a commit each; more do not make it faster
PORT = int(os.environ.get("BENCH_PORT", "19731"))
SECRET = "s" * 32
PUBLIC_URL = f"http://127.0.0.1:{PORT}"
BODY = json.dumps(
    {
        "time": 1_772_355_600,
        "device": {"id": 12_345_678},
        "profile": {"id": 2_345_678, "user_id": "customer-2345678"},
        "send": {"id": 345_678},
        "campaign": {"id": 45_678},
    }
).encode()


class Unstored:
    """Reports every post-back as stored at once."""

    available = True
    receiver = None

    def __init__(self) -> None:
        self.counts = ReceiverCounts()

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def release(self) -> None: ...

    def submit(self, _: PostBack) -> asyncio.Future[bool]:
        done = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done


class OneByOne(Unstored):
    """Inserts and commits each post-back separately, on several threads with a connection each."""

    def __init__(self, url: str) -> None:
        super().__init__()
        with closing(Ledger(url)) as ledger:
            self._receiver = ledger.post_backs.register_receiver("one by one", datetime.now(UTC))
        self._engine = sa.create_engine(url, pool_size=THREADS)
        if url.startswith("sqlite"):
            sa.event.listen(self._engine, "connect", as_durable)
        self._numbers = itertools.count(1)
        self._threads = ThreadPoolExecutor(THREADS)

    def submit(self, post_back: PostBack) -> asyncio.Future[bool]:
        return asyncio.get_running_loop().run_in_executor(self._threads, self._store, post_back)

    def _store(self, post_back: PostBack) -> bool:
        (block,) = blocks_of(self._receiver, [(next(self._numbers), post_back)])
        with self._engine.begin() as db:
            db.execute(sa.insert(post_backs), block._asdict())
        return True


def as_durable(connection: Any, _: Any) -> None:
    for pragma in ("synchronous=FULL", "busy_timeout=30000"):
        connection.execute(f"PRAGMA {pragma}")


def unstored(settings: Settings) -> ReceiverApp:
    return app_around(Unstored(), settings)


def one_by_one(settings: Settings) -> ReceiverApp:
    return app_around(OneByOne(settings.ledger()), settings)


def app_around(commit: Unstored, settings: Settings) -> ReceiverApp:
    signer = PostBackSigner.from_settings(settings)
    return ReceiverApp(commit, Ledger(settings.ledger()), signer)  # type: ignore[arg-type]  # it has what is used


APPS: dict[str, Callable[[Settings], ReceiverApp]] = {
    "receiver": app_of,
    "unstored": unstored,
    "one by one": one_by_one,
}


@dataclass(frozen=True)
class Measured:
    rate: float  # requests per second
    p50: float  # milliseconds
    p99: float
    cpu: float = 0.0  # CPU microseconds of the server per request; hardly affected by load
    peak: float = 0.0  # MiB of the largest server process


class Connection(asyncio.Protocol):
    """Sends a post-back, waits for its answer, and sends the next."""

    def __init__(self, request: bytes, until: float, took: list[float]) -> None:
        self._request, self._until, self._took = request, until, took
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not data.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"answered {data[:40]!r}")
        self._took.append(now - self._sent_at)
        if now < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self.ended.set_result(None)


async def ask(seconds: float) -> Measured:
    path = PostBackSigner(PUBLIC_URL, [SECRET]).sign("delivery", uuid4().hex).removeprefix(PUBLIC_URL)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(BODY)}\r\n\r\n"
    took: list[float] = []
    start = time.perf_counter()
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(
            lambda: Connection(head.encode() + BODY, start + seconds, took), "127.0.0.1", PORT
        )
        for _ in range(CONNECTIONS)
    ]
    await asyncio.gather(*(connection.ended for _, connection in connections))
    elapsed = time.perf_counter() - start
    took.sort()
    return Measured(len(took) / elapsed, took[len(took) // 2] * 1_000, took[int(len(took) * 0.99)] * 1_000)


@contextmanager
def serving(app: str, url: str, workers: int) -> Iterator[psutil.Process]:
    command = [sys.executable, __file__, app, url, str(workers)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            wait_until_ready(server)
            yield psutil.Process(server.pid)
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def wait_until_ready(server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            with urlopen(f"{PUBLIC_URL}/readyz"):
                return
        except OSError:
            if server.poll() is not None:
                raise SystemExit("the server did not start: is its port taken?") from None
            time.sleep(0.05)
    raise SystemExit("the server did not become ready")


def measure(app: str, url: str, workers: int) -> Measured:
    with serving(app, url, workers) as server:
        uvloop.run(ask(0.5))  # warm-up
        before = seconds_of_cpu(server)
        measured = uvloop.run(ask(SECONDS))
        spent = seconds_of_cpu(server) - before
        peak = max(peak_memory(process.pid) for process in server.children(recursive=True))
    return replace(measured, cpu=spent * 1e6 / (measured.rate * SECONDS), peak=peak)


def seconds_of_cpu(server: psutil.Process) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in (server, *server.children(recursive=True)))


def contestants(ledgers: dict[str, str]) -> Iterator[tuple[str, tuple[str, str, int]]]:
    url = next(iter(ledgers.values()))  # a receiver starts only with a ledger it can use
    yield "answering without storing", ("unstored", url, 1)
    for database, url in ledgers.items():
        yield f"{database}: a commit each", ("one by one", url, 1)
        yield f"{database}: receiver", ("receiver", url, 1)
        yield f"{database}: two processes", ("receiver", url, 2)


def middle(runs: list[Measured]) -> Measured:
    return Measured(*(median(getattr(run, each.name) for run in runs) for each in fields(Measured)))


def main() -> None:
    with ExitStack() as stack:
        ledgers = {}
        try:
            ledgers["PostgreSQL"] = stack.enter_context(postgres_ledger())
        except sa.exc.OperationalError:
            print("no PostgreSQL answers; only SQLite is measured")
        ledgers["SQLite"] = stack.enter_context(sqlite_ledger())
        runs: dict[str, list[Measured]] = {name: [] for name, _ in contestants(ledgers)}
        for number in range(1, ROUNDS + 1):
            for name, how in contestants(ledgers):
                runs[name].append(measure(*how))
                print(f"  round {number}  {name:26}{runs[name][-1].rate:>10,.0f} requests/s", flush=True)
    results = {name: middle(each) for name, each in runs.items()}
    print(
        f"\n{CONNECTIONS} connections, {SECONDS:.0f} s, median of {ROUNDS}, {os.cpu_count()} processors for all\n"
    )
    print(f"{'':28}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}{'peak MiB':>10}")
    for name, result in results.items():
        print(
            f"{name:28}{result.rate:>12,.0f}{result.p50:>9.1f}{result.p99:>9.1f}{result.cpu:>9.0f}{result.peak:>10.0f}"
        )
    print(json.dumps({"benchmark": "receiver", **ratios(results, list(ledgers))}))


def ratios(results: dict[str, Measured], databases: list[str]) -> dict[str, float]:
    unstored = results["answering without storing"]
    figures: dict[str, float] = {"unstored_per_second": round(unstored.rate)}
    for database in databases:
        receiver, key = results[f"{database}: receiver"], database.lower()
        figures |= {
            f"receiver_{key}_per_second": round(receiver.rate),
            f"receiver_{key}_to_unstored": round(receiver.rate / unstored.rate, 3),
            f"receiver_{key}_to_a_commit_each": round(
                receiver.rate / results[f"{database}: a commit each"].rate, 2
            ),
            f"receiver_{key}_p99_ms": round(receiver.p99, 1),
            f"receiver_{key}_cpu_to_unstored": round(receiver.cpu / unstored.cpu, 2),
            f"receiver_{key}_peak_mib": round(receiver.peak),
            f"receiver_{key}_two_processes_per_second": round(results[f"{database}: two processes"].rate),
        }
    return figures


if __name__ == "__main__":
    if len(sys.argv) > 1:
        settings = Settings(
            ledger_url=sys.argv[2], public_url=PUBLIC_URL, post_back_secrets=(SecretStr(SECRET),)
        )
        serve("127.0.0.1", PORT, settings, int(sys.argv[3]), make_app=APPS[sys.argv[1]])
    else:
        main()
