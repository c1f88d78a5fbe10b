"""docker/nginx.conf: nginx passes requests to two receivers that fail and come back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import requests

from ..ports import reserve_ports
from ..waiting import PATIENCE, answers, until

CONFIGURATION = Path(__file__).resolve().parents[2] / "docker/nginx.conf"
UNAVAILABLE = (503, "5")


class Receiver(ThreadingHTTPServer):
    """Answers every request with ``status``, and 503 with Retry-After."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.status = 200
        super().__init__(("127.0.0.1", port), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.0"  # a stopped server then keeps no connection

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        if self.server.status == 503:
            self.send_header("Retry-After", "5")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiver(port: int) -> Iterator[Receiver]:
    with Receiver(port) as server:
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@pytest.fixture
def ports() -> list[int]:
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx; on Debian: apt-get install nginx-light")
    return reserve_ports(4)


@pytest.fixture
def address(ports: list[int], tmp_path: Path) -> Iterator[str]:
    first, second, public, check = ports
    text = CONFIGURATION.read_text(encoding="utf-8")
    for old, new in {
        "receiver-1:8090": f"127.0.0.1:{first}",
        "receiver-2:8090": f"127.0.0.1:{second}",
        "listen 8090": f"listen 127.0.0.1:{public}",
        "127.0.0.1:8091": f"127.0.0.1:{check}",
        "/run/nginx": str(tmp_path),
        "/dev/stdout": str(tmp_path / "access.log"),
    }.items():
        assert old in text
        text = text.replace(old, new)
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(text, encoding="utf-8")
    nginx = subprocess.Popen(["nginx", "-c", configuration, "-e", "stderr", "-g", "daemon off;"])
    try:
        with receiver(first):
            until(lambda: answers(f"http://127.0.0.1:{check}/readyz"))
        yield f"http://127.0.0.1:{public}/v1/delivery"
    finally:
        nginx.terminate()
        nginx.wait(PATIENCE)


def post(address: str, times: int = 1) -> set[tuple[int, str | None]]:
    """Return the statuses of some post-backs, each with its Retry-After."""
    replies = [requests.post(address, "{}", timeout=PATIENCE) for _ in range(times)]
    return {(reply.status_code, reply.headers.get("Retry-After")) for reply in replies}


def test_receivers_without_a_ledger_answer_503_and_their_first_200_counts(
    address: str, ports: list[int]
) -> None:
    with receiver(ports[0]) as first, receiver(ports[1]) as second:
        first.status = second.status = 503
        assert post(address, 8) == {UNAVAILABLE}
        first.status = second.status = 200
        assert post(address, 8) == {(200, None)}


def test_a_rolling_restart_without_a_pause_loses_nothing(address: str, ports: list[int]) -> None:
    with ExitStack() as second_runs:
        second_runs.enter_context(receiver(ports[1]))
        assert post(address, 8) == {(200, None)}  # the first one counts as failed
        with receiver(ports[0]):
            second_runs.close()
            assert post(address, 8) == {(200, None)}


def test_without_receivers_the_proxy_itself_answers_503(address: str) -> None:
    assert post(address, 8) == {UNAVAILABLE}
