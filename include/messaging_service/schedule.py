"""When a campaign is sent (section 2.11)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from messaging_service.replies import Problem

NOW, ONCE, REPEATEDLY = 0, 1, 2
# A schedule has no seconds, so the minute that has just begun is not yet past.
_GRACE = timedelta(minutes=1)


def sending_moment(fields: Mapping[str, Any], zone: str, now: datetime) -> datetime | Problem:
    """Give the moment of a campaign with send_type 0 or 1, or say which field is wrong.

    ``zone`` is the time zone of the application, which holds where the request names none. A time that the clocks
    skip in spring is read with the offset from before; one that comes twice in autumn means the first.
    """
    if fields.get("send_type", NOW) == NOW:
        return now
    for name in ("send_date", "send_time"):
        if name not in fields:
            return Problem(name, "is required for a once-off campaign (send_type 1)")
    at = datetime.combine(
        date.fromisoformat(fields["send_date"]),
        time.fromisoformat(fields["send_time"]),
        ZoneInfo(fields.get("timezone", zone)),
    ).astimezone(UTC)
    if at < now - _GRACE:
        return Problem("send_date", "lies in the past")
    return at
