from .aggregates import AT_OPENS, Fold, Origin, Returned
from .arrow_batches import column_of, marks, values
from .audit_log import Decision
from .claims import Claim
from .doubts import Doubt, SentAgain
from .feed_states import Known, Source
from .gauges import observe
from .grants import ROLES, grant_statements
from .launches import Launch
from .ledger import Ledger
from .pauses import ALL, Brake, scope_of
from .post_backs import OPEN, READABLE, SetAside
from .rate_limit import AHEAD, check_rate
from .recipient import Fate
from .request_log import Recorded, Request
from .retention import Forgotten
from .schema import DISPATCH_STATES, LAUNCH_STATES
from .stats import Counted, Doubted

__all__ = [
    "AHEAD",
    "ALL",
    "AT_OPENS",
    "DISPATCH_STATES",
    "LAUNCH_STATES",
    "OPEN",
    "READABLE",
    "ROLES",
    "Brake",
    "Claim",
    "Counted",
    "Decision",
    "Doubt",
    "Doubted",
    "Fate",
    "Fold",
    "Forgotten",
    "Known",
    "Launch",
    "Ledger",
    "Origin",
    "Recorded",
    "Request",
    "Returned",
    "SentAgain",
    "SetAside",
    "Source",
    "check_rate",
    "column_of",
    "grant_statements",
    "marks",
    "observe",
    "scope_of",
    "values",
]
