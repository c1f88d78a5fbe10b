"""The stages of a launch as operators: each calls one function of the library and returns ids and counts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context

from sendoff_airflow import LEDGER, RECEIVER, SERVICE
from sendoff_airflow.assets import tell
from sendoff_airflow.failures import explained
from sendoff_airflow.period import period_of


class BuildAudienceOperator(BaseOperator):
    """Freeze the audience and the segments of a launch in the ledger.

    Returns ``launch_key``, ``audience``, ``segments``, ``rows`` and ``dropped`` (a count for each reason). A launch
    that the ledger holds already, of this run or of another for the same period, is given back as it was frozen and
    the query does not run again. Each is an XCom of its own as well: ``audience.output["launch_key"]``.

    :param folder: the campaign's folder, with ``campaign.yaml`` and ``audience.sql``
    :param resend: 0, or the number of a deliberate repetition for the same period (templated)
    """

    template_fields: Sequence[str] = ("resend",)

    def __init__(
        self,
        *,
        folder: str | Path,
        resend: int | str = 0,
        ledger_conn_id: str = LEDGER,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"multiple_outputs": True, **kwargs})
        self.folder = str(folder)
        self.resend = resend
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, Any]:
        """Find or make the launch of this run's period."""
        from sendoff.campaign import load_campaign
        from sendoff.launch import prepare_launch
        from sendoff_airflow.stores import ledger, warehouse

        folder = load_campaign(Path(self.folder))
        with closing(ledger(self.ledger_conn_id)) as book:
            launch = prepare_launch(
                book,
                folder,
                period=period_of(context),
                warehouses=warehouse,
                resend=int(self.resend),
            )
        facts = {
            "launch_key": launch.launch_key,
            "audience": launch.audience,
            "segments": launch.segments,
            "rows": launch.rows,
            "dropped": dict(launch.dropped),
        }
        tell(context, self, facts)
        return facts


class CreateCampaignOperator(BaseOperator):
    """Send the planned dispatches of a launch, each once, until none is left.

    Any number of these may work through one launch at once: map the operator over ``worker`` for more requests at a
    time. Returns how many dispatches this one saw ``accepted``, ``refused`` and ``in_doubt``. Retries are safe: they go
    on with what is still planned. It fails for good where the service refused a dispatch, after the others were made.

    :param launch_key: the launch, as BuildAudienceOperator returned it (templated)
    :param worker: tells mapped tasks apart in the ledger
    """

    template_fields: Sequence[str] = ("launch_key",)

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
        from sendoff.dispatch import check_refusals, work
        from sendoff_airflow.hook import SendoffHook
        from sendoff_airflow.stores import addresses, ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            sender = SendoffHook(self.sendoff_conn_id).sender(addresses(self.receiver_conn_id))
            tally = work(book, self.launch_key, sender, worker=_worker(context, self.worker))
            check_refusals(book, self.launch_key)
        return asdict(tally)


class ExecuteCampaignOperator(CreateCampaignOperator):
    """Send the planned dispatches of a launch whose campaign executes a template, an execution for each.

    All else is as with CreateCampaignOperator.
    """


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
        self.log.info("\n%s", as_text(figures))
        facts: dict[str, Any] = {
            "launch_key": figures.launch_key,
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
