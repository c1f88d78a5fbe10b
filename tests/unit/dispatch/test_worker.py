"""The dispatch loop with a ledger that does not answer, and with a service that names people in its refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests

from sendoff.audience.identifiers import Identifiers, integers, strings
from sendoff.dispatch.checks import check_refusals
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import _without_recipients, send_launch
from sendoff.errors import LedgerUnavailableError, RateLimitedLocallyError, RefusedError
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.token_endpoint import TOKEN_PATH
from sendoff.service.tokens import TokenSource
from sendoff.states import Refused

from ...factories import KEY, LEASE, NOW, make_audience, make_campaign, make_launch
from ...ports import reserved_port
from ...waiting import PATIENCE


@contextmanager
def connected(url: str) -> Iterator[ServiceConnection]:
    with requests.Session() as session:
        client = Client(url, session, TokenSource(ClientSecret("client", "secret"), url, session))
        yield ServiceConnection(client, PostBackSigner(url, ["n" * 32]), requests_at_once=1)


def test_a_worker_that_can_neither_learn_of_its_claim_nor_give_it_back_claims_nothing_more(
    ledger: Ledger,
) -> None:
    """A second claim under the same name would hide the first, and no one would give that back."""
    make_launch(ledger, range(1, 3), size=1)
    claim = ledger.dispatches.claim

    def lose_the_answer(*arguments: Any, **how: Any) -> None:
        claim(*arguments, **how)
        raise LedgerUnavailableError("the answer to the commit was lost")

    def do_not_answer(*_: object, **__: object) -> None:
        raise LedgerUnavailableError("the ledger database did not answer")

    ledger.dispatches.claim = lose_the_answer  # type: ignore[method-assign]
    ledger.dispatches.give_back = do_not_answer  # type: ignore[method-assign]
    with (
        reserved_port() as port,
        connected(f"http://127.0.0.1:{port}") as connection,
        pytest.raises(LedgerUnavailableError, match="the answer to the commit was lost"),
    ):
        send_launch(ledger, KEY, connection, now=lambda: NOW)
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1, "planned": 1}


@pytest.mark.code_decides
def test_a_worker_waits_for_its_turn_for_a_while_in_all(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    ledger.rate_limits.delay("service", NOW + timedelta(seconds=40))
    slept: list[float] = []
    with (
        reserved_port() as port,
        connected(f"http://127.0.0.1:{port}") as connection,
        pytest.raises(RateLimitedLocallyError),  # the clock of this test stands still
    ):
        send_launch(ledger, KEY, connection, now=lambda: NOW, sleep=slept.append)
    assert slept == [40.0]
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


@contextmanager
def answering_service(status: int, answer: dict[str, Any]) -> Iterator[str]:
    """Run a service that gives tokens and answers each request alike, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            is_token = self.path == TOKEN_PATH
            token = {"access_token": "t" * 32, "token_type": "Bearer", "expires_in": 3_600}
            content = json.dumps(token if is_token else answer)
            self.send_response(200 if is_token else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content.encode())))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("people", "said", "told"),
    [
        (integers([7, 77]), "device 77 of 777 has no profile (7)", "device … of 777 has no profile (…)"),
        (strings(["anna", "anna_k"]), "user_id 'anna_k' has no profile", "user_id '…' has no profile"),
        (strings(["müller", "AB-12"]), "müller, AB-12: müllers", "…, …: müllers"),
        (strings(["+353 86 123 456"]), "phone +353 86 123 456 is unknown", "phone … is unknown"),
        (strings(["anna.smith.1987"]), "Unknown id anna.smith.1987", "Unknown id …"),
        (strings(["Müller2024", "Anna  Lee"]), "Müller2024; Anna  Lee", "…; …"),
        (strings(["a.c"]), "abc is no field", "abc is no field"),
        (strings(["crm/anna"]), r"no crm\/anna", "no …"),
        (strings(["o'neil", "a&b"]), "no o&#39;neil, a&amp;b", "no …, …"),
        (strings(["anna lee", "AB-12345"]), "no anna%20lee, ab%2D12345", "no …, …"),
        (strings(["anna@a.ie"]), "no anna%40a.ie", "no …"),
        (strings(["crm%2Fanna", "a&amp;b c"]), "no crm%2Fanna, a&amp;b c", "no …, …"),
        (strings(["Müller", 'a"b c']), r"no M\u00fcller, a\"b c", "no …, …"),
        (strings(["Anna", "MÜLLER"]), "no ANNA, müller", "no …, …"),
        (strings(["anna maria lee"]), f"{'no ' * 63}anna maria lee", f"{'no ' * 63}…"),
        (strings(["bob_the_builder"]), f"{'no ' * 61}bob_the_builder bob_the_builder", f"{'no ' * 61}… …"),
    ],
)
def test_a_refusal_is_told_without_the_recipients_of_its_request(
    ledger: Ledger, people: Identifiers, said: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    column = "device_id" if people.kind == "integer" else "external_id"
    make_launch(ledger, people, audience=make_audience(people, identified_by=column))
    refusal = {"success": False, "code": 400, "message": said}
    with answering_service(400, refusal) as url, connected(url) as connection:
        assert send_launch(ledger, KEY, connection, now=lambda: NOW).refused == 1
    assert ledger.dispatch_queries.reasons(KEY, "refused") == [told]
    with pytest.raises(RefusedError) as error:
        check_refusals(ledger, KEY)
    assert str(error.value).endswith(f": {told}")
    assert said not in caplog.text


def test_a_refusal_keeps_the_address_to_correct(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    moved = Refused(308, "the service has moved to https://api.eu.example.com/v2; correct the base URL")
    assert _without_recipients(moved, integers([1])) == moved


def send_until_unavailable(ledger: Ledger, **how: Any) -> None:
    accepted = {"success": True, "code": 200, "model": {"id": 17}}
    with (
        answering_service(200, accepted) as url,
        connected(url) as connection,
        pytest.raises(LedgerUnavailableError),
    ):
        send_launch(ledger, KEY, connection, now=lambda: NOW, **how)


@pytest.mark.code_decides
def test_a_worker_whose_clock_stands_still_tries_for_a_lease_to_record_its_outcome(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    slept: list[float] = []

    def do_not_answer(*_: object, **__: object) -> None:
        raise LedgerUnavailableError("the ledger database did not answer")

    ledger.dispatches.record_and_claim = do_not_answer  # type: ignore[method-assign]
    send_until_unavailable(ledger, sleep=slept.append)
    assert sum(slept) == LEASE.total_seconds()


def test_a_worker_that_stops_between_two_requests_gives_its_next_claim_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.dispatch.rate_watch._BETWEEN", 0.0)
    monkeypatch.setattr("sendoff.dispatch.pace._QUICK", PATIENCE)  # so that each look follows the one before
    make_launch(ledger, range(1, 4), size=1, campaign=make_campaign(gates={"hold_above": {"refused": 50}}))
    newest = ledger.audit_log.newest

    def fail_after_the_first_request(key: str) -> int:
        if ledger.dispatch_queries.states(key).get("accepted"):
            raise LedgerUnavailableError("the ledger database did not answer")
        return newest(key)

    ledger.audit_log.newest = fail_after_the_first_request  # type: ignore[method-assign]
    send_until_unavailable(ledger)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 2}
