"""Reading a YAML file as JSON would be read, and remembering on which line each value stands.

YAML's surprises are left out on purpose: ``no`` is a word, ``18:30`` a text and ``2027-01-31`` too, a key stands once,
and there are no anchors, tags or merges. So what an editor checks against the JSON Schema is what is read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sendoff.campaign.files import MOST_YAML, UnfitFileError, read_text

Place = tuple[str | int, ...]

_HINTS = (
    (r"'\t' that cannot start", "indent with spaces, not tabs"),
    ("that cannot start any token", "quote a text that begins with this character"),
    ("mapping values are not allowed here", "quote a text that holds ': ', or mend the indentation"),
    ("but found '<block mapping start>'", "begin the fields of a mapping in the same column"),
    ("expected <block end>, but found", "quote a text that begins with {, with [ or with a quote"),
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # NUL, and halves of pairs
_MOST_NODES = 10_000  # names and values, each of which takes time
_DEEPEST = 50  # levels, far more than a campaign needs


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a file: the line it is on (None: the file as a whole), the path in the YAML, a sentence."""

    line: int | None
    path: str
    text: str


@dataclass(slots=True)
class Document:
    """What a YAML file holds: its tree in JSON's types, the line of each place in it, and what is wrong so far."""

    tree: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(self, place: Sequence[str | int], text: str) -> None:
        """Note a problem at the nearest place that the file has, skipping steps that are not in it."""
        nearest: Place = ()
        for step in place:
            if (*nearest, step) in self.lines:
                nearest = (*nearest, step)
        self.problems.append(Problem(self.lines.get(nearest, 1), dotted(nearest), text))


def read_document(path: Path) -> Document:
    """Read a file; what YAML itself finds wrong is among the document's problems."""
    document = Document()
    try:
        text = read_text(path, "YAML", MOST_YAML)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                document.problems.append(Problem(1, "", "found an empty file; allowed: a campaign"))
            else:
                document.tree = _Walk(loader, document).value(node, ())
        finally:
            loader.dispose()
    except FileNotFoundError:
        document.problems.append(Problem(None, "", "found no such file; allowed: a campaign"))
    except UnfitFileError as error:
        document.problems.append(Problem(None, "", str(error)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = f"not YAML: {error.problem}{_hint(error.problem or '')}"
        document.problems.append(Problem(mark.line + 1 if mark else 1, "", text))
    except yaml.YAMLError:
        document.problems.append(Problem(1, "", "not YAML: it holds characters that YAML does not allow"))
    return document


def _hint(words: str) -> str:
    return next((f"; {hint}" for part, hint in _HINTS if part in words), "")


def dotted(place: Place) -> str:
    """Write a place as people do: ``channels.web_push.browsers[1]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return storable(text.removeprefix("."))


def storable(text: str) -> str:
    """Give a text with a question mark for each character that no database takes."""
    return _UNSTORABLE.sub("?", text)


class _Loader(yaml.SafeLoader):
    """A SafeLoader that knows JSON's types only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as PyYAML has it
    depth = 0
    nodes = 0

    def fetch_more_tokens(self) -> None:
        """Scan on; PyYAML itself lets two errors out, of a character beyond Unicode and of a version too long."""
        try:
            super().fetch_more_tokens()
        except (OverflowError, ValueError):
            mark = self.get_mark()
            raise yaml.scanner.ScannerError(None, None, "found a number that is too large", mark) from None

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        refusal = self.refusal(event)
        if refusal:
            raise yaml.composer.ComposerError(None, None, refusal, event.start_mark)
        self.depth += 1
        self.nodes += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def refusal(self, event: yaml.Event) -> str | None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            return "anchors and aliases are not used here"
        if getattr(event, "tag", None):
            return "tags are not used here"
        if self.depth >= _DEEPEST:
            return f"more than {_DEEPEST} levels are not used here"
        if self.nodes >= _MOST_NODES:
            return f"more than {_MOST_NODES} values are not used here"
        return None


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


@dataclass(slots=True)
class _Walk:
    """The way through a file's nodes, which turns them into JSON's types and notes their lines."""

    loader: _Loader
    document: Document

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.document.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        return self.scalar(node, place)

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            inner = (*place, key)
            first = self.document.lines.get(inner) if key in found else None
            self.document.lines[inner] = key_node.start_mark.line + 1
            if first is not None:
                self.document.report(inner, f"found {key!r} twice, first on line {first}; allowed: once")
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.report(
                    inner, "found {{ or a like key; allowed: text (quote one that begins with {)"
                )
            elif not self.is_unstorable(key, inner) and not key_node.tag.endswith(":str"):
                self.document.report(inner, "found a key that is no text; allowed: text (put it in quotes)")
            found[key] = self.value(value_node, inner)
        return found

    def scalar(self, node: yaml.Node, place: Place) -> Any:
        if self.is_unstorable(node.value, place):
            return None
        try:
            return self.loader.construct_object(node)
        except ValueError:  # Python reads no whole number of more than 4,300 digits
            self.document.report(place, "found a number that is too large; allowed: fewer digits")
            return None

    def is_unstorable(self, text: str, place: Place) -> bool:
        """Say whether a text holds what no database takes, and report it; YAML allows it as an escape."""
        found = _UNSTORABLE.search(text)
        if found:
            code = f"\\u{ord(found[0]):04x}"
            self.document.report(place, f"found the character {code}; allowed: those that databases take")
        return found is not None
