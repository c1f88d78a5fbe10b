"""Campaigns whose recipients the service chooses, and recurring campaigns, from launch to report.

The tests compare the ledger with the service's own record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.campaign import Campaign, CampaignFolder, Period
from sendoff.demo.verification import device_records, verify
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.figures import LaunchStats
from sendoff.launch.plan import prepare_launch
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import is_settled, reconcile_launch
from sendoff.report import as_text, describe_launch

from . import receiving

EMAIL = {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}}
PUSH = {
    "android_push": {},
    "ios_push": {},
    "web_push": {"browsers": ["chrome", "firefox", "opera", "safari"]},
}
MESSAGE = {"title": "Hello", "text": "It is spring", "url": "https://shop.example.com"}
ledger_url, ledger = receiving.ledger_url, receiving.ledger  # fixtures
signer, connection = receiving.signer, receiving.connection


def launched(
    ledger: Ledger, connection: ServiceConnection, service: Any, name: str, fields: Mapping[str, Any]
) -> str:
    """Launch a campaign for the service's yesterday, send it, and return the key of the launch."""
    campaign = Campaign.model_validate({"title": name, **fields})
    folder = CampaignFolder(name, campaign, None, Path(name))
    midnight = service.now().replace(hour=0, minute=0, second=0, microsecond=0)
    period = Period(midnight - timedelta(days=1), midnight)
    key = prepare_launch(ledger, folder, period=period, warehouses=no_warehouse).launch_key
    assert send_launch(ledger, key, connection) == SendResult(accepted=1)
    return key


def no_warehouse(_: str) -> str:
    raise AssertionError("who is chosen by the service is asked of no warehouse")


def truth_of(service: Any, ledger: Ledger, key: str) -> dict[str, Any]:
    (dispatch,) = ledger.dispatch_queries.of_launch(key)
    service.wait_until_quiet()
    truth: dict[str, Any] = service.admin(f"campaigns/{dispatch.campaign_id}/truth")
    return truth


def reconciled(service: Any, ledger: Ledger, key: str) -> tuple[LaunchStats, dict[str, Any]]:
    """Reconcile a launch, compare all verdicts with the service's record, and return the figures and the record."""
    truth = truth_of(service, ledger, key)
    figures = reconcile_launch(ledger, key)
    opened, delivered = (set(truth["post_backs"][kind]) for kind in ("open", "delivery"))
    assert opened
    sets = ledger.verdicts.sets(key)
    assert sets.pop("engaged") == integers(opened)
    assert sets.pop("delivered") == integers(delivered - opened)
    assert not any(map(len, sets.values()))
    assert figures.is_chosen_by_service
    assert figures.audience == len(opened | delivered)
    assert (figures.unaccounted_rows, figures.unaccounted_identifiers) == (0, 0)
    assert not sum(figures.anomalies.values())
    assert f"Post-backs name {figures.audience:,} devices." in " ".join(
        as_text(describe_launch(figures)).split()
    )
    return figures, truth


@pytest.mark.rule("2.3/broadcast", "2.9/broadcast", "6/delivery", "6/open", side="client")
@pytest.mark.promise("honest/truth")
def test_of_a_broadcast_everybody_whom_the_service_reported_has_the_right_verdict(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    fields = {"channels": EMAIL, "targeting": {"kind": "broadcast"}}
    key = launched(ledger, connection, service_process, "everybody", fields)
    figures, truth = reconciled(service_process, ledger, key)
    assert truth["targeted"] == list(range(1, 701))
    assert figures.post_backs == {kind: len(truth["post_backs"][kind]) for kind in ("delivery", "open")}
    assert is_settled(ledger, key, quiet_for=timedelta(0))


@pytest.mark.rule("6/no_deliveries", "6/web_deliveries", side="client")
def test_of_a_broadcast_by_push_only_what_is_reported_is_known(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    fields = {"message": MESSAGE, "channels": PUSH, "targeting": {"kind": "broadcast"}}
    key = launched(ledger, connection, service_process, "pushed", fields)
    figures, truth = reconciled(service_process, ledger, key)
    assert figures.audience < len(truth["delivered"])
    assert verify(ledger, key, device_records([truth])).holds


@pytest.mark.rule("2.9/segment_ids", "2.9/conditions", side="client")
@pytest.mark.parametrize("kind", ["saved_segments", "conditions"])
def test_people_of_saved_segments_and_of_conditions_have_the_right_verdicts(
    service_process: Any, ledger: Ledger, connection: ServiceConnection, kind: str
) -> None:
    conditions = {"operator": "AND", "0": ["tags_attribute", "=", "tier", ["value", "=", "gold"]]}
    saved = service_process.post("/admin/segments", json={"title": "gold", "conditions": conditions}).json()
    targeting = {
        "saved_segments": {"ids": [saved["id"]]},
        "conditions": {"where": {"all": [{"attribute": "tier", "value": "gold"}]}},
    }
    fields = {"channels": EMAIL, "targeting": {"kind": kind, **targeting[kind]}}
    key = launched(ledger, connection, service_process, kind, fields)
    _, truth = reconciled(service_process, ledger, key)
    assert truth["targeted"] == [device for device in range(1, 701) if device % 3]


@pytest.mark.proof
@pytest.mark.rule("2.11/recurring", side="client")
def test_what_is_sent_again_and_again_counts_every_event_and_everybody_once(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    day = service_process.now().replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    dates = {"start": f"{day:%Y-%m-%d}", "end": f"{day + timedelta(days=1):%Y-%m-%d}"}
    send = {"kind": "recurring", "time": "09:00", "time_zone": "UTC", **dates}
    fields = {"channels": EMAIL, "targeting": {"kind": "broadcast"}, "send": send}
    key = launched(ledger, connection, service_process, "daily", fields)
    before = reconcile_launch(ledger, key)
    assert (before.audience, before.post_backs) == (0, {"delivery": 0, "open": 0})
    for sendings in (1, 2):
        service_process.go_to(day + timedelta(days=sendings - 1, hours=12))
        figures, truth = reconciled(service_process, ledger, key)
        messages = service_process.admin("campaigns?count=1")["campaigns"][0]["messages"]
        assert (messages["delivered"], messages["opened"]) == tuple(figures.post_backs.values())
    assert figures.post_backs["delivery"] > len(truth["delivered"])  # many devices had both
    assert figures.is_recurring
    assert "Sent again and again" in as_text(describe_launch(figures))
    assert is_settled(ledger, key, quiet_for=timedelta(0))
    assert ledger.launches.get(key).settled_at is None


@pytest.mark.proof
@pytest.mark.rule("2.10/locations", "2.11/triggered", side="client")
def test_who_triggers_a_campaign_again_is_counted_once(
    service_process: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    shop = service_process.post("/admin/locations", json={"title": "Shop"}).json()["id"]
    twice = {"per_user": 2, "per_location": 2}
    ever = {"per_user_period": "campaign", "per_location_period": "campaign"}
    trigger = {"kind": "location", "locations": [shop], "when": "enter", **twice, **ever}
    today = f"{service_process.now():%Y-%m-%d}"
    send = {"kind": "triggered", "time_zone": "UTC", "start": today, "end": "never", "trigger": trigger}
    fields = {"channels": EMAIL, "targeting": {"kind": "broadcast"}, "send": send}
    key = launched(ledger, connection, service_process, "at_the_shop", fields)
    visitors = list(range(2, 42, 2))
    for device in (*visitors, *visitors):
        service_process.post(
            "/admin/hits/location", json={"device_id": device, "location_id": shop, "action": "enter"}
        )
    figures, truth = reconciled(service_process, ledger, key)
    assert truth["targeted"] == visitors
    assert figures.post_backs["delivery"] > len(truth["delivered"])
    assert figures.is_recurring
