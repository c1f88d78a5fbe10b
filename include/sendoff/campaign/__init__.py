"""Campaigns: the typed, frozen value, and the folder that it is written in."""

from sendoff.campaign.content import Channel
from sendoff.campaign.loader import CampaignFolder, campaign_schema, load_campaign
from sendoff.campaign.model import Campaign, Edition

__all__ = ["Campaign", "CampaignFolder", "Channel", "Edition", "campaign_schema", "load_campaign"]
