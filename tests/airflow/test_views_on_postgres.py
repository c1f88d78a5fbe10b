"""Sendoff's pages with Airflow's own database on PostgreSQL, with both of its drivers.

Airflow reads its database setting at import, so each driver needs a separate process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from ..waiting import PATIENCE

HERE = Path(__file__).parent


@pytest.mark.proof
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_every_page_and_every_button_works_with_airflows_database_on_postgresql(
    empty_postgres_url: str, driver: str
) -> None:
    url = make_url(empty_postgres_url).set(drivername=f"postgresql+{driver}")
    chosen = ("-m", "airflow_database", str(HERE / "test_views.py"), str(HERE / "test_missed.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        env=os.environ | {"SENDOFF_TEST_AIRFLOW_DATABASE": url.render_as_string(hide_password=False)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    assert "skipped" not in done.stdout
