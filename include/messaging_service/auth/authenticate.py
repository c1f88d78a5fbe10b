"""Authentication and scopes of requests to the External API (sections 2.2, 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from messaging_service.auth.client_ids import Application, ClientId, find_app
from messaging_service.auth.tokens import GrantRefusedError, accept_assertion, token_owner
from messaging_service.envelope import RejectedError
from messaging_service.store import Store

# The document does not date the deprecation, so the header (RFC 9745) carries the earliest possible date.
_DEPRECATED = {"Deprecation": "@0", "Link": '</api/oauth/token>; rel="successor-version"'}
_DEPRECATION = "deprecated: a JWT was sent as the bearer token; exchange it at /api/oauth/token (section 9)"


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request: a client ID, an app, or both, each identified by its token.

    ``signed`` is true if the client ID sent a JWT directly, which is deprecated.
    """

    client: ClientId | None
    app: Application | None
    signed: bool = False

    @property
    def client_id(self) -> str | None:
        """The client ID's value."""
        return self.client.client_id if self.client else None

    @property
    def time_zone(self) -> str:
        """The time zone of schedules that name none."""
        return self.app.time_zone if self.app else "UTC"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers to add to every answer to this principal."""
        return _DEPRECATED if self.signed else {}

    @property
    def warnings(self) -> Sequence[str]:
        """The warnings to record about how the principal authenticated."""
        return (_DEPRECATION,) if self.signed else ()

    def require(self, scope: str) -> None:
        """Raise RejectedError (403) if the client ID lacks a scope; an app token has all of them."""
        if self.client is not None and scope not in self.client.scopes:
            raise RejectedError(403, f"The client ID lacks the scope {scope}.")


def authenticate(
    store: Store, authorization: str | None, body: Mapping[str, Any], now: datetime
) -> Principal:
    """Return the principal of a bearer token, an app token, or both.

    Raise RejectedError: 400 if there is neither, 401 if either is not valid.
    """
    if authorization is None and "apptoken" not in body:
        raise RejectedError(400, "No authentication: send a bearer token or apptoken.")
    client, signed = None, False
    if authorization is not None:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        # An access token has no dots; a signed JWT has two.
        signed = token.count(".") == 2
        client = (_signer if signed else _holder)(store, token if scheme.lower() == "bearer" else "", now)
    return Principal(client, _app(store, body["apptoken"]) if "apptoken" in body else None, signed)


def _holder(store: Store, token: str, now: datetime) -> ClientId:
    with store.read() as connection:
        client = token_owner(connection, token, now)
    if client is None:
        raise RejectedError(401, "The access token is unknown or has expired.")
    return client


def _signer(store: Store, assertion: str, now: datetime) -> ClientId:
    try:
        # A separate transaction: the jti counts as used even if the request fails.
        with store.write() as connection:
            return accept_assertion(connection, assertion, now)[0]
    except GrantRefusedError as error:
        raise RejectedError(401, f"The JWT was refused: {error.description}.") from None


def _app(store: Store, token: object) -> Application:
    app = None
    if isinstance(token, str):
        with store.read() as connection:
            app = find_app(connection, token)
    if app is None:
        raise RejectedError(401, "There is no app with this apptoken.")
    return app
