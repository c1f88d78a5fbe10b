"""Post-backs: their signed addresses, and the events that arrive there.

The service does not sign post-backs or send event IDs, but each request chooses its own addresses (service.md, section
6). So the signed address identifies the dispatch and the kind of event, and the body only confirms them.
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
from sendoff.service.urls import checked_parts
from sendoff.service.wire import PostBackAddresses, PostBackBody, Unreadable, read_post_back
from sendoff.settings import Settings
from sendoff.states import PostBackKind

MATCHED_BY = {"device_id": "device_id", "user_id": "user_id"}
"""The member of a post-back that matches each identifier column (service.md, section 6)."""

_ADDRESS = re.compile(r"/v1/(delivery|open)/([0-9a-f]{32})/([^/]{1,100})", re.ASCII)
_SHORTEST_SECRET = 32
_MOST_REMEMBERED = 20_000  # paths; a dispatch has two, and each takes about 500 bytes


@dataclass(frozen=True, slots=True)
class PostBackSigner:
    """Signs the addresses of post-backs and verifies them.

    An address is ``{public_url}/v1/{kind}/{dispatch_key}/{signature}``. The signature is an HMAC-SHA256 of
    ``v1/{kind}/{dispatch_key}`` under the first secret. Signatures under any of the secrets are valid, so that a secret
    can be replaced while launches are running. Raise SettingsError if the URL or a secret cannot be used.
    """

    public_url: str
    secrets: Sequence[str] = field(repr=False)
    _valid: dict[str, tuple[str, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        place = "the public URL of post-backs (SENDOFF_PUBLIC_URL, or the host of the connection sendoff_receiver)"
        checked_parts(self.public_url, place)
        if not 1 <= len(self.secrets) <= 2:
            raise SettingsError("post-backs need one secret, or two during a replacement")
        if any(len(secret) < _SHORTEST_SECRET for secret in self.secrets):
            raise SettingsError(f"a post-back secret needs {_SHORTEST_SECRET} characters or more")
        if any(len(secret.splitlines()) > 1 for secret in self.secrets):
            raise SettingsError("a post-back secret has a line break in it; separate two secrets by a comma")

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Create a signer from the settings. Raise SettingsError if the public URL or a secret is missing."""
        settings.require("public_url", "post_back_secrets")
        return cls(
            str(settings.public_url), [secret.get_secret_value() for secret in settings.post_back_secrets]
        )

    def for_dispatch(
        self, dispatch_key: str, kinds: Collection[str] = tuple(PostBackKind)
    ) -> PostBackAddresses:
        """Return a signed address of a dispatch for each of ``kinds``."""
        return PostBackAddresses(**{kind: self.sign(kind, dispatch_key) for kind in kinds})

    def sign(self, kind: str, dispatch_key: str) -> str:
        """Return the signed address for one kind of post-back of a dispatch (32 lowercase hex characters)."""
        path = f"v1/{kind}/{dispatch_key}"
        signature = _signature(self.secrets[0], path).decode()
        if not _ADDRESS.fullmatch(f"/{path}/{signature}"):
            raise ValueError("an address is made of a known kind and a dispatch key of 32 hex digits")
        return f"{self.public_url.rstrip('/')}/{path}/{signature}"

    def verify(self, kind: str, dispatch_key: str, signature: str) -> bool:
        """Check in constant time whether one of the secrets made this signature."""
        given = signature.encode(errors="replace")
        path = f"v1/{kind}/{dispatch_key}"
        valid = False
        for secret in self.secrets:
            valid |= hmac.compare_digest(_signature(secret, path), given)
        return valid

    def read(self, path: str) -> tuple[str, str] | None:
        """Return the kind and the dispatch key of a request's path, or None if its signature is not valid.

        The path of ``public_url`` may come before ``/v1`` or be missing, because a proxy may pass it on or strip it.

        Valid paths are remembered as a whole, because each dispatch gets thousands of post-backs. All are forgotten
        once there are too many. Other paths are never remembered.
        """
        if known := self._valid.get(path):
            return known
        prefix = urlsplit(self.public_url).path.rstrip("/")  # it may be /v1 itself
        match = _ADDRESS.fullmatch(path) or _ADDRESS.fullmatch(path.removeprefix(prefix))
        if not match or not self.verify(*match.groups()):
            return None
        if len(self._valid) >= _MOST_REMEMBERED:
            self._valid.clear()
        self._valid[path] = match[1], match[2]
        return match[1], match[2]


def _signature(secret: str, path: str) -> bytes:
    digest = hmac.digest(secret.encode(), path.encode(errors="replace"), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=")


@dataclass(slots=True)
class PostBack:
    """One post-back: the contents of its address, the time it arrived, and its body, parsed if possible."""

    kind: str  # a PostBackKind
    dispatch_key: str = field(repr=False)
    received_at: datetime
    body: bytes = field(repr=False)  # unchanged; it names a person's device
    fields: PostBackBody | None = field(repr=False)  # None: the body is unreadable

    @classmethod
    def received(cls, kind: str, dispatch_key: str, received_at: datetime, body: bytes) -> Self:
        """Parse the body (service.md, section 6). An unreadable one is kept anyway."""
        try:
            fields = read_post_back(body, received_at)
        except Unreadable:
            fields = None
        return cls(kind, dispatch_key, received_at, body, fields)
