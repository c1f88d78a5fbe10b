"""One DAG for each folder in dags/campaigns."""

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import conf

from sendoff_airflow.dags import campaign_dags

globals().update(
    campaign_dags(
        Path(__file__).with_name("campaigns"),
        quiet_for=timedelta(seconds=float(os.environ.get("SENDOFF_QUIET_FOR", "900"))),
        pictures=Path(conf.get("logging", "base_log_folder")).with_name("reports"),
    )
)
