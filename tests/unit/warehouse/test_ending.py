"""A query ends with the process that runs it."""

from __future__ import annotations

import signal

import psycopg
import pytest
import sqlalchemy as sa

from ...waiting import until
from .reading import end_task_while

QUERY = "SELECT n AS device_id FROM generate_series(1, 3) n, pg_sleep(600) WHERE 'a slow one' <> ''"
RUNNING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%a slow one%' AND pid <> pg_backend_pid()"


@pytest.mark.proof
def test_a_query_ends_with_the_process_that_asked_it(postgres_url: str) -> None:
    uri = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(uri, autocommit=True) as watcher:
        end_task_while(lambda: running(watcher) == 1, postgres_url, QUERY, signal.SIGKILL)
        until(lambda: running(watcher) == 0)


def running(watcher: psycopg.Connection[tuple[int]]) -> int:
    row = watcher.execute(RUNNING).fetchone()
    assert row is not None
    return row[0]
