"""Arguments that have no value when a task runs, or that two tasks of a run do not share."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from sendoff.campaign import Period, campaign_from, load_campaign
from sendoff.errors import CampaignError
from sendoff.launch import LaunchOptions, prepare_launch
from sendoff_airflow import campaign_group
from sendoff_airflow.arguments import as_boolean, as_integer
from sendoff_airflow.dags import campaign_dag
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CreateCampaignOperator,
    ReconcileOperator,
)
from sendoff_airflow.operators.approval import ApproveLaunchOperator
from sendoff_airflow.operators.recipients import described, shown
from sendoff_airflow.sensors import PostBacksQuietSensor

from .test_one_task import make_campaign, targeted

FIRST = 7_340_000_000
OTHERS = 20_000_000  # not devices of the audience, because Airflow stores what a DAG file maps over
RunDag = Callable[..., DagRun]


def query(*numbers: int) -> str:
    return (
        f"SELECT device_id FROM devices WHERE device_id - 7340 * 1000000 IN ({', '.join(map(str, numbers))})"
    )


def sent(house: Any, name: str) -> list[int]:
    return [device - FIRST for device in targeted(house, name)]


@pytest.fixture
def folder(house: Any) -> Callable[[str], Path]:
    """Return a function that writes a campaign's folder, whose query finds five devices."""

    def write(name: str) -> Path:
        path: Path = house.folder / name
        path.mkdir()
        (path / "campaign.yaml").write_text(
            f"title: The campaign {name}\nconnection: service\nwarehouse: shop\nparallelism: 1\n"
            "message: {title: Hi, text: Hello}\nchannels: {android_push: {}}\n"
            "report: {quiet_for: {length: 1, unit: seconds}}\n"
        )
        (path / "audience.sql").write_text(query(1, 2, 3, 4, 5))
        return path

    return write


@task
def nothing() -> None:
    """Return no value, as a function whose return was forgotten."""


@pytest.mark.parametrize("how", ["xcom", "mapped", "native"])
def test_an_audience_without_a_value_is_not_the_audience_of_the_folder(
    house: Any,
    run_dag: RunDag,
    folder: Callable[[str], Path],
    capfd: pytest.CaptureFixture[str],
    how: str,
) -> None:
    name = f"without_{how}"
    with DAG(name, schedule=None, start_date=house.day, render_template_as_native_obj=how == "native") as dag:
        path = folder(name)
        if how == "mapped":
            CreateCampaignOperator.partial(task_id="send", campaign=path).expand(audience=[None])
        else:
            given = nothing() if how == "xcom" else "{{ none }}"
            CreateCampaignOperator(task_id="send", campaign=path, audience=given)
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run)["send"] == ["failed"]
    assert "audience has no value: its template, or the task that it comes from" in capfd.readouterr().out
    assert sent(house, name) == []


def test_a_limit_without_a_value_is_not_no_limit(house: Any, run_dag: RunDag) -> None:
    with DAG("limits", schedule=None, start_date=house.day) as dag:
        send = {"campaign": make_campaign("limits"), "audience": query(1, 2)}
        CreateCampaignOperator(task_id="returned", name="limits_returned", size_limit=nothing(), **send)
        CreateCampaignOperator(task_id="half", name="limits_half", size_limit=1.9, **send)
        CreateCampaignOperator(task_id="empty", name="limits", size_limit="{{ '' }}", **send)
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    assert {name: states for name, states in tasks.items() if name != "nothing"} == {
        "returned": ["failed"],
        "half": ["failed"],
        "empty": ["success"],
    }
    assert sent(house, "limits") == [1, 2]


def test_an_empty_name_is_not_the_default_name(
    house: Any, run_dag: RunDag, folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    body = {"title": "The campaign unnamed", "push_text": "Hi", "android_push": 1, "device_ids": [FIRST + 1]}
    with DAG("unnamed", schedule=None, start_date=house.day) as dag:
        send = {"name": "{{ '' }}", "sendoff_conn_id": "service"}
        CreateCampaignOperator(task_id="rows", campaign=make_campaign("unnamed"), audience=query(1), **send)
        CreateCampaignOperator(task_id="path", campaign=folder("unnamed"), **send)
        CreateCampaignOperator(task_id="body", body=body, **send)
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"rows": ["failed"], "path": ["failed"], "body": ["failed"]}
    assert capfd.readouterr().out.count("Use at most 100 letters") >= 3
    assert sent(house, "unnamed") == []


@pytest.mark.parametrize("text", ["", "None"])
def test_a_template_without_a_value_is_left_out_unless_more_people_would_get_the_message(text: str) -> None:
    assert (as_integer("resend", text), as_boolean("send_late", text)) == (None, False)
    assert as_integer("size_limit", "") is None
    with pytest.raises(AirflowFailException, match="size_limit: 'None' is not a whole number"):
        as_integer("size_limit", "None")
    with pytest.raises(AirflowFailException, match="size_limit: True is not a whole number"):
        as_integer("size_limit", True)
    with pytest.raises(AirflowFailException, match=r"only_unsent: .* is not a boolean"):
        as_boolean("only_unsent", text)


def test_a_launch_key_without_a_value_names_the_remedy_and_is_not_retried(
    house: Any, run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = {
        "send": CreateCampaignOperator,
        "report": ReconcileOperator,
        "approve": ApproveLaunchOperator,
        "wait": PostBacksQuietSensor,
    }
    with DAG("keyless", schedule=None, start_date=house.day, default_args={"retries": 1}) as dag:
        nothing()
        for name, kind in kinds.items():
            dag.get_task("nothing") >> kind(task_id=name, launch_key="{{ ti.xcom_pull('nothing') }}")
    run = run_dag(dag, logical_date=house.day)
    instances = {each.task_id: each for each in run.get_task_instances()}
    assert {(instances[name].state, instances[name].try_number) for name in kinds} == {("failed", 1)}
    assert capfd.readouterr().out.count("launch_key is empty. The task that makes the launch") >= len(kinds)


def test_a_folder_that_is_mapped_over_audiences_needs_names(
    house: Any, run_dag: RunDag, folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder("countries")
    countries = {"ie": query(1, 2), "gb": query(3, 4)}
    with DAG("countries", schedule=None, start_date=house.day) as dag:
        send = CreateCampaignOperator.partial(task_id="nameless", campaign=path)
        send.expand(audience=list(countries.values()))
        named = [{"name": f"spring_{country}", "audience": sql} for country, sql in countries.items()]
        CreateCampaignOperator.partial(task_id="named", campaign=path).expand_kwargs(named)
        workers = CreateCampaignOperator.partial(task_id="workers", campaign=path, name="workers")
        relative = os.path.relpath(path, dag.folder)
        workers.expand(worker=[1, 2]) >> CreateCampaignOperator(
            task_id="same", campaign=relative, name="workers"
        )
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    assert tasks["nameless"] == ["failed", "failed"]
    assert "a mapped task needs a name" in capfd.readouterr().out
    assert tasks["named"] == tasks["workers"] == ["success", "success"]
    assert tasks["same"] == ["success"]
    assert sent(house, "countries") == [1, 1, 2, 2, 3, 3, 4, 4, 5]  # of three launches with this title


def test_two_tasks_of_a_run_do_not_share_a_launch_with_other_recipients_or_texts(
    house: Any, run_dag: RunDag, folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path, fields = folder("groups"), make_campaign("twice")
    with DAG("twice", schedule=None, start_date=house.day) as dag:
        first = BuildAudienceOperator(task_id="first", campaign=fields, audience=query(1, 2), name="twice")
        same = CreateCampaignOperator(task_id="same", campaign=fields, audience=query(1, 2), name="twice")
        usual = {"campaign": fields, "audience": query(1, 2), "name": "twice"}
        other = {
            "people": {"audience": query(3)},
            "text": {"campaign": make_campaign("twice", segment_size=7)},
            "country": {"warehouse": "shop_of_another_country"},
        }
        first >> same
        for name, changes in other.items():
            same >> CreateCampaignOperator(task_id=name, **{**usual, **changes})
        for country, number in (("ie", 1), ("gb", 3)):
            with campaign_group(path, query(number), group_id=country, default_args={"retries": 0}):
                pass
        dag.get_task("ie.audience") >> dag.get_task("gb.audience")
    house.quieten(dag)
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    failed = {*other, "gb.audience"}
    assert {
        name for name in (*other, "first", "same", "ie.audience", "gb.audience") if tasks[name] != ["success"]
    } == failed
    said = capfd.readouterr().out
    assert said.count("Nothing was sent to the audience of this task") >= len(failed)
    assert (sent(house, "twice"), sent(house, "groups")) == ([1, 2], [1])


@pytest.mark.parametrize("kind", [list, pd.DataFrame, pl.DataFrame])
def test_two_tasks_of_a_run_do_not_share_a_launch_with_other_rows(
    house: Any, run_dag: RunDag, capfd: pytest.CaptureFixture[str], kind: Callable[[Any], Any]
) -> None:
    title = f"rows of {kind.__module__} {kind.__name__}".replace(".", " ")
    name = title.replace(" ", "_")
    fields = make_campaign(title)

    def rows(*numbers: int) -> Any:
        return kind([{"device_id": FIRST + OTHERS + number} for number in numbers])

    with DAG(name, schedule=None, start_date=house.day) as dag:
        send = {"campaign": fields, "name": name}
        first = CreateCampaignOperator(task_id="first", audience=rows(1, 2), **send)
        workers = CreateCampaignOperator.partial(task_id="workers", audience=rows(1, 2), **send)
        other = CreateCampaignOperator.partial(task_id="other", **send)
        first >> workers.expand(worker=[1, 2]) >> other.expand(audience=[rows(3), rows(4)])
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    assert tasks == {"first": ["success"], "workers": ["success"] * 2, "other": ["failed"] * 2}
    assert capfd.readouterr().out.count("Nothing was sent to the audience of this task") >= 2
    with house.ledger() as ledger:
        [launch] = ledger.launches.search(campaign=name)
        assert (launch.audience, ledger.dispatch_queries.states(launch.launch_key)) == (2, {"accepted": 1})


def test_recipients_that_can_be_read_only_once_or_are_no_table_are_compared_by_their_type() -> None:
    reader = pa.table({"device_id": [FIRST + 1]}).to_reader()
    assert described(shown(reader)) == "<RecordBatchReader>"
    assert reader.read_all().num_rows == 1
    assert described(shown(pl.LazyFrame({"device_id": [FIRST + 1]}))) == "<LazyFrame>"
    assert described(shown([{"device_id": 1}, {"device_id": "x"}])) == described(shown([])) == "<list>"


def test_a_launch_that_another_task_made_at_the_same_time_is_not_sent(
    house: Any, run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    fields = make_campaign("raced")
    with DAG("raced", schedule=None, start_date=house.day) as dag:

        @task.audience(campaign=fields, name="raced")
        def recipients(dag_run: Any, logical_date: datetime) -> str:
            faster = LaunchOptions(origin=f"raced {dag_run.run_id}\nfaster\n{'0' * 16}")
            end = logical_date.replace(hour=0)
            with house.ledger() as ledger:
                prepare_launch(
                    ledger,
                    campaign_from(fields, "raced", query(1)),
                    period=Period(end - timedelta(days=1), end),
                    warehouses=warehouse_source,
                    options=faster,
                )
            return query(2)

        CreateCampaignOperator(task_id="send", launch_key=recipients())
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    assert tasks["recipients"] == ["failed"]
    assert "task faster of this run made launch" in capfd.readouterr().out


def test_an_empty_request_key_is_not_the_default_one(house: Any, run_dag: RunDag) -> None:
    body = {"title": "The campaign keyless", "push_text": "Hi", "android_push": 1, "device_ids": [FIRST + 1]}
    with DAG("keyless_request", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(
            task_id="send", body=body, sendoff_conn_id="service", request_key="{{ '' }}", name="keyless"
        )
    assert house.tasks(run_dag(dag, logical_date=house.day)) == {"send": ["failed"]}
    assert sent(house, "keyless") == []


def test_a_launch_for_more_people_than_the_size_limit_is_not_continued(
    house: Any, run_dag: RunDag, folder: Callable[[str], Path]
) -> None:
    path = folder("unlimited")
    with DAG("unlimited_freeze", schedule=None, start_date=house.day) as dag:
        BuildAudienceOperator(task_id="audience", folder=path)
    key = house.launch_key(run_dag(dag, logical_date=house.day))
    with DAG("unlimited_later", schedule=None, start_date=house.day) as dag:
        BuildAudienceOperator(task_id="found", folder=path, size_limit=3)
        BuildAudienceOperator(task_id="continued", folder=path, size_limit=3, continued=key)
        BuildAudienceOperator(task_id="limited_alike", folder=path, size_limit=5)
    assert house.tasks(run_dag(dag, logical_date=house.day)) == {
        "found": ["failed"],
        "continued": ["failed"],
        "limited_alike": ["success"],
    }


def test_a_frozen_launch_keeps_its_connection(
    house: Any, run_dag: RunDag, folder: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder("moved")
    with DAG("moved_freeze", schedule=None, start_date=house.day) as dag:
        BuildAudienceOperator(task_id="audience", folder=path)
    key = house.launch_key(run_dag(dag, logical_date=house.day))
    file = path / "campaign.yaml"
    file.write_text(file.read_text().replace("connection: service", "connection: nobody"))
    dag = campaign_dag(load_campaign(path), default_args={"retries": 0})
    house.quieten(dag)
    run_dag(dag, logical_date=house.day, run_conf={"launch": key})
    assert house.states(key) == {"accepted": 1}
    with DAG("moved_by_hand", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(task_id="send", launch_key=key, sendoff_conn_id="nobody")
    assert house.tasks(run_dag(dag, logical_date=house.day + timedelta(hours=1)))["send"] == ["failed"]
    assert "was made for the connection service, but sendoff_conn_id is nobody" in capfd.readouterr().out


@pytest.mark.parametrize("text", ["{{ ds }}", "Until {{ params.day }}"])
def test_a_template_of_airflow_in_a_text_is_a_mistake(house: Any, text: str) -> None:
    fields = make_campaign("texts", message={"title": "Sale", "text": text})
    with DAG("texts", schedule=None, start_date=house.day):
        for make in (
            lambda: CreateCampaignOperator(task_id="send", campaign=fields, audience=query(1)),
            lambda: campaign_group(fields, query(1), group_id="group"),
        ):
            with pytest.raises(CampaignError, match="a template of Airflow, which is not rendered in texts"):
                make()


def test_a_group_has_a_name_without_templates(house: Any, folder: Callable[[str], Path]) -> None:
    with DAG("templated", schedule=None, start_date=house.day):
        for group, given in {"fields": make_campaign("templated"), "folder": folder("templated")}.items():
            with pytest.raises(CampaignError, match="the assets of a group need a name without templates"):
                campaign_group(given, query(1), group_id=group, name="spring_{{ params.country }}")


def test_native_types_are_names_and_keys_as_well(house: Any, run_dag: RunDag) -> None:
    body = {"title": "The campaign native", "push_text": "Hi", "android_push": 1, "device_ids": [FIRST + 1]}
    with DAG(
        "native_names",
        schedule=None,
        start_date=house.day,
        render_template_as_native_obj=True,
        params={"order": 4711},
    ) as dag:
        send = {"body": body, "sendoff_conn_id": "service"}
        CreateCampaignOperator(task_id="key", request_key="{{ params.order }}", **send)
        CreateCampaignOperator(task_id="name", name="{{ params.order }}", **send)
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    assert tasks == {"key": ["success"], "name": ["success"]}


def test_a_mistake_in_a_mapped_campaign_is_not_retried(house: Any, run_dag: RunDag) -> None:
    with DAG("mapped_mistake", schedule=None, start_date=house.day, default_args={"retries": 1}) as dag:
        CreateCampaignOperator.partial(task_id="send", audience=query(1), name="{{ ti.run_id }}").expand(
            campaign=[make_campaign("mapped_mistake", titel="Hi")]
        )
    (instance,) = run_dag(dag, logical_date=house.day).get_task_instances()
    assert (instance.state, instance.try_number) == ("failed", 1)
