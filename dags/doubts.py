"""Ask people how to settle requests in doubt: it is unclear whether the service processed them."""

from datetime import UTC, datetime

from sendoff_airflow.dags import doubts_dag

dag = doubts_dag("5,35 * * * *", start_date=datetime(2026, 1, 1, tzinfo=UTC))
