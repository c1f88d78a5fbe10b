"""Find the texts and comments of a query, which databases read in different ways.

sqlglot and sqlparse read each dialect in one way only, not in every way that a database's settings allow. sqlglot also
refuses unterminated texts, and drops comments that MySQL executes. Hence this lexer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

# MySQL takes two dashes for a comment only before white space or a control character.
_OPENING, _OPENING_SPACED = (
    re.compile(
        rf"(?P<escaped>(?<![\w$])[eE]')|(?P<mark>['\"`\[#]|--{spaced}|/\*)|"
        r"(?P<dollar>(?<![\w$])\$(?:(?![0-9])\w+)?\$)"
    )
    for spaced in ("", r"(?=[\0-\x20\x7f]|\Z)")
)
_TEXT = re.compile(r"[^']*(?:''[^']*)*")  # this and the next never backtrack
_ESCAPED_TEXT = re.compile(r"[^'\\]*(?:(?:\\.|'')[^'\\]*)*", re.DOTALL)
_ESCAPED_NAME = re.compile(r'[^"\\]*(?:(?:\\.|"")[^"\\]*)*', re.DOTALL)
_CONTINUED = re.compile(r"'(?:[ \t\f\v]|--[^\n\r]*+)*[\n\r](?:\s|--[^\n\r]*+)*'")  # of PostgreSQL
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_LINE = re.compile(r"[^\n]*")
_SHORT_LINE = re.compile(r"[^\r\n]*")
_DOLLAR_MARK = re.compile(r"(?=(\$(?:(?![0-9])\w+)?\$))")
# An email address or a long number, which may come from a row. Linear, because a word is tried only once.
MAYBE_DATA = re.compile(r"(?<!\S)\S+@\S+|\d{4,}")
ODD = re.compile(r"[^\0-\x7f\w](?=[eE]'|\$)|(?<=\$)\w*[^\0-\x7f\w]")
"""A character beside a dollar sign or a quote that is part of a name in PostgreSQL, and a space in other databases."""

_DASHES = frozenset({"bigquery", "clickhouse", "databricks", "trino"})  # "--" always begins a comment
_HASHES = frozenset({"bigquery", "mariadb", "mysql"})
_DOLLARS = frozenset({"postgresql", "redshift", "cockroachdb", "duckdb", "snowflake"})
_QUOTES = {'"': '"', "`": "`", "[": "]"}
_CHARACTER, _HIDDEN = re.compile(r"[^\n]"), re.compile(r"\0+")
_LONGEST = 60  # characters of a line to show
# If no FROM follows the first SELECT, no later one is tried.
_SELECTED = re.compile(r"\s*(?>(?:WITH\b.*?[\s)])?SELECT\b)(.*?)\bFROM\b", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(
    r"(?:\s*(?:DISTINCT|ALL)\s)?\s*(?:\w+\.)*(\w+)\s*|.*\sAS\s+(\w+)\s*", re.IGNORECASE | re.DOTALL
)
_COMBINED = re.compile(r"\b(?:UNION|INTERSECT|EXCEPT|MINUS)\b", re.IGNORECASE)  # its first query is not seen
_SEVERAL = re.compile(
    r"\*|\bUNNEST\b", re.IGNORECASE
)  # may be several columns, also with AS: * RENAME id AS device_id
_JINJA = re.compile(r"\{\{|\{%")
_MACRO = re.compile(
    r"\{\{-?\s*(?:ds|ts|(?:ds|ts)_no\w+|data_interval_\w+|logical_date|execution_date|(?:prev|next)_\w+|params|macros|"
    r"dag_run|run_id|ti|task_instance|var|conn|(?:yester|tomor)\w+_ds)\b"
)  # Airflow's macros; other braces in a text may be intended


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to read a query; the defaults are common to all databases.

    ``has_escapes``: a backslash in a text escapes the next character. ``has_double_escapes``: also in double quotes,
    which some databases have around texts. ``nests``: comments can be nested. ``spaced_dashes``: ``--`` begins a
    comment only before a space.
    ``short_lines``: a carriage return ends a line comment. ``has_dollars``: ``$$this$$`` is a text, and ``E'this'`` a
    text with escapes. ``has_brackets``: names may be quoted with `` ` `` and with brackets too. ``has_hashes``: ``#``
    begins a line comment.
    """

    has_escapes: bool = False
    nests: bool = False
    short_lines: bool = False
    has_dollars: bool = False
    has_brackets: bool = False
    has_hashes: bool = False
    has_double_escapes: bool = False
    spaced_dashes: bool = False

    def end(self, sql: str, opening: re.Match[str]) -> int:
        """Return the end of the text or comment that begins there, or -1 if it has none in this dialect."""
        mark, start = opening[0], opening.end()
        if opening["dollar"]:
            return _after(sql, mark, start) if self.has_dollars else -1
        if opening["escaped"] or mark == "'":
            if self.has_dollars and opening["escaped"]:
                return _end_of_parts(sql, start)
            return _closed(_ESCAPED_TEXT if self.has_escapes else _TEXT, sql, start, "'")
        if mark == '"' and self.has_double_escapes:
            return _closed(_ESCAPED_NAME, sql, start, mark)
        if mark == "#" and not self.has_hashes:
            return -1
        if mark in ("--", "#"):
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


def _closed(content: re.Pattern[str], sql: str, start: int, quote: str) -> int:
    found = content.match(sql, start)
    return found.end() + 1 if found and sql.startswith(quote, found.end()) else -1


def _end_of_parts(sql: str, start: int) -> int:
    """Return the end of a text with escapes: another text on the next line continues it, with escapes too."""
    end = _closed(_ESCAPED_TEXT, sql, start, "'")
    while end > 0 and (more := _CONTINUED.match(sql, end - 1)):
        end = _closed(_ESCAPED_TEXT, sql, more.end(), "'")
    return end


def _after(sql: str, mark: str, start: int) -> int:
    found = sql.find(mark, start)
    return found + len(mark) if found >= 0 else -1


def usual_dialect(backend: str | None = None) -> Dialect:
    """Return the dialect for finding parameters; without a backend, it has texts like ``$$this$$``."""
    return Dialect(has_dollars=backend is None or backend in _DOLLARS, has_hashes=backend in _HASHES)


def is_like_mysql(backend: str) -> bool:
    """Check whether a database may read queries as MySQL does: any that is not known to differ."""
    return backend not in _DOLLARS and backend != "sqlite"


def dialects(backend: str, sql: str) -> Iterator[Dialect]:
    """Yield every way that a database, named as in SQLAlchemy, may read a query, depending on its settings.

    Ways that differ only in what the query does not contain are left out.
    """
    if backend == "sqlite":
        yield Dialect(has_brackets=True)
        return
    has_dollars, is_mysql = backend in _DOLLARS, backend in ("mysql", "mariadb")

    def ways(mark: str, *known: bool) -> tuple[bool, ...]:
        return known or ((False, True) if mark in sql else (False,))

    of_mysql = (False,) if is_mysql else ()
    for has_escapes, nests, short_lines, has_double_escapes, spaced_dashes in product(
        ways("\\"),
        ways("/*", *of_mysql),
        ways("\r", *of_mysql),
        ways("\\", *((False,) if has_dollars else ())),
        ways("--", *((is_mysql,) if has_dollars or is_mysql or backend in _DASHES else ())),
    ):
        yield Dialect(
            has_escapes,
            nests,
            short_lines,
            has_dollars,
            has_brackets=not has_dollars,
            has_hashes=backend in _HASHES,
            has_double_escapes=has_double_escapes,
            spaced_dashes=spaced_dashes,
        )


def tokens(sql: str, dialect: Dialect) -> Iterator[tuple[bool, str]]:
    """Split a query into parts inside texts, quoted names and comments (True) and parts outside of them (False).

    An unterminated text or comment counts as outside. The time is linear in the length of the query.
    """
    done = at = 0
    endless: set[str] = set()  # a mark without an end here has none further on either
    last = {mark[1]: mark.start() for mark in _DOLLAR_MARK.finditer(sql)} if dialect.has_dollars else {}
    find = (_OPENING_SPACED if dialect.spaced_dashes else _OPENING).search
    while opening := find(sql, at):
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


def code_of(sql: str, dialect: Dialect, quoted: str = " ") -> str:
    """Return the query with its texts, quoted names and comments replaced by spaces of the same length.

    ``quoted``: a character that replaces those of texts and quoted names instead.
    """
    return "".join(
        (" " if text.startswith(("--", "/*", "#")) else quoted) * len(text) if is_inert else text
        for is_inert, text in tokens(sql, dialect)
    )


def selected_columns(code: str) -> list[tuple[str, int]]:
    """Return the names in the list of a plain SELECT, in lower case and in its order, with their offsets.

    ``code``: from :func:`code_of`, with another character than a space for quoted names. The empty name stands for
    these, and for names that the list does not show.
    """
    outer = "".join(_outside_brackets(code))
    if not (found := _SELECTED.match(outer)) or _COMBINED.search(outer[: found.start(1)]) or "|>" in outer:
        return []
    columns, at = [], found.start(1)
    for item in found[1].split(","):
        column = _COLUMN.fullmatch(item)
        if column:
            number = column.lastindex or 0
            columns.append((column[number].lower(), at + column.start(number)))
        if column is None or _SEVERAL.search(item):
            columns.append(("", at))
        at += len(item) + 1
    return columns


def _outside_brackets(code: str) -> Iterator[str]:
    """Yield the characters of a query, and a space for each one inside brackets."""
    depth = 0
    for character in code:
        depth -= character in ")]}"
        yield " " if depth else character
        depth += character in "([{"


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a query, counted from 1; without a column, a whole line."""

    line: int
    column: int | None = None

    @classmethod
    def at(cls, sql: str, offset: int) -> Spot:
        """Return the place of a character."""
        return cls(sql.count("\n", 0, offset) + 1, offset - sql.rfind("\n", 0, offset))

    def describe(self, sql: str, dialect: Dialect) -> str:
        """Return the place with an excerpt of its line, without texts, comments and long numbers."""
        where = f"line {self.line}" + (f", column {self.column}" if self.column else "")
        hidden = "".join(
            _CHARACTER.sub("\0", text) if is_inert else text for is_inert, text in tokens(sql, dialect)
        )
        lines = hidden.split("\n")
        if not 0 < self.line <= len(lines):
            return where
        line, split = lines[self.line - 1], (self.column or 1) - 1
        before, after = (MAYBE_DATA.sub("…", _HIDDEN.sub("…", part)) for part in (line[:split], line[split:]))
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
    """Return the offset of the first Jinja tag in a query, or None; Jinja is not rendered in queries."""
    if "{" not in sql:
        return None
    at = 0
    for is_inert, text in tokens(sql, usual_dialect()):
        if not text.startswith(("--", "/*")) or not is_inert:
            found = (_MACRO if is_inert else _JINJA).search(text)
            if found:
                return at + found.start()
        at += len(text)
    return None
