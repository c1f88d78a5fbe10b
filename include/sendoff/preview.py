"""What a launch would be, without sending anything: its counts, its requests, its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import Engine

from sendoff.audience import Audience
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.identifiers import Identifiers
from sendoff.launch import read_audience, segments_of
from sendoff.period import Period
from sendoff.postbacks import PostBackAddresses
from sendoff.wire import FieldNames, Targeting, create_body, execute_body

_SHOWN_IDENTIFIERS = 3


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
    segments = Counter(edition for edition, _ in segments_of(campaign, audience))
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
        segments=segments.total(),
        segment_size=campaign.segment_size,
        request=_sample(campaign, audience, next(iter(segments), None), names or FieldNames()),
    )


def _sample(campaign: Campaign, audience: Audience, edition: str | None, names: FieldNames) -> dict[str, Any]:
    """Give the request for the first few of an audience, without post-back addresses or credentials."""
    people = Targeting(audience.identified_by, _first_few(audience.identifiers))
    nowhere = PostBackAddresses()
    if campaign.template:
        body = execute_body(campaign, targeting=people, post_backs=nowhere, names=names)
    else:
        content = campaign.edition(edition) if edition else campaign
        body = create_body(content, title=campaign.title, targeting=people, post_backs=nowhere, names=names)
    request: dict[str, Any] = orjson.loads(body)
    return request


def _first_few(identifiers: Identifiers) -> Identifiers:
    for few in identifiers.slices(_SHOWN_IDENTIFIERS):
        return few
    return identifiers
