"""Measures the cost of each step of a launch on this machine, with the real code at a small scale.

All times are elapsed times, including PostgreSQL's share, because a process waits for that as well. :func:`measure`
takes half a minute on an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import sqlalchemy as sa
from simulation import Costs

from sendoff.audience.build import Audience, build_audience
from sendoff.audience.identifiers import Identifiers, IntegerIdentifiers, integers
from sendoff.audience.segmentation import Segment, segments_of
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.dispatch.worker import LEASE
from sendoff.launch.suppression import Rule, apply_rules
from sendoff.ledger import Claim, Ledger, NewLaunch
from sendoff.period import Period, launch_key
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.postbacks import PostBack, PostBackSigner
from sendoff.service.wire import Targeting, create_body
from sendoff.states import Accepted
from sendoff.warehouse import read

SERVER = os.environ.get("SENDOFF_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")

ROWS = 1_000_000
PEOPLE = 300_000
SEGMENT = 10_000
RULED = 5_000_000
SMALL = 2_000  # dispatches with few recipients, to separate the cost per dispatch from the cost per recipient
CLAIMED = 300
STORED = 20_000
SCATTERED = 10_000_000
HELD = 20_000_000
LEDGER_PROCESSES = 4
CLAIMING = 1.5  # seconds
LARGE = 1_000_000_000  # recipients' numbers are around this, because the number of digits matters

PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
ADDRESSES = PostBackSigner("https://events.example.com", ["s" * 32])
BODY = (
    b'{"time":1772355600,"device":{"id":1000345678},"profile":{"id":2345678,"user_id":"customer-2345678"},'
    b'"send":{"id":345678},"campaign":{"id":45678}}'
)
_resends = count()

# One delivery for each recipient of a launch, and an open for every third, in random order.
EVENTS = """
INSERT INTO post_backs (receiver, number, kind, dispatch_key, received_at, occurred_at, device_id, profile_id, user_id,
    send_id, campaign_id, readable, body)
SELECT CAST(:receiver AS integer), row_number() OVER (ORDER BY hashint8(device_id * 7 + length(kind))), kind,
    dispatch_key, CAST(:now AS timestamptz), CAST(:now AS timestamptz), device_id, device_id, 'customer-' || device_id,
    device_id, campaign_id, true, CAST(:body AS bytea)
FROM (
    SELECT dispatch_key, campaign_id, kind,
        CAST(:first AS bigint) + (segment - 1) * CAST(:size AS integer) + place AS device_id
    FROM dispatches, generate_series(0, CAST(:size AS integer) - 1) AS place,
        (VALUES ('delivery'), ('open')) AS kinds (kind)
    WHERE launch_key = :launch AND (kind = 'delivery' OR place % 3 = 0)
) AS events
"""


@dataclass(frozen=True)
class Room:
    """Sizes in memory and on disk, in bytes."""

    dense: float  # per person of an audience that has every number
    by_chance: float  # per person, if nine in ten numbers are in it
    scattered: float  # per person, if numbers are spread over 63 bits
    planned: float  # per person, in a process that plans and freezes a launch, without imports
    in_ledger: float  # per person of a launch that was sent, aggregated, and reconciled
    post_back: float  # per post-back, including its index
    body: float  # per person in the body of a request


def measure(receivers_per_second: float | None, say: Callable[[str], None]) -> tuple[Costs, Room]:
    """Measure every step; the receiver only if no figure is given. ``say`` receives the name of the next step."""
    with postgres_database() as url, closing(Ledger(url)) as ledger:
        ledger.migrate()
        say("reading, rules")
        row, ruled = reading(url), rules(ledger)
        say("a launch from freezing to its report")
        dense = whole_launch(ledger, url, numbers(PEOPLE, 1.0), SEGMENT)
        small = whole_launch(ledger, url, numbers(SMALL * 10, 1.0), 10)
        aggregate_post_back, aggregate_dispatch = apart(
            (dense.post_backs, dense.dispatches, dense.aggregate),
            (small.post_backs, small.dispatches, small.aggregate),
        )
        segment_bytes, chance_seconds = freezing_by_chance(ledger)
        freeze_byte, freeze_segment = apart(
            (segment_bytes, PEOPLE / SEGMENT, chance_seconds), (small.segment_bytes, SMALL, small.freeze)
        )
        say("ledger transactions")
        transaction = transactions(ledger)
        most = transactions_at_once(ledger, url)
        say("writing, storing")
        write, body = writing()
        store, post_back = storing(ledger, url)
    say("memory")
    planned, scattered = in_a_process("planned"), in_a_process("scattered")
    if receivers_per_second is None:
        say("receiver")
        receivers_per_second = receiving()
    costs = Costs(
        read=row,
        rules=ruled,
        freeze=freeze_segment,
        freeze_byte=freeze_byte,
        transaction=transaction,
        transactions_per_second=max(most, 1 / transaction),
        write=write,
        receivers_per_second=receivers_per_second,
        store=store,
        aggregate=aggregate_post_back,
        aggregate_dispatch=aggregate_dispatch,
        reconcile=dense.reconcile / PEOPLE,
        segment_bytes=segment_bytes / PEOPLE,
    )
    room = Room(
        dense=numbers(PEOPLE, 1.0).stored_bytes / PEOPLE,
        by_chance=numbers(PEOPLE, 0.9).stored_bytes / PEOPLE,
        scattered=scattered,
        planned=planned,
        in_ledger=dense.ledger_bytes / PEOPLE,
        post_back=post_back,
        body=body,
    )
    return costs, room


def apart(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float]:
    """Return the unit costs of two things, from two totals that contain both; neither is below 0."""
    many, few, seconds = first
    fewer, more, other = second
    each = max(0.0, (seconds - other * few / more) / (many - fewer * few / more))
    return each, max(0.0, (other - each * fewer) / more)


def timed(what: Callable[[], object]) -> float:
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def numbers(people: int, share: float) -> IntegerIdentifiers:
    """Return ``people`` random numbers from LARGE up; ``share`` is their density."""
    drawn = np.random.default_rng(1).random(round(people / share * 1.01) + 100) < share
    return integers((np.flatnonzero(drawn)[:people] + LARGE).astype(np.int64))


def folder(**fields: Any) -> CampaignFolder:
    made = Campaign.model_validate(
        {
            "title": "Spring",
            "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}},
            "send": {"kind": "once", "date": "2040-01-01", "time": "10:00", "time_zone": "UTC"},
            "segment_size": SEGMENT,
            **fields,
        }
    )
    return CampaignFolder("spring", made, "SELECT device_id FROM devices", Path(), {})


def audience_of(people: IntegerIdentifiers) -> Audience:
    return Audience("device_id", people, len(people), {}, {})


def reading(url: str) -> float:
    """Return the seconds per row."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as db:
        db.execute(
            sa.text(
                f"CREATE UNLOGGED TABLE devices AS SELECT n::bigint AS device_id FROM generate_series(1, {ROWS}) n"
            )
        )
        db.execute(sa.text("VACUUM ANALYZE devices"))

    def into_an_audience() -> None:
        with read(url, "SELECT device_id FROM devices") as batches:
            build_audience(batches)

    seconds = min(timed(into_an_audience) for _ in range(3)) / ROWS
    with engine.connect() as db:
        db.execute(sa.text("DROP TABLE devices"))
    engine.dispose()
    return seconds


def rules(ledger: Ledger) -> float:
    """Return the seconds per person for an exclusion, a holdout, the fingerprint, and cutting."""
    people, returned = numbers(RULED, 0.9), numbers(RULED // 10, 0.1)
    return timed(lambda: cut(ledger, people, returned)) / RULED


def cut(ledger: Ledger, people: IntegerIdentifiers, returned: IntegerIdentifiers) -> list[Segment]:
    ruled = folder(
        audience={"exclude": [{"kind": "file", "file": "returned.csv"}], "holdout": {"percent": 5}}
    )
    now = datetime.now(UTC)
    audience = Audience("device_id", people, len(people), {}, {})
    excluded: dict[Rule, Identifiers] = {ruled.campaign.audience.exclude[0]: returned}
    kept = apply_rules(ruled, audience, excluded=excluded, ledger=ledger, sends_at=now, now=now)
    assert kept.audience.fingerprint
    return list(segments_of(ruled.campaign, kept.sent_to, name="spring"))


@dataclass(frozen=True)
class Whole:
    """The seconds of one launch from freezing to its report, and its sizes."""

    post_backs: int
    dispatches: int
    freeze: float
    aggregate: float
    reconcile: float
    segment_bytes: int
    ledger_bytes: int


def whole_launch(ledger: Ledger, url: str, people: IntegerIdentifiers, size: int) -> Whole:
    before = ledger_bytes(url)
    key, frozen = freeze(ledger, people, size)
    claim_until_none(ledger, key)
    came = come_back(ledger, url, key, int(next(iter(people))), size)
    aggregated = timed(lambda: aggregate(ledger))
    reconciled = timed(lambda: reconcile_launch(ledger, key))
    return Whole(
        post_backs=came,
        dispatches=-(-len(people) // size),
        freeze=frozen,
        aggregate=aggregated,
        reconcile=reconciled,
        segment_bytes=sum(len(each.to_bytes()) for _, each in ledger.dispatch_queries.segments(key)),
        ledger_bytes=ledger_bytes(url) - before,
    )


def freeze(ledger: Ledger, people: IntegerIdentifiers, size: int) -> tuple[str, float]:
    """Freeze another launch, and return its key and the seconds."""
    resend = next(_resends)
    key = launch_key("service", "spring", PERIOD, resend)
    segments = [Segment(each) for each in people.slices(size)]
    audience, now = audience_of(people), datetime.now(UTC)

    def stored() -> None:
        ledger.launches.freeze(
            NewLaunch(
                key,
                connection="service",
                campaign="spring",
                period=PERIOD,
                resend=resend,
                definition=folder().campaign.model_dump_json(),
                audience=audience,
                segments=segments,
                created_at=now,
                state="released",
                sends_at=now,
            )
        )

    return key, timed(stored)


def freezing_by_chance(ledger: Ledger) -> tuple[int, float]:
    """Return the bytes of a launch to nine in ten numbers, and the seconds of freezing it."""
    key, seconds = freeze(ledger, numbers(PEOPLE, 0.9), SEGMENT)
    return sum(len(each.to_bytes()) for _, each in ledger.dispatch_queries.segments(key)), seconds


def come_back(ledger: Ledger, url: str, key: str, first: int, size: int) -> int:
    """Store the post-backs of a launch under a new receiver, and return their number."""
    now = datetime.now(UTC)
    values = {"launch": key, "first": first, "size": size, "now": now, "body": BODY}
    engine = sa.create_engine(url)
    with engine.begin() as db:
        receiver = ledger.post_backs.register_receiver("steps", now)
        came = db.execute(sa.text(EVENTS), {**values, "receiver": receiver}).rowcount
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("ANALYZE"))
    engine.dispose()
    return came


def claim_until_none(
    ledger: Ledger, key: str, most: int | None = None, seconds: float = float("inf")
) -> tuple[int, float]:
    """Record and claim one dispatch after the other, and return their number and the seconds."""
    worker = {"worker": uuid4().hex, "lease": LEASE}
    claim: Claim | None = ledger.dispatches.claim(key, now=datetime.now(UTC), **worker)  # type: ignore[arg-type]
    done, start = 0, time.perf_counter()
    while claim and done != most and time.perf_counter() - start < seconds:
        done += 1
        claim = ledger.dispatches.record_and_claim(
            claim,
            Accepted(200, 45_678),
            datetime.now(UTC),
            **worker,  # type: ignore[arg-type]
        )
    return done, time.perf_counter() - start


def transactions(ledger: Ledger) -> float:
    """Return the seconds of recording an outcome and claiming the next dispatch, over one connection."""
    key, _ = freeze(ledger, numbers(SEGMENT * (CLAIMED + 2), 0.9), SEGMENT)
    claim_until_none(ledger, key, 20)
    done, seconds = claim_until_none(ledger, key, CLAIMED - 40)
    return seconds / done


def transactions_at_once(ledger: Ledger, url: str) -> float:
    """Return how many such transactions several processes make per second, with a connection each."""
    key, _ = freeze(ledger, numbers(1_000 * 5_000, 0.9), 1_000)
    with ProcessPoolExecutor(LEDGER_PROCESSES, get_context("spawn")) as processes:
        of_each = list(processes.map(claim_in_a_process, [url] * LEDGER_PROCESSES, [key] * LEDGER_PROCESSES))
    return sum(done / seconds for done, seconds in of_each)


def claim_in_a_process(url: str, key: str) -> tuple[int, float]:
    with closing(Ledger(url)) as ledger:
        claim_until_none(ledger, key, 5)
        return claim_until_none(ledger, key, seconds=CLAIMING)


def writing() -> tuple[float, float]:
    """Return the seconds and bytes per person in the body of a request."""
    campaign = folder().campaign
    sent_to = [Targeting("device_id", each) for each in numbers(PEOPLE, 0.9).slices(SEGMENT)]
    addresses = ADDRESSES.for_dispatch(uuid4().hex, campaign.post_backs.kinds)

    def body(targeting: Targeting) -> bytes:
        return create_body(campaign, title=campaign.title, targeting=targeting, post_backs=addresses)

    seconds = timed(lambda: [body(each) for each in sent_to])
    return seconds / PEOPLE, len(body(sent_to[0])) / SEGMENT


def storing(ledger: Ledger, url: str) -> tuple[float, float]:
    """Return the seconds per post-back with 500 per commit, and its bytes on disk including its index."""
    now = datetime.now(UTC)
    receiver = ledger.post_backs.register_receiver("steps", now)
    came = [
        (number, PostBack.received("delivery", uuid4().hex, now, BODY)) for number in range(1, STORED + 1)
    ]
    before = post_back_bytes(url)

    def stored() -> None:
        for start in range(0, STORED, 500):
            ledger.post_backs.store(receiver, came[start : start + 500])

    seconds = timed(stored)
    return seconds / STORED, (post_back_bytes(url) - before) / STORED


def post_back_bytes(url: str) -> int:
    return scalar(url, "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('post_backs')")


def ledger_bytes(url: str) -> int:
    """Return the bytes of a launch in the ledger without its post-backs."""
    names = [
        "segments",
        "dispatches",
        "attempts",
        "outcomes",
        "dispatch_totals",
        "verdicts",
        "reports",
        "timeline",
    ]
    return scalar(url, f"SELECT {' + '.join(f'pg_total_relation_size({name!r})' for name in names)}")


def scalar(url: str, query: str) -> int:
    engine = sa.create_engine(url)
    with engine.connect() as db:
        found = db.scalar(sa.text(query))
    engine.dispose()
    return int(found or 0)


def receiving() -> float:
    """Return how many post-backs one receiver process takes per second, from a short run of its benchmark."""
    os.environ["BENCH_SCALE"] = "0.7"
    import bench_receiver

    with bench_receiver.postgres_ledger() as url:
        return bench_receiver.measure("receiver", url, 1).rate


# Memory, measured in separate processes


def planned() -> float:
    """Return the bytes per person for planning and freezing a launch, above the process's initial memory."""
    with tempfile.TemporaryDirectory() as place, closing(Ledger(f"sqlite:///{place}/ledger.db")) as ledger:
        ledger.migrate()
        cut(ledger, numbers(RULED // 100, 0.9), numbers(1_000, 0.1))
        before = peak()
        people = in_blocks(HELD)
        segments = cut(ledger, people, numbers(1_000, 0.1))
        assert sum(map(len, segments)) > HELD // 2
        return (peak() - before) / HELD


def in_blocks(people: int) -> IntegerIdentifiers:
    """Return the same as :func:`numbers` with a share of 0.9, without holding all of them as numbers."""
    import pyarrow as pa

    from sendoff.audience.identifiers import builder

    chance, gathered = np.random.default_rng(1), builder("integer")
    for start in range(LARGE, LARGE + round(people / 0.9), 1 << 16):
        gathered.add(pa.array((np.flatnonzero(chance.random(1 << 16) < 0.9) + start).astype(np.uint64)))
    return gathered.identifiers()  # type: ignore[return-value]


def scattered() -> float:
    """Return the bytes per number in a set of numbers spread over 63 bits."""
    drawn = np.random.default_rng(1).integers(1, 2**63 - 1, SCATTERED)
    before = psutil.Process().memory_info().rss
    held = integers(drawn)
    return (psutil.Process().memory_info().rss - before) / len(held)


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024


def in_a_process(name: str) -> float:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), name], check=True, stdout=subprocess.PIPE
    )
    return float(json.loads(done.stdout))


@contextmanager
def postgres_database() -> Iterator[str]:
    """Yield the URL of a new database, and drop it at the end."""
    name = f"sendoff_bench_{uuid4().hex[:12]}"
    engine = sa.create_engine(
        SERVER, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool, connect_args={"connect_timeout": 3}
    )
    with engine.connect() as db:
        db.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        url = sa.make_url(SERVER).set(drivername="postgresql+psycopg", database=name)
        yield url.render_as_string(hide_password=False)
    finally:
        with engine.connect() as db:
            db.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


if __name__ == "__main__":
    print(json.dumps({"planned": planned, "scattered": scattered}[sys.argv[1]]()))
