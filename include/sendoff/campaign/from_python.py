"""Campaigns from Python, after the checks of a campaign from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sendoff.campaign.audience_rules import FileExclusion, QueryExclusion
from sendoff.campaign.campaign_folder import CampaignFolder
from sendoff.campaign.defaults import NO_RULES, RULES, rules_for
from sendoff.campaign.model import Campaign, mistakes_in_words, validated
from sendoff.campaign.validation import check_campaign
from sendoff.errors import CampaignError


def campaign_of(given: Campaign | Mapping[str, Any], name: str, *, defaults: Path | None = None) -> Campaign:
    """Return a campaign from Python after the checks of a campaign from a file, with the rules for all campaigns.

    ``given``: the campaign, or a mapping with the fields of ``campaign.yaml``. ``name``: its name in errors.
    ``defaults``: the file with the rules; by default the one that ``SENDOFF_DEFAULTS`` names.

    Raise one CampaignError that lists all mistakes.
    """
    if not isinstance(given, Campaign) and RULES in given:
        raise CampaignError(f"campaign {name}: {NO_RULES}")
    campaign, errors = (given, []) if isinstance(given, Campaign) else validated(given)
    if campaign is None:
        raise CampaignError(mistakes_in_words(f"campaign {name}", errors))
    if found := rules_for(defaults):
        campaign = campaign.replace(rules=found.rules)
    try:
        check_campaign(campaign)
    except CampaignError as error:
        raise CampaignError(f"campaign {name}: {error}") from None
    return campaign


def folder_of(
    given: Campaign | Mapping[str, Any], name: str, *, defaults: Path | None = None
) -> CampaignFolder:
    """Return a campaign from Python as if it had been read from a folder of this name, without an audience.

    The arguments are those of :func:`campaign_of`. Raise one CampaignError that lists all mistakes.
    """
    campaign = campaign_of(given, name, defaults=defaults)
    folder = CampaignFolder("", campaign, None, Path(), rules=rules_for(defaults)).named(name)
    problems = [
        f"audience.exclude: found the file {each.file}. Leave its people out of the audience, or upload them as a list"
        for each in folder.campaign.audience.exclude
        if isinstance(each, QueryExclusion | FileExclusion)
    ]
    if problems:
        raise CampaignError("\n".join(f"campaign {name}: {problem}" for problem in problems))
    return folder


def campaign_from(given: Campaign | Mapping[str, Any], name: str, audience: Any = None) -> CampaignFolder:
    """Return a campaign from Python with its audience, as if both had been read from a folder of this name.

    ``audience``: anything that :func:`~sendoff.warehouse.audience_source` reads; None only if the service chooses the
    recipients.

    Raise one CampaignError that lists all mistakes. Raise AudienceError if ``audience`` cannot be an audience.
    """
    return folder_of(given, name).with_audience(audience)
