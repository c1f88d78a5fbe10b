"""The operator that waits between two steps of a journey."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from sendoff.errors import NobodyLeftError, NotYetError
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator


class WaitForStepOperator(LaunchOperator):
    """Wait until some time has passed since a launch was sent, in the triggerer, which takes no worker slot.

    If the period was sent again, the wait begins after the last request of all its launches. Refused requests count as
    sent. The task is skipped if there is no launch, or if the period was sent to no one. If a request of the launch is
    still planned, the task fails so that it is retried. Return the end of the wait.

    :param launch_key: the launch of the earlier step (templated)
    :param wait: how long to wait after the launch was sent
    """

    def __init__(self, *, wait: timedelta, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait = wait

    def pre_execute(self, context: Context) -> None:
        """Skip the task if the earlier step was skipped, or failed before it had a launch."""
        if self.launch_key in ("", "None"):
            raise AirflowSkipException("The earlier step has no launch.")
        super().pre_execute(context)

    @translate_errors
    def execute(self, context: Context) -> str:  # noqa: ARG002
        """Read from the ledger when the period was sent, and wait."""
        from sendoff.dispatch import check_all_sent
        from sendoff.launch import sent_at

        with self.open_ledger() as ledger:
            try:
                check_all_sent(ledger, self.launch_key)
                launch = ledger.launches.get(self.launch_key)
                # A worker of a resend may have been killed.
                for each in ledger.launches.of_period(launch.connection, [launch.campaign], launch.period):
                    ledger.doubts.expire_leases(each.launch_key, datetime.now(UTC))
                due = sent_at(ledger, launch) + self.wait
            except NobodyLeftError as error:
                raise AirflowSkipException(str(error)) from None
            except NotYetError as early:
                self.log.info("%s", early)
                self._look_again_at(early.until)
        if due > datetime.now(UTC):
            self._look_again_at(due)
        return due.isoformat()

    def _look_again_at(self, moment: datetime) -> NoReturn:
        self.log.info("Waiting until %s", moment)
        self.defer(trigger=DateTimeTrigger(moment=moment), method_name="execute_complete")

    def execute_complete(self, context: Context, event: Any = None) -> str:  # noqa: ARG002
        """Continue after the trigger fired. The ledger decides, because the event is untrusted input."""
        return self.execute(context)
