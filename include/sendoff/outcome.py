"""What one attempt to send came to: the four outcomes of a request that must not be repeated blindly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, slots=True)
class Accepted:
    """The service took the request; ``campaign_id`` is its number for what it made, where it told one."""

    kind: ClassVar[Literal["accepted"]] = "accepted"
    status: int
    campaign_id: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The service said no, and would say no again; ``message`` is an excerpt of its words, without identifiers."""

    kind: ClassVar[Literal["refused"]] = "refused"
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class NotProcessed:
    """Certainly nothing happened, and the same request may be made again.

    ``asks_patience``: the service wants to be called less often; ``retry_after``: its wish in seconds, where it named
    one. ``is_unavailable``: the service failed to issue a token, and may be asked again soon. ``permanent``: it will
    not work before a person changes something, such as a secret.
    """

    kind: ClassVar[Literal["not_processed"]] = "not_processed"
    reason: str
    retry_after: float | None = None
    asks_patience: bool = False
    is_unavailable: bool = False
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Nobody can know whether the service processed the request; it must not be repeated without a decision."""

    kind: ClassVar[Literal["in_doubt"]] = "in_doubt"
    reason: str


Outcome = Accepted | Refused | NotProcessed | InDoubt
