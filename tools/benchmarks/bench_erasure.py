"""Erasing a thousand people from thirteen launches of ten million, while the receiver stores post-backs.

Each launch has segments, verdicts and a report. The command ``sendoff forget`` runs in a process of its own. The
receiver gets ``RATE`` post-backs per second on a few connections, first alone and then during the erasure. At the end,
every stored set is decoded and compared with the people. The bytes that the erasure changed are searched for in the
database's files, before and after ``sendoff forget --reclaim``. On PostgreSQL, this program must be allowed to read
the server's folder. A SQLite built with SECURE_DELETE, such as Debian's, overwrites old bytes at once.

``BENCH_SCALE`` is the number of recipients in units of ten million. ``BENCH_DATABASES`` is ``postgresql``, ``sqlite``
or both, separated by a comma. ``SENDOFF_TEST_POSTGRES_URL`` is the server to use. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import sqlalchemy as sa
import uvloop
from bench_receiver import (
    BODY,
    PORT,
    PUBLIC_URL,
    SECRET,
    peak_memory,
    postgres_ledger,
    serving,
    sqlite_ledger,
)

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign
from sendoff.dispatch.worker import LEASE
from sendoff.ledger import Ledger, NewLaunch
from sendoff.ledger.erasure_steps import TABLES
from sendoff.period import Period, launch_key
from sendoff.postbacks import reconcile_launch
from sendoff.service.postbacks import PostBackSigner
from sendoff.states import Accepted

LAUNCHES, PEOPLE, SEGMENT = 13, 1_000, 10_000
RECIPIENTS = int(10_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
DEVICES = np.cumsum(np.random.default_rng(3).integers(1, 4, RECIPIENTS))  # with gaps, as in real audiences
PIECE, AHEAD = 32, 8  # bytes around a byte that changed, which are searched for
READ = 16 * 1024 * 1024  # bytes of a file at a time
DATABASES = os.environ.get("BENCH_DATABASES", "postgresql,sqlite").split(",")
RATE, CONNECTIONS = 200, 4  # post-backs per second, on so many connections
ALONE = 15.0  # seconds
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
CAMPAIGN = Campaign.model_validate(
    {
        "title": "Spring",
        "message": {"title": "Hello", "text": "It is spring"},
        "channels": {"android_push": {}},
    }
)


def fill(ledger: Ledger) -> str:
    """Freeze the launches, record each request as accepted, and make the reports. Return one dispatch key."""
    people = integers(DEVICES)
    for number in range(LAUNCHES):
        period = Period(NOW - timedelta(days=number + 1), NOW - timedelta(days=number))
        key = launch_key("service", "spring", period)
        ledger.launches.freeze(
            NewLaunch(
                key,
                connection="service",
                campaign="spring",
                period=period,
                resend=0,
                definition=CAMPAIGN.model_dump_json(),
                audience=Audience("device_id", people, len(people), {}, {}),
                segments=(Segment(part) for part in people.slices(SEGMENT)),
                created_at=NOW,
                sends_at=NOW,
            )
        )
        claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
        while claim is not None:
            dispatch_key = claim.dispatch_key
            claim = ledger.dispatches.record_and_claim(claim, Accepted(200, 17), NOW, worker="w", lease=LEASE)
        reconcile_launch(ledger, key, now=NOW)
    return dispatch_key


class Sender:
    """Sends post-backs at a steady pace on one connection, and keeps how long each answer took."""

    def __init__(self, dispatch_key: str, took: list[float]) -> None:
        path = PostBackSigner(PUBLIC_URL, [SECRET]).sign("delivery", dispatch_key).removeprefix(PUBLIC_URL)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self._request, self._took = head.encode() + BODY, took

    async def send(self, is_over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        while not is_over.is_set():
            started = time.perf_counter()
            writer.write(self._request)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(f"answered {answer[:40]!r}")
            self._took.append(time.perf_counter() - started)
            await asyncio.sleep(max(0.0, CONNECTIONS / RATE - (time.perf_counter() - started)))
        writer.close()


async def load(
    dispatch_key: str, process: subprocess.Popen[bytes] | None = None
) -> tuple[list[float], float]:
    """Send post-backs for some seconds, or until a process ends. Return what each took, and the process's peak MiB."""
    took: list[float] = []
    peak = 0.0
    is_over = asyncio.Event()
    senders = [asyncio.create_task(Sender(dispatch_key, took).send(is_over)) for _ in range(CONNECTIONS)]
    until = time.perf_counter() + ALONE
    while process.poll() is None if process else time.perf_counter() < until:
        await asyncio.sleep(0.1)
        with suppress(IndexError):  # it has just ended
            peak = max(peak, peak_memory(psutil.Process(process.pid)) if process else 0.0)
    is_over.set()
    await asyncio.gather(*senders)
    return took, peak


def forget(url: str, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the erasure in a process of its own."""
    secret = {"SENDOFF_ERASURE_SECRET": "e" * 32, "SENDOFF_ERASURE_LOG": str(folder / "erasures.jsonl")}
    line = ["sendoff", "forget", *options, "--ledger", url]
    return subprocess.Popen(line, env={**os.environ, **secret}, stdout=subprocess.DEVNULL)


def remaining(url: str, people: Identifiers) -> int:
    """Count the people in every decoded set of the ledger."""
    with closing(Ledger(url)) as ledger:
        keys = [launch.launch_key for launch in ledger.launches.search(limit=2 * LAUNCHES)]
        sets = [each for key in keys for each in ledger.verdicts.sets(key).values()]
        sets += [
            content.identifiers
            for key in keys
            for dispatch in ledger.dispatch_queries.of_launch(key)
            if (content := ledger.dispatch_queries.segment(key, dispatch.segment)).identifiers is not None
        ]
        return sum(len(each & people) for each in sets)


def stored_sets(url: str) -> dict[tuple[Any, ...], bytes]:
    """Return the bytes of every set and body in the ledger."""
    found = {}
    engine = sa.create_engine(url)
    with engine.connect() as db:
        for table in TABLES:
            for column in (each for each in table.c if isinstance(each.type, sa.LargeBinary)):
                for row in db.execute(sa.select(column, *table.primary_key).where(column.is_not(None))):
                    found[table.name, column.name, *row[1:]] = row[0]
    engine.dispose()
    return found


def removed_pieces(before: dict[tuple[Any, ...], bytes], after: dict[tuple[Any, ...], bytes]) -> list[bytes]:
    """Return some bytes around differences of each value that changed, if no value has them any more."""
    pieces = set()
    for place, old in before.items():
        new = after.get(place, b"")
        short = min(len(old), len(new))
        differs = np.flatnonzero(np.frombuffer(old, "u1", short) != np.frombuffer(new, "u1", short))
        for at in (differs[0], differs[len(differs) // 2], differs[-1]) if len(differs) else ():
            start = max(0, int(at) - AHEAD)
            if len(piece := old[start : start + PIECE]) == PIECE:
                pieces.add(piece)
    return sorted(pieces - found_in(sorted(pieces), [b"".join(after.values())]))


def found_in(pieces: list[bytes], contents: Iterable[bytes]) -> set[bytes]:
    """Return the pieces that occur."""
    found: set[bytes] = set()
    starts = np.unique(np.frombuffer(b"".join(piece[:8] for piece in pieces), "<u8"))
    for content in contents:
        for shift in range(min(8, len(content))):
            words = np.frombuffer(content, "<u8", max(0, len(content) - shift) // 8, shift)
            for at in np.flatnonzero(np.isin(words, starts)) * 8 + shift:
                found.add(content[at : at + PIECE])
    return found.intersection(pieces)


def files(url: str) -> list[Path]:
    """Return the files of a database, written to disk."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    if engine.dialect.name == "sqlite":
        return [path for path in Path(str(engine.url.database)).parent.iterdir() if path.is_file()]
    with engine.connect() as db:
        db.exec_driver_sql("CHECKPOINT")
        root = db.exec_driver_sql("SHOW data_directory").scalar_one()
        number = db.exec_driver_sql(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).scalar_one()
    engine.dispose()
    return sorted((Path(root) / "base" / str(number)).iterdir())


def contents(paths: list[Path]) -> Iterator[bytes]:
    """Read files in overlapping parts."""
    for path in paths:
        with path.open("rb") as file:
            part = b""
            while more := file.read(READ):
                part = part[-PIECE:] + more
                yield part


def p99(took: list[float]) -> float:
    return round(1_000 * sorted(took)[int(len(took) * 0.99)], 1)


@contextmanager
def ledger_of(database: str) -> Iterator[str]:
    with postgres_ledger() if database == "postgresql" else sqlite_ledger() as url:
        yield url


def measure(database: str) -> dict[str, Any]:
    """Return the figures of one database."""
    with tempfile.TemporaryDirectory() as folder, ledger_of(database) as url:
        with closing(Ledger(url)) as ledger:
            dispatch_key = fill(ledger)
        people = np.random.default_rng(7).choice(DEVICES, PEOPLE, replace=False)
        names = Path(folder) / "people.txt"
        names.write_text("".join(f"{each}\n" for each in people))
        sets = stored_sets(url)
        with serving("receiver", url, 1):
            before, _ = uvloop.run(load(dispatch_key))
            start = time.perf_counter()
            process = forget(
                url, Path(folder), "--file", str(names), "--identified-by", "device_id", "--reason", "bench"
            )
            during, peak = uvloop.run(load(dispatch_key, process))
            seconds = time.perf_counter() - start
        if process.returncode:
            sys.exit(f"the erasure ended with {process.returncode}")
        pieces = removed_pieces(sets, stored_sets(url))
        deleted = len(found_in(pieces, contents(files(url))))
        if forget(url, Path(folder), "--reclaim").wait():
            sys.exit("the old bytes could not be removed")
        return {
            "seconds": round(seconds, 1),
            "peak_mib": round(peak),
            "p99_ms_alone": p99(before),
            "p99_ms_during": p99(during),
            "slowest_ms_during": round(1_000 * max(during)),
            "still_found": remaining(url, integers(people)),
            "old_pieces": len(pieces),
            "old_pieces_in_files": deleted,
            "old_pieces_after_reclaim": len(found_in(pieces, contents(files(url)))),
        }


def main() -> None:
    """Print the figures of each database, and one line of JSON."""
    print(
        f"{PEOPLE:,} people, {LAUNCHES} launches of {RECIPIENTS:,} recipients, {RATE} post-backs per second"
    )
    found = {}
    for database in DATABASES:
        found[database] = measure(database)
        print(f"{database}: {found[database]}", flush=True)
    print(json.dumps({"benchmark": "erasure", "recipients": RECIPIENTS, **found}))


if __name__ == "__main__":
    main()
