"""The launches that benchmarks freeze."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period, launch_key
from sendoff.ledger import Ledger, NewLaunch


def freeze(  # noqa: PLR0913 - some have defaults
    ledger: Ledger,
    campaign: Campaign,
    people: Identifiers,
    period: Period,
    at: datetime,
    *,
    name: str = "spring",
    connection: str = "service",
    resend: int = 0,
    **fields: Any,
) -> str:
    """Freeze a launch in segments of the campaign's size, and return its key. ``fields``: others of NewLaunch."""
    key = launch_key(connection, name, period, resend)
    usual: dict[str, Any] = {
        "audience": Audience("device_id", people, len(people), {}, {}),
        "segments": (Segment(part) for part in people.slices(campaign.segment_size)),
        "created_at": at,
        "sends_at": at,
    }
    definition = campaign.model_dump_json()
    ledger.launches.freeze(
        NewLaunch(key, connection, name, period, resend, definition, **{**usual, **fields})
    )
    return key
