"""The alert for a run that takes too long, called the way Airflow calls it."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.triggers.callback import CallbackTrigger

from sendoff.audience.build import build_audience
from sendoff.campaign import Period, load_campaign
from sendoff.ledger import Ledger
from sendoff_airflow.dags import campaign_dag

from ..factories import make_launch

KEY = "0123456789abcdef" * 2
START = datetime(2026, 3, 1, tzinfo=UTC)
CAMPAIGN = "title: x\nmessage: {text: x}\nchannels: {android_push: }\nalert_after: {length: 2, unit: hours}\n"


@pytest.fixture
def callback(tmp_path: Path) -> CallbackTrigger:
    """Return what the triggerer runs when the deadline of a campaign's run has passed."""
    folder = tmp_path / "quiet_one"
    folder.mkdir()
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    (folder / "audience.sql").write_text("SELECT 1 AS device_id")
    [alert] = campaign_dag(load_campaign(folder)).deadline
    run = {"dag_run": {"dag_run_id": "manual__1"}}
    stored: Any = json.loads(json.dumps(alert.callback.serialize()))
    return CallbackTrigger(stored["path"], stored["kwargs"] | {"context": run})


def run(callback: CallbackTrigger) -> list[Any]:
    async def events() -> list[Any]:
        return [event.payload async for event in callback.run()]

    return asyncio.run(events())


def test_the_log_says_how_far_the_launch_is(
    ledger: Ledger, callback: CallbackTrigger, caplog: pytest.LogCaptureFixture
) -> None:
    audience = build_audience([pa.record_batch({"device_id": pa.array([7_340_000_001, 7_340_000_002])})])
    make_launch(
        ledger,
        audience.identifiers,
        size=1,
        audience=audience,
        name="quiet_one",
        period=Period(START, START + timedelta(days=1)),
        launch_key=KEY,
        created_at=START,
        sends_at=None,
        state="held",
    )
    assert run(callback)[-1]["state"] == "success"
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.getMessage() == (
        "campaign quiet_one: run manual__1 has not ended after 2 hours; "
        f"launch {KEY} for 2026-03-01T00:00:00Z/2026-03-02T00:00:00Z is held; requests: 2 planned; no post-backs"
    )


def test_a_campaign_without_a_launch_is_told_of_as_well(
    ledger: Ledger, callback: CallbackTrigger, caplog: pytest.LogCaptureFixture
) -> None:
    run(callback)
    assert (
        "run manual__1 has not ended after 2 hours; the ledger has no launch of this campaign" in caplog.text
    )


def test_a_ledger_that_does_not_answer_keeps_nothing_from_being_told(
    callback: CallbackTrigger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:////nowhere/ledger.db")
    assert run(callback)[-1]["state"] == "success"
    assert "run manual__1 has not ended after 2 hours; its progress is not known: " in caplog.text
