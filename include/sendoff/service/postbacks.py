"""Post-backs: the addresses that they are sent to, and what arrived there.

The service signs nothing, shows no event id and lets us choose the addresses of each request (service.md, section 6).
So the signed address names the dispatch and the kind of event, and the body only confirms them.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self
from urllib.parse import urlsplit

from sendoff.errors import SettingsError
from sendoff.service.wire import PostBackAddresses, PostBackBody, Unreadable, read_post_back
from sendoff.settings import Settings
from sendoff.states import PostBackKind

_ADDRESS = re.compile(r"/v1/(delivery|open)/([0-9a-f]{32})/([^/]{1,100})", re.ASCII)
_SHORTEST_SECRET = 32


@dataclass(frozen=True, slots=True)
class PostBackSigner:
    """Sign the addresses of post-backs, and recognise them again.

    An address is ``{public_url}/v1/{kind}/{dispatch_key}/{signature}``. The signature is an HMAC-SHA256 of
    the part between, under the first secret; one under any of the secrets is valid, so that a secret can be
    replaced while launches are running. Raises SettingsError for an unusable URL or secret.
    """

    public_url: str
    secrets: Sequence[str] = field(repr=False)

    def __post_init__(self) -> None:
        _check_public_url(self.public_url)
        if not 1 <= len(self.secrets) <= 2:
            raise SettingsError("post-backs need one secret, or two while one replaces the other")
        if any(len(secret) < _SHORTEST_SECRET for secret in self.secrets):
            raise SettingsError(f"a post-back secret needs {_SHORTEST_SECRET} characters or more")

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Use the public URL and secrets of a deployment, or raise SettingsError naming what is missing."""
        if settings.public_url is None:
            raise SettingsError("SENDOFF_PUBLIC_URL is not set: where does the service reach the receiver?")
        if not settings.post_back_secrets:
            raise SettingsError(
                "SENDOFF_POST_BACK_SECRETS is not set: what signs the addresses of post-backs, the same for the "
                "receiver and for Airflow (a new one: openssl rand -hex 32)"
            )
        return cls(settings.public_url, [secret.get_secret_value() for secret in settings.post_back_secrets])

    def for_dispatch(
        self, dispatch_key: str, kinds: Collection[str] = tuple(PostBackKind)
    ) -> PostBackAddresses:
        """Sign an address for each of ``kinds`` of one dispatch."""
        return PostBackAddresses(**{kind: self.sign(kind, dispatch_key) for kind in kinds})

    def sign(self, kind: str, dispatch_key: str) -> str:
        """Return the full address for one kind of post-back of one dispatch (32 lowercase hex characters)."""
        path = f"v1/{kind}/{dispatch_key}"
        signature = _signature(self.secrets[0], path).decode()
        if not _ADDRESS.fullmatch(f"/{path}/{signature}"):
            raise ValueError("an address is made of a known kind and a dispatch key of 32 hex digits")
        return f"{self.public_url.rstrip('/')}/{path}/{signature}"

    def verify(self, kind: str, dispatch_key: str, signature: str) -> bool:
        """Check whether one of the secrets signed this, in constant time."""
        given = signature.encode(errors="replace")
        path = f"v1/{kind}/{dispatch_key}"
        valid = False
        for secret in self.secrets:
            valid |= hmac.compare_digest(_signature(secret, path), given)
        return valid

    def read(self, path: str) -> tuple[str, str] | None:
        """Return the kind and the dispatch key of a request's path, or None if we did not sign it.

        A path in front of ``/v1``, as ``public_url`` may carry it, is understood and need not be there: a
        proxy passes it on or takes it off.
        """
        match = _ADDRESS.fullmatch(path.removeprefix(urlsplit(self.public_url).path.rstrip("/")))
        if match and self.verify(*match.groups()):
            return match[1], match[2]
        return None


def _check_public_url(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError("the public URL of post-backs is not a URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError("the public URL of post-backs starts with https:// (or http://) and names a host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise SettingsError("the public URL of post-backs has no user, password, query or fragment")


def _signature(secret: str, path: str) -> bytes:
    digest = hmac.digest(secret.encode(), path.encode(errors="replace"), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=")


@dataclass(frozen=True, slots=True)
class PostBack:
    """One post-back as it arrived: what its address says, when, and its body, read as far as it goes."""

    kind: str  # a PostBackKind
    dispatch_key: str = field(repr=False)
    received_at: datetime
    body: bytes = field(repr=False)  # as it came; it names a person's device
    fields: PostBackBody | None = field(repr=False)  # None: the body is unreadable

    @classmethod
    def received(cls, kind: str, dispatch_key: str, received_at: datetime, body: bytes) -> Self:
        """Read the body (service.md, section 6); one that cannot be read is kept all the same."""
        try:
            fields = read_post_back(body)
        except Unreadable:
            fields = None
        return cls(kind, dispatch_key, received_at, body, fields)
