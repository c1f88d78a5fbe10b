"""Sendoff in Airflow's own pages: links of task instances, and notes of runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.models.xcom import XComModel
from airflow.utils.sqlalchemy import prohibit_commit
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from airflow import settings
from sendoff.states import Verdict
from sendoff_airflow.views.links import CampaignLink, LaunchLink

TASKS = ("audience", "preview", "approve", "check_dispatched", "wait_for_post_backs", "report")


@pytest.fixture
def links(rest_api: TestClient) -> Callable[..., dict[str, str | None]]:
    """Requests the links of a task instance from Airflow's REST API, as its page does."""
    token = rest_api.post("/auth/token", json={"username": "ann", "password": "ann"}).json()["access_token"]

    def ask(run: DagRun, task: str, place: int = -1) -> dict[str, str | None]:
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task}/links"
        answer = rest_api.get(path, params={"map_index": place}, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        return answer.json()["extra_links"]

    return ask


@pytest.mark.newest_airflow
def test_each_task_instance_leads_to_its_launch_and_its_campaign_and_its_run_has_a_note(
    house: Any, run_dag: Callable[..., DagRun], links: Callable[..., dict[str, str | None]]
) -> None:
    run = run_dag(house.campaign("linked", house.few), logical_date=house.day)
    assert run.state == "success"
    key = house.launch_key(run)
    expected = {
        "Launch": f"/plugin/sendoff/sendoff/launches/{key}",
        "Campaign": "/plugin/sendoff/sendoff/campaigns/linked",
    }
    for task in TASKS:
        assert links(run, task) == expected, task
    for place in range(2):
        assert links(run, "dispatch", place) == expected

    verdicts = house.xcoms(run)["report", "return_value", -1]["verdicts"]
    parts = [f"{verdicts[name]} {name.replace('_', ' ')}" for name in Verdict if verdicts[name]]
    _end_again(run)
    assert _note(run) == f"Reported. 60 devices: {', '.join(parts)}"


def test_the_note_of_a_run_in_place_of_a_scheduled_one_has_a_line_about_it(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("in_place", house.few, more='schedule: "0 9 * * 1"\nstart: 2026-01-05\n')
    run = run_dag(dag, logical_date=house.day, run_conf={"send_late": True})
    result, warning = house.xcoms(run)["report", "note", -1].split("\n")
    assert result.startswith("Reported. 60 devices: ")
    assert warning.startswith("This run took the place of the scheduled run")


def test_values_that_a_custom_xcom_backend_holds_are_neither_links_nor_notes(
    house: Any, run_dag: Callable[..., DagRun], links: Callable[..., dict[str, str | None]]
) -> None:
    run = run_dag(house.campaign("held_elsewhere", house.few), logical_date=house.day)
    with closing(settings.Session()) as session:
        session.query(XComModel).filter_by(dag_id=run.dag_id).update({"value": "s3://xcoms/held_elsewhere/5"})
        session.commit()
    assert links(run, "audience") == {
        "Launch": None,
        "Campaign": "/plugin/sendoff/sendoff/campaigns/held_elsewhere",
    }
    _end_again(run)
    assert _note(run) is None


def test_before_there_is_a_launch_the_links_lead_to_the_campaign(
    house: Any, run_dag: Callable[..., DagRun], links: Callable[..., dict[str, str | None]]
) -> None:
    run = run_dag(house.campaign("unmade", house.few), logical_date=house.day, run_conf={"dry_run": True})
    assert house.tasks(run)["audience"] == ["skipped"]
    for task in TASKS:
        assert links(run, task) == {
            "Launch": None,
            "Campaign": "/plugin/sendoff/sendoff/campaigns/unmade",
        }
    _end_again(run)
    assert _note(run) is None


def test_a_run_whose_launch_a_gate_stopped_says_why_in_its_note_and_its_tab(
    house: Any, run_dag: Callable[..., DagRun], rest_api: TestClient
) -> None:
    dag = house.campaign("too_few", house.few, more="gates: {least: 1000}\n")
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "failed"
    _end_again(run)
    why = "Not launched: 60 devices, at least 1,000 wanted."
    assert _note(run) == why
    token = rest_api.post("/auth/token", json={"username": "bob", "password": "bob"}).json()["access_token"]
    tab = rest_api.get(
        "/sendoff/dag",
        params={"dag_id": "too_few", "run_id": run.run_id},
        headers={"Cookie": f"_token={token}"},
    )
    assert why in tab.text
    with house.ledger() as ledger:
        [entry] = ledger.not_launched.newest(["too_few"])
    assert f"Not launched: {entry.why}." == why


def test_a_task_whose_recipients_a_function_returns_has_links_and_says_why_nothing_was_launched(
    house: Any, run_dag: Callable[..., DagRun], links: Callable[..., dict[str, str | None]]
) -> None:
    from airflow.sdk import DAG, task

    for name in ("returned", "too_few_returned"):
        house.campaign(name, more="gates: {least: 1000}\n" if name == "too_few_returned" else "")
        with DAG(f"dag_{name}", schedule=None, start_date=house.day) as dag:

            @task.audience(campaign=house.folder / name, task_id="devices")
            def devices() -> str:
                return str(house.few)

            devices()
        run = run_dag(dag, logical_date=house.day)
        _end_again(run)
        if name == "returned":
            key = house.xcoms(run)["devices", "launch_key", -1]
            assert links(run, "devices") == {
                "Launch": f"/plugin/sendoff/sendoff/launches/{key}",
                "Campaign": "/plugin/sendoff/sendoff/campaigns/returned",
            }
        else:
            assert _note(run) == "Not launched: 60 devices, at least 1,000 wanted."


def test_the_tabs_of_a_dag_of_ones_own_lead_to_the_launches_of_its_tasks(
    house: Any, run_dag: Callable[..., DagRun], rest_api: TestClient
) -> None:
    from airflow.sdk import DAG, TaskGroup, task

    from sendoff_airflow.operators import CreateCampaignOperator

    campaign = {
        "title": "Opening hours",
        "message": {"title": "Opening hours", "text": "We are open on Sundays now"},
        "channels": {"android_push": {}},
        "connection": "service",
        "warehouse": "shop",
    }
    with DAG("seasonal_hours", schedule=None) as dag:
        CreateCampaignOperator(task_id="notice", campaign=campaign, audience=house.few)
        CreateCampaignOperator(task_id="other", campaign=campaign, audience=house.few, name="closing_time")

        @task.audience(campaign=campaign)
        def returned() -> str:
            return str(house.few)

        CreateCampaignOperator(task_id="send", launch_key=returned())
        with TaskGroup("autumn"):
            CreateCampaignOperator(task_id="hours", campaign=campaign, audience=house.few)
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    xcoms = house.xcoms(run)
    names = ("notice", "other", "returned", "autumn.hours")
    keys = {name: xcoms[name, "launch_key", -1] for name in names}
    token = rest_api.post("/auth/token", json={"username": "bob", "password": "bob"}).json()["access_token"]
    login = {"Cookie": f"_token={token}"}
    tab = f"/sendoff/dag?dag_id=seasonal_hours&run_id={quote(run.run_id)}"
    of_run, of_dag = (
        rest_api.get(path, headers=login).text for path in (tab, "/sendoff/campaigns/seasonal_hours")
    )
    for name, key in keys.items():
        assert f"launches/{key}" in of_run, name
        assert (f"launches/{key}" in of_dag) is (name != "other"), name
    listed = rest_api.get("/sendoff/campaigns", headers=login).text
    assert "seasonal_hours.notice" in listed
    assert 'campaigns/seasonal_hours"' not in listed  # as a journey with steps

    with DAG("named_otherwise", schedule=None) as dag:
        CreateCampaignOperator(task_id="other", campaign=campaign, audience=house.few, name="late_opening")
    run = run_dag(dag, logical_date=house.day)
    key = house.xcoms(run)["other", "launch_key", -1]
    of_dag = rest_api.get("/sendoff/campaigns/named_otherwise", headers=login).text
    assert "If a run of it makes launches, the tab of that run shows them." in of_dag
    tab = f"/sendoff/dag?dag_id=named_otherwise&run_id={quote(run.run_id)}"
    assert f"launches/{key}" in rest_api.get(tab, headers=login).text


@pytest.mark.newest_airflow
@pytest.mark.promise("sound/versions")
@pytest.mark.parametrize(("act", "option"), [("release", "Approve"), ("reject", "Reject")])
def test_whoever_decides_on_our_page_also_answers_in_airflow_and_the_run_goes_on(
    house: Any, run_dag: Callable[..., DagRun], people: Any, rest_api: TestClient, act: str, option: str
) -> None:
    name = f"asked_to_{act}"
    dag = house.campaign(name, house.few, more="approval: {needed: always}\n")
    answers: list[Any] = []

    def press() -> None:
        """Decide on the page of the launch as a browser does, by cookie."""
        token = rest_api.post("/auth/token", json={"username": "bob", "password": "bob"}).json()
        ours = {"Cookie": f"_token={token['access_token']}", "X-Sendoff-Request": "1"}
        with house.ledger() as ledger:
            [key] = [each.launch_key for each in ledger.launches.page([name], states=["held"])]
        page = rest_api.get(f"/sendoff/launches/{key}", headers=ours).text
        [since] = set(re.findall(r'name="since" value="(\d+)"', page))
        body = {"reason": "the numbers are known", "since": since}
        answers.append(rest_api.post(f"/sendoff/launches/{key}/{act}", json=body, headers=ours))
        answers.append(rest_api.get("/sendoff/waiting", headers=ours))

    people.will(name, first=press)
    run = run_dag(dag, logical_date=house.day)
    people.close()
    decided, waiting = answers
    assert "Answered in Airflow too: the run continues by itself." in decided.text
    assert "Not yet answered in Airflow" not in waiting.text
    assert run.state == "success"
    with closing(settings.Session()) as session:
        told = session.query(HITLDetail).join(TaskInstance).filter(TaskInstance.dag_id == name).one()
        assert told.chosen_options == [option]
        assert told.responded_by == {"id": "bob", "name": "bob"}
        [logged] = session.query(Log).filter_by(dag_id=name, event="update_hitl_detail").all()
        assert (logged.owner, logged.run_id, logged.task_id) == ("bob", run.run_id, "approve")
    key = house.launch_key(run)
    with house.ledger() as ledger:
        kinds = [(each.kind, each.who) for each in ledger.audit_log.of_launch(key)]
    assert ({"release": "released", "reject": "rejected"}[act], "bob") in kinds
    assert ("approved", "bob") not in kinds
    assert house.tasks(run)["dispatch"] == (["success"] if act == "release" else ["skipped"]) * 2
    assert house.states(key) == ({"accepted": 1} if act == "release" else {"planned": 1})


def test_links_have_airflows_own_path_twice_where_it_is_served_under_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sendoff_airflow.views.links import campaign_page, launch_page
    from sendoff_airflow.views.macros import launch_url

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/ours/")
    assert campaign_page("one two") == "/ours/plugin/sendoff/ours/sendoff/campaigns/one%20two"
    assert launch_page("abc") == "/ours/plugin/sendoff/ours/sendoff/launches/abc"
    assert launch_url("abc") == "https://airflow.example.com/ours/plugin/sendoff/ours/sendoff/launches/abc"


@pytest.mark.proof
def test_in_a_run_of_several_launches_each_task_leads_to_its_own_and_one_that_did_not_start_to_none(
    house: Any, run_dag: Callable[..., DagRun], links: Callable[..., dict[str, str | None]]
) -> None:
    from airflow.sdk import DAG, task

    from sendoff_airflow.operators import BuildAudienceOperator, PreviewOperator

    names = ("one", "two")
    for name in names:
        house.campaign(name, house.few)
    with DAG("several", schedule=None) as dag:
        audiences = [BuildAudienceOperator(task_id=name, folder=house.folder / name) for name in names]

        @task
        def keys(*found: str) -> list[str]:
            return list(found)

        found = keys(*(audience.output["launch_key"] for audience in audiences))
        PreviewOperator.partial(task_id="preview").expand(launch_key=found)
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    xcoms = house.xcoms(run)
    for place, name in enumerate(names):
        launch = f"/plugin/sendoff/sendoff/launches/{xcoms[name, 'launch_key', -1]}"
        campaign = f"/plugin/sendoff/sendoff/campaigns/{name}"
        assert links(run, name) == {"Launch": launch, "Campaign": campaign}
        assert links(run, "preview", place) == {"Launch": launch, "Campaign": None}
    other = TaskInstanceKey("several", "not_started", run.run_id)
    assert LaunchLink().get_link(dag.get_task("preview"), ti_key=other) == ""
    assert CampaignLink().get_link(dag.get_task("preview"), ti_key=other) == ""


def test_a_run_that_is_cleared_gets_a_new_note(
    house: Any, run_dag: Callable[..., DagRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_dag(house.campaign("opened", house.few, more="gates: {least: 1000}\n"), logical_date=house.day)
    _end_again(run)
    assert _note(run) == "Not launched: 60 devices, at least 1,000 wanted."
    # DAG.test() clears the tasks of an earlier run of this date, and would then replace the run itself.
    monkeypatch.setattr("airflow.models.dagrun.get_or_create_dagrun", _run_of_the_date)
    again = run_dag(house.campaign("opened", house.few), logical_date=house.day)
    assert (again.id, again.state) == (run.id, "success")
    _end_again(again)
    note = _note(run) or ""
    assert note.startswith("Reported. 60 devices: ")
    with closing(settings.Session()) as session:
        session.query(XComModel).filter_by(dag_id=run.dag_id, key="note").delete()
        session.commit()
    _end_again(again)  # a try that ends before a task reports
    assert _note(run) is None


def _run_of_the_date(*, dag: Any, logical_date: datetime, session: Session, **_: Any) -> DagRun:
    run = session.query(DagRun).filter_by(dag_id=dag.dag_id, logical_date=logical_date).one()
    run.dag, run.state = dag, "running"
    return run


def test_a_note_that_a_person_changed_stays(
    house: Any, run_dag: Callable[..., DagRun], rest_api: TestClient
) -> None:
    run = run_dag(
        house.campaign("too_few_noted", house.few, more="gates: {least: 1000}\n"), logical_date=house.day
    )
    _end_again(run)
    token = rest_api.post("/auth/token", json={"username": "ann", "password": "ann"}).json()["access_token"]
    changed = rest_api.patch(
        f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}",
        json={"note": "Ann asked the data team"},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert changed.status_code == 200, changed.text
    _end_again(run)
    assert _note(run) == "Ann asked the data team"


@pytest.mark.proof
def test_a_note_that_somebody_wrote_stays(house: Any, run_dag: Callable[..., DagRun]) -> None:
    run = run_dag(house.campaign("noted", house.few), logical_date=house.day)
    with closing(settings.Session()) as session:
        found = session.get(DagRun, run.id)
        assert found is not None
        found.note = "Looked at by Ann"
        session.commit()
    _end_again(run)
    assert _note(run) == "Looked at by Ann"


def _end_again(run: DagRun) -> None:
    """End a finished run once more in a transaction like the scheduler's. A run under test has none."""
    with closing(settings.Session()) as session:
        found = session.get(DagRun, run.id)
        assert found is not None
        found.dag = run.dag
        ended = found.state
        with prohibit_commit(session) as guard:
            found.state = "running"
            found.update_state(session=session)
            assert found.state == ended
            guard.commit()


def _note(run: DagRun) -> str | None:
    with closing(settings.Session()) as session:
        found = session.get(DagRun, run.id)
        assert found is not None
        return found.note
