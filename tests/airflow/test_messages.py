"""Reports in the templates of any Airflow notifier, as the documentation shows them."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.dagrun import DagRun

from sendoff_airflow.views import macros

PAGE = Path(__file__).parents[2] / "docs/how-to/send-report-notifications.md"


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """Yield the messages that the connection ``team_chat`` received, each with its path."""
    told = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append((self.path, json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *of: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("AIRFLOW_CONN_TEAM_CHAT", json.dumps({"conn_type": "http", "host": host}))
        yield told
        server.shutdown()


def run_example(house: Any, run_dag: Callable[..., DagRun], option: str, campaign: str) -> DagRun:
    """Run a campaign with the DAG file of the documentation that uses an option."""
    [example] = [
        each
        for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if f"{option}=" in each
    ]
    dags = house.folder / option
    (dags / "campaigns").mkdir(parents=True)
    (house.folder / campaign).rename(dags / "campaigns" / campaign)
    known: dict[str, Any] = {"__file__": str(dags / "campaigns.py")}
    exec(compile(example, "example", "exec"), known)
    dag = known[campaign]
    dag.get_task("wait_for_post_backs").quiet_for = timedelta(seconds=1)
    return run_dag(dag, logical_date=house.day)


@pytest.mark.proof
def test_the_example_of_the_documentation_tells_the_team_of_each_report(
    house: Any, run_dag: Callable[..., DagRun], chat: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")
    house.campaign("told", house.few)
    run = run_example(house, run_dag, "on_report", "told")
    assert run.state == "success"
    key = house.launch_key(run)
    assert chat == [
        (
            "/hooks/campaigns",
            {
                "text": f"{macros.report_line(key)}\nhttps://airflow.example.com/plugin/sendoff/sendoff/launches/{key}"
            },
        )
    ]
    assert macros.report_line(key).startswith("told for ")
    assert ": Reported. 60 devices: " in macros.report_line(key)


@pytest.mark.proof
def test_the_example_of_the_documentation_tells_the_approvers(
    house: Any,
    run_dag: Callable[..., DagRun],
    people: Any,
    chat: list[tuple[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")
    monkeypatch.setitem(sys.modules, "approvers", SimpleNamespace(APPROVERS={"crm": ["ann"]}))
    house.campaign("asked", house.few, more="approval: {needed: always}\n")
    people.will("asked", ("ann", "Approve"))
    run = run_example(house, run_dag, "on_approval", "asked")
    [(path, message)] = chat
    assert path == "/hooks/approvals"
    assert message["text"].startswith("Send The campaign asked to 60 devices? Answer by ")
    assert message["text"].endswith(
        f": https://airflow.example.com/plugin/sendoff/sendoff/launches/{house.launch_key(run)}"
    )


@pytest.mark.proof
def test_a_message_may_hold_the_whole_report_and_its_figures(
    house: Any, run_dag: Callable[..., DagRun], chat: list[tuple[str, Any]]
) -> None:
    from airflow.providers.http.notifications.http import HttpNotifier

    figures = HttpNotifier(
        http_conn_id="team_chat", data="{{ macros.sendoff.report_json(task.launch_key) | tojson }}"
    )
    text = HttpNotifier(
        http_conn_id="team_chat", json={"text": "{{ macros.sendoff.report_text(task.launch_key) }}"}
    )
    run = run_dag(house.campaign("figured", house.few, on_report=[figures, text]), logical_date=house.day)
    (_, numbers), (_, words) = chat
    assert numbers["launch_key"] == house.launch_key(run)
    assert numbers["adds_up"] is True
    assert sum(numbers["verdicts"].values()) == 60
    assert "What became of the audience" in words["text"]
    for device in house.devices:
        assert str(device) not in json.dumps(chat)
