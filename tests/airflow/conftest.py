"""An Airflow of its own for these tests: home, database and DAG folder in a directory that is thrown away."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

# Airflow reads its settings while it is imported, and pytest imports test modules right after this file.
HOME = Path(tempfile.mkdtemp(prefix="sendoff-airflow-"))
EMPTY = HOME / "dags"
EMPTY.mkdir()

for name in [name for name in os.environ if name.startswith(("AIRFLOW_", "SENDOFF_"))]:
    if name != "SENDOFF_TEST_POSTGRES_URL":
        del os.environ[name]
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(EMPTY),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(Path(__file__).parents[2] / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
}


AIRFLOWS_OWN_WARNINGS = (
    "ignore:GitWildMatchPattern .* is deprecated:DeprecationWarning",
    "ignore:Using `httpx` with `starlette.testclient` is deprecated",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let pass, one by one, what Airflow warns of in its own code; every other warning stays an error."""
    for known in AIRFLOWS_OWN_WARNINGS:
        config.addinivalue_line("filterwarnings", known)


def pytest_unconfigure() -> None:
    """Remove Airflow's home."""
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Make Airflow's database, once for all tests."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()


@pytest.fixture
def run_dag(airflow_database: None) -> Callable[..., DagRun]:
    """Runs a DAG to its end in this process, tasks and triggers included, and gives its run."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    def run(dag: DAG, **how: Any) -> DagRun:
        bag = DagBag(dag_folder=EMPTY, collect_dags=False)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)
        return dag.test(**how)

    return run
