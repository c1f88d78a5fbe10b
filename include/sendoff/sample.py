"""A sample of a launch's requests: what a person looks at before it is sent, and the proof that it can be written."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from sendoff.campaign import Campaign
from sendoff.errors import CampaignError
from sendoff.identifiers import Identifiers
from sendoff.postbacks import PostBackAddresses
from sendoff.segments import Segment
from sendoff.wire import FieldNames, Targeting, create_body, execute_body

_SHOWN_IDENTIFIERS = 3


def sample_request(
    campaign: Campaign,
    segment: Segment,
    *,
    identified_by: str,
    period_end: datetime,
    names: FieldNames | None = None,
) -> dict[str, Any]:
    """Give the request for the first few of a segment, without post-back addresses or credentials.

    Raises CampaignError where a request for these people cannot be written, such as a campaign that would be created
    for people known by ``user_id``.
    """
    made = campaign.edition(segment.edition, period_end)
    people = Targeting(identified_by, _first_few(segment.identifiers)) if segment.identifiers else None
    nowhere = PostBackAddresses()
    if made.template is None:
        body = create_body(made, title=campaign.title, targeting=people, post_backs=nowhere, names=names)
    elif people is None:
        raise CampaignError("a template is executed for people of a query")
    else:
        body = execute_body(made, targeting=people, post_backs=nowhere, names=names)
    request: dict[str, Any] = orjson.loads(body)
    return request


def _first_few(identifiers: Identifiers) -> Identifiers:
    for few in identifiers.slices(_SHOWN_IDENTIFIERS):
        return few
    return identifiers
