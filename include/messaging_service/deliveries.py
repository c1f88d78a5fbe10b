"""Works through due runs: each device's messages are sent, delivered and opened, and post-backs fall due.

A run is worked through in chunks, each in one transaction together with how far it came, so that a stop in the
middle repeats nothing and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection, Row, insert

from messaging_service.behaviour import Behaviour
from messaging_service.campaigns import MESSAGE_TYPES, Content, load_content, merge, unpack
from messaging_service.claims import Claims, reserve
from messaging_service.clock import Clock
from messaging_service.store import Store, post_backs, sends
from messaging_service.targeting import (
    Device,
    Targets,
    find_targets,
    is_delivery_posted,
    message_types,
    next_devices,
)

NO_CHANNEL = "NO_CHANNEL"
UNREGISTERED = "DEVICE_UNREGISTERED"
_DEVICES_AT_ONCE = 1_000


@dataclass(slots=True)
class _Batch:
    """The rows of one chunk of devices, up to the device ``reached``; ``next_send`` is the id of the next send."""

    next_send: int
    reached: int
    sends: list[dict[str, Any]] = field(default_factory=list)
    post_backs: list[dict[str, Any]] = field(default_factory=list)


def work_through_due_run(
    store: Store,
    claims: Claims,
    behaviour: Behaviour,
    clock: Clock,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim the run that has been due for longest and work through it; False where none is due.

    When ``stopping`` turns true it leaves off between two chunks, and a later call goes on from there, in this
    process or in another. ClaimLostError where another process took the run over meanwhile.
    """
    run = claims.take_run(clock.time())
    if run is None:
        return False
    with store.read() as connection:
        content = _content(connection, run)
        targets = find_targets(connection, content)
    reached = run.reached
    while not stopping():
        with store.read() as connection:
            devices = next_devices(connection, targets, reached, _DEVICES_AT_ONCE)
        if not devices:
            _finish(store, claims, run, targets)
            return True
        reached = devices[-1].device_id
        batch = _Batch(_reserve_send_ids(store, len(devices)), reached)
        for device in devices:
            _send_all(batch, run, content, device, behaviour, clock.time())
        _store(store, claims, run, batch)
    return True


def _reserve_send_ids(store: Store, devices: int) -> int:
    with store.write() as connection:
        return reserve(connection, "sends", devices * len(MESSAGE_TYPES))


def _content(connection: Connection, run: Row[tuple[Any, ...]]) -> Content:
    content = load_content(connection, run.campaign_id) or {}
    return merge(content, unpack(run.overrides)) if run.overrides else content


def _send_all(
    batch: _Batch,
    run: Row[tuple[Any, ...]],
    content: Content,
    device: Device,
    behaviour: Behaviour,
    now: float,
) -> None:
    types = message_types(content, device)
    for message_type in types:
        _send(batch, run, device, message_type, behaviour, now)
    if not types:
        _add_send(batch, run, device, now, {"error": NO_CHANNEL})


def _send(
    batch: _Batch,
    run: Row[tuple[Any, ...]],
    device: Device,
    message_type: int,
    behaviour: Behaviour,
    now: float,
) -> None:
    fate = behaviour.fate(run.campaign_id, run.number, device.device_id, message_type)
    if fate.delivered_after is None:
        _add_send(batch, run, device, now, {"message_type": message_type, "error": UNREGISTERED})
        return
    delivered_at = now + fate.delivered_after
    opened_at = None if fate.opened_after is None else delivered_at + fate.opened_after
    times = {"delivered_at": delivered_at, "opened_at": opened_at}
    send_id = _add_send(batch, run, device, now, {"message_type": message_type, **times})
    if run.webhook_delivery and is_delivery_posted(message_type, device.platform):
        _add_post_back(batch, run, device, send_id, "delivery", delivered_at)
    if run.webhook_open and opened_at is not None:
        _add_post_back(batch, run, device, send_id, "open", opened_at)


def _add_send(
    batch: _Batch, run: Row[tuple[Any, ...]], device: Device, now: float, outcome: Mapping[str, Any]
) -> int:
    send_id = batch.next_send
    batch.next_send += 1
    batch.sends.append(
        {
            "id": send_id,
            "campaign_id": run.campaign_id,
            "run_id": run.id,
            "device_id": device.device_id,
            "platform": device.platform,
            "message_type": None,
            "sent_at": now,
            "delivered_at": None,
            "opened_at": None,
            "removed_at": None,
            "error": None,
            **outcome,
        }
    )
    return send_id


def _add_post_back(
    batch: _Batch, run: Row[tuple[Any, ...]], device: Device, send_id: int, kind: str, at: float
) -> None:
    body = {
        "time": int(at),
        "device": {"id": device.device_id},
        "profile": {"id": device.profile_id, "user_id": device.user_id},
        "send": {"id": send_id},
        "campaign": {"id": run.campaign_id},
    }
    batch.post_backs.append(
        {
            "run_id": run.id,
            "send_id": send_id,
            "kind": kind,
            "body": orjson.dumps(body),
            "state": "due",
            "due_at": at,
            "attempts": 0,
        }
    )


def _store(store: Store, claims: Claims, run: Row[tuple[Any, ...]], batch: _Batch) -> None:
    with store.write() as connection:
        claims.go_on(connection, run.id, reached=batch.reached)
        connection.execute(insert(sends), batch.sends)
        if batch.post_backs:
            connection.execute(insert(post_backs), batch.post_backs)


def _finish(store: Store, claims: Claims, run: Row[tuple[Any, ...]], targets: Targets) -> None:
    with store.write() as connection:
        claims.go_on(connection, run.id, state="done", unknown=list(targets.unknown))
