"""Triggers of campaigns: people enter, leave or stay at a location, or trigger an event (section 2.10).

Hits are injected, because there are no real people. A hit returns the campaigns that wait for it, each with the run
that it started or the reason why it started none. A stay is scheduled when the device enters, and cancelled if the
device leaves too early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from messaging_service.campaigns.conditions import person_of
from messaging_service.campaigns.content import BY_EVENT, BY_LOCATION, Content, unpack
from messaging_service.campaigns.create import add_run
from messaging_service.campaigns.schedule import closed_because, start_of_day
from messaging_service.campaigns.spellings import DWELL, ENTER, EXIT
from messaging_service.campaigns.targeting import DeviceRow, find_targets, is_target, zone_of
from messaging_service.envelope import FieldProblem, RejectedError
from messaging_service.store import count_rows, find
from messaging_service.tables import campaigns, devices, firings, hits, locations, runs

EVENT = "event"
# From a public page: leaving counts only within half an hour of entering.
_LEAVES_WITHIN = 1_800.0


@dataclass(frozen=True, slots=True)
class _Hit:
    """A hit, and the devices that a campaign may reach because of it. ``id``: its number after it was stored."""

    kind: str
    name: str
    reached: Sequence[DeviceRow]
    at: datetime
    values: dict[str, Any]
    id: int = 0

    @property
    def person(self) -> str:
        return person_of(self.reached[0])

    @property
    def location_id(self) -> int | None:
        return None if self.kind == EVENT else int(self.name)


def hit_location(
    connection: Connection, device_id: int, location_id: int, action: str, now: datetime
) -> dict[str, Any]:
    """Record that a device enters or leaves (``exit``) a location. Return the triggered campaigns, as JSON."""
    device, location = find(connection, devices, device_id), find(connection, locations, location_id)
    if device is None or location is None:
        raise _unknown("location_id" if device is not None else "device_id")
    if action not in (ENTER, EXIT):
        raise RejectedError(400, "The hit is not valid.", [FieldProblem("action", "must be enter or exit")])
    started = list(_called_off(connection, device_id, location_id, now)) if action == EXIT else []
    hit = _Hit(action, str(location_id), [device], now, {"location": location.title})
    hit = _store(connection, hit, device_id, None)
    started += _fire_all(connection, hit, BY_LOCATION)
    return {"hit": hit.id, "at": now.isoformat(), "campaigns": started}


def hit_event(
    connection: Connection, event: str, user_id: str | None, device_id: int | None, value: Any, now: datetime
) -> dict[str, Any]:
    """Record that a user or a device triggers an event. Return the triggered campaigns, as JSON.

    Tags may use ``value``, and its members if it is an object.
    """
    if not event or (user_id is None) == (device_id is None):
        problem = FieldProblem("event", "the event must have a name, and either user_id or device_id")
        raise RejectedError(400, "The hit is not valid.", [problem])
    whose = devices.c.user_id == user_id if device_id is None else devices.c.device_id == device_id
    reached = connection.execute(select(devices).where(whose).order_by(devices.c.device_id)).all()
    if not reached:
        raise _unknown("user_id" if device_id is None else "device_id")
    values = {"event": event, "value": value, **(value if isinstance(value, dict) else {})}
    hit = _store(connection, _Hit(EVENT, event, reached, now, values), device_id, value)
    return {"hit": hit.id, "at": now.isoformat(), "campaigns": _fire_all(connection, hit, BY_EVENT)}


def _store(connection: Connection, hit: _Hit, device_id: int | None, value: Any) -> _Hit:
    row = {"kind": hit.kind, "name": hit.name, "device_id": device_id, "person": hit.person, "value": value}
    statement = insert(hits).values(**row, at=hit.at.timestamp()).returning(hits.c.id)
    return replace(hit, id=connection.execute(statement).scalar_one())


def _fire_all(connection: Connection, hit: _Hit, trigger: int) -> list[dict[str, Any]]:
    waiting = connection.execute(
        select(campaigns)
        .where(campaigns.c.trigger == trigger, campaigns.c.stopped_at.is_(None))
        .order_by(campaigns.c.id)
    ).all()
    contents = [(row.id, unpack(row.content)) for row in waiting]
    return [_fire(connection, each, content, hit) for each, content in contents if _waits_for(content, hit)]


def _waits_for(content: Content, hit: _Hit) -> bool:
    if hit.kind == EVENT:
        return bool(content["event"] == hit.name)
    trigger = content["location_trigger"]
    return hit.location_id in content["locations"] and (ENTER if trigger == DWELL else trigger) == hit.kind


def _fire(connection: Connection, campaign_id: int, content: Content, hit: _Hit) -> dict[str, Any]:
    at = hit.at
    if content.get("location_trigger") == DWELL and hit.kind == ENTER:
        at += timedelta(minutes=content["dwell_time"])
    targets = find_targets(connection, content)
    chosen = [device.device_id for device in hit.reached if is_target(targets, device)]
    reason = _reason_not_to(connection, campaign_id, content, hit, at) if chosen else "not targeted"
    if reason:
        return {"campaign": campaign_id, "run": None, "due_at": None, "reason": reason}
    own = {"run_devices": chosen, "params": {**content.get("params", {}), **hit.values}}
    run_id = add_run(connection, campaign_id, content, at, own)
    firing = {"campaign_id": campaign_id, "run_id": run_id, "hit_id": hit.id, "person": hit.person}
    connection.execute(insert(firings).values(**firing, location_id=hit.location_id, at=at.timestamp()))
    return {"campaign": campaign_id, "run": run_id, "due_at": at.isoformat(), "reason": None}


def _reason_not_to(
    connection: Connection, campaign_id: int, content: Content, hit: _Hit, at: datetime
) -> str | None:
    zone = zone_of(content, hit.reached[0])
    closed = closed_because(content, zone, at)
    if closed or hit.kind == EVENT:
        return closed
    if hit.kind == EXIT and not _entered_lately(connection, hit):
        return "left later than 30 minutes after entering, or never entered"
    return _limit_reached(connection, campaign_id, content, hit, at, zone)


def _limit_reached(
    connection: Connection, campaign_id: int, content: Content, hit: _Hit, at: datetime, zone: str
) -> str | None:
    def since(limit: str) -> float:
        by_day = content.get(f"{limit}_period", "day") == "day"
        return start_of_day(zone, at).timestamp() if by_day else 0.0

    fired = (firings.c.campaign_id == campaign_id, firings.c.person == hit.person)
    here = firings.c.location_id == hit.location_id
    for limit, where in (("location_limit_per_user", fired), ("location_limit_per_location", (*fired, here))):
        if count_rows(connection, firings, *where, firings.c.at >= since(limit)) >= content.get(limit, 1):
            return f"{limit} is reached"
    nth = "location_limit_nth_hit"
    created_at = select(campaigns.c.created_at).where(campaigns.c.id == campaign_id).scalar_subquery()
    before = (
        hits.c.person == hit.person,
        hits.c.kind == hit.kind,
        hits.c.name.in_([str(name) for name in content["locations"]]),
        hits.c.id < hit.id,
        hits.c.at >= since(nth),
        hits.c.at >= created_at,
    )
    return f"{nth} is not reached" if count_rows(connection, hits, *before) < content.get(nth, 0) else None


def _entered_lately(connection: Connection, hit: _Hit) -> bool:
    device_id = hit.reached[0].device_id
    same = (hits.c.device_id == device_id, hits.c.name == hit.name, hits.c.id < hit.id)
    last = connection.execute(
        select(hits).where(*same, hits.c.kind.in_((ENTER, EXIT))).order_by(hits.c.id.desc()).limit(1)
    ).one_or_none()
    return last is not None and last.kind == ENTER and hit.at.timestamp() - last.at <= _LEAVES_WITHIN


def _called_off(
    connection: Connection, device_id: int, location_id: int, now: datetime
) -> Iterator[dict[str, Any]]:
    """Cancel the scheduled stays at a location that a device leaves too early."""
    foreseen = connection.execute(
        select(firings.c.id, firings.c.run_id, firings.c.campaign_id)
        .join(hits, hits.c.id == firings.c.hit_id)
        .where(hits.c.device_id == device_id, hits.c.kind == ENTER)
        .where(firings.c.location_id == location_id, firings.c.at > now.timestamp())
    ).all()
    for row in foreseen:
        stopped = update(runs).where(runs.c.id == row.run_id, runs.c.state == "waiting")
        connection.execute(stopped.values(state="stopped"))
        connection.execute(delete(firings).where(firings.c.id == row.id))
        reason = "left before the dwell time"
        yield {"campaign": row.campaign_id, "run": row.run_id, "due_at": None, "reason": reason}


def _unknown(field: str) -> RejectedError:
    return RejectedError(
        404, "The hit refers to an unknown device, user or location.", [FieldProblem(field, "is unknown")]
    )
