"""The sensor that waits for post-backs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, conf
from airflow.sdk.exceptions import AirflowFailException

from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator
from sendoff_airflow.triggers import PostBacksQuietTrigger


class PostBacksQuietSensor(LaunchOperator, BaseSensorOperator):
    """Wait until a launch is complete, or until no post-back has come for a while.

    ``timeout`` limits the wait, whether the task is deferrable or not. In the triggerer, it counts from when the
    service has sent the launch, if that is later than the start of the task.

    :param quiet_for: the time without post-backs after which the wait ends
    :param deferrable: wait in the triggerer, which takes no worker slot
    """

    def __init__(
        self,
        *,
        quiet_for: timedelta = timedelta(minutes=15),
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.quiet_for = quiet_for
        self.deferrable = deferrable

    @translate_errors
    def poke(self, context: Context) -> bool:  # noqa: ARG002
        """Check the ledger once."""
        from sendoff.postbacks import is_settled

        with self.open_ledger() as ledger:
            return is_settled(ledger, self.launch_key, quiet_for=self.quiet_for)

    def execute(self, context: Context) -> None:
        """Check once, then wait in the triggerer if the task is deferrable, or here if it is not."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            self.defer(
                trigger=PostBacksQuietTrigger(
                    self.launch_key, self.quiet_for.total_seconds(), self.poke_interval, self.ledger_conn_id
                ),
                method_name="execute_complete",
                timeout=self._until_sent() + timedelta(seconds=self.timeout),
            )

    @translate_errors
    def _until_sent(self) -> timedelta:
        """Return how long it takes until the service has sent the launch."""
        from sendoff.postbacks import until_sent

        with self.open_ledger() as ledger:
            return until_sent(ledger, self.launch_key)

    def execute_complete(self, context: Context, event: Any = None) -> None:  # noqa: ARG002
        """Continue after the trigger fired. Check its event, because it is untrusted input."""
        if not isinstance(event, dict) or event.get("launch_key") != self.launch_key:
            raise AirflowFailException(
                "The trigger's event is for another launch. Clear the task to wait again."
            )
        if problem := event.get("problem"):
            raise AirflowFailException(str(problem))
