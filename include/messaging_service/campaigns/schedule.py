"""The times at which a campaign is sent or may be triggered (section 2.11).

A campaign follows the time zone of its request. If the request names none, the time zone of each person in the
directory applies, or the app's for a person without one. A time that the clocks skip in spring keeps the offset from
before the change. A time that occurs twice in autumn means the first occurrence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from messaging_service.envelope import FieldProblem

NOW, ONCE, REPEATEDLY = 0, 1, 2
# Schedules have no seconds, so the current minute does not count as past.
GRACE = timedelta(minutes=1)
_EVERY_DAY = (1, 2, 3, 4, 5, 6, 7)

Fields = Mapping[str, Any]


def sending_moment(fields: Fields, zone: str, now: datetime) -> datetime | FieldProblem:
    """Return when a campaign of any send_type is sent next, or a FieldProblem for one of its fields.

    ``zone`` applies if the request names no time zone.
    """
    zone = fields.get("timezone", zone)
    if fields.get("send_type", NOW) == NOW:
        return now
    missing = list(missing_fields(fields))
    if missing:
        return missing[0]
    if fields["send_type"] == ONCE:
        at = once_off(fields, zone)
        return FieldProblem("send_date", "is in the past") if at < now - GRACE else at
    return next_occurrence(fields, zone, now - GRACE) or FieldProblem("end_date", "leaves no day to send on")


def missing_fields(fields: Fields) -> Iterator[FieldProblem]:
    """Yield a problem for each field that a scheduled campaign of this send_type lacks."""
    needed = {ONCE: ("send_date", "send_time"), REPEATEDLY: ("send_time",)}
    kind = {ONCE: "a once-off campaign (send_type 1)", REPEATEDLY: "a recurring campaign (send_type 2)"}
    send_type = fields.get("send_type", NOW)
    for name in needed.get(send_type, ()):
        if name not in fields:
            yield FieldProblem(name, f"is required for {kind[send_type]}")


def once_off(fields: Fields, zone: str) -> datetime:
    """Return when a once-off campaign is sent in a time zone."""
    return _moment(date.fromisoformat(fields["send_date"]), fields["send_time"], zone)


def next_occurrence(fields: Fields, zone: str, after: datetime) -> datetime | None:
    """Return when a recurring campaign is first sent after ``after``, or None if it has ended by then."""
    earliest = after.astimezone(ZoneInfo(zone)).date() - timedelta(days=1)
    day = max(earliest, _date(fields, "start_date") or earliest)
    last = _date(fields, "end_date") or date.max - timedelta(days=2)
    while day <= last:
        moment = _moment(day, fields["send_time"], zone)
        if moment > after and _runs_on(fields, day):
            return moment
        day += timedelta(days=1)
    return None


def closed_because(fields: Fields, zone: str, at: datetime) -> str | None:
    """Return why a triggered campaign cannot be triggered at a time, or None if it can.

    The daily window runs from ``start_time`` to the end of the minute ``end_time``.
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
    """Return the start of the calendar day that contains a time."""
    return _moment(at.astimezone(ZoneInfo(zone)).date(), "00:00", zone)


def _moment(day: date, at: str, zone: str) -> datetime:
    return datetime.combine(day, time.fromisoformat(at), ZoneInfo(zone)).astimezone(UTC)


def _date(fields: Fields, name: str) -> date | None:
    return date.fromisoformat(fields[name]) if name in fields else None


def _runs_on(fields: Fields, day: date) -> bool:
    return day.isoweekday() in fields.get("send_days", _EVERY_DAY)
