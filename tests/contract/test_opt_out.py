"""Opting out at a real receiver, and templates that show each recipient's address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign
from sendoff.dispatch.request import ServiceConnection
from sendoff.ledger import Ledger
from sendoff.service import OptOut, OptOutSigner, PostBackSigner

from ..factories import KEY, LEASE, NOW, make_launch
from .receiving import *  # noqa: F403

ONE_CLICK = {"List-Unsubscribe": "One-Click"}
HTML = {"accept": "text/html"}


@pytest.fixture
def opt_outs(signer: PostBackSigner) -> OptOutSigner:
    return OptOutSigner.of(signer)


@pytest.fixture(autouse=True)
def nobody_opted_out(ledger: Ledger) -> Iterator[None]:
    yield
    with ledger._database.write() as db:
        db.exec_driver_sql("DELETE FROM suppressions")


def address(opt_outs: OptOutSigner, who: str = "7", scope: str = "account") -> str:
    return opt_outs.sign(OptOut(KEY, scope, "device_id", who))


def entries(ledger: Ledger, who: str = "7") -> list[tuple[str, str, str | None]]:
    found = ledger.suppressions.of_person("device_id", who)
    return [(each.scope, each.source, each.launch_key) for each in found]


def test_one_click_is_stored_before_it_is_answered(ledger: Ledger, opt_outs: OptOutSigner) -> None:
    for _ in range(2):
        answer = requests.post(address(opt_outs), data=ONE_CLICK, timeout=30)
        assert (answer.status_code, answer.content) == (200, b"")
        assert entries(ledger) == [("account", "opt-out", KEY)]


def test_a_form_with_parts_works_too(ledger: Ledger, opt_outs: OptOutSigner) -> None:
    parts = {"List-Unsubscribe": (None, "One-Click")}
    assert requests.post(address(opt_outs), files=parts, timeout=30).status_code == 200
    assert entries(ledger) == [("account", "opt-out", KEY)]


def test_following_the_link_changes_nothing(ledger: Ledger, opt_outs: OptOutSigner) -> None:
    link = address(opt_outs, "40000017", "topic:weekly-news")
    page = requests.get(link, timeout=30)  # curl and some browsers accept */*
    assert page.status_code == 200
    assert "no more messages about weekly news" in page.text
    assert "40000017" not in page.text
    assert page.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    checked = requests.head(link, headers=HTML, timeout=30)  # as programs do that check the links of a mail
    assert (checked.status_code, checked.content) == (200, b"")
    assert entries(ledger) == []


def test_the_button_of_the_page_opts_out_of_the_topic(ledger: Ledger, opt_outs: OptOutSigner) -> None:
    link = address(opt_outs, scope="topic:news")
    done = requests.post(link, data=ONE_CLICK, headers=HTML, timeout=30)
    assert "no more messages about news from this sender." in done.text
    assert entries(ledger) == [("topic:news", "opt-out", KEY)]


def test_the_second_button_stops_all_messages(ledger: Ledger, opt_outs: OptOutSigner) -> None:
    link = address(opt_outs, scope="topic:news")
    done = requests.post(link, data={**ONE_CLICK, "scope": "account"}, headers=HTML, timeout=30)
    assert "no more messages from this sender, except ones that you need" in done.text
    assert entries(ledger) == [("account", "opt-out", KEY), ("topic:news", "opt-out", KEY)]
    assert requests.post(link, data={**ONE_CLICK, "scope": "everything"}, timeout=30).status_code == 400


def test_opting_out_of_the_account_promises_no_end_of_receipts(opt_outs: OptOutSigner) -> None:
    page = requests.get(address(opt_outs), headers=HTML, timeout=30)
    assert "no more messages from this sender, except ones that you need, such as receipts." in page.text


@pytest.mark.parametrize(
    ("method", "body", "is_ours", "status"),
    [
        ("POST", {"other": "1"}, True, 400),
        ("POST", ONE_CLICK, False, 404),
        ("GET", None, False, 404),
        ("PUT", ONE_CLICK, True, 405),
        ("HEAD", None, False, 404),
        ("POST", {"List-Unsubscribe": "One-Click", "x": "y" * 5000}, True, 413),
    ],
)
def test_anything_else_is_refused_and_changes_nothing(
    ledger: Ledger,
    opt_outs: OptOutSigner,
    method: str,
    body: dict[str, str] | None,
    is_ours: bool,
    status: int,
) -> None:
    link = address(opt_outs) if is_ours else address(opt_outs)[:-8] + "AAAAAAAA"
    answer = requests.request(method, link, data=body, timeout=30)
    assert answer.status_code == status
    assert entries(ledger) == []


def test_each_recipient_of_a_template_gets_an_own_address_which_works(
    ledger: Ledger, connection: ServiceConnection, opt_outs: OptOutSigner
) -> None:
    campaign = Campaign.model_validate(
        {
            "title": "Spring",
            "topic": "news",
            "template": {"id": 7, "channels": ["email"], "unsubscribe_url": "unsubscribe_url"},
        }
    )
    launch = make_launch(ledger, integers([7, 8, 9]), campaign=campaign, size=2)
    claim = ledger.dispatches.claim(launch.launch_key, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    body = _body(connection, claim, campaign, launch)
    assert body == _body(connection, claim, campaign, launch)  # the same if it is sent again
    links = {who: own["unsubscribe_url"] for who, own in body["target_with_params"].items()}
    assert links.keys() == {"7", "8"}
    assert requests.post(links["8"], data=ONE_CLICK, timeout=30).status_code == 200
    assert entries(ledger, "8") == [("topic:news", "opt-out", launch.launch_key)]
    assert entries(ledger, "7") == []
    moment = datetime.now(UTC)
    scopes = campaign.suppression_scopes()
    assert list(ledger.suppressions.active("device_id", "integer", scopes, moment)) == [8]


def _body(connection: ServiceConnection, claim: Any, campaign: Campaign, launch: Any) -> dict[str, Any]:
    send = connection.build_request(claim, campaign, launch)
    return dict(json.loads(send.args[0]))  # type: ignore[attr-defined]
