"""Names and values that the document mentions without spelling them, and the spellings that this service accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial


@dataclass(frozen=True, slots=True)
class UndocumentedName:
    """A name that the document leaves out: the spelling chosen here, its meaning, the section, and the reason.

    ``is_value`` marks the value of a member, as opposed to its name.
    """

    default: str
    meaning: str
    section: str
    reason: str
    is_value: bool = False


_PATTERN = "a guess by the pattern of the names that are shown"
_PUBLIC = "quoted from public pages of the same interface"
_WORDS = "a guess from the words of the document"
_MEMBERS = "the members of request_body_data"
_ORDER = "a guess from the order of the public web interface"

_name, _value = UndocumentedName, partial(UndocumentedName, is_value=True)

UNDOCUMENTED_NAMES: Mapping[str, UndocumentedName] = {
    "webhook_body_form": _value("post", "request_body_type of a form", "2.7", _MEMBERS),
    "webhook_body_json": _value("json", "request_body_type of JSON", "2.7", _MEMBERS),
    "segment_ids": _name("segment_ids", "previously created segments", "2.9", _WORDS),
    "device_ids": _name("device_ids", "platform device ids to send to", "2.9", _WORDS),
    "device_tokens": _name("device_tokens", "device tokens to send to", "2.9", _WORDS),
    "device_uuids": _name("device_uuids", "device UUIDs to send to", "2.9", _WORDS),
    "external_ids": _name("external_ids", "external device ids to send to", "2.9", _WORDS),
    "web_push_opera": _name("web_push_opera", "selects Opera", "2.3", _PATTERN),
    "web_push_safari": _name("web_push_safari", "selects Safari", "2.3", _PATTERN),
    "web_push_edge": _name("web_push_edge", "selects Edge", "2.3", _PATTERN),
    "ios_push_production": _name("ios_push_production", "targets iOS production", "2.3", _PUBLIC),
    "campaign_trigger": _name(
        "trigger", "what starts a campaign: 0 schedule, 1 location, 2 event, 3 API", "2.3", _PUBLIC
    ),
    "event": _name("event", "the event that starts a campaign with trigger 2", "2.3", _WORDS),
    "push_icon": _name("push_icon", "icon image URL", "2.4", _PUBLIC),
    "message_ios_push": _value("1", "key of iOS push in messages", "2.4", _PUBLIC),
    "message_android_push": _value("2", "key of Android push in messages", "2.4", _PUBLIC),
    "url_browser": _name("url_browser", "opens the URL in web view (0) or browser (1)", "2.5", _PUBLIC),
    "page": _name("page", "custom HTML page", "2.5", _PUBLIC),
    "location_trigger": _name("location_trigger", "1 triggers on entering the location", "2.10", _WORDS),
    "location_trigger_exit": _value("2", "location_trigger: leaving it", "2.10", _ORDER),
    "location_trigger_dwell": _value("3", "location_trigger: staying there", "2.10", _ORDER),
    "dwell_time": _name("dwell_time", "1 to 30 minutes", "2.10", _WORDS),
    "location_limit_per_location_period": _name(
        "location_limit_per_location_period", "period of the per-location limit", "2.10", _PATTERN
    ),
    "location_limit_nth_hit_period": _name(
        "location_limit_nth_hit_period", "period of the nth-hit limit", "2.10", _PATTERN
    ),
    "timezone": _name("timezone", "time zone of the schedule", "2.11", _WORDS),
    "send_days_monday": _value("1", "number of Monday in send_days", "2.11", "ISO 8601"),
    "push_expiry": _name("push_expiry", "length of time to retry", "2.12", _WORDS),
    "push_expiry_unit": _name("push_expiry_unit", "unit of that period", "2.12", _WORDS),
    "push_expiry_time": _name("push_expiry_time", "retry deadline", "2.12", _WORDS),
    "inbox_expiry": _name("inbox_expiry", "length of time to stay in the inbox", "2.12", _WORDS),
    "inbox_expiry_unit": _name("inbox_expiry_unit", "unit of that period", "2.12", _WORDS),
    "inbox_expiry_time": _name("inbox_expiry_time", "removal time", "2.12", _WORDS),
    "execute_id": _name("id", "the template to execute", "4.3", _PUBLIC),
    "target": _name("target", "identifiers to send to", "4.3", _PUBLIC),
    "target_by": _name("target_by", "kind of those identifiers", "4.3", _PUBLIC),
    "target_by_device_id": _value("id", "target_by: device ids", "4.3", _PUBLIC),
    "target_by_device_token": _value("token", "target_by: device tokens", "4.3", _PUBLIC),
    "target_by_external_id": _value("external_id", "target_by: external ids", "4.3", _PUBLIC),
    "target_by_email": _value("email", "target_by: email addresses", "4.3", _PUBLIC),
    "target_by_user_id": _value("user_id", "target_by: user ids", "4.3", _PUBLIC),
    "target_with_params": _name("target_with_params", "identifiers with variables", "4.3", _PUBLIC),
    "params": _name("params", "variables of all targets", "4.3", _PUBLIC),
    "execute_time": _name("time", "when to execute", "4.3", _PUBLIC),
    "target_existing_only": _name("target_existing_only", "0 creates missing profiles", "4.3", _PUBLIC),
}


class UnknownNameError(ValueError):
    """A setting overrides a name that the document shows or does not have, or uses a spelling that is taken."""


@dataclass(frozen=True, slots=True)
class Names:
    """The spelling of each undocumented name: the default, or an override from the settings."""

    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.overrides) - set(UNDOCUMENTED_NAMES))
        if unknown:
            raise UnknownNameError(
                f"unknown name {', '.join(unknown)}; the names are {', '.join(UNDOCUMENTED_NAMES)}"
            )
        for key, spelling in self.overrides.items():
            if UNDOCUMENTED_NAMES[key].default.isdigit() and not (spelling.isascii() and spelling.isdigit()):
                raise UnknownNameError(f"{key} must be a number")

    def __getitem__(self, key: str) -> str:
        return self.overrides.get(key) or UNDOCUMENTED_NAMES[key].default

    def number(self, key: str) -> int:
        """Return a value that is a number."""
        return int(self[key])


def parse_overrides(pairs: Iterable[str]) -> Names:
    """Read ``key=spelling`` pairs from the command line. Raise UnknownNameError if a pair is wrong."""
    overrides = {}
    for pair in pairs:
        key, separator, spelling = pair.partition("=")
        if not separator or not spelling:
            raise UnknownNameError(f"{pair!r} does not have the form name=spelling")
        overrides[key] = spelling
    return Names(overrides)
