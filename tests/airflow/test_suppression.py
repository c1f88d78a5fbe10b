"""The operator and the DAG that feed the suppression list, run by a real Airflow."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from airflow.sdk import DAG

from airflow import settings
from sendoff.ledger import Ledger, SuppressionChange
from sendoff_airflow.dags import suppression_dag
from sendoff_airflow.operators import SuppressOperator

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = datetime(2026, 3, 2, 9, tzinfo=UTC)
DEVICES = [7_340_000_000 + n for n in range(1, 11)]
QUERY = "SELECT device_id FROM opted_out"


@pytest.fixture
def opted_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int | None]], None]:
    """Set the rows of the table that says who opted out."""
    path = tmp_path / "shop.db"
    monkeypatch.setenv(
        "AIRFLOW_CONN_SENDOFF_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(path)})
    )

    def set_rows(devices: list[int | None]) -> None:
        with closing(sqlite3.connect(path)) as shop, shop:
            shop.execute("DROP TABLE IF EXISTS opted_out")
            shop.execute("CREATE TABLE opted_out (device_id INTEGER)")
            shop.executemany("INSERT INTO opted_out VALUES (?)", [(each,) for each in devices])

    return set_rows


def members(ledger: Ledger, scope: str = "account") -> list[int | str]:
    return list(ledger.suppressions.active("device_id", "integer", [scope], datetime.now(UTC)))


def returned(run: DagRun) -> Any:
    with closing(settings.Session()) as session:
        rows = session.query(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id).all()
        [row] = [row for row in rows if row.key == "return_value"]
        return XComModel.deserialize_value(row)


def test_the_ready_dag_keeps_the_list_equal_to_a_query_and_refuses_an_empty_one(
    ledger: Ledger,
    opted_out: Callable[[list[int | None]], None],
    run_dag: Callable[..., DagRun],
    capsys: pytest.CaptureFixture[str],
) -> None:
    dag = suppression_dag(
        "20 * * * *",
        recipients=QUERY,
        source="warehouse",
        reason="opted out",
        start_date=START,
        default_args={"retries": 0},
    )
    assert dag.dag_id == "sendoff_suppression"
    assert dag.is_paused_upon_creation is not False
    opted_out([*DEVICES, DEVICES[0], None])
    first = run_dag(dag, logical_date=DAY)
    assert first.state == "success"
    assert returned(first) == {
        "named": 10,
        "skipped": 1,
        "added": 10,
        "removed": 0,
        "prolonged": 0,
        "shortened": 0,
    }
    opted_out([*DEVICES[1:], 7_340_000_999])
    assert run_dag(dag, logical_date=DAY.replace(hour=10)).state == "success"
    now = [*DEVICES[1:], 7_340_000_999]
    assert members(ledger) == now
    opted_out([])
    assert run_dag(dag, logical_date=DAY.replace(hour=11)).state == "failed"
    assert members(ledger) == now
    [newest, first_entry] = ledger.audit_log.of_suppression(limit=9)
    assert newest.detail == {
        "scope": "account",
        "identified_by": "device_id",
        "source": "warehouse",
        "added": 1,
        "removed": 1,
    }
    assert (first_entry.who, first_entry.why) == ("dag_test", "opted out")  # who triggers runs of DAG.test
    logged = capsys.readouterr().out
    assert "nothing was changed: 10 of the 10 entries from warehouse" in logged
    assert "734000" not in logged


def test_a_replacement_counts_the_entries_with_another_end(
    ledger: Ledger, opted_out: Callable[[list[int | None]], None], run_dag: Callable[..., DagRun]
) -> None:
    opted_out(list(DEVICES))
    for hour, until, prolonged, shortened in ((9, None, 0, 0), (10, "2099-01-31", 0, 10), (11, None, 10, 0)):
        with DAG("ending", schedule=None, start_date=START) as dag:
            SuppressOperator(task_id="list", recipients=QUERY, source="crm", reason="trial", until=until)
        counts = returned(run_dag(dag, logical_date=DAY.replace(hour=hour)))
        assert (counts["prolonged"], counts["shortened"]) == (prolonged, shortened), until


def test_recipients_are_added_and_removed_from_a_file_and_a_query(
    ledger: Ledger,
    opted_out: Callable[[list[int | None]], None],
    run_dag: Callable[..., DagRun],
    tmp_path: Path,
) -> None:
    file = tmp_path / "people.csv"
    file.write_text("device_id\n" + "".join(f"{device}\n" for device in DEVICES))
    opted_out(list(DEVICES[:4]))
    with DAG("feeds", schedule=None, start_date=START) as dag:
        shared: dict[str, Any] = {"source": "crm", "reason": "{{ dag.dag_id }}", "topic": "news"}
        add = SuppressOperator(task_id="add", recipients=str(file), action="add", **shared)
        remove = SuppressOperator(
            task_id="remove",
            recipients=QUERY + " WHERE device_id > {{ params.least }}",
            action="remove",
            params={"least": DEVICES[0]},
            **shared,
        )
        add >> remove
    assert run_dag(dag, logical_date=DAY).state == "success"
    assert members(ledger, "topic:news") == [DEVICES[0], *DEVICES[4:]]
    assert [each.why for each in ledger.audit_log.of_suppression(limit=9)] == ["feeds", "feeds"]


def test_an_empty_topic_does_not_change_the_entries_of_the_account(
    ledger: Ledger, opted_out: Callable[[list[int | None]], None], run_dag: Callable[..., DagRun]
) -> None:
    opted_out(list(DEVICES))
    shared: dict[str, Any] = {"recipients": QUERY, "source": "crm", "reason": "no news"}
    with DAG("topicless", schedule=None, start_date=START) as dag:
        first = SuppressOperator(task_id="account", **shared)
        first >> SuppressOperator(task_id="remove", action="remove", topic="{{ '' }}", **shared)
    run = run_dag(dag, logical_date=DAY)
    assert {each.task_id: each.state for each in run.get_task_instances()} == {
        "account": "success",
        "remove": "failed",
    }
    assert members(ledger) == DEVICES


def test_opt_outs_of_recipients_are_not_replaced_and_a_source_is_not_blank(
    ledger: Ledger,
    opted_out: Callable[[list[int | None]], None],
    run_dag: Callable[..., DagRun],
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = SuppressionChange("account", "device_id", "opt-out", "recipient")
    ledger.suppressions.add(own, DEVICES, datetime.now(UTC))
    opted_out(list(DEVICES[1:]))
    with DAG("sources", schedule=None, start_date=START) as dag:
        for place, source in enumerate(["opt-out", "{{ '' }}"]):
            SuppressOperator(task_id=f"replace_{place}", recipients=QUERY, source=source, reason="opted out")
    run = run_dag(dag, logical_date=DAY)
    assert {each.state for each in run.get_task_instances()} == {"failed"}
    logged = capsys.readouterr().out
    assert "only Sendoff adds entries of the source opt-out. Use another name, such as crm" in logged
    assert "the source is blank" in logged
    assert members(ledger) == DEVICES


def test_texts_that_airflow_renders_as_numbers_are_texts(
    ledger: Ledger, opted_out: Callable[[list[int | None]], None], run_dag: Callable[..., DagRun]
) -> None:
    opted_out(list(DEVICES))
    with DAG("numbers", schedule=None, start_date=START, render_template_as_native_obj=True) as dag:
        numbers = {
            "reason": "{{ 4711 }}",
            "source": "{{ 12 }}",
            "topic": "{{ 2026 }}",
            "until": "{{ 20990131 }}",
        }
        SuppressOperator(task_id="suppress", recipients=QUERY, **numbers)
    assert run_dag(dag, logical_date=DAY).state == "success"
    assert members(ledger, "topic:2026") == DEVICES
    [change] = ledger.audit_log.of_suppression(limit=9)
    assert change.why == "4711"


def test_a_query_may_be_anywhere_and_rows_are_not_shown(
    ledger: Ledger,
    opted_out: Callable[[list[int | None]], None],
    run_dag: Callable[..., DagRun],
    tmp_path: Path,
) -> None:
    opted_out([DEVICES[0]])
    (tmp_path / "opted_out.sql").write_text(QUERY)
    shared: dict[str, Any] = {"source": "crm", "reason": "opted out", "action": "add"}
    with DAG("elsewhere", schedule=None, start_date=START) as dag:
        SuppressOperator(task_id="query", recipients=f"{tmp_path}/opted_out.sql", **shared)
        SuppressOperator(task_id="rows", recipients=pa.table({"device_id": DEVICES[1:3]}), **shared)
    run = run_dag(dag, logical_date=DAY)
    assert run.state == "success"
    assert members(ledger) == DEVICES[:3]
    shown = [
        RenderedTaskInstanceFields.get_templated_fields(each)["recipients"]
        for each in sorted(run.get_task_instances(), key=lambda each: each.task_id)
    ]
    assert shown == [f"{tmp_path}/opted_out.sql", "<Table>"]


def test_an_action_that_does_not_exist_is_an_error_of_the_dag_file() -> None:
    with pytest.raises(ValueError, match=r"found 'append'\. Use add, remove, replace"):
        SuppressOperator(task_id="x", recipients=QUERY, source="x", reason="x", action="append")  # type: ignore[arg-type]
