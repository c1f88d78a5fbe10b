"""A real receiver with its ledger, and a sender whose post-backs come to it, for tests from launch to report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from sendoff.dispatch.request import Sender
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.postbacks import Addresses
from sendoff.service.tokens import ClientSecret, TokenSource

from ..ports import reserved_port
from ..waiting import PATIENCE, until

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
    with (
        reserved_port() as port,
        _receiver(port, ledger_url, tmp_path_factory.mktemp("receiver")) as address,
    ):
        yield Addresses(address, [SECRET])


@contextmanager
def _receiver(port: int, ledger_url: str, folder: Path) -> Iterator[str]:
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "SENDOFF_LEDGER_URL": ledger_url,
        "SENDOFF_PUBLIC_URL": address,
        "SENDOFF_POST_BACK_SECRETS": SECRET,
    }
    output = folder / "receiver.log"
    with output.open("wb") as written:
        process = subprocess.Popen(
            [*SENDOFF, "receiver", "--port", str(port)],
            env=environment,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or _is_ready(f"{address}/readyz"))
        assert process.poll() is None, output.read_text()
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def _is_ready(address: str) -> bool:
    try:
        return requests.get(address, timeout=PATIENCE).status_code == 200
    except requests.RequestException:
        return False


@pytest.fixture
def sender(service_process: Any, addresses: Addresses) -> Iterator[Sender]:
    """Sends one request after the other."""
    with requests.Session() as session:
        credentials = ClientSecret(service_process.client_id, service_process.client_secret)
        tokens = TokenSource(credentials, service_process.base_url, session)
        yield Sender(Client(service_process.base_url, session, tokens), addresses, requests_at_once=1)
