"""The page where recipients opt out, and what launches make of it, on both databases."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sendoff.campaign import Campaign
from sendoff.dispatch import pause_all
from sendoff.errors import GateError, SettingsError
from sendoff.ledger import Ledger
from sendoff.postbacks.group_commit import ReceiverCounts
from sendoff.postbacks.opt_out import OptOutEndpoint
from sendoff.postbacks.opt_out_texts import ENGLISH, PageTexts, Texts, choose_language, direction, page_texts
from sendoff.postbacks.reading import BodyReader
from sendoff.postbacks.receiver import app_of
from sendoff.postbacks.server import serve
from sendoff.service import OptOut, OptOutSigner
from sendoff.settings import load_settings

from ...factories import KEY, LEASE, NOW, make_launch
from ...waiting import PATIENCE

DOCS = Path(__file__).resolve().parents[3] / "docs"
URL = "https://events.example.com"
ONE_CLICK = "List-Unsubscribe=One-Click"
ALL = f"{ONE_CLICK}&scope=account"
EMAIL = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
LEAVING, STAYING = 7, 8


@dataclass
class Request:
    """One request as Granian passes it, scope and protocol in one, with its answer."""

    path: str
    body: bytes
    method: str
    headers: dict[str, str]
    status: int = 0
    answer: dict[str, str] = field(default_factory=dict)
    page: str = ""

    async def __call__(self) -> bytes:
        return self.body

    def response_str(self, status: int, headers: list[tuple[str, str]], page: str) -> None:
        self.status, self.answer, self.page = status, dict(headers), page


def ask(
    ledger: Ledger, opt_out: OptOut, form: str | None = None, texts: Texts = ENGLISH, **headers: str
) -> Request:
    """Open the address of an opt-out, or post a form to it."""
    signer = OptOutSigner(URL, ["s" * 32])
    body = (form or "").encode()
    more = {"accept": "text/html", "content-length": str(len(body)), **headers}
    method = "GET" if form is None else "POST"
    request: Any = Request(signer.sign(opt_out).removeprefix(URL), body, method, more)
    bodies = BodyReader(PATIENCE)
    endpoint = OptOutEndpoint(ledger, signer, ReceiverCounts(), bodies, PATIENCE, lambda: NOW, texts)
    asyncio.run(endpoint(request, request))
    assert isinstance(request, Request)
    return request


def of(scope: str, who: int = LEAVING) -> OptOut:
    return OptOut(KEY, scope, "device_id", str(who))


def scopes(ledger: Ledger, who: int = LEAVING) -> list[str]:
    return [each.scope for each in ledger.suppressions.of_person("device_id", str(who))]


def sent_to(ledger: Ledger, name: str, **fields: Any) -> list[int]:
    """Return the recipients of a launch's only request."""
    campaign = Campaign.model_validate({"title": "Spring", "channels": {"email": EMAIL}, **fields})
    launch = make_launch(ledger, [LEAVING, STAYING], campaign=campaign, name=name)
    claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    assert claim.content.identifiers is not None
    return [int(each) for each in claim.content.identifiers]


@pytest.mark.parametrize(
    ("form", "entries", "other_topic", "no_topic"),
    [
        (ONE_CLICK, ["topic:news"], [LEAVING, STAYING], [LEAVING, STAYING]),
        (ALL, ["account", "topic:news"], [STAYING], [STAYING]),
    ],
)
def test_an_opt_out_of_a_topic_stops_other_messages_only_if_it_says_so(
    ledger: Ledger, form: str, entries: list[str], other_topic: list[int], no_topic: list[int]
) -> None:
    assert ask(ledger, of("topic:news"), form).status == 200
    assert scopes(ledger) == entries
    assert {each.source for each in ledger.suppressions.of_person("device_id", "7")} == {"opt-out"}
    assert sent_to(ledger, "news", topic="news") == [STAYING]
    assert sent_to(ledger, "order news", topic="news", transactional="order confirmation") == [STAYING]
    assert sent_to(ledger, "sale", topic="sale") == other_topic
    assert sent_to(ledger, "spring") == no_topic
    assert sent_to(ledger, "order", transactional="order confirmation") == [LEAVING, STAYING]


@pytest.mark.parametrize(
    "more",
    [
        "scope=everything",
        "scope=topic:sale",
        "scope=",
        "scope=account&scope=account",
        "scope=ACCOUNT",
        "scope=%00",
    ],
)
def test_a_form_with_a_scope_that_no_button_has_is_refused_and_changes_nothing(
    ledger: Ledger, more: str
) -> None:
    answer = ask(ledger, of("topic:news"), f"{ONE_CLICK}&{more}")
    assert (answer.status, scopes(ledger)) == (400, [])
    assert "everything" not in answer.page
    assert "sale" not in answer.page


def test_only_the_form_of_one_click_can_stop_all_messages(ledger: Ledger) -> None:
    assert ask(ledger, of("topic:news"), "scope=account").status == 400
    assert scopes(ledger) == []
    assert ask(ledger, of("topic:news"), f"{ONE_CLICK}&other=account&x=scope").status == 200
    assert scopes(ledger) == ["topic:news"]


def test_an_address_of_all_messages_has_one_button(ledger: Ledger) -> None:
    assert ask(ledger, of("account")).page.count("<button") == 1
    assert ask(ledger, of("topic:news")).page.count("<button") == 2
    assert "messages about news" in ask(ledger, of("topic:news"), ONE_CLICK).page
    assert "no more messages from this sender, except" in ask(ledger, of("topic:news"), ALL).page
    assert ask(ledger, of("account", STAYING), ALL).status == 200
    assert scopes(ledger, STAYING) == ["account"]


def test_a_person_who_stops_all_messages_counts_once_for_the_launch(ledger: Ledger) -> None:
    launch = make_launch(ledger, [LEAVING, STAYING])
    opt_out = OptOut(launch.launch_key, "topic:news", "device_id", str(LEAVING))
    for form in (ONE_CLICK, ALL):
        assert ask(ledger, opt_out, form).status == 200
    assert ledger.launch_counts.opt_outs([launch.launch_key]) == {launch.launch_key: 1}


GERMAN = """
de:
  question: <b>Abbestellen?</b>
  topic: Nichts mehr über {topic}.
  topics: {news: "Neues & Altes"}
ar: {question: إيقاف؟}
"""


def texts_of(text: str) -> Texts:
    return page_texts(load_settings(["opt_out_texts"], opt_out_texts=text))


def test_the_page_is_in_the_language_of_the_browser(ledger: Ledger) -> None:
    texts = texts_of(GERMAN)
    page = ask(ledger, of("topic:news"), texts=texts, **{"accept-language": "de-AT,de;q=0.9,en;q=0.8"})
    assert page.answer["content-language"] == "de"
    assert "accept-language" in page.answer["vary"]
    assert '<html lang="de" dir="ltr">' in page.page
    assert "<h1>&lt;b&gt;Abbestellen?&lt;/b&gt;</h1><p>Nichts mehr über Neues &amp; Altes.</p>" in page.page
    assert "<button>Stop these messages</button>" in page.page
    page = ask(ledger, of("account"), texts=texts, **{"accept-language": "ar"})
    assert '<html lang="ar" dir="rtl">' in page.page
    page = ask(ledger, of("topic:news"), texts=texts, **{"accept-language": '"><script>alert(1)</script>'})
    assert page.answer["content-language"] == "en"
    assert '<html lang="en" dir="ltr">' in page.page
    assert "script" not in page.page
    done = ask(ledger, of("topic:news"), ALL, texts=texts, **{"accept-language": "de"})
    assert (done.status, scopes(ledger)) == (200, ["account", "topic:news"])


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"),
        ("*", "en"),
        ("de", "de"),
        ("DE-at", "de"),
        ("de-AT-1996, en", "de"),
        ("fr, de;q=0.5", "de"),
        ("en;q=0.5, de;q=0.7", "de"),
        ("de;q=0.5, en;q=0.5", "de"),
        ("de;q=0.4,en-GB;q=0.8", "en"),
        ("de ; q=0.001", "de"),
        ("de;q=0", "en"),
        ("de-AT, de;q=0", "en"),
        ("*, de;q=0.1", "de"),
        ("pt", "pt-br"),
        ("pt-PT,pt;q=0.9,en;q=0.8", "pt-br"),
        ("pt-BR", "pt-br"),
        ("d, d-e, de_AT, ;q=1, de;q=2, de;q=high, \0", "en"),
        (f"{'xx,' * 20}de", "en"),
        (f"de{'-a' * 9}", "en"),
    ],
)
def test_the_language_is_the_one_that_a_browser_likes_most(accepted: str, language: str) -> None:
    assert choose_language(accepted, ["en", "pt-br", "de"]) == language


def test_english_can_be_replaced_and_comes_with_regions() -> None:
    texts = texts_of("en-GB: {done: Sorted.}\nen: {done: OK.}")
    assert [(tag, each.done) for tag, each in texts.items()] == [("en", "OK."), ("en-gb", "Sorted.")]
    chosen = [choose_language(each, texts) for each in ("en", "en-US", "en-GB", "fr")]
    assert chosen == ["en", "en", "en-gb", "en"]


@pytest.mark.parametrize("language", ["ar", "ar-EG", "he", "fa", "ur", "uz-arab"])
def test_languages_from_right_to_left(language: str) -> None:
    assert direction(language.lower()) == "rtl"
    assert direction("es-ar") == direction("ku") == "ltr"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "de:\n  qestion: x",
            ":2: de.qestion: 'qestion' is not a field (did you mean 'question'?). Use account, ",
        ),
        ("de:\n  done: 5", ":2: de.done: found 5. Use a text"),
        ("de:\n  done:", ":2: de.done: found nothing. Use a text"),
        ("de:\n  done: ''", ":2: de.done: found ''. Use a text that is not empty"),
        ("de:\n  topics: {news: 5}", ":2: de.topics.news: found 5. Use a text"),
        (
            "de:\n  topic: '{name}'",
            ":2: de.topic: found { in a text. Use it only for {topic}, and that only in",
        ),
        (
            "de:\n  done: '{topic}'",
            ":2: de.done: found { in a text. Use it only for {topic}, and that only in",
        ),
        (
            "en: {}\nde_AT: {}",
            ":2: de_AT: found 'de_AT'. Use a language as browsers name it, such as de or pt-BR",
        ),
        ("pt-BR: {}\npt-br: {}", ":1: found a language twice, in upper and in lower case. Use it once"),
        ("de: {}\nde: {}", ":2: de: found 'de' twice, first on line 1. Use it once"),
        (
            "texts.yaml",
            ":1: found 'texts.yaml'. Use texts by language. SENDOFF_OPT_OUT_TEXTS_FILE names a file",
        ),
        ("[de]", ":1: found a list. Use texts by language"),
        ("de: {", ":1: not YAML: "),
    ],
)
def test_mistakes_in_the_texts_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        texts_of(text)
    assert str(caught.value).startswith(f"SENDOFF_OPT_OUT_TEXTS{error}")
    file = tmp_path / "texts.yaml"
    file.write_text(text)
    monkeypatch.setenv("SENDOFF_OPT_OUT_TEXTS_FILE", str(file))
    with pytest.raises(SettingsError) as caught:
        page_texts(load_settings(["opt_out_texts"]))
    assert str(caught.value).startswith(f"{file}{error}")


def test_a_receiver_serves_the_texts_of_its_settings_and_does_not_start_with_mistakes(tmp_path: Path) -> None:
    given = {
        "ledger_url": f"sqlite:///{tmp_path}/ledger.db",
        "public_url": URL,
        "post_back_secrets": "s" * 32,
    }
    app = app_of(load_settings(opt_out_texts=GERMAN, **given))
    assert app._opt_outs.texts.keys() == {"en", "de", "ar"}
    with pytest.raises(SettingsError, match="SENDOFF_OPT_OUT_TEXTS:1: de: found 5"):
        serve("127.0.0.1", 0, load_settings(opt_out_texts="de: 5", **given))


def test_a_receiver_of_a_moved_ledger_stores_no_opt_out_and_does_not_start_again(
    ledger: Ledger, tmp_path: Path
) -> None:
    pause_all(ledger, "ann", "moving")
    with closing(Ledger(f"sqlite:///{tmp_path / 'new.db'}")) as new:
        new.copy_from(ledger)
    assert ask(ledger, of("account"), ONE_CLICK).status == 503
    assert scopes(ledger) == []
    url = ledger._database._engine.url.render_as_string(hide_password=False)
    with pytest.raises(GateError, match=r"this ledger was moved to .*new\.db"):
        serve("127.0.0.1", 0, load_settings(ledger_url=url, public_url=URL, post_back_secrets="s" * 32))


def test_the_reference_has_every_text_of_the_page() -> None:
    page = (DOCS / "reference/receiver.md").read_text()
    for name, each in PageTexts.model_fields.items():
        assert f"| `{name}` | {each.default or 'none'} |" in page
    texts = texts_of(page.partition("```yaml\n")[2].partition("```")[0])
    assert texts["fr"].model_fields_set == PageTexts.model_fields.keys()
    assert texts["pt-br"].done == "Done."
