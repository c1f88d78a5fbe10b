from .control.audit_log import ALL, Decision, GlobalPause, scope_of
from .control.daily_limits import DailyLimit
from .control.rate_limits import LOOKAHEAD, check_rate
from .erasure.erasures import ErasedPeople, Erasure, Remembered
from .launches.freeze import NewLaunch
from .launches.launch_record import LaunchRecord
from .launches.not_launched import NotLaunched
from .launches.recipient import RecipientStatus
from .ledger import Ledger
from .post_backs.aggregates import AggregatedRun, DispatchContext
from .post_backs.block_format import OPEN, READABLE, SCRUBBED
from .post_backs.post_backs import Parked, PendingRun
from .post_backs.retention import Deleted
from .post_backs.totals import AT_OPENS, ERASED, DispatchTotals
from .requests.claims import Claim
from .requests.dispatch_queries import AttemptRecord, HourSize, Progress, Request, SegmentSize
from .requests.doubts import Doubt, PendingResend
from .results.feed_states import Feed, FeedState
from .results.overview import LaunchFacts, ListedLaunch, Selection
from .results.stats import LaunchDoubts, LedgerStats
from .storage.bulk import column_of, marks, values
from .storage.grants import ROLES, grant_statements
from .storage.private_files import make_private
from .suppression.active_verdicts import LaunchSource
from .suppression.suppressions import Replacement, Suppression, SuppressionChange, SuppressionCount
from .suppression.withheld import by_request_state

__all__ = [
    "ALL",
    "AT_OPENS",
    "ERASED",
    "LOOKAHEAD",
    "OPEN",
    "READABLE",
    "ROLES",
    "SCRUBBED",
    "AggregatedRun",
    "AttemptRecord",
    "Claim",
    "DailyLimit",
    "Decision",
    "Deleted",
    "DispatchContext",
    "DispatchTotals",
    "Doubt",
    "ErasedPeople",
    "Erasure",
    "Feed",
    "FeedState",
    "GlobalPause",
    "HourSize",
    "LaunchDoubts",
    "LaunchFacts",
    "LaunchRecord",
    "LaunchSource",
    "Ledger",
    "LedgerStats",
    "ListedLaunch",
    "NewLaunch",
    "NotLaunched",
    "Parked",
    "PendingResend",
    "PendingRun",
    "Progress",
    "RecipientStatus",
    "Remembered",
    "Replacement",
    "Request",
    "SegmentSize",
    "Selection",
    "Suppression",
    "SuppressionChange",
    "SuppressionCount",
    "by_request_state",
    "check_rate",
    "column_of",
    "grant_statements",
    "make_private",
    "marks",
    "scope_of",
    "values",
]
