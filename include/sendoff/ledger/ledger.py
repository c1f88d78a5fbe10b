"""The ledger: the record of launches, requests, outcomes, and post-backs. Only this package talks to its database.

The database is SQLite in WAL mode by default and PostgreSQL in production, with the same tables. Each public method is
one transaction.
Each folder of the package has one subject, and imports only folders below it.
"""

from __future__ import annotations

from typing import Self

from sendoff.errors import UnusableLedgerError
from sendoff.ledger.control.audit_log import AuditLog, Pauses
from sendoff.ledger.control.daily_limits import DailyLimits
from sendoff.ledger.control.rate_limits import RateLimits
from sendoff.ledger.copying import copy_ledger
from sendoff.ledger.erasure.erasures import Erasures
from sendoff.ledger.erasure.old_recipients import OldRecipients
from sendoff.ledger.erasure.person import Persons
from sendoff.ledger.launches.launch_counts import LaunchCounts
from sendoff.ledger.launches.launches import Launches
from sendoff.ledger.launches.not_launched import NotLaunchedLog
from sendoff.ledger.post_backs.aggregates import Aggregates
from sendoff.ledger.post_backs.post_backs import StoredPostBacks
from sendoff.ledger.post_backs.retention import Retention
from sendoff.ledger.requests.dispatch_queries import DispatchQueries
from sendoff.ledger.requests.dispatches import Dispatches
from sendoff.ledger.requests.doubts import Doubts
from sendoff.ledger.results.comparisons import Comparisons
from sendoff.ledger.results.feed_states import FeedStates
from sendoff.ledger.results.overview import Overview
from sendoff.ledger.results.stats import Stats
from sendoff.ledger.results.verdicts import StoredVerdicts
from sendoff.ledger.storage.database import Database
from sendoff.ledger.suppression.suppressions import SuppressionList
from sendoff.ledger.suppression.uploaded_lists import UploadedLists
from sendoff.settings import Settings


class Ledger:
    """The ledger behind one SQLAlchemy URL. Raise SettingsError if the URL cannot be used.

    ``erasure_secret`` and ``erasure_log``: default: the settings of these names, which are read when they are needed.

    Every method raises LedgerUnavailableError while the database does not answer. It raises UnusableLedgerError if
    someone must correct the database's address, user, rights, or tables.
    """

    def __init__(
        self, url: str, *, erasure_secret: str | None = None, erasure_log: str | None = None
    ) -> None:
        self.erasure_log = erasure_log
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
        self.post_backs = StoredPostBacks(self._database)
        self.aggregates = Aggregates(self._database)
        self.retention = Retention(self._database)
        self.erasures = Erasures(self._database, erasure_secret)
        self.old_recipients = OldRecipients(self._database)
        self.uploaded_lists = UploadedLists(self._database, self.erasures.in_set)
        self.suppressions = SuppressionList(self._database, self.erasures.among)
        self.persons = Persons(self._database, self.erasures.erased_at)
        self.verdicts = StoredVerdicts(self._database)
        self.comparisons = Comparisons(self._database)
        self.feed_states = FeedStates(self._database)
        self.stats = Stats(self._database)
        self.overview = Overview(self._database)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the ledger of a deployment. Raise SettingsError if its URL is not set."""
        secret = settings.erasure_secret
        return cls(
            settings.ledger(),
            erasure_secret=secret.get_secret_value() if secret else None,
            erasure_log=settings.erasure_log,
        )

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._database.name

    def migrate(self) -> None:
        """Migrate the tables to the newest revision; safe to repeat."""
        self._database.migrate()

    def copy_from(self, source: Ledger) -> dict[str, int]:
        """Copy another ledger, which is paused, into this empty one, and return the number of rows by table.

        Raise SettingsError or UnusableLedgerError, and copy nothing, if that is not possible.
        """
        return copy_ledger(source._database, self._database)

    def ping(self) -> None:
        """Raise LedgerUnavailableError or UnusableLedgerError if the ledger cannot be written."""
        self._database.ping()

    def check(self) -> None:
        """Raise an error if launches cannot use the ledger.

        Raise LedgerUnavailableError or UnusableLedgerError as :meth:`ping` does, if a table or a column is missing, and
        if the ledger was moved to another database.
        Raise SettingsError if people were erased, and the erasure secret is missing or is another one.
        """
        self.ping()
        self._database.check_tables()
        if move := self.pauses.move():
            raise UnusableLedgerError(f"{self.name}: {move}")
        self.erasures.check_secret()

    def close(self) -> None:
        """Close all connections of this process."""
        self._database.close()
