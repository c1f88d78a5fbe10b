"""Two receiver processes under full load, with aggregation at the same time; then every post-back is counted.

64 connections send post-backs as fast as they are answered, each with its own number as the device ID. Two processes
store them in PostgreSQL. Every five seconds, another process aggregates. At the end, every post-back answered 200 must
be in the ledger exactly once and aggregated, and the numbers must have no gap.

``SOAK_SECONDS`` is the duration, three minutes by default. ``SENDOFF_TEST_POSTGRES_URL`` is the server to use. The last
line is one JSON object. The exit code is 1 if anything was lost or duplicated.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import psutil
import sqlalchemy as sa
import uvloop
from bench_receiver import CONNECTIONS, PORT, PUBLIC_URL, SECRET, serving
from freezing import freeze
from shared import peak_memory, postgres_ledger

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period, launch_key
from sendoff.ledger import Ledger, values
from sendoff.ledger.post_backs.post_backs import stored_runs
from sendoff.postbacks.aggregation import aggregate
from sendoff.service.postbacks import PostBackSigner
from sendoff.states import Accepted

SECONDS = float(os.environ.get("SOAK_SECONDS", "180"))
EVERY = 5.0  # seconds between two aggregations, and between two lines of figures
WORKERS = 2
PEOPLE = 50_000_000  # more than can be sent in any reasonable time
START = datetime(2026, 3, 1, tzinfo=UTC)
PERIOD = Period(START, START + timedelta(days=1))
KEY = launch_key("service", "soak", PERIOD)
CAMPAIGN = {
    "title": "Soak",
    "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "It is raining"}},
}


def launch(ledger: Ledger) -> str:
    """Make a launch whose only dispatch is accepted, and return the dispatch key."""
    people = integers(range(1, PEOPLE + 1))
    now = datetime.now(UTC)
    campaign = Campaign.model_validate(CAMPAIGN)
    freeze(ledger, campaign, people, PERIOD, now, name="soak", segments=[Segment(people)])
    claim = ledger.dispatches.claim(KEY, worker="soak", now=now, lease=timedelta(minutes=5))
    assert claim is not None
    ledger.dispatches.record(claim, Accepted(200, 17), now)
    return claim.dispatch_key


class Load:
    """The post-backs that were sent, and their answers."""

    def __init__(self, path: str, until: float) -> None:
        self.head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ".encode()
        self.until = until
        self.numbers = itertools.count(1)
        self.sent = 0
        self.stored = array("q")  # numbers of post-backs answered 200
        self.took: list[float] = []  # seconds of each answer since the last line of figures
        self.all_took = array("d")
        self.refused = 0
        self.broken = 0


class Sender(asyncio.Protocol):
    """Sends a post-back with the next number, waits for its answer, and sends the next."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answered = True
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        load = self._load
        self._number = load.sent = next(load.numbers)
        body = b'{"time": 1772355600, "device": {"id": %d}, "campaign": {"id": 17}}' % self._number
        self._answered = False
        self._sent_at = time.perf_counter()
        self._transport.write(b"%b%d\r\n\r\n%b" % (load.head, len(body), body))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        load = self._load
        self._answered = True
        load.took.append(now - self._sent_at)
        if now >= load.until:
            self._transport.close()
        if data.startswith(b"HTTP/1.1 200 "):
            load.stored.append(self._number)
        elif data.startswith(b"HTTP/1.1 503 "):
            load.refused += 1
        else:
            raise SystemExit(f"answered {data[:40]!r}")
        if now < load.until:
            self._send()

    def connection_lost(self, _: Exception | None) -> None:
        self._load.broken += not self._answered
        self.ended.set_result(None)


async def soak(path: str, workers: list[psutil.Process]) -> Load:
    load = Load(path, time.perf_counter() + SECONDS)
    loop = asyncio.get_running_loop()
    telling = asyncio.create_task(tell(load, workers))

    async def connection() -> None:
        while time.perf_counter() < load.until:
            _, sender = await loop.create_connection(lambda: Sender(load), "127.0.0.1", PORT)
            await sender.ended

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    telling.cancel()
    load.all_took.extend(load.took)
    return load


async def tell(load: Load, workers: list[psutil.Process]) -> None:
    """Print a line of figures every few seconds."""
    print(f"{'seconds':>8}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'refused':>9}{'MiB':>7}")
    start = before = time.perf_counter()
    while True:
        await asyncio.sleep(EVERY)
        now = time.perf_counter()
        took, load.took = load.took, []
        load.all_took.extend(took)
        p50, p99 = quantiles(took)
        memory = sum(each.memory_info().rss for each in workers) / 2**20
        line = f"{now - start:>8.0f}{len(took) / (now - before):>12,.0f}{p50:>9.1f}{p99:>9.1f}"
        print(f"{line}{load.refused:>9,}{memory:>7.0f}", flush=True)
        before = now


def quantiles(took: Any) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds, from times in seconds."""
    p50, p99 = np.quantile(took, [0.5, 0.99]) if len(took) else (0.0, 0.0)
    return float(p50) * 1_000, float(p99) * 1_000


@contextmanager
def aggregating(url: str) -> Iterator[None]:
    """Aggregate every few seconds in a separate process, and once more at the end."""
    with subprocess.Popen([sys.executable, __file__, "aggregate", url], stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate()  # closes its input, which ends it
    if process.returncode:
        raise SystemExit("aggregation failed")


def aggregate_until_told(url: str) -> None:
    with closing(Ledger(url)) as ledger:
        while not select.select([sys.stdin], [], [], EVERY)[0]:
            aggregate(ledger)
        aggregate(ledger)


def judge(url: str, load: Load) -> dict[str, Any]:
    """Compare the ledger with the answers."""
    engine = sa.create_engine(url)
    with engine.connect() as db:
        gaps = db.execute(sa.text(GAPS)).scalar_one()
        commits = column(db, COMMITS)
    engine.dispose()
    with closing(Ledger(url)) as ledger:
        (returned,) = ledger.aggregates.totals(KEY).values()
        devices = stored_devices(ledger)
    kept = np.bincount(devices, minlength=load.sent + 1)
    answered = np.frombuffer(load.stored, np.int64)
    return {
        "sent": load.sent,
        "answered_200": len(answered),
        "stored": len(devices),
        "lost": int((kept[answered] == 0).sum()),
        "doubled": int((kept > 1).sum()),
        "gaps_in_numbers": int(gaps),
        "aggregated": returned.deliveries,
        "people_aggregated": len(returned.delivered),
        "refused": load.refused,
        "connections_broken": load.broken,
        "commits": len(commits),
        "commit_median": float(np.median(commits)),
        "commit_largest": int(commits.max()),
    }


GAPS = (
    "SELECT count(*) FROM (SELECT max(last) - sum(last - first + 1) AS gap FROM post_backs GROUP BY receiver) r "
    "WHERE gap <> 0"
)
COMMITS = "SELECT last - first + 1 FROM post_backs"


def stored_devices(ledger: Ledger) -> Any:
    """Return the device ID of every stored post-back."""
    with ledger.post_backs.read(stored_runs(ledger._database), named_by=["device_id"]) as batches:
        return np.concatenate([values(batch["device_id"]) for batch in batches])


def column(db: sa.Connection, query: str) -> Any:
    return np.fromiter(db.execute(sa.text(query)).scalars(), np.int64)


def main() -> int:
    print(
        f"{CONNECTIONS} connections, {WORKERS} processes, {SECONDS:.0f} s, aggregation every {EVERY:.0f} s\n"
    )
    with postgres_ledger() as url:
        with closing(Ledger(url)) as ledger:
            dispatch_key = launch(ledger)
        path = PostBackSigner(PUBLIC_URL, [SECRET]).sign("delivery", dispatch_key).removeprefix(PUBLIC_URL)
        with serving("receiver", url, WORKERS) as server, aggregating(url):
            workers = server.children(recursive=True)
            start = time.perf_counter()
            load = uvloop.run(soak(path, workers))
            elapsed = time.perf_counter() - start
            peak = max(peak_memory(worker.pid) for worker in workers)
        figures = judge(url, load)
    p50, p99 = quantiles(load.all_took)
    figures |= {
        "per_second": round(len(load.all_took) / elapsed),
        "p50_ms": round(p50, 1),
        "p99_ms": round(p99, 1),
        "longest_ms": round(max(load.all_took) * 1_000, 1),
        "peak_mib": round(peak),
    }
    print()
    for name, value in figures.items():
        print(f"  {name.replace('_', ' '):20}{value:>12,}")
    is_sound = not (figures["lost"] or figures["doubled"] or figures["gaps_in_numbers"])
    is_sound &= (
        figures["aggregated"] == figures["people_aggregated"] == figures["stored"] >= figures["answered_200"]
    )
    print("\nall answers were true" if is_sound else "\nNOT SOUND: an answer was not true")
    print(json.dumps({"benchmark": "receiver_soak", "seconds": SECONDS, "sound": is_sound, **figures}))
    return 0 if is_sound else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        aggregate_until_told(sys.argv[2])
    else:
        sys.exit(main())
