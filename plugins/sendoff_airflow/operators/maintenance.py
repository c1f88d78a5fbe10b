"""The operator that deletes old post-backs from the ledger, and finishes interrupted erasures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LedgerOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class MaintainOperator(LedgerOperator):
    """Delete post-backs that every report has counted and that are older than ``keep``. No report changes.

    On PostgreSQL, also create the partitions for the next days. Erasures of people that were interrupted are finished
    first. Return how many ``days`` and single ``post_backs`` were deleted, and how many people were ``erased``. Also
    return how many days are still ``needed``, and how many were ``in_use`` and stay until the next run.

    :param keep: how long to keep post-backs, at least a day
    :param ledger_conn_id: the connection of the ledger, with a user who owns its tables
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, keep: timedelta, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep = keep

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Delete old post-backs."""
        from sendoff.postbacks import continue_erasures, maintain

        with self.open_ledger() as ledger:
            erased = continue_erasures(ledger)
            deleted = maintain(ledger, self.keep)
        return {
            "days": len(deleted.days),
            "post_backs": deleted.post_backs,
            "needed": len(deleted.needed),
            "in_use": len(deleted.in_use),
            "erased": erased.people,
        }
