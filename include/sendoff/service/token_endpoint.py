"""One request to the token endpoint (section 4.1), which returns a token or an error that says what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from sendoff.errors import (
    CredentialsError,
    RateLimitedError,
    RetryableError,
    SendoffError,
    ServiceUnavailableError,
    SettingsError,
    UnreachableError,
)
from sendoff.service.transport import Answer, Bearer, NotSent, Transport, excerpt
from sendoff.service.wire import Unreadable, read_object

TOKEN_PATH = "/api/oauth/token"  # noqa: S105 - a path

_PUBLIC = frozenset({"grant_type", "client_id", "lifetime"})  # fields of a grant that are not secret
_LONGEST_LIFETIME = 10 * 365 * 86_400  # seconds; dates much later overflow


def request_token(transport: Transport, grant: Mapping[str, str]) -> tuple[str, int]:
    """Return a new token and its lifetime in seconds.

    Raise CredentialsError or SettingsError if someone must change something. Otherwise raise UnreachableError,
    RateLimitedError, ServiceUnavailableError, or another RetryableError.
    """
    answer = transport.post(TOKEN_PATH, grant, Bearer())
    if isinstance(answer, NotSent):
        raise UnreachableError(f"no token: {answer.reason}")
    if not isinstance(answer, Answer):
        raise RetryableError(f"no token: {answer.reason}")
    if not 200 <= answer.status < 300:
        raise _refusal(answer, grant)
    return _read_token(answer)


def _read_token(answer: Answer) -> tuple[str, int]:
    if answer.content is None:
        raise RetryableError("no token: the answer was cut off")
    document = _document(answer)
    if answer.is_html and not document:
        raise SettingsError(
            "no token: the base URL returned a web page; check that it is the URL of the service's API"
        )
    token, seconds = document.get("access_token"), document.get("expires_in")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token.strip():
        raise SettingsError(
            "no token: the answer contains none; check that the base URL is that of the service's API"
        )
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
        raise SettingsError("no token: the answer does not say how long the token lasts (expires_in)")
    kind = document.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise SettingsError("no token: the answer contains a token of a type other than Bearer")
    return token, min(seconds, _LONGEST_LIFETIME)


def _refusal(answer: Answer, grant: Mapping[str, str]) -> SendoffError:
    """Return the error for an HTTP status, with the endpoint's own message, redacted."""
    status = answer.status
    if status == requests.codes.too_many_requests:
        return RateLimitedError("no token: the service limits the rate of requests (429)", answer.retry_after)
    if status < 200 or status >= 500 or status in (408, 425):
        return ServiceUnavailableError(f"no token: the service failed (HTTP {status})", answer.retry_after)
    if 300 <= status < 400:
        target = answer.location or "another address"
        return SettingsError(f"no token: the base URL leads to {target} (HTTP {status}); correct it")
    if status in (404, 405, 410) or (answer.is_html and not _document(answer)):
        return SettingsError(
            f"no token: there is no token endpoint at the base URL (HTTP {status}); correct it"
        )
    refused = "the service refuses the client ID, or its secret or key"
    return CredentialsError(f"no token: {refused} (HTTP {status}){_message(answer, grant)}")


def _message(answer: Answer, grant: Mapping[str, str]) -> str:
    document = _document(answer)
    words = (document.get(name) for name in ("error", "error_description", "message"))
    text = ": ".join(word for word in words if isinstance(word, str))
    for name, secret in grant.items():
        text = text if name in _PUBLIC else text.replace(secret, "…")
    return f": {excerpt(text)}" if text else ""


def _document(answer: Answer) -> Mapping[str, Any]:
    try:
        return read_object(answer.content or b"")
    except Unreadable:
        return {}
