"""Waiting for post-backs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, conf
from airflow.sdk.exceptions import AirflowFailException

from sendoff_airflow import LEDGER
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.triggers import PostBacksQuietTrigger


class PostBacksQuietSensor(BaseSensorOperator):
    """Wait until a launch is complete, or until no post-back has come for a while.

    ``timeout`` bounds the wait with and without ``deferrable``.

    :param launch_key: the launch (templated)
    :param quiet_for: how long nothing must have come
    :param deferrable: wait in the triggerer, which takes no worker slot
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(
        self,
        *,
        launch_key: str,
        quiet_for: timedelta = timedelta(minutes=15),
        ledger_conn_id: str = LEDGER,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.quiet_for = quiet_for
        self.ledger_conn_id = ledger_conn_id
        self.deferrable = deferrable

    @translate_errors
    def poke(self, context: Context) -> bool:  # noqa: ARG002
        """Ask the ledger once."""
        from sendoff.postbacks import is_settled
        from sendoff_airflow.hooks.ledger import open_ledger

        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            return is_settled(ledger, self.launch_key, quiet_for=self.quiet_for)

    def execute(self, context: Context) -> None:
        """Ask once, then wait in the triggerer; or wait here."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            self.defer(
                trigger=PostBacksQuietTrigger(
                    self.launch_key, self.quiet_for.total_seconds(), self.poke_interval, self.ledger_conn_id
                ),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )

    def execute_complete(self, context: Context, event: Any = None) -> None:  # noqa: ARG002
        """Go on after the trigger fired; its event is checked like any input."""
        if not isinstance(event, dict) or event.get("launch_key") != self.launch_key:
            raise AirflowFailException("the trigger's event is not about this launch")
        if problem := event.get("problem"):
            raise AirflowFailException(str(problem))
