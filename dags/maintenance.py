"""Delete post-backs after 90 days; reports keep the counts."""

from datetime import UTC, datetime, timedelta

from sendoff_airflow.dags import maintenance_dag

dag = maintenance_dag("15 3 * * *", keep=timedelta(days=90), start_date=datetime(2026, 1, 1, tzinfo=UTC))
