"""The stages of a launch as operators: each calls one function of the library and returns ids and counts.

They are imported from here, and this is the name that Airflow keeps of a task's class: in serialized DAGs, in lineage,
and in settings and policies that name operators. Which of these modules a class stands in is nobody else's concern:

.. code-block:: text

    audience ..... freeze an audience, and count what it will be sent
    dispatch ..... make the requests
    reconcile .... give verdicts, and notice silence
"""

from sendoff_airflow.operators.audience import BuildAudienceOperator, PreviewOperator
from sendoff_airflow.operators.dispatch import (
    CheckDispatchedOperator,
    CreateCampaignOperator,
    DispatchOperator,
    ExecuteCampaignOperator,
)
from sendoff_airflow.operators.reconcile import (
    CheckFeedsOperator,
    ReconcileChangedOperator,
    ReconcileOperator,
)

__all__ = [
    "BuildAudienceOperator",
    "CheckDispatchedOperator",
    "CheckFeedsOperator",
    "CreateCampaignOperator",
    "DispatchOperator",
    "ExecuteCampaignOperator",
    "PreviewOperator",
    "ReconcileChangedOperator",
    "ReconcileOperator",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
