"""The documentation site builds without a warning, has every page, fits a phone, and can be searched in a folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from ...acceptance.browser import new_window

ROOT = Path(__file__).resolve().parents[3]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md"]
PHONE = 390  # pixels
# What reaches over the right edge of the page and lies in no box that scrolls.
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  const scrolls = element => { for (let e = element; e; e = e.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX) && e !== document.body) return true;
    return false; };
  const wide = [...document.querySelectorAll('.md-content *')].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width && box.right > width + 1 && !scrolls(element.parentElement); });
  if (document.documentElement.scrollWidth > width) wide.unshift(document.documentElement);
  return wide.slice(0, 5).map(element => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`); }"""
LOADS = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly: a link to a missing page or heading is an error."""
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
    """Collect the addresses that a browser loads for a page."""

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
        # The theme's script loads a library from another server for each of these.
        assert not re.search(
            r'class="[^"]*\b(?:mermaid|glightbox|pyodide)\b', file.read_text(encoding="utf-8")
        ), file.name
    sheets = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", sheets) == []


@pytest.mark.parametrize("is_served", [False, True], ids=["in_a_folder", "over_http"])
def test_search_finds_words_of_the_pages(site: Path, browser: Any, is_served: bool) -> None:
    with serve(site) as served:
        window = new_window(browser, viewport={"width": 1280, "height": 900})
        window.goto(f"{served if is_served else site.as_uri()}/how-to/guard-a-launch.html")
        window.get_by_role("button", name="Search").click()
        window.get_by_role("combobox").or_(window.get_by_placeholder("Search")).first.fill("variation")
        found = window.locator("a[href*='glossary.html']", has_text="variation").first
        found.wait_for()
        assert window.complaints == []
        found.click()
        window.wait_for_url("**/reference/glossary.html*")
        window.context.close()


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP and yield its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_no_page_is_wider_than_a_phone(site: Path, browser: Any) -> None:
    window = new_window(browser, viewport={"width": PHONE, "height": 844})
    too_wide = {}
    for file in sorted(
        set(site.rglob("*.html")) - {site / "404.html"}
    ):  # that one finds its style on a server only
        window.goto(file.as_uri())
        if wide := window.evaluate(TOO_WIDE):
            too_wide[str(file.relative_to(site))] = wide
    window.context.close()
    assert too_wide == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_is_shown_in_the_scheme_of_the_site_and_links_to_its_full_size(
    site: Path, browser: Any, scheme: str
) -> None:
    window = new_window(browser, viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    window.goto((site / "reference/ui.html").as_uri())
    links = [link for link in window.locator(".md-content a:has(img)").all() if link.is_visible()]
    shown = [link.locator("img").get_attribute("src").partition("#") for link in links]
    assert {scheme_of for _, _, scheme_of in shown} == {f"only-{scheme}"}
    assert [link.get_attribute("href") for link in links] == [source for source, _, _ in shown]
    window.context.close()


def headings(text: str) -> set[str]:
    """Return the anchors of a page, as the site and GitHub spell them."""
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
