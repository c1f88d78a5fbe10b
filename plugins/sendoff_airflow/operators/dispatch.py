"""The operators that send a launch: make its planned requests, each once, and report when all of them were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import TaskDeferred

from sendoff.errors import CampaignError, GateError, NotYetError
from sendoff_airflow import RECEIVER, SERVICE
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import LaunchOperator, OneCampaignOperator
from sendoff_airflow.lineage import openlineage
from sendoff_airflow.operators.assets import LaunchEventOperator, launch_facts
from sendoff_airflow.operators.own_request import RequestBody, default_key, fate_of, period_of_request
from sendoff_airflow.operators.preparation import PreparingOperator, name_of
from sendoff_airflow.period import displaced_run

if TYPE_CHECKING:
    from sendoff.campaign import Campaign
    from sendoff.launch import LaunchOptions
    from sendoff.ledger import LaunchRecord, Ledger


class DispatchOperator(PreparingOperator, OneCampaignOperator):
    """Make the planned requests of a launch, each once, until none is left.

    Use CreateCampaignOperator or ExecuteCampaignOperator. This is what they have in common, and cannot run by itself.

    The launch is the one of ``launch_key``. With ``campaign`` and ``audience`` instead, the task first finds or creates
    the launch of the run's period, as BuildAudienceOperator does, and checks at the end that every request was made.
    A retry, a second run of the period and a task that waited continue with the same launch, and read no audience
    again. The task fails without retry if the campaign needs approval: approve the launch, then clear the task. The
    XCom ``launch_key`` is the key, for later tasks.

    With ``body``, the task sends this request as it is written, once for each ``request_key``. It fails without a retry
    if the key is taken by another request, or if the answer is lost and the request is in doubt.

    The connection sets how many requests a task makes at the same time (``requests_at_once``). Several tasks can work
    on one launch: map the operator over ``worker``. Retries are safe, because they continue with the requests that are
    still planned. If it is too early for a send window, a rate limit or the next wave, the task waits in the triggerer.
    This takes no worker slot and no retry. If Airflow ends the task, it first finishes and records its current
    requests, then fails so that it is retried.

    If the service refuses a request, the task makes the others and then fails without retry. If the launch becomes too
    late, it is stopped: the task succeeds without sending the rest, and the report counts these people as not sent.

    Return the number of requests that were ``accepted``, ``refused`` and ``in_doubt`` since the task last waited in the
    triggerer. CheckDispatchedOperator counts those of the whole launch. With ``body``, return the state of its request.

    :param launch_key: the launch, as returned by BuildAudienceOperator; leave it out with ``campaign`` or ``body``
        (templated)
    :param body: the JSON of a request of your own, as a mapping or as text, or the output of another task. Airflow
        shows only the names of its members (templated)
    :param request_key: the name of that request, which must not identify a person; default: the DAG, task, logical date
        and map index (templated)
    :param worker: a number that distinguishes mapped tasks in the ledger
    :param sendoff_conn_id: the connection of the messaging service; default: the campaign's (templated)
    :param only_campaign: the name of a campaign, or its names: fail if the launch belongs to another one; default: take
        any launch
    """

    template_fields: Sequence[str] = (
        "launch_key",
        "body",
        "request_key",
        *PreparingOperator.template_fields,
        "sendoff_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **PreparingOperator.template_fields_renderers,
        "body": "json",
    }
    send_mode: ClassVar[Literal["create", "execute"]]
    other: ClassVar[str]

    def __init__(  # noqa: PLR0913 - an interface for users
        self,
        *,
        launch_key: str | None = None,
        body: Any = None,
        request_key: str | None = None,
        worker: int = 1,
        sendoff_conn_id: str | None = None,
        receiver_conn_id: str = RECEIVER,
        only_campaign: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = {"launch_key": launch_key, "campaign": self.campaign, "body": body}
        found = [name for name, value in given.items() if value is not None]
        if len(found) != 1:
            raise ValueError(
                f"Task {self.task_id}: found {' and '.join(found) or 'none of launch_key, campaign and body'}. Use "
                "launch_key for a launch of another task, campaign to create the launch here, or body for a request of "
                "your own."
            )
        if request_key is not None and body is None:
            raise ValueError(f"Task {self.task_id}: request_key needs body.")
        if self.campaign is None and self.audience is not None:
            raise ValueError(
                f"Task {self.task_id}: audience needs campaign. A launch or a request has its recipients already."
            )
        self.launch_key = launch_key
        self.body = body
        self.request_key = request_key
        self.worker = worker
        self.sendoff_conn_id = sendoff_conn_id
        self.receiver_conn_id = receiver_conn_id
        self.only_campaign = only_campaign

    @property
    def body(self) -> Any:
        """The request of your own as Airflow may show it: without its texts and identifiers."""
        return self._body

    @body.setter
    def body(self, given: Any) -> None:
        is_hidden = given is None or isinstance(given, RequestBody)
        self._body = given if is_hidden else RequestBody(given)

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Make requests until none is planned."""
        if self.campaign is not None and (warning := displaced_run(context)):
            self.log.warning("%s", warning)
        return self.go_on(context)

    @translate_errors
    def go_on(self, context: Context, event: Any = None) -> dict[str, int]:  # noqa: ARG002
        """Find or create the launch and make its requests: at first, and after waiting in the triggerer."""
        from sendoff.campaign import Campaign

        options = self._options()
        with self.open_ledger() as ledger:
            if self.body is not None:
                launch = self._own_request(context, ledger)
                self._work(context, ledger, launch)
                return fate_of(ledger, launch.launch_key)
            if self.launch_key is None:
                return self._work(context, ledger, self._own_launch(context, ledger, options))
            launch = ledger.launches.get(self.launch_key)
            context["ti"].xcom_push("launch_key", launch.launch_key)
            self._check_mode(launch.campaign, Campaign.frozen(launch.definition))
            if self.sendoff_conn_id and self.sendoff_conn_id != launch.connection:
                raise CampaignError(
                    f"Launch {launch.launch_key} was made for the connection {launch.connection}, but "
                    f"sendoff_conn_id is {self.sendoff_conn_id}. Leave it out, or make a new launch of the campaign."
                )
            return self._work(context, ledger, launch)

    def _own_request(self, context: Context, ledger: Ledger) -> LaunchRecord:
        """Find or create the launch of a request of your own. Raise CampaignError if it cannot be sent as it is."""
        from sendoff.launch import NewRequest, prepare_request
        from sendoff_airflow.hooks.service import SendoffHook

        connection = self.sendoff_conn_id or SERVICE
        request = NewRequest(
            body=self.body.value,
            mode=self.send_mode,
            name=name_of(self.dag_id, self.task_id) if self.name is None else str(self.name),
            request_key=default_key(context) if self.request_key is None else str(self.request_key),
            connection=connection,
        )
        names = SendoffHook(connection).fields.field_names
        launch = prepare_request(ledger, request, period=period_of_request(context), names=names)
        context["ti"].xcom_push("launch_key", launch.launch_key)
        context["ti"].xcom_push("campaign", launch.campaign)  # for CampaignLink
        return launch

    def _own_launch(self, context: Context, ledger: Ledger, options: LaunchOptions) -> LaunchRecord:
        """Find or create the launch of this run. Raise GateError if it waits for an approval."""
        from sendoff.dispatch import awaits_approval

        folder = self._campaign_folder(context)
        self._check_mode(folder.name, folder.campaign)
        launch = self._prepared(context, ledger, folder, options)
        key = launch.launch_key
        context["ti"].xcom_push("launch_key", key)
        context["ti"].xcom_push("campaign", launch.campaign)  # for CampaignLink
        if awaits_approval(launch, ledger.audit_log.of_launch(key)):
            raise GateError(
                f"Launch {key} waits for an approval, for which this task does not ask. Approve it with 'sendoff "
                f"release {key}', then clear the task. To ask in Airflow, use BuildAudienceOperator and "
                "ApproveLaunchOperator before this task."
            )
        return launch

    def _work(self, context: Context, ledger: Ledger, launch: LaunchRecord) -> dict[str, int]:
        from sendoff.dispatch import check_all_sent, check_refusals, send_launch
        from sendoff_airflow.hooks.receiver import post_back_signer
        from sendoff_airflow.hooks.service import SendoffHook

        key = launch.launch_key
        connection = SendoffHook(self.sendoff_conn_id or launch.connection).service_connection(
            post_back_signer(self.receiver_conn_id)
        )
        try:
            with self.at_work(key):
                result = send_launch(ledger, key, connection, worker=_worker(context, self.worker))
            if self.launch_key is None:
                check_all_sent(ledger, key)
        except NotYetError as early:
            _wait(self, early)
        check_refusals(ledger, key)
        self.emit(context, {**launch_facts(launch), **asdict(result)})
        return asdict(result)

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage to the launch: from its audience, or from the tables of the campaign's queries."""
        if self._source:
            return openlineage.of_audience(self._source, self.ledger_conn_id, facts, "launch")
        source = "audience" if self.body is None else None
        return openlineage.of_launch(source, "launch", self.ledger_conn_id, facts)

    def _changes(self) -> dict[str, str | None]:
        return {**super()._changes(), "connection": self.sendoff_conn_id}

    def _check_mode(self, name: str, campaign: Campaign) -> None:
        """Raise CampaignError if a campaign uses the other send mode."""
        if campaign.send_mode != self.send_mode:
            raise CampaignError(
                f"Campaign {name} cannot be sent with {type(self).__name__}. Use {self.other}."
            )


class CreateCampaignOperator(DispatchOperator):
    """Send a launch of a campaign with its own content. Each segment becomes a campaign of the service.

    Everything else works as in DispatchOperator.
    """

    send_mode = "create"
    other = "ExecuteCampaignOperator: the campaign executes a template"


class ExecuteCampaignOperator(DispatchOperator):
    """Send a launch of a campaign that executes a template. Each segment becomes an execution with personal values.

    Everything else works as in DispatchOperator.
    """

    send_mode = "execute"
    other = "CreateCampaignOperator: the campaign has its own content"


def _worker(context: Context, number: int) -> str:
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{number}/try {ti.try_number}"


def _wait(operator: BaseOperator, early: NotYetError) -> NoReturn:
    """Make a task wait in the triggerer, which then calls ``go_on``."""
    from airflow.providers.standard.triggers.temporal import DateTimeTrigger

    operator.log.info("%s; waiting until %s", early, early.until)
    raise TaskDeferred(trigger=DateTimeTrigger(moment=early.until), method_name="go_on") from None


class CheckDispatchedOperator(LaunchOperator, LaunchEventOperator):
    """Check that every request of a launch was made, and emit one asset event, however many workers made them.

    If a request is in flight, for example after a worker was killed, the task waits in the triggerer until its lease
    ends, at most five minutes. If a request is still planned, the task fails so that it is retried.

    Return the number of requests by state.
    """

    @translate_errors
    def execute(self, context: Context) -> dict[str, int]:
        """Count the requests."""
        return self.go_on(context)

    @translate_errors
    def go_on(self, context: Context, event: Any = None) -> dict[str, int]:  # noqa: ARG002
        """Count the requests: at first, and after waiting in the triggerer."""
        from sendoff.dispatch import check_all_sent

        with self.open_ledger() as ledger:
            try:
                check_all_sent(ledger, self.launch_key)
            except NotYetError as early:
                _wait(self, early)
            states = ledger.dispatch_queries.states(self.launch_key)
            launch = ledger.launches.get(self.launch_key)
        self.emit(context, {**launch_facts(launch), "audience": launch.audience, "dispatches": states})
        return states

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage from the audience to the launch."""
        return openlineage.of_launch("audience", "launch", self.ledger_conn_id, facts)
