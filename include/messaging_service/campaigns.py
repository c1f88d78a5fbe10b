"""The create request (sections 2.3 to 2.12, 4.2): checked whole, then stored with its first run.

What is stored is the *content* of a campaign: its parameters by their key in ``fields``, whatever their spelling
on the wire, with ``messages`` by message type. The devices are looked up later, by ``deliveries``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, insert, select

from messaging_service.fields import (
    CAMPAIGN,
    CHANNEL_FLAGS,
    ENTRY,
    TARGETING,
    Checked,
    check_members,
    wire_name,
)
from messaging_service.names import Names
from messaging_service.replies import Problem, RejectedError
from messaging_service.schedule import NOW, REPEATEDLY, sending_moment
from messaging_service.store import campaigns, runs

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


@dataclass(frozen=True, slots=True)
class Plan:
    """A campaign that may be created; ``due_at`` is None for a template, which waits to be executed."""

    title: str
    content: Content
    trigger: int
    send_type: int
    due_at: datetime | None
    warnings: tuple[str, ...]


def plan_campaign(body: Mapping[str, Any], names: Names, zone: str, now: datetime) -> Plan:
    """Check a create request against the document; RejectedError (400) lists every problem found."""
    content, checked = read_content(body, CAMPAIGN, names)
    problems = checked.problems or [
        *_missing_title(content),
        *_missing_content(content),
        *_missing_segmentation(content, names),
        *not_yet(content, names),
    ]
    trigger = content.get("campaign_trigger", SCHEDULED)
    due_at = None
    if not problems and trigger != BY_API:
        moment = sending_moment(content, zone, now)
        if isinstance(moment, Problem):
            problems = [moment]
        else:
            due_at = moment
    if problems:
        raise RejectedError(400, "The campaign was not created: some fields are wrong.", problems)
    return Plan(
        title=content["title"],
        content=content,
        trigger=trigger,
        send_type=content.get("send_type", NOW),
        due_at=due_at,
        warnings=tuple(f"unknown member: {name}" for name in checked.unknown),
    )


def read_content(body: Mapping[str, Any], table: Mapping[str, Any], names: Names) -> tuple[Content, Checked]:
    """Read the members of a request by key, with its messages by type; the token is left out."""
    checked = check_members(body, table, names)
    content = {key: value for key, value in checked.values.items() if key not in ("apptoken", "messages")}
    content["messages"] = _messages(checked, names)
    return content, checked


def create_campaign(
    connection: Connection, plan: Plan, app_id: int | None, client_id: str | None, now: datetime
) -> int:
    """Store a campaign, with its run unless it is a template, and give its id."""
    row = {
        "app_id": app_id,
        "client_id": client_id,
        "title": plan.title,
        "trigger": plan.trigger,
        "send_type": plan.send_type,
        "content": _pack(plan.content),
        "warnings": list(plan.warnings),
        "created_at": now.timestamp(),
    }
    campaign_id: int = connection.execute(
        insert(campaigns).values(row).returning(campaigns.c.id)
    ).scalar_one()
    if plan.due_at is not None:
        add_run(connection, campaign_id, 1, plan.content, plan.due_at)
    return campaign_id


def add_run(
    connection: Connection,
    campaign_id: int,
    number: int,
    content: Content,
    due_at: datetime,
    overrides: Content | None = None,
) -> int:
    """Store one sending of a campaign, to be worked through from ``due_at`` on, and give its id."""
    row = {
        "campaign_id": campaign_id,
        "number": number,
        "overrides": _pack(overrides) if overrides is not None else None,
        "webhook_delivery": content.get("webhook_delivery"),
        "webhook_open": content.get("webhook_open"),
        "due_at": due_at.timestamp(),
        "state": "waiting",
    }
    run_id: int = connection.execute(insert(runs).values(row).returning(runs.c.id)).scalar_one()
    return run_id


def load_content(connection: Connection, campaign_id: int) -> Content | None:
    """Give the content of a campaign, or None where there is no such campaign."""
    stored = connection.execute(
        select(campaigns.c.content).where(campaigns.c.id == campaign_id)
    ).scalar_one_or_none()
    return None if stored is None else unpack(stored)


def unpack(stored: bytes) -> Content:
    """Read content as it is stored."""
    return merge({}, orjson.loads(stored))


def merge(content: Content, overrides: Content) -> Content:
    """Put ``overrides`` over ``content``, and each message of theirs over the message of that type."""
    messages = dict(content.get("messages", {}))
    for kind, entry in overrides.get("messages", {}).items():
        messages[int(kind)] = {**messages.get(int(kind), {}), **entry}
    return {**content, **overrides, "messages": messages}


def message(content: Content, message_type: int) -> Mapping[str, Any]:
    """Give what a message of that type holds: its own entry, and the top level where it says nothing."""
    shared = {key: value for key, value in content.items() if key in ENTRY and key not in CHANNEL_FLAGS}
    return {**shared, **content["messages"].get(message_type, {})}


def _pack(content: Content) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


def _messages(checked: Checked, names: Names) -> dict[int, dict[str, Any]]:
    types = {names["message_ios_push"]: IOS_PUSH, names["message_android_push"]: ANDROID_PUSH}
    types |= {str(number): number for number in (WEB_PUSH, INBOX, EMAIL, WEBHOOK, SMS)}
    messages = {}
    for key, entry in checked.values.get("messages", {}).items():
        at = f"messages.{key}"
        if key not in types:
            checked.unknown.append(at)
        elif not isinstance(entry, dict):
            checked.problems.append(Problem(at, "must be an object"))
        else:
            inner = check_members(entry, ENTRY, names, f"{at}.")
            checked.problems += inner.problems
            checked.unknown += inner.unknown
            messages[types[key]] = inner.values
    return messages


def _missing_title(content: Content) -> Iterator[Problem]:
    if not content.get("title", "").strip():
        yield Problem("title", "is required")


def _missing_content(content: Content) -> Iterator[Problem]:
    enabled = [flag for flag in CHANNEL_FLAGS if content.get(flag) == 1]
    if not enabled:
        yield Problem("android_push", f"at least one channel must be enabled: {', '.join(CHANNEL_FLAGS)}")
    for flag in enabled:
        entry = message(content, MESSAGE_TYPES[flag])
        yield from _LACKING[flag](entry)


def _lacking_text(entry: Mapping[str, Any]) -> Iterator[Problem]:
    if not (entry.get("push_text") or entry.get("push_text_languages")):
        yield Problem("push_text", "is required for push and inbox messages")


def _lacking_email(entry: Mapping[str, Any]) -> Iterator[Problem]:
    if not entry.get("email_subject"):
        yield Problem("messages.7.email_subject", "is required for email")
    if not (entry.get("email_html") or entry.get("email_text")):
        yield Problem("messages.7.email_html", "email needs email_html or email_text")


def _lacking_sms(entry: Mapping[str, Any]) -> Iterator[Problem]:
    if not entry.get("sms", {}).get("text"):
        yield Problem("messages.9.sms", "sms needs an object with text")


def _lacking_webhook(entry: Mapping[str, Any]) -> Iterator[Problem]:
    if not entry.get("webhook", {}).get("url"):
        yield Problem("messages.8.webhook", "webhook needs an object with url")


_LACKING = {
    "android_push": _lacking_text,
    "ios_push": _lacking_text,
    "web_push": _lacking_text,
    "inbox": _lacking_text,
    "email": _lacking_email,
    "sms": _lacking_sms,
    "webhook": _lacking_webhook,
}


def _missing_segmentation(content: Content, names: Names) -> Iterator[Problem]:
    if content.get("campaign_trigger") == BY_API or content.get("broadcast") in (1, True):
        return
    if not any(content.get(key) for key in (*TARGETING, "conditions")):
        allowed = ", ".join(wire_name(key, names) for key in (*TARGETING, "conditions"))
        yield Problem("broadcast", f"must be 1, or one of these must select devices: {allowed}")


def not_yet(content: Content, names: Names) -> Iterator[Problem]:
    """Name what this version of the service refuses although the document has it."""
    text = "is not supported by this version of the local service"
    if content.get("conditions"):
        yield Problem("conditions", text)
    if content.get("segment_ids"):
        yield Problem(wire_name("segment_ids", names), "there is no such segment")
    trigger = content.get("campaign_trigger", SCHEDULED)
    if trigger in (BY_LOCATION, BY_EVENT):
        yield Problem(wire_name("campaign_trigger", names), f"{trigger} {text}")
    if content.get("send_type") == REPEATEDLY and trigger != BY_API:
        yield Problem("send_type", f"2 {text}")
    if content.get("webhook") == 1:
        yield Problem("webhook", text)
