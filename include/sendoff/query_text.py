"""Where the texts and comments of a query begin and end, which databases read in different ways."""

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


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a query; the least that is common to all databases, unless told otherwise.

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
        """Give where what begins there ends; -1 where it has no end, or this reading does not know it."""
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


def readings(backend: str) -> Iterator[Reading]:
    """Give every way in which a database, by SQLAlchemy's name for it, may read a query: settings of it decide."""
    if backend == "sqlite":
        yield Reading(has_brackets=True)
        return
    for has_escapes, nests, short_lines in product((False, True), repeat=3):
        yield Reading(has_escapes, nests, short_lines, backend in _DOLLARS, backend not in _DOLLARS)


def parts_of(sql: str, reading: Reading) -> Iterator[tuple[bool, str]]:
    """Cut a query into what lies in texts, quoted names and comments (True), and what lies outside (False).

    What has a beginning and no end counts as outside. Takes time in proportion to the query.
    """
    done = at = 0
    endless: set[str] = set()  # a mark that has no end here has none further on
    last = {mark[1]: mark.start() for mark in _DOLLAR_MARK.finditer(sql)} if reading.has_dollars else {}
    while opening := _OPENING.search(sql, at):
        at, kind = opening.end(), opening[0]
        if kind in endless or (opening["dollar"] and last.get(kind, -1) < at):
            continue
        end = reading.end(sql, opening)
        if end < 0:
            endless.add(kind)
            continue
        yield False, sql[done : opening.start()]
        yield True, sql[opening.start() : end]
        done = at = end
    yield False, sql[done:]
