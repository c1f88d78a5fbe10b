"""The client: the outcome of each answer and each network failure, on real sockets."""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from sendoff.dispatch.worker import _MAX_CLAIM_AGE, LEASE
from sendoff.errors import SettingsError
from sendoff.service import deadline
from sendoff.service.client import REQUEST_TIMEOUT, Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.tokens import TOKEN_TIMEOUT, TokenSource
from sendoff.service.transport import Timeout, service_session
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
BODY = b'{"title": "A campaign", "device_ids": [1, 2, 3]}'
YES = {"success": True, "code": 200, "model": {"id": 701}}
CREDENTIALS = ClientSecret("client-1", "a-client-secret")
PATIENCE = NotProcessed("the service limits the rate of requests (429)", is_rate_limited=True)
SILENCE = 0.3  # the read timeout of an impatient client, in seconds
PATIENT = Timeout(60.0, 60.0)


@pytest.fixture(autouse=True)
def idle_connections_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_MAX_IDLE", math.inf)


@pytest.fixture
def client(script: Any, session: requests.Session) -> Client:
    return client_at(script.url, session)


def client_at(
    url: str,
    session: requests.Session,
    tokens_at: str | None = None,
    *,
    timeout: Timeout = PATIENT,
) -> Client:
    tokens = TokenSource(CREDENTIALS, tokens_at or url, session, clock=lambda: NOON)
    return Client(url, session, tokens, timeout=timeout, clock=lambda: NOON)


def outcome(script: Any, client: Client, *steps: Any) -> Outcome:
    """Return the outcome of one request, after a token request."""
    script.tell(script.token("token-one"), *steps)
    return client.create_campaign(BODY)


# Requests


@pytest.mark.rule(
    "4.2/path", "4.2/content_type", "4.3/path", "4.3/content_type", "5/bearer", "9/no_version", side="client"
)
@pytest.mark.parametrize(
    ("send", "path"),
    [
        (Client.create_campaign, "/api/external/create/campaign"),
        (Client.execute_campaign, "/api/external/execute/campaign"),
    ],
)
def test_a_body_is_posted_as_it_is_with_a_token(
    script: Any, client: Client, send: Callable[[Client, bytes], Outcome], path: str
) -> None:
    script.tell(script.token("token-one"), script.answer(200, YES))
    assert send(client, BODY).kind == "accepted"
    request = script.requests[1]
    assert request.line == f"POST {path} HTTP/1.1"
    assert request.headers["Authorization"] == "Bearer token-one"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"].startswith("sendoff/")
    assert request.body == BODY


def test_the_reply_to_an_execution_names_no_campaign(script: Any, client: Client) -> None:
    """Its ID may be that of the sending. Every post-back would then be of another campaign."""
    script.tell(script.token("token-one"), script.answer(200, YES), script.answer(200, YES))
    assert client.create_campaign(BODY) == Accepted(200, 701)
    assert client.execute_campaign(BODY) == Accepted(200, None)


@pytest.mark.rule("5/bearer", side="client")
def test_campaigns_are_listed_with_a_token_too(script: Any, client: Client) -> None:
    page = {"success": True, "data": [{"id": 7, "title": "Spring"}]}
    script.tell(script.token("token-one"), script.answer(200, page))
    assert client.list_campaigns(b"{}") == [(7, "Spring")]
    assert script.requests[1].headers["Authorization"] == "Bearer token-one"


def test_one_token_serves_many_requests(script: Any, client: Client) -> None:
    script.tell(script.token("token-one"), *[script.answer(200, YES)] * 3)
    assert [client.create_campaign(BODY).kind for _ in range(3)] == ["accepted"] * 3
    assert len(script.requests) == 4


def test_a_session_that_repeats_requests_is_refused(session: requests.Session) -> None:
    # total=2 alone repeats a POST after some failures, whatever the values of read and status
    for retries in (1, Retry(total=2, connect=2, read=0, status=0), Retry(total=None, connect=2)):
        session.mount("https://", HTTPAdapter(max_retries=retries))
        with pytest.raises(SettingsError, match="max_retries=0"):
            client_at("https://api.example.com", session)


# Answers


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (200, YES, Accepted(200, 701)),
        (201, YES, Accepted(201, 701)),
        (202, {"success": True}, Accepted(202, None)),
        # an unreadable success may be one
        (200, b"", InDoubt("HTTP 200 with an answer that cannot be read")),
        (200, b"<html>", InDoubt("HTTP 200 with an answer that cannot be read")),
        (200, {"code": 200}, InDoubt("HTTP 200 with an answer that cannot be read")),
        (204, b"", InDoubt("HTTP 204 with an answer that cannot be read")),
        # a failure within a 2xx is judged by its code
        (200, {"success": False, "message": "Bad"}, Refused(200, "Bad")),
        (200, {"success": False, "code": 400, "message": "Bad"}, Refused(400, "Bad")),
        (200, {"success": False, "code": 500, "message": "Oops"}, InDoubt("HTTP 500")),
        (200, {"success": False, "code": 429}, PATIENCE),
        # refusals
        (400, {"success": False, "code": 400, "message": "Bad"}, Refused(400, "Bad")),
        (400, {"success": False, "message": "Bad", "errors": {"title": ["no"]}}, Refused(400, "Bad; title: no")),
        (400, b"not json", Refused(400, "HTTP 400")),
        (403, b"<html>", Refused(403, "HTTP 403")),
        (404, b"", Refused(404, "HTTP 404")),
        (405, b"", Refused(405, "HTTP 405")),
        (410, b"", Refused(410, "HTTP 410")),
        (413, b"", Refused(413, "HTTP 413")),
        (422, b"", Refused(422, "HTTP 422")),
        # rate limits
        (429, b"", PATIENCE),
        # the request may have been processed before these
        (408, b"", InDoubt("HTTP 408")),
        (409, b"", InDoubt("HTTP 409")),
        (418, b"", InDoubt("HTTP 418")),
        (500, {"success": False, "code": 500, "message": "certainly not processed"}, InDoubt("HTTP 500")),
        (502, b"", InDoubt("HTTP 502")),
        (503, b"", InDoubt("HTTP 503")),
        (504, b"", InDoubt("HTTP 504")),
        (300, b'{"success": true, "code": 200}', InDoubt("HTTP 300")),
        (200, {"success": False}, Refused(200, "HTTP 200 without success")),
        (302, b"", InDoubt("HTTP 302")),
        (303, b"", InDoubt("HTTP 303")),
        (304, b"", InDoubt("HTTP 304")),
    ],
)  # fmt: skip
def test_each_status_has_one_outcome(
    script: Any, client: Client, status: int, content: Any, expected: Outcome
) -> None:
    assert outcome(script, client, script.answer(status, content)) == expected
    assert len(script.requests) == 2  # the token and the one request: nothing is repeated


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_refused_with_where_it_leads(script: Any, client: Client, status: int) -> None:
    moved = script.answer(status, Location=f"{script.url}/elsewhere?device=123456")
    assert outcome(script, client, moved) == Refused(
        status, f"the service has moved to {script.url}; correct the base URL"
    )
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://user:secret@api.example.com:8443/v2?token=1", "https://api.example.com:8443"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("https://api.example.com/", "https://api.example.com"),
    ],
)
def test_where_a_redirect_leads_is_told_with_its_port_and_nothing_secret(
    script: Any, client: Client, location: str, shown: str
) -> None:
    moved = script.answer(301, Location=location)
    assert outcome(script, client, moved) == Refused(
        301, f"the service has moved to {shown}; correct the base URL"
    )


@pytest.mark.parametrize("port", [0, 99_999])
def test_where_a_redirect_leads_is_not_told_if_there_is_no_such_port(
    script: Any, client: Client, port: int
) -> None:
    moved = script.answer(301, Location=f"https://api.example.com:{port}/")
    assert outcome(script, client, moved) == Refused(301, "HTTP 301")


def test_a_web_page_instead_of_a_reply_is_in_doubt(script: Any, client: Client) -> None:
    page = script.answer(200, b"<html>Welcome</html>", Content_Type="text/html")
    assert outcome(script, client, page) == InDoubt("HTTP 200 with a web page")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90.0),
        ("Thu, 19 Nov 2026 12:00:00 GMT", 0.0),
        ("soon", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999999", None),
        # longer waits count as a day
        ("100000000000", 86_400.0),
        ("9" * 400, 86_400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
    ],
)
def test_patience_is_as_long_as_the_service_says(
    script: Any, client: Client, header: str, seconds: float | None
) -> None:
    told = outcome(script, client, script.answer(429, b"", Retry_After=header))
    assert told == replace(PATIENCE, retry_after=seconds)


# Refused tokens


@pytest.mark.rule("5.3/401", "7/401", side="client")
def test_a_401_is_answered_with_one_new_token_and_one_repetition(script: Any, client: Client) -> None:
    told = outcome(script, client, script.answer(401), script.token("token-two"), script.answer(200, YES))
    assert told == Accepted(200, 701)
    assert [each.headers.get("Authorization") for each in script.requests] == [
        None,
        "Bearer token-one",
        None,
        "Bearer token-two",
    ]
    assert script.bodies()[1] == script.bodies()[3] == BODY


def test_a_401_may_be_only_in_the_reply(script: Any, client: Client) -> None:
    refused = script.answer(200, {"success": False, "code": 401, "message": "expired"})
    told = outcome(script, client, refused, script.token("token-two"), script.answer(200, YES))
    assert told == Accepted(200, 701)
    script.tell(refused, script.token("token-three"), refused)
    reason = "the service refused the token, and a new one too (401): expired"
    assert client.create_campaign(BODY) == NotProcessed(reason, is_permanent=True)


def test_a_second_401_is_not_processed(script: Any, client: Client) -> None:
    told = outcome(script, client, script.answer(401), script.token("token-two"), script.answer(401))
    refused = "the service refused the token, and a new one too (401): "
    assert told == NotProcessed(f"{refused}check the app token and the client ID", is_permanent=True)
    assert len(script.requests) == 4


def test_a_second_401_shows_the_services_reason(script: Any, client: Client) -> None:
    no_app = {"success": False, "code": 401, "message": "There is no such app."}
    told = outcome(script, client, script.answer(401), script.token("token-two"), script.answer(401, no_app))
    reason = "the service refused the token, and a new one too (401): There is no such app."
    assert told == NotProcessed(reason, is_permanent=True)


def test_a_refused_login_names_the_place_to_correct(script: Any, session: requests.Session) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    client = Client(script.url, session, tokens, clock=lambda: NOON, place="connection eu")
    script.tell(script.answer(401, {"error": "invalid_client"}))
    refused = client.create_campaign(BODY)
    assert isinstance(refused, NotProcessed)
    assert refused.reason.startswith("connection eu: no token: the service refuses the client ID")
    script.tell(script.token("token-one"), script.answer(401), script.token("token-two"), script.answer(401))
    refused = client.create_campaign(BODY)
    assert isinstance(refused, NotProcessed)
    assert refused.reason.startswith("connection eu: the service refused the token, and a new one too (401)")
    script.tell(script.answer(429))
    unavailable = client.create_campaign(BODY)
    assert isinstance(unavailable, NotProcessed)
    assert "connection eu" not in unavailable.reason


def test_without_a_new_token_a_401_is_not_processed(script: Any, client: Client) -> None:
    told = outcome(script, client, script.answer(401), script.answer(400, {"error": "invalid_client"}))
    assert isinstance(told, NotProcessed)
    assert told.reason.endswith("(HTTP 400): invalid_client")


def test_a_repetition_that_breaks_off_is_in_doubt(script: Any, client: Client) -> None:
    told = outcome(script, client, script.answer(401), script.token("token-two"), script.reset)
    assert isinstance(told, InDoubt)


def test_without_a_token_nothing_is_sent(script: Any, client: Client) -> None:
    script.tell(script.answer(401), script.answer(429, b"", Retry_After="9"), script.close_at_once)
    assert isinstance(client.create_campaign(BODY), NotProcessed)
    assert client.create_campaign(BODY) == NotProcessed(
        "no token: the service limits the rate of requests (429)", retry_after=9.0, is_rate_limited=True
    )
    assert isinstance(client.create_campaign(BODY), NotProcessed)
    assert all("/api/oauth/token" in each.line for each in script.requests)


def test_threads_that_are_all_answered_with_401_share_one_new_token(script: Any, client: Client) -> None:
    def judge(connection: socket.socket, read: Callable[[], None]) -> None:
        """Refuse the first token and accept the second, in any order."""
        read()
        mine = script.request_of(connection)
        if "/api/oauth/token" in mine.line:
            step = script.token("token-two")
        else:
            step = script.answer(200 if mine.headers["Authorization"] == "Bearer token-two" else 401, YES)
        step(connection, lambda: None)

    script.tell(script.token("token-one"), *[judge] * 40)
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda _: client.create_campaign(BODY), range(16)))
    assert outcomes == [Accepted(200, 701)] * 16
    assert sum("/api/oauth/token" in each.line for each in script.requests) == 2


# Failures before sending


def test_a_refused_connection_is_not_processed(
    script: Any, session: requests.Session, free_port: int
) -> None:
    client = client_at(f"http://127.0.0.1:{free_port}", session, tokens_at=script.url)
    assert outcome(script, client) == NotProcessed(f"no connection to 127.0.0.1:{free_port} was accepted")


def test_an_unknown_host_is_not_processed(script: Any, session: requests.Session) -> None:
    client = client_at("https://nowhere.invalid", session, tokens_at=script.url)
    assert outcome(script, client) == NotProcessed("the host nowhere.invalid is not known")


@contextmanager
def full_listener() -> Iterator[int]:
    """Listen without accepting and with a full queue, so that no connection is ever opened."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        assert select.select([], waiting, [], 60)[1]  # one is connected, so the queue is full
        try:
            yield listener.getsockname()[1]
        finally:
            for each in waiting:
                each.close()


def test_a_connection_that_is_never_opened_is_not_processed(script: Any, session: requests.Session) -> None:
    with full_listener() as port:
        url = f"http://127.0.0.1:{port}"
        client = client_at(url, session, tokens_at=script.url, timeout=Timeout(SILENCE, 60.0))
        told = outcome(script, client)
    assert told == NotProcessed(f"no connection to 127.0.0.1:{port} was accepted within 0.3 seconds")


def test_an_untrusted_certificate_is_not_processed(
    script: Any, tls_script: Any, session: requests.Session
) -> None:
    client = client_at(tls_script.url, session, tokens_at=script.url)
    told = outcome(script, client)
    assert isinstance(told, NotProcessed)
    assert "is not trusted: self-signed certificate" in told.reason
    assert tls_script.requests == []


def test_a_proxy_that_is_not_there_is_not_processed(
    script: Any, session: requests.Session, free_port: int
) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    with requests.Session() as proxied:
        proxied.trust_env = False
        proxied.proxies = {"http": f"http://127.0.0.1:{free_port}"}
        client = Client("http://api.example.com", proxied, tokens, allow_http=True)
        assert outcome(script, client) == NotProcessed("no connection to api.example.com was accepted")


@pytest.mark.parametrize("spared", ["", "api.example.com"])
def test_the_proxy_of_the_environment_is_read_once(
    script: Any, session: requests.Session, monkeypatch: pytest.MonkeyPatch, spared: str
) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    monkeypatch.setenv("http_proxy", script.url)
    monkeypatch.setenv("no_proxy", spared)
    with requests.Session() as proxied:
        client = Client("http://api.example.com", proxied, tokens, allow_http=True)
        monkeypatch.delenv("http_proxy")
        told = outcome(script, client, script.answer(200, YES))
    assert isinstance(told, NotProcessed if spared else Accepted)


def test_what_the_session_has_comes_before_the_environment(
    script: Any, session: requests.Session, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/elsewhere.pem")
    with service_session(1, proxy=script.url, ca_bundle="/ours.pem") as proxied:
        client = Client("http://api.example.com", proxied, tokens, allow_http=True)
        assert isinstance(outcome(script, client, script.answer(200, YES)), Accepted)
        assert client._transport._network["verify"] == "/ours.pem"


@pytest.mark.parametrize("status", [407, 503])
def test_a_proxy_that_opens_no_connection_is_not_processed(
    script: Any, session: requests.Session, status: int
) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    with service_session(1, proxy=script.url) as proxied:
        told = outcome(
            script, Client("https://api.example.com", proxied, tokens), script.answer(status, {"secret": 1})
        )
    assert told == NotProcessed(f"the proxy opened no connection to api.example.com: HTTP {status}")


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x28"])
def test_a_connection_that_breaks_off_before_a_request_is_not_processed(
    script: Any, session: requests.Session, reply: bytes, proxied: bool
) -> None:
    """The service, or a proxy before it, closes the connection during the TLS handshake."""

    def breaks_off(connection: socket.socket, _: Callable[[], None]) -> None:
        if proxied:
            connection.recv(2**16)
            connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
        connection.recv(2**16)
        connection.sendall(reply)

    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    with service_session(1, proxy=script.url if proxied else None) as over_tls:
        over_tls.trust_env = False
        told = outcome(script, Client(script.url.replace("http:", "https:"), over_tls, tokens), breaks_off)
    assert isinstance(told, NotProcessed)
    assert told.reason.startswith(f"no connection to {urlsplit(script.url).netloc} was completed (")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ca_bundle": "/none.pem"}, "the file with the certificates to trust does not exist"),
        (
            {"proxy": "socks5://127.0.0.1:9"},
            "the proxy cannot be used for api.example.com. Use an address such as",
        ),
        (
            {"proxy": "http:///nothing"},
            "the proxy cannot be used for api.example.com. Use an address such as",
        ),
    ],
)
def test_a_setting_that_the_library_refuses_is_not_processed(
    script: Any, session: requests.Session, options: dict[str, str], reason: str
) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    with service_session(1, **options) as wrong:
        told = outcome(script, Client("https://api.example.com", wrong, tokens))
    assert isinstance(told, NotProcessed)
    assert told.reason.startswith(reason)


# Failures after sending


def test_a_proxy_that_breaks_off_is_in_doubt(script: Any, session: requests.Session) -> None:
    """The library reports a failure to connect to the proxy, but the request was sent and read."""
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    with requests.Session() as proxied:
        proxied.trust_env = False
        proxied.proxies = {"http": script.url}
        told = outcome(
            script, Client("http://api.example.com", proxied, tokens, allow_http=True), script.reset
        )
    assert isinstance(told, InDoubt)
    assert script.bodies()[1] == BODY


def test_silence_is_in_doubt(script: Any, session: requests.Session) -> None:
    client = client_at(script.url, session, timeout=Timeout(60.0, SILENCE))
    told = outcome(script, client, script.silence)
    assert isinstance(told, InDoubt)
    assert told.reason.endswith("within 0.3 seconds")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"success": true}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"success": true}',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 twohundred OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
    ids=range(13),
)
def test_an_answer_that_breaks_off_or_is_none_is_in_doubt(script: Any, client: Client, answer: bytes) -> None:
    assert isinstance(outcome(script, client, script.raw(answer)), InDoubt)


def test_a_connection_that_closes_without_an_answer_is_in_doubt(script: Any, client: Client) -> None:
    assert isinstance(outcome(script, client, script.close_at_once), InDoubt)
    script.tell(script.reset)
    assert isinstance(client.create_campaign(BODY), InDoubt)


def test_a_connection_that_was_idle_is_not_used_again(
    script: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service may be closing it, and a request that crosses with its end gets no answer."""

    def closes_later(connection: socket.socket, read: Callable[[], None]) -> None:
        read()
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        read()

    assert outcome(script, client, closes_later) == Refused(404, "HTTP 404")
    script.tell(script.answer(200, YES))
    monkeypatch.setattr(deadline, "_MAX_IDLE", 0.0)
    assert client.create_campaign(BODY) == Accepted(200, 701)


def test_a_status_counts_also_where_the_rest_of_the_answer_is_lost(script: Any, client: Client) -> None:
    cut = b"HTTP/1.1 %d Told\r\nContent-Length: 99\r\n\r\n{"
    script.tell(script.token("token-one"), script.raw(cut % 400), script.raw(cut % 429))
    assert client.create_campaign(BODY) == Refused(400, "HTTP 400")
    assert client.create_campaign(BODY).kind == "not_processed"


def test_an_answer_that_breaks_the_libraries_is_in_doubt_or_what_it_says(script: Any, client: Client) -> None:
    deep = b'{"success": true, "errors": %b%b}' % (b"[" * 1000, b"]" * 1000)
    assert outcome(script, client, script.answer(200, deep)) == Accepted(200, None)
    script.tell(script.answer(200, YES, Retry_After="Mon, 01 Jan 2024 00:00:00 +99999999999999999"))
    assert client.create_campaign(BODY) == Accepted(200, 701)
    for status, told in ((302, InDoubt("HTTP 302")), (307, Refused(307, "HTTP 307"))):
        script.tell(script.answer(status, Location="http://[::1"))
        assert client.create_campaign(BODY) == told


def test_an_interim_answer_leaves_no_answer_for_the_next_request(script: Any, client: Client) -> None:
    def early_hints(connection: socket.socket, read: Callable[[], None]) -> None:
        read()
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        if connection.recv(1):  # the next request, which would get the final answer to this one
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"success":true}')

    assert outcome(script, client, early_hints) == InDoubt("HTTP 103")
    script.tell(script.answer(400, {"success": False, "message": "no title"}))
    assert client.create_campaign(BODY) == Refused(400, "no title")


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("200 OK", InDoubt("HTTP 200 with an answer that cannot be read")),
        ("307 Temporary Redirect\r\nLocation: /elsewhere", Refused(307, "HTTP 307")),
    ],
)
def test_an_endless_answer_is_not_read_to_its_end(
    script: Any, client: Client, head: str, told: Outcome
) -> None:
    sent = 0

    def endless(connection: socket.socket, read: Callable[[], None]) -> None:
        nonlocal sent
        read()
        connection.sendall(f"HTTP/1.1 {head}\r\n\r\n".encode())
        while sent < 2**26:
            connection.sendall(b" " * 2**16)
            sent += 2**16

    assert outcome(script, client, endless) == told
    assert sent < 2**26


# A service that never finishes


DEADLINE = 59.0  # seconds; no test lasts so long


def dribbling(
    beginning: bytes, more: bytes, then: Callable[[], None] = lambda: None
) -> Callable[[socket.socket, Callable[[], None]], None]:
    """Return a step that begins an answer, calls ``then``, and sends a little more now and then."""

    def step(connection: socket.socket, read: Callable[[], None]) -> None:
        read()
        connection.sendall(beginning + more)
        then()
        for _ in range(200):
            connection.sendall(more)
            time.sleep(0.05)

    return step


ENDLESS = {
    "the lines of the head": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "a line of the head": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the body": (b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"success": true', b" "),
    "a body that looks whole": (b'HTTP/1.1 200 OK\r\n\r\n{"success": true}', b" "),
}


@pytest.fixture
def time_is_up() -> Callable[[], None]:
    """Return a function that ends the deadline of every exchange in progress; no clock does."""

    def end() -> None:
        for each in tuple(deadline._watchdog.watched):  # a copy, as others may end by themselves
            each.cut()

    return end


@pytest.mark.parametrize("answer", ENDLESS)
@pytest.mark.parametrize("is_kept", [False, True])
def test_an_answer_that_never_ends_is_in_doubt_after_the_deadline(
    script: Any, session: requests.Session, time_is_up: Callable[[], None], answer: str, is_kept: bool
) -> None:
    endless = dribbling(*ENDLESS[answer], time_is_up)
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    client = Client(script.url, session, tokens, timeout=Timeout(60.0, 60.0, DEADLINE), clock=lambda: NOON)

    def twice(connection: socket.socket, read: Callable[[], None]) -> None:
        """Answer one request, and dribble the answer to the next one on the same connection."""
        read()
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        endless(connection, read)

    if is_kept:
        assert outcome(script, client, twice) == Refused(404, "HTTP 404")
    else:
        script.tell(script.token("token-one"), endless)
    told = client.create_campaign(BODY)
    assert isinstance(told, InDoubt)
    assert told.reason in {
        f"no complete answer from {urlsplit(script.url).netloc} within 59 seconds",
        "HTTP 200 with an answer that cannot be read",  # if a status was read
    }


def test_tls_that_is_never_done_is_not_processed_after_the_deadline(
    script: Any, session: requests.Session, time_is_up: Callable[[], None]
) -> None:
    """A handshake is also read in pieces; its first bytes announce a long message."""

    def handshake(connection: socket.socket, _: Callable[[], None]) -> None:
        endless = dribbling(b"\x16\x03\x03\x3f\xff", b"\x02", time_is_up)
        endless(connection, lambda: connection.recv(2**16) and None)

    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    url = script.url.replace("http:", "https:")
    client = Client(url, session, tokens, timeout=Timeout(60.0, 60.0, DEADLINE))
    assert isinstance(outcome(script, client, handshake), NotProcessed)


def test_an_endpoint_of_tokens_that_is_never_done_holds_nobody(
    script: Any, session: requests.Session
) -> None:
    tokens = TokenSource(
        CREDENTIALS, script.url, session, timeout=Timeout(60.0, 60.0, 1.0), clock=lambda: NOON
    )
    client = Client(script.url, session, tokens)
    script.tell(*[dribbling(*ENDLESS["a line of the head"])] * 4)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: client.create_campaign(BODY), range(4)))
    assert {type(each) for each in outcomes} == {NotProcessed}


def test_a_request_whose_time_was_over_before_it_was_sent_is_not_sent(
    script: Any, session: requests.Session, time_is_up: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have waited long for an open connection from an earlier request."""

    def keep(connection: socket.socket, read: Callable[[], None]) -> None:
        read()
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        read()

    client = client_at(script.url, session)
    assert outcome(script, client, keep) == Refused(404, "HTTP 404")
    get_adapter = session.get_adapter

    def too_late(url: str) -> Any:
        time_is_up()
        return get_adapter(url)

    monkeypatch.setattr(session, "get_adapter", too_late)
    assert isinstance(client.create_campaign(BODY), NotProcessed)
    assert len(script.requests) == 2  # the token, and the earlier one


def ends_early(seconds: float) -> bool:
    """Check whether a deadline cuts its connection while another exchange has a later one."""
    ours, theirs = socket.socketpair()
    with ours, theirs, deadline.Deadline(DEADLINE), deadline.Deadline(seconds) as end:
        theirs.settimeout(30)
        return end.attach(ours) and theirs.recv(1) == b"" and end.is_over


def test_one_thread_ends_the_deadlines_of_all_exchanges() -> None:
    assert ends_early(0.1)
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(deadline.Deadline(DEADLINE))
        assert ends_early(0.1)
        assert [thread.name for thread in threading.enumerate()].count("deadlines") == 1
    assert not deadline._watchdog.watched


def test_a_forked_process_ends_deadlines_too() -> None:
    with deadline._watchdog._changed:  # as if another thread were starting an exchange
        child = os.fork()
        if child == 0:
            os._exit(not ends_early(0.1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_next_request_after_a_deadline_is_as_good_as_any(
    script: Any, session: requests.Session, time_is_up: Callable[[], None]
) -> None:
    tokens = TokenSource(CREDENTIALS, script.url, session, clock=lambda: NOON)
    client = Client(script.url, session, tokens, timeout=Timeout(60.0, 60.0, DEADLINE))
    endless = dribbling(*ENDLESS["100 Continue"], time_is_up)
    assert isinstance(outcome(script, client, endless), InDoubt)
    script.tell(script.answer(200, YES))
    assert client.create_campaign(BODY) == Accepted(200, 701)


def test_whatever_the_service_does_a_claim_outlives_its_request() -> None:
    """The worst case is the oldest claim, with an expired token and a 401 that needs another."""
    longest = timedelta(seconds=2 * (TOKEN_TIMEOUT.deadline + REQUEST_TIMEOUT.deadline))
    assert _MAX_CLAIM_AGE + longest < LEASE


# Secrets and identifiers


def test_what_the_service_says_is_short_and_names_nobody(
    script: Any, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = (
        "device 1234567 of ann@example.com with 0f8fad5b-d9cb-469f-a165-70867728950e"
        f" and Bearer token-oneABCDEFGHIJKLMNOP\nis unknown in field device_external_identifiers {'very ' * 99}long"
    )
    told = outcome(script, client, script.answer(400, {"success": False, "message": said}))
    assert isinstance(told, Refused)
    assert told.message.startswith(
        "device … of … with … and Bearer … is unknown in field device_external_identifiers very very"
    )
    assert told.message.endswith("very long")  # the worker cuts it after it has taken out the recipients
    for secret in ("1234567", "ann@", "0f8fad5b", "token-one", "a-client-secret"):
        assert secret not in told.message
        assert secret not in caplog.text
