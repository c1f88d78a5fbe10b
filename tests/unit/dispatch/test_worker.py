"""The dispatch loop on a ledger that does not answer, where no request is made."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.dispatch.request import Sender
from sendoff.dispatch.worker import work
from sendoff.errors import LedgerUnavailableError
from sendoff.ledger import Ledger
from sendoff.period import Period, launch_key
from sendoff.service.client import Client
from sendoff.service.postbacks import Addresses
from sendoff.service.tokens import ClientSecret, TokenSource

from ...ports import reserved_port
from ...scene import EMAIL

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)


def freeze(ledger: Ledger, segments: int) -> None:
    people = integers(range(1, segments + 1))
    ledger.launches.freeze(
        KEY,
        connection="service",
        campaign="spring",
        period=PERIOD,
        resend=0,
        definition=EMAIL.model_dump_json(),
        audience=Audience("device_id", people, len(people), {}, {}, people.fingerprint()),
        segments=(Segment(person) for person in people.slices(1)),
        now=NOW,
        sends_at=NOW,
    )


def test_a_worker_that_can_neither_learn_of_its_claim_nor_give_it_back_claims_nothing_more(
    ledger: Ledger,
) -> None:
    """A second claim of the same name would hide the first one, which nobody would give back."""
    freeze(ledger, 2)
    claim = ledger.dispatches.claim

    def lose_the_answer(*arguments: Any, **how: Any) -> None:
        claim(*arguments, **how)
        raise LedgerUnavailableError("the answer to the commit was lost")

    def do_not_answer(*_: object) -> None:
        raise LedgerUnavailableError("the ledger database did not answer")

    ledger.dispatches.claim = lose_the_answer  # type: ignore[method-assign]
    ledger.dispatches.give_back = do_not_answer  # type: ignore[method-assign]
    with reserved_port() as port, requests.Session() as session:
        url = f"http://127.0.0.1:{port}"
        client = Client(url, session, TokenSource(ClientSecret("client", "secret"), url, session))
        sender = Sender(client, Addresses(url, ["n" * 32]), requests_at_once=1)
        with pytest.raises(LedgerUnavailableError, match="the answer to the commit was lost"):
            work(ledger, KEY, sender, now=lambda: NOW)
    assert ledger.dispatches.states(KEY) == {"in_flight": 1, "planned": 1}
