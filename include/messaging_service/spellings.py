"""Turns values that the document does not show into this service's own words, by the table of ``names``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from messaging_service.fields import wire_name
from messaging_service.names import Names
from messaging_service.replies import Problem

ENTER, EXIT, DWELL = "enter", "exit", "dwell"
RAW, FORM, JSON = "raw", "post", "json"
TARGET_BY = ("device_id", "device_token", "external_id", "email", "user_id")


def spell_out(content: dict[str, Any], names: Names) -> Iterator[Problem]:
    """Put our own words in the place of spelled values of a checked request, or say which are unknown."""
    if "send_days" in content:
        monday = names.number("send_days_monday")
        content["send_days"] = sorted({(day - monday) % 7 + 1 for day in content["send_days"]})
    if "location_trigger" in content:
        yield from _location_trigger(content, names)
    if "target_by" in content:
        kinds = {names[f"target_by_{kind}"]: kind for kind in TARGET_BY}
        yield from _spell(content, "target_by", kinds, wire_name("target_by", names))
    for message_type, entry in content.get("messages", {}).items():
        if "request_body_type" in entry.get("webhook", {}):
            kinds = {RAW: RAW, names["webhook_body_form"]: FORM, names["webhook_body_json"]: JSON}
            at = f"messages.{message_type}.webhook.request_body_type"
            entry["webhook"] = dict(entry["webhook"])
            yield from _spell(entry["webhook"], "request_body_type", kinds, at)


def _location_trigger(content: dict[str, Any], names: Names) -> Iterator[Problem]:
    actions = {
        1: ENTER,
        names.number("location_trigger_exit"): EXIT,
        names.number("location_trigger_dwell"): DWELL,
    }
    return _spell(content, "location_trigger", actions, wire_name("location_trigger", names))


def _spell(values: dict[str, Any], key: str, words: dict[Any, str], at: str) -> Iterator[Problem]:
    if values[key] in words:
        values[key] = words[values[key]]
    else:
        yield Problem(at, f"must be one of {', '.join(map(str, words))}")
