"""Processes due runs: simulates messages and their outcomes, and schedules post-backs.

A run is processed in chunks. Each chunk is stored in one transaction together with the progress of the run, so an
interruption neither repeats nor loses anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert

from messaging_service.campaigns.content import MESSAGE_TYPES, WEBHOOK
from messaging_service.campaigns.create import add_next_run
from messaging_service.campaigns.targeting import (
    DeviceRow,
    Targets,
    find_targets,
    is_delivery_posted,
    message_types,
    next_devices,
)
from messaging_service.clock import ServiceClock
from messaging_service.delivery.behaviour import Behaviour
from messaging_service.delivery.leases import Leases, reserve
from messaging_service.delivery.outcomes import NO_CHANNEL, RunContext, post_back_row, run_context, send_row
from messaging_service.delivery.webhooks import call_row
from messaging_service.store import Store
from messaging_service.tables import post_backs, sends, webhook_calls

_DEVICES_AT_ONCE = 1_000


@dataclass(slots=True)
class _Batch:
    """The rows for one chunk of devices; ``reached`` is the last device, ``next_send`` the id of the next send."""

    next_send: int
    reached: int
    sends: list[dict[str, Any]] = field(default_factory=list)
    post_backs: list[dict[str, Any]] = field(default_factory=list)
    webhook_calls: list[dict[str, Any]] = field(default_factory=list)

    def take_id(self) -> int:
        self.next_send += 1
        return self.next_send - 1


def work_through_due_run(
    store: Store,
    leases: Leases,
    behaviour: Behaviour,
    clock: ServiceClock,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Claim the run that has been due longest, and process it. Return False if none is due.

    Stop between two chunks when ``stopping`` returns true; a later call continues from there, in this process or in
    another. Raise LeaseLostError if another process has taken over the run.
    """
    run = leases.take_run(clock.time())
    if run is None:
        return False
    with store.read() as connection:
        context = run_context(connection, run, behaviour)
        targets = find_targets(connection, context.content)
    reached = run.reached
    while not stopping():
        with store.read() as connection:
            devices = next_devices(connection, targets, reached, _DEVICES_AT_ONCE)
        if not devices:
            _finish(store, leases, context, targets)
            return True
        reached = devices[-1].device_id
        batch = _Batch(_reserve_send_ids(store, len(devices)), reached)
        now = clock.moment_of(run.due_at)
        for device in devices:
            if targets.holds(device):
                _send_all(batch, context, device, now)
        _store(store, leases, context, batch)
    return True


def _reserve_send_ids(store: Store, devices: int) -> int:
    with store.write() as connection:
        return reserve(connection, "sends", devices * len(MESSAGE_TYPES))


def _send_all(batch: _Batch, context: RunContext, device: DeviceRow, now: float) -> None:
    types = message_types(context.content, device)
    for message_type in types:
        _send(batch, context, device, message_type, now)
    if not types:
        error = {"error": NO_CHANNEL}
        batch.sends.append(send_row(context.run, device, batch.take_id(), None, now, error))


def _send(batch: _Batch, context: RunContext, device: DeviceRow, message_type: int, now: float) -> None:
    run, send_id = context.run, batch.take_id()
    row = send_row(run, device, send_id, message_type, now, context.outcome(device, message_type, now))
    batch.sends.append(row)
    if row["error"] is not None:
        return
    if message_type == WEBHOOK:
        batch.webhook_calls.append(call_row(run.id, send_id, context.message(device, WEBHOOK), now))
    if run.webhook_delivery and row["delivered_at"] and is_delivery_posted(message_type, device.platform):
        batch.post_backs.append(post_back_row(run, device, send_id, "delivery", row["delivered_at"]))
    if run.webhook_open and row["opened_at"]:
        batch.post_backs.append(post_back_row(run, device, send_id, "open", row["opened_at"]))


def _store(store: Store, leases: Leases, context: RunContext, batch: _Batch) -> None:
    with store.write() as connection:
        leases.save_progress(connection, context.run.id, reached=batch.reached)
        for table, rows in (
            (sends, batch.sends),
            (post_backs, batch.post_backs),
            (webhook_calls, batch.webhook_calls),
        ):
            if rows:
                connection.execute(insert(table), rows)


def _finish(store: Store, leases: Leases, context: RunContext, targets: Targets) -> None:
    run = context.run
    with store.write() as connection:
        leases.save_progress(connection, run.id, state="done", unknown=list(targets.unknown))
        add_next_run(connection, run.campaign_id, context.content, run.due_at)
