"""A journey of four steps, sent from a shell and by Airflow, and killed in each step.

The service's own record decides who should get each step. ``JOURNEY_RECIPIENTS`` sets the number of recipients, such as
1000000.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from sendoff.campaign import Period, launch_key
from sendoff.demo.airflow import POLICY, Airflow, AirflowApi
from sendoff.demo.processes import Supervisor
from sendoff.ledger import Ledger
from sendoff.postbacks import reconcile_launch
from sendoff.states import DispatchState, Verdict

from ..leases import end_leases
from ..ports import reserve_ports

ROOT = Path(__file__).parents[2]
RECIPIENTS = int(os.environ.get("JOURNEY_RECIPIENTS", "600"))
PERIOD = Period.of("2026-03-02")
DAY_AFTER = datetime(2026, 3, 3, 9, tzinfo=UTC)
NAME = "welcome"
RELIABLE = {"chrome", "firefox", "opera"}
STEPS = ("hello", "nudge", "again", "last")
_LONGEST = 3600.0
STEP = f"""    message: {{title: Hello, text: Welcome}}
    channels: {{android_push: {{}}, ios_push: {{}}, web_push: {{browsers: [chrome, firefox, opera, safari]}}}}
    segment_size: {max(1, min(10_000, RECIPIENTS // 60))}
    parallelism: 1
    gates: {{failures: null}}
"""
# A step waits until a file with the name of its task exists, which the test creates.
WAIT = """
    task.retry_delay = task.max_retry_delay = timedelta(seconds=1)
    if task.task_type == "WaitForStepOperator":
        task.on_execute_callback = [until_allowed]

def until_allowed(context):
    from pathlib import Path
    from time import sleep

    file = Path("{folder}", context["ti"].task_id)
    while not file.exists():
        sleep(0.1)
"""


@dataclass
class Scene:
    """The processes around a journey: the service and a receiver."""

    slow: ClassVar[float]  # seconds until the service answers

    supervisor: Supervisor
    service: Any
    ledger: Ledger
    folder: Path
    env: dict[str, str]
    killed: int = field(default=0, init=False)

    def take(self, step: str) -> None:
        """Take a step, and kill its process while requests are under way."""
        self.service.fault("slow", at=["create"], probability=1, seconds=self.slow)
        self.start(step)
        self.until(lambda: self.kill(step))
        self.service.clear_faults()
        self.finish(step)
        self.until(lambda: self.service._get("progress")["quiet"])

    def is_under_way(self, step: str, *states: DispatchState) -> bool:
        """Check whether some requests of a step were accepted, some are in these states, and others are left."""
        found = self.ledger.dispatch_queries.states(key_of(step))
        assert found.keys() != {DispatchState.ACCEPTED}, "nothing is left to kill"
        return all(found.get(state) for state in (DispatchState.ACCEPTED, DispatchState.PLANNED, *states))

    def until(self, look: Callable[[], Any]) -> None:
        self.supervisor.wait_until(look, "the journey goes on", _LONGEST, every=0.05)

    def start(self, step: str) -> None:
        raise NotImplementedError

    def kill(self, step: str) -> bool:
        raise NotImplementedError

    def finish(self, step: str) -> None:
        raise NotImplementedError


class InShell(Scene):
    """A journey whose steps are sent by ``sendoff send``."""

    slow = 0.3
    process: subprocess.Popen[bytes]

    def start(self, step: str) -> None:
        program = str(Path(sys.executable).with_name("sendoff"))
        command = [program, "send", str(self.folder / step), "--period", "2026-03-02"]
        env = {**os.environ, **self.env}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def kill(self, step: str) -> bool:
        if not self.is_under_way(step):
            assert self.process.poll() is None, self.process.communicate()[0].decode()
            return False
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)
        self.killed += self.process.returncode == -signal.SIGKILL
        return True

    def finish(self, step: str) -> None:
        """Run the command again until it has nothing left to send."""
        for _ in range(20):
            end_leases(self.ledger)
            self.start(step)
            output, _ = self.process.communicate(timeout=_LONGEST)
            if self.process.returncode == 0:
                return
            assert self.process.returncode == 3, output.decode()
            time.sleep(1)
        raise AssertionError(output.decode())


class InAirflow(Scene):
    """A journey whose steps are sent by the tasks of its DAG. Airflow retries the tasks that are killed."""

    slow = 2  # enough time to find a task's process
    api: AirflowApi

    def open(self, folder: Path) -> None:
        """Start Airflow, and a run of the journey's DAG."""
        connections = {
            "sendoff_default": {
                "conn_type": "sendoff",
                "host": self.service.address,
                "login": self.env["SENDOFF_CLIENT_ID"],
                "password": self.env["SENDOFF_CLIENT_SECRET"],
            },
            "sendoff_warehouse": {"conn_type": "sqlite", "host": str(folder / "shop.db")},
        }
        variables = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in connections.items()}
        port = reserve_ports()[0]
        airflow = Airflow(folder / "airflow", folder / "dags", port, {**self.env, **variables})
        migration = airflow.migrate(self.supervisor)
        policy = airflow.home / "config/airflow_local_settings.py"
        policy.write_text(
            POLICY + "        task.quiet_for = timedelta(seconds=1)" + WAIT.format(folder=folder)
        )
        migration.finish()
        airflow.start(self.supervisor)
        self.api = AirflowApi(airflow.address)
        self.until(self.api.healthy)
        self.api.log_in()
        self.until(lambda: self.api.has_dag(NAME))
        run = {"dag_run_id": "run", "logical_date": DAY_AFTER.isoformat(), "conf": {"send_late": True}}
        self.api._call("POST", f"/api/v2/dags/{NAME}/dagRuns", run)

    def start(self, step: str) -> None:
        if step == STEPS[0]:
            self.api._call("PATCH", f"/api/v2/dags/{NAME}", {"is_paused": False})
        (self.folder.parents[2] / f"{step}.wait").touch()

    def kill(self, step: str) -> bool:
        if not self.is_under_way(step):
            assert self.state() != "failed"
            return False
        [process] = self.processes(step)
        process.suspend()
        if not self.is_under_way(step, DispatchState.IN_FLIGHT):
            process.resume()
            return False
        process.kill()
        self.killed += 1
        end_leases(self.ledger, worker=f"{NAME}/run/{step}.dispatch/1/try 1/")  # they last for five minutes
        return True

    def finish(self, step: str) -> None:
        """Wait until Airflow has retried the task and checked that everything was sent."""
        self.until(lambda: self.tasks(step, "check_dispatched")[0]["state"] == "success")
        [sending] = self.tasks(step, "dispatch")
        assert (sending["state"], sending["try_number"]) == ("success", 2)

    def state(self) -> str:
        return self.api.state(NAME, "run")

    def tasks(self, step: str, name: str) -> list[dict[str, Any]]:
        assert self.state() != "failed"
        found = self.api._call("GET", f"/api/v2/dags/{NAME}/dagRuns/run/taskInstances?limit=100")
        return [each for each in found["task_instances"] if each["task_id"] == f"{step}.{name}"]

    def processes(self, step: str) -> list[psutil.Process]:
        """Return the processes of the tasks that send a step."""
        pids = [each["pid"] for each in self.tasks(step, "dispatch") if each["state"] == "running"]
        return [each for each in psutil.Process().children(recursive=True) if each.pid in pids]


@pytest.fixture(params=[InShell, InAirflow])
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.syspath_prepend(ROOT)
    from tools.chaos import processes

    folder = tmp_path / "dags" / "campaigns" / NAME
    folder.mkdir(parents=True)
    for name in ("approvers.py", "campaigns.py"):
        shutil.copy(ROOT / "dags" / name, tmp_path / "dags")
    steps = [f"  - name: hello\n{STEP}"]
    for earlier, name in pairwise(STEPS):
        when = f"    when: {{of: {earlier}, are: [delivered], unknowable: include}}\n"
        steps.append(f"  - name: {name}\n{when}{STEP}")
    head = "title: Welcome\nexits: [{kind: verdicts, are: [engaged]}]\nsteps:\n"
    (folder / "journey.yaml").write_text(head + "".join(steps))
    (folder / "audience.sql").write_text("SELECT device_id, platform FROM devices WHERE platform <> 'edge'")
    rows = ((n, processes.PLATFORMS[n % len(processes.PLATFORMS)]) for n in range(1, RECIPIENTS + 1))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        db.execute("CREATE TABLE devices (device_id INTEGER, platform TEXT)")
        db.executemany("INSERT INTO devices VALUES (?, ?)", rows)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Supervisor(tmp_path) as supervisor, closing(Ledger(url)) as ledger:
        ledger.migrate()
        service = processes.Service(supervisor, tmp_path, RECIPIENTS)
        address, _ = processes.receiver(supervisor, url)
        env = {
            "SENDOFF_LEDGER_URL": url,
            "SENDOFF_SERVICE_URL": service.address,
            "SENDOFF_CLIENT_ID": service.client_id,
            "SENDOFF_CLIENT_SECRET": service.client_secret,
            "SENDOFF_PUBLIC_URL": address,
            "SENDOFF_POST_BACK_SECRETS": processes.SECRET,
            "SENDOFF_WAREHOUSE_URL": f"sqlite:///{tmp_path / 'shop.db'}",
        }
        scene = request.param(supervisor, service, ledger, folder, env)
        if isinstance(scene, InAirflow):
            scene.open(tmp_path)
        yield scene


@pytest.mark.proof
@pytest.mark.promise("steps/truth")
def test_each_step_reaches_who_should_get_it_whatever_is_killed(scene: Scene) -> None:
    from tools.chaos.processes import PLATFORMS

    platforms = {n: PLATFORMS[n % len(PLATFORMS)] for n in range(1, RECIPIENTS + 1)}
    expected = {n for n, platform in platforms.items() if platform != "edge"}  # that no channel reaches
    silent = {n for n in expected if platforms[n] not in RELIABLE}
    engaged: set[int] = set()
    began = time.monotonic()
    for number, step in enumerate(STEPS):
        scene.take(step)
        key = key_of(step)
        assert set(map(int, scene.ledger.launches.audience(key))) == expected, step
        targeted = reached(scene, key)
        assert all(times == 1 for times in targeted.values())
        assert targeted.keys() <= expected
        figures = reconcile_launch(scene.ledger, key)
        assert figures.unaccounted_identifiers == 0
        delivered, opened = post_backs(scene, key)
        missed = expected - targeted.keys()  # of requests that the killed process was about to make
        verdicts = {name: set(map(int, who)) for name, who in scene.ledger.verdicts.sets(key).items()}
        assert missed <= verdicts[Verdict.IN_DOUBT]
        assert verdicts[Verdict.ENGAGED] == opened
        assert verdicts[Verdict.DELIVERED] == delivered - opened
        engaged |= opened
        expected = ((delivered | (silent & targeted.keys())) - engaged) - verdicts[Verdict.IN_DOUBT]
        sys.stdout.write(
            f"step {number + 1}: {len(targeted):,} reached, {len(opened):,} opened, "
            f"{len(missed):,} missed, {time.monotonic() - began:.1f} s\n"
        )
        assert expected
    assert scene.killed == len(STEPS)
    if isinstance(scene, InAirflow):
        scene.until(lambda: scene.state() == "success")


def key_of(step: str) -> str:
    return launch_key("sendoff_default", f"{NAME}.{step}", PERIOD)


def reached(scene: Scene, key: str) -> Counter[int]:
    """Return how many messages each device got from a launch, by the service's record."""
    dispatches = {each.dispatch_key for each in scene.ledger.dispatch_queries.of_launch(key)}
    found: Counter[int] = Counter()
    for number, title in scene.service.campaigns():
        if title[-33:-1] in dispatches:
            found.update(scene.service.targeted(number))
    return found


def post_backs(scene: Scene, key: str) -> tuple[set[int], set[int]]:
    """Return the devices whose delivery and whose open was posted back, by the service's record."""
    dispatches = {each.dispatch_key for each in scene.ledger.dispatch_queries.of_launch(key)}
    found: dict[str, set[int]] = {"delivery": set(), "open": set()}
    for each in scene.service.sent_post_backs():
        if each.dispatch_key in dispatches and each.kind in found:
            found[each.kind].add(each.device)
    return found["delivery"], found["open"]
