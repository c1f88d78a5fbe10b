"""The operator that erases people from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import QueryingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class ForgetOperator(QueryingOperator):
    """Erase the people whose identifiers a query of the warehouse returns, such as a table of requests to be forgotten.

    People who were erased before are skipped, so that the query may return them again. If the erasure log lacks them,
    they are erased again. A task that was interrupted continues. Return how many ``people`` were erased, and how many
    ``reports`` were made again.

    :param sql: a query with one column, named as in audience queries, such as ``device_id``
    :param reason: for the audit log
    :param warehouse: the connection of the warehouse
    :param ledger_conn_id: the connection of the ledger, with a user who owns its tables
    """

    template_fields: Sequence[str] = ("sql", "reason")
    template_ext: Sequence[str] = (".sql",)

    def __init__(self, *, sql: str, reason: str, warehouse: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sql = sql
        self.reason = reason
        self.warehouse = warehouse

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Erase the people."""
        from sendoff import warehouse
        from sendoff.audience import build_audience
        from sendoff.postbacks import continue_erasures, erased_before, forget
        from sendoff_airflow.hooks.warehouse import warehouse_source

        with warehouse.read(warehouse_source(self.warehouse), self.sql, parameters={}) as batches:
            found = build_audience(batches)
        with self.open_ledger() as ledger:
            continued = continue_erasures(ledger)
            done = forget(
                ledger,
                found.identifiers - erased_before(ledger, found.identified_by, found.identifiers),
                identified_by=found.identified_by,
                who=f"DAG {context['dag'].dag_id}",
                reason=self.reason,
            )
        return {"people": continued.people + done.people, "reports": continued.reports + done.reports}
