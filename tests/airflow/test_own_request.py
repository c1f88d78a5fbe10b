"""Requests of your own in a task, run against the local service."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
import requests
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG, literal, task

from airflow import settings
from sendoff_airflow.operators import CreateCampaignOperator, ExecuteCampaignOperator

from ..waiting import PATIENCE

DEVICES = [7_340_000_003, 7_340_000_008]
WORDS = "Your parcel is at the door"


def body(title: str, **members: Any) -> dict[str, Any]:
    content = {"push_text": WORDS, "web_push": 1, "web_push_chrome": 1, "device_ids": DEVICES}
    return {"title": title, **content, **members}


def operator(task_id: str = "raw", **fields: Any) -> CreateCampaignOperator:
    return CreateCampaignOperator(task_id=task_id, sendoff_conn_id="service", **{"retries": 0, **fields})


def received(house: Any, title: str) -> list[dict[str, Any]]:
    """Return the service's own record of the requests with this title that it processed."""
    campaigns = house.admin("campaigns?count=1000")["campaigns"]
    return [each for each in campaigns if each["title"] == title]


def stored(run: DagRun) -> str:
    """Return what Airflow stores of a DAG and its rendered templates."""
    with closing(settings.Session()) as session:
        dag = session.query(SerializedDagModel).filter_by(dag_id=run.dag_id).one()
        templates = map(RenderedTaskInstanceFields.get_templated_fields, run.get_task_instances())
        return json.dumps([dag.data, *templates])


@pytest.mark.promise("twice/launch")
def test_a_creation_is_sent_once_and_shown_nowhere(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    with DAG("own_creation", schedule=None, start_date=house.day) as dag:
        operator(body=body("Parcel of {{ ds }}"), request_key="{{ ds }}", name="own_creation")
    title = f"Parcel of {house.day:%Y-%m-%d}"
    for _ in range(2):  # the second run has the same key
        run = run_dag(dag, logical_date=house.day)
        assert run.state == "success"
        assert house.xcoms(run)["raw", "return_value", -1] == {"accepted": 1, "refused": 0, "in_doubt": 0}
    [campaign] = received(house, title)
    assert sorted(house.truth(campaign["id"])["targeted"]) == DEVICES
    with house.ledger() as ledger:
        [launch] = ledger.launches.search(campaign="own_creation")
        assert launch.period.partition == f"{house.day:%Y-%m-%d}"
        assert house.xcoms(run)["raw", "launch_key", -1] == launch.launch_key
    printed = capfd.readouterr()
    everything = printed.out + printed.err + stored(run) + json.dumps(list(house.xcoms(run).values()))
    assert "<2 values>" in stored(run)
    for hidden in (WORDS, title, *map(str, DEVICES), *house.secrets):
        assert hidden not in everything


@pytest.mark.proof
def test_an_execution_keeps_the_tags_of_a_literal(house: Any, run_dag: Callable[..., DagRun]) -> None:
    with DAG("own_template", schedule=None, start_date=house.day) as dag:
        operator(body=literal(body("A template", trigger=3, push_text="{{greeting}}")))
    assert run_dag(dag, logical_date=house.day).state == "success"
    [template] = received(house, "A template")
    with DAG("own_execution", schedule=None, start_date=house.day) as dag:

        @task
        def order() -> dict[str, Any]:
            return {"id": template["id"], "target_by": "id", "target": DEVICES, "params": {"greeting": "Hi"}}

        ExecuteCampaignOperator(task_id="raw", body=order(), sendoff_conn_id="service", retries=0)
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    assert sorted(house.truth(template["id"])["targeted"]) == DEVICES
    with house.ledger() as ledger:
        [launch] = ledger.launches.search(campaign="own_execution.raw")
        assert launch.period.partition == f"own_execution/raw/{house.day.isoformat()}"
        assert launch.audience == 2


@pytest.mark.promise("twice/doubt")
@pytest.mark.proof
def test_every_third_answer_is_lost_and_nothing_is_sent_twice(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dags = []
    for number in range(6):
        with DAG(f"own_order_{number}", schedule=None, start_date=house.day) as dag:
            operator(body=body(f"Order {number}"))
        dags.append(dag)
    states = []
    for number, dag in enumerate(dags):
        if number % 3 == 2:
            fault = {"kind": "lost", "at": ["create"], "count": 1}
            answer = requests.post(f"{house.service}/admin/faults", json=fault, timeout=PATIENCE)
            assert answer.status_code == 201
        states += house.tasks(run_dag(dag, logical_date=house.day))["raw"]
    assert states == ["success", "success", "failed"] * 2
    for dag in dags:  # the same logical date again; post-backs may settle the doubts meanwhile
        run_dag(dag, logical_date=house.day)
    assert [len(received(house, f"Order {number}")) for number in range(6)] == [1] * 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"body": {"title": WORDS, "email": WORDS}}, "body.email: found text. Use 0 or 1"),
        (
            {"body": body("Tag", push_text="Hello {{first_name}}")},
            "body: a template in it cannot be rendered",
        ),
    ],
)
@pytest.mark.proof
def test_a_mistake_is_explained_without_the_texts(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str], changes: Any, words: str
) -> None:
    with DAG("own_mistake", schedule=None, start_date=house.day) as dag:
        operator(**changes, retries=3, retry_delay=timedelta(seconds=1))
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"raw": ["failed"]}
    printed = capfd.readouterr()
    assert words in printed.out + printed.err
    assert WORDS not in printed.out + printed.err


def test_another_body_under_the_key_fails_without_a_retry(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    for words in ("first", "second"):
        with DAG("own_other", schedule=None, start_date=house.day) as dag:
            operator(body=body("Twice", push_text=words), request_key="one", retries=3)
        run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"raw": ["failed"]}
    assert "another request under this request key, which was accepted" in capfd.readouterr().out
    assert len(received(house, "Twice")) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "found none of launch_key, campaign and body"),
        ({"body": {}, "launch_key": "0" * 32}, "found launch_key and body"),
        ({"launch_key": "0" * 32, "request_key": "one"}, "request_key needs body"),
    ],
)
def test_an_operator_has_one_launch(fields: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        operator(**fields)
