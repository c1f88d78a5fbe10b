"""One POST and its result: an answer, certainly nothing sent, or no answer."""

from __future__ import annotations

import html
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.exceptions import InvalidProxyURL, InvalidSchema, ReadTimeout
from requests.exceptions import ProxyError as RequestsProxyError
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
from sendoff.service.urls import checked_parts
from sendoff.times import utc_now

Clock = Callable[[], datetime]

MAX_RETRY_AFTER = 86_400.0
"""The maximum of Retry-After, in seconds. A longer wait counts as a day."""

_LONGEST_ANSWER = 4 * 2**20  # bytes
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})\b")  # what the library says of a proxy's answer
_NO_BUNDLE = "Could not find a suitable TLS CA certificate bundle"
# Long runs without a space (except words_like_this), mail addresses, and numbers of four or more digits. A secret
# contains no space, whether it is plain or encoded for a form, as JSON, or as Base64.
_HIDDEN = re.compile(
    r"(?<!\S)(?![^\w\s]*[a-z]+(?:_[a-z]+)+[^\w\s]*(?!\S))\S{20,}|\S+@\S+|[0-9]{4,}",
    re.ASCII,
)


class Timeout(NamedTuple):
    """Seconds for connecting, for each part of an answer, and until the connection is cut, whatever was received."""

    connect: float = 5.0
    answer: float = 60.0
    deadline: float = 90.0

    @property
    def of_requests(self) -> tuple[float, float]:
        """The first two, as the library requests takes them."""
        return self.connect, self.answer


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. ``content`` is None if the connection broke, or the answer became too large, after the status."""

    status: int
    content: bytes | None = field(repr=False)
    is_html: bool = False
    retry_after: float | None = None  # seconds
    location: str | None = None  # scheme, host, and port of a redirect's target


@dataclass(frozen=True, slots=True)
class NotSent:
    """No part of the request left this machine; ``reason`` is a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The request may have arrived, but no status came back."""

    reason: str


Exchange = Answer | NotSent | NoAnswer


class Bearer(AuthBase):
    """Adds a token to a request, or no authorization, whatever the session or ``.netrc`` contain."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Replace the Authorization header of a request that is about to be sent."""
        request.headers.pop("Authorization", None)
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Session(requests.Session):
    """A session that takes a redirect as an answer. A plain one reads all of its body, and parses its address."""

    def get_redirect_target(self, _: requests.Response) -> None:
        """Return no address."""


def service_session(
    connections: int, *, ca_bundle: str | None = None, proxy: str | None = None
) -> requests.Session:
    """Return an HTTP session for calls of the service, which threads may share. It has no token and never retries.

    ``connections``: how many it keeps open. ``ca_bundle``: a file with the certificates to trust instead of the default
    ones. ``proxy``: the proxy to use instead of the environment's.
    """
    session = _Session()
    session.auth = Bearer()  # otherwise requests would use the user's .netrc
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=0, pool_maxsize=connections))
    if ca_bundle:
        session.verify = ca_bundle
    if proxy:
        session.proxies = {"http": proxy, "https": proxy}
    return session


@dataclass(frozen=True, slots=True)
class Transport:
    """Sends POST requests to one base URL, each once.

    The session's proxies and certificates, and those of the environment, are read once, not for each request. Raise
    SettingsError if the base URL must not be used.
    """

    base_url: str
    session: requests.Session
    timeout: Timeout
    clock: Clock = utc_now
    allow_http: bool = False
    _network: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", checked_base_url(self.base_url, allow_http=self.allow_http))
        enforce_deadline(self.session, self.base_url)
        network = self.session.merge_environment_settings(
            self.base_url, {}, stream=True, verify=None, cert=None
        )
        # The library prefers HTTPS_PROXY and REQUESTS_CA_BUNDLE to what the session has.
        if self.session.verify is not True:
            network["verify"] = self.session.verify
        if self.session.proxies:
            network["proxies"] = self.session.proxies
        object.__setattr__(self, "_network", network)

    def post(
        self,
        path: str,
        body: bytes | Mapping[str, str],
        auth: Bearer,
        headers: Mapping[str, str] | None = None,
    ) -> Exchange:
        """POST once without following redirects, and return the result. Network errors are never raised.

        A mapping is sent as a form, and bytes unchanged.
        """
        url = self.base_url + path
        own = {"Accept": "application/json", "User-Agent": f"sendoff/{__version__}", **(headers or {})}
        request = requests.Request("POST", url, own, data=body, auth=auth)
        with Deadline(self.timeout.deadline) as end:
            try:
                with self.session.send(
                    self.session.prepare_request(request),
                    timeout=self.timeout.of_requests,
                    allow_redirects=False,
                    **self._network,
                ) as response:
                    return _answer(response, self.clock, end)
            except Exception as error:  # also if the libraries fail on an answer: the request was sent
                failure = _failure(error, host := urlsplit(url).netloc, self.timeout)
                if end.is_connecting and isinstance(failure, NoAnswer):
                    return NotSent(f"no connection to {host} was completed ({type(_cause(error)).__name__})")
                if end.is_over and isinstance(failure, NoAnswer):
                    return NoAnswer(
                        f"no complete answer from {host} within {self.timeout.deadline:g} seconds"
                    )
                return failure


def _answer(response: requests.Response, clock: Clock, end: Deadline) -> Answer:
    headers = response.headers
    content = _content(response)
    return Answer(
        response.status_code,
        None if end.is_over else content,  # a truncated answer may look complete
        is_html="html" in headers.get("Content-Type", "").lower(),
        retry_after=retry_after_seconds(headers.get("Retry-After"), clock),
        location=_origin(headers.get("Location")),
    )


def _content(response: requests.Response) -> bytes | None:
    if response.status_code < 200:  # the final answer may follow; unread, it closes the connection
        return None
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
    """Return NotSent if the failure certainly came before sending, and NoAnswer otherwise.

    These failures come before sending. The host is unknown. The service, or a proxy before it, accepts no connection,
    or none in time, or the proxy opens none to the service. The service's certificate is not trusted, which is checked
    before the request is written. The library refuses the proxy, or the file with the certificates.
    """
    cause = _cause(error)
    if isinstance(error, RequestsProxyError) and (refused := _TUNNEL.match(str(cause))):
        return NotSent(f"the proxy opened no connection to {host}: HTTP {refused[1]}")
    if isinstance(error, InvalidSchema | InvalidProxyURL):
        return NotSent(
            f"the proxy cannot be used for {host}. Use an address such as http://proxy.example.com:3128"
        )
    if isinstance(cause, OSError) and str(cause).startswith(_NO_BUNDLE):
        return NotSent("the file with the certificates to trust does not exist")
    if isinstance(cause, NameResolutionError):
        return NotSent(f"the host {host} is not known")
    if isinstance(cause, NewConnectionError):
        return NotSent(f"no connection to {host} was accepted")
    if isinstance(cause, ConnectTimeoutError):
        return NotSent(f"no connection to {host} was accepted within {timeout.connect:g} seconds")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return NotSent(f"the certificate of {host} is not trusted: {cause.verify_message}")
    if isinstance(error, ReadTimeout):
        return NoAnswer(f"no answer from {host} within {timeout.answer:g} seconds")
    if not isinstance(error, (OSError, HTTPError, HTTPException)):  # errors of requests are OSErrors
        return NoAnswer(f"the answer of {host} cannot be read ({type(cause).__name__})")
    return NoAnswer(f"the connection to {host} broke before an answer ({type(cause).__name__})")


def _cause(error: BaseException) -> BaseException:
    """Unwrap the errors of requests and urllib3 to find the original failure."""
    for wrapper in (requests.RequestException, MaxRetryError, ProxyError, SSLError):
        if isinstance(error, wrapper):
            inner = getattr(error, "reason", None) or getattr(error, "original_error", None) or error.args[:1]
            inner = inner[0] if isinstance(inner, tuple) and inner else inner
            error = inner if isinstance(inner, BaseException) else error
    return error


def retry_after_seconds(value: str | None, clock: Clock = utc_now) -> float | None:
    """Parse Retry-After, which is a number of seconds or a date. Return 0 to MAX_RETRY_AFTER seconds, or None."""
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
    """Return the scheme, host, and port of a URL, which contain nothing secret."""
    try:
        parts = urlsplit(location or "")
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}" if parts.scheme and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def checked_base_url(url: str, *, allow_http: bool = False) -> str:
    """Return a base URL without a trailing slash. Raise SettingsError without quoting an invalid one.

    ``http://`` is only for this machine, unless ``allow_http`` states that no one can listen in between.
    """
    parts = checked_parts(url, "the base URL")
    if parts.scheme == "http" and not allow_http and not _is_this_machine(parts.hostname or ""):
        raise SettingsError(
            "the base URL begins with http://, which would send the client secret, the tokens and the identifiers "
            "of recipients unencrypted; use https://, or set allow_http in the connection (SENDOFF_ALLOW_HTTP in a "
            "shell) if no one can listen in between"
        )
    return url.rstrip("/")


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def excerpt(text: str) -> str:
    """Shorten text from outside for display, and hide anything that may be an identifier or a secret."""
    return shortened(redacted(text))


def redacted(text: str) -> str:
    """Hide anything in the first 2,000 characters of a text from outside that may be an identifier or a secret."""
    words = " ".join("".join(each if each.isprintable() else " " for each in text[:2000]).split())
    if len(text) > 2000:  # the last word may be a part of an identifier
        words = f"{words.rpartition(' ')[0]} …"
    return _HIDDEN.sub("…", words)


def unescaped(text: str) -> str:
    """Return a text from outside as it was before someone wrote it for JSON, HTML or a URL."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    return unquote(html.unescape(re.sub(r"\\([/\"])", r"\1", text)))


def shortened(text: str) -> str:
    """Shorten a text for display between two words, so that no part of a word is left."""
    return text if len(text) <= 200 else f"{text[:199].rpartition(' ')[0]} …"
