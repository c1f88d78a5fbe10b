"""The stages of a launch as operators: each calls one function of the library and returns ids and counts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from sendoff.errors import CampaignError, NotYetError
from sendoff_airflow import LEDGER, RECEIVER, SERVICE
from sendoff_airflow.assets import tell
from sendoff_airflow.failures import explained
from sendoff_airflow.period import period_of

if TYPE_CHECKING:
    from sendoff.campaign import CampaignFolder
    from sendoff.ledger import Ledger
    from sendoff.ledger.launches import Launch
    from sendoff.preview import Preview

SHOWN = (
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


class BuildAudienceOperator(BaseOperator):
    """Hold a launch against its campaign's rules and gates, and freeze its audience and segments in the ledger.

    Returns ``launch_key``, ``state`` (held: somebody must approve it), ``audience``, ``segments``, ``rows`` and
    ``dropped`` (a count for each reason). A launch that the ledger holds already, of this run or of another for the
    same period, is given back as it was frozen and the query does not run again. Each is an XCom of its own as well:
    ``audience.output["launch_key"]``. Fails at once where a gate is closed, and is skipped where it is too late.

    :param folder: the campaign's folder, with ``campaign.yaml`` and ``audience.sql``
    :param resend: 0, or the number of a deliberate repetition for the same period (templated)
    :param reason: why it is repeated; a resend needs one (templated)
    :param size_limit: the most people that it is sent to (templated)
    :param preview_only: look only: log the counts, freeze nothing, and skip this task and what follows (templated)
    """

    template_fields: Sequence[str] = ("resend", "reason", "size_limit", "preview_only")

    def __init__(
        self,
        *,
        folder: str | Path,
        resend: int | str = 0,
        reason: str | None = None,
        size_limit: int | str | None = None,
        preview_only: bool | str = False,
        ledger_conn_id: str = LEDGER,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self.folder = str(folder)
        self.resend = resend
        self.reason = reason
        self.size_limit = size_limit
        self.preview_only = preview_only
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, Any]:
        """Find or make the launch of this run's period."""
        from sendoff.campaign import load_campaign
        from sendoff_airflow.stores import ledger

        folder = load_campaign(Path(self.folder))
        with closing(ledger(self.ledger_conn_id)) as book:
            if str(self.preview_only) == "True":
                self._look(context, book, folder)
            launch = self._freeze(context, book, folder)
        facts = {
            "launch_key": launch.launch_key,
            "state": launch.state,
            "audience": launch.audience,
            "segments": launch.segments,
            "rows": launch.rows,
            "dropped": dict(launch.dropped),
        }
        tell(context, self, facts)
        return facts

    def _freeze(self, context: Context, book: Ledger, folder: CampaignFolder) -> Launch:
        from sendoff.launch import prepare_launch
        from sendoff_airflow.stores import warehouse

        run = context["dag_run"]
        return prepare_launch(
            book,
            folder,
            period=period_of(context, folder.campaign),
            warehouses=warehouse,
            resend=int(self.resend),
            reason=self.reason or None,
            who=run.triggering_user_name or f"{run.run_type} run {run.run_id}",
            size_limit=_number(self.size_limit),
            due_at=run.run_after,
        )

    def _look(self, context: Context, book: Ledger, folder: CampaignFolder) -> None:
        from sendoff.preview import preview
        from sendoff_airflow.stores import warehouse

        seen = preview(
            folder,
            period=period_of(context, folder.campaign),
            warehouses=warehouse,
            ledger=book,
            size_limit=_number(self.size_limit),
            due_at=context["dag_run"].run_after,
        )
        counts = _counts(seen)
        context["ti"].xcom_push("preview", counts)
        for name, count in counts.items():
            self.log.info("%s: %s", name, count)
        raise AirflowSkipException("a dry run: nothing was frozen, and nothing is sent")


def _counts(seen: Preview) -> dict[str, Any]:
    values = seen.to_json()
    return {name: values[name] for name in SHOWN}


def _number(value: int | str | None) -> int | None:
    return int(value) if value else None  # a template gives a text, empty where there is no number


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
        from sendoff.preview import preview_of
        from sendoff_airflow.hook import rate_of
        from sendoff_airflow.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            rate = rate_of(book.launches.get(self.launch_key).connection)
            seen = preview_of(book, self.launch_key, rate=rate)
        for warning in seen.warnings:
            self.log.warning("%s", warning)
        return _counts(seen)


class DispatchOperator(BaseOperator):
    """Send the planned dispatches of a launch, each once, until none is left.

    Any number of these may work through one launch at once: map the operator over ``worker`` for more requests at a
    time. Retries are safe: they go on with what is still planned. While it is too early, for a send window, a rate
    limit or the next wave, the task waits in the triggerer, which takes no worker and no retry.

    Returns how many dispatches this one saw ``accepted``, ``refused`` and ``in_doubt`` since it last waited. It fails
    for good where the service refused a dispatch, after the others were made. A launch that became too late is stopped:
    the task is done without sending what was still planned, and the report counts these people as not sent.

    :param launch_key: the launch, as BuildAudienceOperator returned it (templated)
    :param worker: tells mapped tasks apart in the ledger
    """

    template_fields: Sequence[str] = ("launch_key",)
    way: ClassVar[str]
    other: ClassVar[str]

    def __init__(
        self,
        *,
        launch_key: str,
        worker: int = 1,
        sendoff_conn_id: str = SERVICE,
        ledger_conn_id: str = LEDGER,
        receiver_conn_id: str = RECEIVER,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.worker = worker
        self.sendoff_conn_id = sendoff_conn_id
        self.ledger_conn_id = ledger_conn_id
        self.receiver_conn_id = receiver_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, int]:
        """Work until nothing is planned any more."""
        return self._work(context)

    @explained
    def go_on(self, context: Context, event: Any = None) -> dict[str, int]:  # noqa: ARG002
        """Work on after waiting in the triggerer."""
        return self._work(context)

    def _work(self, context: Context) -> dict[str, int]:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        from sendoff.dispatch import check_refusals, work
        from sendoff_airflow.hook import SendoffHook
        from sendoff_airflow.stores import addresses, ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            self._check_way(book)
            sender = SendoffHook(self.sendoff_conn_id).sender(addresses(self.receiver_conn_id))
            try:
                tally = work(book, self.launch_key, sender, worker=_worker(context, self.worker))
            except NotYetError as early:
                self.log.info("%s; waiting until %s", early, early.until)
                until = early.until
            else:
                check_refusals(book, self.launch_key)
                return asdict(tally)
        raise TaskDeferred(trigger=DateTimeTrigger(moment=until), method_name="go_on")

    def _check_way(self, book: Ledger) -> None:
        from sendoff.campaign import Campaign

        launch = book.launches.get(self.launch_key)
        if Campaign.frozen(launch.definition).way != self.way:
            raise CampaignError(
                f"campaign {launch.campaign}: {type(self).__name__} is not for it; use {self.other}"
            )


class CreateCampaignOperator(DispatchOperator):
    """Send a launch whose campaign has content of its own: a campaign of the service for each segment.

    All else is as with DispatchOperator.
    """

    way = "create"
    other = "ExecuteCampaignOperator: the campaign executes a template"


class ExecuteCampaignOperator(DispatchOperator):
    """Send a launch whose campaign executes a template: an execution for each segment, with its people's own values.

    All else is as with DispatchOperator.
    """

    way = "execute"
    other = "CreateCampaignOperator: the campaign has content of its own"


def _worker(context: Context, number: int) -> str:
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{number}/try {ti.try_number}"


class LaunchedOperator(BaseOperator):
    """Tell that every dispatch of a launch was made, in one asset event however many workers made them.

    Returns the number of dispatches by state. While one waits or is in flight, as after a worker was killed, it is to
    be tried again.

    :param launch_key: the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, *, launch_key: str, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, int]:
        """Count the dispatches."""
        from sendoff.dispatch import check_all_made
        from sendoff_airflow.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            check_all_made(book, self.launch_key)
            states = book.dispatches.states(self.launch_key)
        tell(context, self, {"launch_key": self.launch_key, "dispatches": states})
        return states


class ReconcileOperator(BaseOperator):
    """Give everybody of a launch a verdict, store the report, and print it into the task's log.

    Returns ``launch_key``, ``audience``, ``verdicts`` and ``anomalies`` (counts), and the path of the ``picture`` where
    one was asked for. May run any number of times: each report replaces the one before.

    :param launch_key: the launch (templated)
    :param pictures: a folder for the picture of the report, on a disk that the worker can write (templated)
    """

    template_fields: Sequence[str] = ("launch_key", "pictures")

    def __init__(
        self,
        *,
        launch_key: str,
        pictures: str | None = None,
        ledger_conn_id: str = LEDGER,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.pictures = pictures
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, Any]:
        """Reconcile once."""
        from sendoff.reconcile import reconcile
        from sendoff.report import as_picture, as_text
        from sendoff_airflow.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            figures = reconcile(book, self.launch_key)
            launch = book.launches.get(self.launch_key)
            by = [each.who for each in book.decisions.of_launch(self.launch_key) if each.kind == launch.state]
        self.log.info("\n%s", as_text(figures))
        if launch.state != "released":
            state = " by ".join([launch.state, *by[-1:]])
            self.log.warning("launch %s is %s: what is planned is not sent", self.launch_key, state)
        facts: dict[str, Any] = {
            "launch_key": figures.launch_key,
            "state": launch.state,
            "audience": figures.audience,
            "verdicts": dict(figures.verdicts),
            "anomalies": dict(figures.anomalies),
        }
        tell(context, self, facts)
        if self.pictures:
            picture = Path(self.pictures) / f"{figures.campaign}-{figures.launch_key}.png"
            facts["picture"] = str(as_picture(figures, picture))
        return facts


class ReconcileChangedOperator(BaseOperator):
    """Reconcile every launch with post-backs that its newest report does not count.

    Returns the number of launches ``reconciled``. Their reports are in the ledger: ``sendoff report LAUNCH`` shows one.
    """

    def __init__(self, *, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Fold what came in, and reconcile where that changes something."""
        from sendoff.fold import fold
        from sendoff.reconcile import reconcile
        from sendoff_airflow.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            fold(book)
            changed = book.verdicts.changed()
            for launch_key in changed:
                figures = reconcile(book, launch_key)
                self.log.info("launch %s of %s: %s", launch_key, figures.campaign, dict(figures.verdicts))
        return {"reconciled": len(changed)}


class CheckSilenceOperator(BaseOperator):
    """Fail once where post-backs that should have come begin to stay away, and succeed again while nothing changes.

    What failed is not tried again: the ledger has noted the change by then. Returns the number of changes to the better
    as ``restored``; ``sendoff silence`` says how everything stands.
    """

    def __init__(self, *, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Hold what should have come against what came."""
        from sendoff.silence import check_silence
        from sendoff_airflow.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            changes = check_silence(book)
        for change in changes:
            self.log.log(logging.ERROR if change.is_alarm else logging.INFO, "%s", change)
        if alarms := [str(change) for change in changes if change.is_alarm]:
            raise AirflowFailException("; ".join(alarms))
        return {"restored": len(changes)}
