"""The target devices of a campaign (section 2.9), and the message types that reach each of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Row, select

from messaging_service.campaigns.conditions import ConditionEvaluator, Predicate
from messaging_service.campaigns.content import (
    ANDROID_PUSH,
    EMAIL,
    INBOX,
    IOS_PUSH,
    SMS,
    WEB_PUSH,
    WEBHOOK,
    Content,
)
from messaging_service.campaigns.fields import BROWSER_FLAGS
from messaging_service.campaigns.validation import is_broadcast
from messaging_service.devices import BROWSERS
from messaging_service.tables import devices

DeviceRow = Row[tuple[Any, ...]]
_VALUES_AT_ONCE = 2_000
_DELIVERED_BROWSERS = ("chrome", "opera", "firefox")
_COLUMNS: dict[str, Column[Any]] = {
    "device_ids": devices.c.device_id,
    "device_tokens": devices.c.token,
    "device_uuids": devices.c.uuid,
    "external_ids": devices.c.external_id,
}
_TARGET_BY: dict[str, Column[Any]] = {
    "device_id": devices.c.device_id,
    "external_id": devices.c.external_id,
    "device_token": devices.c.token,
    "email": devices.c.email,
    "user_id": devices.c.user_id,
}


@dataclass(frozen=True, slots=True)
class Targets:
    """The target devices of one run: devices in ``device_ids`` (None means all) that also satisfy ``holds``.

    ``unknown`` lists identifiers that match no device.
    """

    device_ids: Sequence[int] | None
    unknown: tuple[int | str, ...] = ()
    holds: Predicate = lambda _: True


def find_targets(connection: Connection, content: Content) -> Targets:
    """Look up the target devices of a run.

    Identifiers of several kinds and segments add up: a device needs to match only one. Conditions then select from
    these devices, or from all devices if there is nothing else. ``broadcast`` 1 overrides all of this: everyone.
    """
    in_zone = _in_zone(content)
    if "run_devices" in content:
        return Targets(content["run_devices"], (), in_zone)
    executed = bool(content.get("target") or content.get("target_with_params"))
    if is_broadcast(content) and not executed:
        return Targets(None, (), in_zone)
    wanted = list(_wanted(content))
    found, unknown = _find(connection, wanted)
    ask = ConditionEvaluator(connection)
    meets = ask.predicate(content["conditions"]) if content.get("conditions") else None
    segments = [] if executed else [ask.segment(number) for number in content.get("segment_ids", ())]
    if segments:
        return Targets(None, unknown, _all_of(in_zone, _any_of(found, segments), meets))
    everyone = not wanted and meets is not None
    return Targets(None if everyone else sorted(found), unknown, _all_of(in_zone, meets))


def is_target(targets: Targets, device: DeviceRow) -> bool:
    """Check whether a device is among the targets."""
    among = targets.device_ids is None or device.device_id in targets.device_ids
    return among and targets.holds(device)


def next_devices(connection: Connection, targets: Targets, after: int, count: int) -> Sequence[DeviceRow]:
    """Return the next ``count`` devices with ids above ``after``, in id order; ``targets.holds`` is not applied."""
    query = select(devices).order_by(devices.c.device_id)
    if targets.device_ids is None:
        return connection.execute(query.where(devices.c.device_id > after).limit(count)).all()
    start = bisect_right(targets.device_ids, after)
    chunk = targets.device_ids[start : start + count]
    return connection.execute(query.where(devices.c.device_id.in_(chunk))).all() if chunk else []


def zone_of(content: Content, device: DeviceRow) -> str:
    """Return the time zone that a campaign follows for a device."""
    zone: str = content.get("timezone") or device.time_zone or content["default_zone"]
    return zone


def zones_of_targets(connection: Connection, content: Content) -> list[str]:
    """Return the time zones that a campaign follows for its targets, at least one."""
    if "timezone" in content:
        return [content["timezone"]]
    targets = find_targets(connection, content)
    query = select(devices.c.time_zone).distinct()
    if (ids := targets.device_ids) is None:
        queries = [query]
    else:
        starts = range(0, len(ids), _VALUES_AT_ONCE)
        queries = [query.where(devices.c.device_id.in_(ids[at : at + _VALUES_AT_ONCE])) for at in starts]
    zones = {zone for each in queries for zone in connection.execute(each).scalars()}
    if targets.unknown or not zones:
        zones.add(None)  # of a target that gets a profile now: as without a time zone, it follows the app's
    return sorted({zone or content["default_zone"] for zone in zones})


def message_types(content: Content, device: DeviceRow) -> list[int]:
    """Return the message types that reach a device through the channels of the campaign.

    A device whose attribute ``email_subscription`` is 0 gets no email, and with ``mobile_subscription`` 0 no SMS.
    A webhook message is called for every device.
    """
    found = []
    if content.get("android_push") == 1 and device.platform == "android":
        found.append(ANDROID_PUSH)
    if content.get("ios_push") == 1 and device.platform == "ios" and _in_ios_environment(content, device):
        found.append(IOS_PUSH)
    if content.get("web_push") == 1 and device.platform in _browsers(content):
        found.append(WEB_PUSH)
    if content.get("inbox") == 1 and device.platform in ("android", "ios", *BROWSERS):
        found.append(INBOX)
    if content.get("email") == 1 and device.email and device.attributes.get("email_subscription") != "0":
        found.append(EMAIL)
    if content.get("webhook") == 1:
        found.append(WEBHOOK)
    subscribed = device.attributes.get("mobile_subscription") != "0"
    if content.get("sms") == 1 and device.mobile_number and subscribed:
        found.append(SMS)
    return found


def variables_by_device(
    connection: Connection, content: Content, only: DeviceRow | None = None
) -> Mapping[int, Mapping[str, Any]]:
    """Return the variables of an execution's targets by device id, for all devices or for ``only``."""
    by_target = content.get("target_with_params", {})
    column = _TARGET_BY[content.get("target_by", "device_id")]
    if only is not None:
        wanted = getattr(only, column.name)
        own = [by_target[target] for target in by_target if _stored_form(column, target) == wanted]
        return {only.device_id: own[-1]} if own else {}
    known = _look_up(connection, column, by_target)
    return {device: by_target[target] for target, found in known.items() for device in found}


def is_delivery_posted(message_type: int, platform: str) -> bool:
    """Check whether a delivery is posted back: not for Android and iOS push, nor for Safari web push (section 6)."""
    if message_type == WEB_PUSH:
        return platform in _DELIVERED_BROWSERS
    return message_type not in (ANDROID_PUSH, IOS_PUSH)


def _wanted(content: Content) -> Iterator[tuple[Column[Any], Collection[int | str]]]:
    targets = [*content.get("target", ()), *content.get("target_with_params", ())]
    if targets:
        # An execution's targets replace the template's.
        yield _TARGET_BY[content.get("target_by", "device_id")], dict.fromkeys(targets)
        return
    for key, column in _COLUMNS.items():
        if content.get(key):
            yield column, dict.fromkeys(content[key])


def _find(
    connection: Connection, wanted: Sequence[tuple[Column[Any], Collection[int | str]]]
) -> tuple[set[int], tuple[int | str, ...]]:
    found: set[int] = set()
    unknown: list[int | str] = []
    for column, values in wanted:
        known = _look_up(connection, column, values)
        found.update(*known.values())
        unknown += [value for value in values if value not in known]
    return found, tuple(unknown)


def _any_of(found: Collection[int], questions: Sequence[Predicate]) -> Predicate:
    return lambda device: device.device_id in found or any(question(device) for question in questions)


def _all_of(*questions: Predicate | None) -> Predicate:
    asked = [question for question in questions if question is not None]
    return lambda device: all(question(device) for question in asked)


def _in_zone(content: Content) -> Predicate:
    """Return a predicate that checks whether a device belongs to a run, which may be for one time zone only."""
    if "run_other_zones" in content:
        others = frozenset(content["run_other_zones"])
        return lambda device: device.time_zone not in others
    zone = content.get("run_zone")
    return lambda device: zone is None or device.time_zone == zone


def _in_ios_environment(content: Content, device: DeviceRow) -> bool:
    """Check whether the flags select a device's iOS environment: sandbox or production, by ``ios_environment``."""
    in_sandbox = device.attributes.get("ios_environment") == "sandbox"
    sandbox = content.get("ios_push_sandbox") == 1
    production = content.get("ios_push_production", 0 if sandbox else 1) == 1
    return sandbox if in_sandbox else production


def _look_up(
    connection: Connection, column: Column[Any], values: Collection[int | str]
) -> dict[int | str, list[int]]:
    """Return the device ids by identifier, as spelled in the request."""
    spelled = {stored: value for value in values if (stored := _stored_form(column, value)) is not None}
    known: dict[int | str, list[int]] = {}
    stored_values = list(spelled)
    for start in range(0, len(stored_values), _VALUES_AT_ONCE):
        chunk = stored_values[start : start + _VALUES_AT_ONCE]
        query = select(column, devices.c.device_id).where(column.in_(chunk))
        for stored, device_id in connection.execute(query):
            known.setdefault(spelled[stored], []).append(device_id)
    return known


def _stored_form(column: Column[Any], value: int | str) -> int | str | None:
    text = str(value)
    if column is not devices.c.device_id:
        return text
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else 0
    return number if 0 < number < 2**63 else None


def _browsers(content: Content) -> Collection[str]:
    """Return the selected browsers; without any browser flag, all of them."""
    if not any(flag in content for flag in BROWSER_FLAGS):
        return BROWSERS
    return [flag.removeprefix("web_push_") for flag in BROWSER_FLAGS if content.get(flag) == 1]
