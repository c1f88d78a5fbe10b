"""One-to-one messages against the real service: all recipients get their own values, and post-backs match them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sendoff.audience.identifiers import integers, strings
from sendoff.campaign import Campaign, CampaignFolder
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.launch.plan import prepare_launch
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch

from ..factories import PERIOD, make_warehouse
from . import receiving

ledger_url, ledger = receiving.ledger_url, receiving.ledger  # fixtures
signer, connection = receiving.signer, receiving.connection
PEOPLE = range(2, 22, 2)  # devices with an email address; each is its user's only device
HELLO = "Hello {{first_name}}, you have {{points}} points in {{shop}}"


@pytest.fixture
def template(service_process: Any) -> int:
    """A live template: an email with the person's name, their points, and the shop."""
    email = {
        "email_address_id": 1,
        "email_subject": "For {{first_name}}",
        "email_text": HELLO,
        "email_type": 1,
        "email_template": 1,
    }
    answer = service_process.create(trigger=3, email=1, messages={"7": email})
    assert answer.status_code == 200, answer.text
    number: int = answer.json()["model"]["id"]
    return number


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """A warehouse of names and points; the last person has no name."""
    table = "people (device_id INTEGER, external_id TEXT, user_id TEXT, FIRST_NAME TEXT, points INTEGER)"
    rows = [(n, f"ext-{n}", f"cust-{n}", f'Ann "{n}"', n * 100) for n in PEOPLE]
    rows[-1] = (*rows[-1][:3], None, rows[-1][4])  # type: ignore[assignment]
    return make_warehouse(tmp_path / "warehouse.db", table, rows)


def launched(
    ledger: Ledger,
    warehouse: str,
    template: int,
    identified_by: str,
    parameters: dict[str, str],
) -> str:
    campaign = {
        "title": "Points",
        "template": {
            "id": template,
            "channels": ["email"],
            "columns": ["first_name", "points"],
            "parameters": parameters,
        },
        "segment_size": 4,
    }
    sql = f"SELECT {identified_by}, first_name, points FROM people"
    folder = CampaignFolder(f"points-{template}", Campaign.model_validate(campaign), sql, Path("points"))
    return prepare_launch(ledger, folder, period=PERIOD, warehouses=lambda _: warehouse).launch_key


def emails(service: Any, template: int) -> dict[int, list[str]]:
    """Return the email to each device as rendered, or the reason why there is none."""
    service.wait_until_quiet()
    found = {}
    for device in service.admin(f"campaigns/{template}/truth")["targeted"]:
        messages = service.admin(f"campaigns/{template}/devices/{device}")["messages"]
        found[device] = [each["message"]["text"] if each["message"] else each["error"] for each in messages]
    return found


@pytest.mark.rule("4.3/one_to_one", "6/execute", side="client")
@pytest.mark.parametrize("identified_by", ["device_id", "external_id", "user_id"])
def test_everybody_gets_their_own_values_once(
    service_process: Any,
    ledger: Ledger,
    connection: ServiceConnection,
    warehouse: str,
    template: int,
    identified_by: str,
) -> None:
    key = launched(ledger, warehouse, template, identified_by, {"shop": "Dublin", "first_name": "friend"})
    assert send_launch(ledger, key, connection) == SendResult(accepted=3)
    expected = {n: [f'Hello Ann "{n}", you have {n * 100} points in Dublin'] for n in PEOPLE}
    expected[PEOPLE[-1]] = [f"Hello friend, you have {PEOPLE[-1] * 100} points in Dublin"]
    assert emails(service_process, template) == expected

    truth = service_process.admin(f"campaigns/{template}/truth")
    figures = reconcile_launch(ledger, key)
    assert figures.post_backs == {kind: len(truth["post_backs"][kind]) for kind in ("delivery", "open")}
    assert sum(figures.verdicts.values()) == figures.audience == len(PEOPLE)
    assert not sum(figures.anomalies.values())
    opened = set(truth["post_backs"]["open"])
    delivered = set(truth["post_backs"]["delivery"]) - opened
    assert opened | delivered
    sets = ledger.verdicts.sets(key)
    if identified_by == "external_id":  # post-backs do not carry it
        assert figures.verdicts["unknowable"] == len(PEOPLE)
    elif identified_by == "user_id":
        assert sets["engaged"] == strings(f"cust-{n}" for n in opened)
        assert sets["delivered"] == strings(f"cust-{n}" for n in delivered)
    else:
        assert sets["engaged"] == integers(opened)
        assert sets["delivered"] == integers(delivered)


def test_each_batch_has_post_back_addresses_of_its_own(
    service_process: Any, ledger: Ledger, connection: ServiceConnection, warehouse: str, template: int
) -> None:
    key = launched(ledger, warehouse, template, "user_id", {"shop": "Dublin", "first_name": "friend"})
    assert send_launch(ledger, key, connection) == SendResult(accepted=3)
    service_process.wait_until_quiet()
    (campaign,) = [
        each for each in service_process.admin("campaigns?count=100")["campaigns"] if each["id"] == template
    ]
    dispatches = ledger.dispatch_queries.of_launch(key)
    assert [(run["webhook_delivery"], run["webhook_open"]) for run in campaign["runs"]] == [
        (own.delivery, own.open)
        for own in (
            connection.signer.for_dispatch(each.dispatch_key, ("delivery", "open")) for each in dispatches
        )
    ]
    assert [run["unknown"] for run in campaign["runs"]] == [0, 0, 0]


def test_who_has_no_value_gets_no_message_and_the_others_do(
    service_process: Any, ledger: Ledger, connection: ServiceConnection, warehouse: str, template: int
) -> None:
    key = launched(ledger, warehouse, template, "device_id", {"shop": "Dublin"})
    assert send_launch(ledger, key, connection) == SendResult(accepted=3)
    found = emails(service_process, template)
    assert found.pop(PEOPLE[-1]) == ["Not personalized"]
    assert found == {n: [f'Hello Ann "{n}", you have {n * 100} points in Dublin'] for n in PEOPLE[:-1]}
