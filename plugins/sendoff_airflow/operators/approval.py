"""The operator that asks people to approve a launch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from sendoff.states import NO_ANSWER, DecisionKind, LaunchState
from sendoff_airflow.errors import translate_errors
from sendoff_airflow.ledger_operator import AskingOperator

if TYPE_CHECKING:
    from sendoff.ledger import LaunchRecord, Ledger

_LONGEST_TITLE = 60  # of a campaign, in the subject of the question


class ApproveLaunchOperator(AskingOperator, ApprovalOperator):
    """Ask people to approve a held launch. The question shows the preview.

    The operator asks no one if the launch needs no approval or was already decided. If no answer comes within the
    campaign's approval time, or within ``response_timeout`` if that is given, the launch is rejected. The ledger keeps
    the decision and who made it. A decision that is made there first is final: a later answer in Airflow changes
    nothing, even if the launch was held again. The tasks after a rejected launch are skipped.

    Return ``launch_key``, the ``state`` of the launch, and ``who`` answered.

    :param assigned_users: the users who may answer, as in ApprovalOperator; default: everyone with rights in Airflow
    :param notifiers: one or more notifiers that tell the approvers, called when the question is asked. Their templates
        may use ``task.subject`` and ``task.deadline``. If one fails, the question still waits
    """

    template_fields: Sequence[str] = ("launch_key",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"subject": "", "defaults": self.REJECT, **kwargs})
        self.deadline = ""  # in words, while the question waits

    @translate_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Ask for approval if the launch still needs it."""
        with self.open_ledger() as ledger:
            launch = ledger.launches.get(self.launch_key)
            if not (asked := _is_open(ledger, launch)):
                self.log.info("launch %s is %s and needs no approval", launch.launch_key, launch.state)
            else:
                self._write_question(ledger, launch)
        if asked:
            with self.asking():
                super().execute(context)
        return self._conclude(context, launch, None)

    @translate_errors
    def execute_complete(
        self, context: Context, event: dict[str, Any], asked_about: str | None = None
    ) -> dict[str, Any]:
        """Store the answer in the ledger and continue according to the state of the launch."""
        self.check_asked(asked_about)
        if "error" in event:
            self.process_trigger_event_error(event)
        self.validate_chosen_options(event["chosen_options"])
        approved = event["chosen_options"] == [self.APPROVE]
        who = (event["responded_by_user"] or {"name": NO_ANSWER})["name"]
        why = f"answered in run {context['run_id']} of the DAG {context['dag'].dag_id}"
        kind = DecisionKind.APPROVED if approved else DecisionKind.REJECTED
        with self.open_ledger() as ledger:
            if not _decide(ledger, self.launch_key, kind, who, why):
                self.log.info(
                    "launch %s was already decided in the ledger; the answer of %s changes nothing",
                    self.launch_key,
                    who,
                )
            launch = ledger.launches.get(self.launch_key)
        return self._conclude(context, launch, who)

    def _write_question(self, ledger: Ledger, launch: LaunchRecord) -> None:
        from sendoff.campaign import Campaign
        from sendoff.launch import preview_launch
        from sendoff.report import as_markdown, describe_preview, recipients_of
        from sendoff_airflow.hooks.service import rate_of

        preview = preview_launch(ledger, launch.launch_key, rate=rate_of(launch.connection))
        title = preview.title
        if len(title) > _LONGEST_TITLE:
            title = f"{title[: _LONGEST_TITLE - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"
        self.subject = f"Send {title} to {recipients_of(preview)}?"
        self.response_timeout = self.response_timeout or timedelta(seconds=preview.approval.within_seconds)
        zone = ZoneInfo(Campaign.frozen(launch.definition).schedule_time_zone)
        answer_by = (datetime.now(UTC) + self.response_timeout).astimezone(zone)
        self.deadline = f"{answer_by:%A %Y-%m-%d %H:%M} {zone}"
        # Not as an XCom, which would store the campaign's message texts. Only the approvers may read them.
        self.body = as_markdown(describe_preview(preview, answer_by=answer_by))

    def _conclude(self, context: Context, launch: LaunchRecord, who: str | None) -> dict[str, Any]:
        facts = {"launch_key": launch.launch_key, "state": launch.state, "who": who}
        if launch.state == LaunchState.REJECTED:
            self.log.warning("launch %s was rejected and will not be sent", launch.launch_key)
            context["ti"].xcom_push("return_value", facts)
            if self.fail_on_reject:
                raise AirflowFailException(f"launch {launch.launch_key} was rejected")
            task = context["task"]
            is_every = self.ignore_downstream_trigger_rules
            relatives = task.get_flat_relatives if is_every else task.get_direct_relatives
            following = relatives(upstream=False)
            self.skip(ti=context["ti"], tasks=[each for each in following if not each.is_teardown])
        return facts


def _decide(ledger: Ledger, launch_key: str, kind: DecisionKind, who: str, why: str) -> bool:
    """Store the answer to an approval. Return False if the launch no longer waits for approval.

    A launch that was held again since then, such as between waves, is not what the question was about.
    """
    from sendoff.ledger import Decision

    while True:  # again if another decision was stored meanwhile
        since = ledger.audit_log.newest(launch_key)
        if not _is_open(ledger, ledger.launches.get(launch_key)):
            return False
        if ledger.audit_log.decide(Decision(launch_key, kind, who, why, datetime.now(UTC)), since=since):
            return True


def _is_open(ledger: Ledger, launch: LaunchRecord) -> bool:
    from sendoff.dispatch import awaits_approval

    return awaits_approval(launch, ledger.audit_log.of_launch(launch.launch_key))
