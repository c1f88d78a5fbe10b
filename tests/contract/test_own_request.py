"""Requests of your own against the real service: sent as they are written, once, with our post-backs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.launch import NewRequest, prepare_request
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch

from ..factories import PERIOD
from . import receiving

ledger_url, ledger = receiving.ledger_url, receiving.ledger  # fixtures
signer, connection = receiving.signer, receiving.connection
PEOPLE = [9, 2, 16, 23, 4, 30]


def create(service: Any, request_key: str = "one", **members: Any) -> NewRequest:
    body = {
        "title": request_key,
        "web_push": 1,
        "web_push_chrome": 1,
        "push_text": "Hello",
        **members,
    }
    body.setdefault("apptoken", service.app_token)
    return NewRequest(
        body={"device_ids": PEOPLE, **body},
        mode="create",
        name="own",
        request_key=request_key,
        connection="service",
    )


def sent(ledger: Ledger, request: NewRequest, connection: ServiceConnection) -> SendResult:
    return send_launch(ledger, prepare_request(ledger, request, period=PERIOD).launch_key, connection)


def campaigns(service: Any, title: str) -> list[int]:
    """Return the campaigns of this title, in the service's own record."""
    found = service.admin("campaigns?count=1000")["campaigns"]
    return [campaign["id"] for campaign in found if campaign["title"] == title]


@pytest.mark.promise("honest/truth")
def test_a_creation_is_sent_once_and_its_verdicts_match_the_services_record(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    request = create(service_process, "a creation")
    assert sent(ledger, request, connection) == SendResult(accepted=1)
    assert sent(ledger, request, connection) == SendResult()
    [campaign] = campaigns(service_process, "a creation")
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{campaign}/truth")
    assert sorted(truth["targeted"]) == sorted(PEOPLE)
    launch = prepare_request(ledger, request, period=PERIOD)
    figures = reconcile_launch(ledger, launch.launch_key)
    assert figures.is_own_request
    assert (figures.rows, figures.audience) == (len(PEOPLE), len(PEOPLE))
    assert figures.post_backs == {kind: len(truth["post_backs"][kind]) for kind in ("delivery", "open")}
    assert sum(figures.verdicts.values()) == len(PEOPLE)
    engaged = set(truth["post_backs"]["open"])
    sets = ledger.verdicts.sets(launch.launch_key)
    assert set(sets["engaged"].values()) == engaged
    assert set(sets["delivered"].values()) == set(truth["post_backs"]["delivery"]) - engaged
    assert figures.verdicts["missing"] == 0  # it names no platforms, so silence proves nothing


def test_an_execution_is_sent_once_with_its_own_variables(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    email = {
        "email_address_id": 1,
        "email_subject": "Order",
        "email_text": "Order {{number}}",
        "email_type": 1,
    }
    answer = service_process.create(trigger=3, email=1, messages={"7": {**email, "email_template": 1}})
    template = answer.json()["model"]["id"]
    targets = {str(device): {"number": f"N-{device}"} for device in (2, 4)}
    body = {"id": template, "target_by": "id", "target_with_params": targets}
    request = NewRequest(
        body=body, mode="execute", name="own", request_key="an execution", connection="service"
    )
    with_token = replace(connection, app_token=service_process.app_token)
    assert sent(ledger, request, with_token) == SendResult(accepted=1)
    assert sent(ledger, request, with_token) == SendResult()
    service_process.wait_until_quiet()
    truth = service_process.admin(f"campaigns/{template}/truth")
    assert sorted(truth["targeted"]) == [2, 4]
    [message] = service_process.admin(f"campaigns/{template}/devices/4")["messages"]
    assert message["message"]["text"] == "Order N-4"
    figures = reconcile_launch(ledger, prepare_request(ledger, request, period=PERIOD).launch_key)
    assert figures.post_backs == {kind: len(truth["post_backs"][kind]) for kind in ("delivery", "open")}
    assert not sum(figures.anomalies.values())


def test_post_back_addresses_of_the_body_stay(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    request = create(service_process, "with its own address", webhook_open="https://me.example.com/open")
    sent(ledger, request, connection)
    [recorded] = [
        each["body"]
        for each in service_process.admin("requests?count=1000")["requests"]
        if each["body"] and each["body"].get("title") == "with its own address"
    ]
    assert recorded["webhook_open"] == "https://me.example.com/open"
    assert "/v1/delivery/" in recorded["webhook_delivery"]
    assert list(recorded) == [*request.body, "webhook_delivery"]


@pytest.mark.promise("twice/doubt")
@pytest.mark.proof
def test_a_service_that_loses_every_third_answer_processes_each_request_once(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    requests = [create(service_process, f"order {number}") for number in range(12)]
    results = []
    for number, request in enumerate(requests):
        if number % 3 == 2:
            answer = service_process.post(
                "/admin/faults", json={"kind": "lost", "at": ["create"], "count": 1}
            )
            assert answer.status_code == 201
        results.append(sent(ledger, request, connection))
    assert results == [SendResult(accepted=1), SendResult(accepted=1), SendResult(in_doubt=1)] * 4
    for request in requests:  # as every retry and every cleared task does
        assert sent(ledger, request, connection) == SendResult()
    assert [len(campaigns(service_process, f"order {number}")) for number in range(12)] == [1] * 12
