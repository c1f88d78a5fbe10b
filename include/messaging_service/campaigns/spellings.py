"""Translation of the spellings in ``names``, for values that the document does not show, into internal values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from messaging_service.campaigns.fields import EXECUTION, wire_name
from messaging_service.envelope import FieldProblem
from messaging_service.undocumented_names import UNDOCUMENTED_NAMES, Names, UnknownNameError

ENTER, EXIT, DWELL = "enter", "exit", "dwell"
RAW, FORM, JSON = "raw", "post", "json"
TARGET_BY = ("device_id", "device_token", "external_id", "email", "user_id")


def refuse_same_spellings(names: Names) -> None:
    """Raise UnknownNameError if two members of a request, or two values of one member, have the same spelling."""
    values = {key: names[key] for key, name in UNDOCUMENTED_NAMES.items() if name.is_value}
    places = (
        {key: wire_name(key, names) for key in EXECUTION},
        {"raw": RAW} | _of(values, "webhook_body_"),
        {"1": "1"} | _of(values, "location_trigger_"),
        {kind: kind for kind in "36789"} | _of(values, "message_"),
        _of(values, "target_by_"),
    )
    for spellings in places:
        taken: dict[str, str] = {}
        for key, spelling in spellings.items():
            other = taken.setdefault(spelling, key)
            if other != key:
                raise UnknownNameError(
                    f"{other} and {key} would both be spelled {spelling!r}: use --name to spell them differently"
                )


def _of(values: Mapping[str, str], beginning: str) -> dict[str, str]:
    return {key: spelling for key, spelling in values.items() if key.startswith(beginning)}


def spell_out(content: dict[str, Any], names: Names) -> Iterator[FieldProblem]:
    """Replace the spelled values of a checked request by internal values. Yield a problem for each unknown value."""
    if "send_days" in content:
        monday = names.number("send_days_monday")
        content["send_days"] = sorted({(day - monday) % 7 + 1 for day in content["send_days"]})
    if "location_trigger" in content:
        yield from _location_trigger(content, names)
    if "target_by" in content:
        kinds = {names[f"target_by_{kind}"]: kind for kind in TARGET_BY}
        yield from _spell(content, "target_by", kinds, wire_name("target_by", names))
    for message_type, entry in content.get("messages", {}).items():
        if "request_headers" in entry.get("webhook", {}):
            lines = _header_lines(entry["webhook"]["request_headers"])
            entry["webhook"] = {**entry["webhook"], "request_headers": lines}
        if "request_body_type" in entry.get("webhook", {}):
            kinds = {RAW: RAW, names["webhook_body_form"]: FORM, names["webhook_body_json"]: JSON}
            at = f"messages.{message_type}.webhook.request_body_type"
            entry["webhook"] = dict(entry["webhook"])
            yield from _spell(entry["webhook"], "request_body_type", kinds, at)


def _header_lines(text: str) -> str:
    """Return the headers of a webhook as lines of ``Name: value``; section 2.7 says only that they are a string.

    A JSON object of names and values becomes lines, and so does a JSON array of objects with key and value. Any other
    text is returned unchanged; it fails the later check unless it already consists of such lines.
    """
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if isinstance(read, dict):
        pairs = list(read.items())
    elif isinstance(read, list) and all(
        isinstance(item, dict) and set(item) == {"key", "value"} for item in read
    ):
        pairs = [(item["key"], item["value"]) for item in read]
    else:
        return text
    lines = [f"{name}: {value}" for name, value in pairs if isinstance(value, str | int | float)]
    are_lines = len(lines) == len(pairs) and all(len(line.splitlines()) == 1 for line in lines)
    return "\n".join(lines) if are_lines else text


def _location_trigger(content: dict[str, Any], names: Names) -> Iterator[FieldProblem]:
    actions = {
        1: ENTER,
        names.number("location_trigger_exit"): EXIT,
        names.number("location_trigger_dwell"): DWELL,
    }
    return _spell(content, "location_trigger", actions, wire_name("location_trigger", names))


def _spell(values: dict[str, Any], key: str, words: dict[Any, str], at: str) -> Iterator[FieldProblem]:
    if values[key] in words:
        values[key] = words[values[key]]
    else:
        yield FieldProblem(at, f"must be one of {', '.join(map(str, words))}")
