"""A separate Airflow for these tests: its home, database and DAG folder are in a temporary directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import requests

from sendoff.ledger import Ledger

from ..factories import make_warehouse
from ..local_receiver import local_receiver
from ..local_service import run_command, start_service
from ..waiting import PATIENCE, until

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG
    from fastapi.testclient import TestClient

# Airflow reads its settings when it is imported, and pytest imports test modules right after this file.
HOME = Path(tempfile.mkdtemp(prefix="sendoff-airflow-"))
EMPTY = HOME / "dags"
EMPTY.mkdir()
DATABASE_VARIABLE = "SENDOFF_TEST_AIRFLOW_DATABASE"
# One process runs the DAG while another answers its questions. SQLite gives up after 5 seconds by default.
DATABASE = os.environ.get(DATABASE_VARIABLE) or f"sqlite:///{HOME / 'airflow.db'}?timeout=120"

for name in [name for name in os.environ if name.startswith(("AIRFLOW_", "SENDOFF_"))]:
    if not name.startswith("SENDOFF_TEST_"):
        del os.environ[name]
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 4,
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",  # wall-clock time; importing takes processor time
    "AIRFLOW__CORE__DAGS_FOLDER": str(EMPTY),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).parents[2] / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    # DAG.test() leaves a run's values in the form of its DAG, which would be stored as a new version of it.
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "3600",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(HOME / "passwords.json"),
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:op,bob:op,eve:op",
    "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": DATABASE,
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
}
if DATABASE.startswith("postgresql"):
    of_both = DATABASE.replace("+psycopg2:", "+psycopg:")  # psycopg2 cannot wait beside other work
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = of_both
(HOME / "passwords.json").write_text(json.dumps({"ann": "ann", "bob": "bob", "eve": "eve"}))


AIRFLOWS_OWN_WARNINGS = (
    "ignore:GitWildMatchPattern .* is deprecated:DeprecationWarning",
    r"ignore:The Result.tuples\(\) method is deprecated",  # of SQLAlchemy 2.1, in Airflow 3.4
    "ignore:Using `httpx` with `starlette.testclient` is deprecated",
)


def pytest_configure(config: pytest.Config) -> None:
    """Allow, one by one, the warnings of Airflow's own code. Every other warning stays an error."""
    for known in AIRFLOWS_OWN_WARNINGS:
        config.addinivalue_line("filterwarnings", known)


def pytest_unconfigure() -> None:
    """Remove Airflow's home."""
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """Create Airflow's database, once for all tests."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    from airflow import settings

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    # SQLite removes its log with the last connection. Whoever opens the database at that moment can get an I/O error.
    with settings.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT name FROM sqlite_master" if DATABASE.startswith("sqlite") else "SELECT 1"
        )
        connection.rollback()
        yield


@pytest.fixture
def ledger(ledger: Ledger, migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """An empty, migrated ledger, which Airflow uses too."""
    monkeypatch.setenv("SENDOFF_LEDGER_URL", migrated_url)
    return ledger


@pytest.fixture
def run_dag(airflow_database: None) -> Callable[..., DagRun]:
    """Run a DAG to its end in this process, with its tasks and triggers, and return its run."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk.definitions import dag as airflow_dag

    run_task = airflow_dag._run_task

    def _run_task(**how: Any) -> Any:
        with _tasks_run:
            return run_task(**how)

    def run(dag: DAG, **how: Any) -> DagRun:
        bag = DagBag(dag_folder=EMPTY, collect_dags=False)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", _sleep)
            patch.setattr(airflow_dag, "_run_task", _run_task)
            return dag.test(**how)

    return run


# A task in this process replaces a global of Airflow, and a request to a page would replace it back meanwhile.
_tasks_run = threading.Lock()
_real_sleep = time.sleep


def _sleep(seconds: float) -> None:
    """Sleep a tenth of the second that DAG.test() sleeps while it waits for something outside."""
    is_airflow = sys._getframe(1).f_globals["__name__"] == "airflow.sdk.definitions.dag"
    _real_sleep(0.1 if is_airflow else seconds)


PLATFORMS = ("android", "ios", "chrome", "firefox", "safari")
DEVICES = [7_340_000_000 + n for n in range(1, 501)]  # long enough not to look like a count
SEGMENT_SIZE = 60  # nine segments, the last one smaller
SEGMENTS = 9
POST_BACK_SECRET = "0123456789abcdef" * 2
DAY = datetime(2026, 3, 2, 9, tzinfo=UTC)

CAMPAIGN = """
title: {title}
message:
  title: Welcome back
  text: We missed you
channels:
  android_push:
  ios_push:
  web_push:
    browsers: [chrome, firefox, safari]
connection: {connection}
warehouse: shop
segment_size: {segment_size}
parallelism: 2
"""
FEW = """
SELECT device_id, platform FROM devices WHERE device_id IN (
    SELECT DISTINCT device_id FROM devices WHERE device_id IS NOT NULL ORDER BY device_id LIMIT 60)
"""  # 60 of them, without a device ID in the query, because Airflow shows queries
QUERY = "SELECT device_id, platform FROM devices WHERE :period_start < :period_end"


@dataclass
class House:
    """The service, the receiver, the warehouse and the ledger of these tests."""

    devices: ClassVar = DEVICES
    platforms: ClassVar = PLATFORMS
    segments: ClassVar = SEGMENTS
    few: ClassVar = FEW
    day: ClassVar = DAY

    folder: Path
    service: str
    ledger_url: str
    secrets: list[str] = field(repr=False)

    def campaign(
        self, name: str, query: str = QUERY, connection: str = "service", more: str = "", **choices: Any
    ) -> DAG:
        """Return the DAG of a campaign. Without ``quiet_for``, its report comes after the last post-back."""
        from sendoff.campaign import load_campaign
        from sendoff_airflow.dags import campaign_dag

        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        text = CAMPAIGN.format(title=f"The campaign {name}", connection=connection, segment_size=SEGMENT_SIZE)
        (folder / "campaign.yaml").write_text(text + more)
        (folder / "audience.sql").write_text(query)
        usual = {"quiet_for": timedelta(seconds=1), "default_args": {"retries": 0}}
        dag = campaign_dag(load_campaign(folder), **{**usual, **choices})
        if "quiet_for" not in choices:
            self.quieten(dag)
        return dag

    def quieten(self, dag: DAG) -> None:
        """Make the sensor of a DAG wait until the service has nothing left to send. No fixed time would be right."""
        for task in dag.tasks:
            if task.task_type == "PostBacksQuietSensor":
                task.on_execute_callback = [lambda _: self.wait_until_quiet()]

    def truths(self, name: str) -> list[dict[str, Any]]:
        """Return the service's record of each segment of a campaign, once it has nothing left to send."""
        campaigns = self.admin("campaigns?count=1000")["campaigns"]
        mine = [each for each in campaigns if each["title"].startswith(f"The campaign {name} [")]
        return [self.truth(each["id"]) for each in mine]

    def truth(self, campaign_id: int) -> dict[str, Any]:
        """Return the service's record of one of its campaigns, once it has nothing left to send."""
        self.wait_until_quiet()
        return self.admin(f"campaigns/{campaign_id}/truth")

    def has_met_a_fault(self) -> bool:
        """Check whether a request has reached the service and met an injected fault."""
        return any(fault["happened"] for fault in self.admin("faults")["faults"])

    def wait_until_quiet(self) -> None:
        until(lambda: self.admin("progress")["quiet"])

    def admin(self, path: str) -> dict[str, Any]:
        answer = requests.get(f"{self.service}/admin/{path}", timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def copy_airflow_home(self) -> Path:
        """Copy Airflow's home, with its database, to a new folder.

        Another process does it. When a process closes any file of a SQLite database, its own locks there end.
        """
        copy = Path(tempfile.mkdtemp(dir=self.folder)) / "airflow"
        subprocess.run(["cp", "-R", HOME, copy], check=True)
        return copy

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        with closing(Ledger(self.ledger_url)) as ledger:
            yield ledger

    def verdicts(self, key: str) -> dict[str, set[int]]:
        with self.ledger() as ledger:
            return {name: set(map(int, who)) for name, who in ledger.verdicts.sets(key).items()}

    def states(self, key: str) -> dict[str, int]:
        with self.ledger() as ledger:
            return ledger.dispatch_queries.states(key)

    def launch_key(self, run: DagRun) -> str:
        return self.xcoms(run)["audience", "launch_key", -1]

    def tasks(self, run: DagRun) -> dict[str, list[str]]:
        """Return the states of a run's tasks."""
        found: dict[str, list[str]] = {}
        for instance in run.get_task_instances():
            found.setdefault(instance.task_id, []).append(str(instance.state))
        return found

    def campaigns_of_tasks(self, dag: DAG) -> dict[str, tuple[str, ...]]:
        """Return the names of the campaign whose launches each task of a launch takes."""
        tasks = [task.unmap({"worker": 1}) if task.is_mapped else task for task in dag.tasks]
        return {task.task_id: task.only_campaign for task in tasks if hasattr(task, "launch_key")}

    def names(self, run: DagRun) -> dict[str, list[str | None]]:
        """Return the names of a run's mapped tasks."""
        found: dict[str, list[str | None]] = {}
        for instance in sorted(run.get_task_instances(), key=lambda instance: instance.map_index):
            if instance.map_index >= 0:
                found.setdefault(instance.task_id, []).append(instance.rendered_map_index)
        return found

    def xcoms(self, run: DagRun) -> dict[tuple[str, str, int], Any]:
        from airflow.models.xcom import XComModel

        from airflow import settings

        with closing(settings.Session()) as session:
            rows = session.query(XComModel).filter_by(dag_id=run.dag_id, run_id=run.run_id).all()
            return {(row.task_id, row.key, row.map_index): XComModel.deserialize_value(row) for row in rows}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    database = f"sqlite:///{folder / 'service.db'}"
    ledger_url = f"sqlite:///{folder / 'ledger.db'}"
    with closing(Ledger(ledger_url)) as ledger:
        ledger.migrate()
    _make_warehouse(folder)
    at = ("--database", database)
    app = run_command("apps", "add", "--name", "shop", *at)
    client = run_command("client-ids", "add", "--name", "us", "--type", "secret", *at)
    run_command("devices", "import", str(folder / "devices.csv"), *at)
    quick = ("--delay-from", "0", "--delay-to", "0.3", "--first-pause", "0.1", "--longest-pause", "1")
    quick += ("--attempts", "100")  # no post-back is lost because the receiver was busy for a while
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(start_service(database, {**app, **client}, *quick)) as service,
        local_receiver(ledger_url, POST_BACK_SECRET) as public_url,
    ):
        known = {"login": client["client_id"], "password": client["client_secret"]}
        sendoff = {"conn_type": "sendoff", "host": service.base_url, **known}
        extra = {"app_token": app["apptoken"]}
        patch.setenv("SENDOFF_LEDGER_URL", ledger_url)
        connections: dict[str, dict[str, Any]] = {
            "sendoff_receiver": {
                "conn_type": "sendoff_receiver",
                "host": public_url,
                "password": POST_BACK_SECRET,
            },
            "shop": {"conn_type": "sqlite", "host": str(folder / "shop.db")},
            "service": {**sendoff, "extra": extra},
            "misspelt": {**sendoff, "extra": {**extra, "field_names": {"device_ids": "devices"}}},
            "wrong_secret": {**sendoff, "password": "wrong"},
            "nobody": {**sendoff, "host": "http://127.0.0.1:9", "extra": extra},
        }
        for conn_id, fields in connections.items():
            patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))
        secrets = [client["client_secret"], app["apptoken"], POST_BACK_SECRET]
        yield House(folder, service.base_url, ledger_url, secrets)


def _make_warehouse(folder: Path) -> None:
    """Return each device once, twenty of them twice, and a row without a device."""
    rows = [(device, PLATFORMS[device % len(PLATFORMS)]) for device in DEVICES]
    table = "devices (device_id INTEGER, platform TEXT)"
    make_warehouse(folder / "shop.db", table, [*rows, *rows[:20], (None, "ios")])
    lines = ["device_id,platform,profile_id,user_id,language,time_zone"]
    lines += [f"{device},{platform},{device},user-{device},en,UTC" for device, platform in rows]
    (folder / "devices.csv").write_text("\n".join(lines) + "\n")


class People:
    """People who answer through Airflow's REST API, as its page of required actions does."""

    def __init__(self, client: TestClient, task: str = "approve", place: int = -1) -> None:
        self.task = task
        self.place = place  # of a mapped task
        self._client = client
        self._threads: list[threading.Thread] = []
        self._problems: list[BaseException] = []
        self.statuses: list[int] = []

    def will(self, dag: str, *answers: tuple[str, str], first: Callable[[], None] = lambda: None) -> None:
        """Answer as each (who, option) when the DAG asks. The DAG runs meanwhile."""
        self._start(dag, lambda: self._answer(dag, answers, first))

    def let_time_pass(self, dag: str) -> None:
        """Do what the scheduler does with a question that got no answer in time."""
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

        scheduler = SchedulerJobRunner(job=Job())

        def pass_time() -> None:
            instance = _waiting(dag, self.task)
            while instance.state == "awaiting_input":
                scheduler.check_awaiting_input_timeouts()
                time.sleep(0.2)
                instance = _instance(dag, self.task)

        self._start(dag, pass_time)

    def _answer(self, dag: str, answers: tuple[tuple[str, str], ...], first: Callable[[], None]) -> None:
        run = _waiting(dag, self.task).run_id
        with _tasks_run:
            first()
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{self.task}/{self.place}/hitlDetails"
        for who, option in answers:
            token = self._client.post("/auth/token", json={"username": who, "password": who}).json()
            reply = self._client.patch(
                path,
                json={"chosen_options": [option], "params_input": {}},
                headers={"Authorization": f"Bearer {token['access_token']}"},
            )
            self.statuses.append(reply.status_code)

    def _start(self, dag: str, what: Callable[[], None]) -> None:
        def act() -> None:
            try:
                what()
            except BaseException as problem:
                self._problems.append(problem)
                until(lambda: _has_ended(dag, self.task))  # otherwise the test would wait for it forever

        self._threads.append(threading.Thread(target=act, daemon=True))
        self._threads[-1].start()

    def close(self) -> None:
        for thread in self._threads:
            thread.join(3 * PATIENCE)  # it gives up before that
            assert not thread.is_alive()
        for problem in self._problems:
            raise problem


@pytest.fixture(scope="session")
def rest_api(airflow_database: None) -> TestClient:
    """Airflow's REST API. Creating it takes seconds of processor time, even without the part that tasks use."""
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    return TestClient(create_app("core"))


@pytest.fixture
def people(rest_api: TestClient) -> Iterator[People]:
    people = People(rest_api)
    yield people
    people.close()


def _instance(dag: str, task: str) -> TaskInstance | None:
    from airflow.models.taskinstance import TaskInstance

    from airflow import settings

    with closing(settings.Session()) as session:
        return session.query(TaskInstance).filter_by(dag_id=dag, task_id=task).first()


def _waiting(dag: str, task: str) -> TaskInstance:
    """Wait until a task asks, and until the runner of the DAG has seen it.

    DAG.test() records once more that the task asks, after the task has left its hands. An early answer would be lost.
    """
    until(lambda: (found := _instance(dag, task)) is not None and found.state == "awaiting_input")
    asks = datetime.now(UTC)
    instance = _instance(dag, task)
    assert instance is not None
    until(lambda: (_looked_at(dag, instance.run_id) or asks) > asks)
    return instance


def _looked_at(dag: str, run: str) -> datetime | None:
    """Return when the next step of a run was last decided."""
    from airflow.models.dagrun import DagRun

    from airflow import settings

    with closing(settings.Session()) as session:
        found: datetime | None = (
            session.query(DagRun.last_scheduling_decision).filter_by(dag_id=dag, run_id=run).scalar()
        )
        return found


def _has_ended(dag: str, task: str) -> bool:
    """Fail the task if it asks, and check whether its run has ended."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

    from airflow import settings

    with closing(settings.Session()) as session:
        asks = session.query(TaskInstance).filter_by(dag_id=dag, task_id=task, state="awaiting_input")
        asks.update({"state": "failed"})
        session.commit()
        run = session.query(DagRun).filter_by(dag_id=dag).first()
        return run is not None and run.state != "running"
