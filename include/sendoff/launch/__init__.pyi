from .build_preview import preview_campaign, preview_launch
from .gates import due_time, lateness
from .later import HeldByService, held_by_service
from .own_request import NewRequest, prepare_request
from .plan import LaunchOptions, Plan, plan_launch, prepare_launch
from .preview import ExistingLaunch, Preview, Zone
from .rendering import Rendering, renderings
from .send_times import SendTimes, closed_until, describe_schedule, send_times_of
from .stages import Standing, standing_of, standings

__all__ = [
    "ExistingLaunch",
    "HeldByService",
    "LaunchOptions",
    "NewRequest",
    "Plan",
    "Preview",
    "Rendering",
    "SendTimes",
    "Standing",
    "Zone",
    "closed_until",
    "describe_schedule",
    "due_time",
    "held_by_service",
    "lateness",
    "plan_launch",
    "prepare_launch",
    "prepare_request",
    "preview_campaign",
    "preview_launch",
    "renderings",
    "send_times_of",
    "standing_of",
    "standings",
]
