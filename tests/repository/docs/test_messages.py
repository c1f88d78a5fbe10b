"""The messages that the pages on troubleshooting quote are messages of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = "\n".join(
    page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/how-to/troubleshoot*.md"))
)
CELLS = [cell for row in re.findall(r"^\|(.*)\|$", PAGES, re.MULTILINE) for cell in row.split(" | ")[:-1]]
QUOTED = sorted({quote for cell in CELLS for quote in re.findall(r"`([^`]+)`", cell) if quote.count(" ") > 1})


@cache
def messages() -> str:
    """Every text in the code, each on a line of its own, without its inserted values."""
    files = [*ROOT.glob("include/sendoff/**/*.py"), *ROOT.glob("plugins/**/*.py")]
    return "\n".join(text for file in files for text in _texts(ast.parse(file.read_text(encoding="utf-8"))))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "\n".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_of_code(words: str) -> bool:
    """Check whether the code has these words, in one text or in two that are put together."""
    cuts = [place.end() for place in re.finditer(r" ", words)]
    return words in messages() or any(words[:cut] in messages() and words[cut:] in messages() for cut in cuts)


@pytest.mark.parametrize("quote", QUOTED)
def test_a_quoted_message_is_one_of_the_code(quote: str) -> None:
    missing = [part for part in quote.split("...") if not is_of_code(part.strip())]
    assert missing == []


def test_a_message_that_no_code_has_is_found_out() -> None:
    assert len(QUOTED) > 20
    assert not is_of_code("the ledger has no chairs, or old ones")
