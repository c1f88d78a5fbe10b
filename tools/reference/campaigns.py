"""Generate docs/reference/campaign-fields.md from the schema, and campaign-examples.md from examples/campaigns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

from sendoff.campaign import campaign_schema, defaults_schema, journey_schema

Node = Mapping[str, Any]

_FOLDER = Path(__file__).resolve().parents[2] / "examples/campaigns"
_FIELDS = """\
# Every field of a campaign

The first table has the fields at the top of `campaign.yaml`, and each following table the fields inside one of them.
A path such as `send.time` starts at the top of the file. `[]` stands for each item of a list, and `<language>` and
`<name>` are keys of your choice. Under a row for one `kind`, the fields belong to that kind only. Section numbers are
those of the service's document.

The file `defaults.yaml` can set these fields for [all campaigns of a folder](../how-to/set-defaults.md):
{defaults}.
"""
_RULES = """\
## `rules` in `defaults.yaml`

The [rules for all campaigns](../how-to/set-defaults.md#rules-for-all-campaigns) belong in `defaults.yaml`.
"""
_EXAMPLES = """\
# Example campaigns

One campaign of every shape. Only the first line of each file, which names the schema, is left out. The folders are in
[examples](../../examples/), and the tests send each campaign to the local service. Copy the nearest one to
`dags/campaigns`.
"""
_JOURNEY = """\
# Fields of a journey

The fields of `journey.yaml`, which describes [a journey](../how-to/journeys.md). Each item of `steps` may also have
[the fields of a campaign](campaign-fields.md), without `audience.source` and those that the journey has itself.
"""
_HEAD = ("| Field | Value | Default | Meaning |", "|---|---|---|---|")
_MANY = 12  # the most choices to list in a cell
_LARGEST = 2**31 - 1  # a limit that is too large to mention
_PLAIN = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "object": "mapping"}


def page_of_fields() -> str:
    """Return the page of every field."""
    schema = defaults_schema()
    named = ", ".join(f"`{name}`" for name in schema["properties"] if name != "rules")
    rules = reference({**schema, "properties": {"rules": schema["properties"]["rules"]}})
    _, _, of_rules = rules.partition("## `rules`\n")
    pages = [
        _FIELDS.replace("{defaults}", fill(named, 120)),
        reference(campaign_schema()),
        "",
        _RULES + of_rules,
    ]
    return "\n".join(pages) + "\n"


def page_of_journey_fields() -> str:
    """Return the page of the fields of a journey."""
    schema = journey_schema()
    step = schema["$defs"]["Step"]
    step["properties"] = {name: step["properties"][name] for name in ("name", "wait", "when", "title")}
    return f"{_JOURNEY}\n{reference(schema)}\n"


def page_of_examples() -> str:
    """Return the page of the examples."""
    return f"{_EXAMPLES}\n{examples(_FOLDER)}\n"


def reference(schema: Node) -> str:
    """Return a schema's fields as Markdown: a table of the top-level fields, and one for each that has fields itself.

    Fields that are already described elsewhere are referred to, as in "as `channels`".
    """
    fields = _Fields(schema["$defs"])
    own = list(_properties(schema, ""))
    tables = []
    for path, node, _ in own:
        within = list(fields.within(path, node))
        if within:
            tables.append("\n".join([f"## `{path}`", "", *_HEAD, *within]))
    return "\n\n".join(["\n".join([*_HEAD, *(fields.own_row(*field) for field in own)]), *tables])


def examples(folder: Path) -> str:
    """Return the campaigns in a folder as Markdown, without the first line that names the schema for editors."""
    return "\n\n".join(map(_example, sorted(folder.iterdir())))


def _example(folder: Path) -> str:
    _, campaign = (folder / "campaign.yaml").read_text(encoding="utf-8").split("\n", 1)
    text = f"## `{folder.name}`\n\n```yaml\n{campaign}```"
    others = sorted(file.name for file in folder.iterdir() if file.name != "campaign.yaml")
    links = ", ".join(f"[{name}](../../examples/campaigns/{folder.name}/{name})" for name in others)
    return f"{text}\n\nOther files of the campaign: {links}." if others else text


@dataclass(frozen=True, slots=True)
class _Fields:
    """The rows of fields of a schema with ``definitions``; ``places``: where each definition is described."""

    definitions: Mapping[str, Node]
    places: dict[str, str] = field(default_factory=dict)

    def own_row(self, path: str, node: Node, required: bool) -> str:
        return _row(path, self.value(path, node), _default(node, required), node.get("description", ""))

    def within(self, path: str, node: Node) -> Iterator[str]:
        """Yield the rows of the fields within a field, without those described already."""
        if "discriminator" in node:
            yield from self.kinds(path, node)
        elif "$ref" in node:
            name = _name(node["$ref"])
            if name not in self.places and "properties" in self.definitions[name]:
                alike = self.alike(name)
                self.places[name] = self.places[alike] if alike else path
                yield from self.properties(path, self.definitions[name], self.definitions.get(alike, {}))
        elif "items" in node:
            yield from self.within(f"{path}[]", node["items"])
        elif isinstance(node.get("additionalProperties"), dict):
            yield from self.within(f"{path}.{_key(node)}", node["additionalProperties"])
        elif choices := _choices(node):
            for choice in choices:
                yield from self.within(path, choice)

    def properties(self, path: str, node: Node, known: Node) -> Iterator[str]:
        for inner, given, required in _properties(node, f"{path}."):
            name = inner.rpartition(".")[2]
            is_kind = name == "kind" and "const" in given  # it has a row already
            if not is_kind and name not in known.get("properties", {}):
                yield self.own_row(inner, given, required)
                yield from self.within(inner, given)

    def kinds(self, path: str, node: Node) -> Iterator[str]:
        kinds = {kind: self.definitions[_name(ref)] for kind, ref in node["discriminator"]["mapping"].items()}
        kind_path = f"{path}.{node['discriminator']['propertyName']}"
        yield _row(kind_path, _listed(kinds), "required", "One of the kinds below")
        for kind, definition in kinds.items():
            yield _row(f"{kind_path}: {kind}", "", "", definition["description"])
            yield from self.properties(path, definition, {})

    def alike(self, name: str) -> str:
        """Return the name of a definition already described whose fields this one has too, or an empty text."""
        fields = self.definitions[name].get("properties", {})
        return next((other for other in self.places if _holds(fields, self.definitions[other])), "")

    def value(self, path: str, node: Node) -> str:
        """Describe the values that a node allows, without ``null``."""
        if "$ref" in node:
            return self.referred(path, _name(node["$ref"]))
        if choices := _choices(node):
            text = " or ".join(dict.fromkeys(self.value(path, choice) for choice in choices))
            return f"{text}, such as `{node['examples'][0]}`" if "examples" in node else text
        if "items" in node:
            many = "one or more: " if node.get("minItems") else ""
            return f"list of {many}{self.value(path, node['items'])}"
        if isinstance(node.get("additionalProperties"), dict):
            return f"mapping of `{_key(node)}` to {self.value(path, node['additionalProperties'])}"
        return _type_name(node)

    def referred(self, path: str, name: str) -> str:
        """Describe a value by its definition, with the place where that, or one that it extends, is described."""
        node = self.definitions[name]
        place = self.places.get(name) or self.places.get(self.alike(name), path)
        text = self.value(path, node)
        return text if place.startswith(path) else f"{text}, as `{place}`"


def _holds(fields: Mapping[str, Node], other: Node) -> bool:
    # More than by chance.
    return len(other["properties"]) > 2 and other["properties"].items() <= fields.items()


def _properties(node: Node, prefix: str) -> Iterator[tuple[str, Node, bool]]:
    for name, given in node.get("properties", {}).items():
        yield prefix + name, given, name in node.get("required", ())


def _choices(node: Node) -> list[Node]:
    return [each for each in node.get("anyOf") or node.get("oneOf") or () if each.get("type") != "null"]


def _name(ref: str) -> str:
    return ref.rsplit("/", 1)[1]


def _key(node: Node) -> str:
    return "<language>" if "enum" in node.get("propertyNames", {}) else "<name>"


def _type_name(node: Node) -> str:
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return _listed(node["enum"], node.get("examples", ()))
    if node["type"] == "string":
        return _text(node)
    if "minimum" in node:
        most = node.get("maximum", node.get("exclusiveMaximum", 0) - 1)
        kind = "whole number" if node["type"] == "integer" else "number"
        return f"{kind}, {node['minimum']} {f'to {most}' if most < _LARGEST else 'or more'}"
    if "exclusiveMinimum" in node:
        most = f", at most {node['maximum']}" if "maximum" in node else ""
        return f"number above {node['exclusiveMinimum']}{most}"
    return _PLAIN[node["type"]]


def _text(node: Node) -> str:
    if "examples" in node:
        return f"text, such as `{node['examples'][0]}`"
    if "maxLength" in node:
        return f"text of at most {node['maxLength']} characters"
    return {"uri": "web address", "date": "date, such as `2026-01-31`"}.get(node.get("format", ""), "text")


def _listed(values: Iterable[str], examples: Iterable[str] = ()) -> str:
    values = list(values)
    if len(values) > _MANY:
        return f"one of {len(values)} codes, such as {_listed(examples)}"
    return ", ".join(f"`{value}`" for value in values)


def _default(node: Node, required: bool) -> str:
    if required:
        return "required"
    default = _without_empty(node["default"])
    return "none" if default in (None, {}, []) else f"`{_flow(default)}`"


def _without_empty(value: Any) -> Any:
    """Return a value without its empty members."""
    if not isinstance(value, dict):
        return value
    pairs = ((name, _without_empty(inner)) for name, inner in value.items())
    return {name: inner for name, inner in pairs if inner not in (None, {}, [])}


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _row(path: str, value: str, default: str, meaning: str) -> str:
    sentence = " ".join(meaning.partition("\n\n")[0].split()).replace("``", "`").removesuffix(".")
    cells = (f"`{path}`", value, default, sentence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
