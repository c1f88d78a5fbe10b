"""The addresses where recipients opt out: one for each recipient and launch, which hides the identifier.

The token of an address is encrypted and authenticated under a key derived from the post-back secret. Whoever sees it,
such as a proxy that logs paths, learns no identifier, and no one can make another one. The same recipient of the same
launch always has the same token, so a request that is sent again has the same body.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sendoff.errors import AudienceError
from sendoff.service.postbacks import PostBackSigner

if TYPE_CHECKING:
    from sendoff.audience.identifiers import Identifiers

OPT_OUT_PATH = "/v1/opt-out/"
"""The start of the path of each address, after the path of the public URL."""

LONGEST_IDENTIFIER = 900
"""The number of bytes of the longest identifier that an address can have."""

_TOKEN = re.compile(r"[0-9A-Za-z_-]{40,1400}", re.ASCII)  # room for LONGEST_IDENTIFIER and the longest topic
_INFO = b"sendoff opt-out, version 1"
_SEPARATOR = "\0"


@dataclass(frozen=True, slots=True)
class OptOut:
    """What an address says: who opts out of what, and which launch led to it."""

    launch_key: str
    scope: str
    identified_by: str
    identifier: str = field(repr=False)


def check_identifiers(identifiers: Identifiers) -> None:
    """Raise AudienceError if one of these identifiers is too long for an address to opt out."""
    if identifiers.kind == "string":
        _check_length(identifiers.longest())


def _check_length(length: int) -> None:
    if length > LONGEST_IDENTIFIER:
        raise AudienceError(
            f"an identifier of {length:,} bytes is too long for an address to opt out (template.unsubscribe_url): it "
            f"has room for {LONGEST_IDENTIFIER}. Use shorter identifiers, or remove template.unsubscribe_url"
        )


@dataclass(frozen=True)
class OptOutSigner:
    """Makes the addresses where recipients opt out, and reads them.

    An address is ``{public_url}/v1/opt-out/{token}``. The token holds the launch, the scope, and the recipient,
    encrypted with AES-SIV (RFC 5297) under a key from the first secret. Tokens under any of the secrets are valid, so
    that a secret can be replaced.
    """

    public_url: str
    secrets: Sequence[str] = field(repr=False)

    @classmethod
    def of(cls, signer: PostBackSigner) -> Self:
        """Return the signer with the same public URL and secrets as that of post-backs."""
        return cls(signer.public_url, signer.secrets)

    def sign(self, opt_out: OptOut) -> str:
        """Return the address of one recipient of a launch. Raise AudienceError if the identifier is too long."""
        _check_length(len(opt_out.identifier.encode()))
        parts = (opt_out.launch_key, opt_out.scope, opt_out.identified_by, opt_out.identifier)
        sealed = self._ciphers[0].encrypt(_SEPARATOR.join(parts).encode(), None)
        token = urlsafe_b64encode(sealed).rstrip(b"=").decode()
        return f"{self.public_url.rstrip('/')}{OPT_OUT_PATH}{token}"

    def read(self, path: str) -> OptOut | None:
        """Return what the address of a request's path says, or None if it was not made under one of the secrets.

        The path of ``public_url`` may come before or be missing, because a proxy may pass it on or strip it.
        """
        prefix = urlsplit(self.public_url).path.rstrip("/")  # it may be the beginning of OPT_OUT_PATH
        path = path if path.startswith(OPT_OUT_PATH) else path.removeprefix(prefix)
        token = path.removeprefix(OPT_OUT_PATH)
        if not _TOKEN.fullmatch(token):
            return None
        try:
            sealed = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError:
            return None
        for cipher in self._ciphers:
            try:
                return OptOut(*cipher.decrypt(sealed, None).decode().split(_SEPARATOR, 3))
            except InvalidTag:
                continue
        return None

    @cached_property
    def _ciphers(self) -> list[AESSIV]:
        return [AESSIV(HKDF(SHA256(), 32, None, _INFO).derive(each.encode())) for each in self.secrets]
