"""What own hours add to planning a launch: ten million recipients, and 50 earlier launches that a fifth of them opened.

Each earlier launch went to all recipients, in requests of 10,000. Its opens came at one of three hours of each person,
so that the usual hours take several launches to find. A launch with the same recipients is then planned and frozen, at
once and at own hours, each in a process of its own. Memory is counted beyond what the process has with its imports and
the rows of its audience. The identifiers are numbers without gaps, and random numbers of 63 bits, such as hashes.

``BENCH_SCALE`` is the number of recipients in units of ten million. The ledgers are SQLite and, if it answers, the
PostgreSQL of ``SENDOFF_TEST_POSTGRES_URL``. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from freezing import freeze
from shared import migrated, peak_memory, postgres_ledger

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, Period, campaign_from
from sendoff.launch import prepare_launch
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import open_hours

RECIPIENTS = int(10_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
LAUNCHES = 50
SHARE = 0.2
SEGMENT = 10_000
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
DAY = timedelta(days=1)
NUMBERS, HASHES = "numbers", "hashes"
SENDING: dict[str, dict[str, Any]] = {
    "at once": {"kind": "now"},
    "own hours": {"kind": "now", "own_hours": {}},
}


def campaign(send: dict[str, Any]) -> Campaign:
    return Campaign.model_validate(
        {
            "title": "Spring",
            "connection": "service",
            "message": {"title": "Hello", "text": "It is spring"},
            "channels": {"android_push": {}},
            "send": send,
            "segment_size": SEGMENT,
        }
    )


def identifiers(kind: str) -> Any:
    """Return the identifiers of the recipients as a sorted array."""
    if kind == NUMBERS:
        return np.arange(1, RECIPIENTS + 1)
    return np.unique(np.random.default_rng(7).integers(1, 2**63 - 1, RECIPIENTS))


def fill(url: str, kind: str) -> int:
    """Freeze the earlier launches, store the hours of their opens, and return the number of rows."""
    chance = np.random.default_rng(1)
    numbers = identifiers(kind)
    people = integers(numbers)
    habits = chance.integers(0, 24, (3, len(numbers)), dtype=np.int8)
    rows = 0
    with closing(Ledger(url)) as ledger:
        for number in range(LAUNCHES):
            period = Period(NOW - (number + 2) * DAY, NOW - (number + 1) * DAY)
            key = freeze(ledger, campaign(SENDING["at once"]), people, period, period.end, name="winter")
            hours = np.where(
                chance.random(len(numbers)) < SHARE,
                habits[chance.integers(0, 3, len(numbers)), np.arange(len(numbers))],
                -1,
            )
            keys = [each.dispatch_key for each in ledger.dispatch_queries.of_launch(key)]
            stored = list(_rows(keys, hours, numbers))
            with ledger._database.write() as db:
                db.execute(sa.insert(open_hours), stored)
            rows += len(stored)
    return rows


def _rows(keys: list[str], hours: Any, numbers: Any) -> Iterator[dict[str, Any]]:
    for place, key in enumerate(keys):
        first = place * SEGMENT
        of_segment = hours[first : first + SEGMENT]
        for hour in range(24):
            some = numbers[first : first + SEGMENT][of_segment == hour]
            if len(some):
                yield {"dispatch_key": key, "hour": hour, "identifiers": integers(some).to_bytes()}


def plan(url: str, kind: str, how: str) -> dict[str, float]:
    """Plan and freeze a launch; called in a process of its own."""
    table = pa.table({"device_id": pa.array(identifiers(kind))})
    folder = campaign_from(campaign(SENDING[how]), how.replace(" ", "_"), table)
    with closing(Ledger(url)) as ledger:
        ledger.launches.search(limit=1)
        before, start = peak_memory(), time.perf_counter()
        period = Period(NOW - DAY, NOW)
        launch = prepare_launch(ledger, folder, period=period, warehouses=_no_warehouse, now=NOW)
        seconds = time.perf_counter() - start
        known = sum(
            part.people for part in ledger.dispatch_queries.segment_sizes(launch.launch_key) if part.arm
        )
    return {"seconds": round(seconds, 2), "mib": round(peak_memory() - before), "with_arm": known}


def _no_warehouse(name: str) -> str:
    raise AssertionError(name)


def apart(url: str, kind: str, how: str) -> dict[str, float]:
    """Plan a launch in a process that has nothing but its imports."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["bench_own_hours"])
    with ProcessPoolExecutor(1, processes) as process:
        return process.submit(plan, url, kind, how).result()


def main() -> None:
    """Print what planning took, and one line of JSON."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for database, kind in (("SQLite", NUMBERS), ("SQLite", HASHES), ("PostgreSQL", NUMBERS)):
        with ExitStack() as stack:
            if database == "SQLite":
                place = stack.enter_context(tempfile.TemporaryDirectory())
                url = migrated(f"sqlite:///{Path(place) / 'ledger.db'}")
            else:
                try:
                    url = stack.enter_context(postgres_ledger())
                except sa.exc.OperationalError:
                    print("no PostgreSQL answers; only SQLite is measured")
                    continue
            name, rows = f"{database}, {kind}", fill(url, kind)
            print(
                f"{name}: {RECIPIENTS:,} recipients, {LAUNCHES} launches, {rows:,} rows of hours", flush=True
            )
            found[name] = {}
            for how in SENDING:
                its = found[name][how] = apart(url, kind, how)
                print(
                    f"  {how:10}{its['seconds']:8.2f} s {its['mib']:7,} MiB, {its['with_arm']:,} with an arm",
                    flush=True,
                )
    print(json.dumps({"benchmark": "own_hours", "recipients": RECIPIENTS, "launches": LAUNCHES, **found}))


if __name__ == "__main__":
    main()
