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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sendoff.errors import Finding

YamlPath = tuple[str | int, ...]

MOST_SQL = 1024 * 1024
"""Maximum size of a query in bytes."""

MOST_YAML = 256 * 1024
"""Maximum size of a YAML file in bytes; a megabyte could take longer than Airflow's limit for parsing a DAG file."""

_HINTS = (
    (r"'\t' that cannot start", "indent with spaces, not tabs"),
    ("that cannot start any token", "quote a text that begins with this character"),
    ("mapping values are not allowed here", "quote a text that contains ': ', or fix the indentation"),
    ("but found '<block mapping start>'", "start the fields of a mapping in the same column"),
    ("expected <block end>, but found", "quote a text that begins with {, with [ or with a quote"),
    ("expected alphabetic or numeric character", "quote a text that begins with * or &"),
    ("could not find expected ':'", "write a space after the colon of each field"),
    ("expected ',' or '}'", "close the { before it"),
    ("expected ',' or ']'", "close the [ before it"),
    ("found unexpected end of stream", "close the quote that begins here"),
)
_AT_THE_START = ("could not find expected ':'", "expected ',' or", "found unexpected end of stream")
"""The errors of the parser whose cause is where a text or a mapping begins, and not where the parser stops."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # NUL and lone surrogates
# What libyaml and PyYAML's own parser read differently. Patterns of their own, because each is searched for by its
# first character, which is four times as fast.
_UNUSUAL = (
    re.compile("[\t\x85\u2028\u2029\ufeff]").search,  # rare white space
    re.compile(r"[!%](?<![^\s\[\]{},].)").search,  # the start of a tag or a directive
    re.compile(r"[|>][-+0-9]*#").search,  # a comment without a space before it
    re.compile(r"[^\[{]*[\[{](?s:.*?)\?").match,  # a question mark that may be inside brackets
)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(_WHOLE.pattern + r"(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_MOST_NODES = 10_000  # names and values; each one takes time
_DEEPEST = 50  # levels, far more than a campaign needs


@dataclass(slots=True)
class YamlDocument:
    """The content of a YAML file in JSON's types, the line of each place in it, and the problems found so far.

    ``problems``: the line of each, None for the whole file, and a sentence. ``inherited``: the places with a value from
    ``defaults.yaml``, and their lines there.
    """

    tree: Any = None
    lines: dict[YamlPath, int] = field(default_factory=dict)
    problems: list[tuple[int | None, str]] = field(default_factory=list)
    inherited: Mapping[YamlPath, int] = field(default_factory=dict)

    def report(self, place: Sequence[str | int], text: str) -> None:
        """Add a problem at the closest place that exists in the file, skipping steps that do not."""
        nearest: YamlPath = ()
        for step in place:
            if (*nearest, step) in self.lines:
                nearest = (*nearest, step)
        line = self.lines.get(nearest, 1)
        for default in (tuple(place[:1]), tuple(place[:2])):
            if default in self.inherited:
                nearest = default
                text += f" (from line {self.inherited[default]} of defaults.yaml; a value in campaign.yaml replaces it)"
        path = dotted(nearest)
        self.problems.append((line, f"{path}: {text}" if path else text))

    def findings(self, file: Path) -> list[Finding]:
        """Return the problems as findings about a file, in the order of their lines."""
        return [
            Finding(file, text, line)
            for line, text in sorted(self.problems, key=lambda problem: problem[0] or 0)
        ]


def read_document(path: Path) -> YamlDocument:
    """Read a campaign's file; errors in its YAML become problems of the document."""
    try:
        document = document_of(read_text(path, "YAML", MOST_YAML))
    except FileNotFoundError:
        other = path.with_suffix(".yml")
        how = f"Rename {other.name} to {path.name}" if other.is_file() else "Add the campaign"
        return _refused(None, f"the file does not exist. {how}")
    except UnfitFileError as error:
        return _refused(None, str(error))
    if document.tree is None and not document.problems:
        document.report((), "the file is empty. Add the campaign")
    return document


def document_of(text: str) -> YamlDocument:
    """Read YAML; its errors become problems of the document. The tree of an empty text is None.

    libyaml reads the text if PyYAML has it, which is ten times as fast. PyYAML's own parser reads what libyaml may read
    differently, and what libyaml refuses: its errors say more.
    """
    if yaml.__with_libyaml__ and not any(is_in(text) for is_in in _UNUSUAL):
        try:
            document = _Reader.read(yaml.parse(text, yaml.CSafeLoader))
        except yaml.YAMLError:
            pass
        else:
            if document.tree is not None:
                return document
    try:
        return _Reader.read(yaml.parse(text, _Parser))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if error.context_mark and any(words in (error.problem or "") for words in _AT_THE_START):
            mark = error.context_mark
        return _refused(
            mark.line + 1 if mark else 1, f"not YAML: {error.problem}{_hint(error.problem or '')}"
        )
    except yaml.YAMLError:
        return _refused(1, "not YAML: it holds characters that YAML does not allow")


def _refused(line: int | None, text: str) -> YamlDocument:
    return YamlDocument(problems=[(line, text)])


def _hint(words: str) -> str:
    return next((f"; {hint}" for part, hint in _HINTS if part in words), "")


def dotted(place: YamlPath) -> str:
    """Format a place for people, such as ``channels.web_push.browsers[1]``.

    The names of fields may be any text. Characters that could control a terminal or a log become question marks.
    """
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return printable(text.removeprefix("."))


def printable(text: str) -> str:
    """Return a text on one line, with each character that does not print replaced by a question mark."""
    return "".join(each if each.isprintable() else "?" for each in text)


def storable(text: str) -> str:
    """Return a text with each character that databases refuse replaced by a question mark."""
    return _UNSTORABLE.sub("?", text)


class _Parser(yaml.SafeLoader):
    """PyYAML's own parser, with two errors that it does not catch turned into YAML errors.

    They come from a character beyond Unicode and from a version number that is too long.
    """

    def fetch_more_tokens(self) -> None:
        try:
            super().fetch_more_tokens()
        except (OverflowError, ValueError):
            mark = self.get_mark()
            raise yaml.scanner.ScannerError(None, None, "found a number that is too large", mark) from None


@dataclass(slots=True)
class _Reader:
    """Converts the events of a parser to JSON's types, and notes their lines."""

    events: Iterator[yaml.Event]
    document: YamlDocument = field(default_factory=YamlDocument)
    depth: int = 0
    nodes: int = 0

    @classmethod
    def read(cls, events: Iterator[yaml.Event]) -> YamlDocument:
        """Return the only document of a file. Raise YAMLError if its YAML has errors."""
        reader = cls(events)
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            return reader.document
        reader.document.tree = reader._value(next(events), ())
        next(events)  # the end of the document
        if not isinstance(event := next(events), yaml.StreamEndEvent):
            raise _refusal("but found another document", event)
        return reader.document

    def _value(self, event: yaml.Event, place: YamlPath) -> Any:
        self._check(event)
        self.document.lines.setdefault(place, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, place)
        self.depth += 1
        value = self._mapping(place) if isinstance(event, yaml.MappingStartEvent) else self._list(place)
        self.depth -= 1
        return value

    def _check(self, event: yaml.Event) -> None:
        """Raise YAMLError for what campaign files may not contain."""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _refusal("anchors and aliases are not supported", event)
        if getattr(event, "tag", None):
            raise _refusal("tags are not supported", event)
        if self.depth >= _DEEPEST:
            raise _refusal(f"more than {_DEEPEST} levels are not supported", event)
        if self.nodes >= _MOST_NODES:
            raise _refusal(f"more than {_MOST_NODES:,} values are not supported", event)
        self.nodes += 1

    def _list(self, place: YamlPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            values.append(self._value(event, (*place, len(values))))
        return values

    def _mapping(self, place: YamlPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = str(event.value) if isinstance(event, yaml.ScalarEvent) else "?"
            inner = (*place, key)
            first = self.document.lines.get(inner)
            self.document.lines[inner] = _line(event)
            if key in values:
                self.document.report(inner, f"found {key!r} twice, first on line {first}. Use it once")
            self._check_key(event, inner)
            values[key] = self._value(next(self.events), inner)
        return values

    def _check_key(self, event: yaml.Event, place: YamlPath) -> None:
        """Report a key that is not text."""
        reported = len(self.document.problems)
        key = self._value(event, place)
        if isinstance(key, dict | list):
            allowed = "text (quote one that begins with {)"
            self.document.report(place, f"found a key that begins with {{ or [. Use {allowed}")
        elif not isinstance(key, str) and len(self.document.problems) == reported:
            self.document.report(place, "found a key that is not text. Use text (put it in quotes)")

    def _scalar(self, event: yaml.ScalarEvent, place: YamlPath) -> Any:
        if self._is_unstorable(event.value, place):
            return None
        try:
            return _plain(event.value) if event.implicit[0] else event.value
        except ValueError:  # Python refuses whole numbers of more than 4,300 digits
            self.document.report(place, "found a number that is too large. Use fewer digits")
            return None

    def _is_unstorable(self, text: str, place: YamlPath) -> bool:
        """Check whether a text contains a character that databases refuse, and report it.

        YAML allows such characters as escapes.
        """
        if character := _UNSTORABLE.search(text):
            code = f"\\u{ord(character[0]):04x}"
            self.document.report(
                place, f"found the character {code}. Use characters that a database can store"
            )
        return character is not None


def _plain(text: str) -> Any:
    """Return the value of a text without quotes: true, false, null, a number, or else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if _WHOLE.fullmatch(text) else float(text)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _refusal(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]


def leads_out(file: Path, folder: Path) -> bool:
    """Check whether a file is a symbolic link to a file outside a folder; mounted volumes use links inside it."""
    try:
        return file.is_symlink() and not file.resolve().is_relative_to(folder.resolve())
    except RuntimeError:  # a link to itself, before Python 3.13; reading the file reports it
        return False


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
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig").read()  # normalizes line ends
    except UnicodeDecodeError:
        raise UnfitFileError("bytes that are not UTF-8", "UTF-8") from None
    if "\0" in text:
        raise UnfitFileError("a NUL character, which no database can store", f"{kind} without it")
    return text


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would block until it has a writer
