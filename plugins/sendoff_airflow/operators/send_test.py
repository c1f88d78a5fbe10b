"""The operator that sends a campaign to a few people of your own, before anyone else gets it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sendoff_airflow import RECEIVER
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import QueryingOperator
from sendoff_airflow.operators.recipients import absolute, of_shown, shown

if TYPE_CHECKING:
    from airflow.sdk import Context


class SendTestOperator(QueryingOperator):
    """Send the message of a campaign at once to a few people of your own, at most 100: once for each variant.

    A test skips the campaign's exclusions, holdout, gates and approval. The suppression list holds. A retry sends
    nothing twice. Return the number of requests by state, for each launch key.

    :param campaign: the campaign's folder, or ``<folder of a journey>/<step>``; a relative path starts at the folder of
        the DAG file (templated)
    :param recipients: who gets the test, with the columns that the message needs: SQL, a ``.sql`` file, or the path or
        URL of a Parquet, CSV or Arrow file (templated)
    :param variant: the variant to test; default: each of them (templated)
    """

    template_fields: Sequence[str] = ("campaign", "recipients", "variant")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"recipients": "sql"}

    def __init__(
        self, *, campaign: str | Path, recipients: Any, variant: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.campaign = str(campaign)
        self.recipients = recipients
        self.variant = variant

    @property
    def recipients(self) -> Any:
        """The recipients as Airflow may show them: SQL, a path, or an object that does not show its rows."""
        return self._recipients

    @recipients.setter
    def recipients(self, given: Any) -> None:
        self._recipients = shown(given)

    @translate_errors
    def execute(self, context: Context) -> dict[str, dict[str, int]]:
        """Freeze the tests and send them."""
        from sendoff.campaign import load_campaign
        from sendoff.dispatch import check_all_sent, check_refusals, send_launch
        from sendoff.launch import LaunchOptions, prepare_tests
        from sendoff_airflow.hooks.receiver import post_back_signer
        from sendoff_airflow.hooks.service import SendoffHook
        from sendoff_airflow.hooks.warehouse import warehouse_source

        run, ti = context["dag_run"], context["ti"]
        folder = load_campaign(absolute(Path(self.campaign), self.dag.folder), has_audience=False)
        connection = SendoffHook(folder.campaign.connection).service_connection(post_back_signer(RECEIVER))
        sent = {}
        with self.open_ledger() as ledger:
            tests = prepare_tests(
                ledger,
                folder,
                of_shown(self.recipients, self.dag.folder),
                moment=run.run_after,
                variant=self.variant or None,
                warehouses=warehouse_source,
                options=LaunchOptions(who=run.triggering_user_name),
            )
            for test in tests:
                ti.xcom_push("launch_key", test.launch_key)
                ti.xcom_push("campaign", folder.name)  # for CampaignLink
                send_launch(
                    ledger, test.launch_key, connection, worker=f"{ti.dag_id}/{ti.run_id}/try {ti.try_number}"
                )
                check_all_sent(ledger, test.launch_key)
                check_refusals(ledger, test.launch_key)
                sent[test.launch_key] = ledger.dispatch_queries.states(test.launch_key)
        return sent
