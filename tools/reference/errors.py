"""Generate docs/reference/errors.md: all errors of ``sendoff.errors``, with advice."""

from __future__ import annotations

import inspect
import re

from sendoff import errors
from sendoff.errors import (
    AmbiguousError,
    LateError,
    NotYetError,
    PermanentError,
    RetryableError,
    SendoffError,
)
from tools.reference.markdown import code, first_sentence, prose, table

_HEAD = """\
# Errors

All errors that Sendoff raises on purpose are in `sendoff.errors`. Each is of one of three kinds. A *permanent* error
needs a person. A *retryable* error may be retried automatically, an *ambiguous* one must not be. Commands print an
error as one line on standard error, and end with exit code 1, or 2 after wrong usage.
"""

_ADVICE = {
    "SendoffError": "Catch it to handle all errors of Sendoff in the same way.",
    "PermanentError": "Correct what the message names.",
    "SettingsError": "Correct the variable or connection field that the message names: [settings](settings.md).",
    "UsageError": "Correct the argument or option that the message names.",
    "CredentialsError": "Check the client ID, secret or key, and in the service whether they expired or lack a scope.",
    "CampaignError": "Correct the file at the line that the message names: [campaigns](campaigns.md).",
    "QueryError": "Run the query on the warehouse, and grant its user access to the tables that it reads.",
    "AudienceError": "Check the query's rows: `sendoff preview` counts them, and shows how many are left out.",
    "NobodyLeftError": "Check the query and the exclusions. In a journey, the step is skipped.",
    "GateError": "Read the actual value in the message. If it is fine, change the campaign or release the launch.",
    "LateError": "Do nothing. Or trigger the period with *Send late*, unless its sending time has passed, or with a "
    "resend number if a part of it was sent.",
    "NotFoundError": "List the launches with `sendoff report`. Check that it is the right ledger.",
    "RecipientsDeletedError": "Give the rule fewer days than the "
    "[limit](../operations/backup.md#limit-how-long-recipients-are-kept). To send an old period once more, "
    "[send it again](../how-to/send-again.md) with a reason.",
    "UnusableLedgerError": "Follow the message, which names the cause.",
    "RefusedError": "Read the service's reason in `sendoff report`, correct the campaign, then resend.",
    "RetryableError": "Retry later.",
    "UnreachableError": "Retry. If it goes on, check the base URL, proxy and CA bundle.",
    "WarehouseUnavailableError": "Retry. If it goes on, check the warehouse's address.",
    "RateLimitedError": "Wait as long as the service asks for. If it happens often, lower `requests_per_second`.",
    "ServiceUnavailableError": "Retry. If it goes on, ask the operators of the service.",
    "NotYetError": "Call again at `until`.",
    "RateLimitedLocallyError": "Call again at `until`. Raise `requests_per_second` if the service allows more.",
    "ConflictError": "Retry; the rules then take the other launch into account.",
    "LedgerUnavailableError": "Retry. If it goes on, check the database and its address.",
    "AmbiguousError": "Find out in the service what happened, before anything is sent again: `sendoff doubts`.",
}


def page() -> str:
    """Write the page. Raise KeyError for an error without advice."""
    rows = [
        [code(each.__name__), _kind(each), _meaning(each), _ADVICE[each.__name__], _in_airflow(each)]
        for each in every_error()
    ]
    tree = re.search(r"(    SendoffError\n(?:    .*\n)+)", errors.__doc__ or "")
    assert tree is not None
    drawn = "\n".join(line[4:] for line in tree[1].splitlines())
    rule = prose((errors.__doc__ or "").rpartition("\n\n")[2])
    head = table(["Error", "Kind", "Meaning", "What to do", "In Airflow"], rows)
    return f"{_HEAD}\n```text\n{drawn}\n```\n\n{rule}\n\n## Each error\n\n{head}\n"


def every_error() -> list[type[SendoffError]]:
    """Return the errors in the order of their module."""
    found = (
        each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, SendoffError)
    )
    return sorted(found, key=lambda each: inspect.getsourcelines(each)[1])


def _meaning(error: type[SendoffError]) -> str:
    return first_sentence(error.__doc__ or "")


def _kind(error: type[SendoffError]) -> str:
    kinds = {PermanentError: "permanent", RetryableError: "retryable", AmbiguousError: "ambiguous"}
    return next((name for kind, name in kinds.items() if issubclass(error, kind)), "any")


def _in_airflow(error: type[SendoffError]) -> str:
    if issubclass(error, LateError):
        return "skips the task"
    if issubclass(error, NotYetError):
        return "retried at `until`; `dispatch` waits in the triggerer"
    if issubclass(error, RetryableError):
        return "retried, up to `retries` times"
    return "fails the task at once"
