"""The URLs of a connection: the base URL of the service, and the public URL of post-backs."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from sendoff.errors import SettingsError


def checked_parts(url: str, name: str) -> SplitResult:
    """Return the parts of an http or https URL. Raise SettingsError, which does not quote it, if it is not usable."""
    try:
        parts = urlsplit(url)
        # Without white space, which urlsplit drops.
        good = (
            url.split() == [url]
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        good = False
    if not good:
        raise SettingsError(
            f"{name} must start with https:// (or http://), name a host, and contain no spaces"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise SettingsError(f"{name} must have no user, password, query or fragment")
    return parts
