"""A task that Airflow ends while it is still starting its threads leaves no request unrecorded either."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from sendoff.campaign import Period, load_campaign
from sendoff.launch.plan import prepare_launch
from sendoff_airflow.errors import RetryTaskError
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import CreateCampaignOperator

from ..waiting import PATIENCE, until

SECONDS = 3.0  # how long the service takes for each request


def test_a_request_of_a_thread_that_is_only_just_started_is_recorded(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.campaign("ended_early")
    with house.ledger() as ledger:
        folder = load_campaign(house.folder / "ended_early")
        period = Period(house.day.replace(hour=0), house.day)
        key = prepare_launch(ledger, folder, period=period, warehouses=warehouse_source).launch_key
    task = CreateCampaignOperator(task_id="dispatch", launch_key=key, sendoff_conn_id="service")
    start = threading.Thread.start

    def start_and_tell(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("dispatch"):
            until(house.has_met_a_fault)  # a request that has not begun would be given back
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(threading.Thread, "start", start_and_tell)
    faults = f"{house.service}/admin/faults"
    fault = {"kind": "slow", "at": ["create"], "probability": 1, "seconds": SECONDS}
    assert requests.post(faults, json=fault, timeout=PATIENCE).ok
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow does in the task's process
    ti = SimpleNamespace(
        dag_id="ended_early", run_id="one", task_id="dispatch", try_number=1, xcom_push=print
    )
    who: Any = {"ti": ti}
    try:
        with pytest.raises(RetryTaskError, match="ended the task before all requests were made"):
            task.execute(who)
    finally:
        signal.signal(signal.SIGTERM, before)
        requests.delete(faults, timeout=PATIENCE)
    states = house.states(key)
    assert states.keys() == {"accepted", "planned"}
    assert len(house.truths("ended_early")) == states["accepted"]
