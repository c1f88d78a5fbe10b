"""A connection's rate limit: its preview uses it, and its workers keep it together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail

from airflow import settings

RATE = 6.0  # requests per second


@pytest.fixture
def unhurried(house: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a connection with a rate limit."""
    connection = json.loads(os.environ["AIRFLOW_CONN_SERVICE"])
    connection["extra"] |= {"requests_per_second": RATE}
    monkeypatch.setenv("AIRFLOW_CONN_UNHURRIED", json.dumps(connection))
    return "unhurried"


@pytest.mark.proof
def test_the_preview_says_how_long_it_takes_and_the_ledger_has_kept_the_rate(
    house: Any, run_dag: Callable[..., DagRun], people: Any, unhurried: str
) -> None:
    dag = house.campaign("unhurried", connection=unhurried, more="approval: {needed: always}\n")
    people.will("unhurried", ("ann", "Approve"))
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    key = house.launch_key(run)
    assert house.states(key) == {"accepted": house.segments}

    assert house.xcoms(run)["preview", "return_value", -1]["seconds"] == house.segments / RATE
    with settings.Session() as session:
        [body] = [
            each.body for each in session.query(HITLDetail) if "Send The campaign unhurried " in each.subject
        ]
    assert f"at {RATE:g} per second" in body

    with house.ledger() as ledger:
        assert ledger.rate_limits.next_at(unhurried) is not None
        assert ledger.rate_limits.next_at("service") is None
