"""The reader's time zone: the one they chose in Airflow, or else their browser's."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from functools import cache
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from fastapi import Depends, Request

ZONE = "sendoff-zone"
"""A cookie with the reader's time zone, which our script sets."""


_known_zones = cache(available_timezones)  # it reads many folders


def zone_of(request: Request) -> ZoneInfo:
    """Return the reader's time zone, or UTC if it is not known."""
    name = request.cookies.get(ZONE, "")
    return ZoneInfo(name if name in _known_zones() else "UTC")


ZoneDep = Annotated[ZoneInfo, Depends(zone_of)]


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """Return when a day begins in a time zone, in UTC."""
    return datetime.combine(day, time(), zone).astimezone(UTC)
