"""The stages of a launch as operators. Each calls one function of the library and returns ids and counts.

Import the operators from this package. Airflow stores this path as the class of a task: in serialized DAGs, in lineage,
and in settings and policies that name operators. The modules are:

.. code-block:: text

    recipients ... the recipients that a task names, in a form that Airflow may show
    preparation .. find or create a launch, shared by the next two
    audience ..... freeze an audience, and preview the launch
    dispatch ..... make the requests
    reconcile .... assign verdicts, check feed health, and report holds
    suppression .. feed the suppression list
    erasure ...... erase people
"""

from sendoff_airflow.operators.audience import BuildAudienceOperator, PreviewOperator
from sendoff_airflow.operators.dispatch import (
    CheckDispatchedOperator,
    CreateCampaignOperator,
    ExecuteCampaignOperator,
)
from sendoff_airflow.operators.erasure import ForgetOperator
from sendoff_airflow.operators.recipients import VerdictsOfLaunch
from sendoff_airflow.operators.reconcile import (
    CheckFeedsOperator,
    ReconcileChangedOperator,
    ReconcileOperator,
    ReportHoldsOperator,
)
from sendoff_airflow.operators.suppression import SuppressOperator

__all__ = [
    "BuildAudienceOperator",
    "CheckDispatchedOperator",
    "CheckFeedsOperator",
    "CreateCampaignOperator",
    "ExecuteCampaignOperator",
    "ForgetOperator",
    "PreviewOperator",
    "ReconcileChangedOperator",
    "ReconcileOperator",
    "ReportHoldsOperator",
    "SuppressOperator",
    "VerdictsOfLaunch",
]

for _name in __all__:
    globals()[_name].__module__ = __name__
