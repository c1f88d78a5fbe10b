"""A real Airflow for the demo: the environment of its four components, and a client of its REST API.

Nothing here imports Airflow. It runs as the command ``airflow`` of this Python environment, and the demo calls it over
HTTP.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from sendoff.demo.options import DemoError
from sendoff.demo.processes import Process, Supervisor

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
USER = "admin"
PASSWORD = "admin"  # noqa: S105  # of an Airflow that only this machine can reach, for as long as the demo runs
# A cluster policy: Airflow calls it for every task of every DAG. The default of 15 quiet minutes is for real people.
POLICY = """
from datetime import timedelta

def task_policy(task):
    if task.task_type == "PostBacksQuietSensor":
        task.quiet_for = timedelta(seconds=12)
        task.poke_interval = 2
"""
# A setting below refers to this. Several processes write to one SQLite file, and the default time-out is 5 seconds.
SQLITE_PATIENCE = {"timeout": 60}


def command(name: str) -> str:
    """Return the path of a console command of this Python environment. Raise DemoError if it is not installed."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise DemoError(
            f"The command {name!r} is not next to {sys.executable}. Install the extras airflow and service. In a "
            "clone: pip install '.[airflow,service]'"
        )
    return str(path)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without settings of Airflow and Sendoff, and without proxies for loopback."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "SENDOFF_"))}
    return {**own, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


@dataclass(frozen=True, slots=True)
class Airflow:
    """A separate Airflow: its home, its DAGs folder, and the port of its API and UI."""

    home: Path
    dags: Path
    port: int
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def address(self) -> str:
        """The URL of its UI and its API."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes: loopback only, SQLite, four workers."""
        return {
            **clean_environment(),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__BASE_URL": self.address,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home / 'airflow.db'}",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": f"{__name__}.SQLITE_PATIENCE",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            **self.variables,
        }

    def migrate(self, supervisor: Supervisor) -> Process:
        """Start to create its database and return the process, which ends after some seconds when this is done."""
        self.home.mkdir(parents=True)
        config = self.home / "config"  # on Python's path in every component
        config.mkdir()
        (config / "airflow_local_settings.py").write_text(POLICY)
        passwords = self.home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps({USER: PASSWORD}))
        line = [command("airflow"), "db", "migrate"]
        return supervisor.start("airflow-migrate", line, self.environment(), stays=False)

    def start(self, supervisor: Supervisor) -> None:
        """Start the four components. The database must exist.

        Log servers are off: they listen on every interface, and the log files are on this machine anyway.
        """
        without_log_servers = {"scheduler", "triggerer"}
        for name in COMPONENTS:
            options = ["--skip-serve-logs"] if name in without_log_servers else []
            supervisor.start(f"airflow-{name}", [command("airflow"), name, *options], self.environment())


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a DAG run, or one mapped instance of it (``map_index`` 0 and up). ``state``: None before it starts."""

    name: str
    map_index: int
    state: str | None
    tries: int


def has_failed(task: Task) -> bool:
    """Check whether a task failed, or failed twice and would retry for an hour, which is too long for a demo."""
    return task.state == "failed" or (task.state == "up_for_retry" and task.tries > 1)


class AirflowApi:
    """The calls of the demo to Airflow's REST API, as its only user."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = requests.Session()
        self._session.trust_env = False

    def healthy(self) -> bool:
        """Check whether all four components report that they are healthy."""
        try:
            reply = self._session.get(f"{self._address}/api/v2/monitor/health", timeout=10)
            parts = reply.json() if reply.ok else {}
        except requests.RequestException:
            return False
        names = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((parts.get(name) or {}).get("status") == "healthy" for name in names)

    def log_in(self) -> None:
        """Fetch a token, which all calls below need. From now on, repeat a GET if the connection breaks."""
        self._session.mount("http://", HTTPAdapter(max_retries=Retry(3, backoff_factor=0.5)))
        who = {"username": USER, "password": PASSWORD}
        token = self._call("POST", "/auth/token", json=who)["access_token"]
        self._session.headers["Authorization"] = f"Bearer {token}"

    def has_dag(self, dag: str) -> bool:
        """Check whether Airflow has read the DAG from its file. Raise DemoError if a DAG file cannot be imported."""
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        if errors:
            raise DemoError(f"Airflow cannot import {errors[0]['filename']}:\n{errors[0]['stack_trace']}")
        return any(entry["dag_id"] == dag for entry in self._call("GET", "/api/v2/dags?limit=100")["dags"])

    def plugin_errors(self) -> list[str]:
        """Return the errors of plugins that cannot be imported."""
        return [
            str(entry["error"])
            for entry in self._call("GET", "/api/v2/plugins/importErrors")["import_errors"]
        ]

    def trigger(self, dag: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start the next scheduled run of a DAG, or a run for now if it has no schedule, and return its ID.

        ``conf``: the values of the trigger form. The run is created before the DAG is unpaused, so that the scheduler
        finds it and creates no other run.
        """
        details = self._call("GET", f"/api/v2/dags/{dag}")
        body = {
            "logical_date": details["next_dagrun_logical_date"] or datetime.now(UTC).isoformat(),
            "data_interval_start": details["next_dagrun_data_interval_start"],
            "data_interval_end": details["next_dagrun_data_interval_end"],
            "conf": dict(conf or {}),
        }
        run = self._call("POST", f"/api/v2/dags/{dag}/dagRuns", json=body)
        self._call("PATCH", f"/api/v2/dags/{dag}", json={"is_paused": False})
        return str(run["dag_run_id"])

    def state(self, dag: str, run: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        return str(self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}")["state"])

    def tasks(self, dag: str, run: str) -> list[Task]:
        """Return the tasks of a run that exist so far."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=200"
        return [
            Task(instance["task_id"], instance["map_index"], instance["state"], instance["try_number"])
            for instance in self._call("GET", path)["task_instances"]
        ]

    def log_tail(self, dag: str, run: str, task: Task) -> str:
        """Return the last lines of a task's log."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task.name}/logs/{task.tries}"
        content = self._call("GET", f"{path}?map_index={task.map_index}&full_content=true")["content"]
        return "\n".join(f"    {line}" for line in list(_lines(content))[-25:])

    def _call(self, method: str, path: str, json: object = None) -> dict[str, Any]:
        try:
            reply = self._session.request(method, f"{self._address}{path}", json=json, timeout=60)
        except requests.RequestException as error:
            raise DemoError(f"Airflow did not answer {method} {path} ({type(error).__name__})") from None
        if not reply.ok:
            raise DemoError(f"Airflow answered {reply.status_code} to {method} {path}: {reply.text[:300]}")
        return dict(reply.json())


def _lines(content: list[dict[str, Any]]) -> Iterator[str]:
    """Yield structured log messages as readable lines, with the last frames of their errors."""
    for entry in content:
        if "timestamp" not in entry or str(entry.get("event")).startswith("::"):  # markers of folded groups
            continue
        yield f"{str(entry.get('level', '')).upper():8}{entry.get('event', '')}"
        for error in entry.get("error_detail") or ():
            yield from (
                f'          File "{frame["filename"]}", line {frame["lineno"]}, in {frame["name"]}'
                for frame in error["frames"][-3:]
            )
            yield f"        {error['exc_type']}: {error['exc_value']}"
