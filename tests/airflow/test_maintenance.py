"""The DAG that keeps the ledger small, run by a real Airflow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.models.dagrun import DagRun

from sendoff.ledger import Ledger
from sendoff.period import Period
from sendoff.service.postbacks import PostBack
from sendoff_airflow.dags import maintenance_dag

from ..factories import make_accepted

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
    dag = maintenance_dag("15 3 * * *", keep=30 * DAY, start_date=now - DAY)
    run = run_dag(dag)
    assert run.state == "success"
    with closing(Ledger(url)) as ledger:
        assert ledger.retention.forget(now + DAY).post_backs == 1  # all that was left
