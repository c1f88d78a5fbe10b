"""A function returns the audience, and the requests are tasks of their own."""

from datetime import datetime

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from sendoff.campaign import Campaign
from sendoff_airflow.operators import CheckDispatchedOperator, CreateCampaignOperator

CAMPAIGN = Campaign.model_validate(
    {
        "title": "New in spring",
        "message": {"title": "New in spring", "text": "Have a look"},
        "channels": {"android_push": {}},
    }
)

with DAG(
    "sendoff_example_function",
    schedule=CronDataIntervalTimetable("0 9 * * 1", timezone="Europe/Dublin"),
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - in the time zone of Airflow
    catchup=False,
    default_args={"retries": 5},
    tags=["sendoff", "example"],
) as dag:

    @task.audience(campaign=CAMPAIGN, name="new_in_spring")
    def android_devices() -> str:
        """Return SQL. A DataFrame, an Arrow table, a list of dictionaries or the path of a file would also do."""
        return "SELECT device_id FROM devices WHERE platform = 'android'"

    launch = android_devices()
    send = CreateCampaignOperator.partial(task_id="send", launch_key=launch).expand(worker=[1, 2])
    send >> CheckDispatchedOperator(task_id="check", launch_key=launch)  # type: ignore[arg-type]
