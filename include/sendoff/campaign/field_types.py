"""The types of values in campaign files: times, time zones, languages, web addresses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date, datetime, time
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

# ISO 639-1 codes, which the service uses for languages (section 2.5).
_LANGUAGES = """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
    dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id
    ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu
    lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu
    rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr
    ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
_HOUR_MINUTE = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TOO_LATE = date(9000, 1, 1)  # time zones and waits add to a day, and the year 9999 is the last one
OWN_ZONE = "user"
"""In place of a time zone: each recipient's own, as the service knows it."""

QUERY_ZONE = "query"
"""In place of a time zone: the one in the audience query's column ``time_zone``."""

NEVER = "never"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+")
_WEB = ("http", "https")  # a scheme like these, such as htps, is a slip, and so is a host with a port
_NO_LINKS = ("javascript", "vbscript", "data")  # schemes that run code
_SPACES = re.compile(r"[\s\x00-\x1f]")
_PORTS = " (a port must be 1 to 65535)"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_ZONES = ("localtime", "posixrules", "posix/", "right/", "Factory")  # files that are not IANA zones


class FrozenModel(BaseModel):
    """An immutable model without unknown fields; the types below are strict and do not turn text into numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed values, without checking them."""
        return self.model_copy(update=changes)


def optional(description: str, default: Any = None) -> Any:
    """Return a field that a file may leave out."""
    return Field(default, description=description)


def problem(found: str, allowed: str) -> PydanticCustomError:
    """Return a validation error in the common form of errors in campaign files."""
    return PydanticCustomError(
        "campaign", "found {found}. Use {allowed}", {"found": found, "allowed": allowed}
    )


def describe(value: object, *, is_content: bool = False) -> str:
    """Describe a value for an error: short words as they are, but only the size of possible message text.

    ``is_content``: the value is part of a message, so not even short words and numbers are shown.
    """
    if isinstance(value, str):
        is_word = len(value) <= 40 and value.isprintable() and " " not in value
        return repr(value) if is_word and not is_content else _size(value)
    if is_content and isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if value is None or isinstance(value, bool | int | float):
        return "nothing" if value is None else json.dumps(value)
    if isinstance(value, date):
        return f"the {'time' if isinstance(value, datetime) else 'date'} {value}"
    return f"a value of the Python type {type(value).__module__}.{type(value).__qualname__}"


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """Return a hint that names the closest allowed word, or an empty text if none is close."""
    near = get_close_matches(found.lower(), list(allowed), n=1) if isinstance(found, str) else []
    return f" (did you mean {near[0]!r}?)" if near else ""


def _size(text: str) -> str:
    return f"a text of {len(text)} characters"


def _hour_minute(text: str) -> str:
    if not _HOUR_MINUTE.fullmatch(text):
        raise problem(describe(text), 'a time of day as "HH:MM", from 00:00 to 23:59')
    return text


def _day(*also: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, date) and not isinstance(value, datetime):
            return date(value.year, value.month, value.day)  # also of a subclass, such as pendulum's
        if value in also or not isinstance(value, str):
            return value
        try:
            return date.fromisoformat(value if _DAY.fullmatch(value) else "")
        except ValueError:
            raise problem(describe(value), ", or ".join(["a date as YYYY-MM-DD", *also])) from None

    return BeforeValidator(check)


def _not_too_late(*also: str) -> AfterValidator:
    def check(day: date | str, info: ValidationInfo) -> date | str:
        # A launch may have been frozen with such a date.
        if isinstance(day, date) and day >= _TOO_LATE and not info.context:
            raise problem(describe(day), ", or ".join([f"a date before the year {_TOO_LATE.year}", *also]))
        return day

    return AfterValidator(check)


def is_time_zone(name: str) -> bool:
    """Check whether an IANA time zone has this name."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return not name.startswith(_NO_ZONES)


def time_zone_of(text: str) -> str | None:
    """Return the IANA time zone with this name, or None. Case and white space around it do not matter."""
    name = text.strip()
    return name if is_time_zone(name) else _zones_in_lower_case().get(name.lower())


@cache
def _zones_in_lower_case() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones() if not name.startswith(_NO_ZONES)}


def _time_zone(*also: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in also and not is_time_zone(name):
            (example,) = get_close_matches(name, available_timezones(), n=1) or ["Europe/Dublin"]
            raise problem(describe(name), f"an IANA time zone, such as {example}")
        return name

    return AfterValidator(check)


def check_only_with(name: str, value: object, field: str, setting: str, needed: str) -> None:
    """Raise an error unless a field has a value exactly when another field has the setting that needs it."""
    if (setting == needed) != (value is not None):
        found = f"no {name}" if value is None else f"{name} with {field}: {setting}"
        raise problem(found, f"{name} with {field}: {needed}, and only there")


def _language(code: str, info: ValidationInfo) -> str:
    if (
        code not in _LANGUAGES.split() and not info.context
    ):  # a launch may have been frozen with a former code
        raise problem(describe(code), "a language of two letters (ISO 639-1), such as en")
    return code


def is_web_address(address: str) -> bool:
    """Check whether an address is https, or http on this machine."""
    try:
        parts = urlsplit(address)
        secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
        return secure and bool(parts.hostname) and parts.port != 0 and not _SPACES.search(address)
    except ValueError:  # also of a port that is no number or too large
        return False


def _web_address(address: str, info: ValidationInfo) -> str:
    if not (info.context or is_web_address(address)):  # a launch may have been frozen with another one
        raise problem(_size(address), f"a web address that starts with https:// and has no spaces{_PORTS}")
    return address


def _link(address: str, info: ValidationInfo) -> str:
    scheme, separator, rest = address.partition(":")
    is_deep = bool(separator) and _SCHEME.fullmatch(scheme) is not None and bool(rest.strip("/"))
    is_slip = get_close_matches(scheme.lower(), _WEB, cutoff=0.75) or ("." in scheme and rest[:1].isdigit())
    if is_deep and not is_slip and scheme.lower() not in _NO_LINKS and not _SPACES.search(address):
        return address
    if not (info.context or is_web_address(address)):
        raise problem(
            _size(address),
            f"a web address that starts with https://{_PORTS}, or a link into the app such as myshop://basket/42; "
            "no spaces",
        )
    return address


def between(least: int, most: int) -> Any:
    """Return a pydantic field that limits a whole number."""
    return Field(ge=least, le=most, strict=True)


_STRICT = Field(strict=True)
_ZONE_SCHEMA = WithJsonSchema({"type": "string", "examples": ["Europe/Dublin"]})

Text = Annotated[str, Field(min_length=1, strict=True)]
ConnectionName = Annotated[Text, Field(max_length=250)]  # the limits of Airflow's database, here and below
AssetName = Annotated[Text, Field(max_length=1500)]
Flag = Annotated[bool, _STRICT]
Int32 = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
HourMinute = Annotated[
    str,
    _STRICT,
    AfterValidator(_hour_minute),
    WithJsonSchema({"type": "string", "pattern": f"^{_HOUR_MINUTE.pattern}$", "examples": ["18:30"]}),
]
Day = Annotated[date, _STRICT, _day(), _not_too_late()]
DayOrNever = Annotated[Annotated[date, _STRICT] | Literal["never"], _day(NEVER), _not_too_late(NEVER)]
TimeZone = Annotated[str, _STRICT, _time_zone(), _ZONE_SCHEMA]
TimeZoneOrOwn = Annotated[str, _STRICT, _time_zone(OWN_ZONE), _ZONE_SCHEMA]
TimeZoneOrQuery = Annotated[str, _STRICT, _time_zone(QUERY_ZONE), _ZONE_SCHEMA]
AnyTimeZone = Annotated[str, _STRICT, _time_zone(OWN_ZONE, QUERY_ZONE), _ZONE_SCHEMA]
Language = Annotated[
    str,
    _STRICT,
    AfterValidator(_language),
    WithJsonSchema({"type": "string", "enum": _LANGUAGES.split(), "examples": ["en"]}),
]
WebAddress = Annotated[
    str,
    _STRICT,
    AfterValidator(_web_address),
    WithJsonSchema({"type": "string", "format": "uri", "pattern": "^https?://"}),
]
MessageLink = Annotated[
    str,
    _STRICT,
    AfterValidator(_link),
    WithJsonSchema(
        {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]+:.", "examples": ["myshop://basket/42"]}
    ),
]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: tuple[Weekday, ...] = get_args(Weekday)


def moment(day: date, hour_minute: str, zone: str) -> datetime:
    """Return the moment of a local time.

    A time that the clocks skip moves later by the size of the clock change. If a time comes twice because clocks go
    back, the first one counts.
    """
    local = datetime.combine(day, time.fromisoformat(hour_minute), ZoneInfo(zone))
    return datetime.fromtimestamp(local.timestamp(), ZoneInfo(zone))
