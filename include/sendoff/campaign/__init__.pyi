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
from .defaults import Setting, defaults_schema
from .difference import Change, Difference, Part, Place, compare_campaigns
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
from .folders import HOUSEKEEPING_DAGS, CheckedFolder, campaign_folders, check_folders, is_campaign_folder
from .gates import Duration, Rollout, SendWindow
from .lint import advice
from .loader import CampaignFolder, campaign_from, campaign_of, is_campaign_name, load_campaign
from .model import Campaign, OwnRequest, Template, Variation
from .runs import last_period
from .schedule import ApiTrigger, EventTrigger, LocationTrigger, Now, Once, Recurring, Schedule, Triggered
from .targeting import Broadcast, ByConditions, Condition, Conditions, SavedSegments
from .validation import check_campaign
from .yaml_document import storable

__all__ = [
    "HOUSEKEEPING_DAGS",
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
    "Change",
    "Channel",
    "Channels",
    "CheckedFolder",
    "Condition",
    "Conditions",
    "Difference",
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
    "OwnRequest",
    "Part",
    "Place",
    "Priority",
    "QueryExclusion",
    "Recurring",
    "Rollout",
    "SavedSegments",
    "Schedule",
    "SendWindow",
    "Setting",
    "Sms",
    "Template",
    "Translation",
    "Triggered",
    "Variation",
    "Webhook",
    "advice",
    "campaign_folders",
    "campaign_from",
    "campaign_of",
    "campaign_schema",
    "check_campaign",
    "check_folders",
    "compare_campaigns",
    "counted_as",
    "defaults_schema",
    "describe",
    "did_you_mean",
    "is_campaign_folder",
    "is_campaign_name",
    "is_time_zone",
    "last_period",
    "load_campaign",
    "moment",
    "storable",
]
