"""When a campaign is sent, and when it may be triggered (section 2.11).

A campaign follows the time zone of its request. Where it names none, each person's own counts, as the directory has
it, and the app's for a person without one. A time that the clocks skip in spring is read with the offset from before;
one that comes twice in autumn means the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from messaging_service.envelope import Problem

NOW, ONCE, REPEATEDLY = 0, 1, 2
# A schedule has no seconds, so the minute that has just begun is not yet past.
GRACE = timedelta(minutes=1)
_EVERY_DAY = (1, 2, 3, 4, 5, 6, 7)
_IN_TWO_YEARS = 731

Fields = Mapping[str, Any]


def sending_moment(fields: Fields, zone: str, now: datetime) -> datetime | Problem:
    """Return the next moment of a campaign of any send_type, or say which field is wrong.

    ``zone`` holds where the request names none.
    """
    zone = fields.get("timezone", zone)
    if fields.get("send_type", NOW) == NOW:
        return now
    missing = list(missing_fields(fields))
    if missing:
        return missing[0]
    if fields["send_type"] == ONCE:
        at = once_off(fields, zone)
        return Problem("send_date", "lies in the past") if at < now - GRACE else at
    return next_occurrence(fields, zone, now - GRACE) or Problem("end_date", "leaves no day to send on")


def missing_fields(fields: Fields) -> Iterator[Problem]:
    """Return which fields a scheduled campaign lacks for its send_type."""
    needed = {ONCE: ("send_date", "send_time"), REPEATEDLY: ("send_time",)}
    kind = {ONCE: "a once-off campaign (send_type 1)", REPEATEDLY: "a recurring campaign (send_type 2)"}
    send_type = fields.get("send_type", NOW)
    for name in needed.get(send_type, ()):
        if name not in fields:
            yield Problem(name, f"is required for {kind[send_type]}")


def once_off(fields: Fields, zone: str) -> datetime:
    """Return the moment of a once-off campaign in a time zone."""
    return _moment(date.fromisoformat(fields["send_date"]), fields["send_time"], zone)


def next_occurrence(fields: Fields, zone: str, after: datetime) -> datetime | None:
    """Return the first moment of a recurring campaign later than ``after``, or None where it has ended by then."""
    earliest = after.astimezone(ZoneInfo(zone)).date() - timedelta(days=1)
    day = max(earliest, _date(fields, "start_date") or earliest)
    last = _date(fields, "end_date") or day + timedelta(days=_IN_TWO_YEARS)
    while day <= last:
        moment = _moment(day, fields["send_time"], zone)
        if moment > after and _runs_on(fields, day):
            return moment
        day += timedelta(days=1)
    return None


def closed_because(fields: Fields, zone: str, at: datetime) -> str | None:
    """Return why a triggered campaign cannot trigger at a moment, or None where it can.

    ``start_time`` and ``end_time`` bound each day, both inclusive, ``end_time`` up to the end of its minute.
    """
    if fields.get("send_type", NOW) != REPEATEDLY:
        return None
    local = at.astimezone(ZoneInfo(fields.get("timezone", zone)))
    start, end = _date(fields, "start_date"), _date(fields, "end_date")
    if start and local.date() < start:
        return "before start_date"
    if end and local.date() > end:
        return "after end_date"
    if not _runs_on(fields, local.date()):
        return "not on one of send_days"
    minute = f"{local:%H:%M}"
    inside = fields.get("start_time", "00:00") <= minute <= fields.get("end_time", "23:59")
    return None if inside else "not between start_time and end_time"


def start_of_day(zone: str, at: datetime) -> datetime:
    """Return the beginning of the calendar day in which a moment lies."""
    return _moment(at.astimezone(ZoneInfo(zone)).date(), "00:00", zone)


def _moment(day: date, at: str, zone: str) -> datetime:
    return datetime.combine(day, time.fromisoformat(at), ZoneInfo(zone)).astimezone(UTC)


def _date(fields: Fields, name: str) -> date | None:
    return date.fromisoformat(fields[name]) if name in fields else None


def _runs_on(fields: Fields, day: date) -> bool:
    return day.isoweekday() in fields.get("send_days", _EVERY_DAY)
