"""The example DAGs, read from files as Airflow reads them, run against the local service."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG

from sendoff.campaign import Campaign, load_campaign
from sendoff.service.wire import PostBackAddresses, create_body
from sendoff_airflow import example_dags
from sendoff_airflow.hooks.service import SendoffHook
from sendoff_airflow.operators.preparation import PreparingOperator

EXAMPLES = Path(example_dags.__file__).parent
TEMPLATE = """
title: The template of the example
message:
  title: On its way
  text: Your order {{order_number}} has left our house
channels:
  android_push:
targeting: {kind: broadcast}
send: {kind: triggered, time_zone: UTC, start: 2026-01-05, end: never, trigger: {kind: api}}
"""


@pytest.fixture
def examples(house: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, DAG]:
    """Return the example DAGs in a deployment with the usual connection names and short waits."""
    for usual, ours in (("DEFAULT", "SERVICE"), ("WAREHOUSE", "SHOP")):
        monkeypatch.setenv(f"AIRFLOW_CONN_SENDOFF_{usual}", os.environ[f"AIRFLOW_CONN_{ours}"])
    copy = shutil.copytree(EXAMPLES, tmp_path / "dags")
    file = copy / "campaigns/example_order_shipped/campaign.yaml"
    file.write_text(file.read_text().replace("id: 4711", f"id: {_template(tmp_path)}"))
    bag = DagBag(copy)
    assert bag.import_errors == {}
    assert len(bag.dags) == len(list(EXAMPLES.glob("*.py"))) - 1
    for dag in bag.dags.values():
        for task in dag.tasks:
            if task.task_type == "PostBacksQuietSensor":
                task.quiet_for, task.poke_interval = timedelta(seconds=1), 0.5
            if isinstance(task, PreparingOperator):
                task.send_late = True  # the runs are for a week that is long over
        house.quieten(dag)
    return bag.dags


def _template(folder: Path) -> int:
    """Create the campaign that the one-to-one example executes, and return its ID."""
    made = folder / "template"
    made.mkdir()
    (made / "campaign.yaml").write_text(TEMPLATE)
    campaign = load_campaign(made).campaign
    body = create_body(campaign, title="template", targeting=None, post_backs=PostBackAddresses())
    outcome: Any = SendoffHook("service").client().create_campaign(body)
    return outcome.campaign_id


@pytest.mark.proof
def test_a_campaign_is_created_once_somebody_approved_it_reported_on_and_followed(
    house: Any, examples: dict[str, DAG], run_dag: Callable[..., DagRun], people: Any
) -> None:
    people.will("sendoff_example_create", ("ann", "Approve"))
    run = run_dag(examples["sendoff_example_create"], logical_date=house.day)
    assert run.state == "success"
    key = house.launch_key(run)
    phones = {
        device
        for device in house.devices
        if house.platforms[device % len(house.platforms)] in ("android", "ios")
    }
    assert set().union(*house.verdicts(key).values()) == phones
    assert house.states(key) == {"accepted": 1}

    again = run_dag(examples["sendoff_example_report"], logical_date=house.day, run_conf={"launch_key": key})
    assert again.state == "success"
    assert house.xcoms(again)["report", "return_value", -1]["launch_key"] == key

    assert examples["sendoff_example_create"].get_task("report").outlets == list(
        examples["sendoff_example_after"].timetable.asset_condition.objects  # type: ignore[attr-defined]
    )
    after = run_dag(examples["sendoff_example_after"], logical_date=house.day)
    verdicts = house.xcoms(after)["check_missing", "return_value", -1]
    assert verdicts == {name: len(who) for name, who in house.verdicts(key).items()}


@pytest.mark.parametrize(
    ("name", "task", "devices"),
    [
        ("sendoff_example_one_task", "notice", ("android", "ios")),
        ("sendoff_example_function", "android_devices", ("android",)),
    ],
)
def test_a_campaign_in_the_dag_file_is_sent_to_its_audience(
    house: Any,
    examples: dict[str, DAG],
    run_dag: Callable[..., DagRun],
    name: str,
    task: str,
    devices: tuple[str, ...],
) -> None:
    run = run_dag(examples[name], logical_date=house.day)
    assert run.state == "success"
    with house.ledger() as ledger:
        launch = ledger.launches.get(house.xcoms(run)[task, "launch_key", -1])
    assert launch.audience == sum(
        house.platforms[each % len(house.platforms)] in devices for each in house.devices
    )
    assert house.states(launch.launch_key) == {"accepted": 1}


@pytest.mark.proof
def test_a_group_asks_and_reports_inside_of_another_dag(
    house: Any, examples: dict[str, DAG], run_dag: Callable[..., DagRun], people: Any
) -> None:
    people.task = "welcome_back.approve"
    people.will("sendoff_example_group", ("ann", "Approve"))
    run = run_dag(examples["sendoff_example_group"], logical_date=house.day)
    assert run.state == "success"
    xcoms = house.xcoms(run)
    assert xcoms["welcome_back.approve", "return_value", -1]["who"] == "ann"
    assert sum(xcoms["welcome_back.report", "return_value", -1]["verdicts"].values()) == 200
    assert xcoms["welcome_back.audience", "campaign", -1] == "welcome_back_in_group"


def test_each_person_gets_values_that_are_theirs_alone(
    house: Any, examples: dict[str, DAG], run_dag: Callable[..., DagRun]
) -> None:
    with closing(sqlite3.connect(house.folder / "shop.db")) as shop, shop:
        shop.execute("CREATE TABLE orders (device_id INTEGER, order_number TEXT, shipped_at TEXT)")
        rows = [(house.devices[n], f"A-{n}", "2026-03-02 08:30:00") for n in range(50)]
        shop.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)", [*rows, (house.devices[60], "B", "2026-03-02 09:30:00")]
        )
    run = run_dag(examples["sendoff_example_execute"], logical_date=house.day)
    assert run.state == "success"
    key = house.launch_key(run)
    assert house.states(key) == {"accepted": 1}
    assert house.xcoms(run)["audience", "return_value", -1]["audience"] == 50
    with house.ledger() as ledger:
        template = Campaign.frozen(ledger.launches.get(key).definition).template
    assert template is not None
    house.wait_until_quiet()
    sent = house.admin(f"campaigns/{template.id}/devices/{house.devices[4]}")["messages"]
    assert [message["message"]["text"] for message in sent] == ["Your order A-4 has left our house"]
