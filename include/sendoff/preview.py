"""What a launch would be, without sending anything: its counts, its requests, its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sendoff.campaign import CampaignFolder
from sendoff.launch import Warehouses, plan_launch
from sendoff.ledger import Ledger
from sendoff.period import Period
from sendoff.sample import sample_request
from sendoff.wire import FieldNames


@dataclass(frozen=True, slots=True)
class Preview:
    """The figures of a launch that has not been made, and one of its requests with most identifiers left out."""

    campaign: str
    period: str
    rows: int
    dropped: Mapping[str, int]
    audience: int
    groups: Mapping[str, Mapping[str, int]]  # column of the query -> value -> identifiers
    segments: int
    segment_size: int
    request: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Give the preview as JSON values."""
        return asdict(self)


def preview(
    folder: CampaignFolder,
    *,
    period: Period,
    warehouses: Warehouses,
    ledger: Ledger | None = None,
    names: FieldNames | None = None,
) -> Preview:
    """Run a campaign's query and say what a launch for the period would send; nothing is stored or sent.

    Raises QueryError and AudienceError; an audience of nobody is an error.
    """
    plan = plan_launch(ledger, folder, period=period, warehouses=warehouses, now=datetime.now(UTC))
    audience = plan.audience
    return Preview(
        campaign=folder.name,
        period=period.key,
        rows=audience.rows if audience else 0,
        dropped=audience.dropped if audience else {},
        audience=len(audience.identifiers) if audience else 0,
        groups={
            name: {value: len(members) for value, members in sorted(values.items())}
            for name, values in (audience.groups if audience else {}).items()
        },
        segments=len(plan.segments),
        segment_size=plan.campaign.segment_size,
        request=sample_request(
            plan.campaign,
            plan.segments[0],
            identified_by=audience.identified_by if audience else "device_id",
            period_end=period.end,
            names=names,
        ),
    )
