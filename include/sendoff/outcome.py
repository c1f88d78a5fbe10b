"""The four outcomes of a request to the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sendoff.states import OutcomeKind


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
