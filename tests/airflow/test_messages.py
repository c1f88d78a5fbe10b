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
from airflow.providers.http.notifications.http import HttpNotifier
from airflow.sdk import DAG

from sendoff.dispatch import release
from sendoff.ledger import Decision, Ledger
from sendoff_airflow.dags import reconcile_dag
from sendoff_airflow.views import macros

from ..factories import NOW, make_launch

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


def example_of(option: str) -> str:
    """Return the DAG file of the documentation that uses an option."""
    [example] = [
        each
        for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if f"{option}=" in each
    ]
    return example


def run_example(house: Any, run_dag: Callable[..., DagRun], option: str, campaign: str) -> DagRun:
    """Run a campaign with the DAG file of the documentation that uses an option."""
    dags = house.folder / option
    (dags / "campaigns").mkdir(parents=True)
    (house.folder / campaign).rename(dags / "campaigns" / campaign)
    known: dict[str, Any] = {"__file__": str(dags / "campaigns.py")}
    exec(compile(example_of(option), "example", "exec"), known)
    dag = known[campaign]
    dag.get_task("wait_for_post_backs").quiet_for = timedelta(seconds=3)
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


@pytest.fixture
def operators_dag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DAG:
    """The DAG that reports held launches, as the documentation makes it."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com")
    (tmp_path / "campaigns").mkdir()
    known: dict[str, Any] = {"__file__": str(tmp_path / "housekeeping.py")}
    exec(compile(example_of("on_hold"), "example", "exec"), known)
    return known["dag"]


def test_the_example_of_the_documentation_tells_the_operators_once_of_each_held_launch(
    house: Any, run_dag: Callable[..., DagRun], operators_dag: DAG, chat: list[tuple[str, Any]]
) -> None:
    run = run_dag(house.campaign("refused", connection="misspelt"), logical_date=house.day)
    key = house.launch_key(run)
    assert house.tasks(run)["dispatch"] == ["failed", "failed"]
    with house.ledger() as ledger:
        [why] = [each.why for each in ledger.audit_log.of_launch(key) if each.kind == "held"]
        waits = make_launch(ledger, range(1, 9), name="waits for approval", state="held")
        chosen = make_launch(ledger, range(1, 9), name="chosen")
        ledger.audit_log.decide(Decision(chosen.launch_key, "held", "sendoff", "choose a variant", house.day))
    assert run_dag(operators_dag, logical_date=house.day).state == "success"
    page = "https://airflow.example.com/plugin/sendoff/sendoff/launches"
    assert re.fullmatch(
        r"([34]) of the last \1 requests were refused by the service; fewer than 3 are allowed", why
    )
    of_both = [
        f"The campaign refused is held: {why}\n{page}/{key}",
        f"{chosen.title} is held: choose a variant\n{page}/{chosen.launch_key}",
    ]
    assert chat == [("/hooks/operators", {"text": text}) for text in of_both]
    run_dag(operators_dag, logical_date=house.day + timedelta(days=1))
    assert len(chat) == 2
    with house.ledger() as ledger:
        assert ledger.launches.get(waits.launch_key).state == "held"
        release(ledger, key, "ann", "corrected")
        ledger.audit_log.decide(Decision(key, "held", "sendoff", "again", house.day))
    run_dag(operators_dag, logical_date=house.day + timedelta(days=2))
    assert chat[2:] == [("/hooks/operators", {"text": f"The campaign refused is held: again\n{page}/{key}"})]


def test_if_one_notifier_fails_the_others_are_called_and_the_task_fails_once(
    ledger: Ledger,
    run_dag: Callable[..., DagRun],
    chat: list[tuple[str, Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    launch = make_launch(ledger, range(1, 9))
    ledger.audit_log.decide(Decision(launch.launch_key, "held", "sendoff", "3 were refused", NOW))
    broken, works = (
        HttpNotifier(http_conn_id=where, json={"text": "{{ task.subject }}"})
        for where in ("none", "team_chat")
    )
    dag = reconcile_dag("0 0 * * *", on_hold=[broken, works])
    run = run_dag(dag, logical_date=NOW)
    [task] = [each for each in run.get_task_instances() if each.task_id == "report_holds"]
    assert (task.state, task.try_number) == ("failed", 1)
    assert [message["text"] for _, message in chat] == [f"{launch.title} is held: 3 were refused"]
    assert f"launch {launch.launch_key} is held: 3 were refused" in capfd.readouterr().out
    assert run_dag(dag, logical_date=NOW + timedelta(days=1)).state == "success"
    assert len(chat) == 1


@pytest.mark.proof
def test_a_message_may_hold_the_whole_report_and_its_figures(
    house: Any, run_dag: Callable[..., DagRun], chat: list[tuple[str, Any]]
) -> None:
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
