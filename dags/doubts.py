"""Ask people what becomes of requests of which nobody knows whether the service processed them."""

from datetime import UTC, datetime

from sendoff_airflow.dags import doubts_dag

dag = doubts_dag("5,35 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC))
