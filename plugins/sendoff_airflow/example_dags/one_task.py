"""A launch in one task: the campaign and its audience are arguments of the operator."""

from datetime import datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from sendoff_airflow.operators import CreateCampaignOperator

with DAG(
    "sendoff_example_one_task",
    schedule=CronDataIntervalTimetable("0 9 * * 1", timezone="Europe/Dublin"),
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - in the time zone of Airflow
    catchup=False,
    default_args={"retries": 5},
    tags=["sendoff", "example"],
) as dag:
    CreateCampaignOperator(
        task_id="notice",
        campaign={
            "title": "Opening hours",
            "message": {"title": "Opening hours", "text": "We are open on Sundays now"},
            "channels": {"android_push": {}, "ios_push": {}},
        },
        audience="SELECT device_id FROM devices WHERE platform IN ('android', 'ios')",
    )
