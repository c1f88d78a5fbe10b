"""The outcome of each message for each device (sections 2.12 and 6), and the rows that store it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection, Row

from messaging_service.campaigns.content import (
    ANDROID_PUSH,
    BY_API,
    INBOX,
    IOS_PUSH,
    MESSAGE_TYPES,
    WEB_PUSH,
    WEBHOOK,
    Content,
    content_of_run,
    message,
)
from messaging_service.campaigns.rendering import (
    NOT_PERSONALIZED,
    NotPersonalizedError,
    RenderedMessage,
    has_tags,
    render,
    variables_for,
)
from messaging_service.campaigns.schedule import closed_because
from messaging_service.campaigns.targeting import DeviceRow, variables_by_device, zone_of
from messaging_service.delivery.behaviour import Behaviour

NO_CHANNEL = "NO_CHANNEL"
UNREGISTERED = "DEVICE_UNREGISTERED"
EXPIRED = "EXPIRED"
TOO_LATE = "TIME_HAS_PASSED"
_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400, "weeks": 604_800}
_FOUR_WEEKS = 4 * 604_800

RunRow = Row[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run, with the data that all of its messages need.

    ``entries`` holds the message fields by type, ``personal`` the types that have tags, and ``own`` the variables by
    device id.
    """

    run: RunRow
    content: Content
    behaviour: Behaviour
    entries: Mapping[int, Mapping[str, Any]]
    personal: frozenset[int]
    own: Mapping[int, Mapping[str, Any]]

    def message(self, device: DeviceRow, message_type: int) -> RenderedMessage:
        """Render a message for a device, or raise NotPersonalizedError."""
        return render(self.content, message_type, device, variables_for(self.content, device, self.own))

    def outcome(self, device: DeviceRow, message_type: int, now: float) -> dict[str, Any]:
        """Return the outcome columns of a message sent at ``now``.

        A webhook message has no outcome before it is called.
        """
        if self.content.get("run_missed"):
            return {"error": TOO_LATE}
        if closed := self._closed_because(device):
            return {"error": closed}
        try:
            if message_type in self.personal:
                self.message(device, message_type)
        except NotPersonalizedError:
            return {"error": NOT_PERSONALIZED}
        if message_type == WEBHOOK:
            return {}
        return self._simulate(device, message_type, now)

    def _closed_because(self, device: DeviceRow) -> str | None:
        """Return why an execution leaves out a device: the window is closed in its time zone."""
        if self.content["campaign_trigger"] != BY_API or "timezone" in self.content:
            return None
        due_at = datetime.fromtimestamp(self.run.due_at, UTC)
        return closed_because(self.content, zone_of(self.content, device), due_at)

    def _simulate(self, device: DeviceRow, message_type: int, now: float) -> dict[str, Any]:
        simulated = self.behaviour.draw(self.run.campaign_id, self.run.number, device.device_id, message_type)
        if simulated.delivered_after is None:
            return {"error": UNREGISTERED}
        entry = self.entries[message_type]
        delivered_at = now + simulated.delivered_after
        if message_type in (IOS_PUSH, ANDROID_PUSH, WEB_PUSH) and delivered_at > push_deadline(entry, now):
            return {"error": EXPIRED}
        removed_at = inbox_removal(entry, delivered_at) if message_type == INBOX else None
        if removed_at is not None and removed_at <= delivered_at:
            return {"error": EXPIRED}
        opened_at = None if simulated.opened_after is None else delivered_at + simulated.opened_after
        if opened_at is not None and removed_at is not None and opened_at >= removed_at:
            opened_at = None
        return {"delivered_at": delivered_at, "opened_at": opened_at, "removed_at": removed_at}


def run_context(connection: Connection, run: RunRow, behaviour: Behaviour) -> RunContext:
    """Return the context of a run."""
    content = content_of_run(connection, run)
    types = MESSAGE_TYPES.values()
    return RunContext(
        run,
        content,
        behaviour,
        entries={number: message(content, number) for number in types},
        personal=frozenset(number for number in types if has_tags(content, number)),
        own=variables_by_device(connection, content),
    )


def push_deadline(entry: Mapping[str, Any], sent_at: float) -> float:
    """Return when retries of a push end: after its retry period or at its deadline, whichever is earlier."""
    length = entry.get("push_expiry")
    period = _FOUR_WEEKS if length is None else length * _SECONDS[entry["push_expiry_unit"]]
    return float(min(sent_at + period, entry.get("push_expiry_time", float("inf"))))


def inbox_removal(entry: Mapping[str, Any], delivered_at: float) -> float | None:
    """Return when a message leaves the inbox: after its period or at its removal time, whichever is earlier."""
    ends = [float(entry["inbox_expiry_time"])] if "inbox_expiry_time" in entry else []
    if "inbox_expiry" in entry:
        ends.append(delivered_at + entry["inbox_expiry"] * _SECONDS[entry["inbox_expiry_unit"]])
    return min(ends, default=None)


def send_row(
    run: RunRow,
    device: DeviceRow,
    send_id: int,
    message_type: int | None,
    now: float,
    outcome: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the row of a send."""
    return {
        "id": send_id,
        "campaign_id": run.campaign_id,
        "run_id": run.id,
        "device_id": device.device_id,
        "platform": device.platform,
        "message_type": message_type,
        "sent_at": now,
        "delivered_at": None,
        "opened_at": None,
        "removed_at": None,
        "error": None,
        **outcome,
    }


def post_back_row(run: RunRow, device: DeviceRow, send_id: int, kind: str, at: float) -> dict[str, Any]:
    """Return the row of a post-back that is due at ``at`` (section 6)."""
    body = {
        "time": int(at),
        "device": {"id": device.device_id},
        "profile": {"id": device.profile_id, "user_id": device.user_id},
        "send": {"id": send_id},
        "campaign": {"id": run.campaign_id},
    }
    return {
        "run_id": run.id,
        "send_id": send_id,
        "kind": kind,
        "body": orjson.dumps(body),
        "state": "due",
        "due_at": at,
        "attempts": 0,
    }
