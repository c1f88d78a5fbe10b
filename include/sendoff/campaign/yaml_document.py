"""Read a YAML file with JSON's types, and remember the line of each value.

YAML's surprises are left out on purpose: ``no``, ``18:30`` and ``2027-01-31`` are texts, keys must be unique, and
anchors, tags and merges are errors. An editor that checks the file against the JSON Schema therefore sees the same
values as Sendoff.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Place = tuple[str | int, ...]

MOST_SQL = 1024 * 1024
"""Maximum size of a query in bytes."""

_MOST_YAML = 256 * 1024  # bytes; a megabyte would take longer than Airflow's limit for parsing a DAG file

_HINTS = (
    (r"'\t' that cannot start", "indent with spaces, not tabs"),
    ("that cannot start any token", "quote a text that begins with this character"),
    ("mapping values are not allowed here", "quote a text that contains ': ', or fix the indentation"),
    ("but found '<block mapping start>'", "start the fields of a mapping in the same column"),
    ("expected <block end>, but found", "quote a text that begins with {, with [ or with a quote"),
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # NUL and lone surrogates
_MOST_NODES = 10_000  # names and values; each one takes time
_DEEPEST = 50  # levels, far more than a campaign needs


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with a file: its line (None for the whole file), its path in the YAML, and a sentence."""

    line: int | None
    path: str
    text: str


@dataclass(slots=True)
class Document:
    """The content of a YAML file in JSON's types, the line of each place in it, and the problems found so far."""

    tree: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(self, place: Sequence[str | int], text: str) -> None:
        """Add a problem at the closest place that exists in the file, skipping steps that do not."""
        nearest: Place = ()
        for step in place:
            if (*nearest, step) in self.lines:
                nearest = (*nearest, step)
        self.problems.append(Problem(self.lines.get(nearest, 1), dotted(nearest), text))


def read_document(path: Path) -> Document:
    """Read a file; errors in its YAML become problems of the document."""
    document = Document()

    def refuse(line: int | None, text: str) -> None:
        document.problems.append(Problem(line, "", text))

    try:
        loader = _Loader(read_text(path, "YAML", _MOST_YAML))
        try:
            if node := loader.get_single_node():
                document.tree = _Reader(loader, document).value(node, ())
            else:
                refuse(1, "the file is empty. Add the campaign")
        finally:
            loader.dispose()
    except FileNotFoundError:
        refuse(None, "the file does not exist. Add the campaign")
    except UnfitFileError as error:
        refuse(None, str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        refuse(mark.line + 1 if mark else 1, f"not YAML: {error.problem}{_hint(error.problem or '')}")
    except yaml.YAMLError:
        refuse(1, "not YAML: it holds characters that YAML does not allow")
    return document


def _hint(words: str) -> str:
    return next((f"; {hint}" for part, hint in _HINTS if part in words), "")


def dotted(place: Place) -> str:
    """Format a place for people, such as ``channels.web_push.browsers[1]``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return storable(text.removeprefix("."))


def storable(text: str) -> str:
    """Return a text with each character that databases refuse replaced by a question mark."""
    return _UNSTORABLE.sub("?", text)


class _Loader(yaml.SafeLoader):
    """A SafeLoader limited to JSON's types."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as in PyYAML
    depth = 0
    nodes = 0

    def fetch_more_tokens(self) -> None:
        """Scan on, and turn two errors that PyYAML does not catch into YAML errors.

        They come from a character beyond Unicode and from a version number that is too long.
        """
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
            return "anchors and aliases are not supported"
        if getattr(event, "tag", None):
            return "tags are not supported"
        if self.depth >= _DEEPEST:
            return f"more than {_DEEPEST} levels are not supported"
        if self.nodes >= _MOST_NODES:
            return f"more than {_MOST_NODES} values are not supported"
        return None


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Converts a file's nodes to JSON's types, and notes their lines."""

    loader: _Loader
    document: Document

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.document.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        if self._is_unstorable(node.value, place):
            return None
        try:
            return self.loader.construct_object(node)
        except ValueError:  # Python refuses whole numbers of more than 4,300 digits
            self.document.report(place, "found a number that is too large. Use fewer digits")
            return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            is_scalar = isinstance(key_node, yaml.ScalarNode)
            key = str(key_node.value) if is_scalar else "?"
            inner = (*place, key)
            first = self.document.lines.get(inner)
            self.document.lines[inner] = key_node.start_mark.line + 1
            if key in values:
                self.document.report(inner, f"found {key!r} twice, first on line {first}. Use it once")
            if not is_scalar:
                allowed = "text (quote one that begins with {)"
                self.document.report(inner, f"found a key that begins with {{ or [. Use {allowed}")
            elif not self._is_unstorable(key, inner) and not key_node.tag.endswith(":str"):
                self.document.report(inner, "found a key that is not text. Use text (put it in quotes)")
            values[key] = self.value(value_node, inner)
        return values

    def _is_unstorable(self, text: str, place: Place) -> bool:
        """Check whether a text contains a character that databases refuse, and report it.

        YAML allows such characters as escapes.
        """
        if character := _UNSTORABLE.search(text):
            code = f"\\u{ord(character[0]):04x}"
            self.document.report(
                place, f"found the character {code}. Use characters that a database can store"
            )
        return character is not None


class UnfitFileError(Exception):
    """A file that Sendoff refuses to read, and why."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(f"found {found}. Use {allowed}")


def read_text(file: Path, kind: str, most: int) -> str:
    """Read a file of at most ``most`` bytes; ``kind`` names its content in errors, such as SQL.

    The file's author is not trusted: reading never blocks, and only regular files are read. Raise FileNotFoundError if
    the file does not exist, and UnfitFileError for any other problem.
    """
    try:
        with open(file, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise UnfitFileError("something that is not a regular file", f"{kind} in UTF-8")
            content = stream.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnfitFileError(f"a file that cannot be read ({error.strerror})", f"{kind} in UTF-8") from None
    if len(content) > most:
        raise UnfitFileError("a file that is too large", f"at most {most // 1024} KiB")
    try:
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8").read()  # normalizes line ends
    except UnicodeDecodeError:
        raise UnfitFileError("bytes that are not UTF-8", "UTF-8") from None
    if "\0" in text:
        raise UnfitFileError("a NUL character, which no database can store", f"{kind} without it")
    return text


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would block until it has a writer
