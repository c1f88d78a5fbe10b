"""docker-compose.yml unchanged, on separate machines: three of them die while a campaign is sent.

The commands, environment, secrets, users, networks and health checks come from the file. The images are programs of
this machine. The service's own record decides.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy as sa

from sendoff.demo.airflow import PASSWORD, USER, AirflowApi
from sendoff.demo.service import LocalService
from sendoff.demo.verification import device_records, verify
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import attempts, dispatches
from sendoff.postbacks.reconcile import reconcile_launch

from .cluster.cluster import Cluster
from .cluster.composition import ROOT
from .cluster.machine import missing

NAME = "on_two_machines"
DEVICES = 4_800
SEGMENT = 12  # enough requests to last, while the service is slow, until both workers are busy
CAMPAIGN = f"""
title: On two machines
message: {{title: Hello, text: Once}}
channels:
  android_push:
  ios_push:
  web_push:
    browsers: [chrome, firefox, safari]
segment_size: {SEGMENT}
parallelism: 4
report: {{quiet_for: {{length: 6, unit: seconds}}}}
"""
QUERY = "SELECT device_id, platform FROM devices"
PLATFORMS = ("android", "chrome", "firefox", "ios", "safari")
POLICY = """
from datetime import timedelta

def task_policy(task):
    task.retry_delay = task.max_retry_delay = timedelta(seconds=2)
"""
# Airflow should notice soon what has died. The defaults are for unreliable networks.
IMPATIENT = {
    "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",  # so that two workers share four tasks
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}
PATIENCE = 300  # seconds for one step on a busy machine
SLOW = {"kind": "slow", "at": ["create"], "probability": 1, "seconds": 3}  # processed, answered later


class Service(LocalService):
    """The messaging service in its container."""

    def __init__(self, address: str) -> None:
        super().__init__(Path(), 0)
        self._address = f"http://{address}:8091"

    @property
    def address(self) -> str:
        return self._address


class Room:
    """The cluster with people in its warehouse and in the service's directory, and the actions of this test."""

    def __init__(self, cluster: Cluster, secrets: Path) -> None:
        self.cluster = cluster
        self._secrets = secrets
        self.service = Service(cluster.address("service"))
        self.ledger = Ledger(self.database("ledger"))
        self.api = AirflowApi(f"http://{cluster.address('api-server')}:8080")
        self.run = ""

    def database(self, secret: str) -> str:
        """Return the URL of a database from this machine."""
        url = sa.make_url((self._secrets / secret).read_text())
        return url.set(
            drivername="postgresql+psycopg", host=self.cluster.address("postgres")
        ).render_as_string(hide_password=False)

    def fill(self, folder: Path) -> None:
        """Add the same devices to the warehouse and to the service."""
        devices = list(zip(range(50_000_000, 50_000_000 + DEVICES), cycle(PLATFORMS), strict=False))
        engine = sa.create_engine(self.database("warehouse"))
        with engine.begin() as db:
            db.execute(sa.text("CREATE TABLE devices (device_id bigint PRIMARY KEY, platform text)"))
            rows = [{"device": device, "platform": platform} for device, platform in devices]
            db.execute(sa.text("INSERT INTO devices VALUES (:device, :platform)"), rows)
        engine.dispose()
        file = folder / "devices.csv"
        with file.open("w", newline="") as written:
            rows_of_directory = csv.writer(written)
            rows_of_directory.writerow(
                ("device_id", "platform", "profile_id", "user_id", "language", "time_zone")
            )
            rows_of_directory.writerows(
                (*each, each[0], f"U{each[0]}", "en", "Europe/Dublin") for each in devices
            )
        command = [str(Path(sys.executable).with_name("messaging-service")), "devices", "import", str(file)]
        environment = {**os.environ, "MESSAGING_SERVICE_DATABASE": self.database("service_database")}
        subprocess.run(command, check=True, env=environment, capture_output=True)

    def launch(self) -> None:
        """Start a run of the campaign in Airflow."""
        self.until(self.api.healthy)
        self.api.log_in()
        self.until(lambda: self.api.has_dag(NAME))
        assert self.api.plugin_errors() == []
        self.run = self.api.trigger(NAME)

    @property
    def key(self) -> str:
        [launch] = self.ledger.launches.search(campaign=NAME)
        return launch.launch_key

    def states(self) -> Counter[str]:
        return Counter(self.ledger.dispatch_queries.states(self.key))

    def tasks(self) -> list[dict[str, Any]]:
        return [
            each for each in self._instances() if each["task_id"] == "dispatch" and each["map_index"] >= 0
        ]

    def _instances(self) -> list[dict[str, Any]]:
        path = f"/api/v2/dags/{NAME}/dagRuns/{self.run}/taskInstances?limit=100"
        found: list[dict[str, Any]] = self.api._call("GET", path)["task_instances"]
        return found

    def _launched_waits(self) -> bool:
        return [each["state"] for each in self._instances() if each["task_id"] == "check_dispatched"] == [
            "deferred"
        ]

    def senders(self) -> set[str]:
        """Return the machines whose tasks are sending."""
        return {each["hostname"] for each in self.tasks() if each["state"] == "running"}

    def kill_in_the_middle(self, worker: str) -> set[str]:
        """Kill a machine while it makes requests, and return the dispatches of these requests."""
        container = self.cluster.containers[worker]
        while self.states()["planned"]:
            container.stop()
            if keys := self._in_flight(worker):
                self.cluster.kill(worker)
                self._lease(keys, timedelta(days=1))  # until end_leases, however long the rest takes
                return keys
            container.go_on()
            time.sleep(0.1)
        pytest.fail("everything was sent before the machine could be killed")

    def _in_flight(self, worker: str) -> set[str]:
        mine = [each for each in self.tasks() if each["hostname"] == worker]
        names = [
            f"{NAME}/{self.run}/dispatch/{each['map_index'] + 1}/try {each['try_number']}" for each in mine
        ]
        query = (
            sa.select(dispatches.c.dispatch_key)
            .join(attempts, attempts.c.dispatch_key == dispatches.c.dispatch_key)
            .where(
                dispatches.c.state == "in_flight", sa.or_(*(attempts.c.worker.startswith(n) for n in names))
            )
        )
        return set(self._ask(query))

    def end_leases(self, keys: set[str]) -> None:
        """Advance the leases by the five minutes after which a silent worker counts as dead.

        ``check_dispatched`` waits for this in the triggerer, until tomorrow by then, and checks again now.
        """
        self.until(self._launched_waits)
        self._lease(keys, timedelta(0))
        wanted = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": self.run,
            "task_ids": ["check_dispatched"],
        }
        self.api._call("POST", f"/api/v2/dags/{NAME}/clearTaskInstances", wanted)

    def _lease(self, keys: set[str], longer: timedelta) -> None:
        dead = sa.update(dispatches).where(dispatches.c.dispatch_key.in_(keys))
        until = datetime.now(UTC) + longer
        self._ask(dead.values(lease_until=until).returning(dispatches.c.dispatch_key))

    def _ask(self, statement: Any) -> list[str]:
        engine = sa.create_engine(self.database("ledger"))
        try:
            with engine.begin() as db:
                return list(db.scalars(statement))
        finally:
            engine.dispose()

    def has_succeeded(self) -> bool:
        state = self.api.state(NAME, self.run)
        assert state != "failed", self.api.tasks(NAME, self.run)
        return state == "success"

    def until(self, look: Callable[[], Any]) -> None:
        self.cluster.machine.wait_until(look, "the test can go on", PATIENCE)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    if lacks := missing():
        pytest.skip(f"needs machines of its own: this one lacks {', '.join(lacks)}")
    secrets, dags, config = tmp_path / "secrets", tmp_path / "dags", tmp_path / "config"
    subprocess.run([ROOT / "docker/make-secrets", secrets], check=True)
    folder = dags / "campaigns" / NAME
    folder.mkdir(parents=True)
    for name in ("approvers.py", "campaigns.py"):
        shutil.copy(ROOT / "dags" / name, dags)
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    (folder / "audience.sql").write_text(QUERY)
    config.mkdir()
    (config / "airflow_local_settings.py").write_text(POLICY)
    binds = {"/opt/airflow/config": str(config)}
    with Cluster(tmp_path, secrets=secrets, dags=dags, more=IMPATIENT, binds=binds) as cluster:
        passwords = cluster.volume("login") / "passwords.json"
        passwords.write_text(f'{{"{USER}": "{PASSWORD}"}}')
        passwords.chmod(0o666)
        cluster.up()
        room = Room(cluster, secrets)
        with closing(room.ledger):
            room.fill(tmp_path)
            yield room


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """Run slow work beside the test."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.mark.promise("twice/once")
def test_worker_scheduler_and_receiver_die_and_nobody_gets_a_message_twice(
    room: Room, beside: ThreadPoolExecutor
) -> None:
    assert requests.post(f"{room.service.address}/admin/faults", json=SLOW, timeout=60).ok
    room.launch()
    room.until(lambda: room.ledger.launches.search(campaign=NAME))
    room.until(lambda: room.senders() == {"worker-1", "worker-2"} and room.states()["accepted"] > 2)

    in_flight = room.kill_in_the_middle("worker-1")
    for other in ("scheduler", "receiver-1"):
        room.cluster.kill(other)
    assert room.states()["planned"] > 0
    before = room.states()["accepted"]
    room.until(lambda: room.states()["accepted"] > before)  # the other machine continues without a scheduler
    assert requests.delete(f"{room.service.address}/admin/faults", timeout=60).ok
    for other in ("scheduler", "receiver-1"):
        room.cluster.start(other)
    checks = beside.submit(room.cluster.until_healthy, 2 * PATIENCE, without={"worker-1"})
    room.until(lambda: room.states()["planned"] == 0)
    assert room.states()["in_flight"] >= len(in_flight)
    room.end_leases(in_flight)
    room.until(room.has_succeeded)
    room.until(room.service.is_quiet)

    figures = reconcile_launch(room.ledger, room.key)
    assert figures.audience == DEVICES
    campaigns = room.service._get("/admin/campaigns?count=1000")["campaigns"]
    # A request whose worker was killed before it wrote all bytes did not arrive, and is in doubt.
    assert room.states()["accepted"] <= len(campaigns) <= DEVICES // SEGMENT
    truths = room.service.records()
    assert set(Counter(device for truth in truths for device in truth["targeted"]).values()) == {1}
    comparison = verify(room.ledger, room.key, device_records(truths))
    assert comparison.holds, str(comparison)
    kept = {each.dispatch_key: each.state for each in room.ledger.dispatch_queries.of_launch(room.key)}
    assert {state for key, state in kept.items() if key not in in_flight} == {"accepted"}
    assert {kept[key] for key in in_flight} <= {"accepted", "in_doubt"}

    checks.result()
    proxy = room.cluster.containers["proxy"]
    database = f"http://{room.cluster.address('postgres')}:5432"
    assert proxy.run(["curl", "--silent", "--max-time", "60", database]).returncode == 7  # unreachable
    assert "/v1/" not in room.cluster.log("proxy")
    assert room.cluster.log("proxy").count(" 200 ") > DEVICES // 4
