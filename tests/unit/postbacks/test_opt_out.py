"""The page where recipients opt out, and what launches make of it, on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from sendoff.campaign import Campaign
from sendoff.ledger import Ledger
from sendoff.postbacks.group_commit import ReceiverCounts
from sendoff.postbacks.opt_out import OptOutEndpoint
from sendoff.postbacks.reading import BodyReader
from sendoff.service import OptOut, OptOutSigner

from ...factories import KEY, LEASE, NOW, make_launch
from ...waiting import PATIENCE

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


def ask(ledger: Ledger, opt_out: OptOut, form: str | None = None, **headers: str) -> Request:
    """Open the address of an opt-out, or post a form to it."""
    signer = OptOutSigner(URL, ["s" * 32])
    body = (form or "").encode()
    more = {"accept": "text/html", "content-length": str(len(body)), **headers}
    method = "GET" if form is None else "POST"
    request: Any = Request(signer.sign(opt_out).removeprefix(URL), body, method, more)
    endpoint = OptOutEndpoint(ledger, signer, ReceiverCounts(), BodyReader(PATIENCE), PATIENCE, lambda: NOW)
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
    assert ledger.launch_counts.opt_outs(launch) == 1
