"""A task that Airflow ends while it reads a warehouse ends its query there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG
from sqlalchemy.pool import NullPool

from sendoff.campaign import campaign_of
from sendoff.errors import RetryableError
from sendoff.warehouse import read
from sendoff_airflow.errors import RetryTaskError, TaskEndedError
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CreateCampaignOperator,
    ForgetOperator,
    SuppressOperator,
    report,
)
from sendoff_airflow.operators.report import (
    MeasureOutcomeOperator,
    RenewTablesOperator,
    ReportFileOperator,
)

from ..waiting import until
from .test_ending import signal_another_thread, signal_process

SLOW = "SELECT n AS device_id FROM generate_series(1, 3) n, pg_sleep(600) WHERE 'a slow task' <> ''"
RUNNING = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%a slow task%' AND pid <> pg_backend_pid() "
    "AND state = 'active'"
)


@pytest.mark.proof
@pytest.mark.parametrize("signal_it", [signal_process, signal_another_thread])
def test_a_task_that_is_told_to_end_ends_its_query(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, signal_it: Callable[[], None]
) -> None:
    url = sa.make_url(postgres_url).set(drivername="postgres").render_as_string(hide_password=False)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", url)
    task = ForgetOperator(task_id="forget", sql=SLOW, reason="asked", warehouse="shop")
    engine = sa.create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow does in the task's process
    with closing(engine.connect()) as watcher:

        def tell() -> None:
            until(lambda: watcher.scalar(RUNNING) == 1)
            signal_it()

        teller = threading.Thread(target=tell)
        teller.start()
        try:
            with pytest.raises(RetryTaskError, match="while it was reading the warehouse"):
                task.execute({})
        finally:
            teller.join()
            signal.signal(signal.SIGTERM, before)
        until(lambda: watcher.scalar(RUNNING) == 0)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("warehouse")]


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (BuildAudienceOperator, {"campaign": Path("x")}),
        (CreateCampaignOperator, {"launch_key": "x"}),
        (ForgetOperator, {"sql": "SELECT 1", "reason": "asked", "warehouse": "shop"}),
        (MeasureOutcomeOperator, {"launch_key": "x", "folder": "x"}),
        (RenewTablesOperator, {}),
        (ReportFileOperator, {"launch_key": "x", "folder": "x", "reports": "x"}),
        (SuppressOperator, {"recipients": "SELECT 1", "reason": "asked", "source": "shop"}),
    ],
)
def test_a_task_is_only_ended_while_it_reads(tmp_path: Path, operator: Any, options: dict[str, Any]) -> None:
    task = operator(task_id="task", **options)
    file = tmp_path / "shop.db"
    file.touch()
    task.on_kill()
    with read(f"sqlite:///{file}", "SELECT 1 AS device_id"), pytest.raises(RetryableError):
        task.on_kill()
    task.on_kill()


def test_a_task_that_is_told_to_end_renews_no_further_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def end(ledger: Any, launch_key: str, *_: Any) -> None:
        asked.append(launch_key)
        raise TaskEndedError("Airflow ended the task")

    campaign = campaign_of(
        {
            "title": "A",
            "message": {"title": "A", "text": "B"},
            "channels": {"android_push": {}},
            "report": {"tables": "main"},
        },
        "a",
    )
    launch = SimpleNamespace(definition=campaign.model_dump_json(), campaign="a")
    verdicts = SimpleNamespace(with_old_tables=lambda _: ["one", "two"])
    ledger = SimpleNamespace(
        verdicts=verdicts, launches=SimpleNamespace(get=lambda _: launch), close=lambda: None
    )
    monkeypatch.setattr(report, "_write_tables", end)
    monkeypatch.setattr(RenewTablesOperator, "open_ledger", lambda _: closing(ledger))
    with DAG("renewing", schedule=None):
        task = RenewTablesOperator(task_id="renew")
    with pytest.raises(RetryTaskError):
        task.execute({})
    assert asked == ["one"]
