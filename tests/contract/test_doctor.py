"""``sendoff doctor`` against the real service, receiver, ledger and warehouse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import requests

from sendoff.dispatch.control import pause_all
from sendoff.ledger import Ledger
from sendoff.postbacks import forget

from ..local_receiver import local_receiver
from ..local_service import LocalService
from ..ports import reserve_ports
from .sending import sent_to, service
from .test_send import FIELDS, SECRET, Send, environment, send, write

__all__ = ["environment", "send", "service", "write"]


@pytest.fixture
def states(send: Send) -> Callable[..., dict[str, tuple[str, str]]]:
    """Run the command, and return the state and the text of each part. The exit code is 1 if one is wrong."""

    def run(*arguments: str) -> dict[str, tuple[str, str]]:
        done = send("--json", *arguments, command="doctor")
        found = {each["part"]: (each["state"], each["text"]) for each in json.loads(done.stdout)}
        assert done.returncode == any(state == "wrong" for state, _ in found.values())
        return found

    return run


@pytest.fixture
def web_server() -> Iterator[Callable[[int], str]]:
    """Starts servers that answer every request with one status."""
    servers = []

    def start(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Location", "/login")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=server.serve_forever, args=(0.05,)).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_everything_works_and_nothing_was_sent_or_stored(
    send: Send, environment: dict[str, str], service: LocalService, ledger: Ledger
) -> None:
    done = send(command="doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"ok       ledger: {environment['SENDOFF_LEDGER_URL']} can be read and written",
        f"ok       service: {service.base_url} issued a token",
        f"ok       receiver: {environment['SENDOFF_PUBLIC_URL']} is a receiver with the same secrets",
        "ok       warehouse sendoff_warehouse: it answered a query",
    ]
    assert sent_to(service) == []
    assert not ledger.launches.count_of(ledger.launches.campaigns())


def test_it_says_that_launches_are_paused(
    states: Callable[..., dict[str, tuple[str, str]]], ledger: Ledger
) -> None:
    pause_all(ledger, "olga", "a storm", connection="sendoff_default")
    state, text = states()["ledger"]
    assert state == "ok"
    assert text.endswith("written; but launches are paused (connection:sendoff_default) by olga: a storm")


def test_a_ledger_that_was_moved_is_wrong(
    states: Callable[..., dict[str, tuple[str, str]]], ledger: Ledger, tmp_path: Path
) -> None:
    pause_all(ledger, "olga", "moving the ledger")
    with closing(Ledger(f"sqlite:///{tmp_path / 'new.db'}")) as new:
        new.copy_from(ledger)
    state, text = states()["ledger"]
    assert state == "wrong"
    assert f"this ledger was moved to {new.name} by olga" in text


def test_a_ledger_whose_erased_people_would_not_be_recognised_is_wrong(
    states: Callable[..., dict[str, tuple[str, str]]], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch is refused then."""
    assert states()["ledger"][0] == "ok"  # no one was erased, so no secret is needed
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "e" * 32)
    forget(ledger, [2], identified_by="device_id", who="ann", reason="a letter")
    assert states()["ledger"][0] == "ok"
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "f" * 32)
    state, text = states()["ledger"]
    assert state == "wrong"
    assert "is not the secret that this ledger was used with" in text
    assert "f" * 32 not in text
    monkeypatch.delenv("SENDOFF_ERASURE_SECRET")
    state, text = states()["ledger"]
    assert state == "wrong"
    assert text.startswith(
        "SENDOFF_ERASURE_SECRET is not set, but people were erased from this ledger. Set it"
    )


@pytest.mark.parametrize("change", ["DROP TABLE reports", "ALTER TABLE verdicts DROP COLUMN size"])
def test_a_ledger_that_could_send_and_make_no_report_is_wrong(
    states: Callable[..., dict[str, tuple[str, str]]], ledger: Ledger, change: str
) -> None:
    with ledger._database.write() as db:
        db.exec_driver_sql(change)
    assert states()["ledger"] == ("wrong", "the ledger has no tables, or old ones; run: sendoff migrate")


def test_every_problem_is_named_at_once(
    states: Callable[..., dict[str, tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [port] = reserve_ports()
    monkeypatch.setenv("SENDOFF_LEDGER_URL", "sqlite:////nowhere/ledger.db")
    monkeypatch.setenv("SENDOFF_CLIENT_SECRET", "another secret")
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("SENDOFF_WAREHOUSE_URL")
    found = states()
    assert {part: state for part, (state, _) in found.items()} == {
        "ledger": "wrong",
        "service": "wrong",
        "receiver": "unclear",
        "warehouse sendoff_warehouse": "wrong",
    }
    assert "does not answer this machine (ConnectionError)" in found["receiver"][1]
    assert "SENDOFF_CLIENT_SECRET" in found["service"][1]
    assert "another secret" not in str(found)
    monkeypatch.setenv("SENDOFF_SERVICE_URL", f"http://127.0.0.1:{port}")
    state, text = states()["service"]
    assert state == "wrong"
    assert "SENDOFF_CLIENT_SECRET" not in text  # which no one has looked at
    assert f"no connection to 127.0.0.1:{port} was accepted; check the base URL" in text


def test_a_receiver_with_other_secrets_is_wrong(
    states: Callable[..., dict[str, tuple[str, str]]],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with local_receiver(environment["SENDOFF_LEDGER_URL"], "t" * 32) as address:
        monkeypatch.setenv("SENDOFF_PUBLIC_URL", address)
        state, text = states()["receiver"]
        assert state == "wrong"
        assert "it needs the same SENDOFF_POST_BACK_SECRETS" in text
        # During the replacement of a secret, both are valid.
        monkeypatch.setenv("SENDOFF_POST_BACK_SECRETS", f"{'t' * 32},{SECRET}")
        assert states()["receiver"][0] == "ok"


@pytest.mark.parametrize("status", [200, 302, 404, 502])
def test_a_server_that_is_no_receiver_is_wrong(
    states: Callable[..., dict[str, tuple[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    web_server: Callable[[int], str],
    status: int,
) -> None:
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", web_server(status))
    state, text = states()["receiver"]
    assert state == "wrong"
    assert f"answers {status} to an address signed here" in text


@pytest.mark.parametrize("host", ["x" * 70 + ".example", "a..b", "[::1"])
def test_a_public_url_that_is_no_address_is_wrong(
    states: Callable[..., dict[str, tuple[str, str]]], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("SENDOFF_PUBLIC_URL", f"https://{host}")
    assert states()["receiver"][0] == "wrong"


def test_wrong_settings_are_one_finding_and_nothing_else_is_checked(
    states: Callable[..., dict[str, tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENDOFF_TIMEOUT", "soon")
    assert states() == {"settings": ("wrong", "SENDOFF_TIMEOUT: it must be a number")}


def test_the_connections_that_campaigns_name_are_checked(
    states: Callable[..., dict[str, tuple[str, str]]], write: Callable[[str], str]
) -> None:
    folder = write(FIELDS + "warehouse: other_warehouse\n")
    found = states(folder, "--warehouse", "other_warehouse=sqlite:////nowhere/shop.db")
    assert [*found] == ["ledger", "service sendoff_default", "receiver", "warehouse other_warehouse"]
    state, text = found["warehouse other_warehouse"]
    assert state == "wrong"
    assert text == "there is no SQLite database at /nowhere/shop.db; correct the path"
    assert states(folder, "--warehouse", "sqlite://")["warehouse other_warehouse"][0] == "ok"


def test_the_address_that_is_asked_stops_no_messages(
    send: Send, environment: dict[str, str], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(requests.Session, "send", _recorded(requests.Session.send, asked))
    assert send(command="doctor").returncode == 0
    opened = [request for request in asked if "/opt-out/" in request.url]
    assert [request.method for request in opened] == ["GET", "GET"]
    assert ledger.suppressions.sizes(datetime.now(UTC)) == []


def _recorded(
    send_: Callable[..., requests.Response], asked: list[requests.PreparedRequest]
) -> Callable[..., requests.Response]:
    def record(self: requests.Session, request: requests.PreparedRequest, **how: object) -> requests.Response:
        asked.append(request)
        return send_(self, request, **how)

    return record
