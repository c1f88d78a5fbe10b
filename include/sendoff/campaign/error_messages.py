"""Pydantic's errors as sentences: the value found, and the values that a JSON Schema allows there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import ErrorDetails

from sendoff.campaign.field_types import describe, did_you_mean

if TYPE_CHECKING:
    from sendoff.campaign.yaml_document import YamlPath

MOST_MISTAKES = 50  # of a file, to report one by one
_QUOTED = re.compile(r"'([^']+)'")
_MAPPING = ("model_type", "model_attributes_type", "dict_type")
_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_ALLOWED = {
    **dict.fromkeys(_MAPPING, "a mapping"),
    "tuple_type": "a list",
    "too_short": "a list of at least one item",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "int_type": "a whole number",
    **dict.fromkeys(("float_parsing", "float_type", "int_parsing"), "a number, such as 5"),
    "bool_type": "true or false",
    "date_type": "a date as YYYY-MM-DD",
}


def with_required_kinds(schema: dict[str, Any]) -> dict[str, Any]:
    """Require the field ``kind`` in a schema wherever it tells which fields may follow."""
    for node in schema["$defs"].values():
        # The default of a kind is for Python only, not for the file.
        if "const" in node.get("properties", {}).get("kind", ()):
            del node["properties"]["kind"]["default"]
            node["required"] = ["kind", *node.get("required", ())]
    return schema


def sentences(errors: Sequence[ErrorDetails], schema: Mapping[str, Any]) -> list[tuple[YamlPath, str]]:
    """Return the place and the sentence of each error. ``schema``: the JSON Schema of the model.

    A list that counts as empty only because its items are wrong is left out.
    """
    places = [error["loc"] for error in errors]
    return [(error["loc"], _sentence(error, schema)) for error in errors if not _is_echo(error, places)]


def _is_echo(error: ErrorDetails, places: Sequence[YamlPath]) -> bool:
    size = len(error["loc"])
    return error["type"] == "too_short" and any(loc[:size] == error["loc"] and loc[size:] for loc in places)


def _sentence(error: ErrorDetails, schema: Mapping[str, Any]) -> str:
    """Return an error as one sentence, without any message text."""
    kind, loc = error["type"], error["loc"]
    context = error.get("ctx", {})
    if kind == "campaign":
        return error["msg"]
    if kind == "missing":
        return f"the required field {str(loc[-1])!r} is missing"
    if kind == "extra_forbidden":
        return _unknown_field(loc, schema)
    if kind == "union_tag_not_found":
        nodes = _nodes_at(loc, schema)  # of an optional field, one of them is null
        kinds = [node["properties"]["kind"]["const"] for node in nodes if "properties" in node]
        return f"the required field 'kind' is missing. Use one of {', '.join(kinds)}"
    value = context.get("tag", error["input"])
    choices = _QUOTED.findall(context.get("expected_tags") or context.get("expected") or "")
    is_content = kind not in _RANGES and not choices and _is_of_message(loc)
    found = describe(value, is_content=is_content) + did_you_mean(value, choices)
    if kind == "union_tag_invalid":
        return f"{found} is not a kind. Use {context['expected_tags']}"
    words = error["msg"].removeprefix("Input should be ").removeprefix("String should have ")
    words = words.replace("String should match pattern", "a text that matches")
    if kind in _RANGES:
        words = f"a number {words}"
    elif kind == "string_too_long":
        words = f"a text of {words}"
    example = ""
    if kind in _MAPPING:
        values = value if isinstance(value, list) else [value]  # such as a list of channels, or one channel
        names = (name for name in values if isinstance(name, str) and name in _fields_at(loc, schema))
        example = next((f", for example `{name}:` on a line of its own" for name in names), "")
        if not example and (fields := _required_fields(loc, schema)):
            example = f" with {' and '.join(fields)}"
    return f"found {found}. Use {_ALLOWED.get(kind, words)}{example}"


def _is_of_message(loc: YamlPath) -> bool:
    """Check whether a place is inside a message or the settings of a channel, such as the headers of a webhook."""
    return "message" in loc or "channels" in loc[:-1]


def _unknown_field(loc: YamlPath, schema: Mapping[str, Any]) -> str:
    allowed = sorted(_fields_at(loc[:-1], schema) - ({"rules"} if len(loc) == 1 else set()))
    inside = [
        ".".join(map(str, (*loc[:-1], name, loc[-1])))
        for name in allowed
        if loc[-1] in _fields_at((*loc[:-1], name), schema)
    ]
    if len(loc) == 1 and not inside and loc[0] in _fields_at(("rules",), schema):
        return (
            f"{loc[0]!r} is no field of a campaign, but a rule for all campaigns. Use rules.{loc[0]} in "
            "defaults.yaml, beside the campaigns' folders"
        )
    hint = f" (did you mean {inside[0]!r}?)" if len(inside) == 1 else did_you_mean(str(loc[-1]), allowed)
    return f"{str(loc[-1])!r} is not a field{hint}. Use {', '.join(allowed)}"


def _required_fields(loc: YamlPath, schema: Mapping[str, Any]) -> list[str]:
    """Return the required fields of a mapping, which all of its kinds have."""
    required = [node.get("required", ()) for node in _nodes_at(loc, schema) if "properties" in node]
    return [name for name in required[0] if all(name in names for names in required)] if required else []


def _fields_at(loc: YamlPath, schema: Mapping[str, Any]) -> set[str]:
    """Return the fields that the schema allows in a mapping."""
    return {name for node in _nodes_at(loc, schema) for name in node.get("properties", {})}


def _nodes_at(loc: YamlPath, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    nodes = _variants(schema, schema["$defs"])
    for step in loc:
        inner = [inner for node in nodes for inner in _inside(node, step)]
        nodes = [variant for node in inner for variant in _variants(node, schema["$defs"])]
    return nodes


def _variants(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[1]]
    choices = node.get("anyOf") or node.get("oneOf")
    return (
        [variant for choice in choices for variant in _variants(choice, definitions)] if choices else [node]
    )


def _inside(node: Mapping[str, Any], step: str | int) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes one step down; a step that names one of several kinds keeps the node of that kind."""
    properties = node.get("properties", {})
    if isinstance(step, int):
        yield from [node["items"]] if "items" in node else []
    elif step in properties:
        yield properties[step]
    elif isinstance(node.get("additionalProperties"), dict):
        yield node["additionalProperties"]
    elif "kind" not in properties or properties["kind"].get("const") == step:
        yield node
