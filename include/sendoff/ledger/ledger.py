"""The ledger: what was meant, tried, sent and returned. Nothing else talks to the ledger database.

SQLite in WAL mode by default, PostgreSQL in production, the same tables on both. Read the modules in the order of a
launch's life: :mod:`~sendoff.ledger.schema`, :mod:`~sendoff.ledger.launches`, :mod:`~sendoff.ledger.claims`,
:mod:`~sendoff.ledger.dispatches`, :mod:`~sendoff.ledger.doubts`, :mod:`~sendoff.ledger.dispatch_queries`,
:mod:`~sendoff.ledger.audit_log`, :mod:`~sendoff.ledger.post_backs`, :mod:`~sendoff.ledger.aggregates`,
:mod:`~sendoff.ledger.retention`, :mod:`~sendoff.ledger.verdicts`, :mod:`~sendoff.ledger.recipient`,
:mod:`~sendoff.ledger.feed_states`, :mod:`~sendoff.ledger.stats`. :mod:`~sendoff.ledger.database` and
:mod:`~sendoff.ledger.stored_sets` are below them all. Each public method is one transaction.
"""

from __future__ import annotations

from sendoff.ledger.aggregates import Aggregates
from sendoff.ledger.audit_log import AuditLog, Pauses
from sendoff.ledger.claims import RateLimits
from sendoff.ledger.database import Database
from sendoff.ledger.dispatch_queries import DispatchQueries
from sendoff.ledger.dispatches import Dispatches
from sendoff.ledger.doubts import Doubts
from sendoff.ledger.feed_states import FeedStates
from sendoff.ledger.launches import Launches
from sendoff.ledger.post_backs import PostBacks
from sendoff.ledger.retention import Retention
from sendoff.ledger.stats import Stats
from sendoff.ledger.stored_sets import SuppressionLists
from sendoff.ledger.verdicts import Verdicts


class Ledger:
    """The ledger behind one SQLAlchemy URL; raises SettingsError for a URL that cannot be used.

    Every method of its parts raises LedgerUnavailableError while the database does not answer, and
    UnusableLedgerError if a person must correct its address, user, rights or tables.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.launches = Launches(self._database)
        self.dispatches = Dispatches(self._database)
        self.dispatch_queries = DispatchQueries(self._database)
        self.doubts = Doubts(self._database)
        self.audit_log = AuditLog(self._database)
        self.pauses = Pauses(self._database)
        self.rate_limits = RateLimits(self._database)
        self.suppression_lists = SuppressionLists(self._database)
        self.post_backs = PostBacks(self._database)
        self.aggregates = Aggregates(self._database)
        self.retention = Retention(self._database)
        self.verdicts = Verdicts(self._database)
        self.feed_states = FeedStates(self._database)
        self.stats = Stats(self._database)

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._database.name

    def migrate(self) -> None:
        """Bring the tables to the newest form; safe to repeat."""
        self._database.migrate()

    def ping(self) -> None:
        """Return if the ledger can be written, else raise LedgerUnavailableError or UnusableLedgerError."""
        self._database.ping()

    def close(self) -> None:
        """Close every connection of this process."""
        self._database.close()
