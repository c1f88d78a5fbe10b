"""The parameters of the create and execute requests, with a check for each (sections 2.3 to 2.12).

These are tables of checks instead of a schema, because the document is incomplete. ``names`` supplies the names that
the document does not show. A member that is in no table is accepted and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from messaging_service.envelope import FieldProblem
from messaging_service.undocumented_names import UNDOCUMENTED_NAMES, Names

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
# Returns the problem with a value, or None.
FieldCheck = Callable[[Any], str | None]
# ISO 639-1.
_LANGUAGES = frozenset(
    """aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en
    eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv
    ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne
    ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st
    su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu""".split()  # noqa: SIM905
)


def is_flag(value: Any) -> str | None:
    """Accept an integer flag."""
    return None if type(value) is int and value in (0, 1) else "must be 0 or 1"


def is_boolean(value: Any) -> str | None:
    """Accept the type that the document calls boolean (0/1)."""
    return None if isinstance(value, bool) else is_flag(value)


def is_text(value: Any) -> str | None:
    """Accept a string."""
    return None if isinstance(value, str) else "must be a string"


def is_int32(value: Any) -> str | None:
    """Accept an integer of 32 bits."""
    return None if type(value) is int and -(2**31) <= value < 2**31 else "must be a 32-bit integer"


def is_object(value: Any) -> str | None:
    """Accept an object."""
    return None if isinstance(value, dict) else "must be an object"


def is_url(value: Any) -> str | None:
    """Accept an http or https URL."""
    if not isinstance(value, str):
        return "must be a string"
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    return None if good else "must be an http or https address"


def is_link(value: Any) -> str | None:
    """Accept an absolute URL with any scheme, such as a link into an app."""
    if not isinstance(value, str):
        return "must be a string"
    scheme, separator, rest = value.partition(":")
    if separator and _SCHEME.fullmatch(scheme) and scheme.lower() not in ("http", "https"):
        return None if rest.strip("/") else "must be an absolute URL"
    return None if is_url(value) is None else "must be an absolute URL"


# No time on a date between these, in any zone, is beyond the calendar.
_EARLIEST, _LATEST = "0001-01-03", "9999-12-30"


def is_date(value: Any) -> str | None:
    """Accept YYYY-MM-DD."""
    try:
        good = isinstance(value, str) and _EARLIEST < value == date.fromisoformat(value).isoformat() < _LATEST
    except ValueError:
        good = False
    return None if good else "must be a date, YYYY-MM-DD"


def is_time(value: Any) -> str | None:
    """Accept HH:MM."""
    try:
        good = isinstance(value, str) and f"{time.fromisoformat(value):%H:%M}" == value
    except ValueError:
        good = False
    return None if good else "must be a time, HH:MM"


def is_time_zone(value: Any) -> str | None:
    """Accept an IANA time zone."""
    try:
        good = isinstance(value, str) and bool(ZoneInfo(value).key)
    except (KeyError, ValueError, OSError):
        good = False
    return None if good else "must be an IANA time zone, such as Europe/Dublin"


def is_language(value: Any) -> str | None:
    """Accept an ISO 639-1 language code."""
    good = isinstance(value, str) and value in _LANGUAGES
    return None if good else "must be a two-letter language code of ISO 639-1"


def integer_between(least: int, most: int) -> FieldCheck:
    """Accept a whole number from ``least`` to ``most``."""

    def check(value: Any) -> str | None:
        good = type(value) is int and least <= value <= most
        return None if good else f"must be a whole number from {least} to {most}"

    return check


def one_of(*allowed: object) -> FieldCheck:
    """Accept exactly these values."""
    text = f"must be one of {', '.join(map(str, allowed))}"

    def check(value: Any) -> str | None:
        return None if any(type(value) is type(item) and value == item for item in allowed) else text

    return check


def array_of(kind: type, what: str) -> FieldCheck:
    """Accept an array whose elements all have exactly this type."""

    def check(value: Any) -> str | None:
        good = isinstance(value, list) and all(type(item) is kind for item in value)
        return None if good else f"must be an array of {what}"

    return check


def by_language(check_one: FieldCheck) -> FieldCheck:
    """Accept an object that maps language codes to values."""

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return "must be an object that maps language codes to translations"
        for code, translation in value.items():
            problem = is_language(code) or check_one(translation)
            if problem:
                return f"{code[:10]}: {problem}"
        return None

    return check


def _integers_or_strings(value: Any) -> str | None:
    good = isinstance(value, list) and all(type(item) in (int, str) for item in value)
    return None if good else "must be an array of integers or strings"


def _languages(value: Any) -> str | None:
    good = isinstance(value, list) and value and not any(is_language(item) for item in value)
    return None if good else "must be an array of two-letter language codes of ISO 639-1"


def _pairs(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(i, dict) and set(i) == {"key", "value"} for i in value)
    if not good:
        return "must be an array of objects with key and value"
    plain = all(isinstance(i["key"], str) and isinstance(i["value"], str | int | float) for i in value)
    return None if plain else "each key must be a string, and each value a string or a number"


def _send_days(value: Any) -> str | None:
    good = isinstance(value, list) and value and all(type(day) is int and 1 <= day <= 7 for day in value)
    return None if good else "must be an array of days, 1 to 7"


def _text_members(*members: str) -> FieldCheck:
    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return "must be an object"
        wrong = [name for name in members if name in value and not isinstance(value[name], str)]
        return f"{wrong[0]} must be a string" if wrong else None

    return check


def _webhook(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    checks = {
        "url": is_url,
        "get_params": _pairs,
        "request_body_type": is_text,
        "request_body_data": _text_members("raw", "post", "json"),
        "request_headers": is_text,
    }
    for name, check in checks.items():
        problem = check(value[name]) if name in value else None
        if problem:
            return f"{name} {problem}"
    return None


_INTEGERS = array_of(int, "integers")
_STRINGS = array_of(str, "strings")
_PERIOD = one_of("campaign", "day")
_UNITS = one_of("seconds", "minutes", "hours", "days", "weeks")
_FROM_1, _FROM_0 = integer_between(1, 2**31 - 1), integer_between(0, 2**31 - 1)

MESSAGE: Mapping[str, FieldCheck] = {
    "push_title": is_text,
    "push_text": is_text,
    "push_picture_type": is_text,
    "push_picture": is_url,
    "push_icon": is_url,
    "inbox_type": is_text,
    "url": is_link,
    "url_browser": is_boolean,
    "page": is_text,
    "payload_add": _pairs,
    "languages_multi": is_boolean,
    "languages_list": _languages,
    "languages_default": is_language,
    "push_text_languages": by_language(is_text),
    "push_title_languages": by_language(is_text),
    "url_languages": by_language(is_link),
    "email_address_id": _FROM_1,
    "email_subject": is_text,
    "email_html": is_text,
    "email_text": is_text,
    "email_unsubscribe": is_boolean,
    # The document does not show which of the two means that the content comes from the API; its example sets both to 1.
    "email_type": one_of(1),
    "email_template": one_of(1),
    "sms": _text_members("from", "text"),
    # At the top level, ``webhook`` is the channel flag. Only an entry of messages holds the webhook object.
    "push_expiry": _FROM_1,
    "push_expiry_unit": _UNITS,
    "push_expiry_time": _FROM_1,
    "inbox_expiry": _FROM_1,
    "inbox_expiry_unit": _UNITS,
    "inbox_expiry_time": _FROM_1,
}

ENTRY: Mapping[str, FieldCheck] = {**MESSAGE, "webhook": _webhook}

CHANNEL_FLAGS = ("android_push", "ios_push", "web_push", "inbox", "email", "sms", "webhook")
BROWSER_FLAGS = ("web_push_chrome", "web_push_firefox", "web_push_opera", "web_push_safari", "web_push_edge")
TARGETING = {
    "segment_ids": _INTEGERS,
    "device_ids": _INTEGERS,
    # The document says integers, but real tokens and UUIDs are strings, so both are accepted.
    "device_tokens": _integers_or_strings,
    "device_uuids": _integers_or_strings,
    "external_ids": _STRINGS,
}

CAMPAIGN: Mapping[str, FieldCheck] = {
    "apptoken": is_text,
    "title": is_text,
    **dict.fromkeys((*CHANNEL_FLAGS, *BROWSER_FLAGS, "ios_push_sandbox", "ios_push_production"), is_flag),
    "encryption": is_text,
    "broadcast": is_boolean,
    "messages": is_object,
    "webhook_delivery": is_url,
    "webhook_open": is_url,
    "campaign_trigger": one_of(0, 1, 2, 3),
    **{name: check for name, check in MESSAGE.items() if name != "sms"},
    "conditions": is_object,
    **TARGETING,
    "event": is_text,
    "locations": _INTEGERS,
    "location_trigger": is_int32,
    "dwell_time": integer_between(1, 30),
    "location_limit_per_user": _FROM_1,
    "location_limit_per_user_period": _PERIOD,
    "location_limit_per_location": _FROM_1,
    "location_limit_per_location_period": _PERIOD,
    "location_limit_nth_hit": _FROM_0,
    "location_limit_nth_hit_period": _PERIOD,
    "send_type": one_of(0, 1, 2),
    "send_date": is_date,
    "send_time": is_time,
    "start_date": is_date,
    "end_date": is_date,
    "start_time": is_time,
    "end_time": is_time,
    "send_days": _send_days,
    "timezone": is_time_zone,
}


def _moment(value: Any) -> str | None:
    if type(value) is int and 0 < value < 2**33:
        return None
    return (
        None if isinstance(value, str) and moment(value) else "must be a date and time, or a Unix timestamp"
    )


def moment(text: str) -> datetime | None:
    """Read a time such as ``2027-03-04 09:30 UTC``, in ISO 8601, or as digits. Without a time zone, it is UTC."""
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return datetime.fromtimestamp(int(text), UTC)
    try:
        parsed = datetime.fromisoformat(text.removesuffix(" UTC").strip())
    except ValueError:
        return None
    inside = is_date(parsed.date().isoformat()) is None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC) if inside else None


def _execute_id(value: Any) -> str | None:
    digits = str(value) if type(value) in (int, str) else ""
    good = digits.isascii() and digits.isdigit() and len(digits) < 19
    return None if good else "must be the id of a campaign"


def _targets_with_params(value: Any) -> str | None:
    good = isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())
    return None if good else "must be an object that maps identifiers to objects of variables"


EXECUTION: Mapping[str, FieldCheck] = {
    **CAMPAIGN,
    "execute_id": _execute_id,
    "target": _integers_or_strings,
    "target_by": is_text,
    "target_with_params": _targets_with_params,
    "params": is_object,
    "execute_time": _moment,
    "target_existing_only": is_boolean,
}


@dataclass(slots=True)
class Checked:
    """The valid members of an object by their key in the table, the problems, and the unknown members."""

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[FieldProblem] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def check_members(
    body: Mapping[str, Any], table: Mapping[str, FieldCheck], names: Names, at: str = ""
) -> Checked:
    """Check all members of an object against a table; ``at`` is the prefix of the reported names."""
    keys = {wire_name(key, names): key for key in table}
    checked = Checked()
    for name, value in body.items():
        key = keys.get(name)
        if key is None:
            checked.unknown.append(at + name)
            continue
        problem = table[key](value)
        if problem:
            checked.problems.append(FieldProblem(at + name, problem))
        else:
            checked.values[key] = value
    return checked


def wire_name(key: str, names: Names) -> str:
    """Return how a key of the tables is spelled on the wire."""
    return names[key] if key in UNDOCUMENTED_NAMES else key
