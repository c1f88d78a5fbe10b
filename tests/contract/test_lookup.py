"""Settling doubts from the service's list of campaigns: found means accepted, not found stays in doubt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests

from sendoff.dispatch.control import resolve
from sendoff.dispatch.lookup import find_campaigns, resolve_by_listing
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.errors import RefusedError, RetryableError, SettingsError
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource
from sendoff.states import Resolution

from ..factories import KEY, NOW, make_campaign, make_launch

LIST = "/api/external/list/campaign"


@pytest.fixture
def ledger(migrated_url: str) -> Iterator[Ledger]:
    ledger = Ledger(migrated_url)
    make_launch(ledger, [1, 2], size=1, campaign=make_campaign(post_backs={"kinds": []}))
    yield ledger
    ledger.close()


@pytest.fixture
def service(service_start: Callable[..., Any]) -> Any:
    return service_start()


def client_of(service: Any, client_id: str, client_secret: str) -> Client:
    session = requests.Session()
    tokens = TokenSource(ClientSecret(client_id, client_secret), service.base_url, session)
    return Client(service.base_url, session, tokens)


@pytest.fixture
def connection(service: Any) -> ServiceConnection:
    client = client_of(service, service.client_id, service.client_secret)
    return ServiceConnection(client, PostBackSigner("http://127.0.0.1:9", ["x" * 32]), can_list=True)


class InDoubtTwice:
    """A client whose first request is processed but not answered, and whose second request is lost on the way."""

    def __init__(self, client: Client, service: Any) -> None:
        self._client = client
        self._service = service
        self._is_processed = [True, False]

    def create_campaign(self, body: bytes) -> Any:
        fault = {"kind": "500", "at": ["create"], "count": 1, "after": self._is_processed.pop(0)}
        assert self._service.post("/admin/faults", json=fault).status_code == 201
        return self._client.create_campaign(body)


@pytest.fixture
def doubtful(service: Any, ledger: Ledger, connection: ServiceConnection) -> Ledger:
    """A ledger with two dispatches in doubt; the service processed the first."""
    client: Any = InDoubtTwice(connection.client, service)
    in_turn = replace(connection, client=client, requests_at_once=1)
    assert send_launch(ledger, KEY, in_turn, now=lambda: NOW) == SendResult(in_doubt=2)
    return ledger


def test_what_is_found_is_accepted_and_what_is_not_stays_in_doubt(
    service: Any, doubtful: Ledger, connection: ServiceConnection
) -> None:
    assert resolve_by_listing(doubtful, KEY, connection, now=NOW) == 1
    assert resolve_by_listing(doubtful, KEY, connection, now=NOW) == 0
    first, second = doubtful.dispatch_queries.of_launch(KEY)
    (made,) = service.admin("campaigns")["campaigns"]
    assert (first.state, first.campaign_id, second.state) == ("accepted", made["id"], "in_doubt")
    assert doubtful.dispatch_queries.reasons(KEY, "evidence") == ["the service lists a campaign with its key"]


def test_nothing_is_read_where_the_connection_does_not_say_so(
    service: Any, doubtful: Ledger, connection: ServiceConnection
) -> None:
    with pytest.raises(SettingsError, match="can_list"):
        resolve_by_listing(doubtful, KEY, replace(connection, can_list=False))
    assert LIST not in [each["path"] for each in service.admin("requests")["requests"]]


def test_what_a_person_wrote_off_is_not_looked_for(
    service: Any, doubtful: Ledger, connection: ServiceConnection
) -> None:
    for doubt in doubtful.doubts.open(KEY):
        resolve(doubtful, doubt.dispatch_key, Resolution.WRITE_OFF, "ann", "nobody knows", now=NOW)
    assert resolve_by_listing(doubtful, KEY, connection, now=NOW) == 0
    assert LIST not in [each["path"] for each in service.admin("requests")["requests"]]


def test_only_the_keys_that_were_asked_for_are_found(
    service: Any, doubtful: Ledger, connection: ServiceConnection
) -> None:
    (made,) = service.admin("campaigns")["campaigns"]
    assert service.create(broadcast=1, web_push=1).status_code == 200  # its title has no key
    first, second = (each.dispatch_key for each in doubtful.dispatch_queries.of_launch(KEY))
    assert find_campaigns(connection.client, {first, second}) == {first: made["id"]}
    assert find_campaigns(connection.client, {second}) == {}


class ShortPages:
    """A client of a service whose pages have at most two campaigns, whatever is asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list_campaigns(self, body: bytes) -> Any:
        return self._client.list_campaigns(json.dumps({**json.loads(body), "limit": 2}).encode())


def test_it_is_found_on_a_later_page_too(
    service: Any, doubtful: Ledger, connection: ServiceConnection
) -> None:
    for _ in range(5):
        assert service.create(broadcast=1, web_push=1).status_code == 200
    client: Any = ShortPages(connection.client)
    assert resolve_by_listing(doubtful, KEY, replace(connection, client=client), now=NOW) == 1


def test_a_service_that_does_not_answer_settles_nothing(
    service: Any, doubtful: Ledger, connection: ServiceConnection
) -> None:
    service.stop()
    with pytest.raises(RetryableError):
        resolve_by_listing(doubtful, KEY, connection, now=NOW)
    assert doubtful.dispatch_queries.states(KEY) == {"in_doubt": 2}


def test_a_client_without_the_scope_is_refused(service: Any) -> None:
    made = service.command("client-ids", "add", "--name", "narrow", "--type", "secret", "--scope", "create")
    narrow = client_of(service, made["client_id"], made["client_secret"])
    with pytest.raises(RefusedError, match=r"does not list its campaigns \(HTTP 403\)"):
        find_campaigns(narrow, {"0" * 32})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"offset": -1}, "offset"),
        ({"select": ["secret"]}, "select"),
        ({"order": ["title"]}, "order"),
        ({"condition": []}, "condition"),
    ],
)
def test_the_local_service_refuses_a_list_that_it_does_not_understand(
    service_process: Any, body: dict[str, Any], field: str
) -> None:
    answer = service_process.post(LIST, json=body, headers=service_process.bearer())
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == [field]
