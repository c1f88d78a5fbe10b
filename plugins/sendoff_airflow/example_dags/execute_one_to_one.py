"""One-to-one messages: execute a template of the service with each person's own values."""

from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable

from sendoff_airflow.operators import BuildAudienceOperator, ExecuteCampaignOperator

with DAG(
    "sendoff_example_execute",
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - in the time zone of Airflow
    catchup=False,
    default_args={"retries": 5},
    tags=["sendoff", "example"],
) as dag:
    audience = BuildAudienceOperator(
        task_id="audience",
        folder=Path(__file__).with_name("campaigns") / "example_order_shipped",
    )
    ExecuteCampaignOperator(task_id="send", launch_key=audience.output["launch_key"])  # type: ignore[index]
