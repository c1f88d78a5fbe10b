"""Sendoff's pages in Airflow's API server, with its own tokens: who may see, who may act, and how."""

from __future__ import annotations

import asyncio
import csv
import html
import inspect
import io
import json
import math
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from html import unescape
from pathlib import Path
from threading import Event
from typing import Any, ClassVar
from urllib.parse import quote
from zoneinfo import ZoneInfo

import httpx
import pytest
import sqlalchemy as sa
from airflow.api_fastapi.app import _AuthManagerState, create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.team import Team
from airflow.models.team import dag_bundle_team_association_table as bundles_of_teams
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from starlette.routing import Mount, Route

import sendoff.launch.build_preview
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Period, Variation, campaign_from, launch_key, load_journey
from sendoff.campaign.gates import Gates
from sendoff.comparison.statistics import compared_shares
from sendoff.dispatch.control import pause, pause_all, reject, release, resolve, resume, stop
from sendoff.figures import CONTROL_GROUP
from sendoff.launch import prepare_launch
from sendoff.ledger import Decision, Ledger, NotLaunched, Selection, SuppressionChange
from sendoff.ledger.storage.schema import dispatches, outcomes
from sendoff.ledger.storage.schema import launches as launches_table
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.erasure import continue_erasures, request_erasure
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.postbacks.retention import delete_recipients
from sendoff.report import Line, Sum, VerdictRows, store_outcome, stored_outcomes
from sendoff.report.wording import what_cannot_be_known
from sendoff.states import Accepted, Arm, NotProcessed, Refused, Resolution
from sendoff_airflow.plugin import SendoffPlugin
from sendoff_airflow.views.airflow_state import airflow_dags, airflow_db
from sendoff_airflow.views.app import create_app as create_pages
from sendoff_airflow.views.facts.launch_rows import rows_of
from sendoff_airflow.views.facts.next_launch import GATE_WORDS, next_launch_of
from sendoff_airflow.views.links import PREFIX
from sendoff_airflow.views.pages import launches, people
from sendoff_airflow.views.pages.launches import LAUNCHES_PER_PAGE
from sendoff_airflow.views.pages.waiting import DOUBTS_PER_LAUNCH, DOUBTS_PER_PAGE
from sendoff_airflow.views.web.templates import FILTERS

from ..factories import claimed, make_audience, make_launch, post_back, store
from ..launches import FIRST_DEVICE, NOW, PUSH, TIMED_OUT, answer, devices, fill, freeze, send
from ..waiting import PATIENCE

HERE = {"X-Sendoff-Request": "1", "Content-Type": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>&\"'"
SMALL = r'<small class="pale">.*?</small>'
"""The name of a campaign beside its title."""
WHY = {"reason": "because"}
ACCOUNT = "every campaign, except transactional ones"
NOBODY = "0" * 32
NEWEST = (NOW - timedelta(hours=6)).replace(minute=0, second=0)
"""The end of the newest period of a campaign of these tests. They run daily, at an hour that is never now."""
CAMPAIGN = f"""
title: Spring sale
message: {{title: Spring is here, text: Come and see}}
channels: {{android_push: }}
schedule: 0 {NEWEST.hour} * * *
schedule_time_zone: UTC
"""
DAGS = """
from pathlib import Path

from sendoff_airflow.dags import campaign_dags

globals().update(campaign_dags(Path(__file__).with_name("campaigns")))
"""
DAG_WITH_GROUP = """
from pathlib import Path

from airflow.sdk import DAG
from sendoff_airflow import campaign_group

with DAG("nightly", schedule=None):
    campaign_group(Path(__file__).with_name("campaigns") / "nightly", group_id="lapsed", name="nightly.lapsed")
"""


class ByDag(SimpleAuthManager):
    """Airflow's simple login, extended: users who are not admins see and control only some DAGs."""

    seen: frozenset[str] | None = None
    steered: frozenset[str] | None = None
    edits_every_dag = False
    questions: ClassVar[list[int]] = []  # the number of DAGs in each check

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: DagDetails | None = None
    ) -> bool:
        allowed = self.seen if method == "GET" else self.steered
        if allowed is not None and user.role != "ADMIN":
            if details is not None:
                may = details.id in allowed
            elif method == "PUT" and access_entity is None:
                may = self.edits_every_dag
            else:  # like FAB's: without a DAG, anyone with the right for any DAG
                may = bool(allowed)
            if not may:
                return False
        return super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details
        )

    def batch_is_authorized_dag(self, requests: Any, *, user: Any) -> bool:
        """Answer many checks at once, as managers do that call another server."""
        self.questions.append(len(requests))
        return super().batch_is_authorized_dag(requests, user=user)

    def filter_authorized_dag_ids(self, **asked: Any) -> set[str]:
        self.questions.append(len(asked["dag_ids"]))
        return super().filter_authorized_dag_ids(**asked)


@pytest.fixture(scope="module")
def server(airflow_database: None) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", f"{__name__}.ByDag")
        patch.setattr(_AuthManagerState, "instance", None)  # other modules have another one
        yield TestClient(create_app("core"), base_url="http://airflow.example", follow_redirects=False)


class Person:
    """A logged-in user with a token of Airflow."""

    def __init__(self, server: TestClient, name: str, role: str, *teams: str) -> None:
        user = SimpleAuthManagerUser(username=name, role=role, teams=list(teams))
        self._server = server
        self.login = {"Cookie": f"_token={get_auth_manager().generate_jwt(user)}"}

    def get(self, path: str) -> Any:
        return self._server.get(f"{PREFIX}/{path}", headers=self.login)

    def post(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        sent = {**(HERE if headers is None else headers), **self.login}
        return self._server.post(f"{PREFIX}/{path}", content=json.dumps(body or {}), headers=sent)

    def ask_airflow(self, method: str, path: str, body: Any) -> Any:
        """Send a request as the buttons do: with the cookie alone."""
        return self._server.request(method, f"/{path}", json=body, headers=self.login)


@pytest.fixture
def as_(server: TestClient, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Person]:
    monkeypatch.setattr(ByDag, "seen", None)
    monkeypatch.setattr(ByDag, "steered", None)
    monkeypatch.setattr(ByDag, "edits_every_dag", False)
    monkeypatch.setattr(
        people, "MAX_SECONDS", math.inf
    )  # otherwise a slow machine leaves launches to the next page
    return lambda name="vera", role="VIEWER", *teams: Person(server, name, role, *teams)


@pytest.fixture
def olga(as_: Callable[..., Person]) -> Person:
    return as_("olga", "OP")


@pytest.fixture
def vera(as_: Callable[..., Person]) -> Person:
    return as_("vera", "VIEWER")


def routes(method: str) -> list[str]:
    """Return the paths of all routes of the pages, with a value for each parameter."""
    found = []
    for route in create_pages().routes:
        assert isinstance(route, Route | Mount)
        if isinstance(route, Mount):
            assert route.path == "/static"
        elif method in (route.methods or ()):
            found.append(route.path)
    assert found
    return found


def filled(path: str, key: str = NOBODY) -> str:
    values = {"launch_key": key, "act": "pause", "how": "resend", "name": "spring_sale", "form": "csv"}
    if path.startswith("/launches/{launch_key}/{act}"):
        values["act"] = "stop"
    return path.format(**values).removeprefix("/")


def forms(text: str) -> list[str]:
    return re.findall(r"<form[^>]*data-act", text)


def words(text: str) -> str:
    """Return the words of a page or an answer as a reader sees them."""
    return re.sub(r"\s+([.,:])", r"\1", re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", text))))


def of_button(text: str) -> tuple[str, str, Any]:
    """Return a button's request to Airflow: method, path and body."""
    found = re.search(
        r'data-airflow-method="(\w+)" data-airflow-path="([^"]+)" data-airflow-body="([^"]+)"', text
    )
    assert found
    return found[1], html.unescape(found[2]), json.loads(html.unescape(found[3]))


def test_nobody_sees_anything_without_a_login_but_the_static_files(
    server: TestClient, ledger: Ledger
) -> None:
    keys = fill(ledger)
    mounted = [each.path for each in server.app.routes if isinstance(each, Mount)]  # type: ignore[attr-defined]
    assert PREFIX in mounted
    for method in ("GET", "POST"):
        for path in routes(method):
            for headers in ({}, HERE, {"Cookie": "_token=forged"}):
                answer = server.request(
                    method, f"{PREFIX}/{filled(path, keys['reported'])}", headers=headers, content="{"
                )
                assert answer.status_code in (401, 403), path
                assert (answer.status_code == 401) is ("Cookie" not in headers), path
                shown = answer.text.replace("campaigns/spring_sale", "").replace(
                    "campaigns%2Fspring_sale", ""
                )
                assert "spring_sale" not in shown
                assert "1,200" not in answer.text
    for name in ("sendoff.css", "sendoff.js", "theme.js", "sendoff.svg", "sendoff-dark.svg"):
        assert server.get(f"{PREFIX}/static/{name}").status_code == 200
    assert server.get(f"{PREFIX}/static/..%2faccess.py").status_code == 404


@pytest.mark.parametrize("headers", [{}, {"Cookie": "_token=expired"}])
def test_who_is_logged_out_gets_a_link_to_the_login_that_leads_back(
    server: TestClient, headers: dict[str, str]
) -> None:
    page = server.get(f"{PREFIX}/campaigns/spring_sale?page=2", headers=headers)
    assert "You are not logged in" in page.text
    [address] = re.findall(r'href="([^"]*login[^"]*)"', page.text)
    back = "/plugin/sendoff/sendoff/campaigns/spring_sale?page=2"
    assert html.unescape(address) == f"../../api/v2/auth/login?next={quote(back, safe='')}"
    led = server.get(f"/{html.unescape(address).removeprefix('../../')}")
    assert led.status_code == 307
    assert quote(back, safe="") in led.headers["Location"]
    part = server.post(f"{PREFIX}/launches/{NOBODY}/release", headers={**HERE, **headers}, content="{}")
    assert "Log in</a>" in part.text
    assert 'login?next=%2Fplugin%2Fsendoff%2Fsendoff%2F"' in part.text  # of a page, not of the form
    assert "<html" not in part.text


def test_an_address_without_a_page_says_so_in_words(vera: Person, ledger: Ledger) -> None:
    for path in ("nothing/at/all", f"launches/{NOBODY}", "campaigns/nothing", f"launches/{NOBODY}/preview"):
        answer = vera.get(path)
        assert answer.status_code == 404, path
        assert "<h1>This page does not exist</h1>" in answer.text
        assert "There is no such page, launch or campaign, or you may not see it." in answer.text
        assert f'href="{"../" * path.count("/") or "./"}campaigns"' in answer.text
        assert "Not Found" not in answer.text


def test_a_viewer_sees_every_page_and_decides_nothing(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    for path in routes("GET"):
        if path != "/dag" and not path.endswith("/email"):
            answer = vera.get(filled(path, keys["reported"]))
            assert answer.status_code == 200, path
            assert forms(answer.text) == [], path
    entry = {**WHY, "identified_by": "device_id", "scope": "account"}
    file = {**entry, "csv": "device_id\n7\n", "how": "add", "source": "crm"}
    bodies: dict[str, dict[str, Any]] = {
        "/launches/{launch_key}/doubts/{how}": {**WHY, "requests": [f"{NOBODY}:1"]},
        "/suppression/add": {**entry, "identifier": "7"},
        "/suppression/remove": {**entry, "identifier": "7"},
        "/suppression/check": file,
        "/suppression/export": {**WHY, "identified_by": "device_id", "identifier": "7"},
        "/suppression/erase": {**WHY, "identified_by": "device_id", "identifier": "7", "again": "7"},
        "/suppression/file": file,
    }
    for path in routes("POST"):
        if path.endswith("/person"):  # a question, answered like a page
            continue
        for key in (keys["approval"], NOBODY):
            answer = vera.post(filled(path, key), bodies.get(path, WHY))
            assert answer.status_code == (404 if key == NOBODY and "launches" in path else 403), path
    assert ledger.launches.get(keys["approval"]).state == "held"
    assert ledger.pauses.all() == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 403),  # a page of another site cannot send the header
        ({**HERE, "Origin": "http://elsewhere.example"}, 403),
        ({**HERE, "Origin": "http://airflow.example.elsewhere.example"}, 403),
        ({**HERE, "Origin": "http://["}, 403),  # not a URL
        ({**HERE, "Origin": "null"}, 403),  # a frame in a sandbox
        ({**HERE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**HERE, "Sec-Fetch-Site": "same-site"}, 403),
        ({**HERE, "Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**HERE, "Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({**HERE, "Content-Type": "text/plain"}, 415),
        ({"X-Sendoff-Request": "1"}, 415),
        ({**HERE, "Origin": "http://airflow.example", "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_what_does_not_come_from_our_own_pages_is_refused(
    olga: Person, ledger: Ledger, headers: dict[str, str], status: int
) -> None:
    key = freeze(ledger, "spring_sale")
    for path, body in (
        (f"launches/{key}/pause", WHY),
        ("pauses/pause", WHY),
        ("person", {"identifier": "1"}),
        (f"launches/{key}/doubts/resend", {**WHY, "requests": [f"{NOBODY}:1"]}),
        ("suppression/add", {**ADD, "identifier": "7"}),
        ("suppression/check", {**FILE, "csv": "device_id\n7\n"}),
    ):
        wanted = 409 if status == 200 and "doubts" in path else status
        assert olga.post(path, body, headers).status_code == wanted, path
    assert ledger.launches.get(key).state == ("paused" if status == 200 else "released")


def test_what_is_too_large_or_cannot_be_read_is_refused(olga: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale")
    assert olga.post(f"launches/{key}/pause", {"reason": "x" * 200_000}).status_code == 413
    for body in ({}, {"reason": "   "}, {"reason": "x" * 1_001}, {"reason": 7}, [], {**WHY, "more": 1}):
        answer = olga.post(f"launches/{key}/pause", body)
        assert answer.status_code == 422, body
    for since in (-1, 2**63, 10**4_000, "x"):
        assert olga.post(f"launches/{key}/pause", {**WHY, "since": since}).status_code == 422
    assert olga.post(f"launches/{key}/release", {**WHY, "since": 2**63 - 1}).status_code == 409
    assert "Enter a reason" in olga.post(f"launches/{key}/pause", {"reason": ""}).text
    assert olga.post(f"launches/{key}/destroy", WHY).status_code == 422
    assert olga.get("?page=0").status_code == olga.get("?page=99999999").status_code == 422
    assert ledger.launches.get(key).state == "released"


@pytest.mark.parametrize(
    "hidden", ["\0", "\x1b", "\r", "\x85", "\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\ud800"]
)
def test_what_would_be_kept_and_not_be_seen_is_refused(olga: Person, ledger: Ledger, hidden: str) -> None:
    key = freeze(ledger, "spring_sale")
    text = f"a{hidden}b"
    for path, body, words in (
        (f"launches/{key}/pause", {"reason": text}, "without invisible characters"),
        ("pauses/pause", {"reason": text}, "without invisible characters"),
        ("pauses/pause", {**WHY, "connection": text}, "cannot be read"),
        ("person", {"identifier": text}, "without invisible characters"),
        ("person", {"identifier": "1", "campaign": text}, "cannot be read"),
    ):
        answer = olga.post(path, body)
        assert answer.status_code == 422, path
        # A lone surrogate is not a character, so the body is not text.
        assert ("cannot be read" if hidden == "\ud800" else words) in answer.text, path
    assert ledger.pauses.all() == []
    if hidden < " ":
        part = f"a{quote(hidden)}b"
        for path in (f"launches/{part}", f"launches/{part}/preview", f"campaigns/{part}"):
            assert olga.get(path).status_code == 404, path
        assert olga.get(f"dag?dag_id=a&run_id={part}").status_code == 422
    assert olga.post(f"launches/{key}/pause", {"reason": "first\n\tsecond: \u00e9 \u0434"}).status_code == 200


def test_what_others_wrote_is_never_markup(olga: Person, ledger: Ledger) -> None:
    key = freeze(ledger, HOSTILE, state="held", connection=HOSTILE)
    send_to = freeze(ledger, "spring_sale", people=2)
    send(ledger, send_to, replace(TIMED_OUT, reason=HOSTILE))
    ledger.audit_log.record(Decision(key, "resend", HOSTILE, HOSTILE, NOW, {HOSTILE: HOSTILE}))
    pause_all(ledger, HOSTILE, HOSTILE, connection=HOSTILE)
    part = "%3Cimg%20src=x%20onerror=alert(1)%3E&%22'"
    paths = ["", "waiting", "campaigns", f"campaigns/{part}", f"launches/{key}", f"launches/{key}/preview"]
    paths += [f"launches/{send_to}", f"launches/{part}", f"?campaign={part}&state={part}", "person"]
    paths += [f"dag?dag_id={part}&run_id={part}"]
    for path in paths:
        answer = olga.get(path)
        assert answer.status_code in (200, 404), path
        assert "<img" not in answer.text, path
        assert " style=" not in answer.text, path
    assert "<img" not in olga.post(f"launches/{key}/release", {**WHY, "since": 99}).text
    assert "<img" not in olga.post("person", {"identifier": HOSTILE}).text


def test_somebody_sees_and_steers_the_campaigns_of_their_own_dags_alone(
    as_: Callable[..., Person], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(ledger)
    own, seen, hidden = keys["approval"], keys["running"], keys["failing"]
    monkeypatch.setattr(ByDag, "seen", frozenset({"big_news", "welcome_back"}))
    monkeypatch.setattr(ByDag, "steered", frozenset({"big_news"}))
    ruth = as_("ruth", "OP")
    for path in ("", "waiting", "campaigns", "person"):
        text = ruth.get(path).text
        assert own in text or "big_news" in text or path == "person"
        assert hidden not in text, path
        assert "daily_digest" not in text, path
        assert "spring_sale" not in text, path
    assert "requests in doubt" not in ruth.get("").text
    for path in (
        f"launches/{hidden}",
        f"launches/{hidden}/preview",
        "campaigns/daily_digest",
        "dag?dag_id=daily_digest",
    ):
        answer = ruth.get(path)
        assert answer.status_code == 404, path
        assert answer.text == ruth.get(path.replace(hidden, NOBODY)).text or "daily_digest" in path
    [doubt, *_] = ledger.doubts.open(hidden)
    settled = ruth.post(
        f"launches/{hidden}/doubts/write-off", {**WHY, "requests": [f"{doubt.dispatch_key}:1"]}
    )
    assert settled.status_code == 404
    # The key of another launch's request must not allow what that launch forbids.
    smuggled = ruth.post(f"launches/{own}/doubts/write-off", {**WHY, "requests": [f"{doubt.dispatch_key}:1"]})
    assert smuggled.status_code == 409
    assert len(ledger.doubts.open(hidden)) == 3
    assert ruth.post(f"launches/{seen}/pause", WHY).status_code == 403
    assert ruth.post("pauses/pause", WHY).status_code == 403
    assert forms(ruth.get(f"launches/{seen}").text) == []
    assert len(forms(ruth.get(f"launches/{own}").text)) == 2
    pause_all(ledger, "ann", "a storm", now=NOW)
    monkeypatch.setattr(ByDag, "seen", frozenset())
    for path in ("", "waiting"):
        assert "a storm" not in ruth.get(path).text
    monkeypatch.setattr(ByDag, "seen", frozenset({"big_news"}))
    assert "a storm" in ruth.get("waiting").text
    found = ruth.post("person", {"identifier": str(FIRST_DEVICE + 70)}).text
    assert own in found
    assert hidden not in found
    assert ruth.post(f"launches/{own}/release", WHY).status_code == 200


def test_a_preview_names_no_campaign_that_the_reader_may_not_see(
    as_: Callable[..., Person], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    for name in ("daily_digest", "spring_sale"):
        freeze(ledger, name, by_service=True, connection="sendoff_default", made=now)
    capped = Campaign.model_validate({**PUSH, "audience": {"cap": {"messages": 1, "days": 7}}})
    given = campaign_from(capped, "big_news", [{"device_id": number} for number in devices(3)])
    period = Period(now - timedelta(days=1), now)
    key = prepare_launch(ledger, given, period=period, warehouses=str, now=now).launch_key
    text = words(as_().get(f"launches/{key}/preview").text)
    for name in ("campaign daily_digest", "campaign spring_sale"):
        assert f"cap does not count {name}: the service chooses its recipients" in text
    ruth = as_("ruth", "OP")
    monkeypatch.setattr(ByDag, "seen", frozenset({"big_news", "spring_sale"}))
    text = words(ruth.get(f"launches/{key}/preview").text)
    assert "daily_digest" not in text
    for name in ("another campaign", "campaign spring_sale"):
        assert f"cap does not count {name}: the service chooses its recipients" in text


@pytest.mark.parametrize(
    ("before", "act", "after", "kind"),
    [
        ("held", "release", "released", "released"),
        ("held", "reject", "rejected", "rejected"),
        ("released", "pause", "paused", "paused"),
        ("paused", "resume", "released", "resumed"),
        ("released", "stop", "stopped", "stopped"),
    ],
)
def test_a_decision_is_kept_with_who_and_why(
    olga: Person, ledger: Ledger, before: str, act: str, after: str, kind: str
) -> None:
    key = freeze(ledger, "spring_sale", state=before)
    page = olga.get(f"launches/{key}").text
    assert f"launches/{key}/{act}" in page
    since = re.search(r'name="since" value="(\d+)"', page)
    assert since
    answer = olga.post(f"launches/{key}/{act}", {"reason": " it is time ", "since": since[1]})
    assert answer.status_code == 200
    assert "<html" not in answer.text
    assert ledger.launches.get(key).state == after
    decision = ledger.audit_log.of_launch(key)[-1]
    assert (decision.kind, decision.who, decision.why) == (kind, "olga", "it is time")
    again = olga.post(f"launches/{key}/{act}", {"reason": "again", "since": since[1]})
    assert again.status_code == 409
    assert after in again.text
    assert 'role="alert"' in again.text


def test_a_launch_that_was_held_anew_is_not_released_by_who_saw_it_before(
    olga: Person, ledger: Ledger
) -> None:
    key = freeze(ledger, "spring_sale", state="held")
    since = ledger.audit_log.newest(key)
    ledger.audit_log.decide(Decision(key, "approved", "ann", None, NOW))
    ledger.audit_log.decide(Decision(key, "held", "sendoff", "3 requests were refused", NOW))
    answer = olga.post(f"launches/{key}/release", {**WHY, "since": since})
    assert answer.status_code == 409
    assert "Nothing was changed" in answer.text
    assert ledger.launches.get(key).state == "held"
    assert (
        olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)}).status_code
        == 200
    )


def test_the_card_of_a_held_launch_shows_the_number_the_messages_and_who_is_left_out(
    vera: Person, ledger: Ledger
) -> None:
    key = freeze(
        ledger, "spring_sale", people=12_000, size=4_000, holdout=1_134, dropped={"cap": 66}, state="held"
    )
    text = vera.get("waiting").text
    places = [
        text.index(words)
        for words in (
            f'id="held-{key}"',
            f"<b>Send it to {10_866:,} devices?</b>",
            'class="mockup"',
            "Left out: 66 over the cap on messages, 1,134 control group.",
        )
    ]
    assert places == sorted(places)
    assert "12,000" not in text
    partly = freeze(ledger, "big_news", people=6)
    send(ledger, partly, Accepted(200, 1))
    ledger.audit_log.decide(Decision(partly, "held", "sendoff", "3 requests were refused", NOW))
    assert "<b>Send the rest to" in vera.get("waiting").text
    freeze(ledger, "welcome_back", by_service=True, state="held")
    assert "<b>Send it to the people chosen by the service?</b>" in vera.get("waiting").text


def test_a_launch_that_waits_for_approval_is_approved_and_says_what_that_does(
    olga: Person, ledger: Ledger
) -> None:
    android = {**PUSH, "channels": {"android_push": {}}}
    key = freeze(ledger, "for_android", people=12, holdout=2, state="held", definition=android)
    for path in ("waiting", f"launches/{key}"):
        text = olga.get(path).text
        assert re.search(r'<summary class="go">Approve…</summary>', text), path
        assert "Release" not in text, path
        said = (
            "goes to 10 devices at once. The campaign's channels reach 2 of them. This cannot be taken back."
        )
        assert f"Spring sale {said}" in words(text), path
        assert "failures held it" not in text, path
    assert "Send it to 10 devices? The campaign's channels reach 2 of them." in words(
        olga.get("waiting").text
    )
    everyone = freeze(ledger, "for_everyone", people=12, state="held")
    text = words(olga.get(f"launches/{everyone}").text)
    assert "Spring sale goes to 12 devices at once. This cannot be taken back." in text
    answer = olga.post(f"launches/{everyone}/release", {**WHY, "since": ledger.audit_log.newest(everyone)})
    assert "Approved: the launch may now be sent." in answer.text


BY_A_PERSON = {
    "share": 40,
    "after": {"length": 2, "unit": "hours"},
    "otherwise": "plain",
    "by": "person",
}


def test_a_person_chooses_the_variant_for_the_rest(olga: Person, ledger: Ledger) -> None:
    deciding = {
        **PUSH,
        "variants": {"plain": {"percent": 50}, "warm": {"percent": 50, "message": {"text": "It is warm"}}},
        "decide": BY_A_PERSON,
    }
    variations = [Variation(variant="plain"), Variation(variant="warm"), Variation()]
    key = freeze(ledger, "big_news", people=6, variations=variations, definition=deciding)
    said = "After 2 hours, the launch waits until a person chooses the variant for the rest."
    assert (
        f"40 % get the variants first. {said} Proposed is the one that is clearly ahead, or else plain."
        in words(olga.get(f"launches/{key}").text)
    )
    send(ledger, key, Accepted(200, 1), Accepted(200, 2))
    why = "a person must choose the variant for the rest. Proposed: warm, because warm is clearly ahead"
    ledger.audit_log.decide(Decision(key, "held", "sendoff", why, NOW, {"wave": 1, "winner": "warm"}))
    for path in ("waiting", f"launches/{key}"):
        text = olga.get(path).text
        assert '<summary class="go">Choose the variant for the rest…</summary>' in text, path
        assert '<option value="warm" selected>warm (proposed)</option>' in text, path
        assert why in text, path
    since = ledger.audit_log.newest(key)
    unnamed = olga.post(f"launches/{key}/release", {**WHY, "since": since})
    assert unnamed.status_code == 422
    assert "Choose the variant that the rest gets: plain or warm." in unnamed.text
    answer = olga.post(f"launches/{key}/release", {**WHY, "since": since, "variant": "plain"})
    assert "Chosen: the rest may now get plain." in answer.text
    assert ledger.launches.get(key).winner == "plain"
    assert "The rest gets plain." in words(olga.get(f"launches/{key}").text)
    again = olga.post(f"launches/{key}/release", {**WHY, "since": since, "variant": "warm"})
    assert again.status_code == 409
    assert ledger.launches.get(key).winner == "plain"


def test_the_page_of_a_launch_says_when_its_winner_is_decided_and_then_which(
    olga: Person, ledger: Ledger
) -> None:
    deciding = {
        **PUSH,
        "variants": {"plain": {"percent": 50}, "warm": {"percent": 50}},
        "decide": {"share": 40, "after": {"length": 2, "unit": "hours"}, "otherwise": "plain"},
    }
    variations, now = [Variation(variant="plain"), Variation(variant="warm"), Variation()], datetime.now(UTC)
    key = freeze(ledger, "big_news", people=6, variations=variations, definition=deciding, made=now)
    in_two_waves(ledger, key, 3)
    send(ledger, key, Accepted(200, 1), Accepted(200, 2), at=now)
    text = words(olga.get(f"launches/{key}").text)
    assert "After 2 hours, the rest gets the one that is clearly ahead, or else plain. It is decided" in text
    decision = Decision(key, "winner", "sendoff", "the rest gets warm: warm is clearly ahead", now)
    assert ledger.audit_log.decide(decision, wave=1, winner="warm")
    text = words(olga.get(f"launches/{key}").text)
    assert "The rest gets warm." in text
    assert "the rest gets warm: warm is clearly ahead" in text
    assert "It is decided" not in text


def in_two_waves(ledger: Ledger, key: str, *later: int) -> None:
    """Put some requests of a launch into its second wave."""
    of_later = (dispatches.c.launch_key == key, dispatches.c.segment.in_(later))
    with sa.create_engine(ledger.name).begin() as db:
        db.execute(sa.update(dispatches).values(wave=2).where(*of_later))


def test_resume_says_that_later_waves_come_later(olga: Person, ledger: Ledger) -> None:
    now = datetime.now(UTC)
    rollout = {"shares": [20], "wait": {"length": 2, "unit": "days"}}
    key = freeze(
        ledger, "spring_sale", people=20, definition={**PUSH, "gates": {"rollout": rollout}}, made=now
    )
    in_two_waves(ledger, key, *range(3, 11))
    pause(ledger, key, "ann", "wait", now=now)
    parts = "then goes out in parts, the {} at once, and the others later"
    said = words(olga.get(f"launches/{key}").text)
    assert f"No one has got it yet. It {parts.format('first')}, to 20 devices in all." in said
    resume(ledger, key, "ann", "go on", now=now)
    send(ledger, key, Accepted(200, 1), at=now)
    pause(ledger, key, "ann", "wait", now=now)
    said = words(olga.get(f"launches/{key}").text)
    assert f"18 devices have not got it yet. The rest {parts.format('next')}." in said
    resume(ledger, key, "ann", "go on", now=now)
    send(ledger, key, Accepted(200, 2), at=now)
    pause(ledger, key, "ann", "wait", now=now)
    said = words(olga.get(f"launches/{key}").text)
    in_two_days = FILTERS["moment"](now + timedelta(days=2))
    assert f"16 devices have not got it yet. The rest then goes out {in_two_days}, in " in said


@pytest.mark.airflow_database
def test_resume_and_release_say_that_a_person_chooses_first(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    deciding = {
        **PUSH,
        "variants": {"plain": {"percent": 50}, "warm": {"percent": 50}},
        "decide": BY_A_PERSON,
    }
    variations = [Variation(variant="plain"), Variation(variant="warm"), Variation()]
    key = freeze(ledger, "big_news", people=6, variations=variations, definition=deciding, made=now)
    in_two_waves(ledger, key, 3)
    run = Run(server, tmp_path, "big_news", key)
    pause(ledger, key, "ann", "wait", now=now)
    chosen = "once a person has chosen the variant"
    in_parts = f"out in parts, the first at once, and the others {chosen}"
    assert f"It then goes {in_parts}, to 6 devices in all." in words(olga.get(f"launches/{key}").text)
    run.end("dispatch", "failed")
    answer = words(olga.post(f"launches/{key}/resume", WHY).text)
    assert f"Spring sale continues. It goes {in_parts}." in answer
    send(ledger, key, Accepted(200, 1), Accepted(200, 2), at=now)
    in_two_hours = FILTERS["moment"](now + timedelta(hours=2))
    pause(ledger, key, "ann", "wait", now=now)
    said = words(olga.get(f"launches/{key}").text)
    assert f"The rest then goes out {chosen}, not before {in_two_hours}, in " in said
    resume(ledger, key, "ann", "go on", now=now)
    assert ledger.audit_log.decide(Decision(key, "held", "sendoff", "3 requests were refused", now))
    said = words(olga.get(f"launches/{key}").text)
    until = f"{chosen}, not before {in_two_hours}, in "
    assert f"Spring sale: the rest goes to 2 devices {until}" in said
    assert f"When released, it goes out {until}" in said
    assert "Until then, you can stop it." in said
    release(ledger, key, "ann", "go on", now=now)
    proposed = Decision(key, "held", "sendoff", "a person must choose", now, {"wave": 1, "winner": "plain"})
    assert ledger.audit_log.decide(proposed, wave=1)
    assert chosen not in words(olga.get(f"launches/{key}").text)
    run.end("dispatch", "failed")
    chose = {**WHY, "variant": "warm", "since": ledger.audit_log.newest(key)}
    answer = words(olga.post(f"launches/{key}/release", chose).text)
    assert "Chosen: the rest may now get warm." in answer
    assert "its remaining 1 request goes out as soon as Airflow has a free worker." in answer


def test_a_launch_that_failures_held_is_released(olga: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "big_news", people=6, definition={**PUSH, "channels": {"android_push": {}}})
    send(ledger, key, Accepted(200, 1))
    ledger.audit_log.decide(Decision(key, "held", "sendoff", "3 requests were refused", NOW))
    assert "channels reach" not in olga.get("waiting").text  # the number would be of all requests
    text = olga.get(f"launches/{key}").text
    assert re.search(r'<summary class="go">Release…</summary>', text)
    assert "Approve" not in text
    assert "Spring sale: the rest goes to" in words(text)
    assert "If failures held it, their count starts again at zero." in text
    answer = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)})
    assert "Released: the launch may now be sent." in answer.text


def closed_window() -> tuple[dict[str, Any], str]:
    """Return a campaign whose send window is closed now, and when it opens, as a page writes it."""
    hour = 20 if NOW.hour < 12 else 1
    opens_at = NOW.replace(hour=hour, minute=0, second=0) + timedelta(days=NOW.hour >= 12)
    window = {"earliest": f"{hour:02}:00", "latest": f"{hour + 1:02}:00", "time_zone": "UTC"}
    return {**PUSH, "title": "Night owls", "gates": {"window": window}}, FILTERS["moment"](opens_at)


def test_a_launch_that_waits_for_its_window_says_when_it_goes_out(olga: Person, ledger: Ledger) -> None:
    definition, opens_at = closed_window()
    key = freeze(ledger, "night_owls", people=6, definition=definition)
    reconcile_launch(ledger, key)
    text = olga.get(f"launches/{key}").text
    assert re.search(f"Goes out {opens_at}, in ", words(text.partition("<section")[0]))
    assert "Nothing has been sent yet." in text
    assert "Report as of" not in text
    send(ledger, key, Accepted(200, 1))
    reconcile_launch(ledger, key)
    text = olga.get(f"launches/{key}").text
    assert re.search(f"The next part goes out {opens_at}, in ", words(text))
    assert "Report as of" in text
    held = freeze(ledger, "night_owls", day=2, people=6, definition=definition, state="held", made=NOW)
    for path in ("waiting", f"launches/{held}"):
        said = words(olga.get(path).text)
        assert f"When approved, it goes out {opens_at}, in " in said, path
        assert re.search(f"goes to 6 devices {opens_at}, in [^.]+. Until then, you can stop it.", said), path


def test_what_was_not_launched_is_a_row_of_the_list_with_its_reason(
    vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(campaign: str, at: datetime, why: str) -> None:
        end = at.replace(hour=0, minute=0, second=0, microsecond=0)
        period = Period(end - timedelta(days=1), end)
        key = launch_key("service", campaign, period)
        ledger.not_launched.store(NotLaunched(key, campaign, "A <b>sale</b>", period, 0, at, why))

    early = freeze(ledger, "spring_sale", day=3)
    late = freeze(ledger, "spring_sale", day=1)
    refuse("spring_sale", NOW - timedelta(days=1), "8 devices, at least 1,000 wanted")
    refuse("new_sale", NOW - timedelta(days=9), "the audience is empty")
    text = vera.get("").text
    words = (
        late,
        "Not launched: 8 devices, at least 1,000 wanted.",
        early,
        "Not launched: the audience is empty.",
    )
    places = [text.index(each) for each in words]
    assert places == sorted(places)
    assert "A &lt;b&gt;sale&lt;/b&gt;" in text
    only = vera.get("?state=not_launched").text
    assert early not in only
    assert only.count("Not launched: ") == 2
    assert "8 devices" not in vera.get("?state=not_launched&words=new").text
    assert "Not launched: " not in vera.get("?state=not_launched&since=2100-01-01").text
    yesterday = (NOW - timedelta(days=1)).date()
    of_day = vera.get(f"?since={yesterday}&until={yesterday}").text
    assert "8 devices, at least" in of_day
    assert "the audience is empty" not in of_day
    assert "Not launched: " not in vera.get("?state=sending").text
    ways = ("sort=campaign", "sort=-campaign", "sort=-period", "sort=sends", "sort=state", "sort=-reached")
    for how in ways:
        text = vera.get(f"?{how}").text
        assert text.count("Not launched: ") == 2, how
        assert text.count(f"launches/{early}") == text.count(f"launches/{late}") == 1, how
        wanted = how in ("sort=campaign", "sort=sends")
        assert (text.index("the audience is empty") < text.index(early)) is wanted, how
    both = vera.get("?state=not_launched&state=sending").text
    assert both.count("Not launched: ") == 2
    for number in range(24):
        freeze(ledger, f"more_{number}", people=2)
    assert "the audience is empty" not in vera.get("").text
    assert "the audience is empty" in vera.get("?page=2").text
    assert "1 to 25 of 28" in vera.get("").text
    campaign = vera.get("campaigns/spring_sale").text
    assert campaign.index("8 devices, at least") < campaign.index(early)
    assert "the audience is empty" in vera.get("campaigns/new_sale").text
    listed = vera.get("campaigns").text
    assert ": not launched: the audience is empty" in listed
    assert "8 devices, at least" not in listed  # a later launch was made
    refuse("spring_sale", NOW + timedelta(days=1), "7 devices, at least 1,000 wanted")
    listed = vera.get("campaigns").text
    assert re.search(r"not launched: 7 devices.*:\s+not sent yet", listed, re.DOTALL)
    monkeypatch.setattr(ByDag, "seen", frozenset({"spring_sale"}))
    assert "the audience is empty" not in vera.get("").text
    assert "the audience is empty" not in vera.get("?state=not_launched").text


@pytest.mark.airflow_database
def test_a_launch_that_waits_for_a_role_is_released_in_airflow_alone(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    asked = {**PUSH, "approval": {"needed": "always", "role": HOSTILE}}
    key = freeze(ledger, "asks", state="held", definition=asked)
    run = Run(server, tmp_path, "asks", key)
    for path in (f"launches/{key}", "waiting"):
        text = olga.get(path).text
        assert f"launches/{key}/release" not in text, path
        assert f"launches/{key}/reject" in text, path
        assert "must approve it in Airflow" in text, path
        question = f"dags/asks/runs/{quote(run.id, safe='')}/tasks/approve/required_actions?map_index=-1"
        assert question in text, path
        assert "<img" not in text, path
    for body in (WHY, {**WHY, "since": ledger.audit_log.newest(key)}):
        answer = olga.post(f"launches/{key}/release", body)
        assert answer.status_code == 409
        assert "must first approve" in answer.text
    assert ledger.launches.get(key).state == "held"
    ledger.audit_log.decide(Decision(key, "approved", "ann", None, NOW))
    ledger.audit_log.decide(Decision(key, "held", "sendoff", "3 requests were refused", NOW))
    assert f"launches/{key}/release" in olga.get("waiting").text
    assert "must approve it in Airflow" not in olga.get(f"launches/{key}").text
    assert olga.post(f"launches/{key}/release", WHY).status_code == 200
    other = freeze(ledger, "asks", day=2, state="held", definition=asked)
    assert olga.post(f"launches/{other}/reject", WHY).status_code == 200
    assert ledger.launches.get(other).state == "rejected"


@pytest.mark.airflow_database
def test_someone_with_the_role_approves_and_others_see_who_may(
    server: TestClient, olga: Person, as_: Callable[..., Person], ledger: Ledger, tmp_path: Path
) -> None:
    asked = {**PUSH, "approval": {"needed": "always", "role": "crm_lead"}}
    key = freeze(ledger, "one_click", state="held", definition=asked)
    run = Run(server, tmp_path, "one_click", key)
    run.ask("olga", "ruth")
    other = as_("otto", "OP")
    for path in (f"launches/{key}", "waiting"):
        assert f"launches/{key}/approve" in olga.get(path).text, path
        said = words(olga.get(path).text)
        assert "Spring sale goes to 12 devices at once. This cannot be taken back." in said, path
        text = other.get(path).text
        assert "Someone with the role crm_lead must approve it: olga or ruth." in text, path
        assert f"launches/{key}/approve" not in text, path
    assert other.post(f"launches/{key}/approve").status_code == 409
    assert run.asks()[1] == []
    answer = olga.post(f"launches/{key}/approve")
    assert answer.status_code == 200
    assert "the run releases the launch and continues by itself" in answer.text
    assert run.asks()[1] == [("olga", ["Approve"])]
    assert olga.post(f"launches/{key}/approve").status_code == 409
    assert ledger.launches.get(key).state == "held"  # until the task runs
    for path in (f"launches/{key}", "waiting"):
        said = words(other.get(path).text)
        assert "It was answered in Airflow: its run continues by itself." in said, path
        assert "must approve" not in said, path
        assert "Answer in Airflow" not in said, path
    run.end("approve", "failed")
    assert "Someone with the role crm_lead must approve it" in words(olga.get("waiting").text)


@pytest.mark.airflow_database
@pytest.mark.parametrize(
    ("task", "state"), [("approve", "success"), ("approve", "failed"), ("preview", "failed")]
)
def test_a_run_that_does_not_ask_a_role_leads_to_no_answer_and_names_the_task_to_clear(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, task: str, state: str
) -> None:
    name = f"silent_{task}_{state}"
    asked = {**PUSH, "approval": {"needed": "always", "role": "crm"}}
    key = freeze(ledger, name, state="held", definition=asked)
    run = Run(server, tmp_path, name, key)
    if task == "approve":
        run.ask("ruth")
    for path in (f"launches/{key}", "waiting"):
        assert "Answer in Airflow" in olga.get(path).text, path
    run.end(task, state)
    if state == "success":
        run._api("PATCH", f"dags/{name}/dagRuns/{quote(run.id, safe='')}", {"state": "success"})
    for path in (f"launches/{key}", "waiting"):
        said = words(olga.get(path).text)
        assert "must approve it in Airflow, but its run does not ask." in said, path
        assert f"Clear the task {task} of the run." in said, path
        assert "Answer in Airflow" not in said, path
    chosen = {"dag_run_id": run.id, "task_ids": [task], "include_downstream": True, "only_failed": False}
    run._api("POST", f"dags/{name}/clearTaskInstances", {"dry_run": False, "reset_dag_runs": True, **chosen})
    if airflow_db.run_of(key, name) is None:  # Airflow 3.4 also clears the setup of a teardown
        run.found("audience", key, name)
    said = words(olga.get("waiting").text)
    assert "its run does not ask" not in said
    assert "Answer in Airflow" in said


def test_a_decision_of_a_kind_that_a_newer_version_wrote_is_shown(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale")
    ledger.audit_log.record(Decision(key, "held_by_moon", "ann", "it is full", NOW, {"phase": 1}))
    text = vera.get(f"launches/{key}").text
    assert ">held by moon</span>" in text
    assert "it is full" in text


def test_doubts_are_settled_as_they_were_seen(
    olga: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = freeze(ledger, "spring_sale", people=6)
    first, second, third = send(ledger, key, TIMED_OUT, TIMED_OUT, TIMED_OUT)
    text = olga.get("waiting").text
    shown = re.findall(r'name="requests" data-list value="([0-9a-f]{32}:\d+)"', text)
    assert shown == [f"{each}:1" for each in (first, second, third)]
    resolve(ledger, first, Resolution.RESEND, "ann", "quick", now=NOW)
    send(ledger, key, TIMED_OUT)  # the first one again: no one has seen this doubt
    looks: list[Any] = []
    monkeypatch.setattr(
        "sendoff.dispatch.control.aggregate", lambda *given, **rest: looks.append(aggregate(*given, **rest))
    )
    answer = olga.post(f"launches/{key}/doubts/write-off", {**WHY, "requests": shown})
    assert answer.status_code == 200
    assert "2 requests written off" in answer.text
    assert "1 request was left alone: changed since" in answer.text
    assert ledger.dispatch_queries.states(key) == {"in_doubt": 1, "written_off": 2}
    assert len(looks) == 1  # at the post-backs of the whole ledger, however many are settled
    assert olga.post(f"launches/{key}/doubts/resend", {**WHY, "requests": shown}).status_code == 409
    again = olga.post(f"launches/{key}/doubts/resend", {**WHY, "requests": [f"{first}:2"]})
    assert "1 request planned again" in again.text
    assert ledger.dispatch_queries.states(key) == {"planned": 1, "written_off": 2}
    decided = [(each.kind, each.who, each.why) for each in ledger.audit_log.of_launch(key)][-3:]
    assert decided == [("write_off_dispatch", "olga", "because")] * 2 + [
        ("resend_dispatch", "olga", "because")
    ]


@pytest.mark.parametrize(
    ("kind", "words"), [("held", "someone releases it"), ("paused", "someone resumes it")]
)
def test_what_is_resent_of_a_launch_that_waits_is_said_to_wait(
    olga: Person, ledger: Ledger, kind: str, words: str
) -> None:
    key = freeze(ledger, "spring_sale")
    [dispatch] = send(ledger, key, TIMED_OUT)
    ledger.audit_log.decide(Decision(key, kind, "sendoff", None, NOW))
    answer = olga.post(f"launches/{key}/doubts/resend", {**WHY, "requests": [f"{dispatch}:1"]})
    assert answer.status_code == 200
    assert words in answer.text


def test_nothing_of_a_launch_that_is_over_is_sent_again(olga: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale", people=2)
    [dispatch] = send(ledger, key, TIMED_OUT)
    ledger.audit_log.decide(Decision(key, "stopped", "ann", "enough", NOW))
    assert "doubts/resend" not in olga.get("waiting").text
    asked = {**WHY, "requests": [f"{dispatch}:1"]}
    assert olga.post(f"launches/{key}/doubts/resend", asked).status_code == 409
    assert olga.post(f"launches/{key}/doubts/write-off", asked).status_code == 200


def test_global_pauses_begin_and_end_with_who_and_why(olga: Person, ledger: Ledger) -> None:
    freeze(ledger, "spring_sale")
    assert olga.post("pauses/pause", {"reason": "storm", "connection": "service"}).status_code == 200
    assert olga.post("pauses/pause", {"reason": "storm"}).status_code == 200
    assert olga.post("pauses/pause", {"reason": "storm"}).status_code == 409
    assert olga.post("pauses/pause", {"reason": "storm", "connection": "none"}).status_code == 409
    assert [(each.scope, each.who, each.why) for each in ledger.pauses.all()] == [
        ("all", "olga", "storm"),
        ("connection:service", "olga", "storm"),
    ]
    assert "nothing is sent" in olga.get("").text
    assert "Resumed: every launch. The page of each says when it goes out, or what it waits for." in words(
        olga.post("pauses/resume", {"reason": "sun"}).text
    )
    assert olga.post("pauses/resume", {"reason": "sun", "connection": "service"}).status_code == 200
    assert ledger.pauses.all() == []


def test_a_ledger_that_was_moved_is_not_resumed_on_a_page(
    olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    freeze(ledger, "spring_sale")
    pause_all(ledger, "ann", "moving the ledger", now=NOW)
    with closing(Ledger(f"sqlite:///{tmp_path / 'new.db'}")) as new:
        new.copy_from(ledger)
    assert "nothing is sent" in olga.get("").text
    for path in ("waiting", "campaigns/spring_sale"):
        text = words(olga.get(path).text)
        assert f"moved to {new.name}" in text, path
        assert "Resume launches" not in text, path
    answer = olga.post("pauses/resume", {"reason": "sun"})
    assert answer.status_code == 409
    assert "ledger was moved to" in answer.text


@pytest.mark.parametrize(
    ("steered", "edits_every_dag", "pausable"),
    [
        ({"spring_sale"}, False, []),
        (
            {"spring_sale", "big_news", "other"},
            False,
            [],
        ),  # every existing campaign, but not future ones
        ({"spring_sale"}, True, []),
        ({"spring_sale", "big_news"}, True, ["service"]),
        ({"other"}, True, ["another"]),
        ({"spring_sale", "big_news", "other"}, True, ["", "another", "service"]),
    ],
)
def test_a_global_pause_takes_the_right_to_steer_all_that_it_holds(
    as_: Callable[..., Person],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    steered: set[str],
    edits_every_dag: bool,
    pausable: list[str],
) -> None:
    for name in ("spring_sale", "big_news"):
        freeze(ledger, name)
    freeze(ledger, "other", connection="another")
    monkeypatch.setattr(ByDag, "steered", frozenset(steered))
    monkeypatch.setattr(ByDag, "edits_every_dag", edits_every_dag)
    ruth = as_("ruth", "OP")
    for act in ("pause", "resume"):
        text = ruth.get("waiting").text.partition("pauses/" + act)[2].partition("</select>")[0]
        assert re.findall(r'<option value="([^"]*)"', text) == pausable
        for connection in ("", "service", "another"):
            answer = ruth.post(f"pauses/{act}", {**WHY, "connection": connection})
            assert answer.status_code == (200 if connection in pausable else 403), (act, connection)
    assert ledger.pauses.all() == []


def test_who_set_a_global_pause_is_told_to_those_alone_whose_campaigns_it_holds(
    as_: Callable[..., Person], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(ledger, "spring_sale")
    freeze(ledger, "other", connection="another")
    pause_all(ledger, "ann", "a storm", connection="another", now=NOW)
    vera = as_()
    for seen, is_told in (({"other"}, True), ({"spring_sale"}, False), (set(), False)):
        monkeypatch.setattr(ByDag, "seen", frozenset(seen))
        for path in ("", "waiting", "campaigns", "calendar"):
            text = vera.get(path).text
            assert ("another" in text) is is_told, (seen, path)
            assert ("A global pause is in effect" in text) is not is_told, (seen, path)
            assert ("a storm" in text) is (is_told and path != "")
    monkeypatch.setattr(ByDag, "seen", None)
    assert "a storm" in vera.get("campaigns/other").text
    assert "a storm" not in vera.get("campaigns/spring_sale").text
    pause_all(ledger, "bob", "a flood", now=NOW)
    monkeypatch.setattr(ByDag, "seen", frozenset({"spring_sale"}))
    text = vera.get("waiting").text
    assert "a flood" in text
    assert "Another global pause is in effect" in text


def test_a_launch_by_the_time_zones_of_its_recipients_says_when_the_first_and_the_last_get_it(
    olga: Person, ledger: Ledger
) -> None:
    day = (NOW + timedelta(days=3)).replace(hour=12, minute=0, second=0)
    once = {"kind": "once", "date": f"{day:%Y-%m-%d}", "time": "12:00", "time_zone": "user"}
    last = day + timedelta(hours=12)
    made = freeze(ledger, "everywhere", definition={**PUSH, "send": once}, state="held", sends=last)
    range_ = (
        rf"{FILTERS['moment'](day - timedelta(hours=14))}, in [^.]+, to {FILTERS['moment'](last)}, in [^.]+\."
    )
    for path in ("waiting", f"launches/{made}"):
        assert re.search(f"goes to 12 devices {range_}", words(olga.get(path).text)), path
    assert re.search(f"When approved, it goes out {range_}", words(olga.get("waiting").text))
    assert f"Due at the latest {FILTERS['moment'](last)}" in words(olga.get("?words=everywhere").text)
    assert "by 00:00, about 12" in words(olga.get(f"calendar?month={last:%Y-%m}").text)
    off = freeze(ledger, "refused_there", definition={**PUSH, "send": once}, made=NOW, sends=last)
    assert re.search(f"Goes out {range_[:-2]}", words(olga.get(f"launches/{off}").text))
    assert "at the latest" in words(olga.get("?words=refused_there").text)
    send(ledger, off, *[Refused(400, "no")] * len(ledger.dispatch_queries.of_launch(off)))
    for path in (f"launches/{off}", "?words=refused_there", "campaigns?words=refused_there"):
        assert not re.search("oes out|at the latest", words(olga.get(path).text)), path


def test_during_a_global_pause_nothing_is_said_to_go_out_at_once(olga: Person, ledger: Ledger) -> None:
    definition, opens_at = closed_window()
    later = {
        "kind": "recurring",
        "time": "18:30",
        "time_zone": "UTC",
        "start": f"{NOW:%Y-%m-%d}",
        "end": "never",
    }
    keys = {
        freeze(ledger, "spring_sale", state="held"): "once the global pause ends",
        freeze(
            ledger, "night_owls", definition=definition, state="held"
        ): f"{opens_at}, in [^.]+, if the global pause has ended by then",
        freeze(
            ledger, "every_day", definition={**PUSH, "send": later}, state="held"
        ): "repeatedly: [^.]+, once the global pause ends",
    }
    pause_all(ledger, "ann", "a storm", now=NOW)
    text = words(olga.get("waiting").text)
    for key, then in keys.items():
        assert re.search(f"When approved, it goes out {then}\\.", text)
        until = "Until then" if "has ended by then" in then else "Until the pause ends"
        sends = f"goes to 12 devices {then}. {until}, you can stop it."
        assert re.search(sends, text)
        assert re.search(sends, words(olga.get(f"launches/{key}").text))
    assert "cannot be taken back" not in text
    key = next(iter(keys))
    answer = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)})
    assert "goes out" not in answer.text
    assert "A global pause stops launches:" in words(olga.get("calendar").text)


def test_a_global_pause_is_shown_on_launches_that_it_stops_alone(olga: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    rest, over = (freeze(ledger, name, people=4) for name in ("rest", "over"))
    for key in (rest, over):
        send(ledger, key, Accepted(200, 1))
    stop(ledger, over, "ann", "enough", now=NOW)
    keys |= {"rest": rest, "over": over}
    pause_all(ledger, "ann", "a storm", now=NOW)
    stopped = {
        name for name, key in keys.items() if "A global pause stops" in olga.get(f"launches/{key}").text
    }
    going = {
        name
        for name, key in keys.items()
        if not ledger.launches.get(key).state.is_final and ledger.dispatch_queries.states(key).get("planned")
    }
    assert stopped == going
    assert {"running", "rest"} <= going
    assert not {"reported", "over"} & going


def test_a_persons_history_names_them_nowhere(
    vera: Person, ledger: Ledger, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = fill(ledger)
    device = str(FIRST_DEVICE + 70)
    capfd.readouterr()
    answer = vera.post("person", {"identifier": device})
    assert answer.status_code == 200
    assert "Got it: delivered." in answer.text
    assert "Variant short." in answer.text
    assert not re.search(r"segment|wave|verdict|_", re.sub(SMALL + r"|<[^>]*>", "", answer.text))
    assert "the launch was stopped" in answer.text
    answers = {
        key: next(words(row) for row in answer.text.split("<li") if f"launches/{key}" in row)
        for key in keys.values()
    }
    before = NOW - timedelta(days=2, hours=1)
    sent = f"Got it: delivered. The launch went out {before.day} {before:%b %Y %H:%M} UTC."
    assert sent in answers[keys["reported"]]
    assert "went out" not in answers[keys["stopped"]]
    doubted = words(vera.post("person", {"identifier": str(FIRST_DEVICE + 130)}).text)
    assert "the service gave no clear answer. The launch went out" in doubted
    assert 'href="./suppression"' in answer.text
    held_out = vera.post("person", {"identifier": str(FIRST_DEVICE + 1), "campaign": "spring_sale"})
    assert "Left out: control group." in held_out.text
    assert answer.text.count("of-interest") == answer.text.count("<p>Got it") > 0
    assert answer.text.count('class="sent"') == answer.text.count("<p>Sent, ") > 0
    assert "of-interest" not in held_out.text
    for campaign, sentence in (
        ("spring_sale", "This identifier was in no launch of Spring sale, so it got nothing from it."),
        ("", "No launch is known to have had this identifier."),  # one chose its recipients in the service
    ):
        unknown = vera.post("person", {"identifier": "4", "campaign": campaign}).text
        assert sentence in unknown
        assert ("Is it typed correctly?" in unknown) is ("<li" not in unknown) is bool(campaign)
    for identifier in ("nobody", "9" * 400, "-1", "0"):
        assert vera.post("person", {"identifier": identifier}).status_code == 200
    assert vera.post("person", {"identifier": ""}).status_code == 422
    total = ledger.launches.count_of(ledger.launches.campaigns())
    strange = vera.post("person", {"identifier": "ann@example.com"}).text
    assert f"{total} launches identify people by device ID, and this is no device ID." in strange
    assert "<li" not in strange
    assert "checked" not in strange
    assert vera.post("person", {"identifier": device, "offset": 99}).text.count("<li") == 0
    written = capfd.readouterr()
    for text in (answer.text, held_out.text, caplog.text, written.out, written.err):
        assert device not in text
    assert 'method="post"' in vera.get("person").text  # so that it is in no URL, even without the script


def test_a_launch_whose_recipients_were_deleted_keeps_its_page(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale", people=20)
    send(ledger, key, *[Accepted(200, 1)] * ledger.launches.get(key).segments)
    reconcile_launch(ledger, key)
    assert "What it sends" in vera.get(f"launches/{key}").text
    much_later = datetime.now(UTC) + timedelta(days=100)
    assert delete_recipients(ledger, timedelta(days=30), now=much_later).launches == 1
    shown = words(vera.get(f"launches/{key}").text)
    assert "What it sends" not in shown
    assert "recipients deleted Sendoff" in shown
    assert "older than 30 days" in shown
    preview = vera.get(f"launches/{key}/preview")
    assert (preview.status_code, key in words(preview.text)) == (410, False)
    assert " The recipients of this launch were deleted. " in words(preview.text)
    history = vera.post("person", {"identifier": str(FIRST_DEVICE + 7)}).text
    assert "Not known: the recipients of launches from before" in history


def test_a_persons_history_names_a_broadcast_that_the_person_got(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "everybody", by_service=True)
    (dispatch,) = send(ledger, key, Accepted(200, 17))
    store(ledger, post_back(dispatch, "open", 5))
    reconcile_launch(ledger, key)
    answer = vera.post("person", {"identifier": "5"}).text
    assert "Got it: opened or clicked. The launch went out" in words(answer)
    assert answer.count('<li class="of-interest"') == 1
    unheard = vera.post("person", {"identifier": "6"}).text
    assert "Not known: the service chooses the people of this launch." in words(unheard)
    assert "of-interest" not in unheard


def test_a_persons_history_says_when_what_is_not_sent_yet_goes_out(vera: Person, ledger: Ledger) -> None:
    def answer(campaign: str) -> str:
        text = vera.post("person", {"identifier": str(FIRST_DEVICE + 1), "campaign": campaign}).text
        return re.sub(r"\s+", " ", text)

    tomorrow = str((NOW + timedelta(days=1)).date())
    evening = {"kind": "once", "time": "18:30", "time_zone": "UTC", "date": tomorrow}
    sends = datetime.fromisoformat(f"{tomorrow}T18:30Z")
    later = freeze(ledger, "evening", definition={**PUSH, "send": evening}, sends=sends)
    assert "Not sent yet: the launch is stuck." in answer("evening")
    send(ledger, later, *[Accepted(200, 1)] * 6)
    shown = answer("evening")
    assert f'The service has the message and sends it <time datetime="{sends.isoformat()}">' in shown
    assert "Sent, " not in shown
    assert 'class="sent"' not in shown
    wave = {"gates": {"rollout": {"shares": [50]}}}
    key = freeze(ledger, "waves", definition={**PUSH, **wave}, made=datetime.now(UTC))
    waiting = answer("waves")
    assert "Not sent yet: its turn comes later." in waiting
    assert "The launch goes on" not in waiting
    with sa.create_engine(ledger.name).begin() as db:
        of_others = (dispatches.c.launch_key == key, dispatches.c.segment < 6)
        db.execute(sa.update(dispatches).values(wave=2).where(*of_others))
    send(ledger, key, Accepted(200, 2))
    assert re.search(r"its turn comes later\. The launch goes on <time", answer("waves")), answer("waves")


def test_every_time_on_a_page_is_an_element_that_a_script_can_show_in_another_zone(
    vera: Person, ledger: Ledger
) -> None:
    keys = fill(ledger)
    for path in ("", "waiting", f"launches/{keys['failing']}", f"launches/{keys['approval']}"):
        text = vera.get(path).text
        assert re.search(
            r'<time datetime="[^"]+\+00:00"[^>]*>\d+ \w{3} 20\d\d( \d\d:\d\d UTC)?</time>', text
        ), path
        plain = re.sub(r"<time .*?</time>|<title>.*?</title>", "", text)
        assert not re.search(r"\d\d:\d\d|20\d\d-\d\d", plain), path
        assert 'Times are in <span class="zone">UTC</span>' in text, path


@pytest.mark.parametrize(
    ("period", "words"),
    [
        ("2026-11-16/2026-11-17", "16 Nov 2026"),
        ("2026-11-16/2026-11-23", "16 Nov 2026 to 22 Nov 2026"),
        ("2026-11-16T00:00Z/2026-11-16T00:00Z", "16 Nov 2026"),  # as of a campaign that the service repeats
        ("2026-11-09T09:00Z/2026-11-16T09:00+01:00", "9 Nov 2026 09:00 UTC to 16 Nov 2026 08:00 UTC"),
        ("2026-11-16/2026-11-17/shops", "16 Nov 2026 shops"),
    ],
)
def test_a_period_of_whole_days_is_written_as_its_dates(period: str, words: str) -> None:
    assert FILTERS["period"](period) == words


def test_suppressed_requests_have_another_word_than_people_on_the_suppression_list(
    olga: Person, ledger: Ledger
) -> None:
    text = olga.get(f"launches/{freeze(ledger, 'spoken', people=20)}").text
    assert '<option value="suppressed">suppressed (0)</option>' in text
    assert FILTERS["reason"]("suppressed") == "on the suppression list"
    assert FILTERS["reason"]("opened since") == "opened an earlier message since"


def test_requests_whose_recipients_were_all_left_out_are_not_made(olga: Person, ledger: Ledger) -> None:
    some, none = freeze(ledger, "spring_sale", people=4), freeze(ledger, "all_out", people=2)
    change = SuppressionChange("account", "device_id", "crm", "ann")
    ledger.suppressions.add(change, devices(2), NOW)
    send(ledger, some, Accepted(200, 1))
    assert ledger.dispatches.claim(none, worker="w", now=NOW, lease=timedelta(minutes=5)) is None
    for key, made in ((some, "1 of 2 requests made"), (none, "0 of 1 request made")):
        assert made in words(olga.get(f"launches/{key}").text)
        assert made in words(olga.get("").text)
    assert "Nothing was sent." in words(olga.get(f"launches/{none}").text)
    reconcile_launch(ledger, none)
    assert "2 on the suppression list" in words(olga.get(f"launches/{none}").text)
    result = (
        olga.get("campaigns").text.partition('campaigns/all_out"')[2].partition('<td data-name="state"')[0]
    )
    assert words(result).endswith(": not sent ")


def test_pages_show_the_titles_of_campaigns_instead_of_their_names(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "wc_2026", people=4, definition={**PUSH, "title": "Winter coats"})
    send(ledger, key, TIMED_OUT)
    freeze(ledger, "wc_2026", day=2, state="held", definition={**PUSH, "title": "Winter coats & hats"})
    for path in ("waiting", f"waiting?launch={key}", f"launches/{key}", f"launches/{key}/preview"):
        shown = re.sub(SMALL, "", vera.get(path).text.partition("</head>")[2])
        text = unescape(re.sub(r"<[^>]+>", " ", shown))
        assert "Winter coats" in text, path
        assert "wc_2026" not in text or path.startswith("launches"), path
    for path in ("", "person"):
        assert '<option value="wc_2026">Winter coats (wc_2026)</option>' in vera.get(path).text, path
    assert "<h1>Winter coats <small" in vera.get("campaigns/wc_2026").text
    found = vera.post("person", {"identifier": str(FIRST_DEVICE)}).text
    assert '>Winter coats</a> <small class="pale">wc_2026</small></b>' in found
    assert "wc_2026" not in re.sub(r"<[^>]+>", "", re.sub(SMALL, "", found))


def test_a_launch_says_why_it_cannot_be_known_who_got_it(vera: Person, ledger: Ledger) -> None:
    reported = fill(ledger)["reported"]
    figures = ledger.verdicts.figures(reported)
    text = unescape(vera.get(f"launches/{reported}").text)
    assert figures.unknowable_because
    for sentence in what_cannot_be_known(figures):
        assert sentence in text


def test_the_sums_of_a_launch_are_seen_to_add_up(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    text = re.sub(r"<[^>]+>|\s+", " ", vera.get(f"launches/{keys['reported']}").text)
    for words in (
        "1,240 rows read",
        "17 left out by rule: over the cap on messages",
        "= 1,200 audience",
        "60 control group",
        "= 1,140 devices",
        "= 12 requests",
        "Reached of the audience: at least 712 (59.3 %), at most 949 (79.1 %).",
        "not sent 60 control group 95 refused",
    ):
        assert re.sub(r"\s+", " ", words) in re.sub(r"\s+", " ", text), words
    assert "do not add up" not in text
    assert "The service chooses the people" in vera.get(f"launches/{keys['chosen']}").text
    assert "There is no report yet" in vera.get(f"launches/{keys['running']}").text


def test_one_recipient_one_row_and_one_request_are_singular(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "one_person", people=1, size=10)
    send(ledger, key, TIMED_OUT)
    text = words(vera.get(f"launches/{key}").text.replace("<", " <"))
    for said in ("1 row read", "= 1 device ", "= 1 request, one for each segment"):
        assert said in text, said
    text = words(vera.get(f"launches/{key}/preview").text.replace("<", " <"))
    for said in ("1 of 1 request made, 0 accepted.", "1 row read", "1 request of up to"):
        assert said in text, said
    assert "each; how long" not in text
    assert "these requests" not in words(vera.get(f"waiting?launch={key}").text)


def test_a_launch_with_an_address_to_opt_out_says_how_many_used_it(vera: Person, ledger: Ledger) -> None:
    template = {"id": 7, "channels": ["email"], "unsubscribe_url": "stop"}
    key = freeze(ledger, "digest", definition={"title": "Digest", "template": template})
    assert "opted out" not in vera.get(f"launches/{key}").text
    send(ledger, key, Accepted(200, 1))
    assert "No one has opted out at the address in this message so far." in vera.get(f"launches/{key}").text
    opted_out = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=key)
    ledger.suppressions.add(opted_out, devices(2), NOW)
    assert (
        "2 devices have opted out at the address in this message so far, 100.0 % of the 2 devices it was sent to."
        in vera.get(f"launches/{key}").text
    )
    freeze(ledger, "push", day=2)
    freeze(ledger, "digest", day=2, definition={"title": "Digest", "template": template})
    send(ledger, freeze(ledger, "push", day=3), Accepted(200, 1))
    send(
        ledger,
        freeze(ledger, "digest", day=3, definition={"title": "D", "template": template}),
        Accepted(200, 1),
    )
    assert [row["opt-outs"] for row in table(vera, "campaign=digest&sort=-period")] == ["2", "", "0"]
    assert {row["opt-outs"] for row in table(vera, "campaign=push")} == {""}  # the message has no address
    sent = freeze(ledger, "card", people=4, size=4, definition={"title": "Card", "template": template})
    send(ledger, sent, Accepted(200, 1))
    assert table(vera, "campaign=card")[0]["opt-outs"] == "0"
    with ledger.launch_counts._database.write() as db:  # as another version of Sendoff may freeze it
        of_card = sa.update(launches_table).where(launches_table.c.launch_key == sent)
        db.execute(of_card.values(definition='{"title": "Card", "unheard_of": 5}'))
    assert table(vera, "campaign=card")[0]["opt-outs"] == ""


def table(person: Person, query: str = "", zone: str = "UTC") -> list[dict[str, str]]:
    """Return the rows of the downloaded list of launches."""
    cookies = {"Cookie": f"{person.login['Cookie']}; sendoff-zone={zone}"}
    got = person._server.get(f"{PREFIX}/launches.csv?{query}", headers=cookies)
    assert got.headers["Content-Type"] == "text/csv; charset=utf-8"
    today = datetime.now(ZoneInfo(zone)).date()
    assert got.headers["Content-Disposition"] == f'attachment; filename="launches-{today}.csv"'
    assert got.content.startswith(b"\xef\xbb\xbfcampaign,")
    assert str(FIRST_DEVICE)[:8] not in got.text
    return list(csv.DictReader(io.StringIO(got.content.decode("utf-8-sig")), strict=True))


def test_the_list_of_launches_is_downloaded_as_one_table(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    period = Period(NOW - timedelta(days=9), NOW - timedelta(days=8))
    refused = NotLaunched(NOBODY, "new_sale", "New sale", period, 0, NOW, "the audience is empty")
    ledger.not_launched.store(refused)
    found = {(row["campaign"], row["state"]): row for row in table(vera, zone="Asia/Kolkata")}
    assert len(found) == len(keys) + 1
    launch, here = ledger.launches.get(keys["reported"]), ZoneInfo("Asia/Kolkata")
    [listed] = ledger.overview.page(Selection.of([launch]))
    assert found["spring_sale", "reported"] == {
        "campaign": "spring_sale",
        "title": "Spring sale",
        "resend": "0",
        "period start": f"{launch.period.start.astimezone(here):%Y-%m-%d %H:%M}",
        "period end": f"{launch.period.end.astimezone(here):%Y-%m-%d %H:%M}",
        "partition": "",
        "time zone": "Asia/Kolkata",
        "state": "reported",
        "when": "Went out",
        "time": f"{(NOW - timedelta(days=2, hours=1)).astimezone(here):%Y-%m-%d %H:%M}",
        "counted in": "devices",
        "recipients": "1140",
        "control group": "60",
        "left out": "17",  # by the cap; no one was left out of the other rows
        "requests": "12",
        "accepted": "10",
        "reached": str(listed.reached),
        "opened": str(listed.opened),
        "opt-outs": "",
    }
    waiting = found["big_news", "waiting for approval"]
    assert [waiting[name] for name in ("when", "time", "reached", "opened")] == ["Once approved", "", "", ""]
    chosen = found["everybody", "waiting for responses"]
    assert [chosen[name] for name in ("recipients", "control group", "left out")] == ["", "", "0"]
    none = found["new_sale", "not launched"]
    assert (none["title"], none["when"], none["requests"]) == ("New sale", "", "")


def test_the_table_has_the_filter_and_the_order_of_the_list_and_no_pages(
    vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 60):
        freeze(ledger, "daily", people=day, day=day, decisions=False)
    freeze(ledger, "sums", day=2, definition={**PUSH, "title": '=SUM(A1),"Frühling"'})
    assert len(table(vera)) == 60
    query = "campaign=daily&sort=-recipients"
    assert [row["recipients"] for row in table(vera, query)] == [str(number) for number in range(59, 0, -1)]
    assert [row["title"] for row in table(vera, "words=sums")] == ['\'=SUM(A1),"Frühling"']
    assert table(vera, "state=reported") == []
    text = vera.get(f"?{query}&page=2").text
    assert f'href="./launches.csv?{html.escape(query)}">Download 59 launches as a table</a>' in text
    assert "launches.csv" not in vera.get("?state=reported").text
    monkeypatch.setattr(launches, "MOST_IN_TABLE", 40)
    monkeypatch.setattr("sendoff_airflow.views.pages.table.MOST_IN_TABLE", 40)
    assert "Download the first 40 as a table" in vera.get(f"?{query}").text
    parts = [table(vera, f"{query}&page={page}") for page in (1, 2)]
    assert [len(part) for part in parts] == [40, 19]
    assert parts[1][0]["recipients"] == "19"
    monkeypatch.setattr(ByDag, "seen", frozenset({"sums"}))
    assert [row["campaign"] for row in table(vera)] == ["sums"]
    assert table(vera, "campaign=daily") == []


def test_a_launch_shows_who_exported_its_people(vera: Person, ledger: Ledger) -> None:
    key = fill(ledger)["reported"]
    batches = list(VerdictRows.of(ledger, key, who="ann").batches())
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", vera.get(f"launches/{key}").text))
    assert "exported ann" in text
    assert f"The results of {sum(map(len, batches)):,} devices, one row each" in text
    assert re.search(r"exported, [^:]*:\d\d UTC: people \d", text)


def test_a_launch_shows_its_result_first_and_folds_what_few_people_need(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    text = vera.get(f"launches/{keys['reported']}").text
    headings = [unescape(each).strip() for each in re.findall(r"<h2[^>]*>(.*?)</h2>", text)]
    assert headings == [
        "Result",
        "Which variant is ahead?",
        "Did the message have an effect?",
        "What people see",
        "Decisions",
        "By platform",
        "By variant",
        "Deliveries and opens over time",
        "What cannot be known, and why",
        "From rows to devices",
        "More",
    ]
    assert "60 devices are in the control group and got no message" in text
    assert text.index("No side is clearly ahead") < text.index("25.26 %")
    assert "in Europe/Dublin" not in text
    assert "in UTC. One device can cause several." in text
    in_dublin = f"{vera.login['Cookie']}; sendoff-zone=Europe/Dublin"
    page = vera._server.get(f"{PREFIX}/launches/{keys['reported']}", headers={"Cookie": in_dublin}).text
    assert "in Europe/Dublin. One device can cause several." in page
    assert "in UTC" not in page
    folded = re.findall(r'<details class="fold" id="([\w-]+)"( open)?><summary>(.*?)</summary>', text)
    assert folded == [
        ("each-request", "", "Requests: 12 (1 refused, 1 in doubt)"),
        ("words", "", "What the words mean"),
        ("technical", "", "Technical details"),
    ]
    assert text.count('data-name="segment"') == 2
    filtered = vera.get(f"launches/{keys['reported']}?state=accepted").text
    assert '<details class="fold" id="each-request" open>' in filtered
    assert filtered.count('data-name="segment"') == 10


@pytest.mark.parametrize("variants", [["short", "long"], [None]])
def test_a_launch_at_own_hours_shows_each_comparison_below_its_question(
    vera: Person, ledger: Ledger, variants: list[str | None]
) -> None:
    definition = {
        **PUSH,
        "send": {"kind": "now", "own_hours": {}},
        "variants": {name: {"percent": 50} for name in variants if name},
    }
    parts = [(name, arm) for name in variants for arm in (Arm.OWN_HOUR, Arm.CONTROL)]
    segments = [
        Segment(integers(devices(9, FIRST_DEVICE + 9 * n)), Variation(variant=name), arm=arm)
        for n, (name, arm) in enumerate(parts)
    ]
    launch = make_launch(
        ledger, segments=segments, campaign=Campaign.model_validate(definition), name="hours"
    )
    send(ledger, launch.launch_key, *[Accepted(200, 1)] * len(parts))
    reconcile_launch(ledger, launch.launch_key)
    text = vera.get(f"launches/{launch.launch_key}").text
    asked = {
        question: answer.partition("</section>")[0]
        for question, answer in re.findall(
            r'<h2 id="comparison-\d">(.*?)</h2>(.*?)</section>', text, re.DOTALL
        )
    }
    hours = "Do more people open it at their own hour?"
    assert list(asked) == (["Which variant is ahead?", hours] if variants[0] else [hours])
    for question, sides in (("Which variant is ahead?", ["long", "short"]), (hours, ["own hour", "at once"])):
        if question in asked:
            assert re.findall(r'<th scope="row">(.*?)</th>', asked[question])[:2] == sides


@pytest.mark.parametrize("kinds", [["delivery", "open"], ["delivery"]])
def test_variants_that_cannot_be_compared_say_why(vera: Person, ledger: Ledger, kinds: list[str]) -> None:
    definition = {
        **PUSH,
        "variants": {name: {"percent": 50} for name in ("a", "b")},
        "post_backs": {"kinds": kinds},
    }
    variations = [Variation(variant=name) for name in ("a", "b")]
    key = freeze(ledger, "spring_sale", people=8, definition=definition, variations=variations)
    send(ledger, key, Accepted(200, 1))
    reconcile_launch(ledger, key)
    text = vera.get(f"launches/{key}").text
    compared = text.partition('<h2 id="comparison-1">')[2].partition("</section>")[0]
    shown = compared.partition("<details")[0]
    if "open" in kinds:
        assert "So far, there are too few results to tell which side is ahead." in shown
        assert "How this was compared" in compared
    else:
        assert "a: not measurable, because the launch did not request post-backs of opens." in shown
        assert "How this was compared" not in compared


def test_a_launch_shows_what_recipients_did_afterwards_with_intervals_and_a_conclusion(
    vera: Person, ledger: Ledger
) -> None:
    keys = fill(ledger)
    page = f"launches/{keys['reported']}"
    assert "Your data team can compare" in vera.get(page).text
    counts = [("sent to", 300, 1_000), (CONTROL_GROUP, 200, 1_000)]
    compared = compared_shares("<b>ordered</b>", counts, control=CONTROL_GROUP, noun=("device", "devices"))
    for _ in range(2):  # a repeated comparison replaces the one before
        store_outcome(ledger, keys["reported"], compared, NOW)
    assert stored_outcomes(ledger, keys["reported"]) == [(NOW, compared)]
    text = vera.get(page).text
    section = text.partition('id="effect"')[2].partition("</section>")[0]
    flat = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section))
    assert "sent to is ahead of control group (30.00 % against 20.00 % &lt;b&gt;ordered&lt;/b&gt;)" in flat
    assert "sent to against control group: more, by 10.00 points (between" in flat
    assert "Your data team can compare" not in text


def test_a_running_launch_shows_what_came_so_far(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale", people=40, size=20)
    send(ledger, key, Accepted(200, 1))
    assert "So far" not in vera.get(f"launches/{key}").text
    answer(ledger, key, since=NOW - timedelta(hours=2, minutes=5))
    aggregate(ledger)
    text = vera.get(f"launches/{key}").text
    assert "<b>So far 15 deliveries and 5 opens</b>; the newest came " in text
    assert " ago. <span" in text
    assert "There is no report yet" in text
    reconcile_launch(ledger, key)
    assert "So far 15" not in vera.get(f"launches/{key}").text


@pytest.mark.parametrize(
    ("state", "send", "said"),
    [
        ("released", {"date": 1}, r"Goes out <time [^>]+>[^<]+</time>, in \d.* in Europe/Dublin\)"),
        ("paused", {"date": 1}, r"When resumed, it goes out <time"),
        ("held", {"date": 1}, r"When approved, it goes out <time"),
        ("stopped", {"date": 1}, None),
        ("released", {"date": -2}, None),
        ("released", {"time_zone": "user", "date": 2}, r"in \d[^<]*, to <time .* own time zone"),
        (
            "released",
            {"kind": "recurring", "start": -9, "end": "never"},
            r"Goes out repeatedly: every day at 18:30",
        ),
        ("released", {"kind": "recurring", "start": -9, "end": -3}, None),
        ("released", None, None),
    ],
)
def test_a_launch_says_when_it_goes_out(
    vera: Person, ledger: Ledger, state: str, send: dict[str, Any] | None, said: str | None
) -> None:
    days = {
        name: str((NOW + timedelta(days=value)).date())
        for name, value in (send or {}).items()
        if type(value) is int
    }
    defaults = {"kind": "once", "time": "18:30", "time_zone": "Europe/Dublin"}
    definition = {**PUSH, "send": defaults | send | days} if send else PUSH
    key = freeze(ledger, "evening", definition=definition, state=state, made=NOW)
    text = re.sub(
        r'<div class="alarm danger">.*?</div>', "", vera.get(f"launches/{key}").text, flags=re.DOTALL
    )
    text = re.sub(r"\s+", " ", text)
    assert ("oes out" in text) is bool(said)
    assert said is None or re.search(said, text)


def test_a_launch_that_is_repeated_from_a_later_day_on_has_not_gone_out(vera: Person, ledger: Ledger) -> None:
    repeats = {"kind": "recurring", "time": "18:30", "time_zone": "UTC", "end": "never"}
    definition = {**PUSH, "send": {**repeats, "start": str((NOW + timedelta(days=9)).date())}}
    key = freeze(ledger, "evening", definition=definition)
    with ledger.launch_counts._database.write() as db:
        db.execute(sa.update(launches_table).values(sends_at=None))
    send(ledger, key, *[Accepted(200, 17)] * len(ledger.dispatch_queries.of_launch(key)))
    for path in (f"launches/{key}", "", "campaigns/evening", "launches.csv", "calendar"):
        assert "Went out" not in words(vera.get(path).text)
    assert "scheduled" in words(vera.get(f"launches/{key}").text)
    assert "launch went out" not in words(vera.post("person", {"identifier": str(FIRST_DEVICE)}).text)
    [row] = rows_of(ledger, ledger.overview.page(Selection(["evening"])))
    first = datetime.combine((NOW + timedelta(days=9)).date(), time(18, 30), UTC)
    assert (row.when, row.goes_out_at, row.is_to_continue) == ("Goes out", first, False)


def test_messages_are_shown_as_phones_and_mailboxes_do(vera: Person, ledger: Ledger) -> None:
    html = "<style>h1 { color: red }</style><h1>Spring</h1><script>alert(1)</script>"
    emails = {
        name: {"from_address": 1, "subject": name, "html": f"{html}{name}"} for name in ("short", "long")
    }
    definition = {
        **PUSH,
        "channels": {**PUSH["channels"], "sms": {"sender": "Garden", "text": "It is spring"}},
        "variants": {name: {"percent": 50, "channels": {"email": each}} for name, each in emails.items()},
    }
    variations = [Variation(variant=name) for name in emails]
    key = freeze(ledger, "spring_sale", definition=definition, variations=variations)
    for path in (f"launches/{key}", f"launches/{key}/preview", "campaigns/spring_sale"):
        text = vera.get(path).text
        shown = re.findall(r'<figure class="screen ([\w-]+)">', text)
        assert Counter(shown) == dict.fromkeys(("android-push", "ios-push", "web-push", "email", "sms"), 2), (
            path
        )
        addresses = [unescape(each) for each in re.findall(r'<iframe sandbox src="\W*([^"]+)"', text)]
        place = path.removesuffix("/preview")
        assert addresses == [f"{place}/email?variant={name}" for name in emails]
        for address, name in zip(addresses, emails, strict=True):
            page = vera.get(address)
            assert page.text == html + name
            policy = page.headers["Content-Security-Policy"]
            assert policy.startswith("sandbox; default-src 'none';")
            assert "allow-" not in policy
    assert "Variant short <span" in vera.get(f"launches/{key}").text
    push = freeze(ledger, "big_news")
    for path in (f"launches/{push}/email", "campaigns/big_news/email", f"launches/{key}/email?variant=none"):
        assert vera.get(path).status_code == 404, path


@pytest.mark.parametrize(("form", "kind"), [("html", "text/html"), ("png", "image/png"), ("csv", "text/csv")])
def test_a_report_is_downloaded_and_identifies_no_one(
    vera: Person, ledger: Ledger, form: str, kind: str
) -> None:
    keys = fill(ledger)
    start = ledger.launches.get(keys["reported"]).period.start
    got = vera.get(f"launches/{keys['reported']}/report.{form}")
    assert got.headers["Content-Type"].startswith(kind)
    assert got.headers["Content-Disposition"] == (
        f'attachment; filename="spring_sale-{start.date()}-{keys["reported"][:12]}.{form}"'
    )
    name = "Pacific/Kiritimati" if start.hour >= 10 else "Pacific/Pago_Pago"  # where it is another day
    elsewhere = {"Cookie": f"{vera.login['Cookie']}; sendoff-zone={name}"}
    named = vera._server.get(f"{PREFIX}/launches/{keys['reported']}/report.{form}", headers=elsewhere)
    day = start.astimezone(ZoneInfo(name)).date()
    assert day != start.date()
    assert f'"spring_sale-{day}-' in named.headers["Content-Disposition"]
    assert str(FIRST_DEVICE)[:8] not in got.text
    if form == "png":
        assert got.content.startswith(b"\x89PNG")
    else:
        assert "audience" in got.text
    assert (form == "csv") is got.content.startswith(
        b"\xef\xbb\xbfof,"
    )  # without this, Excel shows wrong letters
    if form == "html":
        assert "<h1>Spring sale</h1>" in got.text
        assert "00:00:00Z" not in got.text
    assert f'launches/{keys["reported"]}/report.{form}"' in vera.get(f"launches/{keys['reported']}").text
    for path in (
        f"{keys['running']}/report.{form}",
        f"{keys['reported']}/report.exe",
        f"{NOBODY}/report.{form}",
    ):
        assert vera.get(f"launches/{path}").status_code == 404, path


def test_without_matplotlib_no_picture_is_offered(
    vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = fill(ledger)["reported"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = vera.get(f"launches/{key}").text
    assert "report.csv" in text
    assert "report.png" not in text
    assert vera.get(f"launches/{key}/report.png").status_code == 404


def test_a_sum_says_by_how_much_it_is_wrong() -> None:
    right = Sum(
        (Line("", 10, "rows"), Line("-", 3, "null"), Line("=", 7, "audience"), Line("=", 7, "people"))
    )
    assert right.missing == 0
    assert Sum((Line("", 10, "rows"), Line("-", 3, "null"), Line("=", 6, "audience"))).missing == 1


def test_lists_are_cut_into_pages(vera: Person, ledger: Ledger) -> None:
    for day in range(1, 60):
        freeze(ledger, "daily", people=2, day=day, decisions=False)
    first = vera.get("").text
    assert first.count("<tr>") - 1 == LAUNCHES_PER_PAGE
    assert "1 to 25 of 59" in first
    assert 'href="?page=2"' in first
    last = vera.get("?campaign=daily&page=3").text
    assert "51 to 59 of 59" in last
    assert 'href="?campaign=daily&amp;page=2"' in last
    assert "This page does not exist" in vera.get("?page=4").text
    assert "No launches match" in vera.get("?state=paused").text
    assert "26 to 50 of 59" in vera.get("?state=stuck&page=2").text
    assert "26 to 50 of 59" in vera.get("?sort=state&page=2").text
    key = freeze(ledger, "large", people=300, size=1)
    text = vera.get(f"launches/{key}?page=2").text
    assert "51 to 100 of 300" in text
    send(ledger, key, Accepted(200, 7))
    assert "1 to 1 of 1" in vera.get(f"launches/{key}?state=accepted").text
    assert "1 to 50 of 299" in vera.get(f"launches/{key}").text
    assert "1 to 50 of 300" in vera.get(f"launches/{key}?state=all").text


def titles(text: str) -> list[str]:
    """Return the campaigns of a list of launches, from top to bottom."""
    return re.findall(r'class="pale" href="\./campaigns/(\w+)"', text)


def test_the_list_shows_the_states_that_people_understand(vera: Person, ledger: Ledger) -> None:
    fill(ledger)
    freeze(ledger, "left_alone", day=2)
    rows = re.findall(r"<tr>.*?</tr>", vera.get("").text, re.DOTALL)[1:]
    states = {
        (titles(row)[0], found[1]) for row in rows if (found := re.search(r'class="badge[^>]*>([^<]+)<', row))
    }
    assert states == {
        ("spring_sale", "reported"),
        ("welcome_back", "sending"),
        ("welcome_back", "stopped"),
        ("big_news", "waiting for approval"),
        ("daily_digest", "waiting for a decision"),
        ("everybody", "waiting for responses"),
        ("left_alone", "stuck"),
    }
    assert titles(vera.get("?state=stuck").text) == ["left_alone"]
    assert set(titles(vera.get("?state=sending&state=stopped").text)) == {"welcome_back"}
    assert len(titles(vera.get("?state=nonsense&sort=nonsense&since=nonsense").text)) == 7


def test_what_it_sends_begins_with_the_launch_and_its_state(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale")
    ledger.audit_log.decide(Decision(key, "stopped", "ann", "the wrong picture", NOW))
    period = ledger.launches.get(key).period
    text = words(vera.get(f"launches/{key}/preview").text.partition('class="crumbs"')[2])
    assert text.startswith(
        f">Spring sale {FILTERS['span']((period.start, period.end))} stopped What it sends"
    ), text


def test_what_it_sends_names_the_time_at_which_the_service_sends_it(vera: Person, ledger: Ledger) -> None:
    sends = NOW + timedelta(days=1)
    key = freeze(ledger, "evening", sends=sends)
    send(ledger, key, *[Accepted(200, 1)] * 6)
    text = vera.get(f"launches/{key}/preview").text
    assert re.search(
        rf'Handed to the service <time datetime="{re.escape(NOW.isoformat())}">[^<]+</time>\. '
        rf'Goes out to 12 devices <time datetime="{re.escape(sends.isoformat())}">',
        text,
    ), text
    assert "ALREADY SENT" not in text


def test_the_list_is_searched_and_sorted(vera: Person, ledger: Ledger) -> None:
    fill(ledger)
    first = vera.get("").text
    for name in ("campaign", "sends", "period", "state", "recipients", "reached", "opened", "requests"):
        [link] = re.findall(rf'href="\?(sort=-?{name})"', first)
        sorted_ = vera.get(f"?{link}")
        other = "sort=" + (link[6:] if link[5] == "-" else f"-{name}")
        assert f'href="?{other}"' in sorted_.text, name
        assert sorted_.text.count("aria-sort=") == 1, name
        assert sorted(titles(sorted_.text)) == sorted(titles(first)), name
    assert titles(vera.get("?sort=-recipients").text)[0] == "big_news"
    assert titles(vera.get("?sort=state").text)[0] == "big_news"
    assert titles(vera.get("?sort=-opened").text)[0] == "spring_sale"
    assert titles(vera.get("?words=WELCOME%20back&sort=state").text) == ["welcome_back"] * 2
    yesterday = (NOW - timedelta(days=1)).date()
    assert "spring_sale" not in titles(vera.get(f"?since={yesterday}").text)
    assert titles(vera.get(f"?until={yesterday}").text) == ["spring_sale"]
    in_tokyo = {"Cookie": f"{vera.login['Cookie']}; sendoff-zone=Asia/Tokyo"}
    for no_day in ("since=0001-01-01", "until=9999-12-31", "until=2026-02-30"):
        page = vera._server.get(f"{PREFIX}/?{no_day}", headers=in_tokyo)
        assert titles(page.text) == titles(first), no_day
    assert "1,140 devices" in first  # without the control group
    assert "1,200 devices" not in first


@pytest.fixture
def read(ledger: Ledger) -> Iterator[Counter[str]]:
    """Count the statements and the rows that ledgers opened from now on read."""
    found: Counter[str] = Counter()

    def count_row(_: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        found["rows"] += 1
        return row

    def watch(db: sqlite3.Connection, _: object) -> None:
        [(_, _, file)] = db.execute("PRAGMA database_list").fetchall()
        if file.endswith("/ledger.db"):
            db.set_trace_callback(lambda _: found.update(["statements"]))
            db.row_factory = count_row

    sa.event.listen(sa.pool.Pool, "connect", watch)
    yield found
    sa.event.remove(sa.pool.Pool, "connect", watch)


def doubt_all(ledger: Ledger) -> None:
    """Leave every planned request without an answer."""
    engine = sa.create_engine(ledger.name)
    claimed = {"state": "in_doubt", "attempt": 1}
    made = sa.select(
        dispatches.c.dispatch_key, 1, sa.literal("in_doubt"), sa.literal(NOW, outcomes.c.recorded_at.type)
    )
    with engine.begin() as db:
        db.execute(sa.insert(outcomes).from_select(["dispatch_key", "attempt", "kind", "recorded_at"], made))
        db.execute(sa.update(dispatches).values(claimed))
    engine.dispose()


@pytest.mark.proof
def test_what_a_page_reads_and_asks_does_not_grow_with_the_doubts(
    as_: Callable[..., Person], ledger: Ledger, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    campaigns, requests = 200, 100
    keys = [
        freeze(
            ledger,
            f"sale_{n:03}",
            people=2 * requests,
            size=2,
            decisions=False,
            made=NOW - timedelta(minutes=n),
        )
        for n in range(campaigns)
    ]
    doubt_all(ledger)
    olga = as_("olga", "OP")
    paths = {
        "": "20,000 requests in doubt in 200 launches</a>, to 40,000 recipients",
        "waiting": "1 to 10 of 200 launches in doubt",
        "waiting?page=20": "191 to 200 of 200 launches in doubt",
        f"waiting?launch={keys[7]}&page=2": "51 to 100 of 100 requests in doubt",
    }
    for path, words in paths.items():
        read.clear()
        monkeypatch.setattr(ByDag, "questions", [])
        text = olga.get(path).text
        assert words in text, path
        assert text.count("<tr>") <= 10 * (DOUBTS_PER_LAUNCH + 1), path
        assert 0 < read["statements"] < 150, (path, read)
        assert 0 < read["rows"] < 3_000, (path, read)
        assert len(ByDag.questions) < 6, (path, ByDag.questions)
    first = olga.get("waiting").text
    assert f"doubt-{keys[9]}" in first
    assert f"doubt-{keys[10]}" not in first
    assert first.count('name="requests"') == 10 * DOUBTS_PER_LAUNCH
    assert f'href="./waiting?launch={keys[0]}"' in first
    last = olga.get(f"waiting?launch={keys[7]}&page=2").text
    shown = re.findall(r'name="requests" data-list value="([0-9a-f]{32}:\d+)"', last)
    assert len(shown) == DOUBTS_PER_PAGE
    settled = olga.post(f"launches/{keys[7]}/doubts/write-off", {**WHY, "requests": shown})
    assert "50 requests written off" in settled.text
    monkeypatch.setattr(ByDag, "seen", frozenset({"sale_007", "sale_100"}))
    monkeypatch.setattr(ByDag, "steered", frozenset({"sale_100"}))
    ruth = as_("ruth", "OP")
    assert "150 requests in doubt in 2 launches" in ruth.get("").text
    text = ruth.get("waiting").text
    assert re.findall(r'id="doubt-([0-9a-f]{32})"', text) == [keys[7], keys[100]]
    assert f"launches/{keys[100]}/doubts/resend" in text
    assert f"launches/{keys[7]}/doubts/resend" not in text
    assert ruth.get(f"waiting?launch={keys[8]}").status_code == 404
    assert "This page does not exist" in ruth.get("waiting?page=2").text


def test_pages_of_an_empty_ledger_say_what_to_do(vera: Person, ledger: Ledger) -> None:
    assert "There are no launches yet" in vera.get("").text
    assert "Nothing is waiting" in vera.get("waiting").text
    assert "There are no launches" in vera.post("person", {"identifier": "1"}).text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////nowhere/at/all.db", "An administrator must repair"),
        ("postgresql://ann@127.0.0.1:9/shop", "cannot reach it"),
        ("nonsense", "the connection sendoff_ledger"),
        (None, "There is no ledger"),
    ],
)
def test_without_a_ledger_a_page_says_what_to_do(
    vera: Person, monkeypatch: pytest.MonkeyPatch, url: str | None, words: str
) -> None:
    if url is None:
        monkeypatch.delenv("SENDOFF_LEDGER_URL", raising=False)
    else:
        monkeypatch.setenv("SENDOFF_LEDGER_URL", url)
    answer = vera.get("")
    assert answer.status_code == 503
    assert words.lower() in answer.text.lower()
    assert "/nowhere" not in answer.text
    assert "127.0.0.1" not in answer.text
    assert 'data-refresh="10"' in answer.text


def test_pages_allow_no_script_and_no_style_but_our_own(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    for path in ("", f"launches/{keys['reported']}", f"launches/{keys['reported']}/preview", "nothing"):
        answer = vera.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert not re.search(r"\sstyle=|\son\w+=|<script(?! src=)|<style", answer.text), path
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text), path


def test_a_page_about_an_error_that_nobody_foresaw_has_the_same_headers(
    server: TestClient, vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("as nobody foresaw")

    monkeypatch.setattr(airflow_dags, "campaigns_with_a_dag", broken)
    quiet = TestClient(server.app, base_url="http://airflow.example", raise_server_exceptions=False)
    answer = quiet.get(f"{PREFIX}/campaigns", headers=vera.login)
    assert answer.status_code == 500
    assert "Something went wrong" in answer.text
    assert "as nobody" not in answer.text
    seen = vera.get("waiting").headers
    for name in ("Content-Security-Policy", "Cache-Control", "X-Content-Type-Options", "Referrer-Policy"):
        assert answer.headers[name] == seen[name], name
    assert answer.headers["Cache-Control"] == "no-store"
    style = server.get(f"{PREFIX}/static/sendoff.css").headers
    assert (style["Cache-Control"], style["X-Content-Type-Options"]) == ("no-cache", "nosniff")


def test_nobody_is_led_to_the_host_of_a_request(server: TestClient, ledger: Ledger) -> None:
    for path in ("waiting/", "campaigns/", "launches/x/", "person/", "waiting//"):
        answer = server.get(f"{PREFIX}/{path}", headers={"Host": "elsewhere.example"})
        assert answer.status_code in (401, 404), path
        assert "Location" not in answer.headers, path


def test_no_handler_holds_up_the_server() -> None:
    for route in create_pages().routes:
        if isinstance(route, Route):
            assert not inspect.iscoroutinefunction(route.endpoint), route.path


def test_previews_beyond_those_that_are_made_are_refused_at_once_and_other_pages_are_served(
    server: TestClient, vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = freeze(ledger, "spring_sale", state="held")
    opened, made = Event(), sendoff.launch.build_preview.preview_launch

    def slow(*args: Any, **rest: Any) -> Any:
        assert opened.wait(PATIENCE)
        return made(*args, **rest)

    monkeypatch.setattr(sendoff.launch.build_preview, "preview_launch", slow)

    async def ask() -> tuple[list[httpx.Response], httpx.Response, list[httpx.Response]]:
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow.example") as client:

            async def get(path: str) -> httpx.Response:
                return await client.get(f"{PREFIX}/{path}", headers=vera.login)

            asked = [asyncio.create_task(get(f"launches/{key}/preview")) for _ in range(62)]
            refused: list[httpx.Response] = []
            for each in asyncio.as_completed(asked):
                refused.append(await each)
                if len(refused) == 60:
                    break
            other = await get("waiting")
            opened.set()
            answers = await asyncio.gather(*asked)
            return refused, other, [each for each in answers if each.status_code == 200]

    try:
        refused, other, shown = asyncio.run(ask())
    finally:
        opened.set()
    assert {each.status_code for each in refused} == {503}
    assert {each.headers.get("Retry-After") for each in refused} == {"10"}
    assert "Try again in a few seconds" in refused[0].text
    assert other.status_code == 200
    assert len(shown) == 2
    assert vera.get(f"launches/{key}/preview").status_code == 200


def test_the_plugin_shows_the_pages_in_the_navigation_and_on_dags_and_runs() -> None:
    views = {each["destination"]: each for each in SendoffPlugin.external_views}
    assert set(views) == {"nav", "dag", "dag_run", "task_instance"}
    assert len({each["url_route"] for each in views.values()}) == 4
    assert all(not each["href"].startswith("/") for each in views.values())


@pytest.fixture
def teams(server: TestClient) -> Iterator[None]:
    """Add two teams to Airflow, crm and press, each with a bundle of DAGs. Remove all traces of them afterwards."""
    names = ("crm", "press")
    with create_session() as session:
        for name in names:
            session.add(Team(name=name))
            session.add(DagBundleModel(name=f"{name}-dags"))
            session.flush()
            session.execute(
                sa.insert(bundles_of_teams).values(dag_bundle_name=f"{name}-dags", team_name=name)
            )
    yield
    with create_session() as session:
        session.execute(sa.delete(bundles_of_teams))
        session.execute(sa.delete(Team))


@pytest.mark.proof
@pytest.mark.airflow_database
def test_where_airflow_has_teams_nobody_sees_or_steers_more_than_airflow_lets_them(
    as_: Callable[..., Person], ledger: Ledger, teams: None, tmp_path: Path, server: TestClient
) -> None:
    where = {"of_crm": "crm-dags", "of_press": "press-dags", "of_nobody": "dags-folder"}
    keys = {name: freeze(ledger, name) for name in (*where, "without_a_dag")}
    runs_ = {
        name: Run(server, tmp_path / name, name, keys[name], bundle=bundle) for name, bundle in where.items()
    }
    cora, nora, ada = as_("cora", "OP", "crm"), as_("nora", "OP"), as_("ada", "ADMIN")
    lets = {
        cora: {"of_crm", "of_nobody"},
        nora: {"of_nobody"},
        ada: set(keys),
    }
    for person, seen in lets.items():
        for name in where:
            asked = person.ask_airflow("GET", f"api/v2/dags/{name}", None).status_code
            assert asked == (200 if name in seen else 403), name
        front = person.get("").text
        for name, key in keys.items():
            may = name in seen
            assert (f">{name}</a>" in front) is may, name
            assert person.get(f"launches/{key}").status_code == (200 if may else 404), name
            assert person.get(f"campaigns/{name}").status_code == (200 if may else 404), name
            assert person.get(f"waiting?launch={key}").status_code == (200 if may else 404), name
            answer = person.post(f"launches/{key}/release", {**WHY, "since": 2**62})
            assert answer.status_code == (409 if may else 404), name
        answer = person.post("pauses/pause", {**WHY, "connection": "service"})
        assert answer.status_code == (200 if person is ada else 403)
    # Nor may a user set a pause that affects only what they may control now, but also what another team adds later.
    freeze(ledger, "of_crm", day=2, connection="of crm alone")
    assert cora.post("pauses/pause", {**WHY, "connection": "of crm alone"}).status_code == 403
    assert runs_["of_crm"].id in cora.get(f"launches/{keys['of_crm']}").text


class Run:
    """A run of a campaign's DAG in Airflow, created through its own REST API."""

    def __init__(
        self,
        server: TestClient,
        folder: Path,
        name: str,
        key: str,
        *,
        bundle: str = "dags-folder",
        group: str = "",
        hour: int = NEWEST.hour,
        text: str = CAMPAIGN,
        dags: str = "",
    ) -> None:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        path = folder / "campaigns" / name
        path.mkdir(parents=True)
        (path / "campaign.yaml").write_text(text.replace(f"0 {NEWEST.hour} *", f"0 {hour} *"))
        (path / "audience.sql").write_text("SELECT device_id FROM devices")
        (folder / "campaigns.py").write_text(dags or (DAG_WITH_GROUP if group else DAGS))
        bag = DagBag(dag_folder=folder)
        assert name in bag.dags, bag.import_errors
        sync_bag_to_db(bag, bundle, None)
        self.person = Person(server, "ada", "ADMIN")
        self.asks_until = datetime.now(UTC) + timedelta(hours=3, minutes=20, seconds=30)
        self.name, self.key, self.group = name, key, group
        self.pause(False)
        self._start(f"of+{key[:6]}~1", NOW - timedelta(days=int(key[:2], 16)))

    def _start(self, run_id: str, logical_date: datetime) -> None:
        self.id = run_id
        body = {"dag_run_id": self.id, "logical_date": logical_date.isoformat()}
        self._api("POST", f"dags/{self.name}/dagRuns", body)
        runs_ = f"dags/{self.name}/dagRuns/{quote(self.id, safe='')}"
        self._tasks = f"{runs_}/taskInstances"
        self.found("audience", self.key, f"{self.name}.{self.group}".rstrip("."))

    def found(self, task: str, key: str, campaign: str) -> None:
        """Do what a task does that found its launch."""
        for name, value in (("launch_key", key), ("campaign", campaign)):
            self._api("POST", f"{self._tasks}/{self.group}{task}/xcomEntries", {"key": name, "value": value})

    def again(self) -> Run:
        """Return another run of the DAG, which finds the same launch. Its question ends an hour later."""
        other = copy(self)
        other.asks_until += timedelta(hours=1)
        other._start(f"{self.id}2", NOW - timedelta(days=300))
        return other

    def _api(self, method: str, path: str, body: Any) -> Any:
        answer = self.person.ask_airflow(method, f"api/v2/{path}", body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def pause(self, is_paused: bool = True) -> None:
        """Pause or unpause the DAG."""
        self._api("PATCH", f"dags/{self.name}", {"is_paused": is_paused})

    def ask(self, *assigned: str) -> None:
        """Do what Airflow does when ``approve`` asks. ``assigned``: who may answer."""
        with create_session() as session:
            of_run = {"dag_id": self.name, "run_id": self.id}
            task = session.query(TaskInstance).filter_by(**of_run, task_id=f"{self.group}approve").one()
            task.state, task.next_method = "awaiting_input", "execute_complete"
            task.trigger_timeout = self.asks_until
            session.query(DagRun).filter_by(**of_run).update({"state": "running"})
            users = [{"id": each, "name": each} for each in assigned]
            asked = {"options": ["Approve", "Reject"], "subject": "Send?", "assignees": users}
            session.add(HITLDetail(ti_id=task.id, params={}, params_input={}, **asked))

    def asks(self) -> tuple[str | None, list[tuple[str, list[str]]]]:
        """Return the state of ``approve``, and the answers by user."""
        with create_session() as session:
            task = (
                session.query(TaskInstance).filter_by(dag_id=self.name, task_id=f"{self.group}approve").one()
            )
            found = [
                each for each in session.query(HITLDetail) if each.ti_id == task.id and each.responded_at
            ]
            return task.state, [(each.responded_by["id"], each.chosen_options) for each in found]

    def end(self, task: str, state: str) -> None:
        self._api(
            "PATCH",
            f"{self._tasks}/{self.group}{task}/0"
            if task == "dispatch"
            else f"{self._tasks}/{self.group}{task}",
            {"new_state": state},
        )


@pytest.mark.parametrize(
    ("date", "days", "words"),
    [
        ("", -3, "at 18:30 on the day of the run, in UTC"),  # overdue, as the run of a paused DAG
        ("", 3, f"at 18:30 on {NOW.date() + timedelta(days=3)}, in UTC"),
        ("date: 2026-01-05, ", -3_000, "at 18:30 on 2026-01-05, in UTC. That moment has passed"),
    ],
)
def test_the_next_launch_never_shows_a_past_date_as_its_time(
    tmp_path: Path, date: str, days: int, words: str
) -> None:
    folder = tmp_path / "campaigns" / "evening"
    folder.mkdir(parents=True)
    send = f"send: {{kind: once, time: '18:30', {date}time_zone: UTC}}\n"
    (folder / "campaign.yaml").write_text(CAMPAIGN + send)
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    end = NOW.replace(hour=9) + timedelta(days=days)
    schedule = airflow_dags.DagSchedule(
        "evening", True, None, end, end - timedelta(days=1), end, str(tmp_path / "campaigns.py"), "Evening"
    )
    found = next_launch_of(schedule, None, ("device", "devices"))
    assert found is not None
    assert found.sends == words
    assert any(line.startswith("send.date: ") for line in found.advice) == bool(date)


def test_the_gates_of_the_next_launch_are_written_in_words(ledger: Ledger) -> None:
    gates = {
        "least": 1_000,
        "change": 50,
        "lateness": {"length": 1, "unit": "hours"},
        "rollout": {"shares": [1, 10], "wait": {"length": 30, "unit": "minutes"}},
        "failures": {"refused": 2},
        "window": {"earliest": "09:00", "latest": "20:00", "time_zone": "query", "default_time_zone": "UTC"},
        "hold_above": {"missing": 20, "opt_outs": 0.5},
    }
    freeze(ledger, "gated", definition={**PUSH, "gates": gates})
    [launch] = ledger.launches.page(["gated"])
    found = next_launch_of(None, launch, launch.noun)
    assert found is not None
    assert found.gates == [
        "at least 1,000 devices",
        "at most 50 % more or fewer devices than at the last launch",
        "at most 1 hour late",
        "only from 09:00 to 20:00, in each device's own time zone",
        (
            "first to 1 % and 10 % of the devices, then to the rest, 30 minutes apart. It waits for a person if more "
            "than 1 % of the requests are refused"
        ),
        "it waits for a person if 2 of the last 20 requests are refused, or 3 are in doubt",
        "it waits for a person if, of the devices, more than 20 % are missing after 2 hours or more than 0.5 % opt out",
    ]


@pytest.mark.parametrize("schedule", ["", "schedule: 0 9 * * *\n"])
@pytest.mark.parametrize("gates", ["", "gates: {most: 500, lateness: {length: 2, unit: hours}}\n"])
def test_the_next_launch_names_the_same_gates_if_its_folder_cannot_be_read(
    ledger: Ledger, tmp_path: Path, schedule: str, gates: str
) -> None:
    folder = tmp_path / "campaigns" / "gated"
    folder.mkdir(parents=True)
    (folder / "campaign.yaml").write_text(CAMPAIGN.partition("schedule:")[0] + schedule + gates)
    (folder / "audience.sql").write_text("SELECT device_id FROM devices")
    dag = airflow_dags.DagSchedule(
        "gated", False, None, None, None, None, str(tmp_path / "campaigns.py"), "Gated"
    )
    read = airflow_dags.folder_of(dag)
    assert read is not None
    freeze(ledger, "gated", definition=read.campaign.model_dump())
    [launch] = ledger.launches.page(["gated"])
    of_folder, of_launch = (next_launch_of(*each, launch.noun) for each in ((dag, None), (None, launch)))
    assert of_folder is not None
    assert of_launch is not None
    assert of_launch.gates == of_folder.gates
    assert len(of_launch.gates) == (2 if gates else 0)


@pytest.mark.parametrize("name", Gates.model_fields)
def test_every_gate_has_its_words_on_the_page_of_a_campaign(name: str) -> None:
    assert name in GATE_WORDS


@pytest.mark.airflow_database
def test_a_launch_and_its_run_lead_to_each_other(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "leads", people=2, state="held")
    ledger.audit_log.decide(Decision(key, "approved", "ann", None, NOW))
    send(ledger, key, TIMED_OUT)
    run = Run(server, tmp_path, "leads", key)
    assert run.id in olga.get(f"launches/{key}").text
    other = Run(server, tmp_path / "other", "misleads", key)  # of another DAG, and newer
    told = f"{run._tasks}/check_dispatched/xcomEntries", {"key": "launch_key", "value": NOBODY}
    run._api("POST", *told)  # by a task that creates no launches
    other.found("preview", key, "leads")  # by a user who edits XComs
    assert "misleads" not in olga.get(f"launches/{key}").text
    assert "has no launch yet" in olga.get(f"dag?dag_id=misleads&run_id={quote(other.id)}").text
    led = olga.get(f"dag?dag_id=leads&run_id={quote(run.id)}")
    assert (led.status_code, led.headers["Location"]) == (303, f"launches/{key}")
    assert olga.get("dag?dag_id=leads").headers["Location"] == "campaigns/leads"
    assert "has no launch yet" in olga.get("dag?dag_id=leads&run_id=another").text
    campaign = olga.get("campaigns/leads").text
    assert "Come and see" in campaign
    assert "cannot read the campaign&#39;s folder" not in campaign

    run.end("dispatch", "failed")
    [doubt] = ledger.doubts.open(key)
    asked = {**WHY, "requests": [f"{doubt.dispatch_key}:1"]}
    answer = olga.post(f"launches/{key}/doubts/resend", asked)
    assert "continues: its remaining 1 request goes out as soon as Airflow has a free worker." in words(
        answer.text
    )
    assert "Airflow runs the task dispatch again" in words(answer.text)
    found = airflow_db.run_of(key, "leads")
    assert found is not None
    assert not found.tasks["dispatch"]["failed"]


@pytest.mark.airflow_database
def test_a_launch_waits_until_someone_answers_in_airflow_who_may(
    server: TestClient, as_: Callable[..., Person], ledger: Ledger, tmp_path: Path
) -> None:
    olga, rolf, vera = as_("olga", "OP"), as_("rolf", "OP"), as_("vera", "VIEWER")
    key = freeze(ledger, "assigned", state="held")
    run = Run(server, tmp_path, "assigned", key)
    assert "Rejects itself" not in olga.get(f"launches/{key}").text
    run.ask("rolf")
    text = re.sub(r"\s+", " ", olga.get(f"launches/{key}").text)
    at = re.search(r'Rejects itself <time datetime="([^"]+)">[^<]+</time>, in 3 h 20 min, if no one', text)
    assert at
    assert datetime.fromisoformat(at[1]) == run.asks_until
    assert olga.post(f"launches/{key}/continue").status_code == 409
    answer = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)})
    assert "you may not answer there" in answer.text
    assert ledger.launches.get(key).state == "released"
    assert "Rejects itself" not in olga.get(f"launches/{key}").text
    for person, may in ((olga, False), (vera, False), (rolf, True)):
        assert "1 launch not yet answered in Airflow" in person.get("").text
        for page in ("waiting", f"launches/{key}"):
            text = person.get(page).text
            assert "Approved here, not yet in Airflow" in text, page
            assert quote(run.id, safe="") in text, page
            assert (f"launches/{key}/continue" in text) is may, page
    assert "you may not answer there" in olga.post(f"launches/{key}/continue").text
    assert run.asks() == ("awaiting_input", [])

    assert "Answered in Airflow too" in rolf.post(f"launches/{key}/continue").text
    assert run.asks() == ("scheduled", [("rolf", ["Approve"])])
    assert "Nothing is waiting" in rolf.get("waiting").text
    assert "Its run in Airflow continues by itself" in rolf.post(f"launches/{key}/continue").text


@pytest.mark.airflow_database
@pytest.mark.parametrize(
    ("is_asked", "after", "says"),
    [(False, "rejected", "no one approved this launch in time"), (True, "released", "Approved")],
)
def test_a_launch_is_not_approved_after_its_time_unless_airflow_still_asks(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, is_asked: bool, after: str, says: str
) -> None:
    name = f"overdue_{after}"
    key = freeze(ledger, name, state="held", made=NOW - timedelta(hours=5))
    if is_asked:
        Run(server, tmp_path, name, key).ask()
    over = "The time for an answer is over, so it can only be rejected."
    for path in ("waiting", f"launches/{key}"):
        text = olga.get(path).text
        assert (over in text) != is_asked
        assert (f"launches/{key}/release" in text) == is_asked
    answer = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)})
    assert answer.status_code == 200
    assert says in answer.text
    assert ledger.launches.get(key).state == after


@pytest.mark.airflow_database
@pytest.mark.parametrize(
    ("act", "assigned", "left"),
    [
        ("reject", "olga", ("scheduled", [("olga", ["Reject"])])),
        ("reject", "rolf", (None, [])),  # cleared: the task then asks no one
        ("stop", "olga", ("scheduled", [("olga", ["Reject"])])),
        ("stop", "rolf", (None, [])),
    ],
)
def test_no_question_of_a_launch_that_has_ended_stays_open(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, act: str, assigned: str, left: Any
) -> None:
    name = f"{act}_{assigned}"
    key = freeze(ledger, name, state="held" if act == "reject" else "released")
    run = Run(server, tmp_path, name, key)
    run.ask(assigned)
    assert "Answered in Airflow too" in olga.post(f"launches/{key}/{act}", WHY).text
    assert run.asks() == left
    assert "Nothing is waiting" in olga.get("waiting").text


@pytest.mark.airflow_database
def test_a_launch_that_was_decided_elsewhere_waits_with_one_button(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "decided_elsewhere", state="held")
    run = Run(server, tmp_path, "decided_elsewhere", key)
    run.ask()
    reject(ledger, key, "ann", "no")
    assert "Rejected here, not yet in Airflow" in olga.get("waiting").text
    olga.post(f"launches/{key}/continue")
    assert run.asks() == ("scheduled", [("olga", ["Reject"])])


@pytest.mark.airflow_database
@pytest.mark.parametrize("failed", ["approve", "preview", "dispatch"])
def test_a_release_clears_the_task_that_failed(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, failed: str
) -> None:
    name = f"failed_{failed}"
    key = freeze(ledger, name, state="held")
    run = Run(server, tmp_path, name, key)
    run.end(failed, "failed")
    text = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)}).text
    assert "Approved: the launch may now be sent." in text
    assert "Spring sale continues: its 6 requests go out as soon as Airflow has a free worker." in words(text)
    assert f"Airflow runs the task {failed} again" in text
    found = airflow_db.run_of(key, name)
    assert found is not None
    assert found.state == "queued"
    assert "failed" not in found.tasks[failed]


@pytest.mark.airflow_database
@pytest.mark.parametrize("failed", ["dispatch", "preview"])
def test_a_launch_whose_run_ended_is_stuck_until_someone_continues_it(
    server: TestClient, as_: Callable[..., Person], ledger: Ledger, tmp_path: Path, failed: str
) -> None:
    olga, vera = as_("olga", "OP"), as_("vera", "VIEWER")
    name = f"left_{failed}"
    key = freeze(ledger, name, people=6, made=NOW)
    run = Run(server, tmp_path, name, key)
    assert "launch stuck" not in olga.get("").text
    run.end(failed, "failed")
    for person, may in ((olga, True), (vera, False)):
        assert "1 launch stuck" in person.get("").text
        for path in ("waiting", f"launches/{key}"):
            text = person.get(path).text
            said = words(text)
            assert "Stuck: this launch stopped before it was sent. No one has got it yet." in said, path
            assert "It then goes out at once, to 6 devices. No one gets it twice." in said, path
            assert ("Press Continue to start it again." in said) is may, path
            assert ("Ask someone who may clear its tasks in Airflow" in said) is not may, path
            assert (f"Clear the task {failed} of the run." in said) is not may, path
            assert (f"launches/{key}/continue" in text) is may, path
        assert titles(person.get("?state=stuck").text) == [name]
    text = olga.post(f"launches/{key}/continue").text
    assert "Spring sale continues: its 3 requests go out as soon as Airflow has a free worker." in words(text)
    assert f'<a href="../../launches/{key}">Spring sale</a>' in text
    assert f"Airflow runs the task {failed} again" in text
    assert "Stuck:" not in olga.get(f"launches/{key}").text
    assert "Nothing is waiting" in olga.get("waiting").text


@pytest.mark.airflow_database
def test_a_stuck_launch_says_what_has_happened_and_what_continuing_it_does(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    definition, opens_at = closed_window()
    key = freeze(ledger, "owls", people=6, definition=definition)
    run = Run(server, tmp_path, "owls", key)
    run.end("dispatch", "failed")
    for path in ("waiting", f"launches/{key}"):
        said = words(olga.get(path).text)
        assert re.search(
            f"It then goes out {opens_at}, in [^.]+, to 6 devices. No one gets it twice.", said
        ), path
    said = words(olga.post(f"launches/{key}/continue").text)
    assert re.search(f"Night owls continues. It goes out {opens_at}, in [^.]+\\.", said)
    assert "worker" not in said
    send(ledger, key, Accepted(200, 1))
    run.end("dispatch", "failed")
    said = words(olga.get("waiting").text)
    assert "Stuck: this launch stopped part way. 4 devices have not got it yet." in said
    assert re.search(f"The rest then goes out {opens_at}, in [^.]+. No one gets it twice.", said)
    said = words(olga.post(f"launches/{key}/continue").text)
    assert re.search(f"Night owls continues. Its remaining 2 requests go out {opens_at}, in [^.]+\\.", said)


@pytest.mark.airflow_database
def test_a_stuck_launch_says_what_is_not_known_and_what_is_too_late(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    yesterday = {
        "kind": "once",
        "date": f"{NOW - timedelta(days=2):%Y-%m-%d}",
        "time": "12:00",
        "time_zone": "UTC",
    }
    key = freeze(ledger, "late", people=6, definition={**PUSH, "send": yesterday})
    Run(server, tmp_path, "late", key).end("dispatch", "failed")
    assert "It is too late to send it, so the launch then ends." in words(olga.get(f"launches/{key}").text)
    assert "It is too late to send Spring sale, so it is stopped." in words(
        olga.post(f"launches/{key}/continue").text
    )
    hour_ago = NOW - timedelta(hours=1)
    for on_doubt, last in (("hold", "Someone then decides whether it is"), ("resend", "It is then")):
        rest, whole = (
            freeze(
                ledger, f"cut_{on_doubt}", day=day, people=people, definition={**PUSH, "on_doubt": on_doubt}
            )
            for day, people in ((1, 4), (2, 2))
        )
        for key in (rest, whole):
            ledger.dispatches.claim(key, worker="w", now=hour_ago, lease=timedelta(seconds=-1))
        unknown = "It is not known whether 2 devices of 1 request without a clear answer got it."
        said = words(olga.get(f"launches/{rest}").text)
        assert f"Stuck: this launch stopped part way. 2 devices have not got it yet. {unknown}" in said
        assert "The rest then goes out at once." in said
        assert ("No one gets it twice." in said) is (on_doubt == "hold")
        said = words(olga.get(f"launches/{whole}").text)
        assert f"Stuck: this launch stopped part way. {unknown}" in said
        assert f"{last} sent to them again." in said
        assert "No one gets it twice." not in said


@pytest.mark.airflow_database
def test_a_stuck_launch_says_what_is_not_known_about_a_doubt_that_was_planned_again(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "lost", people=6, size=6)
    (doubted,) = send(ledger, key, TIMED_OUT)
    resolve(ledger, doubted, Resolution.RESEND, "ann", "the service lost it", now=NOW)
    reconcile_launch(ledger, key)
    Run(server, tmp_path, "lost", key).end("dispatch", "failed")
    said = words(olga.get(f"launches/{key}").text)
    unknown = "It is not known whether 6 devices of 1 request without a clear answer got it."
    assert f"Stuck: this launch stopped part way. {unknown}" in said
    assert "1 request was planned again, but the service may have processed it." in said
    assert "1 of 1 request made, 1 in doubt (1 of them planned again)" in said
    assert "Requests: 1 (1 planned again)" in said
    assert "No one gets it twice." not in said
    stop(ledger, key, "ann", "enough")
    said = words(olga.get(f"launches/{key}").text)
    assert "6 in doubt" in said
    assert "Nothing was sent" not in said
    assert "Went out" in words(olga.get("").text)


def test_recipients_of_a_doubt_that_was_planned_again_may_have_the_message(
    olga: Person, ledger: Ledger
) -> None:
    key = freeze(ledger, "spring_sale", people=6)
    doubted, _ = send(ledger, key, TIMED_OUT, Accepted(200, 1))
    resolve(ledger, doubted, Resolution.RESEND, "ann", "the service lost it", now=NOW)
    assert "at most 4 of 6 devices have the message. 2 devices have not" in words(
        olga.get(f"launches/{key}").text
    )
    pause(ledger, key, "ann", "wait", now=NOW)
    said = words(olga.get(f"launches/{key}").text)
    unknown = "It is not known whether 2 devices of 1 request without a clear answer got it."
    assert f"2 devices have not got it yet. {unknown} The rest then goes out at once." in said
    assert "No one gets it twice." not in said


@pytest.mark.airflow_database
def test_resume_says_when_the_launch_goes_out_and_what_its_run_does(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    definition, opens_at = closed_window()
    late = {
        "kind": "once",
        "date": f"{NOW - timedelta(days=2):%Y-%m-%d}",
        "time": "12:00",
        "time_zone": "UTC",
    }
    owls = freeze(ledger, "night_owls", people=6, definition=definition)
    over = freeze(ledger, "over", people=6, definition={**PUSH, "send": late})
    for key in (owls, over):
        pause(ledger, key, "ann", "wait", now=NOW)
    twice = "No one gets it twice."
    said = words(olga.get(f"launches/{owls}").text)
    assert re.search(
        f"No one has got it yet. It then goes out {opens_at}, in [^.]+, to 6 devices. {twice}", said
    )
    said = words(olga.get(f"launches/{over}").text)
    assert "It is too late to send it, so the launch then ends." in said
    answer = words(olga.post(f"launches/{over}/resume", WHY).text)
    late = "It is too late to send Spring sale, so it is stopped."
    assert f"Resumed.{late}A task that waits continues within half a minute." in answer
    run = Run(server, tmp_path, "night_owls", owls)
    answer = words(olga.post(f"launches/{owls}/resume", WHY).text)
    assert "Resumed: the launch may send again.Its run in Airflow continues by itself." in answer
    pause(ledger, owls, "ann", "wait", now=NOW)
    run.end("dispatch", "failed")
    answer = words(olga.post(f"launches/{owls}/resume", WHY).text)
    assert re.search(f"Night owls continues. It goes out {opens_at}, in [^.]+\\.", answer)


OWN_DAG = """
from datetime import datetime
from airflow.sdk import DAG
from sendoff_airflow.operators import BuildAudienceOperator, CreateCampaignOperator
with DAG("{name}", schedule=None, start_date=datetime(2026, 1, 1), default_args={{"only_campaign": "lapsed_buyers"}}):
    audience = BuildAudienceOperator(task_id="audience", folder=r"{folder}")
    CreateCampaignOperator(task_id="send", launch_key=audience.output["launch_key"])
"""


@pytest.mark.airflow_database
@pytest.mark.parametrize("name", ["my_campaign", "lapsed_buyers"])
def test_resume_of_a_launch_from_a_dag_of_ones_own_says_that_its_task_continues(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, name: str
) -> None:
    key = freeze(ledger, "lapsed_buyers", people=6)
    (tmp_path / "dags").mkdir()
    folder = tmp_path / "campaigns" / name
    text = OWN_DAG.format(name=name, folder=folder)
    Run(server, tmp_path, name, key, dags=text)
    pause(ledger, key, "ann", "wait", now=NOW)
    answer = words(olga.post(f"launches/{key}/resume", WHY).text)
    assert (
        "Resumed: the launch may send again.A task that waits continues within half a minute. If the launch was "
        f"sent from a shell, continue it there with: sendoff send {key[:12]}"
    ) in answer
    assert "again where" not in answer
    answer = words(olga.post(f"launches/{key}/continue").text)
    assert "dispatch" not in answer
    said = (
        "the task of its run that sends must run again" if name == "lapsed_buyers" else "has no run for this"
    )
    assert said in answer


@pytest.mark.airflow_database
def test_a_launch_of_a_task_group_is_released_and_continued_like_any_other(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "nightly.lapsed", state="held", made=NOW)
    other = freeze(ledger, "another.lapsed", state="held", made=NOW)
    run = Run(server, tmp_path, "nightly", key, group="lapsed.")
    told = {"key": "launch_key", "value": other}
    run._api("POST", f"{run._tasks}/lapsed.preview/xcomEntries", told)
    run.ask("olga")
    released = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)})
    assert "Answered in Airflow too" in released.text
    assert run.asks() == ("scheduled", [("olga", ["Approve"])])
    run.end("approve", "failed")
    assert f"launches/{key}/continue" in olga.get("waiting").text
    assert "Airflow runs the task lapsed.approve again" in olga.post(f"launches/{key}/continue").text
    assert "Nothing is waiting" not in olga.get("waiting").text  # the other launch is not of this group
    assert airflow_db.runs_of({other: "another.lapsed"}) == {}
    assert airflow_db.runs_of({key: "another.lapsed"}) == {}


@pytest.mark.airflow_database
def test_a_launch_of_a_paused_dag_is_stuck_until_someone_unpauses_it(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "asleep", state="held")
    run = Run(server, tmp_path, "asleep", key)
    run.pause()
    released = olga.post(f"launches/{key}/release", {**WHY, "since": ledger.audit_log.newest(key)})
    assert "But its DAG is paused in Airflow: unpause it there first." in released.text
    for path in ("waiting", f"launches/{key}"):
        text = olga.get(path).text
        assert "paused in Airflow" in text, path
        assert f"launches/{key}/continue" not in text, path
    method, address, body = of_button(olga.get("waiting").text)
    assert olga.ask_airflow(method, address, body).status_code == 200
    assert "Nothing is waiting" in olga.get("waiting").text
    assert "sending" in olga.get(f"launches/{key}").text


def test_a_stuck_launch_without_a_run_names_who_continues_it_and_has_the_command_apart(
    olga: Person, ledger: Ledger
) -> None:
    key = freeze(ledger, "from_a_shell")
    shown = olga.get(f"launches/{key}").text
    sentences, _, command = shown.partition("<summary>For the data engineer</summary>")
    assert "Ask a data engineer to continue it" in words(sentences)
    assert "sendoff send" not in sentences
    assert f"<code>sendoff send {key[:12]}</code>" in command
    for day in range(2, 13):
        freeze(ledger, "from_a_shell", day=day)
    text = olga.get("waiting").text
    assert text.count("<code>sendoff send") == 10
    assert "Show all 12 stuck launches" in text


def test_a_launch_that_waits_says_which_part_of_it_goes_out_anyway(olga: Person, ledger: Ledger) -> None:
    tomorrow = NOW + timedelta(days=1)
    once = {"kind": "once", "date": f"{tomorrow:%Y-%m-%d}", "time": f"{tomorrow:%H:%M}", "time_zone": "UTC"}
    definition = {**PUSH, "send": once}
    paused, stuck, whole = (
        freeze(ledger, name, people=6, definition=definition, sends=tomorrow)
        for name in ("paused", "stuck", "whole")
    )
    for key in (paused, stuck, whole):
        send(ledger, key, Accepted(200, 71), at=NOW - timedelta(hours=1))
    send(ledger, whole, Accepted(200, 72), None)
    for key in (paused, whole):
        pause(ledger, key, "ann", "wait", now=NOW)
    at = FILTERS["moment"](tomorrow.replace(second=0))
    later = "The service already has these messages and sends them later."
    for key, when in (
        (paused, "When resumed, the rest goes out"),
        (stuck, "When continued, the rest goes out"),
        (whole, "Goes out"),  # nothing of it is planned any more
    ):
        said = words(olga.get(f"launches/{key}").text)
        assert f"{when} {at}, in " in said
        assert later in said
    pause_all(ledger, "bob", "a storm", now=NOW)
    assert f"When resumed, the rest goes out {at}, in " in words(olga.get(f"launches/{stuck}").text)


def test_a_launch_that_is_too_late_does_not_say_when_it_goes_out(olga: Person, ledger: Ledger) -> None:
    now = datetime.now(UTC)
    tomorrow = now + timedelta(days=1)
    once = {"kind": "once", "date": f"{tomorrow:%Y-%m-%d}", "time": f"{tomorrow:%H:%M}", "time_zone": "UTC"}
    definition = {**PUSH, "send": once, "gates": {"lateness": {"length": 1, "unit": "hours"}}}
    made = now - timedelta(hours=10)
    for name, state in (("paused", "released"), ("stuck", "released"), ("held", "held")):
        key = freeze(
            ledger, name, people=6, definition=definition, made=made, sends=tomorrow, due=made, state=state
        )
        if state == "released":
            send(ledger, key, Accepted(200, 71), at=made)
        if name == "paused":
            pause(ledger, key, "ann", "wait", now=now)
        said = words(olga.get(f"launches/{key}").text)
        assert ("It is too late to send " in said) is (name != "held"), name  # no one answered in time
        assert not re.search("When [a-z]+, (it|the rest) goes out", said), name


def test_stop_says_what_it_cannot_stop(olga: Person, ledger: Ledger) -> None:
    tomorrow = NOW + timedelta(days=1)
    once = {"kind": "once", "date": f"{tomorrow:%Y-%m-%d}", "time": f"{tomorrow:%H:%M}", "time_zone": "UTC"}
    key = freeze(ledger, "evening", people=6, definition={**PUSH, "send": once}, sends=tomorrow)
    anyway = "The service already has these messages and sends them anyway."
    assert anyway not in olga.get(f"launches/{key}").text
    send(ledger, key, Accepted(200, 71), Accepted(200, 72))
    assert anyway in olga.get(f"launches/{key}").text  # beside the button
    stopped = olga.post(f"launches/{key}/stop", WHY).text
    for text in (stopped, olga.get(f"launches/{key}").text):
        assert anyway in text
        assert "<b>4 devices</b>" in text
        assert "campaigns 71, 72" in text
        assert f'datetime="{tomorrow.replace(second=0).isoformat()}"' in text
    assert "Stopped: this launch makes no more requests." in stopped
    assert "nothing more of this launch is sent" not in stopped


def test_nothing_is_paused_or_stopped_where_nothing_is_planned(olga: Person, ledger: Ledger) -> None:
    tomorrow = NOW + timedelta(days=1)
    key = freeze(ledger, "done", people=2, sends=tomorrow)
    assert f"launches/{key}/stop" in olga.get(f"launches/{key}").text
    send(ledger, key, Accepted(200, 71))
    text = olga.get(f"launches/{key}").text
    assert not re.search(f"launches/{key}/(stop|pause)", text)
    assert "The service already has these messages and sends them later." in text
    assert "campaign 71" in text


@pytest.mark.airflow_database
def test_a_dry_run_is_left_to_airflow_and_its_counts_are_shown(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    run = Run(server, tmp_path, "dry", NOBODY)
    method, path, body = of_button(olga.get("campaigns/dry").text)
    assert body == {"logical_date": "now", "conf": {"dry_run": True}}
    answer = olga.ask_airflow(method, path, {**body, "logical_date": (NOW - timedelta(hours=1)).isoformat()})
    assert answer.status_code == 200, answer.text
    assert answer.json()["conf"]["dry_run"] is True
    counts = {
        "period": "2026-11-16T09:00:00Z/2026-11-17T09:00:00Z",
        "rows": 1_010,
        "dropped": {"null": 10},
        "suppressed": {"holdout": 100},
        "audience": 1_000,
        "people": 900,
        "requests": 9,
        "gates": [
            {"name": "least", "is_open": False, "actual": "900 people", "allowed": HOSTILE},
            {
                "name": "lateness",
                "is_open": True,
                "actual": "3 h after it was due",
                "allowed": "at most 1 day",
            },
        ],
    }
    run._api("POST", f"{run._tasks}/audience/xcomEntries", {"key": "preview", "value": counts})
    text = olga.get("campaigns/dry").text
    assert "<img" not in text
    flat = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    assert (
        "1,010 rows read - 10 without an identifier = 1,000 audience - 100 control group = 900 recipients"
        in flat
    )
    assert "failed Least: 900 people" in flat
    assert "counted the period 16 Nov 2026 09:00 UTC to 17 Nov 2026 09:00 UTC" in flat
    assert "after it was due" not in flat  # only a launch can be late


OWN_DAGS = """
from datetime import timedelta

from airflow.sdk import DAG, task

from sendoff_airflow import campaign_group
from sendoff_airflow.dags import maintenance_dag
from sendoff_airflow.operators import CreateCampaignOperator

CAMPAIGN = {"title": "Notice", "message": {"title": "A", "text": "B"}, "channels": {"android_push": {}}}
AUDIENCE = "SELECT device_id FROM devices"

with DAG("of_one_task", schedule=None, tags=["sendoff"]):
    CreateCampaignOperator(task_id="notice", campaign=CAMPAIGN, audience=AUDIENCE)

with DAG("of_a_group", schedule=None):
    campaign_group(CAMPAIGN, AUDIENCE, group_id="thanks")

with DAG("foreign", schedule=None, params={"dry_run": False}):

    @task
    def load():
        ...

    load()

maintenance = maintenance_dag("0 3 * * *", keep=timedelta(days=30))
"""


@pytest.mark.airflow_database
def test_only_a_dag_that_obeys_the_field_offers_a_dry_run(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN_DAGS)
    Run(server, tmp_path, "of_a_folder", NOBODY)
    try:
        assert "Start a dry run" in olga.get("campaigns/of_a_folder").text
        for name in ("of_one_task", "of_a_group", "foreign", "sendoff_maintenance"):
            page = olga.get(olga.get(f"dag?dag_id={name}").headers["Location"])
            assert page.status_code == 200, name
            assert "No campaign has the name of this DAG" in page.text, name
            assert "dry run" not in page.text, name
            of_run = olga.get(f"dag?dag_id={name}&run_id=any").text
            assert "No campaign has the name of this DAG" in of_run, name
            assert "has no launch yet" not in of_run, name
            assert f"campaigns/{name}" not in of_run, name
        assert "campaigns/of_a_folder" in olga.get("dag?dag_id=of_a_folder&run_id=any").text
        sent = {name: freeze(ledger, name) for name in ("of_one_task.notice", "of_a_group.thanks")}
        for name, key in sent.items():
            for path in (f"campaigns/{name}", f"campaigns/{name.partition('.')[0]}"):
                text = olga.get(path).text
                assert "dry run" not in text, path
                assert f"launches/{key}" in text or path.endswith("of_a_group"), path
    finally:
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="sendoff_maintenance").delete()


def test_erasures_wait_for_a_dag_that_runs(
    olga: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(ledger, "spring_sale", people=20)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "0123456789abcdef" * 4)
    request_erasure(ledger, [7], identified_by="device_id", who="olga", reason="because")
    at = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    try:
        for is_paused in (False, True):
            with create_session() as session:
                session.merge(DagBundleModel(name="dags-folder"))
                session.flush()
                session.merge(
                    DagModel(
                        dag_id="sendoff_maintenance",
                        bundle_name="dags-folder",
                        fileloc="housekeeping.py",
                        is_stale=False,
                        is_paused=is_paused,
                        next_dagrun_create_after=at,
                    )
                )
            said = words(olga.get("suppression").text)
            assert ("The DAG sendoff_maintenance erases the data in its next run." in said) is not is_paused
            assert ("Airflow does not run the DAG sendoff_maintenance" in said) is is_paused
    finally:
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="sendoff_maintenance").delete()


DAG_OF_TESTS = """
from pathlib import Path

from sendoff_airflow.dags import send_test_dag

dag = send_test_dag(campaigns=Path(__file__).with_name("campaigns"), recipients=[{"device_id": 7}])
"""


@pytest.mark.airflow_database
def test_a_test_is_sent_from_the_page_of_the_campaign(
    server: TestClient,
    olga: Person,
    vera: Person,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def button() -> tuple[str, str, Any] | None:
        part = olga.get("campaigns/rehearsed").text.partition("What people see")[2].partition("</section>")[0]
        return of_button(part) if "data-airflow-method" in part else None

    journey = tmp_path / "campaigns/tour"
    journey.mkdir(parents=True)
    (journey / "journey.yaml").write_text(
        "title: Tour\nsteps:\n  - {name: hello, message: {title: A, text: B}, channels: {android_push: }}\n"
    )
    (journey / "audience.sql").write_text("SELECT device_id FROM devices")
    monkeypatch.setenv(
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL", "0"
    )  # other tests have such a DAG too
    Run(server, tmp_path, "rehearsed", NOBODY)
    assert button() is None  # there is no DAG that sends tests
    (tmp_path / "tests.py").write_text(DAG_OF_TESTS)
    try:
        Run(server, tmp_path, "other", NOBODY)
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="sendoff_test").update({"is_paused": False})
        method, path, body = button() or ("", "", None)
        assert body == {"logical_date": "now", "conf": {"campaign": "rehearsed"}}
        started = olga.ask_airflow(method, path, {**body, "logical_date": NOW.isoformat()})
        assert started.status_code == 200, started.text
        run = started.json()
        assert (run["dag_id"], run["triggering_user_name"]) == ("sendoff_test", "olga")
        assert run["conf"]["campaign"] == "rehearsed"
        assert vera.ask_airflow(method, path, body).status_code == 403
        assert "sendoff_test" not in vera.get("campaigns/rehearsed").text
        freeze(ledger, "tour.hello", people=2)  # before, its page is that of the journey
        step = olga.get("campaigns/tour.hello").text.partition("What people see")[2]
        assert of_button(step)[2]["conf"] == {"campaign": "tour/hello"}
        assert "waits until someone unpauses" not in words(olga.get("campaigns/rehearsed").text)
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="sendoff_test").update({"is_paused": True})
        paused = words(olga.get("campaigns/rehearsed").text)
        assert "A test that you start now waits until someone unpauses the DAG sendoff_test" in paused
        monkeypatch.setattr(ByDag, "steered", frozenset({"rehearsed"}))
        assert button() is None  # they may trigger the campaign, but not the tests
        monkeypatch.setattr(ByDag, "steered", None)
        (tmp_path / "campaigns/rehearsed/campaign.yaml").write_text("title: 5\n")  # the form has it no more
        Run(server, tmp_path, "third", NOBODY)
        assert button() is None
    finally:
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="sendoff_test").update({"is_stale": True})


@pytest.mark.airflow_database
def test_a_paused_campaign_says_that_a_dry_run_waits(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    Run(server, tmp_path, "waits", NOBODY)
    for is_paused in (False, True):
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="waits").update({"is_paused": is_paused})
        text = olga.get("campaigns/waits").text
        assert ("nothing runs until someone unpauses it" in text) is is_paused
        assert ", in the time zone UTC." in text
        assert ("a dry run that you start now waits" in text) is is_paused
        assert ("The dry run waits until" in text) is is_paused


@pytest.mark.airflow_database
def test_the_list_of_campaigns_shows_what_comes_next_and_the_last_result(
    server: TestClient, vera: Person, ledger: Ledger, tmp_path: Path
) -> None:
    keys = fill(ledger)
    freeze(ledger, "spring_sale", people=10, day=1)  # newer, and without a report
    later = freeze(ledger, "evening", sends=NOW + timedelta(days=1))
    send(ledger, later, *[Accepted(200, 1)] * 6)
    reconcile_launch(ledger, later)
    Run(server, tmp_path, "comes_next", NOBODY)
    with create_session() as session:
        overdue = {"is_paused": False, "next_dagrun_create_after": datetime.now(UTC) - timedelta(hours=1)}
        session.query(DagModel).filter_by(dag_id="comes_next").update(overdue)
    rows = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", vera.get("campaigns").text, re.DOTALL)
    flat = {re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip(): row for row in rows}
    [sale] = [words for words in flat if "spring_sale" in words]
    for words in (
        "Spring sale spring_sale Android push, iOS push, web push",
        ": not sent yet",
        "reached at least 62.5 % of the recipients, opened 20.8 % of the recipients",
        "stuck",
    ):
        assert words in sale
    assert "not in Airflow" not in sale
    for name, state in (("big_news", "waiting for approval"), ("daily_digest", "waiting for a decision")):
        [words] = [words for words in flat if name in words]
        assert words.endswith(state), words
        assert ("not sent yet" in words) is (name == "big_news")
    [later] = [words for words in flat if "evening" in words]
    assert re.search(r": not sent yet, goes out .* UTC", later), later
    assert "reached" not in later
    assert f"launches/{keys['reported']}" in flat[sale]
    [without_report] = [words for words in flat if "welcome_back" in words]
    assert ": no report yet" in without_report
    assert without_report.endswith("not in Airflow")
    assert "refused" not in without_report
    assert any("comes_next" in words and "Android push was due" in words for words in flat)


def test_the_list_begins_with_how_many_launches_wait_for_an_approval_and_how_many_for_a_decision(
    vera: Person, ledger: Ledger
) -> None:
    for number in range(2):
        freeze(ledger, f"sale_{number}", state="held")
    failing = freeze(ledger, "failing_sale", made=NOW)
    assert '<a href="./waiting#held">2 launches wait for approval</a>' in vera.get("").text
    assert "for a decision</a>" not in vera.get("").text
    ledger.audit_log.decide(Decision(failing, "held", "sendoff", "3 requests were refused", NOW))
    text = vera.get("").text
    assert '<a href="./waiting#held">2 launches wait for approval</a>' in text
    assert '<a href="./waiting#held">1 launch waits for a decision</a>' in text


def test_the_list_counts_the_paused_launches_that_its_link_leads_to(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    pause(ledger, keys["running"], "ann", "the wrong picture", now=NOW)
    assert '<a href="./?state=paused">1 launch paused</a>' in vera.get("").text
    rest = freeze(ledger, "rest", people=4)
    send(ledger, rest, Accepted(200, 1))
    pause_all(ledger, "ann", "a storm", now=NOW)
    assert '<a href="./?state=paused">2 launches paused</a>' in vera.get("").text
    assert len(titles(vera.get("?state=paused").text)) == 2


def test_the_list_says_if_nothing_is_waiting_for_a_person(
    vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByDag, "seen", frozenset({"calm_sale"}))  # campaigns of other tests do not run
    calm, search = "<b>Nothing is waiting for a person.</b>", "Filter"
    assert calm in vera.get("").text
    assert search not in vera.get("").text  # there are no launches yet
    key = freeze(ledger, "calm_sale", made=datetime.now(UTC))
    assert calm in vera.get("").text
    assert search in vera.get("").text
    assert calm not in vera.get("?words=calm").text
    pause(ledger, key, "ann", "the wrong picture", now=NOW)
    assert calm not in vera.get("").text


def test_the_list_shows_counts_with_their_share_of_the_recipients(vera: Person, ledger: Ledger) -> None:
    fill(ledger)
    rows = vera.get("?campaign=spring_sale").text.partition("<tbody>")[2]
    assert "1,140 devices 712 62.5 % 237 20.8 %" in words(rows)
    unreported = vera.get("?campaign=big_news").text.partition("<tbody>")[2]
    assert "48,000 devices - - 6 planned" in words(unreported)


def test_a_paused_launch_says_who_paused_it_and_why(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale", people=20)
    assert "1 launch paused" not in vera.get("").text
    pause(ledger, key, "ann", "the wrong picture", now=NOW)
    assert '<a href="./?state=paused">1 launch paused</a>' in vera.get("").text
    assert re.search("Paused by ann, .*: the wrong picture[.]", words(vera.get(f"launches/{key}").text))


def test_a_launch_that_was_approved_says_so_and_counts_only_what_was_dropped(
    olga: Person, ledger: Ledger
) -> None:
    key = freeze(ledger, "spring_sale", state="held", dropped={"null": 0, "duplicate": 3})
    assert olga.post(f"launches/{key}/release", {**WHY, "since": 1}).status_code == 200
    text = olga.get(f"launches/{key}").text
    assert '<span class="badge s-approved">approved</span> <b>olga</b>' in text
    ledger.audit_log.decide(Decision(key, "held", "sendoff", "3 requests were refused", NOW))
    ledger.audit_log.decide(Decision(key, "released", "ann", "the service is back", NOW))
    later = words(olga.get(f"launches/{key}").text.partition('id="decisions"')[2])
    assert re.findall("(approved|released|held) (olga|ann|Sendoff)", later) == [
        ("released", "ann"),
        ("held", "Sendoff"),
        ("approved", "olga"),
    ]
    other = freeze(ledger, "big_news", state="held")
    ledger.audit_log.decide(Decision(other, "released", "ann", "fine", NOW, {"asked": 2}))
    details = words(olga.get(f"launches/{other}").text).partition("Technical details")[2]
    assert re.search("approved, .*: asked 2", details)
    assert "released, " not in details
    dropped = words(text.partition('id="people"')[2].partition("</section>")[0])
    assert "3 duplicate" in dropped
    assert "null" not in dropped


def test_a_launch_that_was_refused_did_not_go_out(vera: Person, ledger: Ledger) -> None:
    before = freeze(ledger, "spring_sale", people=20, day=2)
    send(ledger, before, Accepted(200, 1))
    reconcile_launch(ledger, before)
    now = datetime.now(UTC)  # the tests may have begun yesterday
    key = freeze(ledger, "spring_sale", people=20, made=now)
    send(ledger, key, *[Refused(400, "no")] * 10, at=now)
    today = words(vera.get("").text).partition("Tomorrow")[0].partition("Today")[2]
    assert re.search(r"refused Spring sale spring_sale, (\d+) of \1 requests made, \1 refused", today), today
    assert "Went out" not in words(vera.get(f"launches/{key}").text)
    reconcile_launch(ledger, key)
    shown = words(vera.get("campaigns").text)
    assert re.search(r": the service refused all requests.*: reached at least", shown), shown


def test_a_launch_that_went_out_or_was_stopped_says_when_and_why(vera: Person, ledger: Ledger) -> None:
    keys = fill(ledger)
    header = vera.get(f"launches/{keys['stopped']}").text.partition("<section")[0]
    flat = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", header))
    assert re.search(r"A part went out \d+ \w+ 20\d\d \d\d:\d\d UTC, .* ago", flat), flat
    assert ": at most 10 of 400 devices have the message." in flat, flat
    assert "390 devices got nothing, because the launch was stopped before their turn." in flat, flat
    assert re.search("Stopped by ann, .*: the wrong picture[.]", flat), flat
    for name in ("approval", "running"):
        header = vera.get(f"launches/{keys[name]}").text.partition("<section")[0]
        assert "Stopped by" not in header
        assert ("A part went out" in header) is (name == "running")
    assert "<p>Went out" in vera.get(f"launches/{keys['reported']}").text
    of_two = freeze(ledger, "for_two", people=2, size=1)
    send(ledger, of_two, Accepted(200, 1))
    assert "at most 1 of 2 devices has the message." in words(vera.get(f"launches/{of_two}").text)


def test_a_launch_says_how_many_got_nothing_why_and_whether_that_is_the_end(
    vera: Person, ledger: Ledger
) -> None:
    key = freeze(ledger, "spring_sale", people=8)
    *_, doubted = send(ledger, key, Accepted(200, 1), Refused(400, HOSTILE), TIMED_OUT)
    text = vera.get(f"launches/{key}").text
    assert "<img" not in text
    refused = "because the service refused 1 request"
    assert f"2 devices got nothing, {refused}. The launch may go on, but sends nothing more" in words(text)
    assert f"The service answered: {HOSTILE}" in words(text)
    resolve(ledger, doubted, Resolution.WRITE_OFF, "ann", "no one knows", now=NOW)
    assert ledger.audit_log.decide(Decision(key, "stopped", "ann", None, NOW))
    shown = words(vera.get(f"launches/{key}").text)
    nothing = f"4 devices got nothing: 2, {refused}, and 2, because the launch was stopped before their turn."
    assert f"{nothing} Nothing more is sent to them by itself." in shown
    assert "It is not known whether 2 devices of requests that were written off got it." in shown
    assert "Ask your data team whether the period should be sent again." in shown  # there is no DAG
    by_service = freeze(ledger, "everybody", by_service=True, day=2)
    send(ledger, by_service, Refused(400, "no"))
    assert "1 request reached no one, because the service refused it." in words(
        vera.get(f"launches/{by_service}").text
    )
    sent = freeze(ledger, "for_two", people=2)
    send(ledger, sent, Accepted(200, 1))
    stopped = freeze(ledger, "everyone_else", by_service=True)
    assert ledger.audit_log.decide(Decision(stopped, "stopped", "ann", None, NOW))
    for key in (sent, stopped):
        text = vera.get(f"launches/{key}").text
        assert "got nothing" not in text
        assert "reached no one" not in text


def test_requests_that_were_refused_after_a_doubt_are_not_said_to_have_reached_no_one(
    vera: Person, ledger: Ledger
) -> None:
    keys = [freeze(ledger, "news", people=4), freeze(ledger, "everybody", by_service=True)]
    for key in keys:
        (doubted,) = send(ledger, key, TIMED_OUT)
        resolve(ledger, doubted, Resolution.RESEND, "ann", "the service lost it", now=NOW)
        send(ledger, key, Refused(400, "no"))
        said = words(vera.get(f"launches/{key}").text)
        assert "1 request was refused, but the service may have processed it." in said
        assert "1 in doubt (1 of them refused)" in said
        assert re.search(r"Requests: [12] \((1 not made, )?1 refused\)", said)
        assert "because the service refused" not in said
        assert "refused all requests" not in vera.get("campaigns").text
    send(ledger, keys[0], Refused(400, "no"))
    said = words(vera.get(f"launches/{keys[0]}").text)
    assert "2 devices got nothing, because the service refused 1 request." in said
    figures = reconcile_launch(ledger, keys[1])
    assert (figures.dispatches, figures.doubted) == ({"refused": 1}, {"refused": 1})
    assert "1 request refused by the service, although" in words(vera.get(f"launches/{keys[1]}").text)


def test_a_write_off_that_turns_out_not_to_be_processed_got_nothing(vera: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale", people=6)
    silent = claimed(ledger, key)
    ledger.dispatches.record(silent, TIMED_OUT, NOW)
    send(ledger, key, TIMED_OUT)
    for doubt in ledger.doubts.open(key):
        resolve(ledger, doubt.dispatch_key, Resolution.WRITE_OFF, "ann", "no one knows", now=NOW)
    ledger.dispatches.record(silent, NotProcessed("busy"), NOW)
    assert ledger.audit_log.decide(Decision(key, "stopped", "ann", None, NOW))
    shown = words(vera.get(f"launches/{key}").text)
    assert "4 devices got nothing: 2, because the launch was stopped before their turn, and 2, " in shown
    assert "and 2, because the service did not process their request." in shown
    assert "It is not known whether 2 devices of requests that were written off got it." in shown
    assert "2 of 3 requests made, 1 not processed, 1 written off" in shown
    assert "at most 2 of 6 devices have the message." in shown


def test_a_launch_did_not_go_out_if_its_only_request_was_written_off_and_not_processed(
    vera: Person, ledger: Ledger
) -> None:
    key = freeze(ledger, "spring_sale", people=2)
    claim = claimed(ledger, key)
    ledger.dispatches.record(claim, TIMED_OUT, NOW)
    resolve(ledger, claim.dispatch_key, Resolution.WRITE_OFF, "ann", "no one knows", now=NOW)
    ledger.dispatches.record(claim, NotProcessed("busy"), NOW)
    assert "Went out" not in words(vera.get("").text)
    assert "Went out" not in words(vera.get(f"launches/{key}").text)
    assert "the service processed no request" in words(vera.get("campaigns").text)


@pytest.mark.airflow_database
def test_a_period_is_sent_again_to_those_who_got_nothing_with_one_button(
    server: TestClient, olga: Person, vera: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "failed", people=4)
    send(ledger, key, Accepted(200, 1), Refused(400, "no"))
    Run(server, tmp_path, "failed", key)
    shown = vera.get(f"launches/{key}").text
    assert "Someone who may trigger its DAG in Airflow can send the period again" in shown
    assert "data-airflow-method" not in shown
    text = olga.get(f"launches/{key}").text
    assert "waits until someone unpauses" not in text
    limited = make_launch(
        ledger,
        campaign=Campaign.model_validate(PUSH),
        name="failed",
        audience=make_audience(integers(devices(2)), rows=6, dropped={"size_limit": 4}),
        segments=[Segment(integers(devices(2)))],
    ).launch_key
    send(ledger, limited, Refused(400, "no"))
    assert "data-airflow-method" not in olga.get(f"launches/{limited}").text  # it would reach the other four
    method, path, body = of_button(text)
    body["conf"]["reason"] = "the title was too long"
    started = olga.ask_airflow(method, path, {**body, "logical_date": NOW.isoformat()})
    assert started.status_code == 200, started.text
    run, period = started.json(), ledger.launches.get(key).period
    interval = [datetime.fromisoformat(run[f"data_interval_{end}"]) for end in ("start", "end")]
    assert interval == [period.start, period.end]
    given = {"resend": 1, "only_unsent": True, "send_late": True, "reason": "the title was too long"}
    assert run["conf"].items() >= given.items()
    with create_session() as session:
        session.query(DagModel).filter_by(dag_id="failed").update({"is_paused": True})
    assert "its run waits until someone unpauses it" in olga.get(f"launches/{key}").text


def test_a_resend_says_who_made_it_why_and_to_whom_and_leads_to_the_other_launches(
    vera: Person, ledger: Ledger
) -> None:
    first = freeze(ledger, "spring_sale", people=6)
    send(ledger, first, Accepted(200, 1), Refused(400, "no"), Refused(400, "no"))
    period = ledger.launches.get(first).period
    for number, detail in ((1, {"to": "those who got nothing"}), (2, {})):
        key = launch_key("service", "spring_sale", period, number)
        left_out = 2 if detail else 0
        people = integers(devices(6)[left_out:])
        make_launch(
            ledger,
            audience=make_audience(people, rows=6, dropped={"already_sent": left_out}),
            segments=[Segment(people)],
            suppressed={"already_sent": integers(devices(left_out))},
            campaign=Campaign.model_validate(PUSH),
            name="spring_sale",
            period=period,
            resend=number,
            decisions=[Decision(key, "resend", HOSTILE, HOSTILE, NOW, {"resend": number, **detail})],
        )
        text = vera.get(f"launches/{key}").text
        shown = words(text)
        assert "<img" not in text
        whom = "only to those who got nothing before" if detail else "also to those who got it before"
        assert f"Resend {number}, {whom}. By {HOSTILE}," in shown
        assert ("2 devices are left out because they got it, or may have got it." in shown) is bool(left_out)
        assert ("left out: got an earlier launch for the period, or may have" in shown) is bool(left_out)
        assert f'launches/{first}">first launch</a>' in text
        text = vera.get(f"launches/{first}").text
        assert f'A later launch for this period is <a href="../launches/{key}">resend {number}</a>' in text
    assert f'launches/{launch_key("service", "spring_sale", period, 1)}">resend 1</a>' in text
    history = words(vera.post("person", {"identifier": str(FIRST_DEVICE)}).text)
    assert re.search(r"resend 1 Left out: they got, or may have got, an earlier launch", history), history


def test_who_pauses_stops_or_resumes_a_launch_reads_how_many_have_not_got_it(
    olga: Person, ledger: Ledger
) -> None:
    key = fill(ledger)["running"]  # 2 of its 40 requests are in flight, and 25 are not begun

    def page() -> str:
        return words(olga.get(f"launches/{key}").text)

    left = "250 devices have not got it yet."
    assert f"at most 150 of 400 devices have the message. {left}" in page()
    assert page().count(left) == 3  # also in the forms that pause and stop it
    pause(ledger, key, "ann", "the wrong picture", now=NOW)
    assert f"{left} It is not known whether 20 devices of 2 requests" in page()
    reconcile_launch(ledger, key)
    assert "at most 150 of" not in page()  # the report has the numbers


def test_a_campaign_whose_newest_launch_is_partly_out_shows_its_result_as_one_so_far(
    vera: Person, ledger: Ledger
) -> None:
    key = fill(ledger)["running"]
    reconcile_launch(ledger, key)
    so_far = "so far, as only a part went out, reached at least"
    assert words(vera.get("campaigns").text).count(so_far) == 1
    send(ledger, key, *[Accepted(200, 9_000)] * 25)
    assert so_far not in words(vera.get("campaigns").text)


def test_the_page_of_a_campaign_says_what_its_held_launch_waits_for(vera: Person, ledger: Ledger) -> None:
    fill(ledger)
    for name, state in (("big_news", "waiting for approval"), ("daily_digest", "waiting for a decision")):
        alarm = vera.get(f"campaigns/{name}").text.partition('class="alarm"')[2].partition("</div>")[0]
        assert words(alarm).count(state) == 1
        assert "/preview" in alarm


def test_a_campaign_that_airflow_does_not_start_offers_no_dry_run(olga: Person, ledger: Ledger) -> None:
    freeze(ledger, "spring_sale-test", people=2)
    text = words(olga.get("campaigns/spring_sale-test").text)
    assert "so it starts no launch of it. Tests and launches from a shell need none." in text
    assert "This shows the newest launch." in text
    assert "cannot read the campaign's folder" not in text
    assert "dry run" not in text


@pytest.mark.parametrize(("number", "said"), [(1, "processed it."), (2, "processed them.")])
def test_the_number_of_requests_in_doubt_agrees_with_its_sentence(
    vera: Person, ledger: Ledger, number: int, said: str
) -> None:
    send(ledger, freeze(ledger, "spring_sale"), *[TIMED_OUT] * number)
    assert f"whether the service {said} A post-back" in words(vera.get("waiting").text)


def test_the_list_says_when_a_launch_without_a_time_goes_out(vera: Person, ledger: Ledger) -> None:
    fill(ledger)
    freeze(ledger, "sending", made=datetime.now(UTC))
    freeze(ledger, "stuck")
    pause(ledger, freeze(ledger, "paused"), "ann", "the wrong picture", now=NOW)
    cells = {
        name: words(vera.get(f"?campaign={name}").text.partition("<tbody>")[2].split("</td>")[1])
        for name in ("big_news", "sending", "stuck", "paused")
    }
    assert {name: cell.strip() for name, cell in cells.items()} == {
        "big_news": "Once approved",
        "sending": "Soon",
        "stuck": "Once continued",
        "paused": "Once resumed",
    }


def test_the_table_has_the_words_of_the_list_about_launches_without_a_time(
    vera: Person, ledger: Ledger
) -> None:
    fill(ledger)
    freeze(ledger, "sending", made=datetime.now(UTC))
    freeze(ledger, "stuck")
    pause(ledger, freeze(ledger, "paused"), "ann", "the wrong picture", now=NOW)
    stop(ledger, freeze(ledger, "stopped"), "ann", "the wrong picture", now=NOW)
    held = freeze(ledger, "held")
    ledger.audit_log.decide(Decision(held, "held", "sendoff", "3 requests were refused", NOW))
    rows = table(vera, "sort=campaign")
    body = vera.get("?sort=campaign").text.rpartition("<tbody>")[2].partition("</tbody>")[0]
    cells = [words(row.split("</td>")[1]).strip() for row in body.split("</tr>")[:-1]]
    assert len(rows) == len(cells)
    for row, cell in zip(rows, cells, strict=True):
        assert cell.startswith(row["when"] or "-"), row
        assert row["time"] or cell == (row["when"] or "-"), row
    timeless = {row["when"] for row in rows if not row["time"]}
    assert timeless == {"Once approved", "Once released", "Once continued", "Once resumed", "Soon", ""}


@pytest.mark.airflow_database
def test_a_run_that_is_overdue_is_not_called_the_next_run(
    server: TestClient, vera: Person, ledger: Ledger, tmp_path: Path
) -> None:
    Run(server, tmp_path, "overdue", NOBODY)
    now = datetime.now(UTC)
    for moment, is_overdue in ((now + timedelta(hours=1), False), (now - timedelta(hours=1), True)):
        with create_session() as session:
            dag = session.query(DagModel).filter_by(dag_id="overdue")
            dag.update({"is_paused": False, "next_dagrun_create_after": moment})
        row, page = (
            vera.get("campaigns").text.partition('campaigns/overdue"')[2].partition("</tr>")[0],
            vera.get("campaigns/overdue").text,
        )
        assert moment.isoformat(timespec="minutes")[:16] in row
        assert ("was due" in row) is is_overdue
        assert ("and has not started yet" in page) is is_overdue


@pytest.mark.airflow_database
@pytest.mark.parametrize("is_from_task", [False, True])
def test_the_run_of_a_launch_is_found_however_airflow_stored_its_key(
    server: TestClient, ledger: Ledger, tmp_path: Path, is_from_task: bool
) -> None:
    name = f"stored_{is_from_task}"
    key = freeze(ledger, name)
    run = Run(server, tmp_path, name, key)
    if is_from_task:  # the task API stores the value itself, the REST API its JSON
        with create_session() as session:
            told = {"dag_id": name, "task_id": "audience", "run_id": run.id}
            XComModel.set("launch_key", key, serialize=False, session=session, **told)
    found = airflow_db.run_of(key, name)
    assert found is not None
    assert found.run_id == run.id
    assert airflow_db.launches_of(name, run.id) == {key: name}
    assert airflow_db.run_of(NOBODY, name) is None


@pytest.mark.airflow_database
def test_a_launch_is_not_stuck_while_an_older_run_of_it_sends(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "by_two_runs", people=6, made=NOW)
    older = Run(server, tmp_path, "by_two_runs", key)
    newer = older.again()
    assert _run_of(key) == newer.id
    newer.end("audience", "failed")
    assert _run_of(key) == older.id
    older.pause()  # only this run would go on once someone unpauses the DAG
    assert _run_of(key) == older.id
    older.pause(False)
    with create_session() as session:
        sends = {"dag_id": "by_two_runs", "run_id": older.id, "task_id": "dispatch", "map_index": 0}
        session.query(TaskInstance).filter_by(**sends).update({"state": "deferred"})  # until the next wave
    assert _run_of(key) == older.id
    assert "Stuck:" not in olga.get(f"launches/{key}").text
    assert "Nothing is waiting" in olga.get("waiting").text
    older.end("dispatch", "failed")
    assert _run_of(key) == newer.id
    assert "Stuck:" in olga.get(f"launches/{key}").text


def _run_of(key: str) -> str:
    found = airflow_db.run_of(key, "by_two_runs")
    assert found is not None
    return found.run_id


@pytest.mark.airflow_database
def test_every_page_and_every_button_of_a_launch_that_airflow_runs(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    key = freeze(ledger, "works", people=6, state="held")
    run = Run(server, tmp_path, "works", key)
    page, doubts = f"launches/{key}", f"launches/{key}/doubts"
    done: list[str] = []

    def see_every_page() -> None:
        for path in routes("GET"):
            if path.endswith(("/email", "/report.{form}")):  # the campaign sends no email and has no report
                continue
            asked = path.replace("{name}", "works").replace("{launch_key}", key).removeprefix("/")
            answer = olga.get(f"dag?dag_id=works&run_id={quote(run.id)}" if asked == "dag" else asked)
            assert answer.status_code == (303 if asked == "dag" else 200), (path, answer.text)
        assert run.id in olga.get(page).text

    def press(path: str, **body: Any) -> str:
        answer = olga.post(path, {**WHY, **body})
        assert answer.status_code == 200, (path, answer.text)
        done.append(path.replace(key, "{launch_key}"))
        see_every_page()
        return answer.text

    see_every_page()
    assert run.id in press(f"{page}/release", since=ledger.audit_log.newest(key))
    press(f"{page}/pause")
    press(f"{page}/resume")
    first, second, _ = send(ledger, key, TIMED_OUT, TIMED_OUT, TIMED_OUT)
    assert run.id in press(f"{doubts}/resend", requests=[f"{first}:1"])
    press(f"{doubts}/write-off", requests=[f"{second}:1"])
    press("pauses/pause", connection="service")
    press("pauses/resume", connection="service")
    press(f"{page}/stop")
    assert olga.post("person", {"identifier": str(FIRST_DEVICE)}).status_code == 200
    other = freeze(ledger, "works", day=2, state="held")
    assert olga.post(f"launches/{other}/reject", WHY).status_code == 200
    # List every new button above.
    acts = ("release", "reject", "pause", "resume", "stop")
    assert {*done, "launches/{launch_key}/reject"} == {
        *(f"launches/{{launch_key}}/{act}" for act in acts),
        *(f"launches/{{launch_key}}/doubts/{how}" for how in tuple(Resolution)),
        *(f"pauses/{act}" for act in ("pause", "resume")),
    }
    own = {path for path in routes("POST") if not path.startswith("/suppression/")}  # tested below
    assert own == {
        "/launches/{launch_key}/approve",
        "/launches/{launch_key}/continue",
        "/launches/{launch_key}/{act}",
        "/launches/{launch_key}/doubts/{how}",
        "/pauses/{act}",
        "/person",
    }


@contextmanager
def refusing(part: str, after: int = 0) -> Iterator[None]:
    """Make the databases refuse every statement that contains ``part``, after the first few."""
    asked = 0

    def refuse(_: Any, __: Any, statement: str, *___: Any) -> None:
        nonlocal asked
        if part in statement:
            asked += 1
            if asked > after:
                raise sa.exc.OperationalError(statement, None, Exception("the database went away"))

    sa.event.listen(sa.Engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", refuse)


def test_what_was_done_is_no_error_where_airflow_cannot_say_what_comes_next(
    server: TestClient, olga: Person, ledger: Ledger
) -> None:
    released, rejected, doubted = (
        freeze(ledger, "spring_sale", day=1, state="held"),
        freeze(ledger, "spring_sale", day=2, state="held"),
        freeze(ledger, "spring_sale", day=3, people=2),
    )
    [dispatch] = send(ledger, doubted, TIMED_OUT)
    with refusing("FROM xcom"):
        for path, body in (
            (f"launches/{released}/release", WHY),
            (f"launches/{rejected}/reject", WHY),
            (f"launches/{doubted}/doubts/resend", {**WHY, "requests": [f"{dispatch}:1"]}),
        ):
            answer = olga.post(path, body)
            assert answer.status_code == 200, path
            assert 'role="alert"' not in answer.text, path
            assert "Airflow did not tell which run" in answer.text, path
    assert ledger.launches.get(released).state == "released"
    assert ledger.launches.get(rejected).state == "rejected"
    assert ledger.dispatch_queries.states(doubted) == {"planned": 1}


def test_doubts_settled_before_the_ledger_went_away_are_told_as_done(olga: Person, ledger: Ledger) -> None:
    key = freeze(ledger, "spring_sale", people=6)
    seen = [f"{each}:1" for each in send(ledger, key, TIMED_OUT, TIMED_OUT, TIMED_OUT)]
    with refusing("INSERT INTO decisions", after=1):
        answer = olga.post(f"launches/{key}/doubts/write-off", {**WHY, "requests": seen})
    assert (answer.status_code, "1 request written off" in answer.text) == (200, True), answer.text
    assert "2 requests were left alone" in answer.text
    assert ledger.dispatch_queries.states(key) == {"in_doubt": 2, "written_off": 1}
    with refusing("INSERT INTO decisions"):
        answer = olga.post(f"launches/{key}/doubts/write-off", {**WHY, "requests": seen[1:]})
    assert answer.status_code == 503
    assert "Nothing was changed" not in answer.text
    assert "reload the page" in answer.text


ADD = {"identified_by": "device_id", "scope": "account", "reason": "asked for it"}
FILE = {**ADD, "how": "add", "source": "crm"}
SECRETLY = 40_000_017


def token_of(text: str) -> str:
    found = re.search(r'name="checked" value="([0-9a-f]+)"', text)
    assert found, text
    return found[1]


def suppressed(ledger: Ledger, scope: str = "account") -> list[int | str]:
    return list(ledger.suppressions.active("device_id", "integer", [scope], datetime.now(UTC)))


def test_a_recipient_is_suppressed_found_and_released_with_who_and_why(olga: Person, ledger: Ledger) -> None:
    assert "No one is suppressed" in olga.get("suppression").text
    one = {"identifier": str(SECRETLY)}
    done = olga.post(
        "suppression/add", {**ADD, **one, "scope": "topic", "topic": "news", "until": "2099-01-31"}
    )
    assert (done.status_code, "Suppressed for campaigns on the topic news." in done.text) == (200, True)
    [entry] = ledger.suppressions.of_person("device_id", SECRETLY)
    assert (entry.scope, entry.author, entry.source, entry.reason) == (
        "topic:news",
        "olga",
        "page",
        "asked for it",
    )
    assert entry.until == datetime(2099, 1, 31, tzinfo=UTC)
    found = olga.post("suppression/person", {**one, "identified_by": "device_id"}).text
    for words in (
        "Suppressed for campaigns on the topic news",
        "source page",
        "olga",
        "asked for it",
        "2099",
    ):
        assert words in found
    assert (
        "no entry" in olga.post("suppression/person", {"identifier": "5", "identified_by": "device_id"}).text
    )
    shown = olga.get("suppression").text
    assert "Campaigns on the topic news" in shown
    assert "1 device added" in shown
    # Every campaign is another scope than the topic.
    assert olga.post("suppression/remove", {**ADD, **one}).status_code == 409
    done = olga.post(
        "suppression/remove", {**ADD, **one, "scope": "topic", "topic": "news", "reason": "back"}
    )
    assert "Not suppressed any more for campaigns on the topic news." in done.text
    assert suppressed(ledger, "topic:news") == []
    assert [(each.who, each.why) for each in ledger.audit_log.of_suppression(limit=9)] == [
        ("olga", "back"),
        ("olga", "asked for it"),
    ]
    for text in (shown, found, done.text, str(ledger.audit_log.of_suppression(limit=9))):
        assert str(SECRETLY) not in text


def test_a_file_is_counted_before_it_is_applied(olga: Person, ledger: Ledger) -> None:
    content = "device_id\n7\n8\n8\n\n,\n".replace(",\n", "") + "9\n"
    seen = olga.post("suppression/check", {**FILE, "csv": content})
    assert "The file has 3 devices" in seen.text
    assert "3 devices would be added" in seen.text
    assert "already" not in seen.text
    assert suppressed(ledger) == []
    assert olga.post("suppression/file", {**FILE, "csv": content}).status_code == 409
    token = token_of(seen.text)
    other = {**FILE, "csv": content + "10\n", "checked": token}
    assert "the list changed since you checked it" in olga.post("suppression/file", other).text
    assert suppressed(ledger) == []
    done = olga.post("suppression/file", {**FILE, "csv": content, "checked": token})
    assert f"3 devices added, for {ACCOUNT}." in done.text
    assert suppressed(ledger) == [7, 8, 9]
    seen = olga.post("suppression/check", {**FILE, "csv": "device_id\n8\n11\n", "how": "remove"})
    assert "1 device would be removed" in seen.text
    assert "1 device has no entry of the source crm." in seen.text
    body = {**FILE, "csv": "device_id\n8\n11\n", "how": "remove", "checked": token_of(seen.text)}
    assert olga.post("suppression/file", body).status_code == 200
    assert suppressed(ledger) == [7, 9]
    seen = words(olga.post("suppression/check", {**FILE, "csv": "device_id\n8\n11\n", "how": "remove"}).text)
    assert f"0 devices would be removed for {ACCOUNT}. 2 devices have no entry of the source crm." in seen
    seen = words(olga.post("suppression/check", {**FILE, "csv": "device_id\n7\n"}).text)
    assert f"0 devices would be added for {ACCOUNT}. 1 device has an entry of the source crm already" in seen


def test_the_names_of_channels_keep_their_capitals(olga: Person, ledger: Ledger) -> None:
    body = {**FILE, "csv": "device_id\n7\n", "scope": "channel:sms"}
    seen = olga.post("suppression/check", body).text
    done = olga.post("suppression/file", {**body, "checked": token_of(seen)}).text
    assert "1 device added, for campaigns with SMS." in done


def test_a_file_with_a_later_end_prolongs_what_is_on_the_list_and_a_replacement_may_shorten_it(
    olga: Person, ledger: Ledger
) -> None:
    longer = f"2 devices suppressed for longer, for {ACCOUNT}."
    shorter = f"2 devices suppressed for a shorter time, for {ACCOUNT}."
    for how, until, button, done in (
        ("add", "2090-01-01", "Add 2", f"2 devices added, for {ACCOUNT}."),
        ("add", "2090-01-01", None, None),
        ("add", "2091-01-01", "Suppress 2 for longer", longer),
        ("add", "", "Suppress 2 for longer", longer),
        ("add", "2092-01-01", None, None),
        ("replace", "2092-01-01", "Suppress 2 for a shorter time", shorter),
        ("replace", "2092-01-01", None, None),
        ("replace", "", "Suppress 2 for longer", longer),
    ):
        body = {**FILE, "how": how, "csv": "device_id\n7\n8\n", "until": until}
        seen = olga.post("suppression/check", body).text
        assert re.findall(r"<button[^>]*>(.*?)</button>", seen) == ([button] if button else []), until
        assert ("There is nothing to change" in seen) is (button is None)
        assert ("2 entries would end earlier than now." in seen) is (done == shorter)
        if done:
            assert done in olga.post("suppression/file", {**body, "checked": token_of(seen)}).text
    history = words(olga.get("suppression").text)
    assert history.count("2 devices suppressed for longer for every campaign") == 3
    assert history.count("2 devices suppressed for a shorter time for every campaign") == 1
    assert [each.until for each in ledger.suppressions.of_person("device_id", 7)] == [None]


def test_a_replacement_that_removes_much_is_confirmed_first(olga: Person, ledger: Ledger) -> None:
    content = "device_id\n" + "".join(f"{number}\n" for number in range(1, 11))
    body = {**FILE, "how": "replace", "csv": content}
    seen = olga.post("suppression/check", body).text
    assert 'name="confirmed"' not in seen
    assert olga.post("suppression/file", {**body, "checked": token_of(seen)}).status_code == 200
    empty = {**body, "csv": "device_id\n"}
    seen = olga.post("suppression/check", empty).text
    assert "Remove 10 of 10 entries" in seen
    refused = olga.post("suppression/file", {**empty, "checked": token_of(seen)})
    assert (refused.status_code, len(suppressed(ledger))) == (422, 10)
    done = olga.post("suppression/file", {**empty, "checked": token_of(seen), "confirmed": "true"})
    assert "10 devices removed" in done.text
    assert suppressed(ledger) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"csv": "device_id\n7\nann4711\n"},
            "line 3: the value in the column device_id is not a whole number",
        ),
        ({"csv": "name\nann4711\n"}, "found no column device_id in the first line"),
        ({"csv": "device_id\n\ufffd4711\n"}, "not UTF-8"),
        ({"csv": "device_id\n"}, "no identifiers"),
        ({"csv": "device_id\n7\n", "scope": "topic", "topic": "Big News"}, "found the topic"),
        ({"csv": "device_id\n7\n", "scope": "topic"}, "the topic is missing. Enter one"),
        ({"csv": "device_id\n7\n", "until": "2020-01-31"}, "in the past"),
        ({"csv": "device_id\n7\n", "until": "soon"}, "Enter the end as a date"),
        ({"csv": "device_id\n7\n", "source": " "}, "Enter a source"),
        (
            {"csv": "device_id\n7\n", "source": "opt-out"},
            "Nothing was done: only Sendoff adds entries of the source opt-out. Use another name, such as crm.",
        ),
        (
            {"csv": "device_id\n7\n", "source": "opt-out", "how": "replace"},
            "only Sendoff adds entries of the source opt-out",
        ),
        ({}, "Choose a CSV file"),
    ],
)
def test_a_file_or_form_that_is_wrong_says_where_and_changes_nothing(
    olga: Person, ledger: Ledger, more: dict[str, str], words: str
) -> None:
    for path in ("check", "file"):
        answer = olga.post(f"suppression/{path}", {**FILE, **more})
        assert answer.status_code == 422
        assert words in unescape(answer.text)
        assert "4711" not in answer.text
    assert ledger.suppressions.sizes(datetime.now(UTC)) == []


def test_an_identifier_that_the_ledger_cannot_store_is_refused_or_skipped(
    olga: Person, ledger: Ledger
) -> None:
    of_user = {**ADD, "identified_by": "user_id"}
    refused = olga.post("suppression/add", {**of_user, "identifier": "😀" * 251})
    assert (refused.status_code, "must not be longer than 1,000 bytes" in refused.text) == (422, True)
    file = {**FILE, "identified_by": "user_id", "csv": f"user_id\nann\n{'x' * 1_001}\n"}
    assert "The file has 1 person. 1 row without an ident" in olga.post("suppression/check", file).text
    assert ledger.suppressions.sizes(datetime.now(UTC)) == []


def test_a_file_may_be_larger_than_other_bodies_but_not_endless(olga: Person, ledger: Ledger) -> None:
    content = "device_id\n" + "".join(f"{number}\n" for number in range(7_340_000_001, 7_340_020_001))
    assert "20,000 devices would be added" in olga.post("suppression/check", {**FILE, "csv": content}).text
    assert olga.post("suppression/add", {**ADD, "identifier": "x" * 200_000}).status_code == 413
    assert olga.post("suppression/check", {**FILE, "csv": "x" * 20_000_000}).status_code == 413


def test_the_suppression_list_is_seen_and_changed_by_those_alone_who_may_steer_everything(
    as_: Callable[..., Person], vera: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(ledger, "spring_sale")
    freeze(ledger, "big_news")
    one = {**ADD, "identifier": "7"}
    assert "Suppress a recipient" not in vera.get("suppression").text
    assert "Upload a file" not in vera.get("suppression").text
    posts: list[tuple[str, dict[str, str]]] = [
        ("add", one),
        ("remove", one),
        ("check", {**FILE, "csv": "device_id\n7\n"}),
        ("file", {**FILE, "csv": "device_id\n7\n", "checked": "x"}),
    ]
    ruth = as_("ruth", "OP")
    monkeypatch.setattr(ByDag, "seen", frozenset({"big_news"}))
    monkeypatch.setattr(ByDag, "steered", frozenset({"big_news"}))
    for who in (vera, ruth):
        for path, body in posts:
            assert who.post(f"suppression/{path}", body).status_code == 403, path
    query = {"identifier": "7", "identified_by": "device_id"}
    assert ruth.get("suppression").status_code == 403
    assert ruth.post("suppression/person", query).status_code == 403
    assert suppressed(ledger) == []
    monkeypatch.setattr(ByDag, "seen", None)
    assert vera.post("suppression/person", query).status_code == 200


def test_a_person_is_erased_after_the_identifier_was_entered_twice(
    olga: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = freeze(ledger, "spring_sale", people=20)
    device = str(FIRST_DEVICE + 7)
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET", raising=False)
    body = {**WHY, "identified_by": "device_id", "identifier": device, "again": device}
    refused = olga.post("suppression/erase", body)
    assert (refused.status_code, "SENDOFF_ERASURE_SECRET is not set" in refused.text) == (422, True)
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "0123456789abcdef" * 4)
    for again in ("", "4"):
        answer = olga.post("suppression/erase", {**body, "again": again})
        assert answer.status_code == 422
        assert device not in answer.text
    assert ledger.erasures.pending() == []
    done = olga.post("suppression/erase", body)
    assert "The erasure is requested" in done.text
    nobody = "No one erases the data yet: Airflow does not have the DAG sendoff_maintenance."
    assert nobody in done.text
    assert device not in done.text
    [request] = ledger.erasures.pending()
    assert (request.who, request.why, request.people) == ("olga", "because", 1)
    assert "no data about this" not in done.text
    assert suppressed(ledger, "everything") == [int(device)]  # until it is carried out
    assert f"1 erasure requested and not carried out yet. {nobody}" in olga.get("suppression").text
    continue_erasures(ledger)
    assert not ledger.launches.recipient(key, device).is_named
    assert suppressed(ledger, "everything") == []
    assert "not carried out" not in olga.get("suppression").text
    again = olga.post("suppression/erase", body)
    assert "Sendoff has no data about this device ID: check its spelling" in again.text
    assert device not in again.text


def test_everything_held_about_a_person_is_downloaded_and_that_is_audited(
    olga: Person, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = freeze(ledger, "spring_sale", people=20)
    device = str(FIRST_DEVICE + 7)
    olga.post("suppression/add", {**ADD, "identifier": device})
    answer = olga.post("suppression/export", {**WHY, "identified_by": "device_id", "identifier": device})
    assert answer.headers["Content-Disposition"] == 'attachment; filename="person.json"'
    assert answer.headers["Cache-Control"] == "no-store"
    held = answer.json()
    assert [each["launch_key"] for each in held["launches"]] == [key]
    assert [each["scope"] for each in held["suppressions"]] == ["account"]
    assert (
        olga.post("suppression/export", {"identified_by": "device_id", "identifier": device}).status_code
        == 422
    )
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "0123456789abcdef" * 4)
    request_erasure(ledger, [1], identified_by="device_id", who="anna", reason="asked")
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    refused = olga.post("suppression/export", {**WHY, "identified_by": "device_id", "identifier": device})
    assert (refused.status_code, "SENDOFF_ERASURE_SECRET is not set" in refused.text) == (422, True)


JOURNEY = f"""
title: Welcome to the shop
schedule: 0 {NEWEST.hour} * * *
exits: [{{kind: verdicts, are: [engaged]}}, {{kind: query, file: bought.sql}}]
steps:
  - name: hello
    message: {{title: Hello, text: Welcome}}
    channels: {{android_push: }}
  - name: tips
    wait: {{length: 2, unit: days}}
    when: {{of: hello, are: [delivered], unknowable: include}}
    audience: {{exclude: [{{kind: list, name: staff}}]}}
    message: {{title: Tips, text: Three of them}}
    channels: {{android_push: }}
  - name: last
    when: {{of: tips, are: [delivered]}}
    message: {{title: Last, text: Goodbye}}
    channels: {{android_push: }}
"""


class JourneyRun(Run):
    """A run of a journey's DAG whose first steps have launches. ``begun``: how many."""

    def __init__(
        self,
        server: TestClient,
        ledger: Ledger,
        folder: Path,
        name: str,
        *,
        begun: int = 2,
        text: str = JOURNEY,
    ) -> None:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        self.folder = folder / "campaigns" / name
        self.folder.mkdir(parents=True)
        (self.folder / "journey.yaml").write_text(text)
        for file in ("audience.sql", "bought.sql"):
            (self.folder / file).write_text("SELECT device_id FROM devices")
        (folder / "campaigns.py").write_text(DAGS)
        bag = DagBag(dag_folder=folder)
        assert name in bag.dags, bag.import_errors
        sync_bag_to_db(bag, "dags-folder", None)
        self.person, self.name, self.id = Person(server, "ada", "ADMIN"), name, f"of_{name}"
        self.group = ""
        self.pause(False)
        at = (NOW - timedelta(days=2)).isoformat()
        self._api("POST", f"dags/{name}/dagRuns", {"dag_run_id": self.id, "logical_date": at})
        self._tasks = f"dags/{name}/dagRuns/{self.id}/taskInstances"
        steps = {each.name: each.campaign.model_dump() for each in load_journey(self.folder).campaigns}
        self.keys = {}
        sent: list[tuple[str, int, dict[str, int]]] = [
            ("hello", 12, {"took it before": 500}),
            ("tips", 8, {"query bought.sql": 3, "list staff": 4}),
        ]
        for step, count, dropped in sent[:begun]:
            campaign = f"{name}.{step}"
            key = freeze(ledger, campaign, people=count, dropped=dropped, definition=steps[campaign])
            self.keys[step] = key
            self.found(f"{step}.audience", key, campaign)


def numbers(text: str, step: str) -> dict[str, str]:
    """Return the numbers of a step on the page of a journey, by name."""
    [row] = re.findall(rf">{step}</a></span></th>(.*?)</tr>", text, re.DOTALL)
    return {name: words(value).strip() for name, value in re.findall(r'data-name="([^"]+)">(.*?)</td>', row)}


@pytest.mark.airflow_database
def test_the_page_of_a_journey_shows_its_steps_its_exits_and_who_waits(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    run = JourneyRun(server, ledger, tmp_path, "welcome")
    send(ledger, run.keys["tips"], *(Accepted(200, number) for number in range(1, 5)))
    shown = olga.get("campaigns/welcome")
    text = words(shown.text)
    assert "A journey of 3 steps: each step goes to devices of an earlier one." in text
    assert "They leave it if they opened or clicked a message, or are found by bought.sql." in text
    assert (
        "It goes out 2 days after hello was sent, to devices that got it but did not open it, and to" in text
    )
    assert "3 devices were found by bought.sql, so they did not get it." in text
    assert "500 devices took it before, so they did not get it." in text
    assert "4 devices are on the list staff, so they did not get it." in text
    assert [numbers(shown.text, step)["left"] for step in ("hello", "tips")] == ["0", "3"]
    assert "At most 8 devices will get the next step" in text
    assert "It has no launch yet." in text
    assert shown.text.index(run.keys["hello"]) < shown.text.index(run.keys["tips"])
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id="welcome").update({"state": "success"})
    assert "will get the next step" not in words(olga.get("campaigns/welcome").text)

    step = words(olga.get("campaigns/welcome.tips").text)
    assert (
        "This is step 2 of 3 of the journey Welcome to the shop. It goes out 2 days after hello was sent"
        in step
    )
    assert "How many devices" not in step
    assert "How many devices" in words(olga.get("campaigns/welcome.hello").text)
    assert of_button(olga.get("campaigns/welcome.hello").text)[2]["conf"] == {"dry_run": True}
    for path in ("campaigns/welcome.hello", "campaigns/welcome.tips", "campaigns/welcome.last"):
        page = olga.get(path).text
        assert 'href="../../dags/welcome"' in page, path
        assert "Airflow has no DAG" not in page, path
    listed = words(olga.get("campaigns").text)
    assert "not in Airflow" not in listed
    assert "a step of Welcome to the shop" in listed
    assert "See its steps" in listed

    (run.folder / "journey.yaml").unlink()  # as in a deployment whose API server does not have the files
    without = olga.get("campaigns/welcome").text
    assert [numbers(without, step)["left"] for step in ("hello", "tips")] == ["0", "3"]
    kept = words(without)
    assert "A journey of 2 steps" in kept
    assert "cannot read the journey's folder" in kept
    assert "It goes out some time after hello was sent" in kept


BRANCH = JOURNEY.replace(
    """  - name: last
    when: {of: tips, are: [delivered]}
""",
    """  - name: retry
    wait: {length: 5, unit: days}
    when: {of: hello, are: [missing], unknowable: include}
""",
)


@pytest.mark.airflow_database
def test_a_step_of_a_journey_waits_until_all_steps_after_it_were_made(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    run = JourneyRun(server, ledger, tmp_path, "branches", text=BRANCH)
    send(ledger, run.keys["hello"], *(Accepted(200, number) for number in range(1, 7)))
    shown = olga.get("campaigns/branches").text
    assert numbers(shown, "hello")["may go on"] == "12"
    due = shown[shown.index("At most 12 devices") :]
    assert (NOW + timedelta(days=5)).isoformat(timespec="seconds") in due[: due.index("</li>")]
    hello = ledger.launches.get(run.keys["hello"])
    key = launch_key(hello.connection, "branches.retry", hello.period)
    why = "the audience is empty"
    ledger.not_launched.store(NotLaunched(key, "branches.retry", "Retry", hello.period, 0, NOW, why))
    assert numbers(olga.get("campaigns/branches").text, "hello")["may go on"] == "0"


@pytest.mark.airflow_database
def test_a_recipient_of_several_launches_of_a_step_for_a_period_may_get_the_next_step_once(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    run = JourneyRun(server, ledger, tmp_path, "repeats", begun=1)
    [first] = send(ledger, run.keys["hello"], Accepted(200, 17))
    hello = ledger.launches.get(run.keys["hello"])
    definition = Campaign.frozen(hello.definition).model_dump()
    again = freeze(ledger, "repeats.hello", people=15, holdout=1, definition=definition, resend=1)
    freeze(
        ledger, "repeats.hello", people=5, day=3, definition=definition
    )  # has no run, and is not the newest
    assert numbers(olga.get("campaigns/repeats").text, "hello")["may go on"] == "15"
    store(ledger, post_back(first, "open", FIRST_DEVICE + 1, at=NOW))
    for key in (hello.launch_key, again):
        reconcile_launch(ledger, key, now=NOW + timedelta(minutes=1))
    assert numbers(olga.get("campaigns/repeats").text, "hello")["may go on"] == "14"
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id="repeats").update({"state": "success"})
    assert numbers(olga.get("campaigns/repeats").text, "hello")["may go on"] == "0"


@pytest.mark.airflow_database
@pytest.mark.parametrize(("sent", "says"), [(1, True), (0, False)])
def test_the_next_step_of_a_journey_also_follows_a_step_that_was_stopped_partway(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, sent: int, says: bool
) -> None:
    name = f"stopped_after_{sent}"
    run = JourneyRun(server, ledger, tmp_path, name, begun=1)
    send(ledger, run.keys["hello"], *[Accepted(200, 1)] * sent, at=datetime.now(UTC))
    stop(ledger, run.keys["hello"], "ann", "enough")
    text = words(olga.get(f"campaigns/{name}").text)
    assert ("At most 12 devices will get the next step" in text) is says
    assert ("will get the next step" in text) is says


@pytest.mark.airflow_database
def test_the_page_of_a_journey_without_its_files_shows_the_launches_of_its_first_step(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path
) -> None:
    run = JourneyRun(server, ledger, tmp_path, "greeting", begun=1)
    (run.folder / "journey.yaml").unlink()
    text = olga.get("campaigns/greeting").text
    assert f'launches/{run.keys["hello"]}"' in text
    assert "No launches yet" not in text
    assert "?campaign=greeting" not in text  # no launch is of the journey itself


@pytest.mark.airflow_database
def test_a_campaign_that_only_people_start_has_no_schedule_in_words(
    server: TestClient, vera: Person, ledger: Ledger, tmp_path: Path
) -> None:
    Run(server, tmp_path, "by_hand", NOBODY, text=CAMPAIGN.partition("schedule:")[0])
    text = words(vera.get("campaigns/by_hand").text)
    assert "Runs by hand, or after other campaigns. Open it in Airflow" in text


@pytest.mark.airflow_database
def test_the_run_of_a_journey_leads_to_all_of_its_launches(
    server: TestClient,
    as_: Callable[..., Person],
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    olga = as_("olga", "OP")
    run = JourneyRun(server, ledger, tmp_path, "greets")
    shown = olga.get(f"dag?dag_id=greets&run_id={run.id}")
    assert shown.status_code == 200
    assert shown.text.index(run.keys["hello"]) < shown.text.index(run.keys["tips"])
    assert "last has no launch in this run yet." in words(shown.text)
    assert olga.get("dag?dag_id=greets").headers["Location"] == "campaigns/greets"
    monkeypatch.setattr(ByDag, "seen", frozenset({"other"}))
    assert olga.get(f"dag?dag_id=greets&run_id={run.id}").status_code == 404
    assert olga.get("campaigns/greets").status_code == 404


NESTED = """
from pathlib import Path

from airflow.sdk import DAG, TaskGroup
from sendoff_airflow import campaign_group

with DAG("nested", schedule=None), TaskGroup("outer"):
    folder = Path(__file__).with_name("campaigns") / "nested"
    campaign_group(folder, group_id="lapsed", name="nested.outer.lapsed")
"""


@pytest.mark.airflow_database
def test_a_campaign_in_a_group_inside_another_belongs_to_its_dag(
    server: TestClient, olga: Person, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DAG_WITH_GROUP", NESTED)
    asked = {**PUSH, "approval": {"needed": "always", "role": "crm"}}
    key = freeze(ledger, "nested.outer.lapsed", state="held", definition=asked)
    Run(server, tmp_path, "nested", key, group="outer.lapsed.")
    names = ["nested.outer.lapsed", "nested.other.lapsed"]
    assert airflow_dags.dags_of(names) == {names[0]: "nested", names[1]: names[1]}
    assert "/tasks/outer.lapsed.approve/required_actions" in olga.get(f"launches/{key}").text
    monkeypatch.setattr(ByDag, "seen", frozenset({"nested"}))
    assert Person(server, "nina", "OP").get(f"launches/{key}").status_code == 200


def test_a_folder_that_cannot_be_looked_at_is_like_none() -> None:
    """The API server may have no right to enter the folder of the DAG files. A name that is too long fails alike."""
    assert airflow_dags._folder(f"/{'x' * 300}/dags.py", "spring_sale") is None
