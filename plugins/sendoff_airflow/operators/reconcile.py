"""The operators that reconcile launches, check feed health, and report holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from sendoff.errors import LaunchErrors, SendoffError, SettingsError
from sendoff.states import LaunchState
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator, LedgerOperator, NotifyingOperator
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import LaunchEventOperator, launch_facts
from sendoff_airflow.operators.recipients import campaigns_in
from sendoff_airflow.period import displaced_run
from sendoff_airflow.run_notes import KEY as NOTE
from sendoff_airflow.run_notes import note_of


class ReconcileOperator(LaunchOperator, LaunchEventOperator):
    """Reconcile a launch: assign a verdict to everyone in it, store the report, and write it to the task's log.

    The operator can run any number of times. Each report replaces the one before. Return ``launch_key``, ``state``,
    ``audience``, ``verdicts`` and ``anomalies`` (counts), and the path of the ``picture`` if ``pictures`` is given.

    :param pictures: a folder for the picture of the report, which the worker can write to (templated)
    """

    template_fields: Sequence[str] = ("launch_key", "pictures")

    def __init__(self, *, pictures: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pictures = pictures

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Reconcile once."""
        from sendoff.launch import standing_of
        from sendoff.postbacks import reconcile_launch
        from sendoff.report import as_picture, as_text, describe_launch

        with self.open_ledger() as ledger:
            figures = reconcile_launch(ledger, self.launch_key)
            launch = ledger.launches.get(self.launch_key)
            stage = standing_of(ledger, launch).stage
            decisions = ledger.audit_log.of_launch(self.launch_key)
            by = [decision.who for decision in decisions if str(decision.kind) == launch.state]
        self.log.info("\n%s", as_text(describe_launch(figures, (), stage)))
        if launch.state != LaunchState.RELEASED:
            state = " by ".join([launch.state, *by[-1:]])
            self.log.warning("launch %s is %s: its planned requests are not sent", self.launch_key, state)
        counts = {
            "audience": figures.audience,
            "verdicts": dict(figures.verdicts),
            "anomalies": dict(figures.anomalies),
        }
        self.emit(context, {**launch_facts(launch), **counts})
        context["ti"].xcom_push(
            NOTE, "\n".join(filter(None, [note_of(figures, launch, stage), displaced_run(context)]))
        )
        facts = {"launch_key": launch.launch_key, "state": launch.state, **counts}
        if self.pictures:
            picture = Path(self.pictures) / f"{figures.campaign}-{figures.launch_key}.png"
            facts["picture"] = str(as_picture(figures, picture, launch.title))
        return facts

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the launch to its report."""
        return openlineage.of_launch("launch", "report", self.ledger_conn_id, facts)


class ReconcileChangedOperator(LedgerOperator):
    """Reconcile every launch that changed since its newest report.

    Also hold each launch in progress that exceeds a limit of its gate ``hold_above``, even while it waits. Return the
    number of launches ``reconciled`` and ``held``. The ledger holds their reports: ``sendoff report LAUNCH`` shows one.
    If a launch has a permanent error, the others are still reconciled, and the task fails afterwards.
    """

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Aggregate new post-backs, hold launches above their limits, and reconcile the launches that changed."""
        from sendoff.dispatch import hold_launches_above_limits
        from sendoff.postbacks import aggregate, reconcile_launch

        with self.open_ledger() as ledger:
            ledger.stats.collect_gauges()  # first, because the lag of the aggregation is a metric
            aggregate(ledger)
            errors = LaunchErrors()
            held = hold_launches_above_limits(ledger, now=datetime.now(UTC), errors=errors)
            changed = ledger.verdicts.stale()
            for launch_key in changed:
                with errors.collect(launch_key):
                    figures = reconcile_launch(ledger, launch_key)
                    self.log.info("launch %s of %s: %s", launch_key, figures.campaign, dict(figures.verdicts))
        errors.raise_all()
        return {"reconciled": len(changed), "held": len(held)}


class ReportHoldsOperator(NotifyingOperator):
    """Call the notifiers once for each launch that is held because of its results, and waits for a person.

    Launches that wait for their first approval are left out. The audit log records each report before the notifiers are
    called. If a notifier fails, so does the task, and Airflow does not retry it. Return the number of launches
    ``reported``.

    :param notifiers: one or more notifiers. Their templates may use ``task.launch_key``, and ``task.subject``, which
        has the campaign's title and the reason
    """

    subject = launch_key = ""  # of the launch that is reported

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Report the holds that were not reported yet."""
        with self.open_ledger() as ledger:
            holds = ledger.audit_log.report_holds(datetime.now(UTC))
            for hold in holds:
                self.log.warning("launch %s is held: %s", hold.launch_key, hold.why)
            try:
                launches = [ledger.launches.get(hold.launch_key) for hold in holds if hold.launch_key]
            except SendoffError as error:  # they are recorded as reported, so a retry would find none
                raise AirflowFailException(
                    f"The log above names the launches that are held. No notifier was called: {error}"
                ) from None
        sent = []
        for launch, hold in zip(launches, holds, strict=True):
            self.launch_key, self.subject = launch.launch_key, f"{launch.title} is held: {hold.why}"
            sent += [notify(context) for notify in self.notifiers]
        if not all(sent):
            raise AirflowFailException("A notifier failed. The log above names the launches that are held.")
        return {"reported": len(holds)}


class CheckFeedsOperator(LedgerOperator):
    """Check feed health: fail once when expected post-backs or launches stop. Succeed while nothing changes.

    Airflow does not retry a failure, because the ledger has already recorded the change. Return the number of feeds
    that recovered as ``restored``. ``sendoff feeds`` shows the state of every feed of post-backs. A launch that cannot
    be read and a missing folder of the campaigns fail each run, after all other checks.

    :param campaigns: the folder of the campaigns. The task also fails once when one of them is not launched an hour
        after a period of its schedule, such as because its DAG is paused; default: launches are not checked
    """

    def __init__(self, *, campaigns: str | Path | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.campaigns = None if campaigns is None else str(campaigns)

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:  # noqa: ARG002
        """Compare the expected post-backs and launches with those that the ledger has."""
        from sendoff.campaign import check_folders
        from sendoff.postbacks import check_feeds

        errors, checked, failures = LaunchErrors(), [], []
        if self.campaigns:
            try:
                checked = check_folders([campaigns_in(self.campaigns, self.dag.folder)])
            except SettingsError as error:
                failures.append(str(error))
        for mistake in (mistake for each in checked for mistake in each.mistakes):
            self.log.error("The launches of this campaign are not checked: %s", mistake)
        campaigns = [each.campaign for each in checked if each.campaign and not each.mistakes]
        with self.open_ledger() as ledger:
            changes = check_feeds(ledger, campaigns, errors=errors)
        for change in changes:
            self.log.log(logging.ERROR if change.is_alarm else logging.INFO, "%s", change)
        failures += [*errors.messages, *(str(change) for change in changes if change.is_alarm)]
        if failures:
            raise AirflowFailException("\n".join(failures))
        return {"restored": len(changes)}
