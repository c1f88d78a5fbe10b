"""One POST and what came of it: an answer, certainly nothing sent, or nobody knows."""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.client import HTTPException
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
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

Timeout = tuple[float, float]
"""Seconds to wait for a connection, and for each part of an answer."""

Clock = Callable[[], datetime]

LONGEST_PATIENCE = 86_400.0
"""Seconds: who asks for more with Retry-After is taken to have asked for a day."""

_LONGEST_ANSWER = 4 * 2**20  # bytes
# Long runs without a space (but not words_like_this), mail addresses, and numbers of four digits or more. A secret has
# no space in it, however it is spelled: as it is, in a form, in JSON, in Base64.
_HIDDEN = re.compile(
    r"(?<!\S)(?![^\w\s]*[a-z]+(?:_[a-z]+)+[^\w\s]*(?!\S))\S{20,}|\S+@\S+|[0-9]{4,}",
    re.ASCII,
)


def utc_now() -> datetime:
    """Give the time of the wall clock."""
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
    """Put a token into a request; without one, put nothing there, whatever session or ``.netrc`` hold."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Replace the header of a request that is about to be sent."""
        request.headers.pop("Authorization", None)
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def post(
    session: requests.Session,
    url: str,
    body: bytes | Mapping[str, str],
    *,
    auth: Bearer,
    timeout: Timeout,
    deadline: float,
    headers: Mapping[str, str] | None = None,
    clock: Clock = utc_now,
) -> Exchange:
    """POST once, follow no redirect, and say what came of it; no exception of the wire leaves this function.

    A mapping is sent as a form, bytes as they are. After ``deadline`` seconds in all the connection is cut, however
    much or little was heard by then, over a session that :func:`cut_when_told` prepared.
    """
    own = {"Accept": "application/json", "User-Agent": f"sendoff/{__version__}", **(headers or {})}
    with _Deadline(deadline) as end:
        try:
            with session.post(
                url, data=body, headers=own, auth=auth, timeout=timeout, allow_redirects=False, stream=True
            ) as response:
                return _answer(response, clock, end)
        except Exception as error:  # the libraries also stumble over an answer, and then the request was sent
            found = _failure(error, host := urlsplit(url).netloc, timeout)
            if end.is_over and isinstance(found, NoAnswer):
                return NoAnswer(f"no whole answer from {host} within {deadline:g} seconds")
            return found


class _Deadline:
    """Cuts the connection that this thread uses, once an exchange has taken too long.

    The time-outs of the libraries are for each read: who says a byte now and then is never too late for them.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._line: socket.socket | None = None
        self._changing = threading.Lock()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._before = _deadline.set(self)
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _deadline.reset(self._before)
        self._timer.cancel()
        with self._changing:
            self._let_go()

    def watch(self, line: Any) -> bool:
        """Cut this connection when it is time; False where it is too late to begin."""
        with self._changing:
            self._let_go()
            # A second handle: TLS takes the first one for its own, and while it shakes hands nobody else has it.
            self._line = socket.socket(fileno=os.dup(line.fileno()))
            return not self.is_over

    def _cut(self) -> None:
        with self._changing:
            self.is_over = True
            if self._line is not None:
                with suppress(OSError):  # it was closed from the other side
                    self._line.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


_deadline: ContextVar[_Deadline | None] = ContextVar("_deadline", default=None)


def cut_when_told(session: requests.Session, url: str) -> None:
    """Let the deadline of an exchange cut the session's connections to a URL.

    An adapter of somebody else's making stays as it is, and has no deadline.
    """
    adapter = session.get_adapter(url)
    if type(adapter) is HTTPAdapter:
        its = vars(adapter)
        own = _Adapter(
            its["_pool_connections"], its["_pool_maxsize"], adapter.max_retries, its["_pool_block"]
        )
        session.mount(url, own)


class _Adapter(HTTPAdapter):
    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _cuttable(pool.ConnectionCls)
        return pool


class _Cuttable:
    sock: Any

    def _new_conn(self) -> Any:
        """Connect; also a proxy that is asked for a tunnel, and TLS, may take for ever after this."""
        line = super()._new_conn()  # type: ignore[misc]
        end = _deadline.get()
        if end is not None and not end.watch(line):
            line.close()
            raise ConnectTimeoutError(self, "the deadline was over before a connection was accepted")
        return line

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request, on a new connection or on one that is open from the request before, unless it is too late."""
        if self.sock is not None and (end := _deadline.get()) and not end.watch(self.sock):
            raise ConnectTimeoutError(self, "the deadline was over before a connection was free")
        super().request(*args, **kwargs)  # type: ignore[misc]


@lru_cache(maxsize=8)
def _cuttable(connection: type) -> type:
    if issubclass(connection, _Cuttable):
        return connection
    return type(f"Cuttable{connection.__name__}", (_Cuttable, connection), {})


def _answer(response: requests.Response, clock: Clock, end: _Deadline) -> Answer:
    headers = response.headers
    content = _content(response)
    return Answer(
        response.status_code,
        None if end.is_over else content,  # what was cut may look whole
        is_html="html" in headers.get("Content-Type", "").lower(),
        retry_after=patience(headers.get("Retry-After"), clock),
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
    """Tell the failures that certainly precede sending from all others.

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


def patience(value: str | None, clock: Clock = utc_now) -> float | None:
    """Read Retry-After, a number of seconds or a date, as seconds from 0 to LONGEST_PATIENCE, or None."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return min(float(value), LONGEST_PATIENCE)
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    seconds = (until.replace(tzinfo=until.tzinfo or UTC) - clock()).total_seconds()
    return min(max(0.0, seconds), LONGEST_PATIENCE)


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
