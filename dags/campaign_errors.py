"""Report mistakes in campaign folders as an import error of this file, which has no DAGs.

Valid campaigns load all the same, from campaigns.py.
"""

from pathlib import Path

from approvers import APPROVERS

from sendoff_airflow.dags import check_campaigns

check_campaigns(Path(__file__).with_name("campaigns"), approvers=APPROVERS)
