"""A sample request of a launch: a person reads it before the launch is sent, and it proves that it can be written."""

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
    reveal: bool = False,
) -> dict[str, Any]:
    """Return the request for the first few of a segment, without post-back addresses or credentials.

    It shows each recipient's template values by their type, such as ``<text>``, or with ``reveal`` as they are. Raises
    CampaignError if a request for these recipients cannot be written, such as a campaign that would be created for
    people known by ``user_id``.
    """
    targeting = None
    if segment.identifiers is not None:
        values = segment.template_values and first_template_values(segment.template_values, _FEW)
        slices: Iterator[Identifiers] = segment.identifiers.slices(_FEW)
        few = next(slices, segment.identifiers)
        targeting = Targeting(identified_by, few, values)
    body = request_body(
        campaign.variation(segment.variation, period_end),
        title=campaign.title,
        targeting=targeting,
        post_backs=PostBackAddresses(),
        names=names,
    )
    request: dict[str, Any] = orjson.loads(body)
    return request if reveal else mask_template_values(request, names)
