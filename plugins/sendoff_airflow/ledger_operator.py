"""What all operators share that read the ledger or write to it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from sendoff_airflow import LEDGER
from sendoff_airflow.arguments import ChecksArguments

if TYPE_CHECKING:
    from sendoff.ledger import Ledger


class LedgerOperator(ChecksArguments):
    """An operator with the connection of a ledger."""

    def __init__(self, *, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    def open_ledger(self) -> closing[Ledger]:
        """Open the ledger for a block, which closes it at its end."""
        from sendoff_airflow.hooks.ledger import open_ledger

        return closing(open_ledger(self.ledger_conn_id))
