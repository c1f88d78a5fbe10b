"""The states of launches and requests, and what a report concludes of a recipient.

Each is a string, as the ledger stores it and as JSON carries it.
"""

from __future__ import annotations

from enum import StrEnum


class LaunchState(StrEnum):
    """Whether a launch may send. The audit log says how it came to be so."""

    HELD = "held"
    """Waits for a person: for an approval, or because too many requests failed."""
    RELEASED = "released"
    """May send."""
    PAUSED = "paused"
    """A person paused it, and can resume it."""
    REJECTED = "rejected"
    """A person refused it, or nobody agreed in time. It sends nothing."""
    STOPPED = "stopped"
    """A person stopped it. It sends nothing more."""

    @property
    def is_final(self) -> bool:
        """Whether no decision can make the launch send again."""
        return self in (LaunchState.REJECTED, LaunchState.STOPPED)


class DispatchState(StrEnum):
    """What is known of one request to the service."""

    PLANNED = "planned"
    IN_FLIGHT = "in_flight"
    """A worker sends it, or died while it did."""
    ACCEPTED = "accepted"
    REFUSED = "refused"
    IN_DOUBT = "in_doubt"
    """No answer proves whether the service processed it. It is not sent again without a decision."""
    WRITTEN_OFF = "written_off"
    """A person closed the doubt without an answer."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more is expected of the request. Evidence can still clear a doubt."""
        return self not in (DispatchState.PLANNED, DispatchState.IN_FLIGHT)

    @property
    def is_doubtful(self) -> bool:
        """Whether the service may have processed the request, and nothing proves it."""
        return self in (DispatchState.IN_DOUBT, DispatchState.WRITTEN_OFF)


class OutcomeKind(StrEnum):
    """What one attempt to send a request came to, or what was learned of it later."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOT_PROCESSED = "not_processed"
    """Certainly nothing happened, so the request may be sent again."""
    IN_DOUBT = "in_doubt"
    EVIDENCE = "evidence"
    """A post-back, or the service's list, proved later that the service accepted the request."""


class Verdict(StrEnum):
    """What a report concludes of one recipient, from the most that can be known to the least."""

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
        """Return the verdict as people read it."""
        return self.replace("_", " ")


class PostBackKind(StrEnum):
    """What a post-back reports (service.md, section 6)."""

    DELIVERY = "delivery"
    OPEN = "open"


class FeedHealth(StrEnum):
    """Whether the post-backs of one feed come as they should."""

    AS_EXPECTED = "as expected"
    DEGRADED = "degraded"
    """Far fewer came than usual."""
    SILENT = "silent"
    """None came, and some certainly should have."""
    CANNOT_TELL = "cannot tell"
    """Too little was sent to know. The ledger then keeps the last certain state."""

    @property
    def is_certain(self) -> bool:
        """Whether the ledger stores it."""
        return self is not FeedHealth.CANNOT_TELL
