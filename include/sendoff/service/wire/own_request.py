"""Requests that someone else wrote: what Sendoff reads from their JSON, and the members that it adds.

Their bytes stay as they are. Sendoff reads only what it needs for the ledger: the title, the channels, the recipients,
and when the service sends. Errors name members, but never quote a value or a name inside a member, because these may be
texts or identifiers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa

from sendoff.audience import Audience, build_audience
from sendoff.audience.identifiers import LONGEST_TEXT, as_integer, as_member
from sendoff.campaign import LAST_ZONE, Channel, is_time_zone
from sendoff.errors import CampaignError
from sendoff.service.wire.names import FieldNames
from sendoff.service.wire.requests import ARRAYS, TARGETS, PostBackAddresses
from sendoff.states import PostBackKind

LARGEST_BODY = 16 * 1024 * 1024
"""The maximum size of a request, in bytes."""

Mode = Literal["create", "execute"]

_USABLE_TEXT = (
    f"text that is not blank, of at most {LONGEST_TEXT:,} bytes, without NUL or white space around it"
)
_WEB_BROWSERS = ("web_push_chrome", "web_push_firefox")


@dataclass(frozen=True, slots=True)
class OwnBody:
    """The JSON of a request, and what Sendoff reads from it.

    ``channels``: those that it names; none if they are unknown. ``post_backs``: the kinds of post-backs whose addresses
    Sendoff adds, because the JSON has none. ``audience``: the recipients; None if the service chooses them.
    ``sends_at``: a fixed time at which the service sends; None if it sends at once or repeatedly.
    """

    encoded: bytes = field(repr=False)
    mode: Mode
    title: str | None = field(repr=False)
    channels: tuple[Channel, ...]
    post_backs: tuple[str, ...]
    audience: Audience | None = field(repr=False)
    sends_at: datetime | None
    is_repeated: bool


def read_own_body(body: Mapping[str, Any] | str | bytes, mode: Mode, names: FieldNames) -> OwnBody:
    """Check the JSON of a request that someone wrote, and return what Sendoff reads from it.

    ``body``: a mapping, or JSON as text, whose bytes are kept. Raise CampaignError unless it is a JSON object of at
    most LARGEST_BODY bytes whose members have the types of the service's document, as far as Sendoff reads them.
    """
    encoded = _encoded(body) if isinstance(body, Mapping) else _stripped(body)
    if len(encoded) > LARGEST_BODY:
        raise CampaignError(
            f"body: found {len(encoded):,} bytes of JSON; at most {LARGEST_BODY:,} are allowed. "
            "Divide the recipients between several requests, each with its own request key"
        )
    members = _parsed(encoded)
    for name in ("title", "apptoken", "webhook_delivery", "webhook_open"):
        _check(members, name, str, "text")
    is_execution = mode == "execute"
    return OwnBody(
        encoded,
        mode,
        title=members.get("title") or None,
        channels=() if is_execution else _channels(members, names),
        post_backs=tuple(kind.value for kind in PostBackKind if f"webhook_{kind}" not in members),
        audience=_targets(members, names) if is_execution else _recipients(members, names),
        sends_at=None if is_execution else _sends_at(members, names),
        is_repeated=not is_execution and _is_repeated(members, names),
    )


def completed(body: bytes, post_backs: PostBackAddresses, app_token: str | None) -> bytes:
    """Return the JSON of a request with the app token and the post-back addresses that it lacks, added at its end."""
    present = json.loads(body)
    possible = {
        "apptoken": app_token,
        "webhook_delivery": post_backs.delivery,
        "webhook_open": post_backs.open,
    }
    added = {name: value for name, value in possible.items() if value is not None and name not in present}
    return body[:-1] + b"," + orjson.dumps(added)[1:] if added else body


def _encoded(body: Mapping[str, Any]) -> bytes:
    members = []
    for name, value in body.items():
        if not isinstance(name, str):
            raise CampaignError(
                f"body: found a name that is {_kind(name)}. Use text as the name of each member"
            )
        try:
            written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            members.append(f"{json.dumps(name, ensure_ascii=False)}:{written}".encode())
        except UnicodeEncodeError:
            problem = "text that is not valid Unicode"
        except ValueError:
            problem = "a value that contains itself, or a number that is not finite"
        except TypeError:
            problem = "a value that JSON does not have"
        except RecursionError:
            problem = "too many levels of nesting"
        else:
            continue
        raise CampaignError(
            f"body.{name}: found {problem}. Use text, finite numbers, true, false, null, lists and objects"
        )
    return b"{" + b",".join(members) + b"}"


def _stripped(body: str | bytes) -> bytes:
    if not isinstance(body, str | bytes):
        raise CampaignError(f"body: found {_kind(body)}. Use a JSON object: a dict, or JSON as text")
    try:
        return (body.encode() if isinstance(body, str) else body).strip(b" \t\r\n")
    except UnicodeEncodeError:
        raise CampaignError("body: found text that is not valid Unicode. Use UTF-8") from None


def _parsed(encoded: bytes) -> dict[str, Any]:
    try:
        members = json.loads(
            encoded.decode(), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):  # the parser's own words would quote the text
        raise CampaignError(
            "body: found text that is not valid JSON. Write one JSON object in UTF-8, such as "
            '{"title": "Spring"}'
        ) from None
    if not isinstance(members, dict) or not members:
        found = "an empty object" if members == {} else _kind(members)
        raise CampaignError(f"body: found {found}. Use a JSON object with the members of the request")
    return members


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise CampaignError(
            "body: found an object with the same name twice, which each reader of JSON may understand differently. "
            "Use each name once"
        )
    return members


def _refuse_constant(_: str) -> None:
    raise ValueError("not a number of JSON")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    kinds = {
        str: "text",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        bytes: "bytes",
    }
    return "null" if value is None else kinds.get(type(value), "a value that JSON does not have")


def _check(members: Mapping[str, Any], name: str, kind: type, words: str) -> None:
    value = members.get(name)
    if value is not None and not isinstance(value, kind):
        raise CampaignError(f"body.{name}: found {_kind(value)}. Use {words}")


def _is_on(members: Mapping[str, Any], name: str) -> bool:
    value = members.get(name)
    if value not in (None, 0, 1):
        found = "a number other than 0 and 1" if type(value) in (int, float) else _kind(value)
        raise CampaignError(f"body.{name}: found {found}. Use 0 or 1")
    return bool(value)


def _channels(members: Mapping[str, Any], names: FieldNames) -> tuple[Channel, ...]:
    flags = {channel: [channel.value] for channel in Channel}
    flags[Channel.IOS_PUSH].append("ios_push_sandbox")
    flags[Channel.WEB_PUSH] += [*_WEB_BROWSERS, names["web_push_opera"], names["web_push_safari"]]
    return tuple(channel for channel, own in flags.items() if sum(_is_on(members, flag) for flag in own))


def _send_type(members: Mapping[str, Any]) -> int:
    value = members.get("send_type") or 0
    if type(value) is not int or value not in (0, 1, 2):
        raise CampaignError(f"body.send_type: found {_kind(value)}. Use 0, 1 or 2")
    return value


def _is_repeated(members: Mapping[str, Any], names: FieldNames) -> bool:
    return _send_type(members) == 2 or bool(members.get(names["campaign_trigger"]))


def _sends_at(members: Mapping[str, Any], names: FieldNames) -> datetime | None:
    """Return the moment of a once-off campaign, in the last time zone on Earth if the JSON names no zone."""
    if _send_type(members) != 1:
        return None
    zone = members.get(names["timezone"])
    known = ZoneInfo(zone) if isinstance(zone, str) and is_time_zone(zone) else LAST_ZONE
    written = f"{members.get('send_date')} {members.get('send_time')}"
    with suppress(ValueError, OverflowError):  # no date or time; or one that does not exist in UTC
        local = datetime.fromisoformat(written)
        if f"{local:%Y-%m-%d %H:%M}" == written:  # no other form of ISO 8601
            return local.replace(tzinfo=known).astimezone(UTC)
    raise CampaignError(
        "body.send_type: found 1 without a valid send_date and send_time. Use a date as YYYY-MM-DD and a time "
        "as HH:MM"
    )


def _recipients(members: Mapping[str, Any], names: FieldNames) -> Audience | None:
    """Return the recipients of a creation, if one list of identifiers and nothing else selects them."""
    is_broadcast = _is_on(members, "broadcast")
    lists = [(column, names[key]) for column, key in ARRAYS.items() if members.get(names[key]) is not None]
    if (
        is_broadcast
        or len(lists) != 1
        or any(members.get(each) for each in ("conditions", names["segment_ids"]))
    ):
        return None
    ((column, name),) = lists
    _check(members, name, list, "a list of identifiers")
    return _audience(column, name, members[name])


def _targets(members: Mapping[str, Any], names: FieldNames) -> Audience | None:
    """Return the recipients of an execution, if it has one list of targets of a known kind."""
    spelled = {names[key]: column for column, key in TARGETS.items()}
    _check(members, names["target_by"], str, "text")
    column = spelled.get(members.get(names["target_by"]) or "")
    given = [name for name in (names["target"], names["target_with_params"]) if members.get(name) is not None]
    if column is None or len(given) != 1 or members.get("conditions"):
        return None
    name = given[0]
    if name == names["target"]:
        _check(members, name, list, "a list of identifiers")
    else:
        _check(members, name, dict, "an object from each identifier to its variables")
    return _audience(column, name, list(members[name]))


def _audience(column: str, name: str, values: Sequence[Any]) -> Audience:
    if not values:
        raise CampaignError(
            f"body.{name}: found no identifiers. Add at least one: the service's document does not say what happens "
            "without"
        )
    return build_audience([pa.record_batch({column: pa.array(list(_typed(column, name, values)))})])


def _typed(column: str, name: str, values: Sequence[Any]) -> Iterator[Any]:
    """Yield the identifiers in the type of their column, or in that of the first one if the column may have both."""
    is_number = column == "device_id" or type(values[0]) is int
    words = "a whole number from 1 to 9,223,372,036,854,775,807" if is_number else _USABLE_TEXT
    for place, value in enumerate(values):
        typed: int | str | None = None
        if is_number and type(value) in (int, str):
            typed = as_integer(str(value))
        elif not is_number and isinstance(value, str) and value == value.strip():
            typed = as_member("string", value)
        if typed is None:
            raise CampaignError(f"body.{name}: identifier {place + 1} is {_kind(value)}. Use {words}")
        yield typed
