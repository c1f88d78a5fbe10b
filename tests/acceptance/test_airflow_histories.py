"""One period in a real Airflow: scheduled, by hand and as a backfill at the same time, cleared, and killed.

The service's own record decides: no one gets two messages, and requests with unknown outcomes are in doubt.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import sqlalchemy as sa

from sendoff.campaign import load_campaign
from sendoff.demo.airflow import POLICY, AirflowApi
from sendoff.demo.options import DemoError, Options
from sendoff.demo.processes import Process, Supervisor
from sendoff.demo.progress import ProgressDisplay
from sendoff.demo.service import Account
from sendoff.demo.stack import DemoStack
from sendoff.demo.workspace import Workspace
from sendoff.dispatch.control import doubts
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import attempts, dispatches

from ..ports import reserve_ports

DAGS = Path(__file__).resolve().parents[2] / "dags"
NAME = "one_period"
BY_HAND = "by_hand"
CAMPAIGN = """
title: One period, many ways
schedule: "0 {hour} * * *"
start: 2026-01-05
message: {{title: Hello, text: Once}}
channels:
  android_push:
  ios_push:
  web_push:
    browsers: [chrome, firefox, safari]
post_backs: {{kinds: []}}  # no evidence: what is in doubt stays so
segment_size: {segment}
parallelism: 2
"""
SEGMENT = 1  # enough requests to last, while the service is slow, until all four workers are busy
QUERY = "SELECT device_id, platform FROM devices WHERE platform <> 'email'"
QUICK = f"""{POLICY}
        task.quiet_for = timedelta(seconds=1)
    task.retry_delay = task.max_retry_delay = timedelta(seconds=2)
"""
PATIENCE = 300  # seconds for one step on a busy machine


class Stage(DemoStack):
    """A deployment that runs these histories instead of a demo."""

    def __init__(
        self, options: Options, workspace: Workspace, supervisor: Supervisor, ledger: Ledger
    ) -> None:
        folder = load_campaign(options.dags / "campaigns" / NAME)
        super().__init__(options, workspace, folder, supervisor, ledger, ProgressDisplay())
        self.ledger = ledger

    def open(self) -> AirflowApi:
        migration = self.airflow.migrate(self.supervisor)
        self._make_warehouse()
        account = self._open_service()
        self._open_receiver()
        return self._open_airflow(migration, account)

    def _open_airflow(self, migration: Process, account: Account) -> AirflowApi:
        (self.airflow.home / "config/airflow_local_settings.py").write_text(QUICK)
        return super()._open_airflow(migration, account)


class Histories:
    """The actions on the runs of one DAG, and the results in the ledger and the service."""

    def __init__(self, stage: Stage, api: AirflowApi) -> None:
        self.ledger = stage.ledger
        self.stage = stage
        self.api = api
        self.scheduled = ""

    def call(self, method: str, path: str, json: object = None) -> dict[str, Any]:
        return self.api._call(method, f"/api/v2{path}", json)

    def insist(self, path: str, json: object) -> dict[str, Any]:
        """Post something until Airflow takes it, because another process may keep its SQLite database locked."""
        answers: list[dict[str, Any]] = []

        def is_answered() -> bool:
            try:
                answers.append(self.call("POST", path, json))
            except DemoError as error:
                if "Database is locked" not in str(error) and "did not answer" not in str(error):
                    raise
                return False
            return True

        self.until(is_answered)
        return answers[0]

    def start(self) -> None:
        """Wait for the scheduler's run of the newest period, and start another for the same period by hand."""
        dag = self.call("GET", f"/dags/{NAME}")
        start, end = dag["next_dagrun_data_interval_start"], dag["next_dagrun_data_interval_end"]
        later = datetime.fromisoformat(start) + timedelta(hours=1)
        by_hand = {
            "dag_run_id": BY_HAND,
            "logical_date": later.isoformat(),
            "data_interval_start": start,
            "data_interval_end": end,
        }
        self.period = start
        self.call("POST", f"/dags/{NAME}/dagRuns", by_hand)
        self.call("PATCH", f"/dags/{NAME}", {"is_paused": False})
        self.until(lambda: len(self.runs()) == 2)
        [self.scheduled] = [run for run in self.runs() if run != BY_HAND]

    def runs(self) -> dict[str, str]:
        found = self.call("GET", f"/dags/{NAME}/dagRuns")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def tasks(self, run: str, name: str) -> list[dict[str, Any]]:
        path = f"/dags/{NAME}/dagRuns/{run}/taskInstances?limit=100"
        found = self.call("GET", path)["task_instances"]
        return [each for each in found if each["task_id"] == name]

    def dispatching(self, run: str) -> list[dict[str, Any]]:
        return [each for each in self.tasks(run, "dispatch") if each["map_index"] >= 0]

    def states(self) -> Counter[str]:
        return Counter(self.ledger.dispatch_queries.states(self.key))

    @property
    def key(self) -> str:
        [launch] = self.ledger.launches.search(campaign=NAME)
        return launch.launch_key

    def clear(self, run: str, *tasks: str) -> None:
        wanted = {"dry_run": False, "only_failed": False, "dag_run_id": run}
        which = {"task_ids": list(tasks)} if tasks else {}
        cleared = self.insist(f"/dags/{NAME}/clearTaskInstances", {**wanted, **which})
        assert cleared["total_entries"] > 0

    def kill_in_the_middle(self) -> str:
        """Kill a task process while it makes a request, and return the dispatch of that request."""
        while True:
            [task, *_] = [each for each in self.dispatching(self.scheduled) if each["state"] == "running"]
            process = self._process(task["pid"])
            process.suspend()
            if key := self._in_flight(task):
                process.kill()
                self._lease(timedelta(days=1))  # until end_leases, however long the rest takes
                return key
            process.resume()
            time.sleep(0.1)

    def _process(self, pid: int) -> psutil.Process:
        [process] = [each for each in psutil.Process().children(recursive=True) if each.pid == pid]
        return process

    def _in_flight(self, task: dict[str, Any]) -> str | None:
        worker = f"{NAME}/{task['dag_run_id']}/dispatch/{task['map_index'] + 1}/try {task['try_number']}"
        query = (
            sa.select(dispatches.c.dispatch_key)
            .join(attempts, attempts.c.dispatch_key == dispatches.c.dispatch_key)
            .where(
                dispatches.c.state == "in_flight", attempts.c.worker.startswith(f"{worker}/", autoescape=True)
            )
        )
        with self._database() as link:
            return link.scalar(query)

    def end_leases(self) -> None:
        """Advance the lease by the five minutes after which a silent worker counts as dead.

        ``check_dispatched`` waits for this in the triggerer, until tomorrow by then, and checks again now.
        """
        for run in self.runs():
            self.until(
                lambda run=run: (
                    [each["state"] for each in self.tasks(run, "check_dispatched")] == ["deferred"]
                )
            )
        self._lease(timedelta(0))
        for run in self.runs():
            self.clear(run, "check_dispatched")

    def _lease(self, longer: timedelta) -> None:
        under_way = sa.update(dispatches).where(dispatches.c.state == "in_flight")
        with self._database() as link:
            link.execute(under_way.values(lease_until=datetime.now(UTC) + longer))

    @contextmanager
    def _database(self) -> Iterator[sa.Connection]:
        engine = sa.create_engine(self.stage._workspace.ledger_url)
        try:
            with engine.begin() as db:
                yield db
        finally:
            engine.dispose()

    def backfill(self) -> None:
        """Run the same period again as a backfill, which takes over the finished run."""
        day = {"dag_id": NAME, "from_date": self.period, "to_date": self.period}
        begun = self.insist("/backfills", {**day, "reprocess_behavior": "completed"})
        self.until(lambda: self.call("GET", f"/backfills/{begun['id']}")["completed_at"])

    def until_success(self) -> None:
        self.until(lambda: set(self.runs().values()) == {"success"})

    def until(self, look: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not look():
            assert "failed" not in self.runs().values()
            self.stage.supervisor.check()
            assert time.monotonic() < deadline, (self.runs(), self.ledger.launches.search(campaign=NAME))
            time.sleep(0.2)


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Histories]:
    dags = tmp_path / "dags"
    folder = dags / "campaigns" / NAME
    folder.mkdir(parents=True)
    for name in ("approvers.py", "campaigns.py"):
        shutil.copy(DAGS / name, dags)
    hour = (datetime.now(UTC).hour + 12) % 24  # no period ends while this runs
    (folder / "campaign.yaml").write_text(CAMPAIGN.format(hour=hour, segment=SEGMENT))
    (folder / "audience.sql").write_text(QUERY)
    airflow, receiver, service = reserve_ports(3)
    options = Options(
        customers=300,
        airflow_port=airflow,
        receiver_port=receiver,
        service_port=service,
        workspace=tmp_path / "stage",
        dags=dags,
    )
    with (
        Workspace(options.workspace) as workspace,
        Supervisor(workspace.logs) as supervisor,
        closing(Ledger(workspace.ledger_url)) as ledger,
    ):
        stage = Stage(options, workspace, supervisor, ledger)
        yield Histories(stage, stage.open())


@pytest.mark.promise("twice/launch")
def test_one_period_is_sent_once_by_whatever_runs_and_whatever_dies(histories: Histories) -> None:
    slow = {"kind": "slow", "at": ["create"], "probability": 1, "seconds": 3}  # processed, answered later
    faults = f"{histories.stage.service.address}/admin/faults"
    assert requests.post(faults, json=slow, timeout=60).ok
    histories.start()
    histories.until(lambda: histories.ledger.launches.search(campaign=NAME))
    histories.until(lambda: histories.states()["accepted"] >= 4)
    for run in (BY_HAND, histories.scheduled):  # four workers in two runs, on the same launch
        histories.until(lambda run=run: [t["state"] for t in histories.dispatching(run)] == ["running"] * 2)
    assert histories.states()["planned"] > 10

    histories.clear(BY_HAND, "dispatch")
    killed = histories.kill_in_the_middle()
    assert histories.states()["planned"] > 0
    assert requests.delete(faults, timeout=60).ok
    histories.until(lambda: histories.states()["planned"] == 0)
    for run in (BY_HAND, histories.scheduled):
        histories.until(lambda run=run: {t["state"] for t in histories.dispatching(run)} == {"success"})

    histories.end_leases()
    in_doubt = {each.dispatch_key for each in doubts(histories.ledger)}
    assert killed in in_doubt
    histories.until_success()
    histories.clear(histories.scheduled)
    histories.until(lambda: histories.runs()[histories.scheduled] != "success")
    histories.until_success()
    histories.backfill()
    histories.until_success()

    states = {
        each.dispatch_key: each.state for each in histories.ledger.dispatch_queries.of_launch(histories.key)
    }
    assert {key for key, state in states.items() if state != "accepted"} == in_doubt
    assert {state for key, state in states.items() if key in in_doubt} == {"in_doubt"}
    campaigns = histories.stage.service._get("/admin/campaigns?count=1000")["campaigns"]
    made = Counter(each["title"].rpartition("[")[2].rstrip("]") for each in campaigns)
    assert set(made.values()) == {1}
    assert made.keys() <= states.keys()
    assert {key for key, state in states.items() if state == "accepted"} <= made.keys()
    people = Counter(d for truth in histories.stage.service.records() for d in truth["targeted"])
    assert set(people.values()) == {1}
    audience = set(map(int, histories.ledger.launches.audience(histories.key)))
    assert people.keys() <= audience
    assert len(people) >= len(audience) - SEGMENT * len(in_doubt)
