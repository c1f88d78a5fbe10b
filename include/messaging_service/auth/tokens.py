"""The two grants of the token endpoint (sections 4.1, 5.1, 5.2), and the check of issued tokens.

Tokens are random, stored as digests, and belong to a client ID. They cannot be revoked. They expire at the end of
their lifetime, or earlier with their client ID.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from jwt.types import Options
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from messaging_service.auth.client_ids import ClientId, ClientType, digest, find_client
from messaging_service.auth.public_keys import KeyRefusedError
from messaging_service.store import Store
from messaging_service.tables import access_tokens, client_ids, spent_assertions

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT_CREDENTIALS = "client_credentials"
LONGEST_LIFETIME = 86_400
USUAL_LIFETIME = 3_600
_SIGNATURE_ONLY: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


class GrantRefusedError(Exception):
    """A token request is refused, in the form of RFC 6749: status, error and error_description."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description)
        self.error = error
        self.description = description
        self.status = status


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, returned once by the endpoint: only its digest is stored."""

    access_token: str = field(repr=False)
    expires_in: int


def grant(store: Store, fields: Mapping[str, Any], now: datetime) -> AccessToken:
    """Return a token for the fields of a token request, or raise GrantRefusedError."""
    kind = _text(fields, "grant_type")
    if kind == CLIENT_CREDENTIALS:
        return _grant_by_secret(store, fields, now)
    if kind == JWT_BEARER:
        return _grant_by_assertion(store, fields, now)
    raise GrantRefusedError(
        "unsupported_grant_type", f"grant_type must be {CLIENT_CREDENTIALS} or {JWT_BEARER}"
    )


def token_owner(connection: Connection, token: str, now: datetime) -> ClientId | None:
    """Return the client ID that holds this token, or None if the token or the client ID has expired."""
    query = (
        select(access_tokens.c.client_id)
        .join(client_ids)
        .where(access_tokens.c.digest == digest(token), access_tokens.c.expires_at > now.timestamp())
    )
    client_id = connection.execute(query).scalar_one_or_none()
    client = find_client(connection, client_id) if client_id else None
    if client is None or client.is_expired(now):
        return None
    try:
        if client.key_text:
            client.valid_key(now)
    except KeyRefusedError:
        return None
    return client


def end_early(store: Store, token: str, now: datetime) -> None:
    """Expire a token early, as a fault."""
    ended = update(access_tokens).where(access_tokens.c.digest == digest(token))
    with store.write() as connection:
        connection.execute(ended.values(expires_at=now.timestamp()))


def accept_assertion(connection: Connection, assertion: str, now: datetime) -> tuple[ClientId, int]:
    """Check a signed JWT and mark its jti as used. Return its client ID and the requested lifetime (section 5.1)."""
    client = find_client(connection, _claimed_issuer(assertion))
    if client is None or client.type is not ClientType.PUBLIC_KEY:
        raise GrantRefusedError("invalid_grant", "iss must be a client ID of type Public Key")
    claims = _verify(assertion, client, now)
    lifetime = _lifetime(claims.get("lifetime"), "invalid_grant")
    _spend(connection, client, claims.get("jti"))
    return client, lifetime


def _grant_by_secret(store: Store, fields: Mapping[str, Any], now: datetime) -> AccessToken:
    client_id, secret = _text(fields, "client_id"), _text(fields, "client_secret")
    lifetime = _lifetime(fields.get("lifetime"), "invalid_request")
    with store.write() as connection:
        client = find_client(connection, client_id)
        if client is None or client.type is not ClientType.SECRET or not client.has_secret(secret):
            raise GrantRefusedError("invalid_client", "the client ID is unknown or the secret is wrong", 401)
        if client.is_expired(now):
            raise GrantRefusedError("invalid_client", "the client ID has expired", 401)
        return _issue(connection, client, lifetime, now)


def _grant_by_assertion(store: Store, fields: Mapping[str, Any], now: datetime) -> AccessToken:
    assertion = _text(fields, "assertion")
    with store.write() as connection:
        client, lifetime = accept_assertion(connection, assertion, now)
        return _issue(connection, client, lifetime, now)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise GrantRefusedError("invalid_request", f"{name} is required, as a string")


def _lifetime(value: object, error: str) -> int:
    """Read the requested lifetime. Shorten one that is too long, because the client follows expires_in."""
    if value is None:
        return USUAL_LIFETIME
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)  # form fields have no numbers
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GrantRefusedError(error, "lifetime must be a number of seconds, 1 or more")
    return min(value, LONGEST_LIFETIME)


def _claimed_issuer(assertion: str) -> str:
    try:
        claims = jwt.decode(assertion, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise GrantRefusedError("invalid_grant", "the assertion is not a signed JWT") from None
    return _string(claims, "iss")


def _verify(assertion: str, client: ClientId, now: datetime) -> Mapping[str, Any]:
    if client.is_expired(now):
        raise GrantRefusedError("invalid_grant", "the client ID or its certificate has expired")
    try:
        key = client.valid_key(now)
    except KeyRefusedError as error:
        raise GrantRefusedError("invalid_grant", str(error)) from None
    try:
        # The key decides which algorithms are allowed. This checks the signature only; the claims follow.
        token = jwt.decode_complete(
            assertion, key.key, algorithms=list(key.algorithms), options=_SIGNATURE_ONLY
        )
    except jwt.InvalidAlgorithmError:
        allowed = " or ".join(key.algorithms)
        raise GrantRefusedError("invalid_grant", f"the key of this client ID allows {allowed} only") from None
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise GrantRefusedError("invalid_grant", "the signature does not match the key") from None
    claims: Mapping[str, Any] = token["payload"]
    _check_claims(claims, client, now.timestamp())
    return claims


def _check_claims(claims: Mapping[str, Any], client: ClientId, now: float) -> None:
    for name in ("iss", "sub"):
        if _string(claims, name) != client.client_id:
            raise GrantRefusedError("invalid_grant", f"{name} is not the client ID")
    if _seconds(claims, "exp") <= now:
        raise GrantRefusedError("invalid_grant", "the assertion has expired (exp)")
    if _seconds(claims, "iat") > now:
        raise GrantRefusedError("invalid_grant", "the assertion was issued in the future (iat)")
    if claims.get("nbf") is not None and _seconds(claims, "nbf") > now:
        raise GrantRefusedError("invalid_grant", "the assertion is not valid yet (nbf)")


def _string(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise GrantRefusedError("invalid_grant", f"the claim {name} is required, as a string")


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return value
    raise GrantRefusedError("invalid_grant", f"the claim {name} is required, in seconds since 1970")


def _spend(connection: Connection, client: ClientId, jti: object) -> None:
    if jti is None:
        return
    if not isinstance(jti, str) or not 0 < len(jti) <= 255 or "\0" in jti:
        raise GrantRefusedError("invalid_grant", "jti must be a string of 1 to 255 characters")
    try:
        connection.execute(insert(spent_assertions).values(client_id=client.client_id, jti=jti))
    except IntegrityError:
        raise GrantRefusedError("invalid_grant", "this jti was already used") from None


def _issue(connection: Connection, client: ClientId, lifetime: int, now: datetime) -> AccessToken:
    if client.expires_at is not None:
        lifetime = min(lifetime, int((client.expires_at - now).total_seconds()))
    if lifetime < 1:
        raise GrantRefusedError("invalid_client", "the client ID is about to expire", 401)
    token = secrets.token_urlsafe(32)
    ends = now + timedelta(seconds=lifetime)
    connection.execute(
        insert(access_tokens).values(
            digest=digest(token), client_id=client.client_id, expires_at=ends.timestamp()
        )
    )
    return AccessToken(token, lifetime)


def machine_time() -> datetime:
    """Return the machine's time, in UTC; tokens and assertions follow it."""
    return datetime.now(UTC)
