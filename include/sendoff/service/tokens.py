"""Logging in: both grants of the token endpoint (sections 4.1 and 5), and the token that a process shares.

Asking for a token again is always safe, because each assertion is new and a token that nobody uses just ends.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import threading
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import jwt
import requests

from sendoff import metrics
from sendoff.errors import CredentialsError, RetryableError, SendoffError
from sendoff.service.expiry import endings
from sendoff.service.private_key import SigningKey, algorithm_for, certificate_end, read_private_key
from sendoff.service.token_endpoint import TOKEN_PATH, ask_for_token
from sendoff.service.transport import Clock, Timeout, checked_base_url, cut_when_told, utc_now

_log = logging.getLogger(__name__)

LONGEST_LIFETIME = 86_400  # seconds
TOKEN_DEADLINE = 40.0
"""Seconds after which the endpoint has not answered, whatever it has said: everybody else waits for this one."""
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_ASSERTION_LIFETIME = timedelta(minutes=5)
_CLOCK_SKEW = timedelta(seconds=10)  # how far a clock of ours may be ahead of the service's
_EARLY = timedelta(minutes=5)
_PAUSE = timedelta(seconds=30)  # between attempts to replace a token that is still good


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """A client ID of type Secret (section 5.2). ``lifetime`` is how long tokens should last, in seconds."""

    client_id: str
    client_secret: str = field(repr=False)
    lifetime: int | None = None
    certificate_ends: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_client(self.client_id, self.lifetime)
        if not self.client_secret.strip():
            raise CredentialsError("the client secret is empty")

    def grant(self, now: datetime) -> dict[str, str]:  # noqa: ARG002 - the other grant is dated
        """Give the fields of a token request."""
        lifetime = {} if self.lifetime is None else {"lifetime": str(self.lifetime)}
        return {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            **lifetime,
        }


@dataclass(frozen=True, slots=True)
class JwtBearer:
    """A client ID of type Public Key (section 5.1), with the private half of its key in PEM form.

    The algorithm follows from the key where it is not set. ``certificate_ends`` is known where the key's certificate
    stands beside it. Raises CredentialsError for a key that the service would not accept, before anything is signed
    with it.
    """

    client_id: str
    private_key: str = field(repr=False)
    algorithm: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    audience: str | None = None
    lifetime: int | None = None
    certificate_ends: datetime | None = field(init=False, repr=False, compare=False)
    _key: SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_client(self.client_id, self.lifetime)
        key = read_private_key(self.private_key, self.passphrase)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "certificate_ends", certificate_end(self.private_key, key))
        object.__setattr__(self, "algorithm", algorithm_for(key, self.algorithm))

    def grant(self, now: datetime) -> dict[str, str]:
        """Give the fields of a token request, with an assertion that is good for one."""
        return {
            "grant_type": JWT_GRANT,
            "assertion": jwt.encode(self._claims(now), self._key, self.algorithm),
        }

    def _claims(self, now: datetime) -> dict[str, Any]:
        claims = {
            "iss": self.client_id,
            "sub": self.client_id,
            "aud": self.audience,
            "iat": int((now - _CLOCK_SKEW).timestamp()),
            "exp": int((now + _ASSERTION_LIFETIME).timestamp()),
            "jti": str(uuid4()),
            "lifetime": self.lifetime,
        }
        return {name: value for name, value in claims.items() if value is not None}


Credentials = ClientSecret | JwtBearer


def _check_client(client_id: str, lifetime: int | None) -> None:
    if not client_id.strip():
        raise CredentialsError("the client ID is empty")
    if lifetime is not None and not 1 <= lifetime <= LONGEST_LIFETIME:
        raise CredentialsError(f"the token lifetime must be between 1 and {LONGEST_LIFETIME} seconds")


@dataclass(frozen=True, slots=True)
class _Token:
    """A token with the times at which to replace it and at which it ends."""

    text: str = field(repr=False)
    renew_at: datetime
    ends_at: datetime
    warnings: tuple[str, ...] = ()


class TokenSource:
    """Give the access token of one connection, asked for once however many threads want it.

    A token is replaced when a quarter of its lifetime is left, or five minutes if that is less; where the endpoint is
    out of reach then, the old one serves until it ends. ``allow_http`` allows a base URL with ``http://`` on another
    machine. Raises CredentialsError or SettingsError where a person must
    change something, else UnreachableError, RateLimitedError, ServiceUnavailableError or another RetryableError.
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
        self._url = (base := checked_base_url(base_url, allow_http=allow_http)) + TOKEN_PATH
        cut_when_told(session, base)
        self._session = session
        self._clock = clock
        self._timeout = timeout
        self._deadline = deadline
        self._asking = threading.Lock()
        self._attempts = 0
        self._failure: SendoffError | None = None
        self._held: _Token | None = None

    def token(self) -> str:
        """Give a token that has not ended."""
        attempts, held, now = self._attempts, self._held, self._clock()
        if held is None or now >= held.ends_at:
            return self._asked(attempts, instead_of=held)
        if now < held.renew_at or not self._asking.acquire(blocking=False):
            return held.text
        try:
            return self._replaced(held, now)
        finally:
            self._asking.release()

    def renew(self, rejected: str) -> str:
        """Give another token than the one that was answered with a 401 (section 5.3), asked for once."""
        attempts, held = self._attempts, self._held
        if held is not None and held.text != rejected:
            return self.token()
        return self._asked(attempts, instead_of=held)

    def warnings(self) -> tuple[str, ...]:
        """Say in sentences what of this login will end soon, as far as the token in use shows it."""
        return self._held.warnings if self._held else ()

    def _asked(self, attempts: int, *, instead_of: _Token | None) -> str:
        """Ask for a token, or share what another thread got while this one waited, be it a failure."""
        with self._asking:
            if self._held is not None and self._held is not instead_of:
                return self._held.text
            if self._failure is not None and self._attempts != attempts:
                raise copy.copy(self._failure)
            self._held = None
            return self._ask()

    def _replaced(self, held: _Token, now: datetime) -> str:
        """Ask for a token before the old one ends; without success the old one serves on."""
        if self._held is not held and self._held is not None:
            return self._held.text
        try:
            return self._ask()
        except RetryableError as error:
            _log.warning("the access token could not be renewed early: %s", error)
            wish = timedelta(seconds=getattr(error, "retry_after", None) or 0)
            self._held = replace(held, renew_at=now + max(_PAUSE, wish))
            return held.text

    def _ask(self) -> str:
        try:
            token = self._ask_endpoint()
        except SendoffError as error:
            metrics.token_request("failed")
            self._failure = copy.copy(error)  # without the frames of its traceback
            raise
        else:
            metrics.token_request("granted")
            self._failure, self._held = None, token
            return token.text
        finally:
            self._attempts += 1

    def _ask_endpoint(self) -> _Token:
        now, credentials = self._clock(), self._credentials
        grant = credentials.grant(now)
        text, seconds = ask_for_token(
            self._session,
            self._url,
            grant,
            timeout=self._timeout,
            deadline=self._deadline,
            clock=self._clock,
        )
        _log.info("client ID %s has a new access token for %d seconds", credentials.client_id, seconds)
        warnings = tuple(endings(credentials.certificate_ends, credentials.lifetime, seconds, now))
        for warning in warnings:
            _log.warning("client ID %s: %s", credentials.client_id, warning)
        lifetime = timedelta(seconds=seconds)
        return _Token(text, now + lifetime - min(lifetime / 4, _EARLY), now + lifetime, warnings)


_sources: dict[bytes, TokenSource] = {}
_sources_lock = threading.Lock()


def token_source_for(
    credentials: Credentials, base_url: str, session: requests.Session, *, allow_http: bool = False
) -> TokenSource:
    """Give the one source of tokens that this process has for a connection; ``session`` serves a new one."""
    key = _digest(credentials, base_url, session)
    with _sources_lock:
        return _sources.setdefault(key, TokenSource(credentials, base_url, session, allow_http=allow_http))


def _digest(credentials: Credentials, base_url: str, session: requests.Session) -> bytes:
    """Tell connections apart without keeping their secrets a second time."""
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
    global _sources_lock  # noqa: PLW0603 - a lock that was held at the fork stays locked for ever
    _sources_lock = threading.Lock()
    _sources.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_sources)
