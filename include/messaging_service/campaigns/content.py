"""The content of a campaign: its parameters by their keys in ``fields``, which may be spelled differently on the wire.

``messages`` holds entries by message type. A run adds its own members to the parameters: ``run_devices``,
``run_zone``, ``run_other_zones``, ``run_missed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, Row, select

from messaging_service.campaigns.fields import CHANNEL_FLAGS, ENTRY, Checked, FieldCheck, check_members
from messaging_service.campaigns.schedule import NOW, REPEATEDLY
from messaging_service.campaigns.spellings import ENTER, spell_out
from messaging_service.envelope import FieldProblem
from messaging_service.tables import campaigns
from messaging_service.undocumented_names import Names

IOS_PUSH, ANDROID_PUSH, WEB_PUSH, INBOX, EMAIL, WEBHOOK, SMS = 1, 2, 3, 6, 7, 8, 9
MESSAGE_TYPES = {
    "ios_push": IOS_PUSH,
    "android_push": ANDROID_PUSH,
    "web_push": WEB_PUSH,
    "inbox": INBOX,
    "email": EMAIL,
    "webhook": WEBHOOK,
    "sms": SMS,
}
SCHEDULED, BY_LOCATION, BY_EVENT, BY_API = 0, 1, 2, 3

Content = Mapping[str, Any]


def read_content(
    body: Mapping[str, Any], table: Mapping[str, FieldCheck], names: Names
) -> tuple[dict[str, Any], Checked]:
    """Read the members of a request by key, and its messages by type. Leave out the token."""
    checked = check_members(body, table, names)
    content = {key: value for key, value in checked.values.items() if key not in ("apptoken", "messages")}
    content["messages"] = _messages(checked, names)
    checked.problems += spell_out(content, names)
    return content, checked


def channels(content: Content) -> list[str]:
    """Return the flags of the channels that a campaign uses."""
    return [flag for flag in CHANNEL_FLAGS if content.get(flag) == 1]


def with_defaults(content: Content, zone: str) -> Content:
    """Add the defaults for members that the request omits; ``zone`` is the app's time zone.

    The document does not show the name of the trigger, so ``locations`` alone imply a location trigger.
    """
    trigger = content.get("campaign_trigger", BY_LOCATION if content.get("locations") else SCHEDULED)
    send_type = content.get("send_type", NOW if trigger == SCHEDULED else REPEATEDLY)
    added = {"campaign_trigger": trigger, "send_type": send_type, "default_zone": zone}
    if trigger == BY_LOCATION:
        added["location_trigger"] = content.get("location_trigger", ENTER)
    return {**content, **added}


def content_of_run(connection: Connection, run: Row[tuple[Any, ...]]) -> Content:
    """Return the content of a campaign, with the overrides of one of its runs."""
    query = select(campaigns.c.content).where(campaigns.c.id == run.campaign_id)
    content = unpack(connection.execute(query).scalar_one())
    return merge(content, unpack(run.overrides)) if run.overrides else content


def pack(content: Content) -> bytes:
    """Return content in its stored form."""
    return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


def unpack(stored: bytes) -> Content:
    """Read content from its stored form."""
    return merge({}, orjson.loads(stored))


def merge(content: Content, overrides: Content) -> Content:
    """Return ``content`` with ``overrides`` applied; messages are merged by type."""
    messages = dict(content.get("messages", {}))
    for kind, entry in overrides.get("messages", {}).items():
        messages[int(kind)] = {**messages.get(int(kind), {}), **entry}
    return {**content, **overrides, "messages": messages}


def message(content: Content, message_type: int) -> Mapping[str, Any]:
    """Return the fields of a message of this type: its own entry, and the top level for omitted fields."""
    shared = {key: value for key, value in content.items() if key in ENTRY and key not in CHANNEL_FLAGS}
    return {**shared, **content["messages"].get(message_type, {})}


def _messages(checked: Checked, names: Names) -> dict[int, dict[str, Any]]:
    types = {names["message_ios_push"]: IOS_PUSH, names["message_android_push"]: ANDROID_PUSH}
    types |= {str(number): number for number in (WEB_PUSH, INBOX, EMAIL, WEBHOOK, SMS)}
    messages = {}
    for key, entry in checked.values.get("messages", {}).items():
        at = f"messages.{key}"
        if key not in types:
            checked.unknown.append(at)
        elif not isinstance(entry, dict):
            checked.problems.append(FieldProblem(at, "must be an object"))
        else:
            inner = check_members(entry, ENTRY, names, f"{at}.")
            checked.problems += inner.problems
            checked.unknown += inner.unknown
            messages[types[key]] = inner.values
    return messages
