"""Tasks that export results: verdicts to the warehouse, a page, and compared outcomes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, BaseOperator

from sendoff.ledger import Ledger
from sendoff.postbacks import forget
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import stored_outcomes
from sendoff_airflow.operators.report import (
    MeasureOutcomeOperator,
    RenewTablesOperator,
    ReportFileOperator,
    WriteTablesOperator,
    WriteVerdictsOperator,
)

from ..factories import KEY, NOW
from ..two_variants import launch, open_shop, write_campaign

FIRST = 7_340_000_001


@pytest.fixture
def place(tmp_path: Path, migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a reconciled launch to a hundred people, a warehouse with some orders, and a campaign."""
    folder = write_campaign(tmp_path / "spring")
    with (folder / "campaign.yaml").open("a") as file:
        file.write("report: {tables: main}\n")
    open_shop(tmp_path / "shop.db", [*range(FIRST, FIRST + 30), FIRST + 50])
    monkeypatch.setenv("SENDOFF_LEDGER_URL", migrated_url)
    monkeypatch.setenv(
        "AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "shop.db")})
    )
    with closing(Ledger(migrated_url)) as ledger:
        launch(ledger, folder, first=FIRST)
        reconcile_launch(ledger, KEY)
    return tmp_path


def returned(run_dag: Callable[..., DagRun], name: str, make: Callable[[], BaseOperator]) -> Any:
    """Run one task and return its result."""
    with DAG(name, schedule=None, start_date=NOW) as dag:
        make()
    run = run_dag(dag, logical_date=NOW)
    assert run.state == "success"
    (instance,) = run.get_task_instances()
    return instance.xcom_pull(task_ids=instance.task_id)


def test_verdicts_are_written_to_the_warehouse_once_however_often(
    place: Path, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        told = returned(
            run_dag,
            f"verdicts_{number}",
            lambda: WriteVerdictsOperator(
                task_id="write", launch_key=KEY, table="verdicts", warehouse_conn_id="shop"
            ),
        )
        assert told == {"launch_key": KEY, "table": "verdicts", "rows": 100}
    with closing(Ledger(os.environ["SENDOFF_LEDGER_URL"])) as ledger:
        exports = [each.who for each in ledger.audit_log.of_launch(KEY) if each.kind == "exported"]
    assert exports == ["dag_test", "dag_test"]  # whoever started the run
    with closing(sqlite3.connect(place / "shop.db")) as shop:
        counted = "SELECT variant, verdict, count(*) FROM verdicts GROUP BY 1, 2 ORDER BY 1"
        assert shop.execute(counted).fetchall() == [("blue", "missing", 50), ("red", "missing", 50)]
    assert "734000" not in capfd.readouterr().out


def test_one_verdict_alone_is_written_where_it_is_named(place: Path, run_dag: Callable[..., DagRun]) -> None:
    told = returned(
        run_dag,
        "verdicts_engaged",
        lambda: WriteVerdictsOperator(
            task_id="write", launch_key=KEY, table="engaged", warehouse_conn_id="shop", verdict="engaged"
        ),
    )
    assert told["rows"] == 0


def test_dbts_source_file_needs_a_schema() -> None:
    with pytest.raises(ValueError, match="Task write: dbt needs schema"):
        WriteTablesOperator(task_id="write", launch_key=KEY, dbt="sources.yml")


def test_a_name_that_is_no_verdict_fails_and_leaves_the_table(
    place: Path, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    def write(verdict: str) -> DagRun:
        with DAG(f"verdicts_{verdict}", schedule=None, start_date=NOW) as dag:
            WriteVerdictsOperator(
                task_id="write", launch_key=KEY, table="verdicts", warehouse_conn_id="shop", verdict=verdict
            )
        return run_dag(dag, logical_date=NOW)

    assert write("missing").state == "success"
    assert write("mising").state == "failed"
    assert "verdict: 'mising' is not a verdict. Use engaged, delivered" in capfd.readouterr().out
    with closing(sqlite3.connect(place / "shop.db")) as shop:
        assert shop.execute("SELECT count(*) FROM verdicts").fetchall() == [(100,)]


def test_an_outcome_is_measured_and_given_on_as_counts(
    place: Path, run_dag: Callable[..., DagRun], capfd: pytest.CaptureFixture[str]
) -> None:
    told = returned(
        run_dag,
        "measured",
        lambda: MeasureOutcomeOperator(task_id="measure", launch_key=KEY, folder=place / "spring"),
    )
    assert [(side["name"], side["people"], side["count"]) for side in told["sides"]] == [
        ("blue", 50, 30),
        ("red", 50, 1),
    ]
    out = capfd.readouterr().out
    assert "red against blue: less, by 58.00 points" in out
    with closing(Ledger(os.environ["SENDOFF_LEDGER_URL"])) as ledger:
        [(_, kept)] = stored_outcomes(ledger, KEY)
    assert json.loads(json.dumps(kept.to_json())) == json.loads(json.dumps(told))
    assert "734000" not in out


def test_an_outcome_that_cannot_be_measured_keeps_no_erased_person_in_the_tables(
    place: Path,
    run_dag: Callable[..., DagRun],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renewed(name: str) -> str:
        with closing(Ledger(os.environ["SENDOFF_LEDGER_URL"])) as ledger:
            ledger.verdicts.note_tables(KEY, NOW)
        with DAG(name, schedule=None, start_date=NOW) as dag:
            RenewTablesOperator(task_id="renew", campaigns=place, retries=0)
        return str(run_dag(dag, logical_date=NOW).state)

    def rows(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(place / "shop.db")) as shop:
            return shop.execute(query).fetchall()

    people = f"SELECT count(*), sum(identifier = '{FIRST}') FROM sendoff_verdicts"
    outcomes = "SELECT as_of, side_estimate FROM sendoff_comparisons WHERE metric = 'converted'"
    assert renewed("outcome_measured") == "success"
    assert rows(people) == [(100, 1)]
    measured = rows(outcomes)
    assert measured
    (place / "spring/audience.sql").write_text("SELECT device_id AS user_id FROM orders")
    (place / "spring/outcome.sql").write_text("SELECT device_id AS user_id FROM orders")
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "a secret of the tests that is long enough")
    with closing(Ledger(os.environ["SENDOFF_LEDGER_URL"])) as ledger:
        forget(ledger, [FIRST], identified_by="device_id", who="ann", reason="asked")
    assert renewed("outcome_not_measured") == "failed"
    assert "Return device_id, as audience.sql did for this launch" in capfd.readouterr().out
    assert rows(people) == [(99, 0)]
    assert rows(outcomes) == measured


def test_a_report_is_written_as_a_page_with_its_comparisons(
    place: Path, run_dag: Callable[..., DagRun]
) -> None:
    page = returned(
        run_dag,
        "paged",
        lambda: ReportFileOperator(
            task_id="page", launch_key=KEY, reports=str(place / "reports"), folder=place / "spring"
        ),
    )
    assert page == str(place / "reports" / f"spring-{KEY}.html")
    text = Path(page).read_text()
    assert "Compared: engaged" in text
    assert "red against blue: less, by 58.00 points" in text
