"""One period is one launch: no other run sends a request that was made or may have been made.

Concurrent workers, cleared tasks and killed processes are in tests/acceptance/test_airflow_histories.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from sendoff.campaign import Campaign, CampaignFolder, Period, load_campaign
from sendoff.dispatch.control import doubts
from sendoff.errors import NobodyLeftError
from sendoff.launch.plan import LaunchOptions, prepare_launch
from sendoff.ledger.storage.schema import dispatches as dispatches_of_ledger
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import BuildAudienceOperator, CheckDispatchedOperator
from sendoff_airflow.operators.assets import report_asset
from sendoff_airflow.operators.preparation import of_run, period_of_launch

from ..leases import end_leases

DAILY = 'schedule: "0 0 * * *"\nstart: 2026-01-05\n'
HOUR = timedelta(hours=1)
OLD = "2026-02-20T00:00:00Z/2026-02-21T00:00:00Z"
NOTHING = {"accepted": 0, "refused": 0, "in_doubt": 0}


def dispatches(house: Any, name: str) -> list[tuple[str, str, int]]:
    """Return the dispatches of a campaign's only launch, each with its state and its number of attempts."""
    with house.ledger() as ledger:
        [launch] = ledger.launches.search(campaign=name)
        made = ledger.dispatch_queries.of_launch(launch.launch_key)
        return [(each.dispatch_key, each.state, each.attempt) for each in made]


def tallies(house: Any, run: DagRun) -> list[dict[str, int]]:
    return [house.xcoms(run)["dispatch", "return_value", worker] for worker in range(2)]


@pytest.mark.proof
@pytest.mark.promise("twice/launch")
def test_neither_the_same_run_anew_nor_another_of_the_period_sends_again(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("one_period", more=DAILY)
    start = house.day.replace(hour=0)
    first = run_dag(dag, logical_date=start, run_conf={"send_late": True})
    made = dispatches(house, "one_period")
    assert [(state, attempt) for _, state, attempt in made] == [("accepted", 1)] * house.segments

    assert "Nothing new is sent" not in capfd.readouterr().out
    anew = run_dag(dag, logical_date=start)  # replaces the first
    by_hand = run_dag(dag, logical_date=start + HOUR)
    assert len({first.run_id, anew.run_id, by_hand.run_id}) == 3
    assert capfd.readouterr().out.count("Nothing new is sent: all requests of launch") >= 2
    for run in (anew, by_hand):
        assert run.state == "success"
        assert tallies(house, run) == [NOTHING, NOTHING]
    assert dispatches(house, "one_period") == made
    truths = house.truths("one_period")
    assert len(truths) == house.segments
    assert sorted(device for truth in truths for device in truth["targeted"]) == house.devices


@pytest.mark.parametrize(("name", "schedule"), [("moved_an_hour", "0 1 * * *"), ("now_weekly", "0 0 * * 0")])
def test_a_new_schedule_sends_no_one_the_message_of_the_old_one_again(
    house: Any, run_dag: Callable[..., DagRun], name: str, schedule: str
) -> None:
    sunday = house.day.replace(hour=0) - timedelta(days=house.day.isoweekday() % 7)
    late = {"send_late": True}
    run_dag(house.campaign(name, more=DAILY), logical_date=sunday, run_conf=late)
    made = dispatches(house, name)
    moved = house.campaign(name, more=DAILY.replace("0 0 * * *", schedule))
    run = run_dag(moved, logical_date=sunday + HOUR, run_conf=late)
    assert house.tasks(run)["audience"] == ["skipped"]
    assert dispatches(house, name) == made
    next_week = run_dag(moved, logical_date=sunday + timedelta(days=7, hours=1), run_conf=late)
    assert house.tasks(next_week)["audience"] == ["success"]


@pytest.mark.proof
@pytest.mark.promise("twice/doubt")
def test_what_a_dead_worker_left_is_listed_as_in_doubt_and_sent_by_no_run(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("left_behind", more=DAILY)
    start = house.day.replace(hour=0)
    with house.ledger() as ledger:
        folder = load_campaign(house.folder / "left_behind")
        day = Period(start - 24 * HOUR, start)
        key = prepare_launch(ledger, folder, period=day, warehouses=warehouse_source).launch_key
        long_ago = datetime.now(UTC) - HOUR
        dead = ledger.dispatches.claim(key, worker="dead", now=long_ago, lease=timedelta(minutes=5))
        end_leases(ledger)
    for run in (run_dag(dag, logical_date=start), run_dag(dag, logical_date=start + HOUR)):
        assert house.launch_key(run) == key
        assert house.states(key) == {"accepted": house.segments - 1, "in_doubt": 1}
    with house.ledger() as ledger:
        assert [each.dispatch_key for each in doubts(ledger, key)] == [dead.dispatch_key]
    truths = house.truths("left_behind")
    assert len(truths) == house.segments - 1
    assert {attempt for _, _, attempt in dispatches(house, "left_behind")} == {1}


@pytest.mark.proof
def test_a_run_whose_worker_was_killed_waits_for_the_lease_in_the_triggerer(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("killed", more=DAILY)
    start = house.day.replace(hour=0)
    with house.ledger() as ledger:
        folder = load_campaign(house.folder / "killed")
        day = Period(start - 24 * HOUR, start)
        key = prepare_launch(ledger, folder, period=day, warehouses=warehouse_source).launch_key
        ledger.dispatches.claim(key, worker="dead", now=datetime.now(UTC), lease=timedelta(minutes=5))
        task = CheckDispatchedOperator(task_id="check_dispatched", launch_key=key)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute({})
        wait = deferred.value.trigger.moment - datetime.now(UTC)
        assert timedelta(minutes=3) < wait <= timedelta(minutes=5, seconds=1)
        # The run itself waits for the end of a lease that is nearly over.
        nearly = datetime.now(UTC) + timedelta(seconds=20)
        with ledger._database.write() as db:
            in_flight = sa.update(dispatches_of_ledger).where(dispatches_of_ledger.c.state == "in_flight")
            db.execute(in_flight.values(lease_until=nearly))
    run = run_dag(dag, logical_date=start)
    assert run.state == "success"
    assert house.tasks(run)["check_dispatched"] == ["success"]
    made = {"accepted": house.segments - 1, "in_doubt": 1}
    assert house.xcoms(run)["check_dispatched", "return_value", -1] == made


def test_the_report_that_started_a_run_names_the_launch_to_remind_of() -> None:
    fields = {
        "title": "Reminder",
        "channels": {"android_push": {}},
        "message": {"text": "Still there"},
        "audience": {"source": {"kind": "verdicts", "of": "spring", "are": ["delivered"]}},
    }
    reminder = Campaign.model_validate(fields)
    events = [
        SimpleNamespace(
            timestamp=datetime(2026, 3, day, tzinfo=UTC), extra={"launch_key": key, "period": OLD}
        )
        for day, key in ((1, "a"), (3, "c"), (2, "b"))
    ]
    run = SimpleNamespace(
        run_after=datetime(2026, 3, 3, tzinfo=UTC),
        triggering_user_name="ann",
        data_interval_start=None,
        data_interval_end=None,
        logical_date=None,
        partition_key=None,
    )
    dag = SimpleNamespace(timetable=SimpleNamespace(can_be_scheduled=False, asset_condition=None))

    def reported(campaign: Campaign, **events: Any) -> str | None:
        context: Any = {"dag_run": run, "dag": dag, **events}
        return of_run(context, campaign, LaunchOptions()).reported

    of_spring = {report_asset("spring"): events}
    assert reported(reminder, triggering_asset_events=of_spring) == "c"
    events[0].extra |= {
        "resend": 2,
        "campaign": "spring",
    }  # its report came first, and it counts the launches before it
    assert reported(reminder, triggering_asset_events=of_spring) == "a"
    del events[0].extra["resend"]
    assert reported(reminder, triggering_asset_events={report_asset("summer"): events}) is None
    assert reported(reminder, triggering_asset_events={}) is None
    assert reported(reminder) is None
    plain = Campaign.model_validate({**fields, "audience": {}})
    assert reported(plain, triggering_asset_events=of_spring) is None
    context: Any = {"dag_run": run, "dag": dag, "triggering_asset_events": of_spring}
    assert period_of_launch(context, reminder) == Period.of(OLD)
    assert period_of_launch(context, plain) == Period.of("2026-03-02")
    assert of_run(context, reminder, LaunchOptions()).resend == 0
    events[1].extra.update(campaign="spring", resend=2)
    options = of_run(context, reminder, LaunchOptions())
    assert (options.resend, options.only_unsent) == (2, True)
    assert options.reason == "the report of resend 2 of spring"
    by_hand = LaunchOptions(resend=3, reason="again")
    assert of_run(context, reminder, by_hand).resend == 3
    assert of_run(context, plain, LaunchOptions()).resend == 0


@pytest.mark.parametrize(("number", "error"), [(1, AirflowSkipException), (0, NobodyLeftError)])
def test_a_reminder_that_the_report_of_a_resend_starts_is_skipped_if_everyone_was_reminded(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    campaign = {
        "title": "Reminder",
        "channels": {"android_push": {}},
        "message": {"text": "Still there"},
        "audience": {"source": {"kind": "verdicts", "of": "spring", "are": ["delivered"]}},
    }
    with DAG("reminders", schedule=None):
        operator = BuildAudienceOperator(task_id="audience", name="reminder", campaign=campaign)
    extra = {"launch_key": "c", "campaign": "spring", "period": OLD, "resend": number}
    event = SimpleNamespace(timestamp=datetime(2026, 3, 3, tzinfo=UTC), extra=extra)
    given: list[LaunchOptions] = []

    def prepared(*_: Any, options: LaunchOptions, **__: Any) -> None:
        given.append(options)
        raise NobodyLeftError("none is left")

    monkeypatch.setattr("sendoff.launch.prepare_launch", prepared)
    run = SimpleNamespace(run_after=None, triggering_user_name="ann", run_id="r")
    context: Any = {
        "dag_run": run,
        "ti": SimpleNamespace(dag_id="d", run_id="r", task_id="audience", map_index=-1),
        "triggering_asset_events": {report_asset("spring"): [event]},
    }
    ledger: Any = SimpleNamespace(launches=SimpleNamespace(find=lambda _: None))
    folder = CampaignFolder("reminder", Campaign.model_validate(campaign), None, Path())
    with pytest.raises(error, match="none is left"):
        operator._prepared(context, ledger, folder, LaunchOptions())
    assert [each.resend for each in given] == [number]
