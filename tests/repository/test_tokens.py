"""The look that Sendoff's pages in Airflow, its reports, their pictures and the pages of the local service share."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from messaging_service.pages.layout import SHEET
from sendoff.report import css
from sendoff.report.tokens import light_colours, tokens

INCLUDE = Path(__file__).parents[2] / "include"
AIRFLOW = (INCLUDE.parent / "plugins/sendoff_airflow/views/static/sendoff.css").read_text()
SERVICE = (INCLUDE / "messaging_service/pages/static/style.css").read_text()
PREVIEWS = "/* The previews look like real devices"
SHEETS = {"Airflow": css() + AIRFLOW, "report": css(), "service": SHEET.decode()}
SCHEMES = pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])


def colours(scheme: int) -> dict[str, str]:
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", tokens())
    return {name: both[scheme] for name, *both in found}


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_local_service_has_the_same_tokens() -> None:
    assert (INCLUDE / "messaging_service/pages/static/tokens.css").read_text() == tokens()


@pytest.mark.parametrize("name", SHEETS)
def test_every_token_that_a_page_uses_exists(name: str) -> None:
    sheet = SHEETS[name]
    defined = set(re.findall(r"(--[\w-]+):", sheet))
    assert set(re.findall(r"var\((--[\w-]+)", sheet)) - defined == set()


def test_no_page_has_colours_or_fonts_of_its_own() -> None:
    """Only the previews of the local service do, because they look like devices."""
    own = {
        "Airflow": AIRFLOW,
        "report": css().removeprefix(tokens()) + (INCLUDE / "sendoff/report/page.html").read_text(),
        "picture": (INCLUDE / "sendoff/report/picture.py").read_text(),
        "service": SERVICE.partition(PREVIEWS)[0],
    }
    values = re.compile(r"#[0-9a-fA-F]{3,8}\b(?=[ ;,)\"])|light-dark|system-ui|ui-monospace")
    assert {name: found for name, text in own.items() if (found := values.findall(text))} == {}
    assert PREVIEWS in SERVICE


@SCHEMES
def test_text_can_be_read_on_every_ground(scheme: int) -> None:
    found = colours(scheme)
    texts, grounds = ("ink", "pale", "link"), ("ground", "raised", "alarm", "done")
    pairs = [*product(texts, grounds), *product(("engaged", "missing"), ("ground", "raised"))]
    pairs += [(name, name.removeprefix("on-")) for name in found if name.startswith("on-")]
    assert [pair for pair in pairs if contrast(found[pair[0]], found[pair[1]]) < 4.5] == []


@SCHEMES
def test_outlines_can_be_told_from_the_ground(scheme: int) -> None:
    found = colours(scheme)
    edges = [name for name in found if name.endswith("-edge")]
    outlines = [*edges, "engaged", "missing", "delivery", "open", "accepted", "refused", "focus"]
    assert [name for name in outlines if contrast(found[name], found["ground"]) < 3] == []


def test_the_picture_has_the_light_colours() -> None:
    assert light_colours() == colours(0)
