"""The site of the pages: it builds without a warning, holds every page, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md"]
LOADS = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: an unknown page or heading that something links to is an error."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for part in ("docs", "examples", "tests/repository/docs"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / CONFIG["site_dir"]


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for each in nav.values() if isinstance(nav, dict) else nav:
        yield from pages(each)


def test_every_page_is_in_the_navigation_once_or_in_a_list_that_is() -> None:
    docs = ROOT / "docs"
    shown = list(pages(CONFIG["nav"]))
    written = {str(path.relative_to(docs)) for path in docs.glob("**/*.md")}
    lists = [docs / page for page in shown if Path(page).name == "index.md" and Path(page).parent.name]
    listed = {
        str((index.parent / link).relative_to(docs))
        for index in lists
        for link in re.findall(r"\]\(([\w.-]+\.md)\)", index.read_text(encoding="utf-8"))
    }
    assert len(shown) == len(set(shown))
    assert set(shown) <= written
    assert written - set(shown) - listed == set()


def test_every_page_is_built(site: Path) -> None:
    assert [page for page in pages(CONFIG["nav"]) if not (site / page).with_suffix(".html").is_file()] == []


class _Loaded(HTMLParser):
    """Collects what a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_only_said = tag == "link" and given.get("rel") in ("canonical", "next", "prev")
        if (address := given.get(LOADS.get(tag, ""))) and not is_only_said:
            self.addresses.append(address)


def test_the_site_loads_nothing_from_elsewhere_and_all_that_it_loads_is_there(site: Path) -> None:
    for file in site.rglob("*.html"):
        found = _Loaded()
        found.feed(file.read_text(encoding="utf-8"))
        for address in found.addresses:
            assert not re.match(r"(\w+:)?//", address), f"{file.name} loads {address}"
            if file.name != "404.html" and not address.startswith("data:"):
                assert (file.parent / unquote(address).partition("?")[0].partition("#")[0]).exists(), address
        # The theme's own script fetches a library from elsewhere where it meets one of these.
        assert not re.search(
            r'class="[^"]*\b(?:mermaid|glightbox|pyodide)\b', file.read_text(encoding="utf-8")
        ), file.name
    sheets = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", sheets) == []


def test_search_finds_words_of_the_pages_without_a_server(site: Path) -> None:
    index = (site / "search.json").read_text(encoding="utf-8")
    assert "in_flight" in index
    assert "lapsed_buyers" in index


def headings(text: str) -> set[str]:
    """Give the anchors of a page, as both the site and the repository's own pages spell them."""
    plain = re.sub(r"^ *(```|~~~).*?^ *\1", "", text, flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for title in re.findall(r"^#+ +(.*?) *$", plain, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title)).strip().lower()
        found.add(re.sub(r"[\s]+", "-", words))
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_links_to_is_in_the_repository(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^ *(```|~~~).*?^ *\1", "", text, flags=re.MULTILINE | re.DOTALL)
    missing = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        place, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = (path.parent / unquote(place)).resolve() if place else path
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in headings(target.read_text(encoding="utf-8"))
        ):
            missing.append(link)
    assert missing == []
