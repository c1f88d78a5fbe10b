"""The endpoint where recipients opt out: a page to confirm, and the request that records it.

A mail program sends the request by itself when its user presses *Unsubscribe* (RFC 8058). A person who follows the
link gets a page with a button, so that programs that only follow links change nothing. If the address opts out of a
topic, a second button opts out of all messages of the account too. An opt-out is answered with 200 only once it is in
the ledger. Opt-outs have their own few threads, so that they do not delay post-backs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from urllib.parse import parse_qsl

from granian.rsgi import HTTPProtocol, Scope

from sendoff.audience.identifiers import as_member
from sendoff.campaign import ACCOUNT
from sendoff.errors import GateError, LedgerUnavailableError, SettingsError, UnusableLedgerError
from sendoff.ledger import OPT_OUT, Ledger, SuppressionChange
from sendoff.postbacks.group_commit import ReceiverCounts
from sendoff.postbacks.opt_out_texts import ENGLISH, PageTexts, Texts, choose_language, direction
from sendoff.postbacks.reading import BodyError, BodyReader
from sendoff.service import OPT_OUT_PATH, OptOut, OptOutSigner
from sendoff.telemetry import metrics

_log = logging.getLogger(__name__)

NOT_ASKED = "Opt-outs are stored without asking who was erased: %s"
"""The log's line about an erasure secret that is missing or wrong."""

_THREADS = 4
_MOST_WAITING = 200
_MAX_BODY = 4_096
_WORDS = (b"List-Unsubscribe", b"One-Click")  # in a form of either encoding (RFC 8058, section 3.2)


@dataclass(slots=True)
class OptOutEndpoint:
    """Serves the addresses of opt-outs: 200 once one is stored; 404 if it is none of them, or no one can have it.

    GET returns a page to confirm, and changes nothing. HEAD returns its status, for programs that check links. A POST
    without ``List-Unsubscribe=One-Click``, or with a ``scope`` other than ``account``, gets 400. A 503 with Retry-After
    means that it may be sent again.
    """

    ledger: Ledger
    signer: OptOutSigner
    counts: ReceiverCounts
    bodies: BodyReader
    answer_timeout: float
    clock: Callable[[], datetime]
    texts: Texts = field(default_factory=lambda: ENGLISH)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "opt-out"))
    _waiting: int = 0
    _problem: str | None = None  # why the newest opt-out was not stored, or not checked

    async def __call__(self, scope: Scope, proto: HTTPProtocol) -> None:
        """Serve one HTTP request."""
        language = choose_language(scope.headers.get("accept-language", ""), self.texts)
        status, content = await self._answer(scope, proto, self.texts[language])
        if status != 200 and scope.method not in ("GET", "HEAD"):  # no one opts out by opening an address
            self.counts.opt_outs_refused += 1
            metrics.refused_post_back(status)
        # A link is followed by a browser, but mail programs also post by themselves, and show nothing.
        wants_page = scope.method == "GET" or "text/html" in scope.headers.get("accept", "")
        body = _page(language, *content) if wants_page and scope.method != "HEAD" else ""
        headers = [*_HEADERS, ("content-language", language), *_MORE.get(status, ())]
        proto.response_str(status, headers, body)

    async def _answer(
        self, scope: Scope, proto: HTTPProtocol, texts: PageTexts
    ) -> tuple[int, tuple[str, ...]]:
        """Return the status, and the content of the page: its title, its text and its form."""
        if scope.method not in ("GET", "HEAD", "POST"):
            return 405, (texts.failed, texts.open_again)
        opt_out = self.signer.read(scope.path)
        if opt_out is None or as_member("string", opt_out.identifier) is None:
            return 404, (texts.wrong_link, texts.copy_link)
        if scope.method != "POST":
            return 200, (texts.question, texts.effect(opt_out.scope), _form(opt_out.scope, texts))
        try:
            body = await self.bodies.read(scope, proto, _MAX_BODY)
        except BodyError as error:
            return error.status, (texts.failed, texts.open_again)
        scopes = _scopes(opt_out, body)
        if not scopes:
            return 400, (texts.failed, texts.open_again)
        if not await self._store(opt_out, scopes):
            return 503, (texts.failed, texts.try_later)
        self.counts.opted_out += 1
        return 200, (texts.done, f"{texts.effect(scopes[-1])} {texts.on_its_way}")

    async def _store(self, opt_out: OptOut, scopes: Sequence[str]) -> bool:
        """Store an opt-out, and return whether that succeeded in time."""
        if self._waiting >= _MOST_WAITING:
            return False
        self._waiting += 1
        storing = asyncio.get_running_loop().run_in_executor(self._threads, self._add, opt_out, scopes)
        storing.add_done_callback(self._end)
        try:
            return await asyncio.wait_for(asyncio.shield(storing), self.answer_timeout)
        except TimeoutError:
            return False

    def _end(self, _: object) -> None:
        self._waiting -= 1

    def _add(self, opt_out: OptOut, scopes: Sequence[str]) -> bool:
        suppressions, who, now, problem = self.ledger.suppressions, [opt_out.identifier], self.clock(), None
        try:
            for scope in scopes:
                new = SuppressionChange(
                    scope,
                    opt_out.identified_by,
                    OPT_OUT,
                    author="recipient",
                    launch_key=opt_out.launch_key,
                )
                try:
                    suppressions.add(new, who, now)
                except SettingsError as error:  # an opt-out counts more than an identifier that was erased
                    problem = NOT_ASKED % error
                    suppressions.add(new, who, now, may_be_erased=True)
        except (GateError, LedgerUnavailableError, UnusableLedgerError) as error:
            self._note(f"An opt-out was not stored: {error}")
            return False
        except Exception as error:  # its text may quote the identifier
            self._note(f"An opt-out was not stored: {type(error).__name__}")
            return False
        self._note(problem)
        return True

    def _note(self, problem: str | None) -> None:
        """Log a problem once while it lasts, because each opt-out of an outage has the same one."""
        if problem is not None and problem != self._problem:
            _log.error("%s", problem)
        elif problem is None and self._problem is not None:
            _log.info("Opt-outs are stored again")
        self._problem = problem


def is_opt_out(path: str) -> bool:
    """Check whether a request's path is the address of an opt-out."""
    return OPT_OUT_PATH in path


def _scopes(opt_out: OptOut, body: bytes) -> list[str]:
    """Return the scopes that a form opts out of: the one of the address first. Return none for another form.

    The topic stays one of them, because a transactional campaign on it does not ask for ``account``.
    """
    fields = parse_qsl(body.decode(errors="replace"), keep_blank_values=True)
    wider = [value for name, value in fields if name == "scope"]
    if not all(word in body for word in _WORDS) or wider not in ([], [ACCOUNT]):
        return []
    return [opt_out.scope, *wider]


_STYLE = (
    ":root{color-scheme:light dark}body{font:18px/1.5 system-ui,sans-serif;margin:0;display:grid;"
    "min-height:100vh;place-items:center;background:Canvas;color:CanvasText;overflow-wrap:anywhere}"
    "main{max-width:26rem;padding:1.5rem}h1{font-size:1.5rem;margin:0 0 .5rem}"
    "button{font:inherit;padding:.7rem 1.2rem;border-radius:.4rem;border:1px solid;cursor:pointer;margin-top:.5rem}"
    "form p{margin:2rem 0 .5rem}"
)


def _form(scope: str, texts: PageTexts) -> str:
    offer, button = escape(texts.account_offer), escape(texts.account_button)
    wider = f'<p>{offer}</p><button name="scope" value="{ACCOUNT}">{button}</button>'
    return (
        '<form method="post"><input type="hidden" name="List-Unsubscribe" value="One-Click">'
        f"<button>{escape(texts.button)}</button>{wider if scope != ACCOUNT else ''}</form>"
    )


def _page(language: str, title: str, text: str, form: str = "") -> str:
    return (
        f'<!doctype html><html lang="{language}" dir="{direction(language)}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="robots" content="noindex"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><main><h1>{escape(title)}</h1><p>{escape(text)}</p>{form}</main></body></html>"
    )


_HEADERS = [
    ("content-type", "text/html; charset=utf-8"),
    ("cache-control", "no-store"),
    ("vary", "accept, accept-language"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
]
_CLOSE = ("connection", "close")  # the rest of a body is not read
_MORE = {
    400: [_CLOSE],
    405: [("allow", "GET, HEAD, POST"), _CLOSE],
    408: [_CLOSE],
    413: [_CLOSE],
    503: [("retry-after", "30")],
}
