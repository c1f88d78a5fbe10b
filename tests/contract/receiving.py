"""A real receiver with its ledger, and a connection that sends post-backs to it, for tests from launch to report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import requests

from sendoff.dispatch.request import ServiceConnection
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource

from ..local_receiver import local_receiver

SECRET = "s" * 32


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
def signer(ledger_url: str) -> Iterator[PostBackSigner]:
    """The signer for the public address of a real receiver, which writes to the ledger."""
    with local_receiver(ledger_url, SECRET) as address:
        yield PostBackSigner(address, [SECRET])


@pytest.fixture
def connection(service_process: Any, signer: PostBackSigner) -> Iterator[ServiceConnection]:
    """A connection that sends one request at a time."""
    with requests.Session() as session:
        credentials = ClientSecret(service_process.client_id, service_process.client_secret)
        tokens = TokenSource(credentials, service_process.base_url, session)
        yield ServiceConnection(Client(service_process.base_url, session, tokens), signer, requests_at_once=1)
