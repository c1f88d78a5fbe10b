"""The DAG that keeps the ledger small, run by a real Airflow."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from sqlalchemy.exc import NoResultFound

from sendoff.campaign import Period
from sendoff.ledger import Ledger
from sendoff.service.postbacks import PostBack
from sendoff_airflow.dags import maintenance_dag
from sendoff_airflow.operators import ForgetOperator

from ..factories import make_accepted, make_launch

DAY = timedelta(days=1)


def launch(ledger: Ledger, at: datetime) -> str:
    """Send a launch to two people, and return the key of its only dispatch."""
    return make_accepted(ledger, [1, 2], period=Period(at - DAY, at), at=at)


@pytest.mark.proof
def test_old_post_backs_are_forgotten_and_young_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dag: Callable[..., DagRun]
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    now = datetime.now(UTC)
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
        key = launch(ledger, now - 41 * DAY)
        receiver = ledger.post_backs.register_receiver("r", now)
        events = [PostBack.received("open", key, now - age * DAY, b"{}") for age in (40, 35, 1)]
        ledger.post_backs.store(receiver, list(enumerate(events, 1)))
    dag = maintenance_dag("15 3 * * *", keep=30 * DAY, keep_recipients=40 * DAY, start_date=now - DAY)
    run = run_dag(dag)
    assert run.state == "success"
    with closing(Ledger(url)) as ledger:
        assert ledger.retention.delete_before(now + DAY).post_backs == 1  # all that was left
        [deleted] = ledger.launches.search()
        assert (deleted.audience, bool(deleted.deleted)) == (2, True)


@pytest.mark.parametrize("keep", [timedelta(hours=1), 90, None])
def test_post_backs_are_kept_for_a_day_at_least(keep: Any) -> None:
    with pytest.raises(ValueError, match=r"^keep: use a timedelta of a day or more"):
        maintenance_dag("15 3 * * *", keep=keep)


def test_recipients_are_kept_as_long_as_post_backs_at_least() -> None:
    with pytest.raises(ValueError, match="not less than keep"):
        maintenance_dag("15 3 * * *", keep=90 * DAY, keep_recipients=60 * DAY, start_date=datetime.now(UTC))


def test_people_that_a_query_returns_are_erased_and_an_interrupted_erasure_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dag: Callable[..., DagRun]
) -> None:
    url, warehouse = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "warehouse.db"
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "a secret of the tests that is long enough")
    monkeypatch.setenv("AIRFLOW_CONN_REQUESTS", f'{{"conn_type": "sqlite", "host": "{warehouse}"}}')
    with closing(sqlite3.connect(warehouse)) as db, db:
        db.execute("CREATE TABLE to_forget (device_id INTEGER)")
        db.execute("INSERT INTO to_forget VALUES (2), (9)")
    now = datetime.now(UTC)
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
        launch_key = make_launch(ledger, [1, 2, 3]).launch_key
        named = ledger.erasures.named("device_id", [3])
        ledger.erasures.request(named, who="anna", why="a letter", now=now)  # and then it is killed
    with DAG("forget", schedule=None, start_date=now - DAY) as dag:
        ForgetOperator(
            task_id="forget",
            sql="SELECT device_id FROM to_forget",
            reason="requests in the warehouse",
            warehouse="requests",
        )
    for _ in range(2):  # the query returns the same people again
        assert run_dag(dag).state == "success"
    with closing(Ledger(url)) as ledger:
        assert list(ledger.launches.audience(launch_key)) == [1]
        assert ledger.erasures.pending() == []
        assert ledger.erasures.get(2).people == 2
        with pytest.raises(NoResultFound):
            ledger.erasures.get(3)
    # The log was set too late, so the same query adds the people to it, once.
    log = tmp_path / "erasures.jsonl"
    monkeypatch.setenv("SENDOFF_ERASURE_LOG", str(log))
    for _ in range(2):
        assert run_dag(dag).state == "success"
    assert len(log.read_text().splitlines()) == 2
