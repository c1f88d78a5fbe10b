"""The two grants of the token endpoint: a client secret, or a signed assertion (service.md, sections 5.1 and 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import jwt

from sendoff.errors import CredentialsError
from sendoff.service.private_key import SigningKey, algorithm_for, certificate_end, read_private_key

MAX_LIFETIME = 86_400  # seconds
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

_ASSERTION_LIFETIME = timedelta(minutes=5)
_CLOCK_SKEW = timedelta(seconds=10)  # how far our clock may be ahead of the service's


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """A client ID of type Secret (section 5.2). ``lifetime``: the requested lifetime of tokens, in seconds."""

    client_id: str
    client_secret: str = field(repr=False)
    lifetime: int | None = None
    certificate_ends: ClassVar[None] = None

    def __post_init__(self) -> None:
        _check_client(self.client_id, self.lifetime)
        if not self.client_secret.strip():
            raise CredentialsError("the client secret is empty")

    def grant(self, now: datetime) -> dict[str, str]:  # noqa: ARG002 - only the other grant needs the time
        """Return the fields of a token request."""
        lifetime = {} if self.lifetime is None else {"lifetime": str(self.lifetime)}
        return {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            **lifetime,
        }


@dataclass(frozen=True, slots=True)
class JwtBearer:
    """A client ID of type Public Key (section 5.1), with its private key in PEM form.

    Without ``algorithm``, the key decides it. ``certificate_ends`` is set if the key's certificate was pasted beside
    it. Raise CredentialsError before anything is signed if the service would not accept the key.
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
        """Return the fields of a token request, with an assertion for one request."""
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
    if lifetime is not None and not 1 <= lifetime <= MAX_LIFETIME:
        raise CredentialsError(f"the token lifetime must be between 1 and {MAX_LIFETIME} seconds")
