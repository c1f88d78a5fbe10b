"""Read an audience from a warehouse, or the error instead, also in another process."""

from __future__ import annotations

import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from sendoff.audience.build import Audience, build_audience
from sendoff.errors import AudienceError, QueryError
from sendoff.warehouse import read

from ...waiting import PATIENCE, until

FAILING = "SELECT error('no consent of ' || reverse('nnamretsum')) AS device_id"
"""A query whose error has a value of a row."""

ASK = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
from sendoff.warehouse import read
with read(sys.argv[1], sys.argv[2]) as batches:
    for batch in batches:
        pass
"""
MEASURE = """
import resource, sys
from sendoff.warehouse import read
rows = 0
with read(sys.argv[1], sys.argv[2]) as batches:
    next(batches)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for batch in batches:
        rows += batch.num_rows
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def audience(url: str, sql: str, **options: Any) -> Audience:
    with read(url, sql, **options) as batches:
        return build_audience(batches)


def refusal(url: str, sql: str, **options: Any) -> str:
    with pytest.raises((QueryError, AudienceError)) as caught:
        audience(url, sql, **options)
    return str(caught.value)


def traced_refusal(url: str, sql: str, **options: Any) -> str:
    """Return the error with its traceback, where a cause would show too."""
    with pytest.raises(QueryError) as caught:
        audience(url, sql, **options)
    return "".join(traceback.format_exception(caught.value))


def end_task_while(
    is_running: Callable[[], object], url: str, sql: str, way: signal.Signals = signal.SIGTERM
) -> None:
    """Read a query in another process, and end that process once the query runs."""
    asking = subprocess.Popen([sys.executable, "-c", ASK, url, sql], stderr=subprocess.DEVNULL)
    try:
        until(is_running)
        asking.send_signal(way)
        assert asking.wait(PATIENCE) != 0
    finally:
        asking.kill()


def growth(url: str, sql: str) -> tuple[int, int]:
    """Return the rows after the first batch, and by how many KiB they make the memory of a process grow."""
    command = [sys.executable, "-c", MEASURE, url, sql]
    rows, kib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(rows), int(kib)
