"""The metrics of a task reach Airflow's own metrics, through OpenTelemetry and through StatsD.

The task runs as in a worker: in a process that Airflow forks for it and that ends with it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sendoff.ledger import Ledger

DAG = """
from datetime import datetime, timezone

from airflow.sdk import DAG

from sendoff_airflow.operators import ReconcileChangedOperator

with DAG("measured", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), schedule=None) as dag:
    ReconcileChangedOperator(task_id="reconcile")
"""
WORKER = """
from datetime import UTC, datetime

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.executors.workloads import BundleInfo
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.models.dagrun import get_or_create_dagrun
from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.db import initdb
from airflow.utils.types import DagRunTriggeredByType
from airflow import settings

initdb()
manager = DagBundlesManager()
manager.sync_bundles_to_db()
[bundle] = manager.get_all_dag_bundles()
bundle.initialize()
bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
sync_bag_to_db(bag, bundle.name, bundle.version)
dag = bag.dags["measured"]
session = settings.Session()
now = datetime.now(UTC)
run = get_or_create_dagrun(
    dag=DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)), run_id="once", start_date=now,
    logical_date=None, data_interval=None, run_after=now, conf=None, session=session,
    triggered_by=DagRunTriggeredByType.TEST, triggering_user_name=None,
)
[ti] = run.get_task_instances(session=session)
ti.state, ti.try_number, ti.queued_dttm = "queued", 1, now
session.commit()
told = TaskInstanceDTO.model_validate(ti, from_attributes=True)
code = supervise_task(
    ti=told, bundle_info=BundleInfo(name=bundle.name, version=None), dag_rel_path="measured.py", token="",
    client=InProcessTestSupervisor._api_client(dag), subprocess_logs_to_stdout=True,
)
session.expire_all()
print("ended:", code, run.get_task_instances(session=session)[0].state)
"""

Task = Callable[..., str]


@pytest.fixture
def run_task(tmp_path: Path) -> Task:
    """Run a reconciling task in a separate Airflow with these variables, and return its output."""

    def run(**variables: str) -> str:
        home = tmp_path / "airflow"
        (home / "dags").mkdir(parents=True)
        (home / "dags/measured.py").write_text(DAG)
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        with closing(Ledger(url)) as ledger:
            ledger.migrate()
        own = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=120",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
            "SENDOFF_LEDGER_URL": url,
        }
        ended = subprocess.run(
            [sys.executable, "-c", WORKER],
            env=os.environ | own | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        assert "ended: 0 success" in ended.stdout, ended.stdout
        return ended.stdout

    return run


@pytest.mark.proof
def test_opentelemetry_gets_what_a_task_measured_when_it_ends(run_task: Task, collector: Any) -> None:
    run_task(
        AIRFLOW__METRICS__OTEL_ON="True",
        OTEL_SERVICE_NAME="airflow",
        OTEL_METRIC_EXPORT_INTERVAL="3600000",  # so metrics arrive only because the task ended
        **collector.environment,
    )
    names = {"sendoff.launches", "sendoff.aggregation.lag", "sendoff.post_backs.aggregated", "sendoff.feeds"}
    assert names <= collector.names()
    assert "airflow.ti.start" in collector.names()
    assert {resource["service.name"] for resource in collector.resources()} == {"airflow"}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("False", r"^airflow\.sendoff\.launches:0\|g$"),
        ("True", r"^airflow\.sendoff\.launches,state=released:0\|g$"),
    ],
)
def test_statsd_gets_what_a_task_measured_as_it_comes(run_task: Task, style: str, expected: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as agent:
        agent.bind(("127.0.0.1", 0))
        agent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        run_task(
            AIRFLOW__METRICS__STATSD_ON="True",
            AIRFLOW__METRICS__STATSD_HOST="127.0.0.1",
            AIRFLOW__METRICS__STATSD_PORT=str(agent.getsockname()[1]),
            AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED=style,
        )
        told = _received(agent)
    assert any(re.search(expected, line) for line in told), told
    assert any(line.startswith("airflow.sendoff.feeds") for line in told)


def _received(agent: socket.socket) -> list[str]:
    """Return what a socket received so far. On one machine, everything has arrived by now."""
    told: list[str] = []
    agent.setblocking(False)
    while True:
        try:
            told.append(agent.recv(65_536).decode())
        except BlockingIOError:
            return told
