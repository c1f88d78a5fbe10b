"""The examples on the pages about Airflow work as written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from sendoff_airflow.hooks.ledger import LedgerHook
from sendoff_airflow.hooks.receiver import ReceiverHook
from sendoff_airflow.hooks.service import SendoffHook
from sendoff_airflow.hooks.service_fields import ServiceFields

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference/connections.md").read_text()
OWN_DAG = (DOCS / "how-to/write-your-own-dag.md").read_text()
CONNECTIONS = {
    found["conn_type"]: found for found in map(json.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
}


def test_the_example_dag_loads(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", OWN_DAG, re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    assert bag.dags["my_campaign"].task_ids == ["audience", "send", "wait_for_post_backs", "report"]


def test_the_example_connections_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(CONNECTIONS) == {"sendoff", "sendoff_ledger", "sendoff_receiver"}
    for conn_type, fields in CONNECTIONS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_type.upper()}", json.dumps(fields))
    assert SendoffHook("sendoff").client()
    assert LedgerHook().url() == CONNECTIONS["sendoff_ledger"]["password"]
    assert ReceiverHook().get_conn().public_url == "https://events.example.com"


def test_the_page_names_each_extra_field() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert ServiceFields.known <= named
