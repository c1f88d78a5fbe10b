"""A sample request of a launch, for people to read, and as a check that the request can be written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import orjson

from sendoff.audience import Segment, first_template_values
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import Campaign
from sendoff.service import mask_template_values
from sendoff.service.wire import FieldNames, PostBackAddresses, Targeting, request_body

_FEW = 3  # identifiers


def sample_request(
    campaign: Campaign,
    segment: Segment,
    *,
    identified_by: str,
    period_end: datetime,
    names: FieldNames | None = None,
) -> dict[str, Any]:
    """Return the request for the first few recipients of a segment, without post-back addresses or credentials.

    Template values are replaced by their type, such as ``<text>``. Raise CampaignError if the request cannot be
    written, for example to create a campaign for recipients identified by ``user_id``.
    """
    targeting = None
    if segment.identifiers is not None:
        values = segment.template_values and first_template_values(segment.template_values, _FEW)
        slices: Iterator[Identifiers] = segment.identifiers.slices(_FEW)
        few = next(slices, segment.identifiers)
        targeting = Targeting(identified_by, few, values, lambda _: "an address for each recipient")
    body = request_body(
        campaign.variation(segment.variation, period_end),
        title=campaign.title,
        targeting=targeting,
        post_backs=PostBackAddresses(),
        names=names,
    )
    return mask_template_values(orjson.loads(body), names)
