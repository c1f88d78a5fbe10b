"""Every name and value that the service's document does not show, and what Sendoff sends instead.

The page ``docs/reference/unknowns.md`` shows this table, and a test compares the two. A connection corrects an entry
with its extra ``field_names``: ``{"device_ids": "the_right_name"}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from sendoff.errors import SettingsError

Members = Iterator[tuple[str, Any]]
"""Members of a JSON object, in order."""

_NUMBER = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """One spelling that the document does not show.

    ``name`` is the default spelling, and ``section`` is where the document leaves it out. ``confidence`` is *quoted* if
    a public page of the same interface states it, *inferred* if it follows from something stated, and otherwise
    *guess*.
    """

    name: str
    meaning: str
    section: str
    source: str
    confidence: Literal["quoted", "inferred", "guess"]


_CAMPAIGN_PAGE = "docs.xtremepush.com/reference/campaign-model"
_EXECUTE_PAGE = "docs.xtremepush.com/reference/campaign-execute"
_OLD_PAGE = "support.xtremepush.com, article 115003156185 (Campaign Methods)"
_TEMPLATES_PAGE = "support.xtremepush.com, article 207958935 (Template Campaigns)"
_WEBHOOK_PAGE = "docs.xtremepush.com/docs/campaign-webhooks"
_PATTERN = "the pattern of the names that are shown"
_WORDS = "the words of the document"

UNCONFIRMED: Mapping[str, Unconfirmed] = {
    # Channels
    "web_push_opera": Unconfirmed("web_push_opera", "1 selects Opera", "2.3", _PATTERN, "guess"),
    "web_push_safari": Unconfirmed("web_push_safari", "1 selects Safari", "2.3", _PATTERN, "guess"),
    "campaign_trigger": Unconfirmed(
        "trigger", "what starts a triggered campaign: 1 location, 2 event, 3 API", "2.3", _OLD_PAGE, "quoted"
    ),
    "event": Unconfirmed(
        "event", "name of the event that starts a triggered campaign", "2.11", _WORDS, "guess"
    ),
    # Content
    "push_icon": Unconfirmed("push_icon", "address of the icon", "2.4", _CAMPAIGN_PAGE, "quoted"),
    "message_ios_push": Unconfirmed("1", "key of iOS push in messages", "2.4", _CAMPAIGN_PAGE, "quoted"),
    "message_android_push": Unconfirmed(
        "2", "key of Android push in messages", "2.4", _CAMPAIGN_PAGE, "quoted"
    ),
    "url_browser": Unconfirmed(
        "url_browser", "opens url in a web view (0) or the browser (1)", "2.5", _OLD_PAGE, "quoted"
    ),
    "page": Unconfirmed("page", "HTML page shown when the message is opened", "2.5", _OLD_PAGE, "quoted"),
    "webhook_body_form": Unconfirmed("post", "request_body_type of a form", "2.7", _WEBHOOK_PAGE, "inferred"),
    "webhook_body_json": Unconfirmed("json", "request_body_type of JSON", "2.7", _WEBHOOK_PAGE, "inferred"),
    # Targeting
    "segment_ids": Unconfirmed("segment_ids", "ids of saved segments", "2.9", _WORDS, "guess"),
    "device_ids": Unconfirmed("device_ids", "ids of devices", "2.9", _WORDS, "guess"),
    "device_tokens": Unconfirmed("device_tokens", "tokens of devices", "2.9", _WORDS, "guess"),
    "device_uuids": Unconfirmed("device_uuids", "UUIDs of devices", "2.9", _WORDS, "guess"),
    "external_ids": Unconfirmed("external_ids", "external ids of devices", "2.9", _WORDS, "guess"),
    # Locations
    "location_trigger": Unconfirmed(
        "location_trigger", "what a device does at a location: 1 is entering it", "2.10", _WORDS, "guess"
    ),
    "location_trigger_exit": Unconfirmed(
        "2", "location_trigger for leaving the location", "2.10", "the order of the interface", "guess"
    ),
    "location_trigger_dwell": Unconfirmed(
        "3", "location_trigger for staying at the location", "2.10", "the order of the interface", "guess"
    ),
    "dwell_time": Unconfirmed("dwell_time", "minutes of staying, 1 to 30", "2.10", _WORDS, "guess"),
    "location_limit_per_location_period": Unconfirmed(
        "location_limit_per_location_period", "period of the limit per location", "2.10", _PATTERN, "inferred"
    ),
    "location_limit_nth_hit_period": Unconfirmed(
        "location_limit_nth_hit_period", "period of the nth hit", "2.10", _PATTERN, "inferred"
    ),
    # Scheduling
    "timezone": Unconfirmed("timezone", "IANA time zone of the schedule", "2.11", _WORDS, "inferred"),
    "send_days_monday": Unconfirmed("1", "number of Monday in send_days", "2.11", "ISO 8601", "guess"),
    # Timing
    "push_expiry": Unconfirmed("push_expiry", "how long delivery is retried", "2.12", _WORDS, "guess"),
    "push_expiry_unit": Unconfirmed("push_expiry_unit", "unit of push_expiry", "2.12", _WORDS, "guess"),
    "push_expiry_time": Unconfirmed(
        "push_expiry_time", "Unix time after which delivery is not retried", "2.12", _WORDS, "guess"
    ),
    "inbox_expiry": Unconfirmed(
        "inbox_expiry", "how long the inbox keeps the message", "2.12", _WORDS, "guess"
    ),
    "inbox_expiry_unit": Unconfirmed("inbox_expiry_unit", "unit of inbox_expiry", "2.12", _WORDS, "guess"),
    "inbox_expiry_time": Unconfirmed(
        "inbox_expiry_time", "Unix time at which the message leaves the inbox", "2.12", _WORDS, "guess"
    ),
    # Execution of a template
    "execute_id": Unconfirmed("id", "id of the template", "4.3", _EXECUTE_PAGE, "quoted"),
    "target": Unconfirmed("target", "array of identifiers to send to", "4.3", _EXECUTE_PAGE, "quoted"),
    "target_with_params": Unconfirmed(
        "target_with_params",
        "object from each identifier, as text, to that person's own variables; in place of target",
        "4.3",
        _EXECUTE_PAGE,
        "quoted",
    ),
    "target_by": Unconfirmed(
        "target_by", "kind of the identifiers in target", "4.3", _EXECUTE_PAGE, "quoted"
    ),
    "target_by_device_id": Unconfirmed("id", "target_by for device ids", "4.3", _TEMPLATES_PAGE, "quoted"),
    "target_by_device_token": Unconfirmed(
        "token", "target_by for device tokens", "4.3", _TEMPLATES_PAGE, "quoted"
    ),
    "target_by_external_id": Unconfirmed(
        "external_id", "target_by for external ids", "4.3", _TEMPLATES_PAGE, "quoted"
    ),
    "target_by_user_id": Unconfirmed("user_id", "target_by for user ids", "4.3", _EXECUTE_PAGE, "quoted"),
    "params": Unconfirmed("params", "variables of all targets", "4.3", _EXECUTE_PAGE, "quoted"),
}


_DOCUMENTED = frozenset(
    """android_push apptoken broadcast conditions email email_address_id email_html email_subject email_template
    email_text email_type email_unsubscribe encryption end_date end_time inbox inbox_type ios_push ios_push_sandbox
    languages_default languages_list languages_multi location_limit_nth_hit location_limit_per_location
    location_limit_per_user location_limit_per_user_period locations messages payload_add push_picture
    push_picture_type push_text push_text_languages push_title push_title_languages send_date send_days send_time
    send_type sms start_date start_time title url url_languages web_push web_push_chrome web_push_firefox webhook
    webhook_delivery webhook_open""".split()  # noqa: SIM905
)
_VALUES: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("message_ios_push", "message_android_push"): ("3", "6", "7", "8", "9"),
    ("location_trigger_exit", "location_trigger_dwell"): ("1",),
    ("webhook_body_form", "webhook_body_json"): ("raw",),
    tuple(key for key in UNCONFIRMED if key.startswith("target_by_")): (),
    ("send_days_monday",): (),
}
_EXECUTION = ("execute_id", "target", "target_with_params", "target_by", "params")
_CAMPAIGN = tuple(key for key in UNCONFIRMED if key not in {*_EXECUTION, *chain(*_VALUES)})
# Entries that share one place in a request, and the spellings that the document shows for that place.
_NAMESPACES: Mapping[tuple[str, ...], Iterable[str]] = {
    _CAMPAIGN: _DOCUMENTED,
    _EXECUTION: ("apptoken", "webhook_delivery", "webhook_open"),
    **_VALUES,
}


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The spelling of each entry of the table, with a connection's corrections.

    Raise SettingsError for a key that is not in the table, an empty spelling, or text instead of a number. Also raise
    it if two names in one place of a request have the same spelling.
    """

    overrides: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.overrides, Mapping):
            raise SettingsError("field_names must be a JSON object from our names to the service's")
        unknown = [str(key) for key in self.overrides if key not in UNCONFIRMED]
        if unknown:
            raise SettingsError(
                f"field_names: {', '.join(sorted(unknown))} cannot be set. Use: {', '.join(UNCONFIRMED)}"
            )
        for key, spelling in self.overrides.items():
            _check_spelling(key, spelling)
        for keys, shown in _NAMESPACES.items():
            self._check_distinct(keys, shown)

    def _check_distinct(self, keys: Iterable[str], shown: Iterable[str]) -> None:
        taken = {spelling: spelling for spelling in shown}
        for key in keys:
            other = taken.setdefault(self[key], key)
            if other != key:
                raise SettingsError(
                    f"field_names: {other} and {key} would both be sent as {self[key]!r}; "
                    "use a different spelling for one of them"
                )

    def __getitem__(self, key: str) -> str:
        return self.overrides.get(key) or UNCONFIRMED[key].name

    def members(self) -> frozenset[str]:
        """Return the names of a request's members that the document shows or the table spells."""
        return _DOCUMENTED.union(self[key] for key in (*_CAMPAIGN, *_EXECUTION))

    def number(self, key: str) -> int:
        """Return the spelling of an entry as a number."""
        return int(self[key])


def _check_spelling(key: str, spelling: object) -> None:
    if not isinstance(spelling, str) or not spelling.strip():
        raise SettingsError(f"field_names: {key} needs a name, as text")
    if key == "send_days_monday" and spelling not in set("1234567"):  # the document has days 1 to 7
        raise SettingsError(f"field_names: {key} needs a number from 1 to 7, as text")
    if UNCONFIRMED[key].name.isdigit() and not _NUMBER.fullmatch(spelling):
        raise SettingsError(f"field_names: {key} needs a number, as text, without zeros before it")


def to_object(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of some members, leaving out those that are None. Raise SettingsError if a name occurs twice."""
    result: dict[str, Any] = {}
    for name, value in members:
        if name in result:
            raise SettingsError(f"field_names: two members of the request are called {name!r}")
        if value is not None:
            result[name] = value
    return result
