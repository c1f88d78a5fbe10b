"""Sending: the planned requests of a launch are made, each once, and told of when none is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import Context
from airflow.sdk.exceptions import TaskDeferred

from sendoff.errors import CampaignError, NotYetError, RetryableError
from sendoff_airflow import LEDGER, RECEIVER, SERVICE
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import LaunchEventOperator, launch_facts

if TYPE_CHECKING:
    from sendoff.ledger import Launch, Ledger


class DispatchOperator(LaunchEventOperator):
    """Send the planned dispatches of a launch, each once, until none is left.

    Each makes as many requests at a time as its connection says (``requests_at_once``), and any number of these may
    work through one launch at once: map the operator over ``worker`` for more. Retries are safe: they go on with what
    is still planned. While it is too early, for a send window, a rate limit or the next wave, the task waits in the
    triggerer, which takes no worker and no retry. A task that is told to end finishes and records the requests that are
    under way, and is to be tried again.

    Returns how many dispatches this task saw ``accepted``, ``refused`` and ``in_doubt`` since it last waited in the
    triggerer: a task that waited counts only what it sent after that, and ``check_dispatched`` counts the whole launch.
    It fails for good where the service refused a dispatch, after the others were made. A launch that became too late is
    stopped: the task is done without sending what was still planned, and the report counts these people as not sent.

    :param launch_key: the launch, as BuildAudienceOperator returned it (templated)
    :param worker: tells mapped tasks apart in the ledger
    """

    template_fields: Sequence[str] = ("launch_key",)
    send_mode: ClassVar[Literal["create", "execute"]]
    other: ClassVar[str]
    _is_working = False

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

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Work until nothing is planned any more."""
        return self._work(context)

    @translate_errors
    def go_on(self, context: Context, event: Any = None) -> dict[str, int]:  # noqa: ARG002
        """Work on after waiting in the triggerer."""
        return self._work(context)

    def _work(self, context: Context) -> dict[str, int]:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        from sendoff.dispatch import check_refusals, send_launch
        from sendoff_airflow.hooks.ledger import open_ledger
        from sendoff_airflow.hooks.receiver import post_back_signer
        from sendoff_airflow.hooks.service import SendoffHook

        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            launch = self._checked(ledger)
            connection = SendoffHook(self.sendoff_conn_id).service_connection(
                post_back_signer(self.receiver_conn_id)
            )
            try:
                self._is_working = True
                result = send_launch(
                    ledger, self.launch_key, connection, worker=_worker(context, self.worker)
                )
            except NotYetError as early:
                self.log.info("%s; waiting until %s", early, early.until)
                until = early.until
            else:
                check_refusals(ledger, self.launch_key)
                self.emit(context, {**launch_facts(launch), **asdict(result)})
                return asdict(result)
            finally:
                self._is_working = False
        raise TaskDeferred(trigger=DateTimeTrigger(moment=until), method_name="go_on")

    def on_kill(self) -> None:
        """Begin no further request; Airflow calls this while the task works, in the thread that waits for the others.

        It waits five seconds before it kills the process.
        """
        if self._is_working:
            self._is_working = False
            raise RetryableError(
                f"launch {self.launch_key}: the task was told to end before everything was sent"
            )

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the audience to the launch."""
        return openlineage.of_launch("audience", "launch", self.ledger_conn_id, facts)

    def _checked(self, ledger: Ledger) -> Launch:
        """Return the launch. Raise CampaignError if its campaign uses the other send mode."""
        from sendoff.campaign import Campaign

        launch = ledger.launches.get(self.launch_key)
        if Campaign.frozen(launch.definition).send_mode != self.send_mode:
            raise CampaignError(
                f"campaign {launch.campaign}: {type(self).__name__} is not for it; use {self.other}"
            )
        return launch


class CreateCampaignOperator(DispatchOperator):
    """Send a launch whose campaign has content of its own: a campaign of the service for each segment.

    All else is as with DispatchOperator.
    """

    send_mode = "create"
    other = "ExecuteCampaignOperator: the campaign executes a template"


class ExecuteCampaignOperator(DispatchOperator):
    """Send a launch whose campaign executes a template: an execution for each segment, with its people's own values.

    All else is as with DispatchOperator.
    """

    send_mode = "execute"
    other = "CreateCampaignOperator: the campaign has content of its own"


def _worker(context: Context, number: int) -> str:
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{number}/try {ti.try_number}"


class CheckDispatchedOperator(LaunchEventOperator):
    """Tell that every dispatch of a launch was made, in one asset event however many workers made them.

    Returns the number of dispatches by state. While one is in flight, as after a worker was killed, the task waits in
    the triggerer until its lease ends, at most five minutes. While one is planned, the task fails and is to be tried
    again.

    :param launch_key: the launch (templated)
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, *, launch_key: str, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launch_key = launch_key
        self.ledger_conn_id = ledger_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Count the dispatches."""
        return self._count(context)

    @translate_errors
    def go_on(self, context: Context, event: Any = None) -> dict[str, int]:  # noqa: ARG002
        """Count the dispatches after waiting in the triggerer."""
        return self._count(context)

    def _count(self, context: Context) -> dict[str, int]:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        from sendoff.dispatch import check_all_sent
        from sendoff_airflow.hooks.ledger import open_ledger

        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            try:
                check_all_sent(ledger, self.launch_key)
            except NotYetError as early:
                self.log.info("%s; waiting until %s", early, early.until)
                raise TaskDeferred(trigger=DateTimeTrigger(moment=early.until), method_name="go_on") from None
            states = ledger.dispatch_queries.states(self.launch_key)
            launch = ledger.launches.get(self.launch_key)
        self.emit(context, {**launch_facts(launch), "audience": launch.audience, "dispatches": states})
        return states

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the audience to the launch."""
        return openlineage.of_launch("audience", "launch", self.ledger_conn_id, facts)
