"""The examples on the pages about Airflow work as written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG

from sendoff_airflow.hooks.ledger import LedgerHook
from sendoff_airflow.hooks.receiver import ReceiverHook
from sendoff_airflow.hooks.service import SendoffHook
from sendoff_airflow.hooks.service_fields import ServiceFields
from sendoff_airflow.operators.preparation import PreparingOperator

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference/connections.md").read_text()
OWN_DAG = (DOCS / "how-to/write-your-own-dag.md").read_text()
OWN_REQUEST = (DOCS / "how-to/send-a-request-of-your-own.md").read_text()
CONNECTIONS = {
    found["conn_type"]: found for found in map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
}


@pytest.fixture
def own_dags(house: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DAG]:
    """Return the DAGs of the page on DAGs of your own, in a deployment with the usual connections."""
    for usual, ours in (("DEFAULT", "SERVICE"), ("WAREHOUSE", "SHOP")):
        monkeypatch.setenv(f"AIRFLOW_CONN_SENDOFF_{usual}", os.environ[f"AIRFLOW_CONN_{ours}"])
    for name, code in re.findall(r'```python title="(.*?)"\n(.*?)```', OWN_DAG, re.DOTALL):
        (tmp_path / name).write_text(code)
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    for dag in bag.dags.values():
        for task in dag.tasks:
            if task.task_type == "PostBacksQuietSensor":
                task.quiet_for, task.poke_interval = timedelta(seconds=1), 0.5
            if isinstance(task, PreparingOperator):
                task.send_late = True  # the runs are for a week that is long over
        house.quieten(dag)
    return bag.dags


def test_the_example_dags_have_the_tasks_that_the_page_names(own_dags: dict[str, DAG]) -> None:
    of_group = [
        "audience",
        "report",
        "preview",
        "approve",
        "dispatch",
        "wait_for_post_backs",
        "check_dispatched",
    ]
    assert {name: dag.task_ids for name, dag in own_dags.items()} == {
        "opening_hours": ["notice"],
        "spring": ["lapsed", "send"],
        "after_the_load": ["load", *(f"thanks.{name}" for name in of_group)],
        "platforms": ["notice", "recipients", "send"],
        "my_campaign": ["audience", "send", "wait_for_post_backs", "report", "check"],
    }


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "task", "campaign", "people"),
    [
        ("opening_hours", "notice", "opening_hours.notice", 100),
        ("spring", "lapsed", "spring.lapsed", 500),
        ("after_the_load", "thanks.audience", "thanks", 100),
    ],
)
def test_the_example_dags_send(
    house: Any,
    own_dags: dict[str, DAG],
    run_dag: Callable[..., DagRun],
    name: str,
    task: str,
    campaign: str,
    people: int,
) -> None:
    run = run_dag(own_dags[name], logical_date=house.day.replace(hour=9))
    assert run.state == "success"
    xcoms = house.xcoms(run)
    with house.ledger() as ledger:
        launch = ledger.launches.get(xcoms[task, "launch_key", -1])
    assert (launch.campaign, launch.audience) == (campaign, people)
    assert set(house.states(launch.launch_key)) == {"accepted"}


@pytest.mark.proof
@pytest.mark.parametrize(("is_late", "state"), [(True, "skipped"), (False, "success")])
def test_the_example_of_single_operators_reports_on_each_launch(
    house: Any, own_dags: dict[str, DAG], run_dag: Callable[..., DagRun], is_late: bool, state: str
) -> None:
    dag: Any = own_dags["my_campaign"]
    house.campaign(f"single_{state}")
    dag.get_task("audience").campaign = house.folder / f"single_{state}"
    for task in dag.tasks:
        task.only_campaign = (f"single_{state}",)
    dag.get_task("audience").send_late = not is_late
    tasks = house.tasks(run_dag(dag, logical_date=house.day.replace(hour=9 if is_late else 10)))
    assert tasks == {task: [state] for task in dag.task_ids}


@pytest.mark.proof
def test_the_example_of_mapped_tasks_has_a_launch_for_each_name(
    house: Any, own_dags: dict[str, DAG], run_dag: Callable[..., DagRun]
) -> None:
    run = run_dag(own_dags["platforms"], logical_date=house.day)
    assert run.state == "success"
    xcoms = house.xcoms(run)
    names = ["notice_android", "notice_ios", "spring_android", "spring_ios"]
    keys = [xcoms[task, "launch_key", place] for task in ("notice", "recipients") for place in (0, 1)]
    with house.ledger() as ledger:
        launches = [ledger.launches.get(key) for key in keys]
    assert [(launch.campaign, launch.audience) for launch in launches] == [(name, 100) for name in names]
    assert all(set(house.states(key)) == {"accepted"} for key in keys)


def test_the_example_of_requests_of_your_own_loads(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", OWN_REQUEST, re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    assert bag.dags["shop_notices"].task_ids == ["closed", "order"]


def test_the_example_connections_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(CONNECTIONS) == {"sendoff", "sendoff_ledger", "sendoff_receiver"}
    for conn_type, fields in CONNECTIONS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_type.upper()}", json.dumps(fields))
    assert SendoffHook("sendoff").client()
    assert LedgerHook().url() == CONNECTIONS["sendoff_ledger"]["password"]
    assert ReceiverHook().get_conn().public_url == "https://events.example.com"


def test_the_page_names_each_extra_field() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert ServiceFields.known <= named
