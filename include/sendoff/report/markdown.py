"""Render documents as Markdown. Text from a file or a warehouse is escaped, so it cannot become Markdown or HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sendoff.report.model import (
    Block,
    Bullets,
    Code,
    Document,
    Facts,
    Groups,
    Inline,
    Link,
    Listing,
    Moment,
    Ranges,
    Sentence,
    Sum,
    Table,
    Timeline,
    Words,
    clean,
    inlines,
)

_MARKS = re.compile(r"([\\`*_\[\]|~#!@])")


def as_markdown(document: Document, level: int = 2) -> str:
    """Return a document as Markdown. ``level`` is the heading level of its title."""
    title = " ".join(filter(None, map(_words, (document.title, document.subtitle))))
    parts = [f"{'#' * level} {title}", document.caption, *map(_block, document.lead)]
    for section in document.sections:
        parts += [f"{'#' * (level + 1)} {_words(section.heading)}", *map(_block, section.blocks)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _block(block: Block) -> str:
    match block:
        case Sentence():
            return f"**{_words(block.words)}**" if block.is_alarm else _words(block.words)
        case Bullets():
            return "\n".join(f"- {_words(item)}" for item in block.items)
        case Listing():
            text = clean(block.text)
            fence = _ticks(text, 3)
            return f"{fence}{block.language}\n{text}\n{fence}"
        case Facts():
            return _table(Table(("", ""), block.rows))
        case Sum():
            rows = [(line.sign, f"{line.count:,}", line.words) for line in block.lines]
            return _table(Table(("", "", ""), rows, frozenset((1,))))
        case Groups() | Timeline():
            return _table(block.table)
        case Table():
            return _table(block)
        case Ranges():
            return ""


def _table(table: Table) -> str:
    rules = ["---:" if number in table.numbers else "---" for number in range(len(table.columns))]
    rows: list[Sequence[Words]] = [*table.rows, *([table.total] if table.total else [])]
    lines = [
        [_words(name) for name in table.columns],
        rules,
        *([_words(cell) for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@lru_cache(maxsize=1024)  # the documentation of each campaign repeats most words
def _words(words: Words) -> str:
    return "".join(_inline(each) for each in inlines(words))


def _inline(part: Inline) -> str:
    match part:
        case Code():
            return _code(part.text) if part.text else ""
        case Link():
            return f"[{_escaped(part.text)}]({part.url})"
        case Moment():
            return _escaped(part.text)
        case _:
            return _escaped(part)


def _code(words: str) -> str:
    """Return words as a code span, so that they are not read as Markdown or HTML."""
    text = clean(words).replace("\n", " ").replace("|", "\\|")
    tick = _ticks(text, 1)
    space = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{tick}{space}{text}{space}{tick}"


def _ticks(text: str, fewest: int) -> str:
    """Return a run of backticks that is longer than any in the text."""
    return "`" * max([fewest, *(len(run) + 1 for run in re.findall("`+", text))])


def _escaped(words: str) -> str:
    text = clean(words).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", text)
