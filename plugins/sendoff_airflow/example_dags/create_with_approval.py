"""A campaign with its own content: preview it, ask a person for approval, send each segment, and report."""

from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable

from sendoff_airflow.operators import (
    BuildAudienceOperator,
    CreateCampaignOperator,
    PreviewOperator,
    ReconcileOperator,
)
from sendoff_airflow.operators.approval import ApproveLaunchOperator
from sendoff_airflow.operators.assets import report_asset
from sendoff_airflow.sensors import PostBacksQuietSensor

with DAG(
    "sendoff_example_create",
    schedule=CronDataIntervalTimetable("0 9 * * 1", timezone="Europe/Dublin"),
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - in the time zone of Airflow
    catchup=False,
    default_args={"retries": 5, "only_campaign": "example_welcome_back"},
    tags=["sendoff", "example"],
) as dag:
    audience = BuildAudienceOperator(
        task_id="audience",
        folder=Path(__file__).with_name("campaigns") / "example_welcome_back",
    )
    launch = audience.output["launch_key"]  # type: ignore[index]
    preview = PreviewOperator(task_id="preview", launch_key=launch)
    approve = ApproveLaunchOperator(
        task_id="approve", launch_key=launch, assigned_users=[{"id": "ann", "name": "ann"}]
    )
    send = CreateCampaignOperator.partial(task_id="send", launch_key=launch).expand(worker=[1, 2])
    settled = PostBacksQuietSensor(
        task_id="wait_for_post_backs",
        launch_key=launch,
        quiet_for=timedelta(minutes=15),
        timeout=86_400,
        deferrable=True,
    )
    report = ReconcileOperator(
        task_id="report", launch_key=launch, outlets=[report_asset("example_welcome_back")]
    )
    preview >> approve >> send >> settled >> report
