"""The operators that prepare a launch: freeze its audience, and preview it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sendoff.errors import CampaignError
from sendoff_airflow import LEDGER
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import LaunchEventOperator, launch_facts
from sendoff_airflow.period import displaced_run, period_of

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder
    from sendoff.launch import LaunchOptions, Preview
    from sendoff.ledger import Launch, Ledger

_PREVIEW_FIELDS = (
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
    "waves",
    "requests",
    "seconds",
    "gates",
)
"""The fields of a preview that may appear in logs and XCom: counts, without any message text."""


class BuildAudienceOperator(LaunchEventOperator):
    """Check a launch against its campaign's suppressions and gates, and freeze its audience and segments in the ledger.

    If the ledger already holds a launch for the period, from this run or another, the operator returns it as it was
    frozen and does not run the query again. The task fails at once if a gate is closed, and is skipped if the launch
    is too late.

    Return ``launch_key``, ``state`` (held: the launch needs approval), ``audience``, ``segments``, ``rows`` and
    ``dropped`` (a count for each reason). Each is also an XCom of its own: ``audience.output["launch_key"]``.

    :param folder: the campaign's folder, with ``campaign.yaml`` and ``audience.sql``
    :param resend: 0, or the number of a deliberate repetition for the same period (templated)
    :param reason: why the period is sent again; required for a resend (templated)
    :param size_limit: send to this many people at most (templated)
    :param send_late: send the period however long ago it ended; otherwise ``gates.lateness`` decides (templated)
    :param continued: the key of a launch of this campaign; send its planned requests instead of finding or creating the
        launch of this run's period (templated)
    :param preview_only: log the counts, freeze nothing, and skip this task and those after it (templated)
    """

    template_fields: Sequence[str] = (
        "resend",
        "reason",
        "size_limit",
        "send_late",
        "preview_only",
        "continued",
    )

    def __init__(
        self,
        *,
        folder: str | Path,
        resend: int | str = 0,
        reason: str | None = None,
        size_limit: int | str | None = None,
        send_late: bool | str = False,
        preview_only: bool | str = False,
        continued: str | None = None,
        ledger_conn_id: str = LEDGER,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self.folder = str(folder)
        self.resend = resend
        self.reason = reason
        self.size_limit = size_limit
        self.send_late = send_late
        self.preview_only = preview_only
        self.continued = continued
        self.ledger_conn_id = ledger_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Find or create the launch of this run's period."""
        from sendoff.campaign import load_campaign
        from sendoff.launch import prepare_launch
        from sendoff_airflow.hooks.ledger import open_ledger
        from sendoff_airflow.hooks.warehouse import warehouse_source

        if warning := displaced_run(context):
            self.log.warning("%s", warning)
        is_dry = _boolean("preview_only", self.preview_only)
        options = self._options()
        folder = load_campaign(Path(self.folder))
        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            if is_dry:
                self._preview_only(context, ledger, folder, self._of_run(context, folder, options))
            elif self.continued:
                launch = self._launch_to_continue(ledger, folder, self.continued)
            else:
                launch = prepare_launch(
                    ledger,
                    folder,
                    period=period_of(context, folder.campaign),
                    warehouses=warehouse_source,
                    options=self._of_run(context, folder, options),
                )
        counts = {
            "audience": launch.audience,
            "segments": launch.segments,
            "rows": launch.rows,
            "dropped": dict(launch.dropped),
        }
        self.emit(context, {**launch_facts(launch), **counts})
        context["ti"].xcom_push("campaign", launch.campaign)  # for CampaignLink
        return {"launch_key": launch.launch_key, "state": launch.state, **counts}

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the tables of the campaign's queries to the audience."""
        return openlineage.of_audience(self.folder, self.ledger_conn_id, facts)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the query for OpenLineage's provider."""
        return openlineage.of_query(self.folder)

    def _launch_to_continue(self, ledger: Ledger, folder: CampaignFolder, launch_key: str) -> Launch:
        launch = ledger.launches.get(launch_key)
        if launch.campaign != folder.name:
            raise CampaignError(
                f"Launch {launch_key} belongs to the campaign {launch.campaign}, but this DAG sends {folder.name}. "
                f"Trigger the DAG {launch.campaign} instead."
            )
        return launch

    def _options(self) -> LaunchOptions:
        """Return the options of this task. They do not depend on the campaign."""
        from sendoff.launch import LaunchOptions

        return LaunchOptions(
            size_limit=_integer("size_limit", self.size_limit),
            send_late=_boolean("send_late", self.send_late),
            resend=_integer("resend", self.resend) or 0,
            reason=self.reason or None,
        )

    def _of_run(self, context: Context, folder: CampaignFolder, options: LaunchOptions) -> LaunchOptions:
        """Return the options with the facts of this run: when its period was due, and who started it."""
        from sendoff.launch import due_time

        run = context["dag_run"]
        return replace(
            options,
            due_at=due_time(folder.campaign, period_of(context, folder.campaign), run.run_after),
            who=run.triggering_user_name or f"{run.run_type} run {run.run_id}",
        )

    def _preview_only(
        self, context: Context, ledger: Ledger, folder: CampaignFolder, options: LaunchOptions
    ) -> NoReturn:
        from sendoff.launch import preview_campaign
        from sendoff_airflow.hooks.warehouse import warehouse_source

        preview = preview_campaign(
            folder,
            period=period_of(context, folder.campaign),
            warehouses=warehouse_source,
            ledger=ledger,
            options=options,
        )
        counts = _counts(preview)
        context["ti"].xcom_push("preview", counts)
        for name, count in counts.items():
            self.log.info("%s: %s", name, count)
        raise AirflowSkipException("a dry run: nothing was frozen, and nothing is sent")


class PreviewOperator(BaseOperator):
    """Count what a frozen launch will send. The log and the XCom hold only counts, without any message text.

    The full preview, with a sample request, is in the question that the approvers see. ``sendoff preview`` prints it
    too.

    :param launch_key: the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, *, launch_key: str, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.ledger_conn_id = ledger_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Read the launch from the ledger. The query does not run again."""
        from sendoff.launch import preview_launch
        from sendoff_airflow.hooks.ledger import open_ledger
        from sendoff_airflow.hooks.service import rate_of

        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            rate = rate_of(ledger.launches.get(self.launch_key).connection)
            preview = preview_launch(ledger, self.launch_key, rate=rate)
        for warning in preview.warnings:
            self.log.warning("%s", warning)
        return _counts(preview)


def _counts(preview: Preview) -> dict[str, Any]:
    values = preview.to_json()
    return {name: values[name] for name in _PREVIEW_FIELDS}


# A rendered template is always text. It is empty if there is no value.


def _boolean(name: str, value: bool | str) -> bool:
    flag = {"true": True, "false": False}.get(str(value).strip().lower())
    if flag is None:  # a mistyped dry run must not start a launch
        raise AirflowFailException(f"{name}: {value!r} is not a boolean. Use True or False.")
    return flag


def _integer(name: str, value: int | str | None) -> int | None:
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise AirflowFailException(f"{name}: {value!r} is not a whole number.") from None
