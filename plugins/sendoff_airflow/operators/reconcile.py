"""After sending: everybody gets a verdict, and post-backs that stay away raise an alarm."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from sendoff_airflow import LEDGER
from sendoff_airflow.errors import explained
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import TellingOperator, names_of
from sendoff_airflow.run_notes import KEY as NOTE
from sendoff_airflow.run_notes import note_of


class ReconcileOperator(TellingOperator):
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
        from sendoff.postbacks import reconcile_launch
        from sendoff.report import as_picture, as_text
        from sendoff_airflow.hooks.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            figures = reconcile_launch(book, self.launch_key)
            launch = book.launches.get(self.launch_key)
            by = [each.who for each in book.decisions.of_launch(self.launch_key) if each.kind == launch.state]
        self.log.info("\n%s", as_text(figures))
        if launch.state != "released":
            state = " by ".join([launch.state, *by[-1:]])
            self.log.warning("launch %s is %s: what is planned is not sent", self.launch_key, state)
        counts = {
            "audience": figures.audience,
            "verdicts": dict(figures.verdicts),
            "anomalies": dict(figures.anomalies),
        }
        self.tell(context, {**names_of(launch), **counts})
        context["ti"].xcom_push(NOTE, note_of(figures))
        facts = {"launch_key": launch.launch_key, "state": launch.state, **counts}
        if self.pictures:
            picture = Path(self.pictures) / f"{figures.campaign}-{figures.launch_key}.png"
            facts["picture"] = str(as_picture(figures, picture))
        return facts

    def draw(self, facts: Mapping[str, Any]) -> Any:
        """Draw lineage from the launch to its report."""
        return openlineage.of_launch("launch", "report", self.ledger_conn_id, facts)


class ReconcileChangedOperator(BaseOperator):
    """Reconcile every launch to which something happened that its newest report does not show.

    Returns the number of launches ``reconciled``. Their reports are in the ledger: ``sendoff report LAUNCH`` shows one.
    """

    def __init__(self, *, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    @explained
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Fold what came in, and reconcile where that changes something."""
        from sendoff.ledger import observe
        from sendoff.postbacks import fold, reconcile_launch
        from sendoff_airflow.hooks.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            observe(book)  # first: how far folding lags behind is a metric
            fold(book)
            changed = book.verdicts.changed()
            for launch_key in changed:
                figures = reconcile_launch(book, launch_key)
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
        from sendoff.postbacks import check_silence
        from sendoff_airflow.hooks.stores import ledger

        with closing(ledger(self.ledger_conn_id)) as book:
            changes = check_silence(book)
        for change in changes:
            self.log.log(logging.ERROR if change.is_alarm else logging.INFO, "%s", change)
        if alarms := [str(change) for change in changes if change.is_alarm]:
            raise AirflowFailException("; ".join(alarms))
        return {"restored": len(changes)}
