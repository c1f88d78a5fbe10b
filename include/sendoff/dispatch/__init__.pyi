from .checks import check_all_sent, check_doubts, check_refusals
from .control import (
    awaited_role,
    awaits_approval,
    doubts,
    how_to_continue,
    how_to_send_rest,
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
from .rate_watch import hold_launches_above_limits
from .request import DEFAULT_REQUESTS_AT_ONCE, MAX_REQUESTS_AT_ONCE, ServiceConnection
from .winner import Proposal, proposal_of
from .worker import send_launch

__all__ = [
    "DEFAULT_REQUESTS_AT_ONCE",
    "MAX_REQUESTS_AT_ONCE",
    "Proposal",
    "ServiceConnection",
    "awaited_role",
    "awaits_approval",
    "check_all_sent",
    "check_doubts",
    "check_refusals",
    "doubts",
    "hold_launches_above_limits",
    "how_to_continue",
    "how_to_send_rest",
    "pause",
    "pause_all",
    "proposal_of",
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
