"""Sendoff's exceptions, grouped by how a caller can react.

.. code-block:: text

    SendoffError
    ├── PermanentError       cannot succeed until a person changes something
    │   ├── SettingsError        an environment variable or connection field is wrong
    │   │   └── UsageError           an argument of a call, or an option of a command, is wrong
    │   ├── CredentialsError     a client ID, secret or key is wrong, or the token endpoint refused it
    │   ├── CampaignError        a campaign folder is invalid
    │   ├── QueryError           an audience query or its warehouse failed
    │   ├── AudienceError        the query's result is not an audience
    │   ├── GateError            a gate of the campaign is closed, or a person rejected the launch
    │   ├── LateError            it is too late for a launch: skip it
    │   ├── NotFoundError        the ledger has no such launch or dispatch
    │   ├── RecipientsDeletedError  the launch is older than the limit on recipients
    │   ├── UnusableLedgerError  the ledger's URL, user, database, rights or tables are wrong
    │   └── RefusedError         the service refused the request, and would refuse it again
    ├── RetryableError       nothing happened: retry later
    │   ├── UnreachableError     no connection was opened
    │   ├── WarehouseUnavailableError
    │   ├── RateLimitedError     the service limits the rate of requests
    │   ├── ServiceUnavailableError
    │   ├── NotYetError          nothing is wrong, but it is too early
    │   │   └── RateLimitedLocallyError  the connection's rate limit, shared by all workers
    │   ├── ConflictError        another launch was frozen in the meantime
    │   └── LedgerUnavailableError
    └── AmbiguousError       something may have happened: do not retry automatically

Code never branches on the text of a message. No message contains a secret, a token, an identifier of a person or
device, or the text of a campaign.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake or a warning: its file or folder, its line if one is known, and a sentence."""

    file: Path
    text: str
    line: int | None = None

    def __str__(self) -> str:
        """Return the finding as a compiler would print it: file, line, sentence."""
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class SendoffError(Exception):
    """Base class of all errors that Sendoff raises on purpose."""


class PermanentError(SendoffError):
    """The call cannot succeed until a person changes something.

    ``not_launched``: why there is no launch, in words for everybody, if its audience or its gates stopped it.
    """

    def __init__(self, *args: object, not_launched: str | None = None) -> None:
        super().__init__(*args)
        self.not_launched = not_launched


class SettingsError(PermanentError):
    """An environment variable or a field of a connection is missing or wrong."""


class UsageError(SettingsError):
    """The arguments of a call or the options of a command do not fit together, or one has a wrong value."""


class CredentialsError(PermanentError):
    """A client ID, secret or key is missing, broken or refused."""


class CampaignError(PermanentError):
    """A campaign or its folder is invalid.

    ``mistakes`` lists them one by one if the campaign was read from a folder; otherwise it is empty.
    """

    def __init__(self, message: str, mistakes: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.mistakes = tuple(mistakes)

    @classmethod
    def of(cls, mistakes: Sequence[Finding]) -> Self:
        """Return the error whose message has one line for each mistake."""
        return cls("\n".join(map(str, mistakes)), mistakes)


class QueryError(PermanentError):
    """The audience query failed, or its warehouse did.

    ``line``: the line of the query, if the query was refused before it ran.
    """

    line: int | None = None


class AudienceError(PermanentError):
    """The query ran, but its result is not an audience."""


class NobodyLeftError(AudienceError):
    """The audience has no recipients, or the rules leave out all of them."""


class GateError(PermanentError):
    """A gate of the campaign is closed, or a person rejected the launch; nothing more is sent."""


class LateError(PermanentError):
    """It is too late for a launch, or a part of its period was sent; it is not sent."""


class NotFoundError(PermanentError):
    """The ledger has nothing with this name or key."""


class RecipientsDeletedError(PermanentError):
    """The recipients of a launch are needed, and were deleted because of its age."""


class UnusableLedgerError(PermanentError):
    """The ledger cannot be used until its URL, user, rights or tables are corrected."""


class RefusedError(PermanentError):
    """The service refused the request, and would refuse it again."""


class RetryableError(SendoffError):
    """Nothing happened; the same call may work later."""


class UnreachableError(RetryableError):
    """No connection to the service was opened, so nothing was sent."""


class RateLimitedError(RetryableError):
    """The service limits the rate of requests.

    ``retry_after`` is the delay in seconds that the service asked for, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServiceUnavailableError(RetryableError):
    """The service answers, but cannot issue a token at the moment.

    ``retry_after`` is the delay in seconds that the service asked for, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotYetError(RetryableError):
    """It is too early, and nothing was sent; call again at ``until`` (an aware datetime)."""

    def __init__(self, message: str, until: datetime) -> None:
        super().__init__(message)
        self.until = until


class RateLimitedLocallyError(NotYetError):
    """The rate limit of the connection, or of the service, allows no request before ``until``."""


class WarehouseUnavailableError(RetryableError):
    """The warehouse cannot be reached."""


class ConflictError(RetryableError):
    """Another launch was frozen during planning and may have the same recipients; nothing is stored."""


class LedgerUnavailableError(RetryableError):
    """The ledger database did not answer."""


class AmbiguousError(SendoffError):
    """The request may or may not have been processed; it must not be repeated without a decision."""


class LaunchErrors:
    """The permanent errors of launches, collected so that one launch does not keep the others waiting."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    @contextmanager
    def collect(self, launch_key: str) -> Iterator[None]:
        """Collect the error of a block of work on one launch."""
        try:
            yield
        except PermanentError as error:
            self.messages.append(f"launch {launch_key}: {error}")

    def raise_all(self) -> None:
        """Raise one PermanentError that names the launches, if there are errors."""
        if self.messages:
            raise PermanentError("\n".join(dict.fromkeys(self.messages)))
