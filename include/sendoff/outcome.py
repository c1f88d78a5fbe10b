"""The four outcomes of a request that must not be repeated blindly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sendoff.states import OutcomeKind


@dataclass(frozen=True, slots=True)
class Accepted:
    """The service accepted the request; ``campaign_id`` is its number for the campaign, if the reply has one."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.ACCEPTED
    status: int
    campaign_id: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The service refused the request, and would again; ``message`` is an excerpt of its message, redacted."""

    kind: ClassVar[OutcomeKind] = OutcomeKind.REFUSED
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class NotProcessed:
    """Certainly nothing happened, and the same request may be sent again.

    ``retry_after``: the service's wish in seconds, if it named one. ``is_rate_limited``: it wants fewer requests.
    ``is_unavailable``: it failed to issue a token, and may be asked again soon. ``is_permanent``: the request will not
    work before a person changes something, such as a secret.
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
