"""One task that prepares a launch and sends it, run against the local service."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG, CronDataIntervalTimetable, ObjectStoragePath, task
from pyarrow import parquet

from airflow import settings
from sendoff.campaign import Campaign, Period, launch_key
from sendoff.dispatch import release
from sendoff.errors import CampaignError
from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CreateCampaignOperator,
    ExecuteCampaignOperator,
    ReconcileOperator,
    VerdictsOfLaunch,
)
from sendoff_airflow.operators.preparation import name_of

SOME = "SELECT device_id FROM devices WHERE device_id <= 7340000060 AND :period_start < :period_end"


def make_campaign(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "title": f"The campaign {name}",
        "message": {"title": "Notice", "text": "The shop is closed"},
        "channels": {"android_push": {}, "ios_push": {}, "web_push": {"browsers": ["chrome"]}},
        "connection": "service",
        "warehouse": "shop",
        "segment_size": 60,
        **fields,
    }


def of_day(house: Any, name: str, resend: int = 0) -> str:
    """Return the key of a launch of the day before the house's, which is the period without a schedule."""
    midnight = house.day.replace(hour=0)
    return launch_key("service", name, Period(midnight - timedelta(days=1), midnight), resend)


def targeted(house: Any, name: str) -> list[int]:
    return sorted(device for truth in house.truths(name) for device in truth["targeted"])


def shown(run: DagRun) -> str:
    """Return what Airflow stores of a run: its DAG, its rendered templates, and its XComs but those of ``load``."""
    with closing(settings.Session()) as session:
        dag = session.query(SerializedDagModel).filter_by(dag_id=run.dag_id).one()
        templates = map(RenderedTaskInstanceFields.get_templated_fields, run.get_task_instances())
        return json.dumps([dag.data, *templates])


@pytest.fixture
def frames(tmp_path: Path) -> dict[str, Any]:
    """The same sixty devices in every form of an audience."""
    table = pa.table({"device_id": [7_340_000_000 + number for number in range(1, 61)]})
    parquet.write_table(table, tmp_path / "some.parquet")
    (tmp_path / "some.sql").write_text(SOME)
    return {
        "sql": SOME,
        "templated_sql": "SELECT device_id FROM devices WHERE device_id <= {{ 7_340_000 * 1_000 + 60 }}",
        "sql_file": f"{tmp_path}/some.sql",
        "sql_url": f"file://{tmp_path}/some.sql",
        "parquet": tmp_path / "some.parquet",
        "parquet_url": f"file://{tmp_path}/{{{{ 'some' }}}}.parquet",
        "object_storage": ObjectStoragePath(f"file://{tmp_path}/some.parquet"),
        "arrow": table,
        "frame": table.to_pandas(),
        "lazy_frame": pl.LazyFrame({"device_id": table["device_id"].to_pylist()}),
        "dictionaries": table.to_pylist(),
    }


@pytest.mark.parametrize(
    "form",
    [
        "sql",
        "templated_sql",
        "sql_file",
        "sql_url",
        "parquet",
        "parquet_url",
        "object_storage",
        "arrow",
        "frame",
        "lazy_frame",
        "dictionaries",
    ],
)
def test_one_task_sends_an_audience_of_any_form_and_shows_nobody(
    house: Any,
    run_dag: Callable[..., DagRun],
    frames: dict[str, Any],
    form: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with DAG(f"one_{form}", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(
            task_id="notice",
            campaign=make_campaign(form),
            audience=frames[form],
            warehouse="{{ 'sh' + 'op' }}",
            sendoff_conn_id="{{ 'serv' + 'ice' }}",
        )
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    key = of_day(house, f"one_{form}.notice")
    assert house.xcoms(run) == {
        ("notice", "return_value", -1): {"accepted": 1, "refused": 0, "in_doubt": 0},
        ("notice", "launch_key", -1): key,
        ("notice", "campaign", -1): f"one_{form}.notice",
    }
    assert targeted(house, form) == house.devices[:60]
    printed = capfd.readouterr()
    everything = printed.out + printed.err + shown(run)
    assert "The shop is closed" not in everything
    if form not in ("sql", "templated_sql", "sql_file"):  # Airflow shows queries
        assert not re.search(r"7340000\d{3}", everything)


def test_a_frame_of_an_upstream_task_is_an_audience_that_no_template_shows(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    with DAG("upstream", schedule=None, start_date=house.day) as dag:

        @task
        def load() -> pd.DataFrame:
            return pd.DataFrame({"device_id": [7_340_000_001, 7_340_000_002]})

        frame = load()
        notice = CreateCampaignOperator(task_id="notice", campaign=make_campaign("upstream"), audience=frame)
        CreateCampaignOperator.partial(
            task_id="workers", campaign=make_campaign("workers"), audience=frame, name="workers"
        ).expand(worker=[1, 2])
    assert notice.upstream_task_ids == {"load"}
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    assert targeted(house, "upstream") == targeted(house, "workers") == [7_340_000_001, 7_340_000_002]
    assert not re.search(r"734000000[12]", shown(run))


@pytest.mark.proof
def test_the_verdicts_of_a_launch_are_the_audience_of_another(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    with DAG("follow_up", schedule=None, start_date=house.day) as dag:
        first = CreateCampaignOperator(
            task_id="first",
            campaign=make_campaign("first", audience={"holdout": {"percent": 10}}),
            audience=SOME,
        )
        report = ReconcileOperator(task_id="report", launch_key=first.output["launch_key"])
        people = VerdictsOfLaunch(
            first.output["launch_key"], ("unknowable", "missing", "delivered", "engaged")
        )
        second = CreateCampaignOperator(task_id="second", campaign=make_campaign("second"), audience=people)
        report >> second
    assert second.upstream_task_ids == {"first", "report"}
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    verdicts = house.verdicts(house.xcoms(run)["first", "launch_key", -1])
    assert targeted(house, "second") == sorted(set().union(*verdicts.values()) - verdicts["not_sent"])
    assert targeted(house, "second") == targeted(house, "first")


@pytest.mark.proof
def test_a_campaign_can_go_to_the_recipients_of_another_with_a_verdict(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    source = {"kind": "verdicts", "of": "offer", "are": ["delivered", "missing"], "unknowable": "include"}
    with DAG("reminder", schedule=None, start_date=house.day) as dag:
        first = CreateCampaignOperator(
            task_id="first", campaign=make_campaign("offer"), audience=SOME, name="offer"
        )
        report = ReconcileOperator(
            task_id="report",
            launch_key=first.output["launch_key"],
            on_execute_callback=lambda _: (
                house.wait_until_quiet()
            ),  # later post-backs would change the verdicts
        )
        remind = CreateCampaignOperator(
            task_id="remind", campaign=make_campaign("last_day", audience={"source": source}), name="last_day"
        )
        report >> remind
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    verdicts = house.verdicts(house.xcoms(run)["first", "launch_key", -1])
    assert targeted(house, "last_day") == sorted(
        verdicts["delivered"] | verdicts["missing"] | verdicts["unknowable"]
    )
    assert targeted(house, "last_day")


@pytest.mark.proof
def test_a_verdict_that_does_not_exist_fails_the_task_at_once(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    with DAG("no_verdict", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(
            task_id="notice",
            campaign=make_campaign("no_verdict"),
            audience=VerdictsOfLaunch("{{ 'a' * 32 }}", "mising"),
            retries=3,
        )
    assert house.tasks(run_dag(dag, logical_date=house.day)) == {"notice": ["failed"]}
    assert "'mising' is not a verdict (did you mean 'missing'?)" in capfd.readouterr().out


@pytest.mark.proof
def test_a_period_is_one_launch_in_the_short_form_and_in_the_long_form(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    campaign, weekly = make_campaign("both_forms"), CronDataIntervalTimetable("0 9 * * 1", timezone="UTC")
    with DAG("short_form", schedule=weekly, start_date=house.day) as short:
        given = {"campaign": campaign, "audience": SOME, "name": "both_forms", "send_late": True}
        CreateCampaignOperator(task_id="notice", **given)
    with DAG("long_form", schedule=weekly, start_date=house.day) as long:
        audience = BuildAudienceOperator(task_id="audience", **given)
        CreateCampaignOperator(task_id="send", launch_key=audience.output["launch_key"])
    keys = {house.xcoms(run_dag(short, logical_date=house.day))["notice", "launch_key", -1]}
    keys |= {house.launch_key(run_dag(long, logical_date=house.day + timedelta(days=2)))}
    week = Period(house.day - timedelta(days=7), house.day)
    assert keys == {launch_key("service", "both_forms", week)}
    assert len(house.truths("both_forms")) == 1


@pytest.mark.promise("hands/late")
@pytest.mark.parametrize(
    ("name", "schedule", "gates"),
    [
        ("old_weeks", CronDataIntervalTimetable("0 9 * * 1", timezone="UTC"), {}),
        ("old_days", "@daily", {"lateness": {"length": 2, "unit": "days"}}),
    ],
)
def test_an_old_period_of_a_dag_with_a_clock_is_skipped_unless_it_is_sent_late_on_purpose(
    house: Any,
    run_dag: Callable[..., DagRun],
    capfd: pytest.CaptureFixture[str],
    name: str,
    schedule: Any,
    gates: dict[str, Any],
) -> None:
    params = {"send_late": False}
    with DAG(name, schedule=schedule, start_date=house.day, catchup=True, params=params) as dag:
        CreateCampaignOperator(
            task_id="notice",
            campaign=make_campaign(name, gates=gates),
            audience=SOME,
            send_late="{{ params.send_late }}",
        )
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"notice": ["skipped"]}
    assert house.truths(name) == []
    assert "or set send_late in a DAG of your own" in capfd.readouterr().out
    run = run_dag(dag, logical_date=house.day + timedelta(hours=1), run_conf={"send_late": True})
    assert house.tasks(run) == {"notice": ["success"]}
    assert len(house.truths(name)) == 1


@pytest.mark.proof
def test_a_resend_is_another_launch_and_needs_a_reason(house: Any, run_dag: Callable[..., DagRun]) -> None:
    with DAG("sent_again", schedule=None, start_date=house.day, params={"reason": ""}) as dag:
        CreateCampaignOperator(
            task_id="notice",
            campaign=make_campaign("sent_again"),
            audience=SOME,
            resend=1,
            reason="{{ params.reason }}",
            size_limit="{{ 20 }}",
        )
    assert run_dag(dag, logical_date=house.day).state == "failed"
    run = run_dag(
        dag, logical_date=house.day + timedelta(hours=1), run_conf={"reason": "the shop was closed"}
    )
    assert run.state == "success"
    assert house.xcoms(run)["notice", "launch_key", -1] == of_day(house, "sent_again.notice", 1)
    assert len(targeted(house, "sent_again")) == 20


def test_a_retry_after_a_crash_continues_with_the_same_launch_and_reads_nothing_again(
    house: Any, run_dag: Callable[..., DagRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parquet.write_table(pa.table({"device_id": house.devices[:60]}), tmp_path / "some.parquet")
    campaign = make_campaign("crashed", connection="nobody")
    with DAG("crashed", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(
            task_id="notice", campaign=campaign, audience=f"file://{tmp_path}/some.parquet"
        )
    assert run_dag(dag, logical_date=house.day).state == "failed"
    (tmp_path / "some.parquet").unlink()
    monkeypatch.setenv("AIRFLOW_CONN_NOBODY", os.environ["AIRFLOW_CONN_SERVICE"])
    for hours in (1, 2):
        assert run_dag(dag, logical_date=house.day + timedelta(hours=hours)).state == "success"
    assert len(house.truths("crashed")) == 1


@pytest.mark.proof
def test_mapped_tasks_are_different_launches_and_need_names_for_that(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    def make_dag(devices: list[int]) -> DAG:
        with DAG("mapped", schedule=None, start_date=house.day) as dag:
            who = {device: f"SELECT {device} + :period_end * 0 AS device_id" for device in devices}
            send = {"campaign": make_campaign("mapped"), "retries": 3}
            CreateCampaignOperator.partial(task_id="named", **send).expand_kwargs(
                [{"name": f"mapped_{device % 100}", "audience": query} for device, query in who.items()]
            )
            CreateCampaignOperator.partial(task_id="nameless", **send).expand(audience=list(who.values()))
        return dag

    one, two, three = house.devices[:3]
    run = run_dag(make_dag([one, two]), logical_date=house.day)
    assert house.tasks(run) == {"named": ["success"] * 2, "nameless": ["failed"] * 2}
    assert targeted(house, "mapped") == [one, two]
    assert "a mapped task needs a name" in capfd.readouterr().out
    run = run_dag(make_dag([three, one, two]), logical_date=house.day + timedelta(hours=1))
    assert house.tasks(run)["named"] == ["success"] * 3
    assert targeted(house, "mapped") == [one, two, three]  # each got it once, although their places changed


@pytest.mark.proof
def test_a_campaign_that_needs_approval_waits_for_it_without_retry(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    campaign = make_campaign("approved_later", approval={"needed": "always"})
    with DAG("approved_later", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(task_id="notice", campaign=campaign, audience=SOME, retries=3)
    assert house.tasks(run_dag(dag, logical_date=house.day)) == {"notice": ["failed"]}
    key = of_day(house, "approved_later.notice")
    assert f"Launch {key} waits for an approval" in capfd.readouterr().out
    assert house.truths("approved_later") == []
    with house.ledger() as ledger:
        release(ledger, key, "ann", "it looks right")
    assert run_dag(dag, logical_date=house.day + timedelta(hours=1)).state == "success"
    assert len(house.truths("approved_later")) == 1


@pytest.mark.proof
def test_a_task_that_waits_in_the_triggerer_continues_with_its_launch_and_reads_nothing_again(
    house: Any, run_dag: Callable[..., DagRun], tmp_path: Path
) -> None:
    file = tmp_path / "some.parquet"
    parquet.write_table(pa.table({"device_id": house.devices[:60]}), file)
    rollout = {"shares": [10], "wait": {"length": 1, "unit": "seconds"}, "refused": 100}
    starts: list[bool] = []

    def lose_the_file(_: Any) -> None:
        starts.append(file.exists())
        if len(starts) > 1:
            file.unlink(missing_ok=True)

    with DAG("waves", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(
            task_id="notice",
            campaign=make_campaign("waves", gates={"rollout": rollout}),
            audience=file,
            on_execute_callback=[lose_the_file],
        )
    run = run_dag(dag, logical_date=house.day)
    assert run.state == "success"
    assert starts[:2] == [True, True]
    assert not file.exists()
    assert house.states(of_day(house, "waves.notice")) == {"accepted": 2}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "found none of launch_key, campaign and body"),
        (
            {"launch_key": "a" * 32, "campaign": make_campaign("both")},
            "found launch_key and campaign",
        ),
        ({"launch_key": "a" * 32, "audience": SOME}, "audience needs campaign"),
    ],
)
def test_a_task_without_one_launch_is_an_error_of_the_dag_file(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        CreateCampaignOperator(task_id="notice", **arguments)


def test_a_mistake_in_a_mapping_is_an_error_of_the_dag_file_that_names_the_field() -> None:
    with pytest.raises(CampaignError, match=r"campaign notice: channels\.androidpush: "):
        CreateCampaignOperator(
            task_id="notice", campaign=make_campaign("wrong", channels={"androidpush": {}})
        )


@pytest.mark.proof
def test_the_other_operator_is_refused_before_anything_is_frozen(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    with DAG("mismatch", schedule=None, start_date=house.day) as dag:
        ExecuteCampaignOperator(task_id="notice", campaign=make_campaign("mismatch"), audience=SOME)
    assert run_dag(dag, logical_date=house.day).state == "failed"
    assert "cannot be sent with ExecuteCampaignOperator" in capfd.readouterr().out
    with house.ledger() as ledger:
        assert ledger.launches.find(of_day(house, "mismatch.notice")) is None


@pytest.mark.proof
def test_a_folder_takes_another_audience_and_another_name(house: Any, run_dag: Callable[..., DagRun]) -> None:
    house.campaign("spring")
    (house.folder / "spring/audience.sql").unlink()
    with DAG("spring_alone", schedule=None, start_date=house.day) as dag:
        CreateCampaignOperator(
            task_id="notice", campaign=house.folder / "spring", audience=SOME, name="spring_sale"
        )
    run = run_dag(dag, logical_date=house.day)
    assert house.xcoms(run)["notice", "launch_key", -1] == of_day(house, "spring_sale")
    assert len(house.truths("spring")) == 1


def test_a_long_name_of_dag_and_task_is_shortened_to_a_valid_one() -> None:
    assert name_of("shop", "group.notice") == "shop.group.notice"
    long = name_of("d" * 90, "notice_of_spring")
    assert len(long) == 100
    assert long != name_of("d" * 90, "notice_of_summer")


def test_names_that_differ_only_in_letters_other_than_english_ones_stay_different() -> None:
    names = {name_of("stadt", task) for task in ("москва", "казань", "______")}
    assert len(names) == 3
    assert all(re.fullmatch("[A-Za-z0-9_.-]+", name) for name in names)


def test_a_function_is_called_once_for_a_launch_and_its_recipients_stay_in_its_task(
    house: Any, run_dag: Callable[..., DagRun]
) -> None:
    calls: list[int] = []
    with DAG("from_function", schedule=None, start_date=house.day) as dag:

        @task.audience(campaign=Campaign.model_validate(make_campaign("from_function")), name="from_function")
        def lapsed(days: int, data_interval_end: Any = None) -> pd.DataFrame:
            calls.append(days)
            return pd.DataFrame({"device_id": house.devices[:60]})

        CreateCampaignOperator(task_id="send", launch_key=lapsed(30))
    for hours in range(2):
        run = run_dag(dag, logical_date=house.day + timedelta(hours=hours))
        assert run.state == "success"
        assert {name: xcom for name, xcom in house.xcoms(run).items() if name[0] == "lapsed"} == {
            ("lapsed", "return_value", -1): of_day(house, "from_function"),
            ("lapsed", "launch_key", -1): of_day(house, "from_function"),
            ("lapsed", "campaign", -1): "from_function",
        }
        assert house.xcoms(run)["send", "launch_key", -1] == of_day(house, "from_function")
    assert calls == [30]
    assert targeted(house, "from_function") == house.devices[:60]
    assert not re.search(r"7340000\d{3}", shown(run))


@pytest.mark.proof
def test_a_function_replaces_the_audience_of_a_folder_and_must_return_one(
    house: Any, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    house.campaign("folder_of_function")
    with DAG("folder_functions", schedule=None, start_date=house.day) as dag:

        @task.audience(campaign=house.folder / "folder_of_function")
        def some() -> str:
            return SOME

        @task.audience(campaign=house.folder / "folder_of_function", name="nothing", retries=3)
        def nothing() -> None:
            """Return nothing."""

        @task.audience(campaign=house.folder / "folder_of_function", name="tuples", retries=3)
        def tuples() -> list[tuple[int]]:
            return [(7_340_000_001,)]

        some()
        nothing()
        tuples()
    run = run_dag(dag, logical_date=house.day)
    assert house.tasks(run) == {"some": ["success"], "nothing": ["failed"], "tuples": ["failed"]}
    printed = capfd.readouterr().out
    assert "campaign nothing: it has no audience" in printed
    assert "campaign tuples: found list as an audience" in printed
    assert "7340000001" not in printed
    with house.ledger() as ledger:
        assert ledger.launches.get(of_day(house, "folder_of_function")).audience == 60
