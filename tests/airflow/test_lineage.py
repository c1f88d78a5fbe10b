"""The OpenLineage events of a campaign's DAG, with Airflow's own provider and its file transport."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from jsonschema import Draft202012Validator

from sendoff.campaign import load_campaign
from sendoff_airflow.lineage.tables import tables_of, warehouse_of

pytest.importorskip("airflow.providers.openlineage")

QUERY = """
WITH wanted AS (SELECT device_id FROM devices WHERE :period_start < :period_end)
SELECT devices.device_id, devices.platform FROM devices JOIN wanted USING (device_id)
"""
RUN = """
import sys
from datetime import timedelta
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.sdk import timezone
from sendoff.campaign import load_campaign
from sendoff_airflow.dags import campaign_dag

folder = load_campaign(Path(sys.argv[1]))
dag = campaign_dag(folder, quiet_for=timedelta(seconds=1), default_args={"retries": 0})
bag = DagBag(dag_folder=sys.argv[2], collect_dags=False)
bag.bag_dag(dag)
sync_bag_to_db(bag, "dags-folder", None)
assert dag.test(logical_date=timezone.parse(sys.argv[3])).state == "success"
"""


def _run(house: Any, name: str, tmp_path: Path) -> list[dict[str, Any]]:
    """Run a campaign in a separate process, and return the events of its tasks."""
    told = tmp_path / "events.jsonl"
    told.touch()
    transport = {"type": "file", "log_file_path": str(told), "append": True}
    settings = {
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "120",  # slower events are dropped
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
    }
    line = [sys.executable, "-c", RUN, house.folder / name, os.environ["AIRFLOW__CORE__DAGS_FOLDER"]]
    done = subprocess.run(
        [*line, house.day.isoformat()],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    events = [json.loads(line) for line in told.read_text().splitlines()]
    return [event for event in events if event["job"]["name"].startswith(f"{name}.")]


def _complete(events: list[dict[str, Any]], task: str) -> dict[str, Any]:
    found = [
        each
        for each in events
        if each["eventType"] == "COMPLETE" and each["job"]["name"].endswith(f".{task}")
    ]
    assert found, task
    return found[-1]


def _names(event: dict[str, Any], side: str) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in event[side]]


@pytest.mark.proof
def test_the_lineage_leads_from_the_tables_to_the_report(
    house: Any, airflow_database: None, tmp_path: Path
) -> None:
    house.campaign("lineage", QUERY)
    events = _run(house, "lineage", tmp_path)

    audience = _complete(events, "audience")
    assert _names(audience, "inputs") == [("sqlite://shop.db", "main.devices")]
    assert _names(audience, "outputs") == [("sendoff://ledger", "lineage/audience")]
    counted = audience["outputs"][0]["outputFacets"]["outputStatistics"]
    assert counted["rowCount"] == len(house.devices)
    assert audience["job"]["facets"]["sql"]["query"].strip() == QUERY.strip()

    for task in ("dispatch", "check_dispatched"):
        sent = _complete(events, task)
        assert _names(sent, "inputs") == [("sendoff://ledger", "lineage/audience")]
        assert _names(sent, "outputs") == [("sendoff://ledger", "lineage/launch")]
    report = _complete(events, "report")
    assert _names(report, "inputs") == [("sendoff://ledger", "lineage/launch")]
    assert _names(report, "outputs") == [("sendoff://ledger", "lineage/report")]

    schema = json.loads((Path(__file__).parents[2] / "docs/schemas/LaunchRunFacet.json").read_text())
    for event in (audience, report):
        facet = event["run"]["facets"]["sendoff_launch"]
        Draft202012Validator(schema).validate(facet)
        assert facet["_schemaURL"] == schema["$id"]
    assert sum(report["run"]["facets"]["sendoff_launch"]["counts"]["verdicts"].values()) == len(house.devices)

    everything = json.dumps(events)
    assert not any(secret in everything for secret in house.secrets)
    assert not any(words in everything for words in ("Welcome back", "We missed you"))
    assert not {int(number) for number in re.findall(r"\d{10}", everything)} & set(house.devices)


@pytest.mark.parametrize(
    ("dialect", "sql", "found"),
    [
        ("postgres", "SELECT device_id FROM crm.devices;", [("", "crm", "devices")]),
        # the tables of a common table expression, but not its own name
        ("postgres", "WITH a AS (SELECT * FROM orders) SELECT id AS device_id FROM a", [("", "", "orders")]),
        ("sqlite", "SELECT a FROM b WHERE EXISTS (SELECT 1 FROM c) UNION SELECT d FROM e", ["b", "c", "e"]),
        ("snowflake", "SELECT device_id FROM crm.public.devices SAMPLE (10)", [("crm", "public", "devices")]),
        ("bigquery", "SELECT device_id FROM `shop.crm.devices`", [("shop", "crm", "devices")]),
        # a table function is not a table
        ("postgres", "SELECT n AS device_id FROM generate_series(1, 5) AS n", []),
        ("no_such_database", "SELECT device_id FROM devices", [("", "", "devices")]),
    ],
)
def test_the_tables_of_a_query_are_those_that_it_reads(dialect: str, sql: str, found: list[Any]) -> None:
    wanted = [table if isinstance(table, tuple) else ("", "", table) for table in found]
    assert tables_of(sql, dialect) == wanted


@pytest.mark.parametrize("sql", ["SELECT device_id FROM WHERE ((", "EXPLAIN SELECT 1"])
def test_a_query_that_cannot_be_read_is_told_as_one_without_its_text(sql: str) -> None:
    with pytest.raises(ValueError, match="its tables are not known") as raised:
        tables_of(sql, "postgres")
    assert "SELECT" not in str(raised.value)


def test_what_cannot_be_read_is_an_error_in_the_event_and_leaves_the_rest(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sendoff_airflow.lineage.openlineage import of_audience

    house.campaign("unread", "SELECT device_id FROM WHERE ((")
    facts = {"launch_key": "0" * 32, "campaign": "unread", "period": "2026-03-02", "state": "held"}
    found = of_audience(load_campaign(house.folder / "unread"), "sendoff_ledger", {**facts, "audience": 3})
    assert found is not None
    assert found.inputs == []
    assert [each.name for each in found.outputs] == ["unread/audience"]
    error = found.run_facets["extractionError"]
    assert (error.totalTasks, error.failedTasks) == (1, 1)
    assert error.errors[0].task == "audience.sql"
    monkeypatch.delenv(
        "SENDOFF_LEDGER_URL"
    )  # without a ledger there is no lineage, which must not fail the task
    assert (
        of_audience(load_campaign(house.folder / "unread"), "sendoff_ledger", {**facts, "audience": 3})
        is None
    )


def test_a_query_that_no_parser_can_take_costs_its_lineage_alone(
    house: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from sendoff_airflow.lineage.openlineage import of_audience

    house.campaign("deep", f"SELECT {'(' * 9000}device_id{')' * 9000} AS device_id FROM devices")
    facts = {"launch_key": "0" * 32, "campaign": "deep", "period": "2026-03-02", "state": "held"}
    assert of_audience(load_campaign(house.folder / "deep"), "sendoff_ledger", facts) is None
    assert "no lineage for this task: RecursionError" in caplog.text


@pytest.mark.parametrize(
    ("connection", "namespace", "name"),
    [
        (
            {"conn_type": "postgres", "host": "db", "schema": "shop"},
            "postgres://db:5432",
            "shop.public.devices",
        ),
        ({"conn_type": "postgres", "host": "db", "port": 6}, "postgres://db:6", "public.devices"),
        ({"conn_type": "duckdb", "host": "/data/shop.duckdb"}, "duckdb://shop.duckdb", "main.devices"),
        (
            {"conn_type": "snowflake", "schema": "crm", "extra": '{"account": "us-1", "database": "shop"}'},
            "snowflake://us-1",
            "SHOP.CRM.DEVICES",
        ),
        ({"conn_type": "clickhouse", "host": "db", "schema": "shop"}, "clickhouse://db:8123", "shop.devices"),
        (
            {"conn_type": "redshift", "host": "db", "schema": "shop"},
            "redshift://db:5439",
            "shop.public.devices",
        ),
        ({"conn_type": "oracle", "host": "db", "port": 1521}, "oracle://db:1521", "devices"),
    ],
)
def test_tables_are_called_as_openlineage_calls_them(
    connection: dict[str, Any], namespace: str, name: str
) -> None:
    warehouse = warehouse_of(Connection(conn_id="shop", login="me", password="secret", **connection))
    assert (warehouse.namespace, warehouse.name_of(("", "", "devices"))) == (namespace, name)
    assert warehouse.name_of(("x", "y", "z")).lower() == "x.y.z"


@pytest.mark.proof
def test_reading_dag_files_loads_nothing_of_lineage() -> None:
    loaded = "import sys, sendoff_airflow.dags, sendoff_airflow.plugin; print(*sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    ).stdout
    assert "sendoff_airflow.lineage.openlineage" in printed
    assert not {"sqlglot", "sendoff_airflow.lineage.tables", "openlineage.client"} & set(printed.split())
