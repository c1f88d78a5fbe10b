"""A sample of a launch's requests: what a person looks at before it is sent, and the proof that it can be written."""

from __future__ import annotations

from typing import Any

import orjson

from sendoff.audience import Audience
from sendoff.campaign import Campaign
from sendoff.identifiers import Identifiers
from sendoff.postbacks import PostBackAddresses
from sendoff.wire import FieldNames, Targeting, create_body, execute_body

_SHOWN_IDENTIFIERS = 3


def sample_request(campaign: Campaign, audience: Audience, names: FieldNames | None = None) -> dict[str, Any]:
    """Give the request for the first few of an audience, without post-back addresses or credentials.

    Raises CampaignError where a request for these people cannot be written, such as a campaign that would be created
    for people known by ``user_id``.
    """
    people = Targeting(audience.identified_by, _first_few(audience.identifiers))
    nowhere = PostBackAddresses()
    if campaign.template:
        body = execute_body(campaign, targeting=people, post_backs=nowhere, names=names)
    else:
        editions = campaign.editions()
        content = campaign.edition(editions[0]) if editions else campaign
        body = create_body(content, title=campaign.title, targeting=people, post_backs=nowhere, names=names)
    request: dict[str, Any] = orjson.loads(body)
    return request


def _first_few(identifiers: Identifiers) -> Identifiers:
    for few in identifiers.slices(_SHOWN_IDENTIFIERS):
        return few
    return identifiers
