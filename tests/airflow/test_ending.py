"""A task that Airflow ends leaves no request unrecorded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from sendoff.campaign import Period, load_campaign
from sendoff.launch.plan import prepare_launch
from sendoff.ledger import Ledger
from sendoff_airflow.errors import RetryTaskError
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import CreateCampaignOperator

from ..waiting import until

SECONDS = 5.0  # how long the service takes for each request


@contextmanager
def slow(house: Any) -> Iterator[None]:
    fault = {"kind": "slow", "at": ["create"], "probability": 1, "seconds": SECONDS}
    assert requests.post(f"{house.service}/admin/faults", json=fault, timeout=10).status_code == 201
    try:
        yield
    finally:
        requests.delete(f"{house.service}/admin/faults", timeout=10)


def signal_process() -> None:
    """Do what the supervisor of a task does: signal its process."""
    os.kill(os.getpid(), signal.SIGTERM)


def signal_another_thread() -> None:
    """Deliver the signal to a thread that does not handle it, as the system may while threads start."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


def told_to_end(house: Any, signal_it: Callable[[], None]) -> None:
    """Signal when the service has a request."""
    until(house.has_met_a_fault)
    signal_it()


@pytest.mark.proof
@pytest.mark.parametrize("signal_it", [signal_process, signal_another_thread])
def test_a_task_that_is_told_to_end_records_what_is_under_way_and_begins_nothing_more(
    house: Any, signal_it: Callable[[], None]
) -> None:
    name = signal_it.__name__
    house.campaign(name)
    period = Period(house.day.replace(hour=0), house.day)
    with closing(Ledger(house.ledger_url)) as ledger:
        folder = load_campaign(house.folder / name)
        key = prepare_launch(ledger, folder, period=period, warehouses=warehouse_source).launch_key
    task = CreateCampaignOperator(task_id="dispatch", launch_key=key, sendoff_conn_id="service")
    who: Any = {
        "ti": SimpleNamespace(dag_id=name, run_id="one", task_id="dispatch", try_number=1, xcom_push=print)
    }
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow does in the task's process
    teller = threading.Thread(target=told_to_end, args=(house, signal_it))
    try:
        with slow(house):
            teller.start()
            with pytest.raises(RetryTaskError, match="ended the task before all requests were made"):
                task.execute(who)
    finally:
        teller.join()
        signal.signal(signal.SIGTERM, before)
    states = house.states(key)
    assert states.keys() == {"accepted", "planned"}
    assert len(house.truths(name)) == states["accepted"]
    task.on_kill()  # if no request is being made, there is nothing to end
