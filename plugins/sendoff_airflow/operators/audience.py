"""The operators that prepare a launch: freeze its audience, and preview it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from sendoff.errors import CampaignError, NobodyLeftError
from sendoff_airflow.arguments import as_boolean
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import launch_facts
from sendoff_airflow.operators.preparation import PreparingOperator
from sendoff_airflow.operators.reported import of_run, period_of_launch, reported_launch
from sendoff_airflow.period import displaced_run

if TYPE_CHECKING:
    from sendoff.campaign import Campaign, CampaignFolder
    from sendoff.launch import LaunchOptions, Preview
    from sendoff.ledger import LaunchRecord, Ledger

_PREVIEW_FIELDS = (
    "period",
    "state",
    "rows",
    "dropped",
    "suppressed",
    "audience",
    "people",
    "change",
    "variants",
    "languages",
    "time_zones",
    "own_hours",
    "waves",
    "requests",
    "seconds",
    "gates",
)
"""The fields of a preview that may appear in logs and XCom: counts, without any message text."""


class BuildAudienceOperator(PreparingOperator):
    """Check a launch against its campaign's suppressions and gates, and freeze its audience and segments in the ledger.

    If the ledger already holds a launch for the period, from this run or another, the operator returns it as it was
    frozen and does not read the audience again. The task fails at once if a gate is closed, and is skipped if the
    launch is too late.

    Return ``launch_key``, ``state`` (held: the launch needs approval), ``audience``, ``segments``, ``rows`` and
    ``dropped`` (a count for each reason). Each is also an XCom of its own: ``audience.output["launch_key"]``.

    :param folder: the same as ``campaign``, for a folder
    :param continued: the key of a launch of this campaign; send its planned requests instead of finding or creating the
        launch of this run's period (templated)
    :param skips_nobody: skip this task and those after it if no recipients are left, as in a step of a journey
    :param preview_only: log the counts, freeze nothing, and skip this task and those after it (templated)
    """

    template_fields: Sequence[str] = (*PreparingOperator.template_fields, "preview_only", "continued")

    def __init__(
        self,
        *,
        folder: str | Path | None = None,
        campaign: str | Path | Campaign | Mapping[str, Any] | None = None,
        preview_only: bool | str = False,
        continued: str | None = None,
        skips_nobody: bool = False,
        **kwargs: Any,
    ) -> None:
        if (folder is None) == (campaign is None):
            raise ValueError("BuildAudienceOperator needs either campaign or folder.")
        given = folder if campaign is None else campaign
        super().__init__(campaign=given, **{"multiple_outputs": True, **kwargs})
        self.preview_only = preview_only
        self.continued = continued
        self.skips_nobody = skips_nobody

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Find or create the launch of this run's period."""
        from sendoff.launch import check_same_recipients

        is_dry = as_boolean("preview_only", self.preview_only)
        options = self._options()
        if warning := displaced_run(context):
            self.log.warning("%s", warning)
        folder = self._campaign_folder(context)
        with self.open_ledger() as ledger:
            if is_dry:
                self._preview_only(context, ledger, folder, options)
            elif self.continued:
                self._source, launch = folder, self._launch_to_continue(ledger, folder, self.continued)
                check_same_recipients(ledger, launch, options)
            else:
                launch = self._prepared_or_skipped(context, ledger, folder, options)
        counts = {
            "audience": launch.audience,
            "segments": launch.segments,
            "rows": launch.rows,
            "dropped": dict(launch.dropped),
        }
        self.emit(context, {**launch_facts(launch), **counts})
        context["ti"].xcom_push("campaign", launch.campaign)  # for CampaignLink
        return {"launch_key": launch.launch_key, "state": launch.state, **counts}

    def _prepared_or_skipped(
        self, context: Context, ledger: Ledger, folder: CampaignFolder, options: LaunchOptions
    ) -> LaunchRecord:
        try:
            return self._prepared(context, ledger, folder, options)
        except NobodyLeftError as error:
            if not self.skips_nobody:
                raise
            raise AirflowSkipException(str(error)) from None

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the tables of the campaign's queries to the audience."""
        return openlineage.of_audience(self._source, self.ledger_conn_id, facts)

    def _launch_to_continue(self, ledger: Ledger, folder: CampaignFolder, launch_key: str) -> LaunchRecord:
        launch = ledger.launches.get(launch_key)
        if launch.campaign not in folder.names:
            raise CampaignError(
                f"Launch {launch_key} belongs to the campaign {launch.campaign}, but this DAG sends {folder.name}. "
                f"Trigger the DAG {launch.campaign} instead."
            )
        return launch

    def _preview_only(
        self, context: Context, ledger: Ledger, folder: CampaignFolder, options: LaunchOptions
    ) -> NoReturn:
        from sendoff.launch import preview_campaign
        from sendoff_airflow.hooks.warehouse import warehouse_source

        reported, _ = reported_launch(context, ledger, folder, options)
        source = self._with_audience(folder)  # it may follow another launch, which decides when it is due
        preview = preview_campaign(
            source,
            period=period_of_launch(context, folder.campaign, reported),
            warehouses=warehouse_source,
            ledger=ledger,
            options=of_run(context, folder.campaign, options, reported),
        )
        counts = _counts(preview)
        context["ti"].xcom_push("preview", counts)
        for name, count in counts.items():
            self.log.info("%s: %s", name, count)
        raise AirflowSkipException("a dry run: nothing was frozen, and nothing is sent")


class PreviewOperator(LaunchOperator):
    """Count what a frozen launch will send. The log and the XCom hold only counts, without any message text.

    The full preview, with a sample request, is in the question that the approvers see. ``sendoff preview`` prints it
    too.
    """

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Read the launch from the ledger. The query does not run again."""
        from sendoff.launch import preview_launch
        from sendoff_airflow.hooks.service import rate_of

        with self.open_ledger() as ledger:
            rate = rate_of(ledger.launches.get(self.launch_key).connection)
            preview = preview_launch(ledger, self.launch_key, rate=rate)
        for warning in preview.warnings:
            self.log.warning("%s", warning)
        return _counts(preview)


def _counts(preview: Preview) -> dict[str, Any]:
    values = preview.to_json()
    return {name: values[name] for name in _PREVIEW_FIELDS}
