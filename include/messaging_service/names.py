"""Each name and value that the document uses without showing it, and what this service takes for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NotShown:
    """A name the document leaves out: the spelling chosen here, what it means, where, and why so spelled.

    ``is_value`` marks what is no name of a member, but the value of one.
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

NOT_SHOWN: Mapping[str, NotShown] = {
    "webhook_body_form": NotShown("post", "request_body_type of a form", "2.7", _MEMBERS, is_value=True),
    "webhook_body_json": NotShown("json", "request_body_type of JSON", "2.7", _MEMBERS, is_value=True),
    "segment_ids": NotShown("segment_ids", "previously created segments", "2.9", _WORDS),
    "device_ids": NotShown("device_ids", "platform device ids to send to", "2.9", _WORDS),
    "device_tokens": NotShown("device_tokens", "device tokens to send to", "2.9", _WORDS),
    "device_uuids": NotShown("device_uuids", "device UUIDs to send to", "2.9", _WORDS),
    "external_ids": NotShown("external_ids", "external device ids to send to", "2.9", _WORDS),
    "web_push_opera": NotShown("web_push_opera", "selects Opera", "2.3", _PATTERN),
    "web_push_safari": NotShown("web_push_safari", "selects Safari", "2.3", _PATTERN),
    "web_push_edge": NotShown("web_push_edge", "selects Edge", "2.3", _PATTERN),
    "ios_push_production": NotShown("ios_push_production", "targets iOS production", "2.3", _PUBLIC),
    "campaign_trigger": NotShown(
        "trigger", "what starts a campaign: 0 schedule, 1 location, 2 event, 3 API", "2.3", _PUBLIC
    ),
    "event": NotShown("event", "the event that starts a campaign with trigger 2", "2.3", _WORDS),
    "push_icon": NotShown("push_icon", "icon image URL", "2.4", _PUBLIC),
    "message_ios_push": NotShown("1", "key of iOS push in messages", "2.4", _PUBLIC, is_value=True),
    "message_android_push": NotShown("2", "key of Android push in messages", "2.4", _PUBLIC, is_value=True),
    "url_browser": NotShown("url_browser", "opens the URL in web view (0) or browser (1)", "2.5", _PUBLIC),
    "page": NotShown("page", "custom HTML page", "2.5", _PUBLIC),
    "location_trigger": NotShown("location_trigger", "1 triggers on entering the location", "2.10", _WORDS),
    "location_trigger_exit": NotShown("2", "location_trigger: leaving it", "2.10", _ORDER, is_value=True),
    "location_trigger_dwell": NotShown("3", "location_trigger: staying there", "2.10", _ORDER, is_value=True),
    "dwell_time": NotShown("dwell_time", "1 to 30 minutes", "2.10", _WORDS),
    "location_limit_per_location_period": NotShown(
        "location_limit_per_location_period", "period of the per-location limit", "2.10", _PATTERN
    ),
    "location_limit_nth_hit_period": NotShown(
        "location_limit_nth_hit_period", "period of the nth-hit limit", "2.10", _PATTERN
    ),
    "timezone": NotShown("timezone", "time zone of the schedule", "2.11", _WORDS),
    "send_days_monday": NotShown("1", "number of Monday in send_days", "2.11", "ISO 8601", is_value=True),
    "push_expiry": NotShown("push_expiry", "length of time to retry", "2.12", _WORDS),
    "push_expiry_unit": NotShown("push_expiry_unit", "unit of that period", "2.12", _WORDS),
    "push_expiry_time": NotShown("push_expiry_time", "retry deadline", "2.12", _WORDS),
    "inbox_expiry": NotShown("inbox_expiry", "length of time to stay in the inbox", "2.12", _WORDS),
    "inbox_expiry_unit": NotShown("inbox_expiry_unit", "unit of that period", "2.12", _WORDS),
    "inbox_expiry_time": NotShown("inbox_expiry_time", "removal time", "2.12", _WORDS),
    "execute_id": NotShown("id", "the template to execute", "4.3", _PUBLIC),
    "target": NotShown("target", "identifiers to send to", "4.3", _PUBLIC),
    "target_by": NotShown("target_by", "kind of those identifiers", "4.3", _PUBLIC),
    "target_by_device_id": NotShown("id", "target_by: device ids", "4.3", _PUBLIC, is_value=True),
    "target_by_device_token": NotShown("token", "target_by: device tokens", "4.3", _PUBLIC, is_value=True),
    "target_by_external_id": NotShown(
        "external_id", "target_by: external ids", "4.3", _PUBLIC, is_value=True
    ),
    "target_by_email": NotShown("email", "target_by: email addresses", "4.3", _PUBLIC, is_value=True),
    "target_by_user_id": NotShown("user_id", "target_by: user ids", "4.3", _PUBLIC, is_value=True),
    "target_with_params": NotShown("target_with_params", "identifiers with variables", "4.3", _PUBLIC),
    "params": NotShown("params", "variables of all targets", "4.3", _PUBLIC),
    "execute_time": NotShown("time", "when to execute", "4.3", _PUBLIC),
    "target_existing_only": NotShown("target_existing_only", "0 creates missing profiles", "4.3", _PUBLIC),
}


class UnknownNameError(ValueError):
    """A setting renames what the document shows or what does not exist, or gives a spelling that is taken."""


@dataclass(frozen=True, slots=True)
class Names:
    """The spelling of each name that is not shown: the default, or what a setting put in its place."""

    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.overrides) - set(NOT_SHOWN))
        if unknown:
            raise UnknownNameError(f"no such name: {', '.join(unknown)}; there are: {', '.join(NOT_SHOWN)}")
        for key, spelling in self.overrides.items():
            if NOT_SHOWN[key].default.isdigit() and not (spelling.isascii() and spelling.isdigit()):
                raise UnknownNameError(f"{key} is a number")

    def __getitem__(self, key: str) -> str:
        return self.overrides.get(key) or NOT_SHOWN[key].default

    def number(self, key: str) -> int:
        """Give a value that is a number."""
        return int(self[key])


def parse_overrides(pairs: Iterable[str]) -> Names:
    """Read ``key=spelling`` pairs, as the command line gives them; an UnknownNameError lists the keys."""
    overrides = {}
    for pair in pairs:
        key, separator, spelling = pair.partition("=")
        if not separator or not spelling:
            raise UnknownNameError(f"{pair!r} is not of the form name=spelling")
        overrides[key] = spelling
    return Names(overrides)
