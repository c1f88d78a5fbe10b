"""Reconcile post-backs that arrive after the report of a launch."""

from datetime import UTC, datetime

from sendoff_airflow.dags import reconcile_dag

dag = reconcile_dag("*/10 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC))
