"""The access token of a connection (sections 4.1 and 5), shared by all threads of a process.

Requesting another token is always safe: each assertion is new, and an unused token simply expires.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta

import requests

from sendoff.errors import RetryableError, SendoffError
from sendoff.service.credentials import Credentials
from sendoff.service.token_endpoint import request_token
from sendoff.service.transport import Clock, Timeout, Transport
from sendoff.telemetry import metrics
from sendoff.times import utc_now

_log = logging.getLogger(__name__)

TOKEN_TIMEOUT = Timeout(answer=30.0, deadline=40.0)
"""For a token request. All other threads wait for it."""

_EARLY = timedelta(minutes=5)
_EXPIRY_NOTICE = timedelta(days=14)
_PAUSE = timedelta(seconds=30)  # between attempts to replace a token that is still valid


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, when to replace it, and when it expires."""

    text: str = field(repr=False)
    renew_at: datetime
    ends_at: datetime
    warnings: tuple[str, ...] = ()


class TokenSource:
    """The access token of one connection. It is requested once, however many threads need it.

    A token is renewed when a quarter of its lifetime is left, but at most five minutes before it expires. If the
    endpoint cannot be reached then, the old token is used until it expires. ``allow_http`` allows an ``http://`` base
    URL on another machine. Raise CredentialsError or SettingsError if someone must change something; otherwise raise
    UnreachableError, RateLimitedError, ServiceUnavailableError, or another RetryableError.
    """

    def __init__(
        self,
        credentials: Credentials,
        base_url: str,
        session: requests.Session,
        *,
        clock: Clock = utc_now,
        timeout: Timeout = TOKEN_TIMEOUT,
        allow_http: bool = False,
    ) -> None:
        self._credentials = credentials
        self._transport = Transport(base_url, session, timeout, clock, allow_http)
        self._lock = threading.Lock()
        self._attempts = 0
        self._failure: SendoffError | None = None
        self._token: _Token | None = None

    def token(self) -> str:
        """Return a token that has not expired."""
        attempts, current, now = self._attempts, self._token, self._transport.clock()
        if current is None or now >= current.ends_at:
            return self._request_shared(attempts, instead_of=current)
        if now < current.renew_at or not self._lock.acquire(blocking=False):
            return current.text
        try:
            return self._renew_early(current, now)
        finally:
            self._lock.release()

    def renew(self, rejected: str) -> str:
        """Return a new token after a 401 for ``rejected`` (section 5.3); threads share one request."""
        attempts, current = self._attempts, self._token
        if current is not None and current.text != rejected:
            return self.token()
        return self._request_shared(attempts, instead_of=current)

    def warnings(self) -> tuple[str, ...]:
        """Return a warning for each part of this login that expires soon, as far as the current token shows it."""
        return self._token.warnings if self._token else ()

    def _request_shared(self, attempts: int, *, instead_of: _Token | None) -> str:
        """Request a token, or share the result of another thread's request, even if it failed."""
        with self._lock:
            if self._token is not None and self._token is not instead_of:
                return self._token.text
            if self._failure is not None and self._attempts != attempts:
                raise copy.copy(self._failure)
            self._token = None
            return self._request()

    def _renew_early(self, current: _Token, now: datetime) -> str:
        """Request a token before the current one expires. If that fails, keep using the current one."""
        if self._token is not current and self._token is not None:
            return self._token.text
        try:
            return self._request()
        except RetryableError as error:
            _log.warning("the access token could not be renewed early: %s", error)
            wish = timedelta(seconds=getattr(error, "retry_after", None) or 0)
            self._token = replace(current, renew_at=now + max(_PAUSE, wish))
            return current.text

    def _request(self) -> str:
        try:
            token = self._request_new()
        except SendoffError as error:
            metrics.token_request("failed")
            self._failure = copy.copy(error)  # a copy without the traceback
            raise
        else:
            metrics.token_request("granted")
            self._failure, self._token = None, token
            return token.text
        finally:
            self._attempts += 1

    def _request_new(self) -> _Token:
        now, credentials = self._transport.clock(), self._credentials
        text, seconds = request_token(self._transport, credentials.grant(now))
        _log.info("client ID %s has a new access token for %d seconds", credentials.client_id, seconds)
        warnings = tuple(expiry_warnings(credentials.certificate_ends, credentials.lifetime, seconds, now))
        for warning in warnings:
            _log.warning("client ID %s: %s", credentials.client_id, warning)
        lifetime = timedelta(seconds=seconds)
        return _Token(text, now + lifetime - min(lifetime / 4, _EARLY), now + lifetime, warnings)


def expiry_warnings(
    certificate_ends: datetime | None, asked_seconds: int | None, seconds: int, now: datetime
) -> Iterator[str]:
    """Yield a warning for each part of a login that expires soon, as far as a client can know it.

    A certificate shows its end if it was pasted beside its private key (section 2.2). A client ID shows its end only in
    a token that lasts fewer ``seconds`` than requested (section 5.1). A lower limit of the service has the same effect.
    """
    if certificate_ends is not None and certificate_ends - now <= _EXPIRY_NOTICE:
        ends = "ends" if certificate_ends > now else "ended"
        yield (
            f"the certificate of the private key {ends} at {certificate_ends:%Y-%m-%d %H:%M} UTC, and the service "
            "refuses expired ones; add a new certificate to the service, and paste it beside the key here"
        )
    if asked_seconds is not None and seconds < asked_seconds:
        yield (
            f"the token lasts {seconds} seconds, not the {asked_seconds} that were asked for: the client ID ends at "
            f"{now + timedelta(seconds=seconds):%Y-%m-%d %H:%M} UTC, or the service allows no longer lifetime"
        )


_sources: dict[bytes, TokenSource] = {}
_sources_lock = threading.Lock()


def token_source_for(
    credentials: Credentials, base_url: str, session: requests.Session, *, allow_http: bool = False
) -> TokenSource:
    """Return this process's only token source for a connection. ``session``: used if the source is new."""
    key = _digest(credentials, base_url, session)
    with _sources_lock:
        return _sources.setdefault(key, TokenSource(credentials, base_url, session, allow_http=allow_http))


def _digest(credentials: Credentials, base_url: str, session: requests.Session) -> bytes:
    """Return a digest that identifies a connection without storing its secrets a second time."""
    login = [getattr(credentials, each.name) for each in fields(credentials) if each.compare]
    network = (session.verify, session.cert, sorted(session.proxies.items()))
    parts = (type(credentials).__name__, login, base_url, network)
    return hashlib.blake2b(repr(parts).encode(), key=_DIGEST_KEY).digest()


_DIGEST_KEY = os.urandom(32)


def _forget_sources() -> None:
    """Drop the tokens, sockets, and locks that a forked process inherits."""
    global _sources_lock  # noqa: PLW0603 - a lock held at the time of the fork stays locked forever
    _sources_lock = threading.Lock()
    _sources.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_sources)
