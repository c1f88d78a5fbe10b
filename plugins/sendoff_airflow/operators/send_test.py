"""The operator that sends a campaign to a few people of your own, before anyone else gets it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sendoff_airflow import RECEIVER
from sendoff_airflow.arguments import as_text
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import QueryingOperator
from sendoff_airflow.operators.origin import Origin, run_and_task
from sendoff_airflow.operators.recipients import HasRecipients, absolute, of_shown

if TYPE_CHECKING:
    from airflow.sdk import Context


class SendTestOperator(HasRecipients, QueryingOperator):
    """Send the message of a campaign at once to a few people of your own, at most 100: once for each variant.

    A test skips the campaign's exclusions, holdout, gates and approval. The suppression list holds. Each task sends a
    test of its own, and a retry sends nothing twice. Return the number of requests by state, for each launch key.

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
        self.campaign = str(campaign) if isinstance(campaign, Path) else campaign
        self.recipients = recipients
        self.variant = variant

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
        origin = str(Origin(*run_and_task(context), "test"))
        folder = load_campaign(absolute(Path(self.campaign), self.dag.folder), has_audience=False)
        connection = SendoffHook(folder.campaign.connection).service_connection(post_back_signer(RECEIVER))
        with self.open_ledger() as ledger:
            tests = prepare_tests(
                ledger,
                folder,
                of_shown(self.recipients, self.dag.folder),
                moment=run.run_after,
                variant=as_text(self.variant) or None,
                warehouses=warehouse_source,
                options=LaunchOptions(who=run.triggering_user_name, origin=origin),
            )
            ti.xcom_push("campaign", tests[0].campaign)  # for CampaignLink
            keys = [test.launch_key for test in tests]
            if len(keys) == 1:
                ti.xcom_push("launch_key", keys[0])  # for LaunchLink
            worker = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/try {ti.try_number}"
            for key in keys:
                with self.at_work(key):
                    send_launch(ledger, key, connection, worker=worker)
            for key in keys:
                check_all_sent(ledger, key)
                check_refusals(ledger, key)
            return {key: ledger.dispatch_queries.states(key) for key in keys}
