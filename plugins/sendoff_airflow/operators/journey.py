"""The operator that waits between two steps of a journey."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import Context

from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator


class WaitForStepOperator(LaunchOperator):
    """Wait until some time has passed since a launch was sent, in the triggerer, which takes no worker slot.

    Return the end of the wait.

    :param launch_key: the launch of the earlier step (templated)
    :param wait: how long to wait after the launch was sent
    """

    def __init__(self, *, wait: timedelta, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait = wait

    @translate_errors
    def execute(self, context: Context) -> str:  # noqa: ARG002
        """Read from the ledger when the launch was sent, and wait."""
        from sendoff.launch import sent_at

        with self.open_ledger() as ledger:
            due = sent_at(ledger, self.launch_key) + self.wait
        if due > datetime.now(UTC):
            self.log.info("This step is due at %s", due)
            self.defer(trigger=DateTimeTrigger(moment=due), method_name="execute_complete")
        return due.isoformat()

    def execute_complete(self, context: Context, event: Any = None) -> str:  # noqa: ARG002
        """Continue after the trigger fired. The ledger decides, because the event is untrusted input."""
        return self.execute(context)
