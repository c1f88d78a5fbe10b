"""A request that people may see: without identifiers, and without anything that may be secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sendoff.service.wire.names import FieldNames
from sendoff.service.wire.requests import TYPES

_PEOPLE = ("device_ids", "device_tokens", "device_uuids", "external_ids", "target")
_HIDDEN = "<not shown>"
_SECRET = ("apptoken", "webhook_delivery", "webhook_open")


def redacted_request(
    request: Mapping[str, Any], *, people: int, names: FieldNames | None = None
) -> dict[str, Any]:
    """Return a request with the number of its recipients instead of their identifiers.

    A webhook message (section 2.7) keeps only the host of its address. The rest of the address, and the values of
    parameters and headers, may be secret.
    """
    names = names or FieldNames()
    anybody = f"<{people:,} {'person' if people == 1 else 'people'}>"
    hidden: dict[str, Any] = {names[each]: anybody for each in _PEOPLE}
    own = names["target_with_params"]
    hidden[own] = {anybody: next(iter(request.get(own, {}).values()), None)}
    result = {name: hidden.get(name, value) for name, value in request.items()}
    if messages := result.get("messages"):
        result["messages"] = {key: _message(message) for key, message in messages.items()}
    return result


def redacted_own_request(request: Mapping[str, Any], names: FieldNames | None = None) -> dict[str, Any]:
    """Return a request that someone else wrote, without identifiers and without anything that may be secret.

    It keeps members that are known to hold texts and settings. Of all others it shows only the type or the size, since
    they may hold identifiers.
    """
    names = names or FieldNames()
    outlined = (*(names[each] for each in (*_PEOPLE, "target_with_params", "params")), *_SECRET, "messages")
    shown = names.members().difference(outlined)
    result = {name: value if name in shown else _outline(value) for name, value in request.items()}
    if isinstance(params := request.get(names["params"]), Mapping):
        result[names["params"]] = {name: _outline(value) for name, value in params.items()}
    if isinstance(messages := request.get("messages"), Mapping):
        result["messages"] = {key: _own_message(message) for key, message in messages.items()}
    return result


def _outline(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        return TYPES[type(value)]
    if isinstance(value, list | dict):
        return f"<{len(value):,} {'value' if len(value) == 1 else 'values'}>"
    return value


def _own_message(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return _outline(message)
    return {name: _HIDDEN if name == "webhook" else value for name, value in message.items()}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if "webhook" not in message:
        return dict(message)
    webhook = dict(message["webhook"])
    webhook["url"] = f"https://{urlsplit(webhook['url']).hostname}/{_HIDDEN}"
    if "get_params" in webhook:
        webhook["get_params"] = [{**pair, "value": _HIDDEN} for pair in webhook["get_params"]]
    if headers := webhook.get("request_headers"):
        webhook["request_headers"] = "\n".join(
            f"{line.partition(':')[0]}: {_HIDDEN}" for line in headers.split("\n")
        )
    return {**message, "webhook": webhook}
