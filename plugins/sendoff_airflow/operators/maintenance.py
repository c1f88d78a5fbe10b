"""The operator that keeps the ledger small."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from sendoff_airflow import LEDGER
from sendoff_airflow.errors import translate_errors

if TYPE_CHECKING:
    from airflow.sdk import Context


class MaintainOperator(BaseOperator):
    """Forget post-backs that every report has counted and that are older than ``keep``; no report changes.

    On PostgreSQL it also makes the partitions of the next days. Returns how many ``days`` and single ``post_backs``
    were forgotten, how many days are still ``needed`` and how many were ``in_use`` and are left for the next time.

    :param keep: for how long post-backs are kept, a day or more
    :param ledger_conn_id: the ledger, by a user who owns its tables
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, keep: timedelta, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep = keep
        self.ledger_conn_id = ledger_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Forget what is old."""
        from sendoff.postbacks import maintain
        from sendoff_airflow.hooks.ledger import open_ledger

        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            forgotten = maintain(ledger, self.keep)
        return {
            "days": len(forgotten.days),
            "post_backs": forgotten.post_backs,
            "needed": len(forgotten.needed),
            "in_use": len(forgotten.in_use),
        }
