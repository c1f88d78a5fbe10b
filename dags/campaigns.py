"""One DAG for each folder in dags/campaigns."""

from pathlib import Path

from airflow.sdk import conf
from approvers import APPROVERS

from sendoff_airflow.dags import campaign_dags

globals().update(
    campaign_dags(
        Path(__file__).with_name("campaigns"),
        approvers=APPROVERS,
        pictures=Path(conf.get("logging", "base_log_folder")).with_name("reports"),
    )
)
