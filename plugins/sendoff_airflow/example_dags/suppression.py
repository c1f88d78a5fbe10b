"""A DAG that keeps the suppression list equal to a table of the warehouse, every hour."""

from datetime import UTC, datetime

from sendoff_airflow.dags import suppression_dag

dag = suppression_dag(
    "20 * * * *",
    recipients="SELECT device_id FROM opted_out",
    source="warehouse",
    reason="opted out, by the table opted_out",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    tags=["sendoff", "example"],
)
