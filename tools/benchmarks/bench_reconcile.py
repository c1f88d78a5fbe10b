"""Reconciliation of a large launch in PostgreSQL, including aggregation, compared with ``pandas``.

The launch is frozen through the ledger and then accepted. Of its recipients, 90 % have a delivery and 25 % an open. 1 %
of the post-backs are duplicates, and all arrive in random order over the dispatches.

``sendoff``: aggregate and reconcile in a copy of the ledger that is made before the clock starts. ``pandas``: read the
recipients and the post-backs from tables of the same server with ``read_sql``, and merge both. It reads only the
columns that decide a verdict, and its counts must be the same. ``news``: reconcile again after 1 % more post-backs.

Each run has its own process, so that its peak memory is its own, including Python and imports. The time does not
include imports.

``BENCH_SCALE`` is the size of the launch in millions of recipients; 1 takes about a minute on an idle machine. With
10, it has ten million recipients and eleven and a half million post-backs. ``BENCH_SEGMENT`` is the size of a
dispatch (10,000), and ``BENCH_COMMIT`` that of a receiver's commit (500). ``BENCH_RECEIVERS`` is the number of
receivers that commit in turn (1). ``BENCH_ROUNDS`` is the number of rounds.
``SENDOFF_TEST_POSTGRES_URL`` is the server to use.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, cast

import sqlalchemy as sa
from shared import SERVER, postgres_database

PEOPLE = int(1_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
SEGMENT = int(os.environ.get("BENCH_SEGMENT", "10000"))
COMMIT = int(os.environ.get("BENCH_COMMIT", "500"))
RECEIVERS = int(os.environ.get("BENCH_RECEIVERS", "1"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
CAMPAIGN = 17

# Recipient p has device ID p, and one in ten numbers has no recipient. Of two random numbers, the first decides whether
# a post-back came, and the second its place. The recipients of a dispatch are one sorted segment of integers.
EVENTS = """
INSERT INTO came (number, kind, dispatch_key, received_at, device_id)
SELECT {after} + row_number() OVER (ORDER BY came), kind, dispatch_key,
       timestamptz '2026-03-02 09:00:00Z' + interval '2 hours' * came, device_id
FROM (
    SELECT kind, device_id, dispatch_key, random() AS came
    FROM sent, (VALUES ('delivery', {deliveries}), ('open', {opens})) AS kinds (kind, share),
         generate_series(1, 2) AS time
    WHERE abs(hashint8(device_id * 7 + length(kind))) % 1000 < share * 1000
      AND (time = 1 OR abs(hashint8(device_id + 5)) % 100 = 0)
) AS events
"""
SENT = """
CREATE UNLOGGED TABLE sent (dispatch_key varchar(32) NOT NULL, device_id bigint NOT NULL);
CREATE UNLOGGED TABLE came (
    number bigint NOT NULL, kind text NOT NULL, dispatch_key varchar(32) NOT NULL, received_at timestamptz NOT NULL,
    device_id bigint NOT NULL
);
"""


def make(url: str) -> None:
    """Create the tables: an accepted launch, its recipients in the form that pandas reads, and post-backs."""
    import psycopg
    from freezing import freeze

    from sendoff.audience.identifiers import integers
    from sendoff.campaign import Campaign, Period
    from sendoff.ledger import Ledger

    email = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
    campaign = Campaign.model_validate(
        {"title": "Spring", "channels": {"email": email}, "segment_size": SEGMENT}
    )
    period = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
    numbers = range(1, PEOPLE + PEOPLE // 9 + 1)
    people = integers([each for each in numbers if each % 10][:PEOPLE])
    ledger = Ledger(url)
    ledger.migrate()
    key = freeze(ledger, campaign, people, period, NOW, sends_at=datetime(2026, 3, 2, 9, tzinfo=UTC))
    segments = list(ledger.dispatch_queries.segments(key))
    for _ in range(RECEIVERS):
        ledger.post_backs.register_receiver("bench", NOW)
    ledger.close()
    engine = sa.create_engine(url)
    with engine.begin() as db:
        db.execute(
            sa.text(f"UPDATE dispatches SET state = 'accepted', attempt = 1, campaign_id = {CAMPAIGN}")
        )
        db.execute(sa.text(SENT))
        driver = cast("psycopg.Connection", db.connection.dbapi_connection)
        with driver.cursor().copy("COPY sent FROM STDIN") as copy:
            for dispatch, members in segments:
                copy.write("".join(f"{dispatch.dispatch_key}\t{each}\n" for each in members))
        db.execute(sa.text("SELECT setseed(0.5)"))
        db.execute(_events(after=0, deliveries=0.9, opens=0.25))
    store(url, after=0)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))
    engine.dispose()


def _events(*, after: int, deliveries: float, opens: float) -> sa.TextClause:
    return sa.text(EVENTS.format(after=after, deliveries=deliveries, opens=opens))


def store(url: str, *, after: int) -> None:
    """Store the post-backs of the table ``came`` like receivers that commit in turn."""
    from sendoff.ledger import Ledger
    from sendoff.ledger.post_backs.post_backs import stored_runs
    from sendoff.service.postbacks import PostBack
    from sendoff.service.wire import PostBackBody

    fast = sa.make_url(url).update_query_dict({"options": "-c synchronous_commit=off"})
    ledger = Ledger(fast.render_as_string(hide_password=False))
    engine = sa.create_engine(url)
    query = sa.text(f"SELECT * FROM came WHERE number > {after} ORDER BY number")
    with engine.connect().execution_options(stream_results=True, max_row_buffer=50_000) as db:
        newest = {run.receiver: run.newest for run in stored_runs(ledger._database)}
        for receiver, rows in zip(
            cycle(range(1, RECEIVERS + 1)), db.execute(query).partitions(COMMIT), strict=False
        ):
            numbered = []
            first = newest.get(receiver, 0) + 1
            newest[receiver] = first + len(rows) - 1
            for number, (_, kind, dispatch_key, received_at, device_id) in enumerate(rows, first):
                body = PostBackBody(received_at.replace(microsecond=0), device_id, campaign_id=CAMPAIGN)
                numbered.append((number, PostBack(kind, dispatch_key, received_at, b"", body)))
            ledger.post_backs.store(receiver, numbered)
    engine.dispose()
    ledger.close()


def reconcile_with_sendoff(url: str) -> dict[str, Any]:
    from sendoff.ledger import Ledger
    from sendoff.postbacks.aggregation import aggregate
    from sendoff.postbacks.reconcile import reconcile_launch

    ledger = Ledger(url)  # imports the driver, and opens no connection
    start, cpu = time.perf_counter(), time.process_time()
    aggregated = aggregate(ledger, now=NOW)
    after_aggregation = time.perf_counter()
    figures = [reconcile_launch(ledger, key, now=NOW) for key in ledger.verdicts.stale()]
    end = time.perf_counter()
    (only,) = figures
    return {
        "seconds": end - start,
        "aggregate": after_aggregation - start,
        "reconcile": end - after_aggregation,
        "cpu": time.process_time() - cpu,
        "post_backs": aggregated,
        "verdicts": dict(only.verdicts),
    }


def reconcile_with_pandas(url: str) -> dict[str, Any]:
    import numpy as np
    import pandas as pd

    engine = sa.create_engine(url)
    start = time.perf_counter()
    with engine.connect() as db:
        sent = pd.read_sql(sa.text("SELECT dispatch_key, device_id FROM sent"), db)
        came = pd.read_sql(
            sa.text("SELECT dispatch_key, device_id, kind FROM came"),
            db,
        )
    read = time.perf_counter()
    came["verdict"] = np.where(came.pop("kind") == "open", 2, 1)
    came = came.sort_values("verdict").drop_duplicates(["dispatch_key", "device_id"], keep="last")
    merged = sent.merge(came, on=["dispatch_key", "device_id"], how="left")
    counts = merged["verdict"].fillna(0).value_counts()
    end = time.perf_counter()
    return {
        "seconds": end - start,
        "merge": end - read,
        "post_backs": len(came),
        "verdicts": {
            name: int(counts.get(verdict, 0))
            for verdict, name in enumerate(("missing", "delivered", "engaged"))
        },
    }


WAYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "pandas": reconcile_with_pandas,
    "sendoff": reconcile_with_sendoff,
    "news": reconcile_with_sendoff,
}


def child(name: str) -> None:
    """Create the tables, or reconcile once and print the counts and the peak memory in MiB."""
    if name == "make":
        make(os.environ["BENCH_URL"])
        return
    done = WAYS[name](os.environ["BENCH_URL"])  # not an argument: it may hold a password
    print(json.dumps({**done, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def run(name: str, url: str) -> dict[str, Any]:
    line = [sys.executable, str(Path(__file__).resolve()), name]
    done = subprocess.run(line, env={**os.environ, "BENCH_URL": url}, check=True, stdout=subprocess.PIPE)
    result: dict[str, Any] = json.loads(done.stdout or "{}")
    return result


def measure(template: str) -> dict[str, dict[str, float]]:
    """Reconcile in turn for several rounds, and return the median of every figure."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for number in range(1, ROUNDS + 1):
        with postgres_database(template) as url:
            counts = []
            for name in WAYS:
                if name == "news":
                    _more(url)
                result = run(name, url)
                verdicts = {verdict: count for verdict, count in result.pop("verdicts").items() if count}
                counts.append(verdicts)
                seen[name].append(result)
                figures = "  ".join(f"{key} {value:,.2f}" for key, value in result.items())
                print(f"  round {number}  {name:10}{figures}", flush=True)
        if counts[0] != counts[1]:
            sys.exit(f"pandas and sendoff do not count the same: {counts}")
    return {name: {key: median(run[key] for run in runs) for key in runs[0]} for name, runs in seen.items()}


def _more(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as db:
        newest = db.scalar(sa.text("SELECT max(number) FROM came"))
        db.execute(_events(after=newest, deliveries=0.009, opens=0.0025))
    store(url, after=newest)
    engine.dispose()


def report(medians: dict[str, dict[str, float]]) -> dict[str, float | None]:
    ours, pandas, news = medians["sendoff"], medians["pandas"], medians["news"]
    print(f"\n{PEOPLE:,} people, {ours['post_backs']:,.0f} post-backs, medians of {ROUNDS} rounds")
    for name, of in medians.items():
        print(f"  {name:10}{of['seconds']:8.2f} s {of['peak']:8.0f} MiB")
    return {
        "people": PEOPLE,
        "dispatches": -(-PEOPLE // SEGMENT),
        "post_backs": round(ours["post_backs"]),
        "seconds": round(ours["seconds"], 2),
        "seconds_of_10_million": round(ours["seconds"], 2) if PEOPLE == 10_000_000 else None,
        "aggregate_seconds": round(ours["aggregate"], 2),
        "reconcile_seconds": round(ours["reconcile"], 2),
        "cpu_seconds": round(ours["cpu"], 2),
        "receivers": RECEIVERS,
        "post_backs_per_second": round(ours["post_backs"] / ours["seconds"]),
        "peak_mib": round(ours["peak"], 1),
        "pandas_seconds": round(pandas["seconds"], 2),
        "pandas_peak_mib": round(pandas["peak"], 1),
        "times_pandas_speed": round(pandas["seconds"] / ours["seconds"], 2),
        "pandas_merge_alone_over_ours": round(pandas["merge"] / ours["seconds"], 2),
        "pandas_memory_over_ours": round(pandas["peak"] / ours["peak"], 2),
        "news_post_backs": round(news["post_backs"]),
        "news_seconds": round(news["seconds"], 2),
        "news_peak_mib": round(news["peak"], 1),
    }


def main() -> None:
    print(f"Reconciliation: a launch of {PEOPLE:,} people in PostgreSQL")
    try:
        with postgres_database() as url:
            run("make", url)  # in another process: a child's peak memory is never below its parent's
            figures = report(measure(str(sa.make_url(url).database)))
    except sa.exc.OperationalError:
        where = sa.make_url(SERVER).render_as_string(hide_password=True)
        print(f"left out: no PostgreSQL answers at {where}; set SENDOFF_TEST_POSTGRES_URL")
        figures = {}
    print(json.dumps({"benchmark": "reconcile", **figures}))


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
