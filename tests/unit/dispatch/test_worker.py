"""The dispatch loop with a ledger that does not answer; no request is sent."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import send_launch
from sendoff.errors import LedgerUnavailableError
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource

from ...factories import KEY, NOW, make_launch
from ...ports import reserved_port


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
    with reserved_port() as port, requests.Session() as session:
        url = f"http://127.0.0.1:{port}"
        client = Client(url, session, TokenSource(ClientSecret("client", "secret"), url, session))
        connection = ServiceConnection(client, PostBackSigner(url, ["n" * 32]), requests_at_once=1)
        with pytest.raises(LedgerUnavailableError, match="the answer to the commit was lost"):
            send_launch(ledger, KEY, connection, now=lambda: NOW)
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 1, "planned": 1}
