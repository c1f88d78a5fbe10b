from .aggregates import AT_OPENS, ERASED, AggregatedRun, DispatchContext, DispatchTotals
from .audit_log import ALL, Decision, GlobalPause, scope_of
from .blocks import OPEN, READABLE, SCRUBBED
from .bulk import column_of, marks, values
from .claims import Claim
from .daily_limits import DailyLimit
from .dispatch_queries import AttemptRecord, Request
from .doubts import Doubt, PendingResend
from .erasures import ErasedPeople, Erasure, Remembered
from .feed_states import Feed, FeedState
from .freeze import NewLaunch
from .grants import ROLES, grant_statements
from .launches import Launch
from .ledger import Ledger
from .not_launched import NotLaunched
from .overview import LaunchFacts, ListedLaunch, Selection
from .post_backs import Parked, PendingRun
from .private_files import make_private
from .rate_limits import LOOKAHEAD, check_rate
from .recipient import RecipientStatus
from .retention import Deleted
from .stats import LaunchDoubts, LedgerStats
from .suppressions import NewSuppression, Replacement, Suppression, SuppressionCount

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
    "Launch",
    "LaunchDoubts",
    "LaunchFacts",
    "Ledger",
    "LedgerStats",
    "ListedLaunch",
    "NewLaunch",
    "NewSuppression",
    "NotLaunched",
    "Parked",
    "PendingResend",
    "PendingRun",
    "RecipientStatus",
    "Remembered",
    "Replacement",
    "Request",
    "Selection",
    "Suppression",
    "SuppressionCount",
    "check_rate",
    "column_of",
    "grant_statements",
    "make_private",
    "marks",
    "scope_of",
    "values",
]
