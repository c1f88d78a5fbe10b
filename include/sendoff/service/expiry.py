"""What of a login will end soon, as far as a client can know it (sections 2.2 and 5.1)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

AHEAD = timedelta(days=14)


def endings(certificate_ends: datetime | None, asked: int | None, given: int, now: datetime) -> Iterator[str]:
    """Say in sentences what a person should renew, where there is something.

    A certificate shows its end where it was pasted beside its private key. A client ID shows its end only in a token
    whose lifetime is shorter than ``asked`` (both in seconds), which a lower limit of the service brings about too.
    """
    if certificate_ends is not None and certificate_ends - now <= AHEAD:
        ends = "ends" if certificate_ends > now else "ended"
        yield (
            f"the certificate of the private key {ends} at {certificate_ends:%Y-%m-%d %H:%M} UTC, and the service "
            "refuses one that has ended; add a new one to the service, and put it beside the key here"
        )
    if asked is not None and given < asked:
        yield (
            f"the token lasts {given} seconds, not the {asked} that were asked for: the client ID ends at "
            f"{now + timedelta(seconds=given):%Y-%m-%d %H:%M} UTC, or the service allows no more"
        )
