"""The DAG of a journey: each step is a task group, and goes to recipients of an earlier step."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagrun import DagRun
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup

from sendoff.campaign import Period, launch_key, load_journey
from sendoff.errors import CampaignError
from sendoff_airflow.dags import campaign_dags, check_campaigns
from sendoff_airflow.dags.group import TaskOptions
from sendoff_airflow.dags.journey import journey_dag
from sendoff_airflow.operators import CreateCampaignOperator
from sendoff_airflow.views.airflow_state import airflow_dags, airflow_db

from ..waiting import PATIENCE

MESSAGE = """    message: {title: Hello, text: Welcome}
    channels: {android_push: {}, ios_push: {}, web_push: {browsers: [chrome, firefox, safari]}}
    segment_size: 100
    parallelism: 1
"""
FILE = f"""title: The campaign welcome
connection: service
warehouse: shop
exits: [{{kind: verdicts, are: [engaged]}}]
steps:
  - name: hello
{MESSAGE}  - name: nudge
    wait: {{length: 2, unit: seconds}}
    when: {{of: hello, are: [delivered], unknowable: include}}
{MESSAGE}  - name: never
    when: {{of: hello, are: [in_doubt]}}
{MESSAGE}  - name: last
    when: {{of: nudge, are: [delivered]}}
{MESSAGE}"""
RELIABLE = {"chrome", "firefox"}


def folder_of(place: Path, text: str = FILE) -> Path:
    folder = place / "campaigns" / "welcome"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journey.yaml").write_text(text)
    (folder / "audience.sql").write_text("SELECT device_id, platform FROM devices")
    return folder


@pytest.fixture
def dag(house: Any) -> DAG:
    return dag_of(house, folder_of(house.folder))


def dag_of(house: Any, folder: Path) -> DAG:
    journey = load_journey(folder)
    dag = journey_dag(journey, TaskOptions(quiet_for=timedelta(seconds=1), default_args={"retries": 0}))
    house.quieten(dag)
    for task in dag.tasks:
        if (
            task.task_type == "WaitForStepOperator"
        ):  # so that each step sees every post-back of the one before
            task.on_execute_callback = [lambda _: house.wait_until_quiet()]
    return dag


def sent_in(house: Any, step: str) -> tuple[list[int], set[int], set[int]]:
    """Return the devices of a step, those with a reported delivery, and those with a reported open."""
    campaigns = house.admin("campaigns?count=1000")["campaigns"]
    mine = [each for each in campaigns if re.match(rf"The campaign welcome: {step} \[", each["title"])]
    truths = [house.truth(each["id"]) for each in mine]
    targeted = sorted(device for each in truths for device in each["targeted"])
    delivered, opened = (
        {device for each in truths for device in each["post_backs"][kind]} for kind in ("delivery", "open")
    )
    return targeted, delivered, opened


@pytest.mark.proof
@pytest.mark.promise("steps/once")
def test_a_journey_takes_its_steps_in_one_run(house: Any, dag: DAG, run_dag: Callable[..., DagRun]) -> None:
    run = run_dag(dag, logical_date=house.day)
    tasks = house.tasks(run)
    assert run.state == "success", tasks
    hello, delivered, opened = sent_in(house, "hello")
    assert hello == house.devices
    by_platform = {device: house.platforms[device % len(house.platforms)] for device in house.devices}
    silent = {device for device, platform in by_platform.items() if platform not in RELIABLE}
    nudge, nudged, opened_nudge = sent_in(house, "nudge")
    assert nudge == sorted((delivered | silent) - opened)
    last, _, _ = sent_in(house, "last")
    assert last == sorted(nudged - opened_nudge)
    assert opened
    assert last
    assert sent_in(house, "never")[0] == []
    assert {states[0] for task, states in tasks.items() if task.startswith("never.")} - {"success"} == {
        "skipped"
    }
    assert tasks["never.audience"] == ["skipped"]
    waits = [house.xcoms(run)[f"{step}.wait", "return_value", -1] for step in ("nudge", "last")]
    assert waits == sorted(waits)
    key = launch_key(
        "service", "welcome.nudge", Period(house.day.replace(hour=0, day=1), house.day.replace(hour=0))
    )
    found = airflow_db.run_of(key, "welcome.nudge")
    assert found
    assert (found.dag_id, found.group) == ("welcome", "nudge.")
    names = ["welcome.nudge", "welcome.nudge-test", "welcome", "other.step", "welcome.a.b"]
    assert airflow_dags.dags_of(names) == {
        "welcome.nudge": "welcome",
        "welcome.nudge-test": "welcome",
        "welcome": "welcome",
        "other.step": "other.step",
        "welcome.a.b": "welcome.a.b",
    }
    again = run_dag(dag, logical_date=house.day)  # the same period
    assert again.state == "success", house.tasks(again)
    assert [sent_in(house, step)[0] for step in ("hello", "nudge", "last")] == [hello, nudge, last]


def test_a_refused_request_fails_the_run_but_the_other_recipients_take_the_next_steps(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    folder = folder_of(house.folder / "refused", FILE.replace("campaign welcome", "refused welcome"))
    dag = dag_of(house, folder.rename(folder.with_name("refused_welcome")))
    asked = {"kind": "403", "at": ["create"], "count": 1}
    assert requests.post(f"{house.service}/admin/faults", json=asked, timeout=PATIENCE).status_code == 201
    run = run_dag(dag, logical_date=house.day)
    tasks = house.tasks(run)
    assert run.state == "failed"
    assert tasks["hello.dispatch"] == ["failed"]
    assert tasks["nudge.dispatch"] == tasks["last.dispatch"] == ["success"]
    assert house.states(house.xcoms(run)["hello.audience", "launch_key", -1]) == {"accepted": 4, "refused": 1}
    assert house.states(house.xcoms(run)["nudge.audience", "launch_key", -1]).keys() == {"accepted"}
    dry_run = run_dag(dag, logical_date=house.day + timedelta(days=1), run_conf={"dry_run": True})
    dry = house.tasks(dry_run)
    assert {state for states in dry.values() for state in states} == {"skipped"}


@pytest.mark.parametrize(
    ("earlier", "state"), [("greeting.audience", "skipped"), ("load_audience", "failed")]
)
def test_a_journey_whose_step_was_renamed_still_runs(
    house: Any, run_dag: Callable[..., DagRun], earlier: str, state: str
) -> None:
    text = FILE.partition("  - name: nudge")[0]
    folder = folder_of(house.folder / earlier, text).rename(house.folder / f"journey_{state}")
    dag = journey_dag(load_journey(folder), TaskOptions(default_args={"retries": 0}))
    with DAG(dag.dag_id, schedule=None, start_date=house.day) as before:
        group, _, task = earlier.rpartition(".")
        with TaskGroup(group) if group else nullcontext():
            EmptyOperator(task_id=task)
    assert run_dag(before, logical_date=house.day).state == "success"
    run = run_dag(dag, logical_date=house.day + timedelta(days=1), run_conf={"dry_run": True})
    assert house.tasks(run)["hello.audience"] == [state]


def test_each_task_of_a_step_takes_the_launches_of_its_campaign_only(house: Any, dag: DAG) -> None:
    campaigns = house.campaigns_of_tasks(dag)
    assert len(campaigns) == 4 * 6 + 3
    assert campaigns.pop("nudge.wait") == ("welcome.hello",)
    for task, campaign in campaigns.items():
        if not task.endswith(".wait"):
            assert campaign == (f"welcome.{task.partition('.')[0]}",)


def test_the_folder_of_a_journey_makes_one_dag_with_a_group_for_each_step(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (dag,) = campaign_dags(tmp_path / "campaigns").values()
    assert dag.dag_id == "welcome"
    assert set(dag.task_group.children) == {"hello", "nudge", "never", "last"}
    assert dag.get_task("nudge.wait").upstream_task_ids == {"hello.dispatch"}
    assert dag.get_task("last.wait").upstream_task_ids == {"nudge.dispatch"}
    assert dag.get_task("nudge.audience").upstream_task_ids == {"nudge.wait"}
    assert "wait" not in {task.rpartition(".")[2] for task in dag.task_ids if task.startswith("hello.")}
    assert set(dag.params) == {"dry_run", "size_limit", "send_late"}
    check_campaigns(tmp_path / "campaigns")


def test_a_journey_may_use_only_what_the_deployment_allows(tmp_path: Path) -> None:
    folder_of(tmp_path)
    campaigns = tmp_path / "campaigns"
    with pytest.raises(CampaignError, match=r"connection: found 'service'; allowed: other"):
        check_campaigns(campaigns, connections=["other"])
    with pytest.raises(CampaignError, match=r"welcome: another DAG has this name"):
        check_campaigns(campaigns, reserved=["welcome"])
    folder_of(tmp_path, FILE.replace("of: nudge", "of: nugde"))
    with pytest.raises(CampaignError, match=r"journey.yaml:\d+: steps\[3\].when.of: found 'nugde'"):
        check_campaigns(campaigns)
    assert campaign_dags(campaigns) == {}


def test_a_step_does_not_have_the_name_of_another_campaign_or_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # as Airflow does with the folder of a bundle
    folder, campaigns = folder_of(tmp_path), tmp_path / "campaigns"
    (tmp_path / "other.py").write_text("from airflow.sdk import DAG\nDAG('welcome.last')\n")
    with pytest.raises(CampaignError, match=r"welcome: \S+/other.py has the name of the step welcome.last"):
        check_campaigns(campaigns)
    assert campaign_dags(campaigns) == {}
    (tmp_path / "other.py").unlink()
    other = campaigns / "welcome.nudge"
    other.mkdir()
    (other / "campaign.yaml").write_text("title: Other\n" + MESSAGE.replace("\n    ", "\n").lstrip())
    (other / "audience.sql").write_text("SELECT device_id FROM devices")
    with pytest.raises(CampaignError) as raised:
        check_campaigns(campaigns)
    assert str(raised.value).splitlines() == [
        f"{folder}: {other} has the name of the step welcome.nudge. Rename one of the two.",
        f"{other}: a step of {folder} has this name. Rename one of the two.",
    ]
    assert campaign_dags(campaigns) == {}
    other.rename(campaigns / "welcome.other")
    assert set(campaign_dags(campaigns)) == {"welcome", "welcome.other"}


@pytest.mark.proof
def test_a_dag_gives_rights_to_a_campaign_only_if_it_sends_it(
    run_dag: Callable[..., DagRun], tmp_path: Path
) -> None:
    """A step's campaign belongs to the DAG before the last dot only if that DAG is of Sendoff, or has sent it."""
    with DAG("sales", schedule=None) as unrelated:
        EmptyOperator(task_id="audience")
    with DAG("nightly_sales", schedule=None) as with_group, TaskGroup("late"):
        EmptyOperator(task_id="audience")
    with DAG("tagged_sales", schedule=None, tags=["sendoff"]) as tagged:
        EmptyOperator(task_id="audience")
    with DAG("single_sales", schedule=None) as of_tasks:
        EmptyOperator(task_id="early")
        CreateCampaignOperator(task_id="late", launch_key="0" * 32)
    for each in (unrelated, with_group):
        assert run_dag(each).state == "success"
    assert run_dag(of_tasks).state == "failed"  # but the task is one that sends
    bag = DagBag(dag_folder=tmp_path, collect_dags=False)
    bag.bag_dag(tagged)
    sync_bag_to_db(bag, "dags-folder", None)
    campaigns = ["sales.late", "nightly_sales.late", "nightly_sales.early", "tagged_sales.late", "sales"]
    campaigns += ["single_sales.late", "single_sales.early", "single_sales.late.early"]
    campaigns += ["sales-test", "tagged_sales-test", "tagged_sales.late-test", "tagged_sales.late.of-test"]
    assert airflow_dags.dags_of(campaigns) == {
        "sales.late": "sales.late",
        "nightly_sales.late": "nightly_sales",
        "nightly_sales.early": "nightly_sales.early",
        "single_sales.late": "single_sales",
        "single_sales.early": "single_sales.early",
        "single_sales.late.early": "single_sales.late.early",
        "tagged_sales.late": "tagged_sales",
        "sales": "sales",
        "sales-test": "sales",
        "tagged_sales-test": "tagged_sales",
        "tagged_sales.late-test": "tagged_sales",
        "tagged_sales.late.of-test": "tagged_sales.late.of",
    }
    assert set(airflow_dags.schedules_of_campaigns(["tagged_sales", "tagged_sales-test"])) == {"tagged_sales"}
