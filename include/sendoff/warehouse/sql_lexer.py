"""Where the texts and comments of a query begin and end, which databases read in different ways.

This is a lexer of our own because sqlglot and sqlparse know one way to read each dialect, not every way that a
database's settings allow, and sqlglot refuses texts without an end and drops the comments that MySQL runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

_OPENING = re.compile(
    r"(?P<escaped>(?<![\w$])[eE]')|(?P<mark>['\"`\[]|--|/\*)|(?P<dollar>(?<![\w$])\$(?:(?!\d)\w+)?\$)"
)
_TEXT = re.compile(r"[^']*(?:''[^']*)*")  # each of these matches anywhere, and without a second look
_ESCAPED_TEXT = re.compile(r"[^'\\]*(?:(?:\\.|'')[^'\\]*)*", re.DOTALL)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_LINE = re.compile(r"[^\n]*")
_SHORT_LINE = re.compile(r"[^\r\n]*")
_DOLLAR_MARK = re.compile(r"(?=(\$(?:(?!\d)\w+)?\$))")
_DOLLARS = frozenset({"postgresql", "redshift", "cockroachdb", "duckdb", "snowflake"})
_QUOTES = {'"': '"', "`": "`", "[": "]"}
_MAYBE_DATA = re.compile(r"\S+@\S+|\d{4,}")
_CHARACTER, _HIDDEN = re.compile(r"[^\n]"), re.compile(r"\0+")
_LONGEST = 60  # characters that are shown of a line
_JINJA = re.compile(r"\{\{|\{%")
_MACRO = re.compile(
    r"\{\{-?\s*(?:ds|ts|(?:ds|ts)_no\w+|data_interval_\w+|logical_date|execution_date|(?:prev|next)_\w+|params|macros|"
    r"dag_run|run_id|ti|task_instance|var|conn|(?:yester|tomor)\w+_ds)\b"
)  # of Airflow: in a text, other braces may be meant as they are


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to read a query; the least that is common to all databases by default.

    ``has_escapes``: a backslash in any text escapes what follows it. ``nests``: a comment may hold comments.
    ``short_lines``: a carriage return ends a comment of a line. ``has_dollars``: there are texts like ``$$this$$``, and
    ``E'this'`` with escapes. ``has_brackets``: names stand in `` ` `` and in brackets too.
    """

    has_escapes: bool = False
    nests: bool = False
    short_lines: bool = False
    has_dollars: bool = False
    has_brackets: bool = False

    def end(self, sql: str, opening: re.Match[str]) -> int:
        """Return the end of what begins there; -1 if it has no end, or this dialect does not know it."""
        mark, start = opening[0], opening.end()
        if opening["dollar"]:
            return _after(sql, mark, start) if self.has_dollars else -1
        if opening["escaped"] or mark == "'":
            is_escaped = self.has_escapes or (self.has_dollars and bool(opening["escaped"]))
            found = (_ESCAPED_TEXT if is_escaped else _TEXT).match(sql, start)
            return found.end() + 1 if found and sql[found.end() : found.end() + 1] == "'" else -1
        if mark == "--":
            line = (_SHORT_LINE if self.short_lines else _LINE).match(sql, start)
            return line.end() if line else -1
        if mark == "/*":
            return self._comment_end(sql, start)
        return _after(sql, _QUOTES[mark], start) if mark == '"' or self.has_brackets else -1

    def _comment_end(self, sql: str, start: int) -> int:
        depth = 1
        for edge in _COMMENT_EDGE.finditer(sql, start):
            depth += (1 if self.nests else 0) if edge[0] == "/*" else -1
            if depth == 0:
                return edge.end()
        return -1


def _after(sql: str, mark: str, start: int) -> int:
    found = sql.find(mark, start)
    return found + len(mark) if found >= 0 else -1


def usual_dialect(backend: str | None = None) -> Dialect:
    """Return the dialect by which parameters are looked for; without a backend, texts like ``$$this$$`` are texts."""
    return Dialect(has_dollars=backend is None or backend in _DOLLARS)


def is_like_mysql(backend: str) -> bool:
    """Whether a database may read a query as MySQL does: any that is not known to read it otherwise."""
    return backend not in _DOLLARS and backend != "sqlite"


def dialects(backend: str) -> Iterator[Dialect]:
    """Yield every way in which a database, by its name in SQLAlchemy, may read a query: its settings decide."""
    if backend == "sqlite":
        yield Dialect(has_brackets=True)
        return
    for has_escapes, nests, short_lines in product((False, True), repeat=3):
        yield Dialect(has_escapes, nests, short_lines, backend in _DOLLARS, backend not in _DOLLARS)


def tokens(sql: str, dialect: Dialect) -> Iterator[tuple[bool, str]]:
    """Cut a query into what lies in texts, quoted names and comments (True), and what lies outside (False).

    What has a beginning and no end counts as outside. Takes time in proportion to the query.
    """
    done = at = 0
    endless: set[str] = set()  # a mark that has no end here has none further on
    last = {mark[1]: mark.start() for mark in _DOLLAR_MARK.finditer(sql)} if dialect.has_dollars else {}
    while opening := _OPENING.search(sql, at):
        at, kind = opening.end(), opening[0]
        if kind in endless or (opening["dollar"] and last.get(kind, -1) < at):
            continue
        end = dialect.end(sql, opening)
        if end < 0:
            endless.add(kind)
            continue
        yield False, sql[done : opening.start()]
        yield True, sql[opening.start() : end]
        done = at = end
    yield False, sql[done:]


def code_of(sql: str, dialect: Dialect) -> str:
    """Return a query of the same length, with spaces in place of its texts, quoted names and comments."""
    return "".join(" " * len(text) if is_inert else text for is_inert, text in tokens(sql, dialect))


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a query, from 1; without a column, a whole line."""

    line: int
    column: int | None = None

    @classmethod
    def at(cls, sql: str, offset: int) -> Spot:
        """Return the place of a character."""
        return cls(sql.count("\n", 0, offset) + 1, offset - sql.rfind("\n", 0, offset))

    def describe(self, sql: str, dialect: Dialect) -> str:
        """Return the place with an excerpt of its line, in which texts, comments and long numbers are left out."""
        where = f"line {self.line}" + (f", column {self.column}" if self.column else "")
        hidden = "".join(
            _CHARACTER.sub("\0", text) if is_inert else text for is_inert, text in tokens(sql, dialect)
        )
        lines = hidden.split("\n")
        if not 0 < self.line <= len(lines):
            return where
        line, split = lines[self.line - 1], (self.column or 1) - 1
        before, after = (
            _MAYBE_DATA.sub("…", _HIDDEN.sub("…", part)) for part in (line[:split], line[split:])
        )
        excerpt = _shortened(before, after)
        return f"{where}: {excerpt}" if excerpt else where


def _shortened(before: str, after: str) -> str:
    before, after = before.lstrip(), after.rstrip()
    if len(before) > _LONGEST // 2:
        before = f"…{before[-_LONGEST // 2 :]}"
    if len(after) > _LONGEST // 2 + (most := max(_LONGEST // 2 - len(before), 0)):
        after = f"{after[: _LONGEST // 2 + most]}…"
    return before + after


def jinja_at(sql: str) -> int | None:
    """Return where a query holds a tag of Jinja, which nothing renders; None if it holds none."""
    at = 0
    for is_inert, text in tokens(sql, usual_dialect()):
        if not text.startswith(("--", "/*")) or not is_inert:
            found = (_MACRO if is_inert else _JINJA).search(text)
            if found:
                return at + found.start()
        at += len(text)
    return None
