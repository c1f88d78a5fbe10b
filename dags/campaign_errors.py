"""Shows what is wrong with a campaign's folder as an import error of this file, a DAG file without DAGs.

The sound campaigns load all the same: they are in campaigns.py.
"""

from pathlib import Path

from approvers import APPROVERS

from sendoff_airflow.dags import check_campaigns

check_campaigns(Path(__file__).with_name("campaigns"), approvers=APPROVERS)
