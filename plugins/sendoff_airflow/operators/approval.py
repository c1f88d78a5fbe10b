"""PersonQuery people whether a launch may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context

from sendoff.states import LaunchState
from sendoff_airflow import LEDGER
from sendoff_airflow.errors import translate_errors

if TYPE_CHECKING:
    from sendoff.ledger import Launch, Ledger

NOBODY = "nobody answered"


class ApproveLaunchOperator(ApprovalOperator):
    """Ask people whether a launch that its campaign holds may be sent, with the preview as the text of the question.

    Nobody is asked about a launch that needs no approval, or that was decided on before. Silence rejects, after the
    time that the campaign gives unless ``response_timeout`` is given. The decision and its author are kept in the
    ledger, which has the last word: who decides there, while Airflow still asks, has decided, and a later answer
    changes nothing, also where the launch was held again. What follows a rejected launch is skipped.

    Returns ``launch_key``, the ``state`` of the launch and ``who`` answered.

    :param launch_key: the launch (templated)
    :param assigned_users: who may answer, as ApprovalOperator takes them; everybody whom Airflow lets if not given
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, *, launch_key: str, ledger_conn_id: str = LEDGER, **kwargs: Any) -> None:
        super().__init__(**{"subject": "", "defaults": self.REJECT, **kwargs})
        self.launch_key = launch_key
        self.ledger_conn_id = ledger_conn_id

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Ask, where somebody must be asked."""
        from sendoff_airflow.hooks.ledger import open_ledger

        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            launch = ledger.launches.get(self.launch_key)
            if not (asked := _is_open(ledger, launch)):
                self.log.info("launch %s is %s: nobody is asked", launch.launch_key, launch.state)
            else:
                self._write_question(ledger, launch)
        if asked:
            super().execute(context)
        return self._conclude(context, launch, None)

    @translate_errors
    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Keep the answer in the ledger, and go on as the ledger then says."""
        from sendoff_airflow.hooks.ledger import open_ledger

        if "error" in event:
            self.process_trigger_event_error(event)
        self.validate_chosen_options(event["chosen_options"])
        approved = event["chosen_options"] == [self.APPROVE]
        who = (event["responded_by_user"] or {"name": NOBODY})["name"]
        why = f"the answer to run {context['run_id']} of the DAG {context['dag'].dag_id}"
        with closing(open_ledger(self.ledger_conn_id)) as ledger:
            if not _decide(ledger, self.launch_key, "approved" if approved else "rejected", who, why):
                self.log.warning(
                    "launch %s was decided on before %s answered: the ledger has the last word",
                    self.launch_key,
                    who,
                )
            launch = ledger.launches.get(self.launch_key)
        return self._conclude(context, launch, who)

    def _write_question(self, ledger: Ledger, launch: Launch) -> None:
        from sendoff.launch import preview_launch
        from sendoff.report import as_markdown, describe_preview
        from sendoff_airflow.hooks.service import rate_of

        preview = preview_launch(ledger, launch.launch_key, rate=rate_of(launch.connection))
        people = "those whom the service chooses" if preview.people is None else f"{preview.people:,} people"
        self.subject = f"Send {preview.campaign} for {preview.period} to {people}?"
        # Not by XCom, which would keep the campaign's words: this text is made for those who are asked alone.
        self.body = as_markdown(describe_preview(preview))
        self.response_timeout = self.response_timeout or timedelta(seconds=preview.approval.within_seconds)

    def _conclude(self, context: Context, launch: Launch, who: str | None) -> dict[str, Any]:
        facts = {"launch_key": launch.launch_key, "state": launch.state, "who": who}
        if launch.state == LaunchState.REJECTED:
            self.log.warning("launch %s was rejected: it is not sent", launch.launch_key)
            context["ti"].xcom_push("return_value", facts)
            following = context["task"].get_direct_relatives(upstream=False)
            self.skip(ti=context["ti"], tasks=[task for task in following if not task.is_teardown])
        return facts


def _decide(ledger: Ledger, launch_key: str, kind: str, who: str, why: str) -> bool:
    """Keep an answer to the question whether a launch may be sent at all; say whether that was still open.

    A launch that is held for another reason since then, such as a wave, is not what anybody was asked about.
    """
    from sendoff.ledger import Decision

    while True:  # again where something else was noted of the launch meanwhile
        since = ledger.audit_log.newest(launch_key)
        if not _is_open(ledger, ledger.launches.get(launch_key)):
            return False
        if ledger.audit_log.decide(Decision(launch_key, kind, who, why, datetime.now(UTC)), since=since):
            return True


def _is_open(ledger: Ledger, launch: Launch) -> bool:
    from sendoff.dispatch import awaits_approval

    return awaits_approval(launch, ledger.audit_log.of_launch(launch.launch_key))
