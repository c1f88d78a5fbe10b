"""People approve a launch through Airflow's own means, and the ledger keeps their answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseNotifier, Context

from airflow import settings
from sendoff.campaign import Period, launch_key
from sendoff.dispatch.control import release
from sendoff.ledger import Decision
from sendoff_airflow.dags import campaign_group
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CheckDispatchedOperator,
    CreateCampaignOperator,
    PreviewOperator,
    ReconcileOperator,
)
from sendoff_airflow.operators.approval import ApproveLaunchOperator
from sendoff_airflow.operators.report import WriteTablesOperator
from sendoff_airflow.sensors import PostBacksQuietSensor

NEEDED = "approval: {needed: always, role: crm, within: {length: 30, unit: minutes}}\n"
CRM = {"crm": ["ann", "bob"]}


def _question(dag: str) -> HITLDetail:
    with closing(settings.Session()) as session:
        return session.query(HITLDetail).join(TaskInstance).filter(TaskInstance.dag_id == dag).one()


def _decisions(house: Any, key: str) -> list[tuple[str, str]]:
    with house.ledger() as ledger:
        return [
            (each.kind, each.who)
            for each in ledger.audit_log.of_launch(key)
            if each.kind in ("approved", "rejected")
        ]


@pytest.mark.promise("hands/who")
def test_what_was_approved_is_sent_and_the_ledger_knows_by_whom(
    house: Any, run_dag: Callable[..., DagRun], people: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("approved", query=house.few, more=NEEDED, approvers=CRM)
    people.will("approved", ("eve", "Approve"), ("bob", "Approve"), ("ann", "Reject"))
    run = run_dag(dag, logical_date=house.day)
    people.close()
    assert people.statuses == [403, 200, 409]  # not of the role; the answer; one that is too late
    assert run.state == "success"
    key = house.launch_key(run)
    assert _decisions(house, key) == [("approved", "bob")]
    assert house.xcoms(run)["approve", "return_value", -1] == {
        "launch_key": key,
        "state": "released",
        "who": "bob",
    }
    assert house.states(key) == {"accepted": 1}

    question = _question("approved")
    assert question.subject == "Send The campaign approved to 60 devices?"
    assert "We missed you" in question.body
    assert "Without an answer, nothing is sent." in question.body
    assert question.body.index("We missed you") < question.body.index("left out")
    assert key not in question.body
    assert "We missed you" not in capfd.readouterr().out
    assert "We missed you" not in str(house.xcoms(run))


def test_what_was_rejected_is_not_sent_and_is_reported_so(
    house: Any, run_dag: Callable[..., DagRun], people: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("rejected", query=house.few, more=NEEDED, approvers=CRM)
    people.will("rejected", ("ann", "Reject"))
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    assert house.tasks(run) == {
        "audience": ["success"],
        "preview": ["success"],
        "approve": ["success"],
        "dispatch": ["skipped", "skipped"],
        "check_dispatched": ["skipped"],
        "wait_for_post_backs": ["skipped"],
        "report": ["success"],
    }
    key = house.launch_key(run)
    assert _decisions(house, key) == [("rejected", "ann")]
    assert house.truths("rejected") == []
    assert len(house.verdicts(key)["not_sent"]) == 60
    assert f"launch {key} is rejected by ann: its planned requests are not sent" in capfd.readouterr().out

    again = run_dag(dag, logical_date=house.day.replace(hour=11))
    assert house.tasks(again)["dispatch"] == ["skipped", "skipped"]  # no one is asked twice


@pytest.mark.proof
@pytest.mark.parametrize(
    ("options", "states"),
    [
        ({}, {"audience": "success", "approve": "success", "next": "skipped", "last": "success"}),
        (
            {"ignore_downstream_trigger_rules": True},
            {"audience": "success", "approve": "success", "next": "skipped", "last": "skipped"},
        ),
        (
            {"fail_on_reject": True, "retries": 3},
            {
                "audience": "success",
                "approve": "failed",
                "next": "upstream_failed",
                "last": "upstream_failed",
            },
        ),
    ],
)
def test_a_rejection_does_what_the_options_of_airflows_operator_say(
    house: Any,
    run_dag: Callable[..., DagRun],
    people: Any,
    options: dict[str, Any],
    states: dict[str, str],
) -> None:
    name = f"options_{next(iter(options), 'none')}"
    house.campaign(name, query=house.few, more="approval: {needed: always}\n")
    with DAG(name, schedule=None, start_date=house.day) as dag:
        audience = BuildAudienceOperator(task_id="audience", campaign=house.folder / name)
        approve = ApproveLaunchOperator(
            task_id="approve", launch_key=audience.output["launch_key"], **options
        )
        last = EmptyOperator(task_id="last", trigger_rule="none_failed")
        audience >> approve >> EmptyOperator(task_id="next") >> last
    people.will(name, ("ann", "Reject"))
    assert house.tasks(run_dag(dag, logical_date=house.day)) == {
        task: [state] for task, state in states.items()
    }


@pytest.mark.proof
def test_silence_rejects(house: Any, run_dag: Callable[..., DagRun], people: Any) -> None:
    more = NEEDED.replace("length: 30, unit: minutes", "length: 1, unit: seconds")
    dag = house.campaign("silent", query=house.few, more=more, approvers=CRM)
    people.let_time_pass("silent")
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run)["dispatch"] == ["skipped", "skipped"]
    assert _decisions(house, house.launch_key(run)) == [("rejected", "no answer in time")]
    assert house.truths("silent") == []


@pytest.mark.proof
def test_who_decides_in_the_ledger_has_decided(
    house: Any, run_dag: Callable[..., DagRun], people: Any
) -> None:
    day = Period(house.day.replace(day=1, hour=0), house.day.replace(hour=0))
    key = launch_key("service", "released", day)
    dag = house.campaign("released", query=house.few, more=NEEDED, approvers=CRM)

    def let_go() -> None:
        with house.ledger() as ledger:
            release(ledger, key, "carol", "at the command line", without_approval=True)

    people.will("released", ("ann", "Reject"), first=let_go)
    run = run_dag(dag, logical_date=house.day)
    assert house.launch_key(run) == key
    assert house.states(key) == {"accepted": 1}
    assert _decisions(house, key) == []


@pytest.mark.proof
@pytest.mark.parametrize("answer", ["Approve", "Reject"])
def test_an_old_question_decides_nothing_about_a_launch_that_was_held_later(
    house: Any, run_dag: Callable[..., DagRun], people: Any, answer: str
) -> None:
    name = f"held_before_{answer.lower()}"
    key = launch_key("service", name, Period(house.day.replace(day=1, hour=0), house.day.replace(hour=0)))
    dag = house.campaign(name, query=house.few, more=NEEDED, approvers=CRM)

    def hold() -> None:
        with house.ledger() as ledger:
            release(ledger, key, "carol", "at the command line", without_approval=True)
            assert ledger.audit_log.decide(Decision(key, "held", "sendoff", "3 were refused", house.day))

    people.will(name, ("ann", answer), first=hold)
    run = run_dag(dag, logical_date=house.day)
    assert house.xcoms(run)["approve", "return_value", -1]["state"] == "held"
    assert _decisions(house, key) == []
    assert house.truths(name) == []


def _held(house: Any, run_dag: Callable[..., DagRun], name: str) -> str:
    """Make a launch that waits for an approval, and return its key."""
    with DAG(f"{name}_maker", schedule=None, start_date=house.day) as dag:
        BuildAudienceOperator(task_id="audience", campaign=house.folder / name)
    return house.launch_key(run_dag(dag, logical_date=house.day))


def _swap(rest_api: Any, dag: str, key: str) -> None:
    """Change the launch of a run as a user can who may edit its XComs."""
    with closing(settings.Session()) as session:
        run = session.query(XComModel).filter_by(dag_id=dag, key="launch_key").first().run_id
    token = rest_api.post("/auth/token", json={"username": "eve", "password": "eve"}).json()["access_token"]
    reply = rest_api.patch(
        f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/audience/xcomEntries/launch_key",
        json={"value": key, "map_index": -1},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert reply.status_code == 200


def test_an_edited_xcom_neither_approves_nor_sends_the_launch_of_another_campaign(
    house: Any,
    run_dag: Callable[..., DagRun],
    people: Any,
    rest_api: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    house.campaign("theirs", query=house.few, more=NEEDED, approvers=CRM)
    theirs = _held(house, run_dag, "theirs")
    dag = house.campaign("swapped", query=house.few, more="approval: {needed: always}\n")
    people.will("swapped", ("eve", "Approve"), first=lambda: _swap(rest_api, "swapped", theirs))
    tasks = house.tasks(run_dag(dag, logical_date=house.day))
    assert people.statuses == [200]
    assert (tasks["approve"], tasks["report"]) == (["failed"], ["failed"])
    assert f"Launch {theirs} belongs to the campaign theirs, but this task" in capfd.readouterr().out
    assert _decisions(house, theirs) == []
    assert house.truths("theirs") == []


def test_an_answer_is_about_the_launch_of_the_question_even_if_an_xcom_was_edited(
    house: Any, run_dag: Callable[..., DagRun], people: Any, rest_api: Any
) -> None:
    dag = house.campaign("two_periods", query=house.few, more=NEEDED, approvers=CRM)
    other = _held(house, run_dag, "two_periods")
    people.will("two_periods", ("ann", "Approve"), first=lambda: _swap(rest_api, "two_periods", other))
    run = run_dag(dag, logical_date=house.day.replace(month=4))
    asked = house.xcoms(run)["audience", "return_value", -1]["launch_key"]
    assert house.tasks(run)["approve"] == ["failed"]
    assert asked != other
    assert _decisions(house, asked) == _decisions(house, other) == []


@pytest.mark.proof
def test_no_operator_works_on_the_launch_of_another_campaign_than_its_own(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    house.campaign("foreign", query=house.few)
    key = _held(house, run_dag, "foreign")
    kinds: dict[str, Any] = {
        "preview": PreviewOperator,
        "approve": ApproveLaunchOperator,
        "send": CreateCampaignOperator,
        "check": CheckDispatchedOperator,
        "wait": PostBacksQuietSensor,
        "report": ReconcileOperator,
        "tables": WriteTablesOperator,
    }
    for own in ("foreign", "ours"):
        with DAG(
            f"only_{own}", schedule=None, start_date=house.day, default_args={"only_campaign": own}
        ) as dag:
            for name, kind in kinds.items():
                kind(task_id=name, launch_key=key)
        if own == "ours":
            assert house.tasks(run_dag(dag)) == {name: ["failed"] for name in kinds}
    assert house.states(key) == {"planned": 1}


def test_each_task_of_a_launch_takes_the_launches_of_its_campaign_only(house: Any) -> None:
    (house.folder / "named").mkdir()
    (house.folder / "named" / "outcome.sql").write_text("SELECT device_id, 1 AS bought FROM devices")
    own = house.campaign("named", more="report: {tables: marketing}\n")
    with DAG("of_its_own", schedule=None, start_date=house.day) as dag:
        campaign_group(house.folder / "named", group_id="lapsed")
    renamed = house.campaign("renamed", more="report: {tables: marketing}\nformerly: [old, older]\n")
    for made, names in ((own, ("named",)), (dag, ("named",)), (renamed, ("renamed", "old", "older"))):
        campaigns = house.campaigns_of_tasks(made)
        assert len(campaigns) >= 7
        assert set(campaigns.values()) == {names}


class Teller(BaseNotifier):
    """A notifier that keeps its messages, or fails."""

    template_fields = ("text",)

    def __init__(self, text: str, *, fails: bool = False) -> None:
        super().__init__()
        self.text = text
        self.fails = fails
        self.told: list[str] = []

    def notify(self, context: Context) -> None:
        if self.fails:
            raise ConnectionError("the chat at https://user:s3cret@chat does not answer")
        self.told.append(self.text)


def test_the_approvers_are_told_once_even_if_another_notifier_fails(
    house: Any, run_dag: Callable[..., DagRun], people: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = Teller("", fails=True)
    chat = Teller(
        "{{ task.subject }} by {{ task.deadline }} at {{ macros.sendoff.launch_url(task.launch_key) }}"
    )
    dag = house.campaign("told_of", query=house.few, more=NEEDED, approvers=CRM, on_approval=[broken, chat])
    people.will("told_of", ("bob", "Approve"))
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    [told] = chat.told
    address = f"http://localhost:8080/plugin/sendoff/sendoff/launches/{house.launch_key(run)}"
    assert re.fullmatch(
        rf"Send The campaign told_of to 60 devices\? by \w+day \d{{4}}-\d\d-\d\d \d\d:\d\d UTC at {address}",
        told,
    )
    log = capfd.readouterr().out
    assert "A notifier failed: ConnectionError" in log


def test_one_notifier_needs_no_list_and_no_one_is_told_of_a_launch_that_needs_no_approval(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    chat = Teller("{{ task.subject }}")
    run = run_dag(house.campaign("untold", query=house.few, on_approval=chat), logical_date=house.day)
    assert run.state == "success"
    assert chat.told == []


def test_a_long_title_is_cut_in_the_subject(house: Any, run_dag: Callable[..., DagRun], people: Any) -> None:
    dag = house.campaign("long", query=house.few, more=NEEDED, approvers=CRM)
    file = house.folder / "long" / "campaign.yaml"
    file.write_text(file.read_text().replace("The campaign long", "The campaign long " + "x" * 150))
    people.will("long", ("ann", "Reject"))
    run_dag(dag, logical_date=house.day)
    subject = _question("long").subject
    assert subject.endswith("x\N{HORIZONTAL ELLIPSIS} to 60 devices?")
    assert len(subject) < 100


def test_nobody_is_asked_about_a_small_launch(house: Any, run_dag: Callable[..., DagRun]) -> None:
    dag = house.campaign("small", query=house.few, more="approval: {needed: above, above: 60}\n")
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    assert _decisions(house, house.launch_key(run)) == []
    assert house.states(house.launch_key(run)) == {"accepted": 1}
