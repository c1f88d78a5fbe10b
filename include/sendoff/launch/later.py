"""Messages that the service sends later, whatever happens to their launch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sendoff.campaign import Campaign, Once, Recurring, Triggered, Variation
from sendoff.ledger import LaunchRecord, Ledger


@dataclass(frozen=True, slots=True)
class HeldByService:
    """Accepted requests whose messages the service sends later."""

    time_zone: str | None  # of their recipients, if each zone is sent separately
    recipients: int  # 0 if the service chooses them
    sends_at: datetime | None  # at the latest; None: repeatedly
    campaign_ids: Sequence[int]  # in the service, as far as they are known


def held_by_service(
    ledger: Ledger, launch: LaunchRecord, *, now: datetime | None = None
) -> list[HeldByService]:
    """Return what the service already has of a launch and sends later. Only the service can stop that."""
    moment = now or datetime.now(UTC)
    if launch.sends_at is not None and launch.sends_at <= moment:
        return []
    campaign = Campaign.frozen(launch.definition)
    found = []
    for part in ledger.overview.accepted_parts(launch.launch_key):
        send = campaign.variation(Variation(time_zone=part.time_zone), launch.period.end).send
        at = send.sends_at() if isinstance(send, Once) else launch.sends_at
        end = send.ends_at() if isinstance(send, Recurring | Triggered) else at
        if end is None or end > moment:
            found.append(HeldByService(part.time_zone, part.recipients, at, part.campaign_ids))
    return found
