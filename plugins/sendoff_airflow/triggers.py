"""The trigger that waits for post-backs without a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from sendoff.errors import RetryableError, SendoffError

if TYPE_CHECKING:
    from sendoff.ledger import Ledger


class PostBacksQuietTrigger(BaseTrigger):
    """Fire when a launch is quiet or complete, or when the ledger raises an error that a retry cannot help.

    Airflow stores the arguments in its database, so they are ids and seconds, never secrets. The event is
    ``{"launch_key": ...}``, with a ``problem`` if there is one.
    """

    def __init__(self, launch_key: str, quiet_for: float, poll_interval: float, ledger_conn_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launch_key = launch_key
        self.quiet_for = quiet_for
        self.poll_interval = poll_interval
        self.ledger_conn_id = ledger_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments to create this trigger in another process."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "launch_key": self.launch_key,
                "quiet_for": self.quiet_for,
                "poll_interval": self.poll_interval,
                "ledger_conn_id": self.ledger_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check the ledger repeatedly in a thread. The task's time-out ends this if nothing else does."""
        event = {"launch_key": self.launch_key}
        try:
            with closing(await asyncio.to_thread(self._open_ledger)) as ledger:
                logged: list[str] = []
                while not await asyncio.to_thread(self._is_settled, ledger):
                    if (steps := await asyncio.to_thread(self._next_steps, ledger)) != logged:
                        logged = steps
                        for step in steps:
                            self.log.warning("%s", step)
                    await asyncio.sleep(self.poll_interval)
        except SendoffError as error:
            event["problem"] = str(error)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    # These three run in a thread, imports included: all triggers share the one event loop.

    def _open_ledger(self) -> Ledger:
        from sendoff_airflow.hooks.ledger import open_ledger

        return open_ledger(self.ledger_conn_id)

    def _is_settled(self, ledger: Ledger) -> bool:
        from sendoff.postbacks import is_settled

        try:
            return is_settled(ledger, self.launch_key, quiet_for=timedelta(seconds=self.quiet_for))
        except RetryableError as error:
            self.log.warning("launch %s: %s; trying again", self.launch_key, error)
            return False

    def _next_steps(self, ledger: Ledger) -> list[str]:
        from sendoff.dispatch import how_to_continue

        try:
            return how_to_continue(ledger.doubts.pending_resends(self.launch_key))
        except RetryableError:  # already logged
            return []
