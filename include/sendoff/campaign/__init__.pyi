from .audience_rules import (
    AudienceRules,
    CampaignExclusion,
    Cap,
    Exclusion,
    FileExclusion,
    Holdout,
    ListExclusion,
    Priority,
    QueryExclusion,
    counted_as,
)
from .content import PUSH_LIKE, Channel, Channels, Email, Message, Sms, Translation, Webhook
from .error_messages import campaign_schema
from .field_types import (
    NEVER,
    OWN_ZONE,
    QUERY_ZONE,
    WEEKDAYS,
    FrozenModel,
    describe,
    did_you_mean,
    is_time_zone,
    moment,
)
from .gates import Duration, Rollout, SendWindow
from .lint import advice
from .loader import CampaignFolder, campaign_from, load_campaign
from .model import Campaign, Template, Variation
from .schedule import ApiTrigger, EventTrigger, LocationTrigger, Now, Once, Recurring, Schedule, Triggered
from .targeting import Broadcast, ByConditions, Condition, Conditions, SavedSegments
from .validation import check_campaign
from .yaml_document import storable

__all__ = [
    "NEVER",
    "OWN_ZONE",
    "PUSH_LIKE",
    "QUERY_ZONE",
    "WEEKDAYS",
    "ApiTrigger",
    "AudienceRules",
    "Broadcast",
    "ByConditions",
    "Campaign",
    "CampaignExclusion",
    "CampaignFolder",
    "Cap",
    "Channel",
    "Channels",
    "Condition",
    "Conditions",
    "Duration",
    "Email",
    "EventTrigger",
    "Exclusion",
    "FileExclusion",
    "FrozenModel",
    "Holdout",
    "ListExclusion",
    "LocationTrigger",
    "Message",
    "Now",
    "Once",
    "Priority",
    "QueryExclusion",
    "Recurring",
    "Rollout",
    "SavedSegments",
    "Schedule",
    "SendWindow",
    "Sms",
    "Template",
    "Translation",
    "Triggered",
    "Variation",
    "Webhook",
    "advice",
    "campaign_from",
    "campaign_schema",
    "check_campaign",
    "counted_as",
    "describe",
    "did_you_mean",
    "is_time_zone",
    "load_campaign",
    "moment",
    "storable",
]
