"""The whole line of a campaign as a task group, after a task of your own."""

from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from sendoff_airflow import campaign_group

with DAG(
    "sendoff_example_group",
    schedule=CronDataIntervalTimetable("0 9 * * 1", timezone="Europe/Dublin"),
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - in the time zone of Airflow
    catchup=False,
    default_args={"retries": 5},
    tags=["sendoff", "example"],
) as dag:

    @task
    def load_orders() -> None:
        """Load what the audience query reads."""

    folder = Path(__file__).with_name("campaigns") / "example_welcome_back"
    load_orders() >> campaign_group(folder, group_id="welcome_back", name="welcome_back_in_group")
