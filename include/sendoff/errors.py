"""What can go wrong, cut by what the caller may do about it.

.. code-block:: text

    SendoffError
    ├── PermanentError       never works as it stands: a person must change something
    │   ├── SettingsError        an environment variable or connection field
    │   ├── CredentialsError     a client ID, secret, key, or what the token endpoint said of them
    │   ├── CampaignError        a campaign folder
    │   ├── QueryError           an audience query, or the warehouse it runs on
    │   ├── AudienceError        what the query gave
    │   ├── GateError            a gate of the campaign is closed, or a person said no
    │   ├── LateError            it is too late for a launch: it is skipped
    │   ├── NotFoundError        a launch or dispatch that the ledger does not hold
    │   ├── UnusableLedgerError  the ledger's address, user, database, rights or tables
    │   └── RefusedError         the service said no, and will again
    ├── RetryableError       nothing happened: try again later
    │   ├── UnreachableError     no connection was opened
    │   ├── WarehouseUnavailableError
    │   ├── RateLimitedError     the service limits the rate of requests
    │   ├── ServiceUnavailableError
    │   ├── NotYetError          nothing is wrong, it is only too early
    │   │   └── RateLimitedLocallyError          the connection's rate, shared by all workers, allows no request yet
    │   ├── ConflictError       another launch was frozen in the meantime
    │   └── LedgerUnavailableError
    └── AmbiguousError       something may have happened: never repeat by yourself

Nothing branches on the text of a message. No message carries a secret, a token, an identifier of a person or
device, or the text of a message.
"""

from __future__ import annotations

from datetime import datetime


class SendoffError(Exception):
    """Anything that Sendoff raises on purpose."""


class PermanentError(SendoffError):
    """It will never work as it stands; a person must change something."""


class SettingsError(PermanentError):
    """An environment variable or a field of a connection is missing or wrong."""


class CredentialsError(PermanentError):
    """A client ID, secret or key is missing, broken or refused."""


class CampaignError(PermanentError):
    """A campaign folder cannot be read as a campaign."""


class QueryError(PermanentError):
    """The audience query, or the warehouse it was sent to, failed."""


class AudienceError(PermanentError):
    """The query ran, but what it gave is no audience."""


class GateError(PermanentError):
    """A gate of the campaign is closed, or a person said no; nothing more is sent."""


class LateError(PermanentError):
    """It is too late for a launch, which is not sent."""


class NotFoundError(PermanentError):
    """The ledger holds nothing of that name."""


class UnusableLedgerError(PermanentError):
    """The ledger cannot be used before somebody corrects its address, user, rights or tables."""


class RefusedError(PermanentError):
    """The service said no, and would say no again."""


class RetryableError(SendoffError):
    """Nothing happened; the same call may work later."""


class UnreachableError(RetryableError):
    """No connection to the service was opened, so nothing was sent."""


class RateLimitedError(RetryableError):
    """The service limits the rate of requests.

    ``retry_after`` is its wish in seconds, or None where it named none.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceUnavailableError(RetryableError):
    """The service answers, but cannot issue a token at the moment.

    ``retry_after`` is the time in seconds after which it wants to be called again, or None if it named none.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotYetError(RetryableError):
    """Nothing is wrong and nothing was sent: it is too early. ``until`` is when to call again (an aware datetime)."""

    def __init__(self, message: str, until: datetime) -> None:
        super().__init__(message)
        self.until = until


class RateLimitedLocallyError(NotYetError):
    """The rate of the connection, or of the service, allows no request before ``until``."""


class WarehouseUnavailableError(RetryableError):
    """Nothing answers where the warehouse should be."""


class ConflictError(RetryableError):
    """Another launch was frozen while this one was planned, and may reach the same people; nothing is stored."""


class LedgerUnavailableError(RetryableError):
    """The ledger database did not answer."""


class AmbiguousError(SendoffError):
    """The request may or may not have been processed; nobody may repeat it without deciding to."""
