"""The hook of the messaging service, on real sockets."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests
from airflow.sdk.exceptions import AirflowFailException

from sendoff.errors import SettingsError
from sendoff.service.client import Accepted, InDoubt
from sendoff.service.postbacks import PostBackSigner
from sendoff_airflow.errors import RetryTaskError
from sendoff_airflow.hooks.service import SendoffHook, rate_of

from ..waiting import PATIENCE, until

SECRET = "open-sesame-client-secret"
APP_TOKEN = "open-sesame-app-token"
TOKEN = "open-sesame-access-token"


@dataclass
class Request:
    """One request as the server received it."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int  # the client's port, the same for all requests of one TCP connection


@dataclass
class Server:
    """A server that gives each path its configured answer, and issues tokens by default."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)  # tokens that get a 401

    def answer(self, path: str, status: int, body: bytes = b"", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = (status, named, body)

    def issue(self, token: str) -> None:
        """Make the token endpoint issue this token from now on."""
        body = {"access_token": token, "token_type": "Bearer", "expires_in": 3600}
        self.answer("/api/oauth/token", 200, json.dumps(body).encode(), Content_Type="application/json")

    def sent_to(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.requests.append(Request(self.path, dict(self.headers), body, self.client_address[1]))
            status, headers, content = state.answers[self.path]
            if (self.headers.get("Authorization") or "").removeprefix("Bearer ") in state.dead:
                status, headers, content = (
                    401,
                    {},
                    b'{"success": false, "message": "The access token has ended."}',
                )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state.url = f"http://127.0.0.1:{running.server_port}"
        state.issue(TOKEN)
        state.answer(
            "/api/external/create/campaign", 200, b'{"success": true, "code": 200, "model": {"id": 7}}'
        )
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield state
        running.shutdown()
        thread.join()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, server: Server) -> Callable[..., SendoffHook]:
    # A process keeps its tokens by URL and client ID, and another test's server may have had the same port.
    client_id = uuid4().hex.translate(
        str.maketrans("0123456789", "ghijklmnop")
    )  # so no number of a test is in it

    def make(**fields: Any) -> SendoffHook:
        usual = {"conn_type": "sendoff", "host": server.url, "login": client_id, "password": SECRET}
        monkeypatch.setenv("AIRFLOW_CONN_SERVICE", json.dumps({**usual, **fields}))
        return SendoffHook("service")

    return make


def test_no_field_of_the_connection_becomes_a_header(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    hook = connect(
        extra={"app_token": APP_TOKEN, "timeout": 80, "webhook_secret": "open-sesame-hook", "x": 1}
    )
    hook.client().create_campaign(b"{}")
    server.answer("/api/external/other", 200)
    hook.run("api/external/other", data="{}")
    assert len(server.requests) >= 3
    for request in server.requests:
        assert "open-sesame-app" not in str(request.headers)
        assert "open-sesame-hook" not in str(request.headers)
        assert SECRET not in str(request.headers)
        assert not {"x", "timeout", "webhook_secret", "app_token"} & {
            name.lower() for name in request.headers
        }
        expected = None if request.path == "/api/oauth/token" else f"Bearer {TOKEN}"
        assert request.headers.get("Authorization") == expected


def test_a_netrc_file_of_the_worker_does_not_replace_the_token(
    server: Server, connect: Callable[..., SendoffHook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert isinstance(connect().client().create_campaign(b"{}"), Accepted)
    [request] = server.sent_to("/api/external/create/campaign")
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


def test_all_requests_of_a_hook_share_one_session(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    hook = connect()
    for _ in range(3):
        hook.client().create_campaign(b"{}")
    assert len({request.connection for request in server.requests}) == 1
    assert len(server.sent_to("/api/oauth/token")) == 1


def test_the_connection_is_looked_up_once(
    connect: Callable[..., SendoffHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = connect(extra={"app_token": APP_TOKEN})
    hook.client()
    monkeypatch.delenv("AIRFLOW_CONN_SERVICE")
    assert isinstance(hook.client().create_campaign(b"{}"), Accepted)
    assert hook.fields.app_token == APP_TOKEN


def test_an_answer_that_does_not_come_ends_in_a_time_out(connect: Callable[..., SendoffHook]) -> None:
    gave_up = threading.Event()
    waited_for: list[bool] = []
    with _faulty_server(lambda _: waited_for.append(gave_up.wait(PATIENCE))) as (url, seen):
        patient = connect(host=url)
        patient.tokens().token()  # the process keeps it
        patient.session.close()
        hook = connect(host=url, extra={"timeout": 0.2})
        outcome = hook.client().create_campaign(b"{}")
        until(lambda: len(seen) == 2)
        with pytest.raises(AirflowFailException, match=r"no answer \(ReadTimeout\)"):
            hook.run("api/external/other", data="{}")
        until(lambda: len(seen) == 3)
        gave_up.set()
    assert waited_for == [True, True]  # the client gave up, not the server
    assert isinstance(outcome, InDoubt)
    assert "within 0.2 seconds" in outcome.reason
    assert seen == ["/api/oauth/token", "/api/external/create/campaign", "/api/external/other"]


@pytest.mark.promise("twice/doubt")
def test_a_request_is_sent_once_when_its_answer_is_lost(connect: Callable[..., SendoffHook]) -> None:
    with _faulty_server(lambda connection: connection.close()) as (url, seen):
        hook = connect(host=url)
        outcome = hook.client().create_campaign(b"{}")
        with pytest.raises(AirflowFailException):
            hook.run("api/external/other", data="{}")
    assert isinstance(outcome, InDoubt)
    assert seen == ["/api/oauth/token", "/api/external/create/campaign", "/api/external/other"]


def sent_tokens(server: Server, path: str) -> list[str]:
    return [request.headers["Authorization"].removeprefix("Bearer ") for request in server.sent_to(path)]


@pytest.mark.rule("5.3/401", "7/401", side="client")
def test_a_401_is_answered_with_one_new_token_and_one_retry(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    hook = connect()
    hook.tokens().token()  # the process keeps it
    server.dead.add(TOKEN)
    server.issue("open-sesame-new-token")
    server.answer("/api/external/other", 200, b'{"success": true}')
    body = {"user_id": "cust-1"}
    assert hook.run("api/external/other", json=body).json() == {"success": True}
    assert sent_tokens(server, "/api/external/other") == [TOKEN, "open-sesame-new-token"]
    for request in server.sent_to("/api/external/other"):
        assert json.loads(request.body) == body
        assert request.headers["Content-Type"] == "application/json"
    assert connect().run("api/external/other", json=body).ok  # the next task of the process has the new token
    assert sent_tokens(server, "/api/external/other")[2:] == ["open-sesame-new-token"]
    assert len(server.sent_to("/api/oauth/token")) == 2


def test_a_401_to_a_new_token_too_fails_after_two_requests_and_names_the_services_message(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    server.dead.add(TOKEN)
    with pytest.raises(AirflowFailException) as refused:
        connect().run("api/external/create/campaign", json={})
    url = f"{server.url}/api/external/create/campaign"
    assert str(refused.value) == f"POST {url}: HTTP 401, also with a new token: The access token has ended."
    assert len(server.sent_to("/api/external/create/campaign")) == 2
    assert len(server.sent_to("/api/oauth/token")) == 2


@pytest.mark.parametrize(("status", "kind"), [(503, RetryTaskError), (401, AirflowFailException)])
def test_a_401_without_a_new_token_is_judged_by_what_the_token_endpoint_said(
    server: Server, connect: Callable[..., SendoffHook], status: int, kind: type[Exception]
) -> None:
    hook = connect()
    hook.tokens().token()
    server.dead.add(TOKEN)
    server.answer("/api/oauth/token", status, b'{"error": "invalid_client"}')
    with pytest.raises(kind, match=f"HTTP {status}"):
        hook.run("api/external/create/campaign", json={})
    assert len(server.sent_to("/api/external/create/campaign")) == 1


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"message": "The body is not JSON."}, "The body is not JSON."),
        (400, {"message": "Wrong.", "errors": [{"field": "event", "message": "is missing"}]},
         "Wrong.; event: is missing"),
        (403, {"message": "device 4711 of ann@example.com"}, "device … of …"),
        (429, {"message": "Too many requests."}, "Too many requests."),
        (500, {"message": "Out of order."}, "Out of order."),
    ],
)  # fmt: skip
def test_an_error_shows_the_message_of_the_service_redacted(
    server: Server, connect: Callable[..., SendoffHook], status: int, body: dict[str, Any], message: str
) -> None:
    server.answer("/failing", status, json.dumps({"success": False, **body}).encode())
    with pytest.raises((AirflowFailException, RetryTaskError)) as raised:
        connect().run("failing", json={})
    assert str(raised.value) == f"POST {server.url}/failing: HTTP {status}: {message}"


def test_a_request_of_your_own_uses_the_proxy_of_the_connection(
    server: Server, connect: Callable[..., SendoffHook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    host = "http://api.example.com"
    for path in ("/api/oauth/token", "/other"):
        server.answers[host + path] = server.answers["/api/oauth/token"]
    connect(host=host, extra={"allow_http": True, "proxy": server.url}).run("other", data="{}")
    assert len(server.sent_to(f"{host}/other")) == 1


def test_a_request_of_your_own_trusts_the_certificates_of_the_connection(
    connect: Callable[..., SendoffHook], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/elsewhere.pem")
    (file := tmp_path / "ours.pem").touch()
    hook, sent = connect(extra={"verify": str(file)}), {}
    hook.tokens().token()

    def send(_: Any, **options: Any) -> Any:
        sent.update(options)
        raise requests.ConnectionError

    monkeypatch.setattr(hook.session, "send", send)
    with pytest.raises(AirflowFailException):
        hook.run("other", data="{}")
    assert sent["verify"] == str(file)


@pytest.mark.parametrize("status", [300, 302, 304, 307])
def test_only_a_2xx_is_a_success(server: Server, connect: Callable[..., SendoffHook], status: int) -> None:
    server.answer("/moved", status)  # without a Location
    with pytest.raises(AirflowFailException, match=f"HTTP {status}$"):
        connect().run("moved", data="{}")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(server: Server, connect: Callable[..., SendoffHook], status: int) -> None:
    server.answer("/moved", status, Location=f"{server.url}/api/external/create/campaign")
    with pytest.raises(AirflowFailException, match=f"HTTP {status}$"):
        connect().run("moved", data="{}")
    assert server.sent_to("/api/external/create/campaign") == []


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (400, {}, AirflowFailException),
        (403, {}, AirflowFailException),
        (500, {}, AirflowFailException),  # it may have been processed, so Airflow must not retry it
        (429, {"Retry_After": "7"}, RetryTaskError),
    ],
)
def test_the_body_of_an_error_is_in_no_log_and_no_exception(
    server: Server,
    connect: Callable[..., SendoffHook],
    caplog: pytest.LogCaptureFixture,
    status: int,
    headers: dict[str, str],
    kind: type[Exception],
) -> None:
    caplog.set_level(logging.DEBUG)
    server.answer("/failing", status, b"device 4711 of Ann", **headers)
    with pytest.raises(kind) as raised:
        connect().run("failing", data='{"device": 4711}')
    texts = [str(raised.value), repr(raised.value.__cause__), repr(raised.value.__context__), caplog.text]
    assert not any(secret in text for text in texts for secret in ("4711", "Ann", TOKEN, SECRET))
    assert f"HTTP {status}" in texts[0]
    if kind is RetryTaskError:
        assert raised.value.retry_after == 7


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("9" * 400, 86_400.0), ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0), ("²", None), ("soon", None)],
)
def test_a_wish_to_wait_is_read_as_the_client_reads_it(
    server: Server, connect: Callable[..., SendoffHook], header: str, seconds: float | None
) -> None:
    server.answer("/busy", 429, Retry_After=header)
    with pytest.raises(RetryTaskError) as raised:
        connect().run("busy", data="{}")
    assert raised.value.retry_after == seconds


def test_the_query_of_an_address_is_in_no_exception(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    server.answer("/failing?device=4711", 400)
    with pytest.raises(AirflowFailException) as refused:
        connect().run("failing?device=4711", data="{}")
    with pytest.raises(AirflowFailException) as also_refused:
        connect().run("failing", data="{}", params={"device": "4711"})
    with (
        _faulty_server(lambda connection: connection.close()) as (url, _),
        pytest.raises(AirflowFailException) as lost,
    ):
        connect(host=url).run("failing?device=4711#4711", data="{}")
    assert str(refused.value) == str(also_refused.value) == f"POST {server.url}/failing: HTTP 400"
    assert str(lost.value) == f"POST {url}/failing: no answer (ConnectionError)"


def test_an_answer_that_breaks_the_libraries_is_nothing_to_repeat(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    server.answer("/moved", 302, Location="http://[::1")
    with pytest.raises(AirflowFailException, match=r"/moved: HTTP 302$"):
        connect().run("moved", data="{}")
    assert len(server.sent_to("/moved")) == 1


def test_nothing_repeats_requests_on_behalf_of_the_caller(connect: Callable[..., SendoffHook]) -> None:
    with pytest.raises(NotImplementedError, match="are not repeated"):
        connect().run_with_advanced_retry({}, "api/external/other")


def test_testing_the_connection_asks_for_a_token_and_sends_nothing(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    assert connect().test_connection() == (True, f"{server.url} issued a token. Nothing was sent.")
    assert {request.path for request in server.requests} == {"/api/oauth/token"}


@pytest.mark.rule("2.2/expires_at", side="client")
def test_testing_the_connection_warns_of_what_will_end_soon(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    works, message = connect(extra={"token_lifetime": 7200}).test_connection()
    assert works is True
    assert "Nothing was sent. But the token lasts 3600 seconds, not the 7200 that were asked for" in message


def test_testing_the_connection_asks_anew_also_where_the_process_has_a_token(
    server: Server, connect: Callable[..., SendoffHook]
) -> None:
    hook = connect()
    hook.tokens().token()
    server.answer("/api/oauth/token", 401, b'{"error": "invalid_client"}', Content_Type="application/json")
    works, message = hook.test_connection()
    assert works is False
    assert "refuses the client ID, or its secret or key (HTTP 401): invalid_client" in message


@pytest.mark.parametrize(("status", "advice"), [(429, "try again later"), (503, "try again later")])
def test_a_service_that_fails_for_now_is_said_to_be_so(
    server: Server, connect: Callable[..., SendoffHook], status: int, advice: str
) -> None:
    server.answer("/api/oauth/token", status)
    works, message = connect().test_connection()
    assert works is False
    assert message.endswith(advice)


def test_an_unknown_extra_is_named_without_its_value(
    connect: Callable[..., SendoffHook], capsys: pytest.CaptureFixture[str]
) -> None:
    connect(extra={"apptoken": APP_TOKEN}).client()
    printed = capsys.readouterr().out  # Airflow's logger of hooks writes to it
    assert "unknown extra fields are ignored: apptoken" in printed
    assert APP_TOKEN not in printed


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"host": None}, "the base URL (host field) is empty"),
        ({"host": "ftp://x"}, "must start with https:// (or http://)"),
        ({"host": "https://u:open-sesame@x"}, "must have no user, password"),
        ({"host": "https://x?token=open-sesame"}, "must have no user, password"),
        ({"host": "https://x:port"}, "must start with https:// (or http://)"),
        ({"host": "http://open-sesame.example.com"}, "the base URL begins with http://"),
        ({"extra": {"allow_http": "perhaps"}}, "allow_http must be true or false"),
        ({"login": None}, "the client ID (login field) is empty"),
        ({"password": None}, "the client secret (password field) is empty"),
        ({"extra": {"grant": "password"}}, "the grant is none of client_credentials, jwt_bearer"),
        ({"extra": {"grant": "jwt_bearer"}}, "needs either private_key or private_key_path"),
        (
            {
                "extra": {
                    "grant": "jwt_bearer",
                    "private_key": "open-sesame",
                    "private_key_path": "open-sesame",
                }
            },
            "needs either private_key or private_key_path",
        ),
        (
            {"extra": {"grant": "jwt_bearer", "private_key_path": "/nowhere/key.pem"}},
            "the file in private_key_path cannot be read on this machine: No such file or directory",
        ),
        ({"extra": {"grant": "jwt_bearer", "private_key": "open-sesame"}}, "key"),
        ({"extra": {"token_lifetime": "open-sesame"}}, "token_lifetime is not a whole number"),
        ({"extra": {"token_lifetime": 90_000}}, "the token lifetime must be between 1 and 86400 seconds"),
        ({"extra": {"token_lifetime": True}}, "token_lifetime is not a whole number"),
        ({"extra": {"timeout": -1}}, "timeout must be a number of seconds above 0"),
        ({"extra": {"timeout": [1, 2]}}, "timeout is not a number"),
        ({"extra": {"app_token": 4711}}, "app_token is not a text"),
        ({"extra": {"field_names": "open-sesame"}}, "field_names is not a JSON object"),
        (
            {"extra": {"field_names": {"device_ids": 1}}},
            "field_names: device_ids needs a name, as text",
        ),
        ({"extra": {"field_names": {"nonsense": "x"}}}, "nonsense"),
        (
            {"extra": {"field_names": {"device_ids": "segment_ids"}}},
            "field_names: segment_ids and device_ids would both be sent as 'segment_ids'",
        ),
        ({"extra": {"verify": "/nowhere/ca.pem"}}, "the CA bundle (verify) is not a file"),
        ({"extra": {"verify": False}}, "verify is not a text"),
        ({"extra": {"requests_per_second": "fast"}}, "requests_per_second is not a number"),
        ({"extra": {"requests_at_once": "many"}}, "requests_at_once is not a whole number"),
        ({"extra": {"requests_at_once": 17}}, "requests_at_once must be a whole number from 1 to 16"),
        ({"extra": {"requests_at_once": 0}}, "requests_at_once must be a whole number from 1 to 16"),
        ({"extra": {"requests_per_second": 0}}, "requests_per_second is wrong: requests per second must be"),
        ({"extra": {"requests_per_second": "nan"}}, "requests_per_second is wrong"),
        ({"extra": {"can_list": "open-sesame"}}, "can_list must be true or false"),
        ({"extra": {"can_list": 1}}, "can_list must be true or false"),
        ({"extra": "[]"}, "the extra fields are not a JSON object"),
    ],
)
def test_a_wrong_field_is_named_and_not_told(
    connect: Callable[..., SendoffHook], fields: dict[str, Any], problem: str
) -> None:
    works, message = connect(**fields).test_connection()
    assert works is False
    assert problem in message
    assert not any(secret in message for secret in ("open-sesame", SECRET, "4711"))
    assert "\n" not in message


def test_a_missing_connection_is_named() -> None:
    assert SendoffHook("nobody").test_connection() == (
        False,
        "There is no connection nobody. Add it in Airflow.",
    )


def test_a_port_and_a_missing_scheme_are_understood(connect: Callable[..., SendoffHook]) -> None:
    assert connect(host="api.example.com", port=8443).fields.base_url == "https://api.example.com:8443"
    assert connect(host="https://api.example.com/eu/").fields.base_url == "https://api.example.com/eu"
    for host in ("https://api.example.com/eu", "https://api.example.com:8443/eu"):
        assert connect(host=host, port=8443).fields.base_url == "https://api.example.com:8443/eu"
    with pytest.raises(
        SettingsError, match="the port field is 8443, but the URL in the host field has the port 443"
    ):
        _ = connect(host="https://api.example.com:443", port=8443).fields.base_url


def test_an_unreachable_service_is_said_to_be_so(connect: Callable[..., SendoffHook], free_port: int) -> None:
    works, message = connect(host=f"http://127.0.0.1:{free_port}").test_connection()
    assert works is False
    assert f"127.0.0.1:{free_port}" in message
    assert "check the base URL, the proxy and the CA bundle" in message


def test_numbers_may_come_as_text(connect: Callable[..., SendoffHook]) -> None:
    hook = connect(extra={"timeout": "2.5", "token_lifetime": "600"})
    assert hook.fields.timeout == (5.0, 2.5, 90.0)
    assert hook.fields.credentials.lifetime == 600


@pytest.mark.parametrize(
    ("extra", "rate", "can_list"),
    [
        ({}, None, False),
        ({"requests_per_second": "", "can_list": None}, None, False),
        ({"requests_per_second": 2, "can_list": True}, 2.0, True),
        ({"requests_per_second": "0.5", "can_list": "False"}, 0.5, False),
    ],
)
def test_the_rate_and_whether_campaigns_are_listed_reach_the_sender(
    connect: Callable[..., SendoffHook], extra: dict[str, Any], rate: float | None, can_list: bool
) -> None:
    connection = connect(extra=extra).service_connection(
        PostBackSigner("http://127.0.0.1", ["0123456789abcdef" * 2])
    )
    assert (connection.rate, connection.can_list, rate_of("service")) == (rate, can_list, rate)


def test_a_connection_that_is_not_there_has_no_rate() -> None:
    assert rate_of("nobody") is None


@contextmanager
def _faulty_server(fault: Callable[[socket.socket], object]) -> Iterator[tuple[str, list[str]]]:
    """Serve tokens as usual, and apply ``fault`` to each connection with any other request, after reading it."""
    seen: list[str] = []
    token = json.dumps({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}).encode()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            connection.settimeout(PATIENCE)
            while request := lines.readline():
                length = 0
                while (header := lines.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                lines.read(length)
                seen.append(request.split()[1].decode())
                if seen[-1] != "/api/oauth/token":
                    fault(connection)
                    return
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    + f"Content-Length: {len(token)}\r\n\r\n".encode()
                    + token
                )

    threads: list[threading.Thread] = [threading.Thread(target=serve)]
    threads[0].start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        listener.close()


@pytest.mark.parametrize("allowed", [True, "true"])
def test_http_needs_the_permission_of_the_connection(
    connect: Callable[..., SendoffHook], allowed: Any
) -> None:
    address = "http://service.invalid:8091"
    refused = connect(host=address)
    for use in (
        refused.client,
        refused.tokens,
        lambda: refused.service_connection(PostBackSigner("https://e.example", ["x" * 32])),
    ):
        with pytest.raises(SettingsError, match="use https://, or set allow_http"):
            use()
    with pytest.raises(AirflowFailException, match="the base URL begins with http://"):
        connect(host=address).run("api/external/list/campaign", data=b"{}")
    is_good, said = connect(host=address).test_connection()
    assert not is_good
    assert "connection service: the base URL begins with http://" in said
    is_good, said = connect(host=address, extra={"allow_http": allowed}).test_connection()
    assert "the host service.invalid:8091 is not known" in said  # so the name was looked up
    connect(host=address, extra={"allow_http": allowed}).client()
