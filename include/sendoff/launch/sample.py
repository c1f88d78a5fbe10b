"""A sample of a launch's requests: what a person looks at before it is sent, and the proof that it can be written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from sendoff.audience import Segment, first_parameters
from sendoff.audience.identifiers import Identifiers
from sendoff.campaign import Campaign
from sendoff.errors import CampaignError
from sendoff.service import PostBackAddresses, without_own_values
from sendoff.service.wire import FieldNames, Targeting, create_body, execute_body

_SHOWN_IDENTIFIERS = 3


def sample_request(
    campaign: Campaign,
    segment: Segment,
    *,
    identified_by: str,
    period_end: datetime,
    names: FieldNames | None = None,
    reveal: bool = False,
) -> dict[str, Any]:
    """Give the request for the first few of a segment, without post-back addresses or credentials.

    Each person's own values for a template are shown by their type, such as ``<text>``; with ``reveal`` as they are.
    Raises CampaignError where a request for these people cannot be written, such as a campaign that would be created
    for people known by ``user_id``.
    """
    made = campaign.edition(segment.edition, period_end)
    people = _first_few(segment, identified_by)
    nowhere = PostBackAddresses()
    if made.template is None:
        body = create_body(made, title=campaign.title, targeting=people, post_backs=nowhere, names=names)
    elif people is None:
        raise CampaignError("a template is executed for people of a query")
    else:
        body = execute_body(made, targeting=people, post_backs=nowhere, names=names)
    request: dict[str, Any] = orjson.loads(body)
    return request if reveal else without_own_values(request, names)


def _first_few(segment: Segment, identified_by: str) -> Targeting | None:
    if segment.identifiers is None:
        return None
    parameters = segment.parameters and first_parameters(segment.parameters, _SHOWN_IDENTIFIERS)
    return Targeting(identified_by, _first_of(segment.identifiers), parameters)


def _first_of(identifiers: Identifiers) -> Identifiers:
    for few in identifiers.slices(_SHOWN_IDENTIFIERS):
        return few
    return identifiers
