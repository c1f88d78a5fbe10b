"""Chromium for tests of pages: how it starts, and the checks on every page that it shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM_VARIABLE = "SENDOFF_TEST_CHROMIUM"
PICTURE_VARIABLE = "SENDOFF_WRITE_PICTURES"
PICTURES = Path(__file__).parents[2] / "docs/pictures"
PATIENCE = 120_000  # milliseconds, for anything that must happen eventually
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
UNLABELLED_FIELDS = """[...document.querySelectorAll('input:not([type=hidden]), textarea, iframe')]
  .filter(e => !(e.labels?.length || e.title)).map(e => e.outerHTML)"""
# Headings whose level is more than one below that of the heading before them.
ODD_HEADINGS = """() => { const found = []; let last = 0;
  for (const e of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) {
    if (+e.tagName[1] > last + 1) found.push(`${e.textContent} after level ${last}`);
    last = +e.tagName[1]; }
  return found; }"""
# What fingers press needs 24 by 24 pixels, as WCAG says. Links in sentences are left out.
SMALL_TARGETS = """[...document.querySelectorAll('button, summary, select, textarea, input:not([type=hidden])')]
  .filter(e => e.checkVisibility()).map(e => [e.getBoundingClientRect(), e])
  .filter(([box]) => box.width < 23.9 || box.height < 23.9).map(([box, e]) => e.outerHTML.slice(0, 80))"""
# Text with less contrast to its background than WCAG's 4.5 to 1. Text on pictures is left out.
FAINT_TEXT = """() => {
  const parse = text => { const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const behind = element => { for (let e = element; e; e = e.parentElement) { const style = getComputedStyle(e);
    if (style.backgroundImage !== 'none') return null;
    const colour = parse(style.backgroundColor); if (colour[3] > 240) return colour; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('[aria-hidden], .hidden, .skip, option') || !e.checkVisibility()) continue;
    const back = behind(e); if (!back) continue;
    const style = getComputedStyle(e), fore = parse(style.color), alpha = fore[3] / 255 * style.opacity;
    const seen = fore.slice(0, 3).map((c, i) => c * alpha + back[i] * (1 - alpha));
    const [high, low] = [light(seen), light(back)].sort((a, b) => b - a);
    const contrast = (high + .05) / (low + .05);
    const what = `${e.className || e.tagName} "${e.textContent.trim().slice(0, 20)}"`;
    if (contrast < 4.5) found.push(`${what} ${contrast.toFixed(1)}`);
  }
  return found; }"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a headless Chromium. Skip the test if it is not installed, or if Playwright is missing."""
    named = os.environ.get(CHROMIUM_VARIABLE)
    path = named or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip(f"needs Chromium: none is installed; install it, or name one in {CHROMIUM_VARIABLE}")
    if not shutil.which(path):
        pytest.fail(f"there is no {path}, which {CHROMIUM_VARIABLE} names", pytrace=False)
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Chromium: playwright is missing")
    with playwright.sync_playwright() as driver:
        # Without its sandbox if it would not start in one. It sees only servers of this machine.
        started = driver.chromium.launch(
            executable_path=path, chromium_sandbox=os.geteuid() != 0, args=QUIET, timeout=PATIENCE
        )
        yield started
        started.close()


def new_window(browser: Any, **how: Any) -> Any:
    """Yield a new window with long time-outs. It collects its warnings and errors in ``complaints``."""
    context = browser.new_context(**how)
    context.set_default_timeout(PATIENCE)
    window = context.new_page()
    window.complaints = []
    window.on("console", lambda message: window.complaints.append(message.text))
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    return window


def picture_folder(otherwise: Path) -> Path:
    """Return the folder for pictures: the one of the documentation if the environment asks for it."""
    return PICTURES if os.environ.get(PICTURE_VARIABLE) else otherwise
