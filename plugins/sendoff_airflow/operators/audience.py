"""Before anything is sent: an audience is frozen, and what it will be sent is counted."""

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
from sendoff_airflow.period import period_of

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
"""What of a preview may stand in a log and in XCom: counts, and none of a campaign's words."""


class BuildAudienceOperator(LaunchEventOperator):
    """Hold a launch against its campaign's rules and gates, and freeze its audience and segments in the ledger.

    Returns ``launch_key``, ``state`` (held: somebody must approve it), ``audience``, ``segments``, ``rows`` and
    ``dropped`` (a count for each reason). A launch that the ledger holds already, of this run or of another for the
    same period, is given back as it was frozen and the query does not run again. Each is an XCom of its own as well:
    ``audience.output["launch_key"]``. Fails at once where a gate is closed, and is skipped where it is too late.

    :param folder: the campaign's folder, with ``campaign.yaml`` and ``audience.sql``
    :param resend: 0, or the number of a deliberate repetition for the same period (templated)
    :param reason: why it is repeated; a resend needs one (templated)
    :param size_limit: the most people that it is sent to (templated)
    :param send_late: send a period however long ago it ended; otherwise ``gates.lateness`` decides (templated)
    :param continued: the key of a launch of this campaign, to send what is planned of it in the place of finding or
        making the launch of this run's period (templated)
    :param preview_only: look only: log the counts, freeze nothing, and skip this task and what follows (templated)
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
        """Find or make the launch of this run's period."""
        from sendoff.campaign import load_campaign
        from sendoff.launch import prepare_launch
        from sendoff_airflow.hooks.ledger import open_ledger
        from sendoff_airflow.hooks.warehouse import warehouse_source

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
        context["ti"].xcom_push("campaign", launch.campaign)  # which a link leads to
        return {"launch_key": launch.launch_key, "state": launch.state, **counts}

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the tables of the campaign's queries to the audience."""
        return openlineage.of_audience(self.folder, self.ledger_conn_id, facts)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the query to OpenLineage's provider."""
        return openlineage.of_query(self.folder)

    def _launch_to_continue(self, ledger: Ledger, folder: CampaignFolder, launch_key: str) -> Launch:
        launch = ledger.launches.get(launch_key)
        if launch.campaign != folder.name:
            raise CampaignError(
                f"launch {launch_key} is of the campaign {launch.campaign}, and this DAG sends {folder.name}; trigger "
                f"the DAG {launch.campaign}"
            )
        return launch

    def _options(self) -> LaunchOptions:
        """Return the options that were given; whether they are right does not depend on the campaign."""
        from sendoff.launch import LaunchOptions

        return LaunchOptions(
            size_limit=_integer("size_limit", self.size_limit),
            send_late=_boolean("send_late", self.send_late),
            resend=_integer("resend", self.resend) or 0,
            reason=self.reason or None,
        )

    def _of_run(self, context: Context, folder: CampaignFolder, options: LaunchOptions) -> LaunchOptions:
        """Return the options with what this run adds: when its period was due, and who started it."""
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
    """Return what a frozen launch will send, as counts: in the log and as XCom, without a word of its messages.

    The whole preview, with a sample request, is what people see who must approve the launch, and what
    ``sendoff preview`` prints.

    :param launch_key: the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, *, launch_key: str, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.ledger_conn_id = ledger_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Read the launch from the ledger; the warehouse is not asked again."""
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


# A template gives a text, whatever it was made of, and an empty one where there is nothing.


def _boolean(name: str, value: bool | str) -> bool:
    flag = {"true": True, "false": False}.get(str(value).strip().lower())
    if flag is None:  # nobody who meant a dry run may start a launch
        raise AirflowFailException(f"{name}: found {value!r}; allowed: True or False")
    return flag


def _integer(name: str, value: int | str | None) -> int | None:
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise AirflowFailException(f"{name}: found {value!r}; allowed: a whole number") from None
