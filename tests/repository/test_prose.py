"""The check of prose finds what it should, and passes over code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.prose import MOST_WORDS, figures, findings, prose

LONG = "Word" + " word" * MOST_WORDS


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("a.py", '"""Give the launch."""\n', "sendoff.opening"),
        ("a.py", 'def f():\n    """Tells which launch it is."""\n', "sendoff.opening"),
        ("a.py", 'def f():\n    """Return the launch.\n\n    Nobody waits.\n    """\n', "sendoff.phrase"),
        ("a.py", "x = 1  # those whom it reaches\n", "sendoff.phrase"),
        ("a.py", f"# {LONG}.\n", "sendoff.length"),
        ("a.md", "# Title\n\nThe page of which the title is short.\n", "sendoff.phrase"),
        ("a.md", f"# Title\n\nShort. {LONG}.\n", "sendoff.length"),
        ("a.md", "# Title\n\nIt is a very good page.\n", "weasel_words.very"),
    ],
)
def test_a_text_that_breaks_a_rule_is_found_on_its_line(
    tmp_path: Path, name: str, text: str, rule: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    ((line, message),) = findings(file)
    assert f"[{rule}]" in message
    wrong = next(n for n, each in enumerate(text.splitlines(), start=1) if prose_of(each))
    assert line == wrong


def prose_of(line: str) -> bool:
    words = ("Give", "Tells", "Nobody", "whom", "of which", "very", LONG)
    return any(word in line for word in words)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Return the launch."""\nnobody = "nobody shall"\n'),
        ("a.py", f'"""Compute it.\n\n.. code-block:: text\n\n    {LONG}\n"""\n'),
        ("a.md", f"# Title\n\n```sh\nnobody {LONG}\n```\n\nSet `nobody` to 1.\n"),
        ("a.md", f"# Title\n\n| a | b |\n|---|---|\n| {LONG[:60]} | {LONG[:60]} |\n"),
    ],
)
def test_code_and_plain_texts_are_passed_over(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert findings(file) == []


def test_the_figures_count_what_the_rules_find(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text(f"# Title\n\nNobody was asked. {LONG}.\n\nIt is short here.\n")
    found = figures([prose(file)])
    assert (found["sentences"], found["long_share"]) == (3, round(1 / 3, 4))
    assert found["passive_share"] == round(1 / 3, 3)
    assert found["phrases_per_1000_words"] > 0
