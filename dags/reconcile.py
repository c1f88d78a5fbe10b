"""Reconcile post-backs that arrive after the report of a launch."""

from datetime import UTC, datetime
from pathlib import Path

from sendoff_airflow.dags import reconcile_dag

dag = reconcile_dag(
    "*/10 * * * *",
    campaigns=Path(__file__).with_name("campaigns"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
)
