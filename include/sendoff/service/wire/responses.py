"""Reading the service's messages: replies of its API, and the bodies of post-backs."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

_DEEPEST = 8  # levels of ``errors`` that are read
_TOO_LARGE = 2**63
_UNITS = (1, 10**3, 10**6, 10**9)  # of a Unix time, for each second
_TOO_LATE = 10**11  # Unix seconds in the year 5138; milliseconds in 1973
_NO_DEVICE = (None, 0, "", "0")


class Unreadable(ValueError):  # noqa: N818 - it describes an answer, and is caught rather than shown
    """The bytes do not have the format of the service's document. The message says why and quotes none of them."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The envelope of an API reply. Section 4.2 does not show it, but public pages do.

    ``code`` repeats the HTTP status. ``message`` and ``errors`` are the service's words and may quote identifiers.
    """

    success: bool
    code: int
    message: str | None = field(default=None, repr=False)
    errors: tuple[str, ...] = field(default=(), repr=False)
    campaign_id: int | None = None


@dataclass(slots=True)  # not frozen, because a receiver makes thousands per second
class PostBackBody:
    """The members of a post-back (section 6); None for members that the body lacks."""

    time: datetime
    device_id: int | None = field(default=None, repr=False)
    profile_id: int | None = field(default=None, repr=False)
    user_id: str | None = field(default=None, repr=False)
    send_id: int | None = None
    campaign_id: int | None = None


def read_reply(status: int, content: bytes) -> Reply:
    """Read the reply to a create or execute request. Raise Unreadable if that fails.

    A readable reply is a JSON object with a boolean ``success``. A missing ``code`` is the HTTP status.
    """
    document = read_object(content)
    success = document.get("success")
    if not isinstance(success, bool):
        raise Unreadable("the reply does not say whether it was a success")
    message = document.get("message")
    model = document.get("model")
    return Reply(
        success=success,
        code=_whole(document.get("code")) or status,
        message=message if isinstance(message, str) else None,
        errors=tuple(_sentences(document.get("errors"), _DEEPEST)),
        campaign_id=_whole(model.get("id")) if isinstance(model, dict) else None,
    )


def read_campaigns(content: bytes) -> list[tuple[int, str]]:
    """Read a page of the list of campaigns as IDs and titles. Raise Unreadable if that fails."""
    document = read_object(content)
    page = document.get("data")
    if document.get("success") is False or not isinstance(page, list):
        raise Unreadable("the reply lists no campaigns")
    found = [(_whole(each.get("id")), each.get("title")) for each in page if isinstance(each, dict)]
    if len(found) < len(page) or any(number is None for number, _ in found):
        raise Unreadable("the reply lists campaigns without an id")
    return [(number or 0, title if isinstance(title, str) else "") for number, title in found]


def read_post_back(content: bytes, received_at: datetime) -> PostBackBody:
    """Read the body of a post-back. Raise Unreadable if that fails.

    The document does not show the types of its members, so only those that decide verdicts must be readable. A device
    ID is an integer or digits. A user ID is text or an integer. Members may be nested (``{"device": {"id": 1}}``) or
    dotted (``{"device.id": 1}``). The body must identify a person in some way. Other IDs count as missing if they are
    not integers. ``received_at`` is used if the body has no time that can be read.
    """
    document = read_object(content)
    user_id = _member(document, "profile", "user_id")
    if isinstance(user_id, int) and not isinstance(user_id, bool):
        user_id = str(user_id)
    if user_id is not None and (not isinstance(user_id, str) or "\0" in user_id):
        raise Unreadable("profile.user_id is neither text that can be stored nor a number")
    body = PostBackBody(
        _time(document.get("time")) or received_at,
        _id(document, "device"),
        _id(document, "profile"),
        user_id or None,
        _id(document, "send"),
        _id(document, "campaign"),
    )
    if body.device_id is None and _member(document, "device", "id") not in _NO_DEVICE:
        raise Unreadable("device.id is not a positive number of 63 bits")
    if body.device_id is None and body.profile_id is None and body.user_id is None:
        raise Unreadable("no device, profile or user is named")
    return body


def read_object(content: bytes) -> dict[str, Any]:
    """Read a JSON object, with or without a byte order mark. Raise Unreadable if that fails."""
    try:
        document = orjson.loads(content.removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError:
        raise Unreadable("not JSON") from None
    if not isinstance(document, dict):
        raise Unreadable("not a JSON object")
    return document


def _member(document: dict[str, Any], outer: str, inner: str) -> Any:
    nested = document.get(outer)
    if isinstance(nested, dict):
        return nested.get(inner)
    return document.get(f"{outer}.{inner}")


def _id(document: dict[str, Any], outer: str) -> int | None:
    found = _member(document, outer, "id")
    return found if type(found) is int and 0 < found < _TOO_LARGE else _whole(found)


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _TOO_LARGE:
        return value
    return None


def _time(value: Any) -> datetime | None:
    """Read a time in Unix seconds or ISO 8601, which is in UTC without an offset. Return None if it is neither.

    Numbers too large for seconds are milliseconds, microseconds or nanoseconds.
    """
    try:
        if type(value) is int and value < _TOO_LATE:
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, bool):
            return None
        if isinstance(value, str) and not (value.isascii() and value.isdigit()):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        number = float(value)
        unit = next((unit for unit in _UNITS if number < unit * _TOO_LATE), 1)
        return datetime.fromtimestamp(number / unit, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _sentences(errors: Any, depth: int) -> Iterator[str]:
    """Flatten ``errors``. The document does not show its inner form: texts, alone or with the name of a field.

    Anything deeper than ``depth`` levels is left out.
    """
    if isinstance(errors, str):
        yield errors
    elif depth == 0:
        return
    elif isinstance(errors, list):
        for item in errors:
            yield from _sentences(item, depth - 1)
    elif isinstance(errors, dict) and isinstance(errors.get("field"), str) and "message" in errors:
        yield from (f"{errors['field']}: {sentence}" for sentence in _sentences(errors["message"], depth - 1))
    elif isinstance(errors, dict):
        for name, item in errors.items():
            yield from (f"{name}: {sentence}" for sentence in _sentences(item, depth - 1))
