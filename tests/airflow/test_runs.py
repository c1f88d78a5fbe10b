"""Runs of a campaign's DAG that preview only, wait, send to fewer people, or send nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.asset import AssetDagRunQueue
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow import settings
from sendoff.campaign import Period, load_campaign
from sendoff.launch import standing_of
from sendoff.launch.plan import prepare_launch
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import CreateCampaignOperator, ExecuteCampaignOperator

SKIPPED = {
    "audience": ["skipped"],
    "preview": ["skipped"],
    "approve": ["skipped"],
    "dispatch": ["skipped", "skipped"],
    "check_dispatched": ["skipped"],
    "wait_for_post_backs": ["skipped"],
    "report": ["skipped"],
}
CONTEXT: Any = {
    "ti": SimpleNamespace(dag_id="d", run_id="r", task_id="dispatch", try_number=1, xcom_push=print)
}


def launches(house: Any, name: str) -> list[Any]:
    with house.ledger() as ledger:
        return ledger.launches.search(campaign=name)


def test_a_dry_run_counts_and_freezes_nothing(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("looked_at", more="gates: {most: 100}\n")
    run = run_dag(dag, logical_date=house.day, run_conf={"dry_run": True, "size_limit": 200})
    assert run.state == "success"
    assert house.tasks(run) == SKIPPED
    assert launches(house, "looked_at") == []
    assert house.truths("looked_at") == []
    counts = house.xcoms(run)["audience", "preview", -1]
    assert counts["people"] == 200
    assert counts["suppressed"]["size_limit"] == 300
    gates = {gate["name"]: gate["is_open"] for gate in counts["gates"]}
    assert gates == {"least": True, "channels": True, "most": False}
    printed = capfd.readouterr().out
    assert "people: 200" in printed
    assert "We missed you" not in printed


@pytest.mark.proof
def test_a_size_limit_leaves_out_the_others(house: Any, run_dag: Callable[..., DagRun]) -> None:
    run = run_dag(house.campaign("limited"), logical_date=house.day, run_conf={"size_limit": 70})
    assert run.state == "success"
    assert sum(len(truth["targeted"]) for truth in house.truths("limited")) == 70
    assert house.xcoms(run)["preview", "return_value", -1]["suppressed"]["size_limit"] == 430


@pytest.mark.promise("hands/gates")
def test_a_closed_gate_fails_at_once_and_says_what_it_saw(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("too_many", more="gates: {most: 100}\n", default_args={})
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "failed"
    assert house.tasks(run)["audience"] == ["failed"]
    assert launches(house, "too_many") == []
    assert "gates.most: 500" in capfd.readouterr().out


@pytest.mark.promise("hands/late")
def test_a_run_that_is_too_late_is_skipped_and_says_why(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("too_late", more="gates: {lateness: {length: 1, unit: hours}}\n")
    run = run_dag(dag, logical_date=house.day, run_after=datetime.now(UTC) - timedelta(hours=2))
    assert run.state == "success"
    assert house.tasks(run) == SKIPPED
    assert house.truths("too_late") == []
    assert "gates.lateness" in capfd.readouterr().out


WEEKLY = 'schedule: "0 9 * * 1"\nstart: 2026-01-05\n'


@pytest.mark.promise("hands/late")
def test_an_old_period_of_a_schedule_is_skipped_unless_the_form_says_send_late(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("last_winter", query=house.few, more=WEEKLY)
    run = run_dag(dag, logical_date=house.day)  # as a backfill creates it
    assert run.state == "success"
    assert house.tasks(run) == SKIPPED
    assert house.truths("last_winter") == []
    assert "turn on Send late in the form of a run" in capfd.readouterr().out
    run = run_dag(dag, logical_date=house.day + timedelta(hours=1), run_conf={"send_late": True})
    assert run.state == "success"
    assert len(house.truths("last_winter")) == 1


@pytest.mark.promise("hands/late")
def test_a_once_off_whose_moment_is_over_is_skipped(house: Any, run_dag: Callable[..., DagRun]) -> None:
    send = 'send: {kind: once, time: "18:30", time_zone: UTC}\n'
    run = run_dag(house.campaign("over", query=house.few, more=WEEKLY + send), logical_date=house.day)
    assert run.state == "success"
    assert house.tasks(run) == SKIPPED


@pytest.mark.proof
def test_a_resend_needs_a_reason_and_the_ledger_keeps_it(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("again", query=house.few, default_args={})
    run = run_dag(dag, logical_date=house.day, run_conf={"resend": 1})
    assert house.tasks(run)["audience"] == ["failed"]
    assert "reason" in capfd.readouterr().out
    given = {"resend": 1, "reason": "{{ the first went to a test service }}"}
    run = run_dag(dag, logical_date=house.day + timedelta(hours=1), run_conf=given)
    assert run.state == "success"
    with house.ledger() as ledger:
        found = ledger.audit_log.of_launch(house.launch_key(run))
    assert (given["reason"], "dag_test") in [(each.why, each.who) for each in found]


@pytest.mark.proof
def test_the_waves_of_a_launch_follow_each_other_in_one_run(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    spread = "gates: {rollout: {shares: [1, 10], wait: {length: 1, unit: seconds}}}\n"
    run = run_dag(house.campaign("spread", more=spread), logical_date=house.day)
    assert run.state == "success"
    assert sum(len(truth["targeted"]) for truth in house.truths("spread")) == len(house.devices)
    with house.ledger() as ledger:
        waves = {segment.wave for segment in ledger.dispatch_queries.segment_sizes(house.launch_key(run))}
    assert waves == {1, 2, 3}
    assert {
        instance.try_number for instance in run.get_task_instances() if instance.task_id == "dispatch"
    } == {1}


def test_a_task_waits_in_the_triggerer_between_two_waves(house: Any) -> None:
    house.campaign(
        "spread_slowly", more="gates: {rollout: {shares: [1, 10], wait: {length: 1, unit: hours}}}\n"
    )
    key = frozen(house, "spread_slowly")
    operator = CreateCampaignOperator(task_id="dispatch", launch_key=key, sendoff_conn_id="service")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    with house.ledger() as ledger:
        made_at = ledger.dispatch_queries.newest_exchange(key, up_to_wave=1)
        states = {(part.wave, part.state) for part in ledger.dispatch_queries.progress(key)}
    assert states == {(1, "accepted"), (2, "planned"), (3, "planned")}
    trigger: Any = deferred.value.trigger
    assert trigger.moment == made_at + timedelta(hours=1)
    with pytest.raises(TaskDeferred):
        getattr(operator, deferred.value.method_name)(CONTEXT, event="it was woken too early")


VARIANTS = """
variants:
  plain: {percent: 50}
  warm: {percent: 50, message: {text: It is warm}}
decide: {share: 50, after: {length: LENGTH, unit: UNIT}, otherwise: plain}
"""


@pytest.mark.proof
@pytest.mark.promise("twice/winner")
def test_a_run_waits_for_the_decision_and_sends_the_rest(house: Any, run_dag: Callable[..., DagRun]) -> None:
    decide = VARIANTS.replace("LENGTH", "1").replace("UNIT", "seconds")
    run = run_dag(house.campaign("winner", more=decide), logical_date=house.day)
    assert run.state == "success"
    targeted = sorted(device for truth in house.truths("winner") for device in truth["targeted"])
    assert targeted == house.devices
    key = house.launch_key(run)
    with house.ledger() as ledger:
        launch = ledger.launches.get(key)
        parts = {(part.wave, part.variation.variant) for part in ledger.dispatch_queries.segment_sizes(key)}
        decided = [each.kind for each in ledger.audit_log.of_launch(key) if each.kind == "winner"]
    assert launch.winner in ("plain", "warm")
    assert parts == {(1, "plain"), (1, "warm"), (2, launch.winner)}
    assert decided == ["winner"]


def test_a_task_waits_in_the_triggerer_until_the_winner_is_decided(house: Any) -> None:
    house.campaign("winner_later", more=VARIANTS.replace("LENGTH", "2").replace("UNIT", "hours"))
    key = frozen(house, "winner_later")
    operator = CreateCampaignOperator(task_id="dispatch", launch_key=key, sendoff_conn_id="service")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    with house.ledger() as ledger:
        made_at = ledger.dispatch_queries.newest_exchange(key, up_to_wave=1)
        states = {(part.wave, part.state) for part in ledger.dispatch_queries.progress(key)}
        standing = standing_of(ledger, ledger.launches.get(key))
    assert states == {(1, "accepted"), (2, "planned")}
    assert deferred.value.trigger.moment == made_at + timedelta(hours=2)  # type: ignore[attr-defined]
    assert standing.stage == "scheduled"


@pytest.mark.proof
def test_a_campaign_runs_after_the_asset_of_another_one(house: Any, run_dag: Callable[..., DagRun]) -> None:
    first = house.campaign("first_of_two", query=house.few)
    then = house.campaign("then", query=house.few, more="after: [first_of_two.report]\n")
    run_dag(first, logical_date=house.day)  # registers the asset
    run_dag(then, logical_date=house.day)
    with closing(settings.Session()) as session:
        session.query(DagModel).filter_by(dag_id="then").update({"is_paused": False})
        session.commit()
    assert queued("then") == 0
    run_dag(first, logical_date=house.day + timedelta(hours=1))
    assert queued("then") == 1


def queued(dag: str) -> int:
    """Count the asset events that wait for the scheduler to start a run of the DAG."""
    with closing(settings.Session()) as session:
        return session.query(AssetDagRunQueue).filter_by(target_dag_id=dag).count()


def frozen(house: Any, name: str) -> str:
    """Freeze a launch of a campaign, and return its key."""
    day = Period(house.day - timedelta(days=1), house.day)
    with house.ledger() as ledger:
        folder = load_campaign(house.folder / name)
        return prepare_launch(ledger, folder, period=day, warehouses=warehouse_source).launch_key


def held_against_window(house: Any, name: str) -> tuple[str, int]:
    """Freeze a launch whose window stays closed for hours. Return its key and the hour the window opens."""
    hour = (datetime.now(UTC) + timedelta(hours=12)).hour
    window = f'{{earliest: "{hour:02}:00", latest: "{hour:02}:30", time_zone: UTC}}'
    house.campaign(name, query=house.few, more=f"gates: {{window: {window}}}\n")
    return frozen(house, name), hour


def test_a_task_waits_in_the_triggerer_until_the_window_opens(house: Any) -> None:
    key, hour = held_against_window(house, "at_night")
    operator = CreateCampaignOperator(task_id="dispatch", launch_key=key, sendoff_conn_id="service")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(CONTEXT)
    trigger: Any = deferred.value.trigger
    assert trigger.moment > datetime.now(UTC)
    assert (trigger.moment.hour, trigger.moment.minute) == (hour, 0)
    assert house.states(key) == {"planned": 1}
    with pytest.raises(TaskDeferred):
        getattr(operator, deferred.value.method_name)(CONTEXT, event="it was woken too early")


def test_an_operator_refuses_a_launch_that_is_for_the_other_one(house: Any) -> None:
    key, _ = held_against_window(house, "for_the_other")
    operator = ExecuteCampaignOperator(task_id="dispatch", launch_key=key, sendoff_conn_id="service")
    with pytest.raises(AirflowFailException, match="Use CreateCampaignOperator"):
        operator.execute(CONTEXT)


def test_a_campaign_that_took_the_name_of_another_dag_sends_nothing(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    with DAG("taken", schedule=None, start_date=house.day) as other:
        EmptyOperator(task_id="load")
    assert run_dag(other, logical_date=house.day).state == "success"
    run = run_dag(house.campaign("taken", default_args={}), logical_date=house.day + timedelta(days=1))
    assert run.state == "failed"
    assert house.tasks(run)["audience"] == ["failed"]
    assert launches(house, "taken") == []
    assert house.truths("taken") == []
    assert "before this campaign, another DAG had the name" in capfd.readouterr().out
    [audience] = [each for each in run.get_task_instances() if each.task_id == "audience"]
    assert audience.try_number == 1


@pytest.mark.proof
def test_runs_of_a_campaign_that_had_other_tasks_are_its_own(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    before = house.campaign("grown", query=house.few)
    with before:
        EmptyOperator(task_id="more")
    assert run_dag(before, logical_date=house.day).state == "success"
    run = run_dag(house.campaign("grown", query=house.few), logical_date=house.day + timedelta(days=1))
    assert run.state == "success"
    assert len(launches(house, "grown")) == 2
