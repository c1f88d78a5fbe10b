"""The page where a recipient opts out, in a real browser: by keyboard, on a phone, and in dark mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sendoff.ledger import Ledger
from sendoff.postbacks.opt_out_texts import ENGLISH, PageTexts
from sendoff.service import OptOut, OptOutSigner

from ..local_receiver import local_receiver
from .browser import FAINT_TEXT, SMALL_TARGETS, UNLABELLED_FIELDS, new_window, picture_folder

SECRET = "s" * 32
KEY = "0123456789abcdef" * 2
ARABIC: Any = {
    "question": "هل تريد إيقاف هذه الرسائل؟",
    "topic": "لن تصلك رسائل أخرى عن {topic}.",
    "button": "إيقاف",
    "account_offer": "يمكنك أيضا إيقاف جميع الرسائل.",
    "account_button": "إيقاف جميع الرسائل",
    "topics": {"weekly-news": "أخبار الأسبوع"},
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with closing(Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}")) as ledger:
        ledger.migrate()
        yield ledger


@pytest.fixture(scope="module")
def opt_outs(ledger: Ledger) -> Iterator[OptOutSigner]:
    texts = {**ENGLISH, "ar": PageTexts(**ARABIC)}
    with local_receiver(ledger.name, SECRET, texts) as address:
        yield OptOutSigner(address, [SECRET])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_one_press_opts_out(
    browser: Any, ledger: Ledger, opt_outs: OptOutSigner, tmp_path: Path, scheme: str, width: int
) -> None:
    who = f"{width}{len(scheme)}"
    window = new_window(browser, color_scheme=scheme, viewport={"width": width, "height": 700})
    window.goto(opt_outs.sign(OptOut(KEY, "topic:weekly-news", "device_id", who)))
    assert window.title() == "Stop these messages?"
    assert "about weekly news" in window.inner_text("main")
    assert ledger.suppressions.of_person("device_id", who) == []
    assert window.evaluate(FAINT_TEXT) == []
    assert window.evaluate(UNLABELLED_FIELDS) == []
    assert window.evaluate(SMALL_TARGETS) == []
    assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
    name = "opt-out" if scheme == "light" else "opt-out-dark"
    window.screenshot(path=(picture_folder(tmp_path) if width < 500 else tmp_path) / f"{name}.png")
    window.keyboard.press("Tab")
    window.keyboard.press("Enter")
    window.get_by_role("heading", name="Done.").wait_for()
    assert "may still arrive" in window.inner_text("main")
    (entry,) = ledger.suppressions.of_person("device_id", who)
    assert (entry.scope, entry.source, entry.launch_key) == ("topic:weekly-news", "opt-out", KEY)
    window.screenshot(path=tmp_path / f"done-{name}-{width}.png")
    assert window.complaints == []
    window.context.close()


def test_a_topic_of_one_long_word_fits_a_phone(browser: Any, opt_outs: OptOutSigner) -> None:
    window = new_window(browser, viewport={"width": 390, "height": 700})
    window.goto(opt_outs.sign(OptOut(KEY, f"topic:{'a' * 64}", "device_id", "9")))
    assert "a" * 64 in window.inner_text("main")
    assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
    window.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_is_in_the_language_of_the_browser_from_right_to_left(
    browser: Any, opt_outs: OptOutSigner, tmp_path: Path, scheme: str, width: int
) -> None:
    window = new_window(
        browser, locale="ar-EG", color_scheme=scheme, viewport={"width": width, "height": 700}
    )
    window.goto(opt_outs.sign(OptOut(KEY, "topic:weekly-news", "device_id", "9")))
    assert window.title() == ARABIC["question"]
    assert window.evaluate("document.documentElement.lang") == "ar"
    assert window.evaluate("getComputedStyle(document.querySelector('main')).direction") == "rtl"
    assert "أخبار الأسبوع" in window.inner_text("main")
    assert window.evaluate(FAINT_TEXT) == []
    assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
    window.screenshot(path=tmp_path / f"arabic-{scheme}-{width}.png")
    assert window.complaints == []
    window.context.close()


def test_the_second_button_stops_all_messages_without_a_script(
    browser: Any, ledger: Ledger, opt_outs: OptOutSigner
) -> None:
    window = new_window(browser, java_script_enabled=False)
    window.goto(opt_outs.sign(OptOut(KEY, "topic:news", "device_id", "7")))
    window.get_by_role("button", name="Stop all messages").click()
    window.get_by_role("heading", name="Done.").wait_for()
    assert "no more messages from this sender, except ones that you need" in window.inner_text("main")
    assert {each.scope for each in ledger.suppressions.of_person("device_id", "7")} == {
        "account",
        "topic:news",
    }
    window.context.close()


def test_a_link_that_was_cut_says_what_to_do(browser: Any, opt_outs: OptOutSigner) -> None:
    window = new_window(browser)
    address = opt_outs.sign(OptOut(KEY, "account", "device_id", "5"))
    window.goto(address[:-10])
    assert window.title() == "This link does not work."
    assert "Copy the whole link" in window.inner_text("main")
    window.context.close()
