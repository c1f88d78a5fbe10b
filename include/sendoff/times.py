"""The current time, and the minimum times to keep post-backs and recipients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SHORTEST_FOR_POST_BACKS = timedelta(days=1)
"""The minimum time to keep post-backs. If the service repeats one within a day, it is still recognised."""
SHORTEST_FOR_RECIPIENTS = timedelta(days=30)
"""The minimum time to keep recipients. Until then, reports and rules of other campaigns may need them."""


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
