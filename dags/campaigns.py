"""One DAG for each folder in dags/campaigns."""

from pathlib import Path

from airflow.sdk import conf

from sendoff_airflow.dags import campaign_dags

globals().update(
    campaign_dags(
        Path(__file__).with_name("campaigns"),
        pictures=Path(conf.get("logging", "base_log_folder")).with_name("reports"),
    )
)
