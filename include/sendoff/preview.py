"""What a launch would be, without sending anything: its counts, its requests, its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Engine

from sendoff.campaign import CampaignFolder
from sendoff.launch import read_audience, segments_of
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
    folder: CampaignFolder, *, period: Period, source: str | Engine, names: FieldNames | None = None
) -> Preview:
    """Run a campaign's query and say what a launch for the period would send; nothing is stored or sent.

    Raises QueryError and AudienceError; an audience of nobody is an error.
    """
    audience = read_audience(folder, period=period, source=source)
    campaign = folder.campaign.resolved(period.end)
    return Preview(
        campaign=folder.name,
        period=period.key,
        rows=audience.rows,
        dropped=audience.dropped,
        audience=len(audience.identifiers),
        groups={
            name: {value: len(members) for value, members in sorted(values.items())}
            for name, values in audience.groups.items()
        },
        segments=sum(1 for _ in segments_of(campaign, audience)),
        segment_size=campaign.segment_size,
        request=sample_request(campaign, audience, names),
    )
