"""The operator that deletes old post-backs from the ledger, and finishes interrupted erasures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sendoff.times import SHORTEST_FOR_POST_BACKS, SHORTEST_FOR_RECIPIENTS
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LedgerOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class MaintainOperator(LedgerOperator):
    """Delete post-backs that every report has counted and that are older than ``keep``. No report changes.

    On PostgreSQL, also create the partitions for the next days. Erasures of people that were interrupted are finished
    first. Return how many ``days`` and single ``post_backs`` were deleted, and how many people were ``erased``. Also
    return how many days are still ``needed``, and how many were ``in_use`` and stay until the next run. With
    ``keep_recipients``, older launches lose their recipients and keep their counts and reports. ``recipients`` counts
    those that were deleted, and ``launches_kept`` the older launches that are not complete.

    :param keep: how long to keep post-backs, at least a day
    :param keep_recipients: how long to keep who was sent to, at least 30 days and ``keep``; default: no limit
    :param ledger_conn_id: the connection of the ledger, with a user who owns its tables
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, keep: timedelta, keep_recipients: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(keep, timedelta) or keep < SHORTEST_FOR_POST_BACKS:
            raise ValueError("keep: use a timedelta of a day or more, such as timedelta(days=90)")
        if keep_recipients is not None and keep_recipients < max(keep, SHORTEST_FOR_RECIPIENTS):
            days = SHORTEST_FOR_RECIPIENTS.days
            raise ValueError(f"keep_recipients: use {days} days or more, and not less than keep")
        self.keep = keep
        self.keep_recipients = keep_recipients

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Delete old post-backs."""
        from sendoff.postbacks import continue_erasures, delete_recipients, maintain

        with self.open_ledger() as ledger:
            erased = continue_erasures(ledger)
            deleted = maintain(ledger, self.keep)
            gone = delete_recipients(ledger, self.keep_recipients) if self.keep_recipients else None
        for reason, count in (gone.stay if gone else {}).items():
            self.log.warning("The recipients of %d older launches stay: %s", count, reason)
        return {
            "days": len(deleted.days),
            "post_backs": deleted.post_backs,
            "needed": len(deleted.needed),
            "in_use": len(deleted.in_use),
            "erased": erased.people,
            "recipients": gone.recipients if gone else 0,
            "launches_kept": sum(gone.stay.values()) if gone else 0,
        }
