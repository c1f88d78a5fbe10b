"""The DAG factory, as the files of ``dags/`` call it.

.. code-block:: text

    folder ....... the campaigns of a folder, and what is wrong with them
    campaign ..... one of them
    names ........ whether its name is another DAG's
    housekeeping . what all campaigns share: late post-backs, doubts, the size of the ledger
"""

from sendoff_airflow.dags.campaign import Approvers, campaign_dag
from sendoff_airflow.dags.folder import campaign_dags, check_campaigns
from sendoff_airflow.dags.housekeeping import HOUSEKEEPING_DAGS, doubts_dag, maintenance_dag, reconcile_dag
from sendoff_airflow.errors import RETRY_DEFAULTS

__all__ = [
    "HOUSEKEEPING_DAGS",
    "RETRY_DEFAULTS",
    "Approvers",
    "campaign_dag",
    "campaign_dags",
    "check_campaigns",
    "doubts_dag",
    "maintenance_dag",
    "reconcile_dag",
]
