"""The ledger: what was meant, tried, sent and returned. Nothing else talks to the ledger database.

SQLite in WAL mode by default, PostgreSQL in production, the same tables on both. Read the modules in the order of a
launch's life: :mod:`~sendoff.ledger.schema`, :mod:`~sendoff.ledger.launches`, :mod:`~sendoff.ledger.claims`,
:mod:`~sendoff.ledger.doubts`, :mod:`~sendoff.ledger.dispatch_queries`, :mod:`~sendoff.ledger.dispatches`,
:mod:`~sendoff.ledger.audit_log`, :mod:`~sendoff.ledger.pauses`, :mod:`~sendoff.ledger.rate_limit`,
:mod:`~sendoff.ledger.suppression_lists`, :mod:`~sendoff.ledger.post_backs`, :mod:`~sendoff.ledger.retention`,
:mod:`~sendoff.ledger.aggregates`, :mod:`~sendoff.ledger.verdicts`, :mod:`~sendoff.ledger.recipient`,
:mod:`~sendoff.ledger.feed_states`, :mod:`~sendoff.ledger.stats`; :mod:`~sendoff.ledger.clock` and
:mod:`~sendoff.ledger.database` are below them all. Each public method is one transaction.
"""

from __future__ import annotations

from sendoff.ledger.aggregates import Origin, Returned, Returns
from sendoff.ledger.audit_log import Decision, Decisions
from sendoff.ledger.claims import Claim
from sendoff.ledger.database import Database
from sendoff.ledger.dispatches import Dispatch, Dispatches
from sendoff.ledger.doubts import Doubt, SentAgain
from sendoff.ledger.feed_states import Silences
from sendoff.ledger.launches import Launches
from sendoff.ledger.pauses import Brake, Brakes
from sendoff.ledger.post_backs import PostBacks
from sendoff.ledger.rate_limit import Rates
from sendoff.ledger.retention import Retention
from sendoff.ledger.stats import Counts
from sendoff.ledger.suppression_lists import Lists
from sendoff.ledger.verdicts import Verdicts

__all__ = ["Brake", "Claim", "Decision", "Dispatch", "Doubt", "Ledger", "Origin", "Returned", "SentAgain"]


class Ledger:
    """The ledger behind one SQLAlchemy URL; raises SettingsError for a URL that cannot be used.

    Every method of its parts raises LedgerUnavailableError while the database does not answer, and
    UnusableLedgerError if a person must correct its address, user, rights or tables.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.launches = Launches(self._database)
        self.dispatches = Dispatches(self._database)
        self.decisions = Decisions(self._database)
        self.brakes = Brakes(self._database)
        self.rates = Rates(self._database)
        self.lists = Lists(self._database)
        self.post_backs = PostBacks(self._database)
        self.returns = Returns(self._database)
        self.retention = Retention(self._database)
        self.verdicts = Verdicts(self._database)
        self.silences = Silences(self._database)
        self.counts = Counts(self._database)

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
