"""Erasing a thousand people from thirteen launches of ten million, while the receiver stores post-backs.

Each launch has segments with template values, groups, a holdout, recipients withheld at a claim, verdicts and a report.
The people have post-backs in the first launch, some of them unreadable, and are in an uploaded list and in the
suppression list. The command ``sendoff forget`` runs in a process of its own. The receiver gets ``RATE`` post-backs per
second on a few connections, first alone and then during the erasure.

At the end, every place that may name people is decoded and compared with them. The bytes that the erasure changed are
searched for in the database's files, before and after ``sendoff forget --reclaim``. On PostgreSQL, this program must be
allowed to read the server's folder. The write-ahead log is counted apart, because its files are recycled without being
overwritten. A SQLite built with SECURE_DELETE, such as Debian's, overwrites old bytes at once. The exit code is 1 if a
person or a piece is still found.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
import uvloop
from bench_receiver import BODY, PORT, PUBLIC_URL, SECRET, serving
from freezing import freeze
from shared import peak_memory, postgres_ledger, sqlite_ledger

from sendoff.audience import read_template_values
from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, from_bytes, integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period
from sendoff.dispatch.worker import LEASE
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.erasure.person_columns import SETS, TABLES, People, naming, rows_of
from sendoff.ledger.post_backs.post_backs import stored_runs
from sendoff.ledger.storage.bulk import streamed
from sendoff.ledger.storage.schema import erasure_queue, segments, suppressions
from sendoff.postbacks import reconcile_launch
from sendoff.service.postbacks import PostBack, PostBackSigner
from sendoff.states import Accepted

LAUNCHES, PEOPLE, SEGMENT = 13, 1_000, 10_000
VALUES_EACH = 10  # one segment in ten has template values
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


def fill(ledger: Ledger, gone: Sequence[int]) -> str:
    """Freeze the launches, record each request as accepted, and make the reports. Return one dispatch key.

    The people to erase are in every launch, list and post-back.
    """
    people = integers(DEVICES)
    groups = {"platform": {"android": people, "ios": integers(gone)}}
    holdout = integers(DEVICES[:: RECIPIENTS // 1_000])
    ledger.suppressions.add(SuppressionChange("account", "device_id", "bench", "bench"), gone[:10], NOW)
    for number in range(LAUNCHES):
        period = Period(NOW - timedelta(days=number + 1), NOW - timedelta(days=number))
        key = freeze(
            ledger,
            CAMPAIGN,
            people,
            period,
            NOW,
            audience=Audience("device_id", people, len(people), {}, groups),
            segments=(
                Segment(part, template_values=named(part) if place % VALUES_EACH == 0 else None)
                for place, part in enumerate((people - holdout).slices(SEGMENT))
            ),
            suppressed={"holdout": holdout, "cap": integers(gone)},
        )
        claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
        while claim is not None:
            dispatch_key, recipients = claim.dispatch_key, claim.content.identifiers
            if number == 0 and recipients is not None:
                post_back(ledger, dispatch_key, recipients & integers(gone))
            claim = ledger.dispatches.record_and_claim(claim, Accepted(200, 17), NOW, worker="w", lease=LEASE)
        reconcile_launch(ledger, key, now=NOW)
    ledger.uploaded_lists.store("complained", "device_id", people, "bench", NOW)
    listed = [*gone, *DEVICES[:PEOPLE].tolist()]
    ledger.suppressions.add(SuppressionChange("topic:news", "device_id", "bench", "bench"), listed, NOW)
    return dispatch_key


def named(people: Identifiers) -> bytes:
    """Return template values of recipients, each with the recipient's number in it."""
    names = pa.array([f"name {each:09}" for each in people], pa.large_string())
    table = pa.table(
        {"name": names}, schema=pa.schema([pa.field("name", names.type, metadata={"holds": "text"})])
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def post_back(ledger: Ledger, dispatch_key: str, people: Identifiers) -> None:
    """Store post-backs of people: a delivery of each, an open, and an unreadable body."""
    received = [
        PostBack.received(kind, dispatch_key, NOW, body)
        for device in people
        for kind, body in (
            ("delivery", json.dumps({"time": 1_772_355_600, "device": {"id": device}}).encode()),
            ("open", json.dumps({"time": 1_772_355_600, "device": {"id": device}}).encode()),
            ("open", b"broken %d" % device),
        )
    ]
    if received:
        receiver = ledger.post_backs.register_receiver("bench", NOW)
        ledger.post_backs.store(receiver, list(enumerate(received, 1)))


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
            peak = max(peak, peak_memory(process.pid) if process else 0.0)
    is_over.set()
    await asyncio.gather(*senders)
    return took, peak


def forget(url: str, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the command that erases people in a process of its own."""
    secret = {"SENDOFF_ERASURE_SECRET": "e" * 32, "SENDOFF_ERASURE_LOG": str(folder / "erasures.jsonl")}
    line = [str(Path(sys.executable).with_name("sendoff")), "forget", *options, "--ledger", url]
    return subprocess.Popen(line, env={**os.environ, **secret}, stdout=subprocess.DEVNULL)


def remaining(url: str, people: Sequence[int]) -> dict[str, int]:
    """Count the people in every decoded place of the ledger, by place. Places without any are left out."""
    gone, found = integers(people), Counter[str]()
    names = {f"name {each:09}" for each in people}
    with closing(Ledger(url)) as ledger:
        database = ledger._database
        for column in SETS:
            query = streamed(rows_of(column, "device_id", "integer"))
            with database.read() as db, db.execute(query) as rows:
                for row in rows:
                    found[str(column)] += len(from_bytes("integer", row.blob) & gone)
        with database.read() as db:
            values = sa.select(segments.c.template_values).where(segments.c.template_values.is_not(None))
            for value in db.scalars(streamed(values)):
                found["segments.template_values"] += sum(
                    each["name"] in names for each in read_template_values(value)
                )
            listed = sa.select(suppressions.c.identifier)
            found["erasure_queue.identifier"] = (
                db.scalar(sa.select(sa.func.count()).select_from(erasure_queue)) or 0
            )
            found["suppressions.identifier"] = len(set(map(int, db.scalars(listed))) & set(people))
        for run in stored_runs(database):
            found["post_backs.block"] += len(
                naming(database, People.of("device_id", list(map(str, people))), run)
            )
    return {place: count for place, count in found.items() if count}


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


def log_files(url: str) -> list[Path]:
    """Return the files of PostgreSQL's write-ahead log; none on SQLite, whose log is beside the database."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    if engine.dialect.name == "sqlite":
        return []
    with engine.connect() as db:
        root = db.exec_driver_sql("SHOW data_directory").scalar_one()
    engine.dispose()
    return sorted(path for path in (Path(root) / "pg_wal").iterdir() if path.is_file())


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
            people = np.random.default_rng(7).choice(DEVICES, PEOPLE, replace=False).tolist()
            dispatch_key = fill(ledger, people)
        before_it = remaining(url, people)
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
        start = time.perf_counter()
        if forget(url, Path(folder), "--reclaim").wait():
            sys.exit("the old bytes could not be removed")
        reclaiming = time.perf_counter() - start
        return {
            "seconds": round(seconds, 1),
            "peak_mib": round(peak),
            "p99_ms_alone": p99(before),
            "p99_ms_during": p99(during),
            "slowest_ms_during": round(1_000 * max(during)),
            "found_before": before_it,
            "still_found": remaining(url, people),
            "reclaim_seconds": round(reclaiming, 1),
            "old_pieces": len(pieces),
            "old_pieces_in_files": deleted,
            "old_pieces_after_reclaim": len(found_in(pieces, contents(files(url)))),
            "old_pieces_in_log_after_reclaim": len(found_in(pieces, contents(log_files(url)))),
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
    if left := [
        name for name, each in found.items() if each["still_found"] or each["old_pieces_after_reclaim"]
    ]:
        sys.exit(f"people were still found in: {', '.join(left)}")


if __name__ == "__main__":
    main()
