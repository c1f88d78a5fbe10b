from .checks import check_all_sent, check_doubts, check_refusals
from .control import (
    awaited_role,
    awaits_approval,
    doubts,
    how_to_continue,
    pause,
    pause_all,
    reject,
    release,
    release_all,
    resolve,
    resolve_seen,
    resume,
    resume_all,
    stop,
    stop_all,
)
from .lookup import resolve_by_listing
from .request import DEFAULT_REQUESTS_AT_ONCE, MAX_REQUESTS_AT_ONCE, ServiceConnection
from .worker import send_launch

__all__ = [
    "DEFAULT_REQUESTS_AT_ONCE",
    "MAX_REQUESTS_AT_ONCE",
    "ServiceConnection",
    "awaited_role",
    "awaits_approval",
    "check_all_sent",
    "check_doubts",
    "check_refusals",
    "doubts",
    "how_to_continue",
    "pause",
    "pause_all",
    "reject",
    "release",
    "release_all",
    "resolve",
    "resolve_by_listing",
    "resolve_seen",
    "resume",
    "resume_all",
    "send_launch",
    "stop",
    "stop_all",
]
