"""Campaigns that pass the checks, against the service's own checks of their requests."""

from __future__ import annotations

from messaging_service.campaigns.fields import is_language
from sendoff.campaign.model import campaign_schema


def test_the_languages_of_campaigns_are_those_of_the_service() -> None:
    codes = campaign_schema()["$defs"]["Message"]["properties"]["translations"]["propertyNames"]["enum"]
    assert len(codes) == 183
    assert not [code for code in codes if is_language(code)]
