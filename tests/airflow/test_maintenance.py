"""The DAG that keeps the ledger small, run by a real Airflow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.models.dagrun import DagRun

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.ledger import Ledger
from sendoff.outcome import Accepted
from sendoff.period import Period
from sendoff.service.postbacks import PostBack
from sendoff_airflow.dags import maintenance_dag

DAY = timedelta(days=1)


def launch(book: Ledger, at: datetime) -> str:
    """Send a launch to two people, and give the key of its one dispatch."""
    people = integers([1, 2])
    book.launches.freeze(
        "0123456789abcdef" * 2,
        connection="service",
        campaign="spring",
        period=Period(at - DAY, at),
        resend=0,
        definition="{}",
        audience=Audience("device_id", people, 2, {}, {}, people.fingerprint()),
        segments=[Segment(people)],
        now=at,
        sends_at=at,
    )
    claim = book.dispatches.claim("0123456789abcdef" * 2, worker="w", now=at, lease=timedelta(minutes=5))
    assert claim is not None
    book.dispatches.record(claim, Accepted(200, 17), at)
    return claim.dispatch_key


def test_old_post_backs_are_forgotten_and_young_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dag: Callable[..., DagRun]
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    now = datetime.now(UTC)
    with closing(Ledger(url)) as book:
        book.migrate()
        key = launch(book, now - 41 * DAY)
        receiver = book.post_backs.register_receiver("r", now)
        events = [PostBack.received("open", key, now - age * DAY, b"{}") for age in (40, 35, 1)]
        book.post_backs.store(receiver, list(enumerate(events, 1)))
    dag = maintenance_dag("15 3 * * *", keep=30 * DAY, start_date=now - DAY)
    run = run_dag(dag)
    assert run.state == "success"
    with closing(Ledger(url)) as book:
        assert book.retention.forget(now + DAY).post_backs == 1  # all that was left
