"""Opens that arrive after a reminder is frozen: workers read them before their requests."""

from __future__ import annotations

from typing import Any

import pytest

from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import send_launch
from sendoff.errors import LedgerUnavailableError
from sendoff.ledger import Claim, LaunchSource, Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.states import Accepted, Verdict

from ..factories import KEY, NOW, make_campaign, make_launch, post_back, send, store
from . import sending
from .sending import sent_to

service, connection = sending.service, sending.connection  # fixtures


def remind(ledger: Ledger) -> tuple[str, str]:
    """Send a launch to six people without the service, and freeze one to those who do not open it."""
    make_launch(ledger, range(1, 7))
    (of_source,) = send(ledger, KEY, Accepted(200, 17))
    source = LaunchSource(KEY, (Verdict.DELIVERED,), (Verdict.ENGAGED,))
    campaign = make_campaign(post_backs={"kinds": []})
    launch = make_launch(ledger, range(1, 7), size=2, campaign=campaign, name="reminder", sources=[source])
    return of_source, launch.launch_key


@pytest.mark.promise("hands/opened")
def test_a_worker_aggregates_new_opens_before_its_first_request_and_in_between(
    ledger: Ledger, service: Any, connection: ServiceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_source, key = remind(ledger)
    monkeypatch.setattr("sendoff.dispatch.policy._SOURCES_EVERY", 0.0)
    monkeypatch.setattr("sendoff.dispatch.pace._QUICK", 60.0)
    store(ledger, post_back(of_source, "open", 1))
    record = ledger.dispatches.record  # without a claim, because the worker looks before it makes one
    opened = iter([post_back(of_source, "open", 6)])

    def record_and_open(claim: Claim, *values: Any) -> None:
        store(ledger, *opened)
        record(claim, *values)

    monkeypatch.setattr(ledger.dispatches, "record", record_and_open)
    send_launch(ledger, key, connection, now=lambda: NOW)
    assert sent_to(service) == [2, 3, 4, 5]
    figures = reconcile_launch(ledger, key, now=NOW)
    assert figures.not_sent_because == {"opened since": 2}


def test_a_worker_goes_on_if_new_opens_cannot_be_aggregated_now(
    ledger: Ledger, service: Any, connection: ServiceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = remind(ledger)

    def fail(*_: object, **__: object) -> None:
        raise LedgerUnavailableError("the ledger database did not answer")

    monkeypatch.setattr("sendoff.dispatch.policy.aggregate", fail)
    send_launch(ledger, key, connection, now=lambda: NOW)
    assert sent_to(service) == [1, 2, 3, 4, 5, 6]
