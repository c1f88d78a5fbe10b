from .build_preview import preview_campaign, preview_launch
from .gates import due_time, lateness
from .journey_steps import sent_at, step_due_at
from .later import HeldByService, held_by_service
from .own_request import NewRequest, prepare_request
from .plan import Plan, prepare_launch
from .plan_inputs import LaunchOptions
from .preview import ExistingLaunch, Preview, Zone
from .reachability import reached_recipients
from .recipient_change import RecipientChange, compare_recipients
from .rendering import Rendering, renderings
from .send_test import MOST_TESTERS, prepare_tests
from .send_times import SendTimes, closed_until, describe_schedule, send_times_of
from .stages import ANSWERED_AFTER, Standing, has_begun, has_gone_out, outlook_of, standing_of, standings
from .suppression_list import (
    MOST_REMOVED,
    NamedRecipients,
    describe_scope,
    end_of,
    recipients_in_csv,
    recipients_of,
    replace_suppressions,
    suppress,
    suppression_scope,
    unsuppress,
)

__all__ = [
    "ANSWERED_AFTER",
    "MOST_REMOVED",
    "MOST_TESTERS",
    "ExistingLaunch",
    "HeldByService",
    "LaunchOptions",
    "NamedRecipients",
    "NewRequest",
    "Plan",
    "Preview",
    "RecipientChange",
    "Rendering",
    "SendTimes",
    "Standing",
    "Zone",
    "closed_until",
    "compare_recipients",
    "describe_schedule",
    "describe_scope",
    "due_time",
    "end_of",
    "has_begun",
    "has_gone_out",
    "held_by_service",
    "lateness",
    "outlook_of",
    "prepare_launch",
    "prepare_request",
    "prepare_tests",
    "preview_campaign",
    "preview_launch",
    "reached_recipients",
    "recipients_in_csv",
    "recipients_of",
    "renderings",
    "replace_suppressions",
    "send_times_of",
    "sent_at",
    "standing_of",
    "standings",
    "step_due_at",
    "suppress",
    "suppression_scope",
    "unsuppress",
]
