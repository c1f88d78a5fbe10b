"""One period is one launch: no other run sends a request that was made or may have been made.

Concurrent workers, cleared tasks and killed processes are in tests/acceptance/test_airflow_histories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from sendoff.campaign import Campaign, CampaignFolder, Period, load_campaign
from sendoff.dispatch.control import doubts
from sendoff.errors import GateError, NobodyLeftError, NotFoundError
from sendoff.launch.plan import LaunchOptions, prepare_launch
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.ledger.storage.schema import dispatches as dispatches_of_ledger
from sendoff_airflow.hooks.warehouse import warehouse_source
from sendoff_airflow.operators import BuildAudienceOperator, CheckDispatchedOperator
from sendoff_airflow.operators.assets import launch_facts, report_asset
from sendoff_airflow.operators.reported import of_run, period_of_launch, reported_launch

from ..factories import PERIOD, make_launch
from ..leases import end_leases

DAILY = 'schedule: "0 0 * * *"\nstart: 2026-01-05\n'
HOUR = timedelta(hours=1)
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


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("moved_an_hour", "0 1 * * *"), pytest.param("now_weekly", "0 0 * * 0", marks=pytest.mark.proof)],
)
def test_a_new_schedule_sends_no_one_the_message_of_the_old_one_again(
    house: Any, run_dag: Callable[..., DagRun], name: str, schedule: str
) -> None:
    sunday = house.day.replace(hour=0) - timedelta(days=house.day.isoweekday() % 7)
    late = {"send_late": True}
    run_dag(house.campaign(name, house.few, more=DAILY), logical_date=sunday, run_conf=late)
    made = dispatches(house, name)
    moved = house.campaign(name, house.few, more=DAILY.replace("0 0 * * *", schedule))
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


REMINDER = {
    "title": "Reminder",
    "channels": {"android_push": {}},
    "connection": "service",
    "message": {"text": "Still there"},
    "audience": {"source": {"kind": "verdicts", "of": "spring", "are": ["delivered"]}},
}
REMINDERS = CampaignFolder("reminder", Campaign.model_validate(REMINDER), None, Path())
DAY = 24 * HOUR


def started_by(*reports: LaunchRecord | Mapping[str, Any], of: str = "spring", run: str = "r") -> Any:
    """Return the context of a run that reports of launches started, or other events of the same asset."""
    extras = [launch_facts(each) if isinstance(each, LaunchRecord) else each for each in reports]
    notes: dict[str, str] = {}
    return {
        "dag_run": SimpleNamespace(
            run_after=datetime(2026, 3, 3, tzinfo=UTC),
            triggering_user_name="ann",
            data_interval_start=None,
            data_interval_end=None,
            logical_date=None,
            partition_key=None,
        ),
        "dag": SimpleNamespace(timetable=SimpleNamespace(can_be_scheduled=False, asset_condition=None)),
        "ti": SimpleNamespace(
            dag_id="d", run_id=run, task_id="audience", map_index=-1, xcom_push=notes.__setitem__, notes=notes
        ),
        "triggering_asset_events": {report_asset(of): [SimpleNamespace(extra=each) for each in extras]},
    }


def reported(context: Any, ledger: Ledger, folder: CampaignFolder = REMINDERS) -> LaunchRecord | None:
    launch, notes = reported_launch(context, ledger, folder, LaunchOptions())
    assert notes == ([*context["ti"].notes.values()] if context else [])
    return launch


def test_the_report_that_started_a_run_names_the_launch_to_remind_of(ledger: Ledger) -> None:
    first, second = make_launch(ledger, [1]), make_launch(ledger, [1], resend=2)
    assert reported(started_by(first), ledger) == first
    # the report of the resend came first, and it counts the launches before it
    assert reported(started_by(second, first), ledger) == second
    assert reported(started_by(first, of="summer"), ledger) is None
    assert reported({}, ledger) is None
    plain = Campaign.model_validate({**REMINDER, "audience": {}})
    context = started_by(first)
    assert reported(context, ledger, CampaignFolder("plain", plain, None, Path())) is None
    assert period_of_launch(context, plain) == Period.of("2026-03-02")
    assert of_run(context, plain, LaunchOptions()).resend == 0
    reminder = REMINDERS.campaign
    assert period_of_launch(context, reminder, first) == first.period
    options = of_run(context, reminder, LaunchOptions(), first)
    assert (options.resend, options.reported) == (0, first.launch_key)
    options = of_run(context, reminder, LaunchOptions(), second)
    assert (options.resend, options.only_unsent) == (2, True)
    assert options.reason == "the report of resend 2 of spring"
    by_hand = LaunchOptions(resend=3, reason="again")
    assert of_run(context, reminder, by_hand, second).resend == 3


def test_the_newest_period_without_a_reminder_is_reminded_of_and_the_others_are_listed(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    days = [Period(PERIOD.start - DAY * n, PERIOD.end - DAY * n) for n in range(3)]
    newest, middle, oldest = launches = [make_launch(ledger, [1], period=period) for period in days]
    context = started_by(newest, oldest, middle, middle)
    assert reported(context, ledger) == newest
    [note] = context["ti"].notes.values()
    assert f"This run is for period {newest.period.key} of spring." in note
    assert note.endswith(f"Left out: {middle.period.key}, {oldest.period.key}.")
    assert note in caplog.text

    # The run goes on with its launch. The report of that launch, made again, hides no other.
    make_launch(ledger, [1], name="reminder", period=newest.period, origin="d r\naudience\n")
    assert reported(context, ledger) == newest
    again = started_by(*launches, run="later")
    assert reported(again, ledger) == middle
    assert again["ti"].notes["note"].endswith(f"Left out: {oldest.period.key}.")
    for each in (middle, oldest):
        make_launch(ledger, [1], name="reminder", period=each.period, origin="d r\naudience\n")
    last = started_by(*launches, run="last")
    assert reported(last, ledger) == newest
    assert last["ti"].notes == {}


@pytest.mark.parametrize("of_newest", [{"name": "nudge"}, {"name": "reminder", "resend": 1}])
def test_a_period_that_was_reminded_under_an_earlier_name_or_with_a_number_hides_no_other(
    ledger: Ledger, of_newest: dict[str, Any]
) -> None:
    newest = make_launch(ledger, [1])
    older = make_launch(ledger, [1], period=Period(PERIOD.start - DAY, PERIOD.end - DAY))
    make_launch(ledger, [1], period=newest.period, **of_newest)
    campaign = REMINDERS.campaign.model_copy(update={"formerly": ("nudge",)})
    folder = CampaignFolder("reminder", campaign, None, Path())
    context = started_by(newest, older)
    assert reported(context, ledger, folder) == older
    assert context["ti"].notes == {}


def test_a_note_names_ten_periods_at_most(ledger: Ledger) -> None:
    launches = [
        make_launch(ledger, [1], period=Period(PERIOD.start - DAY * n, PERIOD.end - DAY * n))
        for n in range(22)
    ]
    context = started_by(*launches)
    assert reported(context, ledger) == launches[0]
    [note] = context["ti"].notes.values()
    assert note.endswith(f", {launches[10].period.key}, and 11 more.")
    assert len(note) < 800


def test_a_resend_counts_as_new_although_its_period_has_a_reminder(ledger: Ledger) -> None:
    make_launch(ledger, [1], name="reminder")
    later = make_launch(ledger, [1], period=Period(PERIOD.start + DAY, PERIOD.end + DAY))
    make_launch(ledger, [1], name="reminder", period=later.period)
    first, second = make_launch(ledger, [1]), make_launch(ledger, [1], resend=1)
    context = started_by(later, second, first)
    assert reported(context, ledger) == second
    assert context["ti"].notes == {}


def test_events_without_a_launch_of_the_campaign_are_left_out(ledger: Ledger) -> None:
    launch = make_launch(ledger, [1])
    odd = [{}, {"launch_key": None}, {"launch_key": ["a"]}, {"period": "soon", "resend": "x"}]
    assert reported(started_by(*odd), ledger) is None
    assert reported(started_by({"launch_key": launch.launch_key}), ledger) == launch
    other = make_launch(ledger, [1], name="summer")
    unknown = [{"launch_key": "a"}, launch_facts(other)]
    assert reported(started_by(*odd, *unknown, launch), ledger) == launch
    with pytest.raises(
        NotFoundError, match="the ledger has no launch of spring on service with one of their keys"
    ):
        reported(started_by(*unknown), ledger)


@pytest.mark.parametrize(("number", "error"), [(1, AirflowSkipException), (0, NobodyLeftError)])
def test_a_reminder_that_the_report_of_a_resend_starts_is_skipped_if_everyone_was_reminded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    with DAG("reminders", schedule=None):
        operator = BuildAudienceOperator(task_id="audience", name="reminder", campaign=REMINDER)
    given: list[LaunchOptions] = []

    def prepared(*_: Any, options: LaunchOptions, **__: Any) -> None:
        given.append(options)
        raise NobodyLeftError("none is left")

    monkeypatch.setattr("sendoff.launch.prepare_launch", prepared)
    context = started_by(make_launch(ledger, [1], resend=number))
    with pytest.raises(error, match="none is left"):
        operator._prepared(context, ledger, REMINDERS, LaunchOptions())
    assert [each.resend for each in given] == [number]


def test_a_run_that_is_not_launched_still_lists_the_other_reports_in_its_note(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DAG("closed", schedule=None):
        operator = BuildAudienceOperator(task_id="audience", name="reminder", campaign=REMINDER)

    def prepared(*_: Any, **__: Any) -> None:
        raise GateError("closed", not_launched="the gate is closed")

    monkeypatch.setattr("sendoff.launch.prepare_launch", prepared)
    older = Period(PERIOD.start - DAY, PERIOD.end - DAY)
    context = started_by(make_launch(ledger, [1]), make_launch(ledger, [1], period=older))
    with pytest.raises(GateError):
        operator._prepared(context, ledger, REMINDERS, LaunchOptions())
    said, left = context["ti"].notes["note"].split("\n")
    assert said == "Not launched: the gate is closed."
    assert left.endswith(f"Left out: {older.key}.")


def test_a_run_that_is_cleared_goes_on_with_the_rows_that_it_froze(ledger: Ledger) -> None:
    fields = {**REMINDER, "audience": {}}
    with DAG("rows", schedule=None):
        first, other = (
            BuildAudienceOperator(
                task_id=name, name="rows", campaign=fields, audience=[{"device_id": device}]
            )
            for name, device in (("first", 1), ("other", 2))
        )
    context = started_by()
    context["dag_run"].start_date = datetime.now(UTC) - HOUR
    folder = first._campaign_folder(context)
    launch = first._prepared(context, ledger, folder, LaunchOptions())
    context["ti"].task_id = "other"
    with pytest.raises(AirflowFailException, match="Nothing was sent to the audience of this task"):
        other._prepared(context, ledger, folder, LaunchOptions())
    context["dag_run"].start_date = datetime.now(UTC) + HOUR
    assert other._prepared(context, ledger, folder, LaunchOptions()) == launch
