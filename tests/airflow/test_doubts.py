"""People settle requests in doubt through Airflow, and the ledger stores their decisions with their names."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from airflow.cli.cli_parser import get_parser as airflow_commands
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from typer.testing import CliRunner

from airflow import settings
from sendoff.campaign import Period, load_campaign
from sendoff.cli.commands import app
from sendoff.dispatch.control import resolve, stop
from sendoff.launch.plan import prepare_launch
from sendoff.service.client import InDoubt
from sendoff.states import Resolution
from sendoff_airflow.dags import doubts_dag
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import doubts as operators_of_doubts
from sendoff_airflow.operators.doubts import LaunchesInDoubtOperator, ResolveDoubtsOperator

from ..waiting import PATIENCE

RESEND, WRITE_OFF, LEAVE = "Resend", "Write off", "Leave in doubt"
NOBODYS = "no answer"


@pytest.fixture
def people(airflow_database: None, people: Any) -> Any:
    people.task, people.place = "resolve_doubts", 0
    return people


@contextmanager
def fault(house: Any, **what: Any) -> Iterator[None]:
    address = f"{house.service}/admin/faults"
    assert requests.post(address, json={"at": ["create"], **what}, timeout=PATIENCE).ok
    yield
    assert requests.delete(address, timeout=PATIENCE).ok


@pytest.fixture
def nothing_in_doubt(house: Any) -> Iterator[None]:
    """Leave no doubts to the next test, whose DAG would ask about them."""
    yield
    with house.ledger() as ledger:
        for each in ledger.doubts.open():
            resolve(ledger, each.dispatch_key, Resolution.WRITE_OFF, "the test", "it is over")


pytestmark = pytest.mark.usefixtures("nothing_in_doubt")


def in_doubt(house: Any, name: str, query: str | None = None) -> str:
    """Freeze a launch, claim its first request, and lose its outcome. Return the launch key."""
    house.campaign(name, query=query or house.few)
    day = Period(house.day - timedelta(days=1), house.day)
    with house.ledger() as ledger:
        folder = load_campaign(house.folder / name)
        key = prepare_launch(ledger, folder, period=day, warehouses=warehouse_source).launch_key
        now = datetime.now(UTC)
        claim = ledger.dispatches.claim(key, worker="w", now=now, lease=timedelta(minutes=5))
        ledger.dispatches.record(claim, InDoubt(NOBODYS), now)
    assert house.states(key)["in_doubt"] == 1
    return key


def decisions(house: Any, key: str) -> list[tuple[str, str, str]]:
    with house.ledger() as ledger:
        found = ledger.audit_log.of_launch(key)
        return [(each.kind, each.who, each.why) for each in found if each.kind.endswith("_dispatch")]


def question(dag: str) -> HITLDetail:
    with closing(settings.Session()) as session:
        return session.query(HITLDetail).join(TaskInstance).filter(TaskInstance.dag_id == dag).one()


@pytest.mark.promise("hands/who")
def test_what_was_lost_is_asked_about_and_sent_again_by_the_one_who_said_so(
    house: Any, run_dag: Callable[..., DagRun], people: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    campaign = house.campaign("lost", query=house.few)
    with fault(house, kind="500", count=1):  # not processed, but only the service knows
        first = run_dag(campaign, logical_date=house.day)
    key = house.launch_key(first)
    assert house.states(key) == {"in_doubt": 1}

    people.will("doubts_lost", ("eve", RESEND), ("ann", RESEND))
    told = []
    dag = doubts_dag(
        dag_id="doubts_lost",
        people=["ann"],
        on_question=lambda context: told.append((context["task"].subject, context["task"].launch_key)),
    )
    run = run_dag(dag, logical_date=house.day)
    people.close()
    assert people.statuses == [403, 200]
    assert run.state == "success"
    answer = {"launch_key": key, "resolved": 1, "in_doubt": 0, "who": "ann"}
    assert house.xcoms(run)["resolve_doubts", "return_value", 0] == answer
    why = f"answered in run {run.run_id} of the DAG doubts_lost"
    assert decisions(house, key) == [("resend_dispatch", "ann", why)]
    assert house.states(key) == {"planned": 1}

    asked = question("doubts_lost")
    assert asked.subject == "The campaign lost: what should happen with 1 request in doubt?"
    assert told == [(asked.subject, key)]
    for part in (key, "2026-03-01T00:00:00Z/2026-03-02T00:00:00Z", "60 devices", "| HTTP 500 | 1 |", "since"):
        assert part in asked.body
    assert all(f"**{option}**" in asked.body for option in asked.options)
    assert asked.options == [RESEND, WRITE_OFF, LEAVE]
    assert "HTTP 500 | 1" not in capfd.readouterr().out  # only the approvers may read the question

    again = run_dag(campaign, logical_date=house.day + timedelta(hours=1))
    assert house.launch_key(again) == key
    assert house.states(key) == {"accepted": 1}
    assert len(house.truths("lost")) == 1


@pytest.mark.proof
def test_what_is_written_off_is_not_asked_about_again(
    house: Any, run_dag: Callable[..., DagRun], people: Any
) -> None:
    key = in_doubt(house, "written_off")
    people.will("doubts_off", ("bob", WRITE_OFF))
    dag = doubts_dag(dag_id="doubts_off")
    assert run_dag(dag, logical_date=house.day).state == "success"
    assert house.states(key) == {"written_off": 1}
    assert [each[:2] for each in decisions(house, key)] == [("write_off_dispatch", "bob")]

    run = run_dag(dag, logical_date=house.day + timedelta(days=1))
    assert house.tasks(run) == {"find_launches_in_doubt": ["success"], "resolve_doubts": ["skipped"]}
    assert house.xcoms(run)["find_launches_in_doubt", "return_value", -1] == []


def test_silence_leaves_it_in_doubt(house: Any, run_dag: Callable[..., DagRun], people: Any) -> None:
    key = in_doubt(house, "silent_doubt")
    people.let_time_pass("doubts_silent")
    run = run_dag(doubts_dag(dag_id="doubts_silent", within=timedelta(seconds=1)), logical_date=house.day)
    answer = {"launch_key": key, "resolved": 0, "in_doubt": 1, "who": None}
    assert house.xcoms(run)["resolve_doubts", "return_value", 0] == answer
    assert house.states(key) == {"in_doubt": 1}
    assert decisions(house, key) == []


def test_an_answer_is_for_what_was_in_doubt_when_it_was_asked(
    house: Any, run_dag: Callable[..., DagRun], people: Any
) -> None:
    key = in_doubt(house, "twice_in_doubt")

    def send_and_lose_again() -> None:
        with house.ledger() as ledger:
            [doubt] = ledger.doubts.open(key)
            resolve(ledger, doubt.dispatch_key, Resolution.RESEND, "carol", "at the command line")
            now = datetime.now(UTC)
            claim = ledger.dispatches.claim(key, worker="w", now=now, lease=timedelta(minutes=5))
            ledger.dispatches.record(claim, InDoubt(NOBODYS), now)

    people.will("doubts_twice", ("ann", RESEND), first=send_and_lose_again)
    run = run_dag(doubts_dag(dag_id="doubts_twice"), logical_date=house.day)
    answer = {"launch_key": key, "resolved": 0, "in_doubt": 1, "who": "ann"}
    assert house.xcoms(run)["resolve_doubts", "return_value", 0] == answer
    assert [each[:2] for each in decisions(house, key)] == [("resend_dispatch", "carol")]


def test_an_answer_is_for_no_other_request_also_where_a_workers_clock_is_behind(
    house: Any, run_dag: Callable[..., DagRun], people: Any
) -> None:
    key = in_doubt(house, "clock_behind", query=house.few.replace("LIMIT 60", "LIMIT 120"))
    with house.ledger() as ledger:
        now = datetime.now(UTC)
        claim = ledger.dispatches.claim(key, worker="late", now=now, lease=timedelta(hours=1))

    def lose_another() -> None:
        with house.ledger() as ledger:
            ledger.dispatches.record(claim, InDoubt(NOBODYS), now - timedelta(minutes=1))

    people.will("doubts_behind", ("ann", RESEND), first=lose_another)
    run = run_dag(doubts_dag(dag_id="doubts_behind"), logical_date=house.day)
    answer = {"launch_key": key, "resolved": 1, "in_doubt": 1, "who": "ann"}
    assert house.xcoms(run)["resolve_doubts", "return_value", 0] == answer
    assert house.states(key) == {"planned": 1, "in_doubt": 1}


def test_a_launch_that_is_over_is_not_offered_to_be_sent_again(
    house: Any, run_dag: Callable[..., DagRun], people: Any
) -> None:
    key = in_doubt(house, "over")
    with house.ledger() as ledger:
        stop(ledger, key, "carol", "enough")
    people.will("doubts_over", ("ann", RESEND), ("ann", LEAVE))
    run_dag(doubts_dag(dag_id="doubts_over"), logical_date=house.day)
    people.close()
    assert people.statuses == [400, 200]
    assert question("doubts_over").options == [WRITE_OFF, LEAVE]
    assert "The launch is stopped" in question("doubts_over").body


@pytest.mark.proof
def test_what_the_service_lists_is_asked_of_nobody(
    house: Any, run_dag: Callable[..., DagRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = json.loads(os.environ["AIRFLOW_CONN_SERVICE"])
    listing["extra"] |= {"can_list": True}
    monkeypatch.setenv("AIRFLOW_CONN_LISTING", json.dumps(listing))
    campaign = house.campaign(
        "listed", query=house.few, connection="listing", more="post_backs: {kinds: []}\n"
    )
    with fault(house, kind="lost", count=1):  # processed, and the answer is lost
        key = house.launch_key(run_dag(campaign, logical_date=house.day))
    assert house.states(key) == {"in_doubt": 1}

    run = run_dag(doubts_dag(dag_id="doubts_listed"), logical_date=house.day)
    assert house.tasks(run) == {"find_launches_in_doubt": ["success"], "resolve_doubts": ["success"]}
    answer = {"launch_key": key, "resolved": 0, "in_doubt": 0, "who": None}
    assert house.xcoms(run)["resolve_doubts", "return_value", 0] == answer
    assert house.names(run)["resolve_doubts"] == [f"listed, {house.day:%Y-%m-%d} 00:00 UTC"]
    assert house.states(key) == {"accepted": 1}
    assert len(house.truths("listed")) == 1


def test_launches_beyond_the_most_of_a_run_are_asked_about_in_another(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {in_doubt(house, "older_doubt"), in_doubt(house, "newer_doubt")}
    monkeypatch.setattr(operators_of_doubts, "MAX_LAUNCHES", 1)
    operator = LaunchesInDoubtOperator(task_id="find_launches_in_doubt")

    def chosen(run_id: str) -> list[str]:
        context: Any = {"ti": SimpleNamespace(xcom_push=lambda *_: None), "run_id": run_id}
        return operator.execute(context)

    found = [chosen(f"run {number}") for number in range(20)]
    assert {len(each) for each in found} == {1}
    assert {key for each in found for key in each} == keys
    assert chosen("run 0") == found[0], "a retry asks about the same launches"


def test_without_doubts_nobody_is_asked(house: Any, run_dag: Callable[..., DagRun]) -> None:
    run = run_dag(house.campaign("clear", query=house.few), logical_date=house.day)
    operator = ResolveDoubtsOperator(task_id="resolve_doubts", launch_key=house.launch_key(run))
    context: Any = {"ti": SimpleNamespace()}
    assert operator.execute(context)["in_doubt"] == 0


@pytest.mark.proof
def test_the_command_that_doubts_and_report_print_continues_the_launch(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    daily = 'schedule: "0 0 * * *"\nstart: 2026-01-05\n'  # its runs have a period and can continue any launch
    campaign = house.campaign("continued", query=house.few, more=daily)
    with fault(house, kind="500", count=1):
        run = run_dag(campaign, logical_date=house.day.replace(hour=0), run_conf={"send_late": True})
    key = house.launch_key(run)
    with house.ledger() as ledger:
        [doubt] = ledger.doubts.open(key)
    sendoff = ["--ledger", house.ledger_url]
    commands = []
    for arguments in (
        ["resolve", doubt.dispatch_key, "resend", "--why", "asked"],
        ["doubts", key],
        ["report", key],
    ):
        told = CliRunner().invoke(app, [*arguments, *sendoff])
        assert told.exit_code == 0, told.output
        assert "1 request of launch" in told.output
        commands.append(told.output.rpartition("continue it with: ")[2].partition(", or, if")[0])
    [command] = set(commands)
    asked = airflow_commands().parse_args(shlex.split(command)[1:])
    assert (asked.subcommand, asked.dag_id, asked.logical_date) == ("trigger", "continued", None)

    run = run_dag(campaign, logical_date=asked.logical_date, run_conf=json.loads(asked.conf))
    assert run.state == "success"
    assert house.launch_key(run) == key
    assert house.states(key) == {"accepted": 1}
    assert len(house.truths("continued")) == 1
    assert "airflow dags trigger" not in CliRunner().invoke(app, ["doubts", key, *sendoff]).output


def test_a_launch_is_continued_by_the_dag_of_its_own_campaign_alone(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    key = in_doubt(house, "whose")
    other = house.campaign("another", query=house.few)
    run = run_dag(other, logical_date=house.day, run_conf={"launch": key})
    assert run.state == "failed"
    assert f"Launch {key} belongs to the campaign whose, but this DAG sends another" in capfd.readouterr().out
    assert house.truths("another") == []


@pytest.mark.proof
def test_a_renamed_campaign_continues_a_launch_under_its_earlier_name(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    key = in_doubt(house, "named_before")
    with house.ledger() as ledger:
        [doubt] = ledger.doubts.open(key)
        resolve(ledger, doubt.dispatch_key, Resolution.RESEND, "carol", "nothing was sent")
    renamed = house.campaign("named_now", query=house.few, more="formerly: [named_before]\n")
    run = run_dag(renamed, logical_date=house.day, run_conf={"launch": key})
    assert run.state == "success", house.tasks(run)
    assert house.launch_key(run) == key
    assert house.states(key) == {"accepted": 1}


def test_each_launch_of_a_run_has_its_own_question(house: Any, run_dag: Callable[..., DagRun]) -> None:
    for name in ("one_sale", "another_sale"):
        in_doubt(house, name)
    scheduler, is_over = SchedulerJobRunner(job=Job()), threading.Event()

    def end_questions() -> None:
        while not is_over.wait(0.5):
            with closing(settings.Session()) as session:
                tasks = session.query(TaskInstance).filter_by(dag_id="two_doubts", task_id="resolve_doubts")
                waiting = [each for each in tasks if each.state == "awaiting_input"]
            if waiting:
                scheduler.check_awaiting_input_timeouts()

    thread = threading.Thread(target=end_questions)
    thread.start()
    try:
        dag = doubts_dag(dag_id="two_doubts", within=timedelta(seconds=1), default_args={"retries": 0})
        run = run_dag(dag, logical_date=house.day)
    finally:
        is_over.set()
        thread.join(PATIENCE)
    assert run.state == "success"
    answers = [value for (task, key, _), value in house.xcoms(run).items() if key == "return_value"]
    assert [each["who"] for each in answers if isinstance(each, dict) and "resolved" in each] == [None, None]
