"""Before anything is sent: an audience is frozen, and what it will be sent is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sendoff.errors import CampaignError
from sendoff_airflow import LEDGER
from sendoff_airflow.errors import explained
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import TellingOperator, names_of
from sendoff_airflow.period import period_of

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder
    from sendoff.launch import Preview
    from sendoff.ledger import Launch, Ledger

_SHOWN = (
    "state",
    "rows",
    "dropped",
    "left_out",
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


class BuildAudienceOperator(TellingOperator):
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

    @explained
    def execute(self, context: Context) -> dict[str, Any]:
        """Find or make the launch of this run's period."""
        from sendoff.campaign import load_campaign
        from sendoff_airflow.hooks.stores import ledger

        is_dry = _truth("preview_only", self.preview_only)
        send_late = _truth("send_late", self.send_late)
        resend = _number("resend", self.resend) or 0
        size_limit = _number("size_limit", self.size_limit)
        folder = load_campaign(Path(self.folder))
        with closing(ledger(self.ledger_conn_id)) as book:
            if is_dry:
                self._look(context, book, folder, size_limit, send_late)
            elif self.continued:
                launch = self._found(book, folder, self.continued)
            else:
                launch = self._freeze(context, book, folder, resend, size_limit, send_late)
        counts = {
            "audience": launch.audience,
            "segments": launch.segments,
            "rows": launch.rows,
            "dropped": dict(launch.dropped),
        }
        self.tell(context, {**names_of(launch), **counts})
        context["ti"].xcom_push("campaign", launch.campaign)  # which a link leads to
        return {"launch_key": launch.launch_key, "state": launch.state, **counts}

    def draw(self, facts: Mapping[str, Any]) -> Any:
        """Draw lineage from the tables of the campaign's queries to the audience."""
        return openlineage.of_audience(self.folder, self.ledger_conn_id, facts)

    def get_openlineage_facets_on_start(self) -> Any:
        """Give OpenLineage's provider the query."""
        return openlineage.of_query(self.folder)

    def _found(self, book: Ledger, folder: CampaignFolder, launch_key: str) -> Launch:
        launch = book.launches.get(launch_key)
        if launch.campaign != folder.name:
            raise CampaignError(
                f"launch {launch_key} is of the campaign {launch.campaign}, and this DAG sends {folder.name}; trigger "
                f"the DAG {launch.campaign}"
            )
        return launch

    def _freeze(
        self,
        context: Context,
        book: Ledger,
        folder: CampaignFolder,
        resend: int,
        size_limit: int | None,
        send_late: bool,
    ) -> Launch:
        from sendoff.launch import due_at_of, prepare_launch
        from sendoff_airflow.hooks.stores import warehouse

        run = context["dag_run"]
        period = period_of(context, folder.campaign)
        return prepare_launch(
            book,
            folder,
            period=period,
            warehouses=warehouse,
            resend=resend,
            reason=self.reason or None,
            who=run.triggering_user_name or f"{run.run_type} run {run.run_id}",
            size_limit=size_limit,
            due_at=due_at_of(folder.campaign, period, run.run_after),
            send_late=send_late,
        )

    def _look(
        self,
        context: Context,
        book: Ledger,
        folder: CampaignFolder,
        size_limit: int | None,
        send_late: bool,
    ) -> NoReturn:
        from sendoff.launch import due_at_of, preview_campaign
        from sendoff_airflow.hooks.stores import warehouse

        period = period_of(context, folder.campaign)
        seen = preview_campaign(
            folder,
            period=period,
            warehouses=warehouse,
            ledger=book,
            size_limit=size_limit,
            due_at=due_at_of(folder.campaign, period, context["dag_run"].run_after),
            send_late=send_late,
        )
        counts = _counts(seen)
        context["ti"].xcom_push("preview", counts)
        for name, count in counts.items():
            self.log.info("%s: %s", name, count)
        raise AirflowSkipException("a dry run: nothing was frozen, and nothing is sent")


class PreviewOperator(BaseOperator):
    """Say what a frozen launch will send, as counts: in the log and as XCom, without a word of its messages.

    The whole preview, with a sample request, is what people see who must approve the launch, and what
    ``sendoff preview`` prints.

    :param launch_key: the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, *, launch_key: str, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Read the launch from the ledger; the warehouse is not asked again."""
        from sendoff.launch import preview_launch
        from sendoff_airflow.hooks.service import rate_of
        from sendoff_airflow.hooks.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            rate = rate_of(book.launches.get(self.launch_key).connection)
            seen = preview_launch(book, self.launch_key, rate=rate)
        for warning in seen.warnings:
            self.log.warning("%s", warning)
        return _counts(seen)


def _counts(seen: Preview) -> dict[str, Any]:
    values = seen.to_json()
    return {name: values[name] for name in _SHOWN}


# A template gives a text, whatever it was made of, and an empty one where there is nothing.


def _truth(name: str, value: bool | str) -> bool:
    found = {"true": True, "false": False}.get(str(value).strip().lower())
    if found is None:  # nobody who meant a dry run may start a launch
        raise AirflowFailException(f"{name}: found {value!r}; allowed: True or False")
    return found


def _number(name: str, value: int | str | None) -> int | None:
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise AirflowFailException(f"{name}: found {value!r}; allowed: a whole number") from None
