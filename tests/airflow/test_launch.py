"""A campaign's DAG, run to its end against the real service and the real receiver."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow import settings
from sendoff.campaign import Period, launch_key
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import dbt_sources
from sendoff_airflow.dags import campaign_group, reconcile_dag
from sendoff_airflow.hooks.receiver import ReceiverHook
from sendoff_airflow.hooks.service import SendoffHook
from sendoff_airflow.operators import BuildAudienceOperator

from ..waiting import PATIENCE


@pytest.mark.newest_airflow
@pytest.mark.promise("honest/truth", "sound/versions")
def test_a_campaign_reaches_everybody_once_and_its_report_is_true(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(house.campaign("everybody", pictures=house.folder / "reports"), logical_date=house.day)
    assert run.state == "success"
    printed = capfd.readouterr()

    found = house.xcoms(run)
    key = launch_key(
        "service", "everybody", Period(house.day.replace(hour=0, day=1), house.day.replace(hour=0))
    )
    assert found["audience", "return_value", -1] == {
        "launch_key": key,
        "state": "released",
        "audience": len(house.devices),
        "segments": house.segments,
        "rows": len(house.devices) + 21,
        "dropped": {"null": 1, "invalid": 0, "duplicate": 20},
    }
    tallies = [found["dispatch", "return_value", worker] for worker in range(2)]
    assert sum(tally["accepted"] for tally in tallies) == house.segments
    assert house.names(run) == {"dispatch": ["Worker 1", "Worker 2"]}
    assert found["check_dispatched", "return_value", -1] == {"accepted": house.segments}

    assert found["preview", "return_value", -1]["people"] == len(house.devices)
    assert found["preview", "return_value", -1]["requests"] == house.segments
    assert found["approve", "return_value", -1] == {"launch_key": key, "state": "released", "who": None}

    truths = house.truths("everybody")
    assert sorted(device for truth in truths for device in truth["targeted"]) == house.devices
    house.wait_until_quiet()
    expected = _expected_verdicts(house, truths)
    assert house.verdicts(key) == expected
    report = found["report", "return_value", -1]
    assert report["verdicts"] == {name: len(who) for name, who in expected.items()}
    assert not any(report["anomalies"].values())
    assert Path(report["picture"]).stat().st_size > 1_000
    assert "engaged" in printed.out.lower()

    token = SendoffHook("service").tokens().token()  # the token that this process used all along
    for secret in [*house.secrets, token, "We missed you"]:
        assert secret not in printed.out + printed.err
    assert not re.search(r"7340000\d{3}", printed.out + printed.err + json.dumps(list(found.values())))
    _assert_absent_from_airflows_database(house, [*house.secrets, token, "7340000"])


def test_a_campaign_writes_its_results_into_the_warehouse_once_however_often_it_runs(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("tables", house.few, more="report: {tables: main}\n")
    for minutes in range(2):
        run = run_dag(dag, logical_date=house.day + timedelta(minutes=minutes))
        assert run.state == "success"
        told = house.xcoms(run)["write_tables", "return_value", -1]
        expected = {"sendoff_launches": 1, "sendoff_verdicts": 60, "sendoff_comparisons": 0}
        assert told == {"launch_key": house.launch_key(run), "schema": "main", "rows": expected}
    reported = house.xcoms(run)["report", "return_value", -1]
    with closing(sqlite3.connect(house.folder / "shop.db")) as shop:
        counted = dict(shop.execute("SELECT verdict, count(*) FROM sendoff_verdicts GROUP BY 1"))
        launches = shop.execute(
            "SELECT campaign, audience, engaged, delivered FROM sendoff_launches"
        ).fetchall()
    verdicts = reported["verdicts"]
    assert counted == {verdict: count for verdict, count in verdicts.items() if count}
    assert launches == [("tables", 60, verdicts["engaged"], verdicts["delivered"])]
    assert "7340000" not in capfd.readouterr().out


@pytest.mark.proof
def test_outcomes_are_measured_before_the_tables_are_written_and_when_they_are_renewed(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    sources = house.folder / "sendoff.yml"
    more = f"report: {{tables: main, tables_dbt: {sources}}}\naudience: {{holdout: {{percent: 40}}}}\n"
    (house.folder / "measured").mkdir()
    (house.folder / "measured/outcome.sql").write_text(f"SELECT device_id FROM ({house.few})")
    key = house.launch_key(run_dag(house.campaign("measured", house.few, more=more), logical_date=house.day))

    def compared() -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(house.folder / "shop.db")) as shop:
            query = "SELECT metric, against, side_estimate FROM sendoff_comparisons WHERE launch_key = ?"
            return shop.execute(query, [key]).fetchall()

    assert compared() == [("converted", "control group", 1.0)]
    assert sources.read_text() == dbt_sources("main")
    (house.folder / "measured/outcome.sql").write_text(f"SELECT device_id FROM ({house.few}) WHERE 0")

    def report_again() -> None:
        with house.ledger() as ledger:
            reconcile_launch(ledger, key)
            ledger.verdicts.note_tables(key, ledger.verdicts.figures(key).as_of - timedelta(hours=2))

    report_again()
    dag = reconcile_dag("0 0 * * *", dag_id="measuring", campaigns=house.folder / "nosuch")
    run = run_dag(dag, logical_date=house.day + timedelta(days=1))
    assert house.tasks(run)["renew_tables"] == ["failed"]
    assert compared() == [("converted", "control group", 1.0)]
    (house.folder / "newsletters").mkdir()
    folder = (house.folder / "measured").rename(house.folder / "newsletters/measured")
    report_again()
    dag = reconcile_dag("0 0 * * *", dag_id="measuring", campaigns=house.folder)
    assert run_dag(dag, logical_date=house.day + timedelta(days=2)).state == "success"
    assert compared() == [("converted", "control group", 0.0)]

    folder = folder.rename(house.folder / "newsletters/renamed")
    (folder / "campaign.yaml").write_text(f"{(folder / 'campaign.yaml').read_text()}formerly: [measured]\n")
    (folder / "outcome.sql").write_text(f"SELECT device_id FROM ({house.few})")
    (house.folder / "newsletters/broken").mkdir()
    (house.folder / "newsletters/broken/campaign.yaml").write_text("titel: None\n")
    (house.folder / "newsletters/broken/outcome.sql").write_text("SELECT 1")
    report_again()
    assert run_dag(dag, logical_date=house.day + timedelta(days=3)).state == "success"
    shutil.rmtree(folder.parent)  # other tests read all campaigns
    assert compared() == [("converted", "control group", 1.0)]
    assert "The outcomes of launches under earlier names are not measured" in capfd.readouterr().out


@pytest.mark.proof
def test_a_group_uses_one_warehouse_and_one_ledger(
    house: Any, run_dag: Callable[..., DagRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    house.campaign("grouped", house.few, more="report: {tables: main}\naudience: {holdout: {percent: 40}}\n")
    (house.folder / "grouped/outcome.sql").write_text(f"SELECT device_id FROM ({house.few})")
    file = house.folder / "grouped/campaign.yaml"
    file.write_text(file.read_text().replace("warehouse: shop", "warehouse: elsewhere"))  # does not exist
    ledger = json.dumps({"conn_type": "sendoff_ledger", "password": house.ledger_url})
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_LEDGER", ledger)
    monkeypatch.setenv("SENDOFF_LEDGER_URL", f"sqlite:///{tmp_path}/none.db")
    with DAG("grouping", schedule=None, start_date=house.day, default_args={"retries": 0}) as dag:
        campaign_group(
            house.folder / "grouped",
            group_id="g",
            quiet_for=timedelta(seconds=1),
            warehouse="shop",
            ledger_conn_id="other_ledger",
        )
    house.quieten(dag)
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success", house.tasks(run)
    key = house.xcoms(run)["g.audience", "launch_key", -1]
    with closing(sqlite3.connect(house.folder / "shop.db")) as shop:
        query = "SELECT count(*) FROM sendoff_comparisons WHERE launch_key = ?"
        assert shop.execute(query, [key]).fetchone() == (1,)
    house.wait_until_quiet()
    with house.ledger() as of_house:  # other tests count the launches whose tables are old
        reconcile_launch(of_house, key)
        of_house.verdicts.note_tables(key, datetime.now(UTC))


@pytest.mark.proof
def test_results_in_the_warehouse_are_renewed_once_an_hour_if_the_report_changed(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("renewed", house.few, more="report: {tables: main}\n")
    key = house.launch_key(run_dag(dag, logical_date=house.day))

    def rows() -> int:
        with closing(sqlite3.connect(house.folder / "shop.db")) as shop, shop:
            found = shop.execute(
                "SELECT count(*) FROM sendoff_verdicts WHERE launch_key = ?", [key]
            ).fetchone()[0]
            shop.execute("DELETE FROM sendoff_verdicts WHERE launch_key = ?", [key])
            return int(found)

    def renewed(day: int) -> int:
        run = run_dag(
            reconcile_dag("0 0 * * *", dag_id="renewing"), logical_date=house.day + timedelta(days=day)
        )
        return int(house.xcoms(run)["renew_tables", "return_value", -1]["written"])

    assert rows() == 60
    with house.ledger() as ledger:
        reconcile_launch(ledger, key)
        assert (renewed(1), rows()) == (0, 0)  # written within the hour
        ledger.verdicts.note_tables(key, ledger.verdicts.figures(key).as_of - timedelta(hours=2))
    assert (renewed(2), rows()) == (1, 60)
    assert (renewed(3), rows()) == (0, 0)


@pytest.mark.proof
def test_a_warehouse_that_fails_keeps_no_other_launch_from_being_renewed(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    keys = []
    for name, schema in (("first_fails", "nosuch"), ("then_renewed", "main")):
        dag = house.campaign(name, house.few, more=f"report: {{tables: {schema}}}\n")
        keys.append(house.launch_key(run_dag(dag, logical_date=house.day)))
    long_ago = datetime.now(UTC) - timedelta(days=1)
    with house.ledger() as ledger:
        for key in keys:
            ledger.verdicts.note_tables(key, long_ago)
        run = run_dag(
            reconcile_dag("0 0 * * *", dag_id="renewing"), logical_date=house.day + timedelta(days=9)
        )
        # The other task of the run may make a newer report meanwhile, so the tables are only newer than before.
        still_old = ledger.verdicts.with_old_tables(long_ago + timedelta(seconds=1))
        ledger.verdicts.note_tables(keys[0], datetime.now(UTC))  # other tests run the same task
    assert still_old == keys[:1]
    assert house.tasks(run)["renew_tables"] == ["failed"]
    assert house.tasks(run)["reconcile"] == ["success"]
    assert "unknown database nosuch" in capfd.readouterr().out


@pytest.mark.proof
def test_results_that_cannot_be_written_fail_their_own_task_only(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("no_tables", house.few, more="report: {tables: nosuch}\n")
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "failed"
    states = house.tasks(run)
    assert states.pop("write_tables") == ["failed"]
    assert {state for each in states.values() for state in each} == {"success"}
    assert "unknown database nosuch" in capfd.readouterr().out


@pytest.mark.proof
@pytest.mark.promise("twice/launch")
def test_a_second_run_of_a_day_sends_nothing_and_a_resend_does(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("twice", query=house.few)
    first = run_dag(dag, logical_date=house.day)
    again = run_dag(dag, logical_date=house.day + timedelta(hours=3))
    assert first.state == again.state == "success"
    assert house.launch_key(first) == house.launch_key(again)
    assert len(house.truths("twice")) == 1

    resent = run_dag(
        dag,
        logical_date=house.day + timedelta(hours=4),
        run_conf={"resend": 1, "reason": "the shop was closed"},
    )
    assert resent.state == "success"
    assert house.launch_key(resent) != house.launch_key(first)
    assert len(house.truths("twice")) == 2

    others_only = {"resend": 1, "only_unsent": True, "reason": "the number was used for everyone"}
    refused = run_dag(dag, logical_date=house.day + timedelta(hours=5), run_conf=others_only)
    assert refused.state == "failed"


@pytest.mark.proof
def test_a_resend_to_those_who_got_nothing_reaches_the_refused_and_no_one_twice(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("again")
    faults = f"{house.service}/admin/faults"
    fault = {"kind": "403", "at": ["create"], "count": 2}
    assert requests.post(faults, json=fault, timeout=PATIENCE).ok
    first = run_dag(dag, logical_date=house.day)
    assert requests.delete(faults, timeout=PATIENCE).ok
    assert first.state == "failed"
    assert house.states(house.launch_key(first)) == {"accepted": house.segments - 2, "refused": 2}

    run_conf = {"resend": 1, "only_unsent": True, "reason": "the app token was wrong"}
    resent = run_dag(dag, logical_date=house.day + timedelta(hours=4), run_conf=run_conf)
    assert resent.state == "success"
    assert house.states(house.launch_key(resent)) == {"accepted": 2}
    reached = [who for truth in house.truths("again") for who in truth["targeted"]]
    assert sorted(reached) == house.devices

    again = run_conf | {"resend": 2}
    assert run_dag(dag, logical_date=house.day + timedelta(hours=5), run_conf=again).state == "failed"


@pytest.mark.proof
def test_a_schedules_launch_is_for_its_interval_however_often_it_is_triggered(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    dag = house.campaign("weekly", query=house.few, more='schedule: "0 9 * * 1"\nstart: 2026-01-05\n')
    late = {"send_late": True}
    keys = {
        house.launch_key(run_dag(dag, logical_date=house.day + timedelta(days=n), run_conf=late))
        for n in (1, 3)
    }
    week = Period(house.day - timedelta(days=7), house.day)
    assert keys == {launch_key("service", "weekly", week)}
    assert len(house.truths("weekly")) == 1


def test_a_refusal_fails_the_run_and_is_reported(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(
        house.campaign("misspelt_field", query=house.few, connection="misspelt"), logical_date=house.day
    )
    assert run.state == "failed"
    assert house.tasks(run) == {
        "audience": ["success"],
        "preview": ["success"],
        "approve": ["success"],
        "dispatch": ["failed", "failed"],
        "check_dispatched": ["upstream_failed"],
        "wait_for_post_backs": ["upstream_failed"],
        "report": ["success"],
    }
    printed = capfd.readouterr().out
    assert "AirflowFailException: launch" in printed
    assert "the service refused 1 request" in printed
    key = house.launch_key(run)
    assert house.states(key) == {"refused": 1}
    assert len(house.verdicts(key)["not_sent"]) == 60


@pytest.mark.proof
def test_a_wrong_secret_fails_at_once_and_leaves_everything_planned(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    dag = house.campaign("no_way_in", query=house.few, connection="wrong_secret", default_args={})
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "failed"
    assert house.tasks(run)["dispatch"] == ["failed", "failed"]
    assert house.states(house.launch_key(run)) == {"planned": 1}
    assert "AirflowFailException: " in (printed := capfd.readouterr().out)
    assert "connection wrong_secret: no token: the service refuses the client ID, or its secret" in printed


def test_an_unreachable_service_leaves_everything_planned_for_the_next_try(
    house: Any, run_dag: Callable[..., DagRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = house.campaign("patient", query=house.few, connection="nobody")
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "failed"
    key = house.launch_key(run)
    assert house.states(key) == {"planned": 1}
    assert len(house.verdicts(key)["not_sent"]) == 60

    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", os.environ["AIRFLOW_CONN_SERVICE"])
    assert run_dag(dag, logical_date=house.day + timedelta(hours=1)).state == "success"
    assert house.states(key) == {"accepted": 1}
    assert len(house.truths("patient")) == 1


@pytest.mark.parametrize(
    ("name", "query", "problem"),
    [
        ("broken_sql", "SELECT device_id FROM nowhere", "nowhere"),
        ("nobody_named", "SELECT platform FROM devices", "device_id"),
        ("two_names", "SELECT device_id, device_id AS user_id FROM devices", "user_id"),
        ("words_for_numbers", "SELECT 'abc' AS device_id", "device_id"),
        ("nobody_at_all", "SELECT device_id FROM devices WHERE 1 = 0", "the audience query returned no rows"),
        ("nulls_only", "SELECT device_id FROM devices WHERE device_id IS NULL", "none of the 1 rows is left"),
    ],
)
def test_a_query_that_gives_no_audience_fails_at_once_and_says_why(
    house: Any,
    run_dag: Callable[..., DagRun],
    capfd: pytest.CaptureFixture[str],
    name: str,
    query: str,
    problem: str,
) -> None:
    # With Airflow's usual retries: a permanent failure must not wait for them.
    run = run_dag(house.campaign(name, query=query, default_args={}), logical_date=house.day)
    assert run.state == "failed"
    assert house.tasks(run)["audience"] == ["failed"]
    assert house.tasks(run)["report"] == ["upstream_failed"]
    printed = capfd.readouterr().out
    assert problem in printed.split("Task failed")[-1]
    assert house.truths(name) == []


def test_a_warehouse_whose_type_cannot_be_queried_fails_at_once_and_is_named(
    house: Any,
    run_dag: Callable[..., DagRun],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "generic", "host": "db"}))
    run = run_dag(house.campaign("no_hook", default_args={}), logical_date=house.day)
    assert run.state == "failed"
    assert house.tasks(run)["audience"] == ["failed"]
    printed = capfd.readouterr().out.split("Task failed")[-1]
    assert "connection shop: type generic cannot be queried" in printed
    assert "apache-airflow-providers-postgres" in printed


@contextmanager
def post_backs_held_back(house: Any) -> Iterator[None]:
    """Delay post-backs by an hour of the service's clock, and end the delay at the end."""
    faults, clock = f"{house.service}/admin/faults", f"{house.service}/admin/clock/advance"
    fault = {"kind": "delay", "seconds": 3_600, "probability": 1}
    assert requests.post(faults, json=fault, timeout=PATIENCE).ok
    yield
    assert requests.delete(faults, timeout=PATIENCE).ok
    assert requests.post(clock, json={"by": "2h"}, timeout=PATIENCE).ok


@pytest.mark.proof
def test_a_launch_whose_post_backs_came_late_is_reconciled_again(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    with post_backs_held_back(house):
        run = run_dag(house.campaign("late", query=house.few, quiet_for=timedelta()), logical_date=house.day)
        key = house.launch_key(run)
        assert house.verdicts(key)["engaged"] == set()
    house.wait_until_quiet()
    [truth] = house.truths("late")
    assert truth["post_backs"]["open"]
    with house.ledger() as ledger:
        [dispatch] = ledger.dispatch_queries.of_launch(key)
    address = ReceiverHook().get_conn().sign("open", dispatch.dispatch_key)
    assert requests.post(address, data=b"one more, after the report", timeout=PATIENCE).status_code < 300
    run = run_dag(reconcile_dag("0 0 * * *"), logical_date=house.day)
    assert run.state == "success"
    assert house.xcoms(run)["reconcile", "return_value", -1]["reconciled"] >= 1
    assert house.verdicts(key)["engaged"] == set(truth["opened"])
    assert house.xcoms(run_dag(reconcile_dag("0 0 * * *"), logical_date=house.day + timedelta(days=1)))[
        "reconcile", "return_value", -1
    ] == {"reconciled": 0, "held": 0}


@pytest.mark.proof
def test_each_stage_tells_of_its_asset_once(house: Any, run_dag: Callable[..., DagRun]) -> None:
    run = run_dag(house.campaign("telling", query=house.few), logical_date=house.day)
    with closing(settings.Session()) as session:
        rows = session.query(AssetModel.uri, AssetEvent.extra).filter(
            AssetModel.id == AssetEvent.asset_id, AssetEvent.source_run_id == run.run_id
        )
        events = dict(rows.all())
        assert rows.count() == 3
    assert set(events) == {f"sendoff://telling/{what}" for what in ("audience", "launch", "report")}
    assert {extra["launch_key"] for extra in events.values()} == {house.launch_key(run)}


def _expected_verdicts(house: Any, truths: list[dict[str, Any]]) -> dict[str, set[int]]:
    """Return the verdicts that the service's record implies. Android, iOS and Safari never report deliveries."""
    opened = {device for truth in truths for device in truth["opened"]}
    delivered = {device for truth in truths for device in truth["delivered"]}
    reliable = {
        device
        for device in house.devices
        if house.platforms[device % len(house.platforms)] in ("chrome", "firefox")
    }
    return {
        "engaged": opened,
        "delivered": (delivered & reliable) - opened,
        "missing": reliable - delivered - opened,
        "unknowable": set(house.devices) - reliable - opened,
        "in_doubt": set(),
        "not_sent": set(),
    }


def _assert_absent_from_airflows_database(house: Any, texts: list[str]) -> None:
    content = b"".join(path.read_bytes() for path in house.copy_airflow_home().glob("airflow.db*"))
    assert b"launch_key" in content
    assert [text[:3] for text in texts if text.encode() in content] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"preview_only": "yes"}, "preview_only: 'yes' is not a boolean. Use True or False."),
        (
            {"preview_only": ""},
            "preview_only: '' is not a boolean. Use True or False.",
        ),  # a template without a value
        ({"size_limit": "None"}, "size_limit: 'None' is not a whole number."),
        ({"resend": "first"}, "resend: 'first' is not a whole number."),
    ],
)
def test_what_a_template_gave_is_said_where_it_can_mean_nothing(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    task = BuildAudienceOperator(task_id="audience", folder=tmp_path / "nowhere", **arguments)
    with pytest.raises(AirflowFailException) as raised:
        task.execute({})
    assert str(raised.value) == said


def test_a_limit_of_nobody_is_no_launch_to_everybody(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    house.campaign("limited", query=house.few)
    with DAG("limited_to_nobody", schedule=None, start_date=house.day) as dag:
        BuildAudienceOperator(task_id="audience", folder=house.folder / "limited", size_limit=0)
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"audience": ["failed"]}
    assert "size_limit: found 0. Use a whole number from 1" in capfd.readouterr().out
    assert house.truths("limited") == []


@pytest.mark.parametrize("text", ["True", "true", True])
def test_a_dry_run_by_any_spelling_freezes_nothing(
    house: Any, run_dag: Callable[..., DagRun], text: str | bool
) -> None:
    name = f"dry_{type(text).__name__}_{text}"
    house.campaign(name, query=house.few)
    with DAG(f"{name}_alone", schedule=None, start_date=house.day) as dag:
        BuildAudienceOperator(task_id="audience", folder=house.folder / name, preview_only=text)
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"audience": ["skipped"]}
    with house.ledger() as ledger:
        assert [each for each in ledger.launches.search(limit=1_000) if each.campaign == name] == []
