"""The reference of campaign.yaml in docs/campaigns.md, written from the schema.

``python -m sendoff.campaign.reference docs/campaigns.md`` writes the part between the two marks anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sendoff.campaign.folder import campaign_schema

Node = Mapping[str, Any]

BEGIN = "<!-- reference: begin; python -m sendoff.campaign.reference docs/campaigns.md -->"
END = "<!-- reference: end -->"

_HEAD = ("| Field | Value | Default | Meaning |", "|---|---|---|---|")
_MANY = 12  # more choices than a cell of a table should list
_PLAIN = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "object": "mapping"}


def reference(schema: Node) -> str:
    """Give a schema's fields as Markdown: a table of the file's, and one for each that has fields within."""
    fields = _Fields(schema["$defs"])
    tables = [
        "\n".join(_HEAD) + "\n" + "\n".join(fields.own_row(*field) for field in _properties(schema, ""))
    ]
    for path, node, _ in _properties(schema, ""):
        within = list(fields.within(path, node))
        if within:
            tables.append("\n".join([f"### `{path}`", "", *_HEAD, *within]))
    return "\n\n".join(tables)


def with_reference(page: str, written: str) -> str:
    """Put a reference between the marks of a page; ValueError where the page has not each mark once, in order."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if (page.count(BEGIN), page.count(END), rest.count(END)) != (1, 1, 1):
        raise ValueError(f"the page needs {BEGIN} and {END}, each once and in this order")
    return f"{before}{BEGIN}\n\n{written}\n\n{END}{after}"


@dataclass(frozen=True, slots=True)
class _Fields:
    """The rows of fields, by the definitions that a schema refers to."""

    definitions: Mapping[str, Node]

    def own_row(self, path: str, node: Node, required: bool) -> str:
        return _row(path, self.value(node), _default(node, required), node.get("description", ""))

    def within(self, path: str, node: Node, opened: tuple[str, ...] = ()) -> Iterator[str]:
        """Give the rows of what lies within a field; a definition within itself is not opened again."""
        if "discriminator" in node:
            yield from self.kinds(path, node, opened)
        elif "$ref" in node:
            name = _name(node["$ref"])
            if name not in opened:
                yield from self.properties(path, self.definitions[name], (*opened, name))
        elif "items" in node:
            yield from self.within(f"{path}[]", node["items"], opened)
        elif isinstance(node.get("additionalProperties"), dict):
            yield from self.within(f"{path}.{_key(node)}", node["additionalProperties"], opened)
        elif choices := _choices(node):
            for choice in choices:
                yield from self.within(path, choice, opened)

    def properties(self, path: str, node: Node, opened: tuple[str, ...]) -> Iterator[str]:
        for inner, field, required in _properties(node, f"{path}."):
            if "const" not in field:  # the kind, which has a row already
                yield self.own_row(inner, field, required)
                yield from self.within(inner, field, opened)

    def kinds(self, path: str, node: Node, opened: tuple[str, ...]) -> Iterator[str]:
        kinds = {kind: self.definitions[_name(ref)] for kind, ref in node["discriminator"]["mapping"].items()}
        kind_path = f"{path}.{node['discriminator']['propertyName']}"
        yield _row(kind_path, _listed(kinds), "required", "Which of the kinds that follow")
        for kind, definition in kinds.items():
            yield _row(f"{kind_path}: {kind}", "", "", definition["description"])
            yield from self.properties(path, definition, opened)

    def value(self, node: Node) -> str:
        """Describe the values that a node allows, of which ``null`` is not worth a word."""
        if "$ref" in node:
            return self.value(self.definitions[_name(node["$ref"])])
        if choices := _choices(node):
            text = " or ".join(dict.fromkeys(self.value(choice) for choice in choices))
            return f"{text}, such as `{node['examples'][0]}`" if "examples" in node else text
        if "items" in node:
            return f"list of {'one or more: ' if node.get('minItems') else ''}{self.value(node['items'])}"
        if isinstance(node.get("additionalProperties"), dict):
            return f"mapping of `{_key(node)}` to {self.value(node['additionalProperties'])}"
        return _plain(node)


def _properties(node: Node, prefix: str) -> Iterator[tuple[str, Node, bool]]:
    for name, field in node.get("properties", {}).items():
        yield prefix + name, field, name in node.get("required", ())


def _choices(node: Node) -> list[Node]:
    return [each for each in node.get("anyOf") or node.get("oneOf") or () if each.get("type") != "null"]


def _name(ref: str) -> str:
    return ref.rsplit("/", 1)[1]


def _key(node: Node) -> str:
    return "<language>" if "propertyNames" in node else "<name>"


def _plain(node: Node) -> str:
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return _listed(node["enum"], node.get("examples", ()))
    if node["type"] == "string":
        return _text(node)
    if "minimum" in node:
        most = node.get("maximum", node.get("exclusiveMaximum", 0) - 1)
        return f"whole number, {node['minimum']} to {most}"
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
    return f"`{_flow(node['default'])}`" if node["default"] not in (None, {}, []) else "none"


def _flow(value: Any) -> str:
    """Write a value as campaign.yaml has it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _row(path: str, value: str, default: str, meaning: str) -> str:
    sentence = " ".join(meaning.partition("\n\n")[0].split()).replace("``", "`").removesuffix(".")
    cells = (f"`{path}`", value, default, sentence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    page = with_reference(file.read_text(encoding="utf-8"), reference(campaign_schema()))
    file.write_text(page, encoding="utf-8")
