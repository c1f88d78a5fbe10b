"""The states of launches and requests, the verdicts of reports, other enumerations, and the outcomes of requests.

Each value of an enumeration is a string, as in the ledger and in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class LaunchState(StrEnum):
    """Whether a launch may send. The audit log records how it got into this state."""

    HELD = "held"
    """Waits for a person, either to approve it or because too many requests failed."""
    RELEASED = "released"
    """May send."""
    PAUSED = "paused"
    """A person paused it, and can resume it."""
    REJECTED = "rejected"
    """A person rejected it, or it was not approved in time. It sends nothing."""
    STOPPED = "stopped"
    """A person stopped it. It sends nothing more."""

    @property
    def is_final(self) -> bool:
        """Whether the launch can never send again."""
        return self in (LaunchState.REJECTED, LaunchState.STOPPED)


LIVING = tuple(state for state in LaunchState if not state.is_final)
"""The states of launches that may still send, now or later."""


class Stage(StrEnum):
    """The state of a launch as people see it. :mod:`sendoff.launch.stages` derives it from the ledger."""

    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_DECISION = "waiting_for_a_decision"
    """Too many requests failed, so a person must release or stop it."""
    STUCK = "stuck"
    """It may send, but nothing works on its requests."""
    PAUSED = "paused"
    SENDING = "sending"
    SCHEDULED = "scheduled"
    """It continues by itself at a known time, or the service sends it then."""
    WAITING_FOR_RESPONSES = "waiting_for_responses"
    REPORTED = "reported"
    """Its responses have stopped coming, and there is a report."""
    REFUSED = "refused"
    """The service refused all its requests, or did not process them."""
    STOPPED = "stopped"
    REJECTED = "rejected"
    NOT_LAUNCHED = "not_launched"
    """A gate was closed, so there is no launch."""

    @property
    def label(self) -> str:
        """Return the state in words."""
        return self.replace("_", " ")


class DispatchState(StrEnum):
    """The state of one request to the service."""

    PLANNED = "planned"
    IN_FLIGHT = "in_flight"
    """A worker is sending it, or died while sending."""
    ACCEPTED = "accepted"
    REFUSED = "refused"
    IN_DOUBT = "in_doubt"
    """No reply proves whether the service processed it. It is not sent again without a decision."""
    WRITTEN_OFF = "written_off"
    """The doubt was closed without knowing the result: a person did, or all its recipients are left out by now."""
    SUPPRESSED = "suppressed"
    """All its recipients were to be left out when their turn came, so no request was made."""

    @property
    def is_final(self) -> bool:
        """Whether the request is finished. Evidence can still settle a doubt."""
        return self not in (DispatchState.PLANNED, DispatchState.IN_FLIGHT)


UNFINISHED = tuple(state for state in DispatchState if not state.is_final)
"""The states of requests that are still to be made, or are being made."""


class Resolution(StrEnum):
    """How a person settles a request in doubt."""

    RESEND = "resend"
    WRITE_OFF = "write-off"
    """The request is not sent again, and no one looks any more."""


NO_ANSWER = "no answer in time"
"""The author, in the audit log, of the rejection of a launch that was not approved in time."""


class DecisionKind(StrEnum):
    """What an entry of the audit log decided about a launch, or about all launches."""

    APPROVED = "approved"
    RELEASED = "released"
    REJECTED = "rejected"
    HELD = "held"
    HOLD_REPORTED = "hold_reported"
    """Operators were notified that the launch is held."""
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"
    WAVE = "wave"
    """The next wave is open."""
    WINNER = "winner"
    """The variant for the rest of the launch is decided, and the rest may be sent."""
    GATES = "gates"
    """The results of the gates, when the launch was frozen."""
    RESEND = "resend"
    """The launch sends a period again."""
    RESEND_DISPATCH = "resend_dispatch"
    """A request in doubt is sent again."""
    WRITE_OFF_DISPATCH = "write_off_dispatch"
    """A request in doubt is not sent again, and no one looks any more."""
    SUPPRESSED = "suppressed"
    """Recipients were added to the suppression list, or the entries of a source were replaced."""
    UNSUPPRESSED = "unsuppressed"
    """Recipients were removed from the suppression list."""
    ERASURE_REQUESTED = "erasure_requested"
    """Someone asked to erase people."""
    ERASED = "erased"
    """The people are erased."""
    EXPORTED = "exported"
    """Someone got all that is held about one person, each verdict of a launch, or the suppression list."""
    RECIPIENTS_DELETED = "recipients_deleted"
    """The recipients of the launch were deleted because of its age. Its counts stay."""


class OutcomeKind(StrEnum):
    """The outcome of one attempt to send a request, or later evidence about it."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOT_PROCESSED = "not_processed"
    """The request was certainly not processed, so it may be sent again."""
    IN_DOUBT = "in_doubt"
    EVIDENCE = "evidence"
    """A post-back, or the service's list of campaigns, later proved that the service accepted the request."""


REACHED_NO_ONE = (
    DispatchState.PLANNED,
    DispatchState.REFUSED,
    DispatchState.SUPPRESSED,
    OutcomeKind.NOT_PROCESSED,
)
"""The known results of requests that no recipient can have got."""


class Verdict(StrEnum):
    """A report's conclusion about one recipient, from the most certain to the least."""

    ENGAGED = "engaged"
    DELIVERED = "delivered"
    MISSING = "missing"
    UNKNOWABLE = "unknowable"
    IN_DOUBT = "in_doubt"
    NOT_SENT = "not_sent"

    @property
    def is_observed(self) -> bool:
        """Whether a post-back named the recipient."""
        return self in (Verdict.ENGAGED, Verdict.DELIVERED)

    @property
    def label(self) -> str:
        """Return the verdict in words."""
        return self.replace("_", " ")


class Arm(StrEnum):
    """When recipients get the message if a campaign sends at own hours; recipients without a known hour have no arm."""

    OWN_HOUR = "own_hour"
    CONTROL = "control"
    """At once, although their hour is known."""
    EXPLORE = "explore"
    """At a random hour."""


class PostBackKind(StrEnum):
    """The event that a post-back reports (service.md, section 6)."""

    DELIVERY = "delivery"
    OPEN = "open"


class FeedHealth(StrEnum):
    """Whether the post-backs of one feed arrive as expected."""

    AS_EXPECTED = "as expected"
    DEGRADED = "degraded"
    """Far fewer arrived than usual."""
    SILENT = "silent"
    """None arrived, although some certainly should have."""
    CANNOT_TELL = "cannot tell"
    """Too little was sent to judge. The ledger then keeps the last certain state."""

    @property
    def is_certain(self) -> bool:
        """Whether the state is certain; the ledger stores only certain states."""
        return self is not FeedHealth.CANNOT_TELL


@dataclass(frozen=True, slots=True)
class Accepted:
    """The service accepted the request; ``campaign_id`` is the campaign's ID there, if the reply has one."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.ACCEPTED
    status: int
    campaign_id: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The service refused the request, and would refuse it again; ``message`` is a redacted excerpt of its reply."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.REFUSED
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class NotProcessed:
    """The request was certainly not processed, and may be sent again.

    ``retry_after``: the delay in seconds that the service asked for, if any. ``is_rate_limited``: the service limits
    the rate of requests. ``is_unavailable``: the service failed to issue a token; retry soon. ``is_permanent``: the
    request cannot succeed until a person changes something, such as a secret.
    """

    kind: ClassVar[OutcomeKind] = OutcomeKind.NOT_PROCESSED
    reason: str
    retry_after: float | None = None
    is_rate_limited: bool = False
    is_unavailable: bool = False
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class InDoubt:
    """No answer proves whether the service processed the request; it must not be repeated without a decision."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.IN_DOUBT
    reason: str


Outcome = Accepted | Refused | NotProcessed | InDoubt
