"""docs/reference/errors.md: every error of ``sendoff.errors``, and what to do about it."""

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

Everything that Sendoff raises on purpose is one of these, from `sendoff.errors`. Which of the three kinds it is says
what may be done: a *permanent* one needs a person, a *retryable* one may be tried again by itself, an *ambiguous* one
must not be. At the command line each is one line on standard error and exit code 1.
"""

_ADVICE = {
    "SendoffError": "Catch it where every error of Sendoff ends alike.",
    "PermanentError": "Change what its text names.",
    "SettingsError": "Correct the variable or the connection field that it names: [settings](settings.md).",
    "CredentialsError": "Check client ID, secret or key, and at the service whether they ended or lack a scope.",
    "CampaignError": "Correct the file at the line that it names: [campaigns](campaigns.md).",
    "QueryError": "Run the query on the warehouse; grant its user what it reads.",
    "AudienceError": "Look at what the query gives: `sendoff preview` counts it, and shows who is left out.",
    "GateError": "Read what the gate saw. Where it is wrong, change the campaign, or release the launch.",
    "LateError": "Nothing; or trigger the period with *Send late*, unless its moment of sending is over.",
    "NotFoundError": "List what there is: `sendoff report`. Is it the right ledger?",
    "UnusableLedgerError": "Do what its text says: it names the cause.",
    "RefusedError": "Read the service's reason in `sendoff report`; correct the campaign, then resend.",
    "RetryableError": "Try again later.",
    "UnreachableError": "Wait; where it stays, check base URL, proxy and CA bundle.",
    "WarehouseUnavailableError": "Wait; where it stays, check the warehouse's address.",
    "RateLimitedError": "Wait as long as the service asked for; lower `requests_per_second` where it comes often.",
    "ServiceUnavailableError": "Wait; where it stays, ask those who run the service.",
    "NotYetError": "Call again at `until`.",
    "RateLimitedLocallyError": "Call again at `until`; raise `requests_per_second` where the service allows more.",
    "ConflictError": "Try again: the rules are then applied to what the other launch left.",
    "LedgerUnavailableError": "Wait; where it stays, check the database and its address.",
    "AmbiguousError": "Look at the service what became of it before anything is sent again: `sendoff doubts`.",
}


def page() -> str:
    """Write the page; KeyError for an error of which nobody said what to do."""
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
    """Give the errors in the order of their module."""
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
        return "tried again when it is time; `dispatch` waits in the triggerer"
    if issubclass(error, RetryableError):
        return "tried again, as `retries` says"
    return "fails the task at once"
