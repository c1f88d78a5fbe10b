"""The ledger: the record of launches, requests, outcomes, and post-backs. Only this package talks to its database.

The database is SQLite in WAL mode by default and PostgreSQL in production, with the same tables. Each public method is
one transaction. The modules, in the order of a launch's life:

.. code-block:: text

    database ....... schema, migrations, database, bulk, stored_sets, private_files, grants, problems
    launches ....... not_launched, launches, freeze
    recipients ..... suppressions, active_suppressions, uploaded_lists, withheld, recipient
    requests ....... claims, record_and_claim, rate_limits, daily_limits, dispatches, doubts, evidence,
                     dispatch_queries
    decisions ...... audit_log, launch_counts
    post-backs ..... post_backs, blocks, aggregates, retention, feed_states
    results ........ verdicts, comparisons, overview, stats
    erasure ........ erasures, erasure_steps, erasure_state, person
"""

from __future__ import annotations

from sendoff.ledger.aggregates import Aggregates
from sendoff.ledger.audit_log import AuditLog, Pauses
from sendoff.ledger.comparisons import Comparisons
from sendoff.ledger.daily_limits import DailyLimits
from sendoff.ledger.database import Database
from sendoff.ledger.dispatch_queries import DispatchQueries
from sendoff.ledger.dispatches import Dispatches
from sendoff.ledger.doubts import Doubts
from sendoff.ledger.erasures import Erasures
from sendoff.ledger.feed_states import FeedStates
from sendoff.ledger.launch_counts import LaunchCounts
from sendoff.ledger.launches import Launches
from sendoff.ledger.not_launched import NotLaunchedLog
from sendoff.ledger.overview import Overview
from sendoff.ledger.person import Persons
from sendoff.ledger.post_backs import PostBacks
from sendoff.ledger.rate_limits import RateLimits
from sendoff.ledger.retention import Retention
from sendoff.ledger.stats import Stats
from sendoff.ledger.suppressions import Suppressions
from sendoff.ledger.uploaded_lists import UploadedLists
from sendoff.ledger.verdicts import Verdicts


class Ledger:
    """The ledger behind one SQLAlchemy URL. Raise SettingsError if the URL cannot be used.

    ``erasure_secret``: default: the setting of this name, which is read when it is needed.

    Every method raises LedgerUnavailableError while the database does not answer. It raises UnusableLedgerError if
    someone must correct the database's address, user, rights, or tables.
    """

    def __init__(self, url: str, *, erasure_secret: str | None = None) -> None:
        self._database = Database(url)
        self.launches = Launches(self._database)
        self.not_launched = NotLaunchedLog(self._database)
        self.dispatches = Dispatches(self._database)
        self.dispatch_queries = DispatchQueries(self._database)
        self.launch_counts = LaunchCounts(self._database)
        self.doubts = Doubts(self._database)
        self.audit_log = AuditLog(self._database)
        self.pauses = Pauses(self._database)
        self.rate_limits = RateLimits(self._database)
        self.daily_limits = DailyLimits(self._database)
        self.post_backs = PostBacks(self._database)
        self.aggregates = Aggregates(self._database)
        self.retention = Retention(self._database)
        self.erasures = Erasures(self._database, erasure_secret)
        self.uploaded_lists = UploadedLists(self._database, self.erasures.in_set)
        self.suppressions = Suppressions(self._database, self.erasures)
        self.persons = Persons(self._database)
        self.verdicts = Verdicts(self._database)
        self.comparisons = Comparisons(self._database)
        self.feed_states = FeedStates(self._database)
        self.stats = Stats(self._database)
        self.overview = Overview(self._database)

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._database.name

    def migrate(self) -> None:
        """Migrate the tables to the newest revision; safe to repeat."""
        self._database.migrate()

    def ping(self) -> None:
        """Raise LedgerUnavailableError or UnusableLedgerError if the ledger cannot be written."""
        self._database.ping()

    def close(self) -> None:
        """Close all connections of this process."""
        self._database.close()
