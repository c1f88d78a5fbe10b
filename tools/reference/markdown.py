"""Convert docstrings and tables to Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
_LITERAL = re.compile(r"(?<!`)``([^`]+)``(?!`)")
_CODE = re.compile(r"\.\. code-block:: \w+\n\n((?: {4}.*\n|\n)+)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; characters that could end a cell are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def code(text: object) -> str:
    """Return a text as code, or an empty text for an empty one."""
    return f"`{text}`" if str(text) else ""


def prose(docstring: str) -> str:
    """Return a docstring as Markdown, with roles, double backquotes and code blocks converted."""
    text = _CODE.sub(lambda found: f"```text\n{_dedented(found[1])}\n```\n\n", docstring + "\n")
    return _LITERAL.sub(r"`\1`", _ROLE.sub(r"`\1`", text)).strip()


def first_sentence(docstring: str) -> str:
    """Return a docstring's first paragraph on one line, without the final full stop."""
    return " ".join(prose(docstring).partition("\n\n")[0].split()).removesuffix(".")


def between(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with a text between two marks. Raise ValueError unless it has each mark once, in order."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if (page.count(begin), page.count(end), rest.count(end)) != (1, 1, 1):
        raise ValueError(f"the page needs {begin} and {end}, once each and in this order")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _dedented(block: str) -> str:
    return "\n".join(line[4:] for line in block.rstrip().splitlines())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
