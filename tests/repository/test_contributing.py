"""CONTRIBUTING.md, docs/explanation/decisions/, and the settings of editors and git name only existing things."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "CONTRIBUTING.md"
DECISIONS = ROOT / "docs/explanation/decisions"
RECORDS = sorted(DECISIONS.glob("[0-9]*.md"))
PAGES = [
    GUIDE,
    ROOT / "docs/proofs/promises.md",
    *sorted(DECISIONS.glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_every_place_that_the_guide_names_is_there() -> None:
    named = re.findall(
        r"`((?:[\w.-]+/)[\w./*-]+|[\w-]+\.(?:yaml|txt|toml|md))`", GUIDE.read_text(encoding="utf-8")
    )
    named = [place for place in named if not place.startswith("127.") and "NNNN" not in place]
    assert len(named) > 25
    assert [place for place in named if not list(ROOT.glob(place.rstrip("/")))] == []


def test_every_target_that_the_guide_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", GUIDE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"setup", "check", "test", "conformance"} <= named
    assert named <= known


def test_the_guide_names_each_folder_of_tests() -> None:
    folders = {file.parent for file in (ROOT / "tests").rglob("test_*.py")}
    tops = {folder.relative_to(ROOT / "tests").parts[0] for folder in folders}
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in sorted(tops) if f"| `tests/{name}` |" not in text] == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_says_why_what_and_what_follows_on_one_screen(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    assert re.findall(r"^#+ .*", text, re.MULTILINE)[1:] == ["## Context", "## Decision", "## What follows"]
    assert len(text.splitlines()) <= 40


def test_every_decision_is_listed_in_order_under_its_title() -> None:
    listed = re.findall(
        r"^\| (\d+) \| \[(.*)\]\((.*)\) \|$", (DECISIONS / "index.md").read_text(), re.MULTILINE
    )
    titles = [record.read_text().partition("\n")[0].removeprefix("# ") for record in RECORDS]
    numbers = [str(int(record.name.partition("-")[0])) for record in RECORDS]
    assert listed == list(zip(numbers, titles, [record.name for record in RECORDS], strict=True))


def test_what_runs_before_a_commit_is_of_this_tree_and_downloads_nothing() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    hooks = [hook for each in repositories for hook in each["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert [hook["entry"].split()[0] for hook in hooks] == [
        ".venv/bin/ruff",
        ".venv/bin/ruff",
        ".venv/bin/mypy",
    ]


def test_editors_are_told_the_line_length_that_ruff_holds() -> None:
    text = (ROOT / ".editorconfig").read_text().replace("root = true", "[root]")
    editors = configparser.ConfigParser()
    editors.read_string(text)
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert editors.getint("*.py", "max_line_length") == project["tool"]["ruff"]["line-length"]
    assert editors["Makefile"]["indent_style"] == "tab"


def _anchors(file: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site create them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-")
        for heading in headings
    }
