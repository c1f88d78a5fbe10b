"""What must hold before the first request of a launch: each gate says what it saw and what it allows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sendoff.audience import Audience
from sendoff.campaign import Campaign
from sendoff.ledger.launches import Launch


@dataclass(frozen=True, slots=True)
class GateResult:
    """What one gate of a campaign says of a launch: its name in the file, and counts or times, never people."""

    name: str
    is_open: bool
    saw: str
    allowed: str


def gates_of(
    campaign: Campaign,
    *,
    audience: Audience | None,
    people: int | None,
    previous: Launch | None,
    due_at: datetime | None,
    sends_at: datetime | None,
    now: datetime,
) -> tuple[GateResult, ...]:
    """Hold a launch against every gate that its campaign sets.

    ``people``: how many are sent to; None: the service chooses them. ``previous``: the campaign's last launch.
    """
    return ()
