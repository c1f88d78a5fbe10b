"""Report on a launch again on demand: wait until it is quiet, then reconcile."""

from datetime import timedelta

from airflow.sdk import DAG, Param

from sendoff_airflow.operators import ReconcileOperator
from sendoff_airflow.sensors import PostBacksQuietSensor

with DAG(
    "sendoff_example_report",
    schedule=None,
    params={"launch_key": Param(type="string", pattern="^[0-9a-f]{32}$", title="Launch")},
    tags=["sendoff", "example"],
) as dag:
    settled = PostBacksQuietSensor(
        task_id="wait_for_post_backs",
        launch_key="{{ params.launch_key }}",
        quiet_for=timedelta(minutes=1),
        poke_interval=5,
        timeout=3600,
        deferrable=True,
    )
    settled >> ReconcileOperator(task_id="report", launch_key="{{ params.launch_key }}")
