"""One launch in the ledger, for people and scripts: send it, decide about it, and read what came of it."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sendoff.app.results import LaunchPreview, Report, Verdicts
from sendoff.arguments import check_flags, check_reason
from sendoff.errors import GateError, LateError, NotYetError
from sendoff.figures import counted, counts_in_words
from sendoff.states import UNFINISHED, DecisionKind, DispatchState, LaunchState

if TYPE_CHECKING:
    from sendoff import ledger
    from sendoff.app.connections import Connections
    from sendoff.campaign import Period

_log = logging.getLogger(__name__)

_MOST_BETWEEN = 30.0  # seconds between two looks at the post-backs


class Launch:
    """A launch in the ledger, from ``prepare``, ``launch`` or ``launches``. Its state is read when asked for.

    ``key``: its key, which campaign and period decide. ``name``: its campaign. ``period``: its period. ``created_at``:
    when it was frozen.
    """

    def __init__(self, connections: Connections, frozen: ledger.LaunchRecord) -> None:
        self._connections = connections
        self.key = frozen.launch_key
        self.name = frozen.campaign
        self.period: Period = frozen.period
        self.created_at = frozen.created_at

    def __repr__(self) -> str:
        requests = counts_in_words(self.requests)
        return f"<launch {self.key[:12]} of {self.name}, period {self.period.key}: {self.state}; requests: {requests}>"

    @property
    def state(self) -> LaunchState:
        """Whether it may send: held, released, paused, rejected or stopped."""
        return LaunchState(self._record.state)

    @property
    def requests(self) -> dict[str, int]:
        """The number of its requests by state, such as planned, accepted, refused and in_doubt."""
        states = self._connections.ledger.dispatch_queries.states(self.key)
        return {str(state): count for state, count in states.items()}

    @property
    def finished_at(self) -> datetime | None:
        """The time of the newest outcome of its requests; None while some of them were not made."""
        queries = self._connections.ledger.dispatch_queries
        if queries.states(self.key).keys() & UNFINISHED:
            return None
        return queries.newest_outcome(self.key)

    @property
    def people(self) -> int | None:
        """The size of its audience, with the holdout; None if the service chooses the recipients."""
        record = self._record
        return None if record.is_chosen_by_service else record.audience

    @property
    def held_out(self) -> int:
        """The size of its holdout: the part of its audience that gets no message, as a control group."""
        return self._connections.ledger.launches.suppressed_sizes(self.key).get("holdout", 0)

    @property
    def awaits_approval(self) -> bool:
        """Whether it is held until a person approves it, as its campaign demands."""
        from sendoff.dispatch import awaits_approval

        return awaits_approval(self._record, self._connections.ledger.audit_log.of_launch(self.key))

    def preview(self) -> LaunchPreview:
        """Return what it sends, to how many people, with its texts and gates."""
        from sendoff.launch import preview_launch

        return LaunchPreview(
            preview_launch(self._connections.ledger, self.key, **self._connections.request_facts())
        )

    def send(self, *, wait: bool = False) -> dict[str, int]:
        """Make its planned requests, each once, until none is left that may be made now. Return :attr:`requests`.

        Several processes may send one launch at the same time, and a call after a crash continues where the last one
        ended. ``wait``: if it is too early, such as outside the send window, between two waves or while it is paused,
        sleep until it is time.

        Without ``wait``, raise NotYetError then, and while another process makes requests. Its ``until`` is the time to
        call again. Raise GateError while a
        person must decide, and if the launch was rejected or stopped. Raise LateError if it became too late,
        RefusedError if the service refused requests, and another RetryableError if the service or the ledger does not
        answer. Interrupting the call, such as with Ctrl-C, first finishes the requests in progress.
        """
        from sendoff.dispatch import check_all_sent, check_refusals, proposal_of, send_launch

        check_flags(wait=wait)
        connection = self._connections.service(self._record.connection)
        self._raise_if_ended("sends nothing more", GateError)
        while True:
            try:
                send_launch(self._connections.ledger, self.key, connection)
                check_all_sent(self._connections.ledger, self.key)
                break
            except GateError as held:
                decisions = self._connections.ledger.audit_log.of_launch(self.key)
                chooses = proposal_of(self._record, decisions) is not None
                argument, option = ("variant=..., ", " --variant NAME") if chooses else ("", "")
                raise GateError(
                    f"{held}. To release it, call launch.release({argument}why=...), or run: "
                    f"sendoff release {self.key[:12]}{option} --why TEXT"
                ) from None
            except NotYetError as early:
                if not wait:
                    raise
                _log.info("%s; waiting until %s", early, early.until)
                time.sleep(max((early.until - datetime.now(UTC)).total_seconds(), 0.0))
        check_refusals(self._connections.ledger, self.key)
        self._raise_if_ended("was not sent completely", LateError)
        return self.requests

    def wait_for_post_backs(self) -> bool:
        """Wait until all recipients engaged, or until no post-back came for ``report.quiet_for`` of the campaign.

        Return False if that did not happen within ``report.at_latest``, and True otherwise. This time counts from when
        the service has sent the launch, if that is later than the call.
        """
        from sendoff.campaign import Campaign
        from sendoff.postbacks import is_settled, until_sent

        timing = Campaign.frozen(self._record.definition).report
        quiet_for = timing.quiet_for.timedelta()
        longest = until_sent(self._connections.ledger, self.key) + timing.at_latest.timedelta()
        deadline = time.monotonic() + longest.total_seconds()
        while not is_settled(self._connections.ledger, self.key, quiet_for=quiet_for):
            if time.monotonic() > deadline:
                return False
            time.sleep(min(quiet_for.total_seconds() / 5, _MOST_BETWEEN))
        return True

    def report(self) -> Report:
        """Reconcile it with the post-backs so far, and return its report, with a comparison of its variants."""
        from sendoff.comparison import comparisons_of
        from sendoff.launch import standing_of
        from sendoff.postbacks import reconcile_launch

        ledger = self._connections.ledger
        figures = reconcile_launch(ledger, self.key)
        return Report(figures, comparisons_of(ledger, figures), standing_of(ledger, self._record).stage)

    def verdicts(self, only: str | None = None) -> Verdicts:
        """Reconcile it, and return a row for each of its people; ``only``: for those with this verdict.

        Each time that the rows are read, the audit log keeps your name and the number of people.
        Raise SettingsError if ``only`` is not a verdict.
        """
        from sendoff.postbacks import reconcile_launch
        from sendoff.report import VerdictRows, verdict_named

        verdict = None if only is None else verdict_named(only, "only")
        reconcile_launch(self._connections.ledger, self.key)
        return Verdicts(
            VerdictRows.of(self._connections.ledger, self.key, verdict, who=self._connections.who)
        )

    def why(self, identifier: int | str) -> str:
        """Return one person's part in it as a sentence: why they were left out, or their segment and verdict.

        ``identifier``: the person's identifier in its query. The verdict is that of the newest report. Raise
        AudienceError if it is of another type than those of the query.
        """
        return str(self._connections.ledger.launches.recipient(self.key, identifier))

    def release(self, why: str, *, without_approval: bool = False, variant: str | None = None) -> None:
        """Release it while it is held, so that it may be sent. The audit log keeps your name and ``why``.

        ``without_approval``: release it even if a role must approve it in Airflow. ``variant``: the variant that the
        rest gets, if the launch waits for a person to choose it. Raise GateError if it is not held, or if the approval
        or the variant is missing. If it waited for its approval longer than ``approval.within``, reject it and raise
        GateError.
        """
        from sendoff.dispatch import release

        release(*self._decision(why), without_approval=without_approval, variant=variant)

    def reject(self, why: str) -> None:
        """Reject it while it is held: it is never sent. The audit log keeps your name and ``why``.

        Raise GateError if it is not held.
        """
        from sendoff.dispatch import reject

        reject(*self._decision(why))

    def pause(self, why: str) -> None:
        """Pause it while it is released: no further request is made until :meth:`resume`.

        The audit log keeps your name and ``why``. Raise GateError if it is not released.
        """
        from sendoff.dispatch import pause

        pause(*self._decision(why))

    def resume(self, why: str) -> None:
        """Resume it while it is paused, and call :meth:`send` unless another process still sends it.

        The audit log keeps your name and ``why``. Raise GateError if it is not paused.
        """
        from sendoff.dispatch import resume

        resume(*self._decision(why))

    def stop(self, why: str) -> None:
        """Stop it for good while it is held, released or paused: no further request is ever made.

        Requests that the service accepted are not taken back. The audit log keeps your name and ``why``. Raise
        GateError if it is rejected or stopped already.
        """
        from sendoff.dispatch import stop

        stop(*self._decision(why))

    @property
    def _record(self) -> ledger.LaunchRecord:
        return self._connections.ledger.launches.get(self.key)

    def _decision(self, why: str) -> tuple[ledger.Ledger, str, str, str]:
        """Return the first arguments of a decision about it. Raise UsageError if the reason is blank."""
        check_reason(why)
        return self._connections.ledger, self.key, self._connections.who, why

    def _raise_if_ended(self, what: str, kind: type[GateError | LateError]) -> None:
        """Raise an error if it was rejected or stopped and some of its requests were never made."""
        from sendoff.dispatch import newest_of

        state, unsent = self.state, self.requests.get(DispatchState.PLANNED, 0)
        if state.is_final and unsent:
            ended = newest_of(
                self._connections.ledger.audit_log.of_launch(self.key),
                DecisionKind.REJECTED,
                DecisionKind.STOPPED,
            )
            assert ended is not None
            why = f" by {ended.who}: {ended.why}" if ended.why else f" by {ended.who}"
            raise kind(
                f"launch {self.key} {what}: it was {state}{why}. {counted(unsent, 'request')} will never be made"
            )
