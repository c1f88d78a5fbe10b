"""Checks that involve several fields of a request (sections 2.3 to 2.12), after the checks of single fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from messaging_service.campaigns.conditions import check_conditions
from messaging_service.campaigns.content import (
    BY_EVENT,
    BY_LOCATION,
    MESSAGE_TYPES,
    SCHEDULED,
    Content,
    channels,
    message,
)
from messaging_service.campaigns.fields import BROWSER_FLAGS, CHANNEL_FLAGS, TARGETING, wire_name
from messaging_service.campaigns.schedule import NOW, ONCE, REPEATEDLY, missing_fields
from messaging_service.campaigns.spellings import DWELL, FORM, JSON, RAW
from messaging_service.envelope import FieldProblem
from messaging_service.undocumented_names import Names

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PUSH_LIKE = ("android_push", "ios_push", "web_push", "inbox")
_LANGUAGE_FIELDS = ("push_text", "push_title", "url")
_SCHEDULE_FIELDS: Mapping[int, Sequence[str]] = {
    NOW: (),
    ONCE: ("send_date", "send_time"),
    REPEATEDLY: ("send_time", "start_date", "end_date", "send_days"),
}
_TRIGGERED_FIELDS: Sequence[str] = ("start_date", "end_date", "start_time", "end_time", "send_days")
_LOCATION_FIELDS = (
    "locations",
    "location_trigger",
    *(
        f"location_limit_{limit}{period}"
        for limit in ("per_user", "per_location", "nth_hit")
        for period in ("", "_period")
    ),
)
# Fields that have an effect only if another field has a value, and the warning if it has not.
_NEEDED: tuple[tuple[Sequence[str], str, object, str], ...] = (
    (("event",), "campaign_trigger", BY_EVENT, "no event triggers the campaign"),
    (_LOCATION_FIELDS, "campaign_trigger", BY_LOCATION, "no location triggers the campaign"),
    (("dwell_time",), "location_trigger", DWELL, "the trigger is not dwell time"),
    (("inbox_expiry", "inbox_expiry_unit", "inbox_expiry_time"), "inbox", 1, "inbox is not 1"),
    (("ios_push_sandbox", "ios_push_production"), "ios_push", 1, "ios_push is not 1"),
    (BROWSER_FLAGS, "web_push", 1, "web_push is not 1"),
)


def problems_of(content: Content, names: Names, now: datetime) -> Iterator[FieldProblem]:
    """Yield all problems with a campaign, a template, or a template merged with an execution."""
    for flag in channels(content):
        entry = message(content, MESSAGE_TYPES[flag])
        yield from _LACKING[flag](entry)
        if flag in _PUSH_LIKE:
            yield from _languages(entry)
    if not channels(content):
        yield FieldProblem(
            "android_push", f"at least one channel must be enabled: {', '.join(CHANNEL_FLAGS)}"
        )
    if content.get("conditions") is not None:
        yield from check_conditions(content["conditions"])
    yield from _schedule(content, names)
    yield from _locations(content, names)
    for prefix in ("push_expiry", "inbox_expiry"):
        yield from _expiry(content, prefix, names, now)


def missing_segmentation(content: Content, names: Names) -> Iterator[FieldProblem]:
    """Yield a problem if a campaign has no segmentation (section 2.3: even a campaign to everyone needs it)."""
    if not is_segmented(content):
        allowed = ", ".join(wire_name(key, names) for key in (*TARGETING, "conditions"))
        yield FieldProblem("broadcast", f"must be 1, or one of these must select devices: {allowed}")


def is_segmented(content: Content) -> bool:
    """Check whether a campaign has segmentation."""
    return is_broadcast(content) or any(content.get(key) for key in (*TARGETING, "conditions"))


def is_broadcast(content: Content) -> bool:
    """Check whether a campaign goes to everyone."""
    return content.get("broadcast") in (1, True)


def doubts_about(content: Content, names: Names) -> Iterator[str]:
    """Yield warnings: about fields without effect, and about missing fields that a real service may require."""
    if is_broadcast(content):
        for key in (*TARGETING, "conditions"):
            if content.get(key):
                yield f"{wire_name(key, names)} is ignored, because broadcast is 1"
    for keys, needed, value, reason in _NEEDED:
        if content.get(needed) != value:
            yield from (f"{wire_name(key, names)} is ignored: {reason}" for key in keys if content.get(key))
    yield from _schedule_doubts(content, names)
    enabled = {MESSAGE_TYPES[flag] for flag in channels(content)}
    for message_type in sorted(set(content["messages"]) - enabled):
        yield f"messages.{message_type} is not sent: its channel is not enabled"
    webhook = message(content, MESSAGE_TYPES["webhook"]).get("webhook", {})
    if "request_body_data" in webhook and "request_body_type" not in webhook:
        yield "request_body_data is ignored: request_body_type is missing"
    if content.get("email") == 1:
        entry = message(content, MESSAGE_TYPES["email"])
        lacking = [n for n in ("email_address_id", "email_type", "email_template") if n not in entry]
        yield from (f"{name} is missing" for name in lacking)


def _schedule_doubts(content: Content, names: Names) -> Iterator[str]:
    used, way = _TRIGGERED_FIELDS, f"{wire_name('campaign_trigger', names)} {content['campaign_trigger']}"
    if content["campaign_trigger"] == SCHEDULED:
        used, way = _SCHEDULE_FIELDS[content["send_type"]], f"send_type {content['send_type']}"
    for key in ("send_date", "send_time", *_TRIGGERED_FIELDS):
        if key in content and key not in used:
            yield f"{key} is ignored with {way}"


def _languages(entry: Mapping[str, Any]) -> Iterator[FieldProblem]:
    if not entry.get("languages_multi"):
        return
    listed, default = entry.get("languages_list", []), entry.get("languages_default")
    if not listed:
        yield FieldProblem("languages_list", "is required if languages_multi is 1")
    elif default is None:
        yield FieldProblem("languages_default", "is required if languages_multi is 1")
    elif default not in listed:
        yield FieldProblem("languages_default", "must be one of languages_list")
    for name in _LANGUAGE_FIELDS:
        strangers = sorted(set(entry.get(f"{name}_languages", {})) - set(listed))
        if listed and strangers:
            yield FieldProblem(
                f"{name}_languages", f"has languages that are not in languages_list: {', '.join(strangers)}"
            )
    translations = entry.get("push_text_languages", {})
    if default in listed and not (entry.get("push_text") or translations.get(default)):
        yield FieldProblem(
            "push_text_languages", "must have a text for languages_default, or push_text must be set"
        )


def _lacking_text(entry: Mapping[str, Any]) -> Iterator[FieldProblem]:
    multi = entry.get("languages_multi") and entry.get("push_text_languages")
    if not (entry.get("push_text") or multi):
        yield FieldProblem("push_text", "is required for push and inbox messages")


def _lacking_email(entry: Mapping[str, Any]) -> Iterator[FieldProblem]:
    if not entry.get("email_subject"):
        yield FieldProblem("messages.7.email_subject", "is required for email")
    if not (entry.get("email_html") or entry.get("email_text")):
        yield FieldProblem("messages.7.email_html", "is required for email, unless email_text is set")


def _lacking_sms(entry: Mapping[str, Any]) -> Iterator[FieldProblem]:
    if not entry.get("sms", {}).get("text"):
        yield FieldProblem("messages.9.sms", "is required for SMS: an object with text")


def _lacking_webhook(entry: Mapping[str, Any]) -> Iterator[FieldProblem]:
    webhook = entry.get("webhook", {})
    if not webhook.get("url"):
        yield FieldProblem("messages.8.webhook", "is required for webhooks: an object with url")
    kind = webhook.get("request_body_type")
    data = webhook.get("request_body_data", {})
    if kind in (RAW, FORM, JSON) and kind not in data:
        yield FieldProblem("messages.8.webhook.request_body_data", f"must have the member {kind}")
    for line in webhook.get("request_headers", "").splitlines():
        name, colon, _ = line.partition(":")
        if line.strip() and not (colon and _HEADER_NAME.fullmatch(name.strip())):
            text = "must have 'Name: value' on each line, or be a JSON object of names and values"
            yield FieldProblem("messages.8.webhook.request_headers", text)
            return


_LACKING = {
    **dict.fromkeys(_PUSH_LIKE, _lacking_text),
    "email": _lacking_email,
    "sms": _lacking_sms,
    "webhook": _lacking_webhook,
}


def _schedule(content: Content, names: Names) -> Iterator[FieldProblem]:
    trigger = content["campaign_trigger"]
    if trigger != SCHEDULED and content["send_type"] != REPEATEDLY:
        yield FieldProblem("send_type", "must be 2 for a campaign that is triggered")
    if trigger == SCHEDULED:
        yield from missing_fields(content)
    if trigger == BY_EVENT and not content.get("event"):
        yield FieldProblem(wire_name("event", names), "is required for a campaign that an event triggers")
    for first, last in (("start_date", "end_date"), ("start_time", "end_time")):
        if first in content and last in content and content[last] < content[first]:
            yield FieldProblem(last, f"must not be before {first}")


def _locations(content: Content, names: Names) -> Iterator[FieldProblem]:
    if content["campaign_trigger"] != BY_LOCATION:
        return
    if not content.get("locations"):
        yield FieldProblem("locations", "is required for a campaign that a location triggers")
    if content.get("location_trigger") == DWELL and "dwell_time" not in content:
        yield FieldProblem(wire_name("dwell_time", names), "is required if the trigger is dwell time")


def _expiry(content: Content, prefix: str, names: Names, now: datetime) -> Iterator[FieldProblem]:
    places = {"": content} | {
        f"messages.{message_type}.": entry for message_type, entry in content["messages"].items()
    }
    for at, fields in places.items():
        for given, needed in ((prefix, f"{prefix}_unit"), (f"{prefix}_unit", prefix)):
            if given in fields and needed not in fields:
                name = wire_name(needed, names)
                yield FieldProblem(at + name, f"is required with {wire_name(given, names)}")
        if fields.get(f"{prefix}_time", now.timestamp()) < now.timestamp():
            yield FieldProblem(at + wire_name(f"{prefix}_time", names), "is in the past")
