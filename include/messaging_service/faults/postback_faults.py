"""The effects of post-back faults. Each post-back draws its faults once, before its first attempt."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Row, bindparam, select, update

from messaging_service.faults.faults import InjectedFault, PostBackFaults
from messaging_service.tables import post_backs

LOST = "lost"
_NOT_BODIES = (b"", b"[]", b"null", b"<html></html>", b'{"time": "soon", "device": 7}')


def apply_faults(
    connection: Connection, rows: Sequence[Row[tuple[Any, ...]]], now: float
) -> Sequence[Row[tuple[Any, ...]]]:
    """Draw the faults of newly claimed post-backs. Return the post-backs to send now, with their faults."""
    faults = PostBackFaults(connection)
    fresh = [row for row in rows if row.attempts == 0 and row.faults is None]
    if not faults or not fresh:
        return rows
    changes = [change for row in fresh if (change := _change(row, faults.draw(row.kind), now))]
    faults.count()
    if not changes:
        return rows
    statement = update(post_backs).where(post_backs.c.id == bindparam("key"))
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in ("faults", "state", "due_at")}
    connection.execute(statement.values(values), changes)
    query = select(post_backs).where(
        post_backs.c.id.in_([row.id for row in rows]), post_backs.c.state == "taken"
    )
    return connection.execute(query.order_by(post_backs.c.due_at)).all()


def sent_body(send_id: int, body: bytes, faults: Collection[str]) -> bytes:
    """Return the body of a post-back as its faults change it."""
    if "retyped" in faults:
        body = _retyped_body(body)
    return _corrupted_body(send_id, body) if "malformed" in faults else body


def _retyped_body(body: bytes) -> bytes:
    """Return a body with other types of members: texts, and a time in milliseconds."""
    event = orjson.loads(body)
    event["time"] *= 1000
    event["device"]["id"] = str(event["device"]["id"])
    for name in ("profile", "send"):
        event[name]["id"] = f"{name}-{event[name]['id']}"
    return orjson.dumps(event)


def _corrupted_body(send_id: int, body: bytes) -> bytes:
    """Return a body that violates the document: cut short, or something else entirely."""
    choice = send_id % (len(_NOT_BODIES) + 1)
    return _NOT_BODIES[choice - 1] if choice else body[: len(body) // 2]


def _change(row: Row[tuple[Any, ...]], faults: Sequence[InjectedFault], now: float) -> dict[str, Any] | None:
    if not faults:
        return None
    kinds = [fault.kind for fault in faults]
    due_at = max((_due_at(fault, now) for fault in faults), default=now)
    state = LOST if "lose" in kinds else "due" if due_at > now else "taken"
    return {
        "key": row.id,
        "new_faults": kinds,
        "new_state": state,
        "new_due_at": max(due_at, row.due_at),
    }


def _due_at(fault: InjectedFault, now: float) -> float:
    match fault.kind:
        case "delay":
            return now + fault.seconds
        case "reorder":
            return now + fault.seconds * random.random()  # noqa: S311
        case "burst" if fault.seconds:
            return (now // fault.seconds + 1) * fault.seconds
    return now
