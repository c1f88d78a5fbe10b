"""Profiles that an execution creates or updates from its variables (section 4.3, target_existing_only 0).

The directory stores a profile only through its devices. A new profile gets a device for email, one for SMS, or both.
The four system attributes are stored on all devices of a profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, text, update

from messaging_service.campaigns.content import Content
from messaging_service.tables import devices

_SUBSCRIPTIONS = ("email_subscription", "mobile_subscription")


def create_missing_profiles(connection: Connection, content: Content) -> None:
    """Create a profile for each target whose user is unknown, and update the system attributes of the others."""
    if connection.dialect.name != "sqlite":  # SQLite has one writer at a time
        # Concurrent executions could take the same ids or create a user twice. An import could also interfere.
        connection.execute(text(f"LOCK TABLE {devices.name} IN SHARE ROW EXCLUSIVE MODE"))
    variables: dict[str, Mapping[str, Any]] = {str(user): {} for user in content.get("target", ())}
    variables |= content.get("target_with_params", {})
    for user_id, given in variables.items():
        rows = connection.execute(select(devices).where(devices.c.user_id == user_id)).all()
        for row in rows:
            _update(connection, row, given)
        if not rows:
            _create(connection, user_id, given)


def _update(connection: Connection, row: Row[tuple[Any, ...]], given: Mapping[str, Any]) -> None:
    addresses = {key: str(given[key]) for key in ("email", "mobile_number") if given.get(key)}
    attributes = {**row.attributes, **_subscriptions(given)}
    this = update(devices).where(devices.c.device_id == row.device_id)
    connection.execute(this.values(**addresses, attributes=attributes))


def _create(connection: Connection, user_id: str, given: Mapping[str, Any]) -> None:
    highest = connection.execute(
        select(
            func.coalesce(func.max(devices.c.device_id), 0), func.coalesce(func.max(devices.c.profile_id), 0)
        )
    ).one()
    for number, (platform, column) in enumerate(_addresses(given), 1):
        row = {
            "device_id": highest[0] + number,
            "platform": platform,
            "profile_id": highest[1] + 1,
            "user_id": user_id,
            column: str(given[column]),
            "attributes": _subscriptions(given),
        }
        connection.execute(insert(devices).values(row))


def _addresses(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for platform, column in (("email", "email"), ("sms", "mobile_number")):
        if given.get(column):
            yield platform, column


def _subscriptions(given: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(int(bool(given[key]))) for key in _SUBSCRIPTIONS if key in given}
