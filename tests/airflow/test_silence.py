"""The alarm on silence, as Airflow gives it: one failed task for each change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.models.dagrun import DagRun

from sendoff.audience import Audience
from sendoff.campaign import Campaign
from sendoff.identifiers import integers
from sendoff.ledger import Ledger
from sendoff.outcome import Accepted
from sendoff.period import Period
from sendoff.segments import Segment
from sendoff_airflow.dags import reconcile_dag

KEY = "0123456789abcdef" * 2
DAY = datetime(2026, 3, 2, tzinfo=UTC)
DAYS = timedelta(days=1)
EMAIL = Campaign.model_validate(
    {"title": "Spring", "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "Spring"}}}
)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with a launch to a hundred people, sent two hours ago, of whom nobody was heard of."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    people = integers(range(1, 101))
    at = datetime.now(UTC) - timedelta(hours=2)
    with closing(Ledger(url)) as book:
        book.migrate()
        book.post_backs.register_receiver("r", at)
        book.launches.freeze(
            KEY,
            connection="service",
            campaign="spring",
            period=Period(DAY, DAY + DAYS),
            resend=0,
            definition=EMAIL.model_dump_json(),
            audience=Audience("device_id", people, 100, {}, {}, people.fingerprint()),
            segments=[Segment(people)],
            now=at,
            sends_at=at,
        )
        claim = book.dispatches.claim(KEY, worker="w", now=at, lease=timedelta(minutes=5))
        assert claim is not None
        book.dispatches.record(claim, Accepted(200, 17), at)
        return book


def test_a_silence_fails_one_run_without_being_tried_again(
    ledger: Ledger, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(reconcile_dag("0 0 * * *"), logical_date=DAY)
    tasks = {each.task_id: (each.state, each.try_number) for each in run.get_task_instances()}
    assert tasks == {"reconcile": ("success", 1), "silence": ("failed", 1)}
    assert run.state == "failed"
    assert (
        "deliveries of service: cannot tell -> silent: delivery by 0 of 100 people" in capfd.readouterr().out
    )
    assert run_dag(reconcile_dag("0 0 * * *"), logical_date=DAY + DAYS).state == "success"
