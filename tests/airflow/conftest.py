"""An Airflow of its own for these tests: home, database and DAG folder in a directory that is thrown away."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

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
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Let pass, by name, what Airflow itself warns of; warnings in our code stay errors."""
    for known in AIRFLOWS_OWN:
        config.addinivalue_line("filterwarnings", known)


AIRFLOWS_OWN: tuple[str, ...] = ()


def pytest_unconfigure() -> None:
    """Remove Airflow's home."""
    shutil.rmtree(HOME, ignore_errors=True)
