"""An audience from nine tenths of a PostgreSQL table, compared with ``pandas.read_sql`` and psql's COPY.

It reads integers, integers with a group, texts, and integers in at most two parts at once, compared with one part. On
two cores shared with the server, and if two parts would not be faster, both are one part.

Each reading has its own process, so that its peak memory is its own, including Python and imports. The time runs from
before the connection is opened until the identifiers are ready, and does not include imports.

``BENCH_SCALE`` is the size of the table in units of six million rows; 1 takes about a minute on an idle machine.
``BENCH_ROUNDS`` is the number of rounds. ``SENDOFF_TEST_POSTGRES_URL`` is the server to use.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import sqlalchemy as sa
from shared import SERVER, postgres_database

ROWS = int(6_000_000 * float(os.environ.get("BENCH_SCALE", "1")))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))

IDENTIFIERS = "SELECT device_id FROM devices WHERE device_id % 10 <> 0"
IN_PARTS = f"{IDENTIFIERS} AND device_id / 10 % :parts = :part"
WITH_PLATFORM = "SELECT device_id, platform FROM devices WHERE device_id % 10 <> 0"
TEXTS = "SELECT external_id FROM devices WHERE device_id % 10 <> 0"
NO_ROWS = "SELECT external_id FROM devices WHERE device_id = 0"  # shows the memory of Python and imports
TABLES = f"""
CREATE UNLOGGED TABLE devices AS
    SELECT n::bigint AS device_id, (ARRAY['android', 'ios', 'chrome', 'firefox', 'safari'])[1 + n % 5] AS platform,
        'customer-' || n AS external_id
    FROM generate_series(1, {ROWS}) n;
VACUUM ANALYZE devices;
"""


def read_with_sendoff(url: str, sql: str, parts: int | None = None) -> tuple[float, int]:
    from sendoff.audience.build import build_audience
    from sendoff.warehouse import adbc_driver, read

    adbc_driver("postgresql")  # imports the driver
    start = time.perf_counter()
    with read(url, sql, partitions=parts) as batches:
        audience = build_audience(batches)
    return time.perf_counter() - start, len(audience.identifiers)


def read_one_part(url: str, sql: str) -> tuple[float, int]:
    return read_with_sendoff(url, sql, 1)


def read_in_parts(url: str, sql: str) -> tuple[float, int]:
    return read_with_sendoff(url, sql, 2)


def read_with_pandas(url: str, sql: str) -> tuple[float, int]:
    import pandas as pd

    engine = sa.create_engine(url)
    start = time.perf_counter()
    identifiers = set(pd.read_sql(sa.text(sql), engine)["device_id"])
    return time.perf_counter() - start, len(identifiers)


def copy_with_psql(url: str, sql: str) -> tuple[float, int]:
    address = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    command = ["psql", "-q", "-d", address, "-c", f"COPY ({sql}) TO STDOUT (FORMAT binary)"]
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start, 0


READERS: dict[str, tuple[Callable[[str, str], tuple[float, int]], str]] = {
    "pandas": (read_with_pandas, IDENTIFIERS),
    "sendoff": (read_with_sendoff, IDENTIFIERS),
    "sendoff, 1 part": (read_one_part, IN_PARTS),
    "sendoff, 2 parts": (read_in_parts, IN_PARTS),
    "copy": (copy_with_psql, IDENTIFIERS),
    "sendoff, platform": (read_with_sendoff, WITH_PLATFORM),
    "copy, platform": (copy_with_psql, WITH_PLATFORM),
    "sendoff, external_id": (read_with_sendoff, TEXTS),
    "sendoff, no rows": (read_with_sendoff, NO_ROWS),
    "copy, external_id": (copy_with_psql, TEXTS),
}


def child(name: str) -> None:
    """Read once, and print the seconds, the identifiers, and the peak memory in MiB."""
    read, sql = READERS[name]
    seconds, found = read(os.environ["BENCH_URL"], sql)  # not an argument: it may hold a password
    whose = resource.RUSAGE_CHILDREN if name.startswith("copy") else resource.RUSAGE_SELF
    print(json.dumps([seconds, found, resource.getrusage(whose).ru_maxrss / 1024]))


def measure(url: str) -> dict[str, tuple[float, float]]:
    """Read in turn for several rounds, and return the medians of seconds and peak memory."""
    readers = [name for name in READERS if not name.startswith("copy") or shutil.which("psql")]
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in readers}
    for number in range(1, ROUNDS + 1):
        for name in readers:
            line = [sys.executable, str(Path(__file__).resolve()), name]
            done = subprocess.run(
                line, env={**os.environ, "BENCH_URL": url}, check=True, stdout=subprocess.PIPE
            )
            seconds, found, peak = json.loads(done.stdout)
            if found not in (0, ROWS - ROWS // 10):
                sys.exit(f"{name} found {found:,} identifiers")
            seen[name].append((seconds, peak))
            print(f"  round {number}  {name:22}{seconds:8.2f} s {peak:8.0f} MiB", flush=True)
    return {name: (median(s for s, _ in runs), median(p for _, p in runs)) for name, runs in seen.items()}


def report(medians: dict[str, tuple[float, float]]) -> dict[str, float]:
    kept = ROWS - ROWS // 10
    print(f"\n{kept:,} identifiers of {ROWS:,} rows, medians of {ROUNDS} rounds")
    for name, (seconds, peak) in medians.items():
        print(f"  {name:22}{kept / seconds / 1e6:8.2f} million rows/s {peak:8.0f} MiB")
    sendoff, pandas = medians["sendoff"], medians["pandas"]
    of_texts = medians["sendoff, external_id"][1] - medians["sendoff, no rows"][1]
    mib_of_texts = sum(len(f"customer-{n}") for n in range(1, ROWS + 1) if n % 10) / 2**20
    figures = {
        "rows": ROWS,
        "identifiers": kept,
        "rows_per_second": round(kept / sendoff[0]),
        "peak_mib": round(sendoff[1], 1),
        "pandas_peak_mib": round(pandas[1], 1),
        "times_pandas_speed": round(pandas[0] / sendoff[0], 2),
        "pandas_memory_over_ours": round(pandas[1] / sendoff[1], 2),
        "times_speed_in_two_parts": round(medians["sendoff, 1 part"][0] / medians["sendoff, 2 parts"][0], 2),
        "peak_mib_of_texts": round(medians["sendoff, external_id"][1], 1),
        "memory_of_texts_over_bytes": round(of_texts / mib_of_texts, 2),
    }
    labels = {"": "", ", platform": "_with_platform", ", external_id": "_of_texts"}
    for label, key in labels.items():
        if f"copy{label}" in medians:
            share = medians[f"copy{label}"][0] / medians[f"sendoff{label}"][0]
            figures[f"share_of_copy_speed{key}"] = round(share, 2)
    return figures


def fill(url: str) -> None:
    """Create the tables."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as db:
        for statement in TABLES.split(";")[:-1]:
            db.execute(sa.text(statement))
    engine.dispose()


def main() -> None:
    print(f"Audience: {ROWS:,} rows in PostgreSQL")
    try:
        with postgres_database() as url:
            fill(url)
            figures = report(measure(url))
    except sa.exc.OperationalError:
        where = sa.make_url(SERVER).render_as_string(hide_password=True)
        print(f"left out: no PostgreSQL answers at {where}; set SENDOFF_TEST_POSTGRES_URL")
        figures = {}
    print(json.dumps({"benchmark": "audience", **figures}))


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
