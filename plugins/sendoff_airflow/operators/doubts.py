"""The operators that settle requests in doubt, by evidence or by asking people."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context

from sendoff.errors import GateError, RefusedError
from sendoff.figures import counted
from sendoff.states import LaunchState, Resolution
from sendoff_airflow import RECEIVER
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import AskingOperator, LedgerOperator

if TYPE_CHECKING:
    from sendoff.ledger import Doubt, LaunchRecord, Ledger

MAX_LAUNCHES = 20  # in one run


class LaunchesInDoubtOperator(LedgerOperator):
    """Return the keys of at most twenty launches with requests in doubt, the oldest doubts first.

    If there are more, each run chooses twenty at random. So later runs ask about the others, even if no one answers.
    The XCom ``names`` has the campaign and the end of the period of each key, to name mapped tasks.
    """

    @translate_errors
    def execute(self, context: Context) -> list[str]:
        """Settle the requests that post-backs prove, and find the launches with doubts left."""
        from sendoff.dispatch import doubts

        with self.open_ledger() as ledger:
            keys = list(dict.fromkeys(doubt.launch_key for doubt in doubts(ledger)))
            if (total := len(keys)) > MAX_LAUNCHES:
                chosen = random.Random(context["run_id"]).sample(keys, MAX_LAUNCHES)  # noqa: S311
                keys = [key for key in keys if key in chosen]
            launches = [ledger.launches.get(key) for key in keys]
        names = {
            launch.launch_key: f"{launch.campaign}, {launch.period.end:%Y-%m-%d %H:%M} UTC"
            for launch in launches
        }
        context["ti"].xcom_push("names", names)
        if total > len(keys):
            self.log.warning(
                "%d launches are in doubt. This run asks about %d of them, chosen at random", total, len(keys)
            )
        return keys


class ResolveDoubtsOperator(AskingOperator, HITLOperator):
    """Settle the requests of a launch that are in doubt: by post-backs, by the service's list, or by asking people.

    The operator reads the service's list of campaigns if the launch's connection has ``can_list`` set. If no doubt is
    left, it asks no one. One answer applies to all requests in the question, and the audit log keeps it with the user's
    name for each request. Without an answer they stay in doubt. Requests that are planned again are sent when the
    launch is continued: the task's log shows the command.

    Return ``launch_key``, ``resolved`` (the number of requests that the answer settled), ``in_doubt`` (those left) and
    ``who`` answered.

    :param response_timeout: how long to wait for an answer
    :param assigned_users: the users who may answer, as in HITLOperator; default: everyone with rights in Airflow
    :param notifiers: one or more notifiers, called when the question is asked. Their templates may use
        ``task.subject`` and ``task.launch_key``. If one fails, the question still waits
    """

    RESEND = "Resend"
    WRITE_OFF = "Write off"
    LEAVE = "Leave in doubt"

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(
        self,
        *,
        response_timeout: timedelta = timedelta(hours=4),
        receiver_conn_id: str = RECEIVER,
        **kwargs: Any,
    ) -> None:
        options = [self.RESEND, self.WRITE_OFF, self.LEAVE]
        super().__init__(
            subject="",
            options=options,
            defaults=self.LEAVE,
            response_timeout=response_timeout,
            **kwargs,
        )
        self.receiver_conn_id = receiver_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Settle what can be settled automatically, and ask about the rest."""
        from sendoff.dispatch import doubts

        with self.open_ledger() as ledger:
            launch = ledger.launches.get(self.launch_key)
            self._resolve_by_listing(ledger, launch)
            doubtful = doubts(ledger, self.launch_key)
        if not doubtful:
            self.log.info("launch %s: no request is in doubt", self.launch_key)
            return {"launch_key": self.launch_key, "resolved": 0, "in_doubt": 0, "who": None}
        self._write_question(launch, doubtful)
        context["ti"].xcom_push("campaign", launch.campaign)  # for CampaignLink
        # By segment and attempt, not by time: the clocks of the workers that record doubts differ.
        with self.asking(doubts=[[doubt.segment, doubt.attempt] for doubt in doubtful]):
            super().execute(context)
        raise AssertionError("the question was not asked")

    @translate_errors
    def execute_complete(
        self,
        context: Context,
        event: dict[str, Any],
        asked_about: str | None = None,
        doubts: Iterable[Sequence[int]] = (),
    ) -> dict[str, Any]:
        """Apply the answer to each request in the question that is still in doubt."""
        from sendoff.dispatch import doubts as doubts_of
        from sendoff.dispatch import how_to_continue

        if asked_about is None:
            raise GateError(
                "The question was asked by an earlier version of Sendoff. Clear the task to ask again."
            )
        self.check_asked(asked_about)
        if "error" in event:
            self.process_trigger_event_error(event)
        [answer] = event["chosen_options"]
        self.validate_chosen_options([answer])
        user = event["responded_by_user"]
        who = user["name"] if user else None
        of_question = {tuple(doubt) for doubt in doubts}
        with self.open_ledger() as ledger:
            still_open = [
                doubt
                for doubt in doubts_of(ledger, self.launch_key)
                if (doubt.segment, doubt.attempt) in of_question
            ]
            resolved = 0
            if who and answer != self.LEAVE:
                why = f"answered in run {context['run_id']} of the DAG {context['dag'].dag_id}"
                resolved = self._resolve(ledger, still_open, answer, who, why)
            left = len(doubts_of(ledger, self.launch_key))
            steps = how_to_continue(ledger.doubts.pending_resends(self.launch_key))
        self.log.info(
            "launch %s: %s, by %s", self.launch_key, answer.lower(), who or "default: no answer came"
        )
        if resolved and answer == self.RESEND:
            for step in steps:
                self.log.warning("%s", step)
        return {"launch_key": self.launch_key, "resolved": resolved, "in_doubt": left, "who": who}

    def _resolve_by_listing(self, ledger: Ledger, launch: LaunchRecord) -> None:
        from sendoff.dispatch import resolve_by_listing
        from sendoff_airflow.hooks.connections import find_connection
        from sendoff_airflow.hooks.receiver import post_back_signer
        from sendoff_airflow.hooks.service import SendoffHook

        if not find_connection(launch.connection):
            return
        hook = SendoffHook(launch.connection)
        if not hook.fields.can_list:
            return
        try:
            resolve_by_listing(
                ledger, launch.launch_key, hook.service_connection(post_back_signer(self.receiver_conn_id))
            )
        except RefusedError as error:
            self.log.warning("launch %s: its campaigns cannot be listed: %s", launch.launch_key, error)

    def _write_question(self, launch: LaunchRecord, doubtful: Sequence[Doubt]) -> None:
        if is_over := LaunchState(launch.state).is_final:
            self.options = [self.WRITE_OFF, self.LEAVE]
        requests = counted(len(doubtful), "request")
        self.subject = f"{launch.title}: what should happen with {requests} in doubt?"
        # Not as an XCom: only the people who are asked may read it.
        self.body = _question(launch, doubtful, requests, may_send=not is_over)

    def _resolve(self, ledger: Ledger, doubtful: Sequence[Doubt], answer: str, who: str, why: str) -> int:
        from sendoff.dispatch import resolve

        how = Resolution.RESEND if answer == self.RESEND else Resolution.WRITE_OFF
        resolved = 0
        for doubt in doubtful:
            try:
                resolve(ledger, doubt.dispatch_key, how, who, why, now=datetime.now(UTC))
            except GateError as error:  # a post-back or another person was faster
                self.log.warning("%s", error)
            else:
                resolved += 1
        return resolved


def _question(launch: LaunchRecord, doubtful: Sequence[Doubt], requests: str, *, may_send: bool) -> str:
    reasons = Counter(doubt.reason or "unknown" for doubt in doubtful)
    return _QUESTION.format(
        requests=requests,
        launch=launch,
        people=counted(sum(doubt.people for doubt in doubtful), *launch.noun)
        if doubtful[0].people
        else "people chosen by the service",
        since=doubtful[0].since,
        reasons="\n".join(f"| {why.replace('|', '/')} | {count:,} |" for why, count in reasons.most_common()),
        send=_SEND if may_send else f"The launch is {launch.state}, so these requests cannot be sent again.",
    )


_QUESTION = """\
`{launch.campaign}` for {launch.period.key}, launch `{launch.launch_key}`: {requests} to {people} in doubt since
{since:%Y-%m-%d %H:%M} UTC. It is not known whether the service processed them. No post-back shows that it did.

| Why | Requests |
|---|---:|
{reasons}

{send}
- **Write off**: nothing is sent, and Sendoff stops asking. People the service did not send to get no message. They stay
  *in doubt* in the report, unless a post-back shows otherwise.
- **Leave in doubt**: nothing changes. A post-back may still show that the service processed them.
"""
_SEND = """\
- **Resend**: the requests are planned again and sent when the launch is continued. The log of this task then shows
  the command. People the service already sent to get the message twice.\
"""
