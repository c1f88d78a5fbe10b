"""The DAG factory. The files in ``dags/`` call it.

.. code-block:: text

    folder ....... the DAGs of all campaigns in a folder, and their errors
    campaign ..... the DAG of one campaign
    group ........ the tasks of one launch, as a task group for any DAG
    names ........ checks whether another DAG has a campaign's name
    housekeeping . the DAGs for all campaigns: late post-backs, doubts, the size of the ledger, suppression, tests
"""

from sendoff.campaign import HOUSEKEEPING_DAGS
from sendoff_airflow.dags.campaign import campaign_dag
from sendoff_airflow.dags.folder import campaign_dags, check_campaigns
from sendoff_airflow.dags.group import Approvers, campaign_group
from sendoff_airflow.dags.housekeeping import (
    doubts_dag,
    maintenance_dag,
    reconcile_dag,
    send_test_dag,
    suppression_dag,
)
from sendoff_airflow.errors import RETRY_DEFAULTS

__all__ = [
    "HOUSEKEEPING_DAGS",
    "RETRY_DEFAULTS",
    "Approvers",
    "campaign_dag",
    "campaign_dags",
    "campaign_group",
    "check_campaigns",
    "doubts_dag",
    "maintenance_dag",
    "reconcile_dag",
    "send_test_dag",
    "suppression_dag",
]
