"""Apps with their tokens, and client IDs with their secrets or public keys (section 2.2)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from messaging_service.auth.public_keys import KeyRefusedError, PublicKey, read_public_key
from messaging_service.auth.scopes import ALL_SCOPES, read_scopes
from messaging_service.store import Store
from messaging_service.tables import apps, client_ids

_OLDEST_FIRST = (client_ids.c.created_at, client_ids.c.client_id)


class ClientType(StrEnum):
    """How a client ID authenticates."""

    SECRET = "secret"  # noqa: S105  # the name of a type
    PUBLIC_KEY = "public-key"


class RegistrationError(ValueError):
    """An app or client ID cannot be added; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Application:
    """An application: requests carry its token; its time zone applies to schedules that name none."""

    id: int
    name: str
    token: str = field(repr=False)
    time_zone: str


@dataclass(frozen=True, slots=True)
class ClientId:
    """A client ID, with the digest of its secret or with its public key."""

    client_id: str
    name: str
    type: ClientType
    secret_digest: str | None = field(repr=False)
    key_text: str | None = field(repr=False)
    expires_at: datetime | None
    scopes: tuple[str, ...] = ALL_SCOPES

    def has_secret(self, secret: str) -> bool:
        """Check in constant time whether ``secret`` is the client's."""
        return self.secret_digest is not None and hmac.compare_digest(self.secret_digest, digest(secret))

    def valid_key(self, now: datetime) -> PublicKey:
        """Return the public key. Raise KeyRefusedError if it is too short or its certificate is not valid now."""
        key = read_public_key(self.key_text or "")
        key.check_validity(now)
        return key

    @property
    def key(self) -> PublicKey | None:
        """Return the public key, expired or not; None if there is none, or if it would not be accepted today."""
        try:
            return read_public_key(self.key_text) if self.key_text else None
        except KeyRefusedError:
            return None

    def is_expired(self, now: datetime) -> bool:
        """Check whether the client ID or its certificate has expired."""
        return self.expires_at is not None and now >= self.expires_at


def digest(secret: str) -> str:
    """Return the stored form of a secret or token; both are long and random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def end_of_day(text: str) -> datetime:
    """Return when a date such as 2030-12-31 is over, in UTC. Raise ValueError if it is not a date."""
    last = date.fromisoformat(text)
    try:
        return datetime(last.year, last.month, last.day, tzinfo=UTC) + timedelta(days=1)
    except OverflowError:
        raise ValueError("this date is too late") from None


def add_app(store: Store, name: str, time_zone: str, now: datetime) -> Application:
    """Add an app with a new token. Raise RegistrationError if the name is taken or the time zone unknown."""
    try:
        ZoneInfo(time_zone)
    except (KeyError, ValueError, OSError):
        raise RegistrationError(
            f"unknown time zone {time_zone}: use an IANA name, such as Europe/Dublin"
        ) from None
    token = secrets.token_urlsafe(24)
    row = {"name": name, "token": token, "time_zone": time_zone, "created_at": now.timestamp()}
    try:
        with store.write() as connection:
            key = connection.execute(insert(apps).values(row)).inserted_primary_key
    except IntegrityError:
        raise RegistrationError(f"there is already an app named {name!r}") from None
    return Application(key[0] if key else 0, name, token, time_zone)


def find_app(connection: Connection, token: str) -> Application | None:
    """Return the app with this token, or None."""
    row = connection.execute(select(apps).where(apps.c.token == token)).one_or_none()
    return Application(row.id, row.name, row.token, row.time_zone) if row else None


def add_secret_client(
    store: Store,
    name: str,
    now: datetime,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = ALL_SCOPES,
) -> tuple[ClientId, str]:
    """Add a client ID of type Secret. Return it with its secret, which is not stored or shown again."""
    secret = secrets.token_urlsafe(36)
    allowed = read_scopes(scopes)
    client = ClientId(_new_id(), name, ClientType.SECRET, digest(secret), None, expires_at, allowed)
    _store(store, client, now)
    return client, secret


def add_key_client(
    store: Store,
    name: str,
    pem: str,
    now: datetime,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = ALL_SCOPES,
) -> ClientId:
    """Add a client ID of type Public Key. Raise RegistrationError if the key is refused or not valid now."""
    try:
        key = read_public_key(pem)
        key.check_validity(now)
    except KeyRefusedError as error:
        raise RegistrationError(str(error)) from None
    if key.expires_at and expires_at:
        raise RegistrationError("a certificate has its own expiry: leave out the expiry of the client ID")
    ends, allowed = key.expires_at or expires_at, read_scopes(scopes)
    client = ClientId(_new_id(), name, ClientType.PUBLIC_KEY, None, pem.strip(), ends, allowed)
    _store(store, client, now)
    return client


def set_scopes(store: Store, client_id: str, scopes: Sequence[str]) -> ClientId:
    """Restrict a client ID and its existing tokens to these scopes. Raise RegistrationError if it does not exist."""
    allowed = list(read_scopes(scopes))
    with store.write() as connection:
        statement = update(client_ids).where(client_ids.c.client_id == client_id)
        connection.execute(statement.values(scopes=allowed))
        client = find_client(connection, client_id)
    if client is None:
        raise RegistrationError("there is no such client ID")
    return client


def list_clients(store: Store) -> list[ClientId]:
    """Return every client ID, oldest first."""
    with store.read() as connection:
        return [_client(row) for row in connection.execute(select(client_ids).order_by(*_OLDEST_FIRST))]


def find_client(connection: Connection, client_id: str) -> ClientId | None:
    """Return the client ID with this value, or None."""
    row = connection.execute(select(client_ids).where(client_ids.c.client_id == client_id)).one_or_none()
    return _client(row) if row else None


def _new_id() -> str:
    return secrets.token_hex(16)


def _store(store: Store, client: ClientId, now: datetime) -> None:
    if client.is_expired(now):
        raise RegistrationError("the expiry is in the past")
    row = {
        "client_id": client.client_id,
        "name": client.name,
        "type": client.type.value,
        "secret_digest": client.secret_digest,
        "key": client.key_text,
        "scopes": list(client.scopes),
        "expires_at": client.expires_at.timestamp() if client.expires_at else None,
        "created_at": now.timestamp(),
    }
    with store.write() as connection:
        connection.execute(insert(client_ids).values(row))


def _client(row: Row[tuple[object, ...]]) -> ClientId:
    return ClientId(
        client_id=row.client_id,
        name=row.name,
        type=ClientType(row.type),
        secret_digest=row.secret_digest,
        key_text=row.key,
        expires_at=datetime.fromtimestamp(row.expires_at, UTC) if row.expires_at is not None else None,
        scopes=tuple(row.scopes),
    )
