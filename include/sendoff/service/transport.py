"""One POST and what came of it: an answer, certainly nothing sent, or nobody knows."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from ipaddress import ip_address
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase
from requests.exceptions import ReadTimeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    SSLError,
)

from sendoff import __version__
from sendoff.errors import SettingsError
from sendoff.service.deadline import Deadline, enforce_deadline

Timeout = tuple[float, float]
"""Seconds to wait for a connection, and for each part of an answer."""

Clock = Callable[[], datetime]

MAX_RETRY_AFTER = 86_400.0
"""Seconds: who asks for more with Retry-After is taken to have asked for a day."""

_LONGEST_ANSWER = 4 * 2**20  # bytes
# Long runs without a space (but not words_like_this), mail addresses, and numbers of four digits or more. A secret has
# no space in it, however it is spelled: as it is, in a form, in JSON, in Base64.
_HIDDEN = re.compile(
    r"(?<!\S)(?![^\w\s]*[a-z]+(?:_[a-z]+)+[^\w\s]*(?!\S))\S{20,}|\S+@\S+|[0-9]{4,}",
    re.ASCII,
)


def utc_now() -> datetime:
    """Return the time of the wall clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. ``content`` is None where the connection broke, or the size got absurd, after the status."""

    status: int
    content: bytes | None = field(repr=False)
    is_html: bool = False
    retry_after: float | None = None  # seconds
    location: str | None = None  # scheme, host and port that a redirect leads to


@dataclass(frozen=True, slots=True)
class NotSent:
    """Nothing of the request left this machine, for a reason given as a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The request may have arrived, and no status came back."""

    reason: str


Exchange = Answer | NotSent | NoAnswer


class Bearer(AuthBase):
    """Adds a token to a request, or no authorization at all, whatever the session or ``.netrc`` hold."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Replace the header of a request that is about to be sent."""
        request.headers.pop("Authorization", None)
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


@dataclass(frozen=True, slots=True)
class Transport:
    """Send POST requests to one base URL, each once.

    ``timeout``: for a connection, and for each part of an answer. ``deadline``: seconds after which the connection is
    cut, however much was received by then. Raises SettingsError for a base URL that must not be used.
    """

    base_url: str
    session: requests.Session
    timeout: Timeout
    deadline: float
    clock: Clock = utc_now
    allow_http: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", checked_base_url(self.base_url, allow_http=self.allow_http))
        enforce_deadline(self.session, self.base_url)

    def post(
        self,
        path: str,
        body: bytes | Mapping[str, str],
        auth: Bearer,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """POST once, follow no redirect, and return what came of it; no exception of the wire leaves this method.

        A mapping is sent as a form, bytes as they are.
        """
        url = self.base_url + path
        own = {"Accept": "application/json", "User-Agent": f"sendoff/{__version__}", **(headers or {})}
        with Deadline(self.deadline) as end:
            try:
                with self.session.post(
                    url,
                    data=body,
                    headers=own,
                    auth=auth,
                    timeout=self.timeout,
                    allow_redirects=False,
                    stream=True,
                ) as response:
                    return _answer(response, self.clock, end)
            except (
                Exception
            ) as error:  # the libraries also stumble over an answer, and then the request was sent
                failure = _failure(error, host := urlsplit(url).netloc, self.timeout)
                if end.is_over and isinstance(failure, NoAnswer):
                    return NoAnswer(f"no whole answer from {host} within {self.deadline:g} seconds")
                return failure


def _answer(response: requests.Response, clock: Clock, end: Deadline) -> Answer:
    headers = response.headers
    content = _content(response)
    return Answer(
        response.status_code,
        None if end.is_over else content,  # what was cut may look whole
        is_html="html" in headers.get("Content-Type", "").lower(),
        retry_after=retry_after_seconds(headers.get("Retry-After"), clock),
        location=_origin(headers.get("Location")),
    )


def _content(response: requests.Response) -> bytes | None:
    chunks, size = [], 0
    try:
        for chunk in response.iter_content(2**16):
            chunks.append(chunk)
            size += len(chunk)
            if size > _LONGEST_ANSWER:
                return None
    except (OSError, HTTPError, HTTPException):
        return None
    return b"".join(chunks)


def _failure(error: Exception, host: str, timeout: Timeout) -> NotSent | NoAnswer:
    """Return NotSent for the failures that certainly precede sending, else NoAnswer.

    They are four: the name is not known, no connection was accepted, none was accepted in time (each of the service or
    of a proxy before it), and the service's certificate is not trusted, which is found before a request is written.
    """
    cause = _cause(error)
    if isinstance(cause, NameResolutionError):
        return NotSent(f"the host {host} is not known")
    if isinstance(cause, NewConnectionError):
        return NotSent(f"no connection to {host} was accepted")
    if isinstance(cause, ConnectTimeoutError):
        return NotSent(f"no connection to {host} was accepted within {timeout[0]:g} seconds")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return NotSent(f"the certificate of {host} is not trusted: {cause.verify_message}")
    if isinstance(error, ReadTimeout):
        return NoAnswer(f"no answer from {host} within {timeout[1]:g} seconds")
    if not isinstance(error, (OSError, HTTPError, HTTPException)):  # what requests raises is an OSError
        return NoAnswer(f"what {host} answered cannot be read ({type(cause).__name__})")
    return NoAnswer(f"the connection to {host} broke before an answer ({type(cause).__name__})")


def _cause(error: BaseException) -> BaseException:
    """Unwrap what requests and urllib3 put around the failure itself."""
    for wrapper in (requests.RequestException, MaxRetryError, ProxyError, SSLError):
        if isinstance(error, wrapper):
            inner = getattr(error, "reason", None) or getattr(error, "original_error", None) or error.args[:1]
            inner = inner[0] if isinstance(inner, tuple) and inner else inner
            error = inner if isinstance(inner, BaseException) else error
    return error


def retry_after_seconds(value: str | None, clock: Clock = utc_now) -> float | None:
    """Read Retry-After, a number of seconds or a date, as seconds from 0 to MAX_RETRY_AFTER, or None."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return min(float(value), MAX_RETRY_AFTER)
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    seconds = (until.replace(tzinfo=until.tzinfo or UTC) - clock()).total_seconds()
    return min(max(0.0, seconds), MAX_RETRY_AFTER)


def _origin(location: str | None) -> str | None:
    """Return scheme, host and port of an address, which hold nothing secret."""
    try:
        parts = urlsplit(location or "")
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}" if parts.scheme and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def checked_base_url(url: str, *, allow_http: bool = False) -> str:
    """Return a base URL without a slash at its end, or raise SettingsError without quoting it.

    ``http://`` is for this machine, unless ``allow_http`` says that nobody can listen on the way.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise SettingsError("the base URL must start with https:// (or http://) and name a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise SettingsError("the base URL must have no user, password, query or fragment")
    if parts.scheme == "http" and not allow_http and not _is_this_machine(parts.hostname or ""):
        raise SettingsError(
            "the base URL begins with http://, which would send the client secret, the tokens and the identifiers "
            "of people unencrypted; write https://, or set allow_http if nobody can listen on the way"
        )
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def excerpt(text: str) -> str:
    """Shorten foreign text for a person, with what may identify somebody or be a secret taken out."""
    words = " ".join("".join(each if each.isprintable() else " " for each in text[:2000]).split())
    hidden = _HIDDEN.sub("…", words)
    return hidden if len(hidden) <= 200 else f"{hidden[:199]}…"
