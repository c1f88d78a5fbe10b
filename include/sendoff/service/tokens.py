"""The access token of a connection (sections 4.1 and 5), which all threads of a process share.

Asking for a token again is always safe, because each assertion is new and a token that nobody uses just ends.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import requests

from sendoff.errors import RetryableError, SendoffError
from sendoff.service.credentials import ClientSecret, Credentials
from sendoff.service.token_endpoint import request_token
from sendoff.service.transport import Clock, Timeout, Transport, utc_now
from sendoff.telemetry import metrics

_log = logging.getLogger(__name__)

TOKEN_DEADLINE = 40.0
"""Seconds until a request for a token fails: all other threads wait for it."""

_EARLY = timedelta(minutes=5)
_EXPIRY_NOTICE = timedelta(days=14)
_PAUSE = timedelta(seconds=30)  # between attempts to replace a token that is still good


@dataclass(frozen=True, slots=True)
class _Token:
    """A token with the times at which to replace it and at which it ends."""

    text: str = field(repr=False)
    renew_at: datetime
    ends_at: datetime
    warnings: tuple[str, ...] = ()


class TokenSource:
    """The access token of one connection, requested once however many threads want it.

    A token is renewed when a quarter of its lifetime is left, or five minutes if that is less. If the endpoint is out
    of reach then, the old one serves until it ends. ``allow_http`` allows a base URL with ``http://`` on another
    machine. Raises CredentialsError or SettingsError if a person must change something, else UnreachableError,
    RateLimitedError, ServiceUnavailableError or another RetryableError.
    """

    def __init__(
        self,
        credentials: Credentials,
        base_url: str,
        session: requests.Session,
        *,
        clock: Clock = utc_now,
        timeout: Timeout = (5.0, 30.0),
        deadline: float = TOKEN_DEADLINE,
        allow_http: bool = False,
    ) -> None:
        self._credentials = credentials
        self._transport = Transport(base_url, session, timeout, deadline, clock, allow_http)
        self._lock = threading.Lock()
        self._attempts = 0
        self._failure: SendoffError | None = None
        self._token: _Token | None = None

    def token(self) -> str:
        """Return a token that has not ended."""
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
        """Return another token than the one that the service rejected with a 401 (section 5.3), requested once."""
        attempts, current = self._attempts, self._token
        if current is not None and current.text != rejected:
            return self.token()
        return self._request_shared(attempts, instead_of=current)

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each part of this login that ends soon, as far as the token in use shows it."""
        return self._token.warnings if self._token else ()

    def _request_shared(self, attempts: int, *, instead_of: _Token | None) -> str:
        """Request a token, or share what another thread got while this one waited, a failure too."""
        with self._lock:
            if self._token is not None and self._token is not instead_of:
                return self._token.text
            if self._failure is not None and self._attempts != attempts:
                raise copy.copy(self._failure)
            self._token = None
            return self._request()

    def _renew_early(self, current: _Token, now: datetime) -> str:
        """Request a token before the current one ends; if that fails, the current one serves on."""
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
            self._failure = copy.copy(error)  # without the frames of its traceback
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
    """Yield a sentence for each part of a login that ends soon, as far as a client can know it (sections 2.2 and 5.1).

    A certificate shows its end if it was pasted beside its private key. A client ID shows its end only in a token that
    lasts fewer ``seconds`` than were asked for, which a lower limit of the service causes too.
    """
    if certificate_ends is not None and certificate_ends - now <= _EXPIRY_NOTICE:
        ends = "ends" if certificate_ends > now else "ended"
        yield (
            f"the certificate of the private key {ends} at {certificate_ends:%Y-%m-%d %H:%M} UTC, and the service "
            "refuses one that has ended; add a new one to the service, and put it beside the key here"
        )
    if asked_seconds is not None and seconds < asked_seconds:
        yield (
            f"the token lasts {seconds} seconds, not the {asked_seconds} that were asked for: the client ID ends at "
            f"{now + timedelta(seconds=seconds):%Y-%m-%d %H:%M} UTC, or the service allows no more"
        )


_sources: dict[bytes, TokenSource] = {}
_sources_lock = threading.Lock()


def token_source_for(
    credentials: Credentials, base_url: str, session: requests.Session, *, allow_http: bool = False
) -> TokenSource:
    """Return the one source of tokens that this process has for a connection; ``session`` is for a new one."""
    key = _digest(credentials, base_url, session)
    with _sources_lock:
        return _sources.setdefault(key, TokenSource(credentials, base_url, session, allow_http=allow_http))


def _digest(credentials: Credentials, base_url: str, session: requests.Session) -> bytes:
    """Return a digest that differs between connections, without keeping their secrets a second time."""
    secrets = (
        (credentials.client_secret,)
        if isinstance(credentials, ClientSecret)
        else (credentials.private_key, credentials.algorithm, credentials.audience)
    )
    network = (session.verify, session.cert, sorted(session.proxies.items()))
    parts = (
        type(credentials).__name__,
        credentials.client_id,
        credentials.lifetime,
        base_url,
        secrets,
        network,
    )
    return hashlib.blake2b(repr(parts).encode(), key=_DIGEST_KEY).digest()


_DIGEST_KEY = os.urandom(32)


def _forget_sources() -> None:
    """Start a forked process without the tokens, sockets and locked locks of its parent."""
    global _sources_lock  # noqa: PLW0603 - a lock that was current at the fork stays locked for ever
    _sources_lock = threading.Lock()
    _sources.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_sources)
