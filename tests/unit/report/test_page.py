"""The report as a page: it loads nothing else, says what the report says, and is accessible."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from sendoff import report
from sendoff.comparison.result import Comparison
from sendoff.comparison.statistics import compared_shares
from sendoff.errors import SettingsError
from sendoff.figures import LaunchStats, span_in_words
from sendoff.report import Line, Sum, css, describe_launch
from sendoff.report.launch_report import MEANINGS
from sendoff.states import Verdict

from ...sample_report import START
from ...sample_report import WHOLE as SAMPLE

WHOLE = replace(
    SAMPLE,
    dropped={"null": 10, "gave it back": 20},
    by_variant={"red": {"engaged": 150, "missing": 350}, "blue": {"engaged": 50, "missing": 450}},
)
NOTHING: dict[str, Any] = {
    "rows": 0,
    "dropped": {},
    "audience": 0,
    "segments": 0,
    "verdicts": {},
    "timeline": (),
}
CHOSEN: dict[str, Any] = {
    **NOTHING,
    "audience": 300,
    "verdicts": {"engaged": 60, "delivered": 240},
    "by_platform": {},
    "by_variant": {},
    "is_chosen_by_service": True,
}
COMPARED = compared_shares("engaged", [("red", 150, 500), ("blue", 50, 500)])


def as_html(figures: LaunchStats, comparisons: Sequence[Comparison] = ()) -> str:
    return report.as_html(describe_launch(figures, comparisons))


def write_html(figures: LaunchStats, path: Path, comparisons: Sequence[Comparison] = ()) -> Path:
    return report.write_html(describe_launch(figures, comparisons), path)


class Page(HTMLParser):
    """The content of a page: its tags, its words, and its IDs."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._is_hidden = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_hidden = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._is_hidden = False

    def handle_data(self, data: str) -> None:
        if not self._is_hidden:
            self.words += f" {data}"

    @property
    def text(self) -> str:
        return " ".join(self.words.split())

    def having(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name))]


def cases() -> dict[str, LaunchStats]:
    return {
        "all of it": WHOLE,
        "no groups": replace(WHOLE, by_platform={}, by_variant={}),
        "thirty platforms": replace(WHOLE, by_platform={f"platform {n}": {"missing": n} for n in range(30)}),
        "nobody": replace(WHOLE, **NOTHING, by_platform={}, by_variant={}),
        "a group of nobody": replace(WHOLE, by_platform={"chrome": {}}),
        "chosen by the service": replace(WHOLE, **CHOSEN),
        "nobody heard of": replace(WHOLE, **{**CHOSEN, "audience": 0, "verdicts": {}}),
        "wrong sums": replace(WHOLE, rows=5),
        "one post-back": replace(WHOLE, timeline=((START, 1, 0),)),
        "large": replace(WHOLE, verdicts=dict.fromkeys(Verdict, 90_000_000), audience=540_000_000),
    }


@pytest.mark.parametrize("case", cases())
def test_a_page_of_every_launch_is_sound(case: str) -> None:
    html = as_html(cases()[case], [COMPARED])
    page = Page(html)
    ids = page.having("id")
    assert len(ids) == len(set(ids))
    for name in ("aria-labelledby", "aria-describedby"):
        assert set(page.having(name)) <= set(ids)
    for reference in re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", html):
        assert "".join(reference) in ids
    for svg in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        places = [
            float(each) for each in re.findall(r'"(-?[\d.]+)%"', ET.tostring(ET.fromstring(svg)).decode())
        ]
        assert all(-0.01 <= place <= 100.01 for place in places)
    assert [tag for tag, _ in page.tags].count("h1") == 1


def test_a_page_asks_for_nothing_from_anywhere() -> None:
    html = as_html(WHOLE, [COMPARED])
    page = Page(html)
    assert {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "a", "base"} == set()
    assert [each for each in page.having("href") + page.having("src") if not each.startswith("#")] == []
    assert re.findall(r"@import|url\((?!#)", html) == []
    assert re.findall(r"https?://[^\s\"]+", html) == []
    assert "default-src 'none'; style-src 'unsafe-inline'" in page.having("content")


def test_what_a_launch_says_is_text_and_never_markup() -> None:
    evil = "<script>alert(1)</script>\"'>"
    html = as_html(
        replace(
            WHOLE,
            campaign=evil,
            period=evil,
            dropped={evil: 30},
            by_platform={evil: {"engaged": 1}},
            by_variant={evil: {"engaged": 1}},
        ),
        [compared_shares(evil, [(evil, 1, 30), ("b", 2, 30)])],
    )
    page = Page(html)
    assert "script" not in {tag for tag, _ in page.tags}
    assert evil in page.words


def test_a_page_and_a_picture_for_others_have_the_title_and_the_period_in_words(tmp_path: Path) -> None:
    figures = replace(WHOLE, period="2026-03-01T09:00:00Z/2026-03-08T09:00:00Z/north")
    text = Page(report.as_html(describe_launch(figures, title="Lapsed buyers"))).text
    assert text.startswith(
        "Lapsed buyers, 1 Mar 2026 09:00 UTC to 8 Mar 2026 09:00 UTC north: report Lapsed buyers "
        "for the period 1 Mar 2026 09:00 UTC to 8 Mar 2026 09:00 UTC north "
        f"Launch {figures.launch_key} of lapsed_buyers, as of"
    )
    picture = report.as_picture(figures, tmp_path / "report.svg", "Lapsed buyers").read_text()
    for shown in ("<!-- Lapsed buyers -->", "<!-- 1 Mar 2026 09:00 UTC to 8 Mar 2026 09:00 UTC north "):
        assert shown in picture


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        (datetime(2026, 3, 2, tzinfo=UTC), "1 Mar 2026"),
        (datetime(2026, 3, 8, tzinfo=UTC), "1 Mar 2026 to 7 Mar 2026"),
        (datetime(2026, 3, 1, tzinfo=UTC), "1 Mar 2026"),
        (datetime(2026, 3, 1, 0, 0, 20, tzinfo=UTC), "1 Mar 2026 00:00 UTC"),
        (datetime(2026, 3, 1, 4, tzinfo=UTC), "1 Mar 2026 00:00 UTC to 1 Mar 2026 04:00 UTC"),
    ],
)
def test_a_span_of_time_is_as_short_as_it_can_be(end: datetime, shown: str) -> None:
    assert span_in_words(datetime(2026, 3, 1, tzinfo=UTC), end) == shown


def test_the_page_says_what_the_report_says() -> None:
    text = Page(as_html(WHOLE, [COMPARED])).text
    for said in (
        "Reached of the audience: at least 500 (50.0 %), at most 950 (95.0 %).",
        "200 unknowable: accepted, then silent where silence proves nothing (android 200).",
        "1 unexpected, 7 duplicate, 2 unreadable",
        "- 20 gave it back",
        "= 1,000 audience, in 4 segments",
        "= 1,000 100.0 % audience",
        COMPARED.differences[0].sentence,
        "The sums of this report add up",
    ):
        assert said in text


def test_a_page_of_sums_that_do_not_add_up_says_so_and_not_that_they_do() -> None:
    text = Page(as_html(replace(WHOLE, rows=1_033))).text
    assert "DOES NOT ADD UP: 3 rows neither kept nor dropped" in text
    assert "The sums of this report add up" not in text


@pytest.mark.parametrize("words", ["%", "missing", "unknowable", "not sent", "rows", "audience"])
def test_nothing_is_said_of_people_whom_nobody_knows(words: str) -> None:
    assert words in Page(as_html(WHOLE)).text
    assert words not in Page(as_html(replace(WHOLE, **CHOSEN))).text


def test_what_cannot_be_known_is_a_question_mark() -> None:
    red, blue = COMPARED.sides
    unknown = replace(COMPARED, sides=(replace(red, count=None, estimate=None, interval=None), blue))
    assert "red 500 ? ? ?" in Page(as_html(WHOLE, [unknown])).text


def test_the_tiles_show_each_verdict_with_share_count_and_parts() -> None:
    refused = replace(
        WHOLE,
        verdicts={**WHOLE.verdicts, "in_doubt": 0, "not_sent": 250},
        not_sent_because={"held out": 200, "refused": 50, "launch stopped": 0},
    )
    html = as_html(refused)
    tiles = [Page(each).text for each in re.findall(r"<li.*?</li>", html, flags=re.DOTALL)]
    assert tiles == [
        "engaged 20.0 % 200 opened or clicked",
        "delivered 30.0 % 300 arrived, no open reported",
        "missing 5.0 % 50 sent, but no arrival reported",
        "unknowable 20.0 % 200 sent, and silence proves nothing",
        "in doubt 0.0 % 0 not clear whether sent",
        "not sent 25.0 % 250 200 control group, 50 refused",
    ]
    assert "= 1,000 100.0 % audience" in Page(html).text
    chosen = re.findall(r"<li.*?</li>", as_html(replace(WHOLE, **CHOSEN)), flags=re.DOTALL)
    assert [Page(each).text.split()[:2] for each in chosen] == [["engaged", "60"], ["delivered", "240"]]


def test_the_tile_of_erased_people_has_a_colour() -> None:
    html = as_html(replace(WHOLE, audience=WHOLE.audience + 3, erased=3))
    used = set(re.findall(r'class="(b-[^"]*)"', html))
    assert {"b-less", "b-total"} < used
    assert all(f".{name} {{" in html for name in used)


def test_every_verdict_is_explained() -> None:
    assert set(MEANINGS) == set(Verdict)


def test_shares_say_of_whom_they_are_before_the_first_of_them() -> None:
    text = Page(as_html(WHOLE)).text
    assert text.index("Audience: 1,000 people. Each share is a share of the audience.") < text.index("20.0 %")


def test_shares_that_do_not_sum_to_a_hundred_say_so() -> None:
    thirds = replace(WHOLE, audience=3, rows=33, verdicts={"engaged": 1, "delivered": 1, "missing": 1})
    assert "they sum to 99.9 %" in Page(as_html(thirds)).text
    assert "they sum to" not in Page(as_html(WHOLE)).text


def test_a_word_is_explained_where_something_is_counted_under_it() -> None:
    seldom = replace(
        WHOLE, dropped={"null": 30, "duplicate": 0}, anomalies={}, not_sent_because={"held out": 1}
    )
    explained = Page(as_html(seldom)).text.partition("What the words mean")[2]
    assert "without an identifier Rows whose identifier is empty." in explained
    assert "control group Chosen by chance" in explained
    assert "duplicate" not in explained
    assert "duplicate Rows or post-backs" in Page(as_html(WHOLE)).text.partition("What the words mean")[2]


def test_bars_have_their_colours_from_classes_and_no_style_of_their_own() -> None:
    html = as_html(WHOLE, [COMPARED]).partition("</style>")[2]
    assert re.findall(r"#[0-9a-f]{6}\b|\sstyle=|\sfill=", html) == []
    assert set(re.findall(r'class="((?:b|on)-[\w-]+)', html)) <= set(
        re.findall(r"\.((?:b|on)-[\w-]+) {", css())
    )


def test_charts_say_their_numbers_to_those_who_do_not_see_them() -> None:
    page = Page(as_html(WHOLE, [COMPARED]))
    assert "200 20.0 % engaged + 300 30.0 % delivered" in page.text
    labels = " ".join(page.having("aria-label"))
    assert "engaged 100, delivered 300, missing 50, in doubt 250" in labels
    assert "deliveries: 2,565, from 2026-03-01 09:00 to 2026-03-01 09:29 UTC" in labels
    assert "opens and clicks: 870, from 2026-03-01 09:00" in labels
    assert COMPARED.differences[0].sentence in page.text


def test_each_bar_of_a_sum_begins_where_the_last_one_ended() -> None:
    lines = [
        Line("", 10, "rows"),
        Line("-", 3, "null"),
        Line("=", 7, "audience"),
        Line("", 2, "a"),
        Line("+", 5, "b"),
    ]
    assert Sum(lines[:3]).bars() == [(0, 100), (70, 30), (0, 70)]
    assert [start for start, _ in Sum([*lines[3:], lines[2]]).bars()] == pytest.approx([0, 200 / 7, 0])


def test_a_chart_is_the_same_each_time() -> None:
    assert as_html(WHOLE, [COMPARED]) == as_html(WHOLE, [COMPARED])


def test_a_comparison_without_an_interval_has_no_chart() -> None:
    few = compared_shares("engaged", [("a", 1, 2), ("b", 1, 2)])
    assert 'class="ranges"' in as_html(WHOLE, [COMPARED])
    assert 'class="ranges"' not in as_html(WHOLE, [few])
    assert "too few to tell" in Page(as_html(WHOLE, [few])).text


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.html"
    write_html(WHOLE, file)
    assert write_html(replace(WHOLE, campaign="another"), file) == file
    assert "<h1>another</h1>" in file.read_text()
    assert [each.name for each in file.parent.iterdir()] == ["report.html"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be written"):
        write_html(WHOLE, tmp_path / "file" / "report.html")


@pytest.mark.proof
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_a_window_and_follows_its_scheme(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    file = write_html(WHOLE, tmp_path / "report.html", [COMPARED])
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    window = context.new_page()
    asked: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    window.on("console", lambda message: asked.append(message.text))
    window.goto(file.as_uri())
    assert asked == [file.as_uri()]
    assert window.evaluate("document.documentElement.scrollWidth") <= width
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    cut = window.evaluate(
        "[...document.querySelectorAll('svg text')].filter(e => e.checkVisibility()).filter(t => { const a = "
        "t.getBoundingClientRect(), b = t.previousElementSibling.getBoundingClientRect(); return a.left < b.left - 2 "
        "|| a.right > b.right + 2 }).map(t => t.textContent)"
    )
    assert cut == []
    context.close()


def test_comparisons_are_values() -> None:
    assert isinstance(COMPARED, Comparison)
    assert COMPARED.to_json()["sides"][0]["interval"].keys() == {"low", "high"}
