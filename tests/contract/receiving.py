"""A real receiver with its ledger, and a sender whose post-backs come to it, for tests from launch to report."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import requests

from sendoff.auth import ClientSecret, TokenSource
from sendoff.client import Client
from sendoff.ledger import Ledger
from sendoff.postbacks import Addresses
from sendoff.sender import Sender

SECRET = "s" * 32
SENDOFF = [sys.executable, "-c", "from sendoff.cli import main; main()"]


@pytest.fixture(scope="module")
def ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    with closing(Ledger(url)) as ledger:
        ledger.migrate()
    return url


@pytest.fixture(scope="module")
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with closing(Ledger(ledger_url)) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def addresses(ledger_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The addresses of a real receiver, which stores in the ledger."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "SENDOFF_LEDGER_URL": ledger_url,
        "SENDOFF_PUBLIC_URL": address,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    output = tmp_path_factory.mktemp("receiver") / "receiver.log"
    with output.open("wb") as written:
        process = subprocess.Popen(
            [*SENDOFF, "receiver", "--port", str(port)],
            env=environment,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(f"{address}/readyz"):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        yield Addresses(address, [SECRET])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _is_ready(address: str) -> bool:
    try:
        return requests.get(address, timeout=10).status_code == 200
    except requests.ConnectionError:
        return False


@pytest.fixture
def sender(service_process: Any, addresses: Addresses) -> Iterator[Sender]:
    """Sends one request after the other."""
    with requests.Session() as session:
        credentials = ClientSecret(service_process.client_id, service_process.client_secret)
        tokens = TokenSource(credentials, service_process.base_url, session)
        yield Sender(Client(service_process.base_url, session, tokens), addresses, requests_at_once=1)
