"""A launch at own hours: the local service gets each request in the hour of its recipients."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from sendoff.campaign import campaign_from
from sendoff.dispatch.control import pause, resume
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import send_launch
from sendoff.errors import NotYetError
from sendoff.launch.plan import prepare_launch
from sendoff.ledger import Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.states import Arm

from ..factories import NOW, PERIOD, make_accepted, make_campaign, post_back, store
from . import sending
from .sending import sent_to

service, connection = sending.service, sending.connection  # fixtures

PEOPLE = range(1, 13)


def freeze(ledger: Ledger, **gates: Any) -> str:
    """Freeze a launch to people who opened the last one: the even ones at 11:00, the odd ones at 15:00."""
    key = make_accepted(ledger, PEOPLE, name="earlier")
    store(
        ledger,
        *(post_back(key, "open", who, at=NOW + timedelta(hours=6 if who % 2 else 2)) for who in PEOPLE),
    )
    aggregate(ledger)
    send = {"kind": "now", "own_hours": {"explore": 0}}
    campaign = make_campaign(send=send, connection="service", post_backs={"kinds": []}, gates=gates)
    folder = campaign_from(campaign, "spring", pd.DataFrame({"device_id": list(PEOPLE)}))
    return prepare_launch(ledger, folder, period=PERIOD, warehouses=str, now=NOW).launch_key


def in_arm(ledger: Ledger, key: str, arm: Arm) -> list[int]:
    arms = ledger.dispatch_queries.arms(key)
    segments = ledger.dispatch_queries.segments(key)
    return sorted(int(who) for each, people in segments if arms.get(each.segment) == arm for who in people)


def send_at(ledger: Ledger, key: str, connection: ServiceConnection, at: datetime) -> datetime | None:
    """Send what may be sent at a moment, and return when the rest continues."""
    try:
        send_launch(ledger, key, connection, now=lambda: at)
    except NotYetError as error:
        return error.until
    return None


def test_each_recipient_gets_the_message_in_their_hour_and_the_control_group_at_once(
    ledger: Ledger, service: Any, connection: ServiceConnection
) -> None:
    key = freeze(ledger)
    control, own = in_arm(ledger, key, Arm.CONTROL), in_arm(ledger, key, Arm.OWN_HOUR)
    assert sorted(control + own) == list(PEOPLE)
    assert len({who % 2 for who in own}) == 2
    at_eleven, at_three = (NOW + timedelta(hours=hours) for hours in (2, 6))
    assert send_at(ledger, key, connection, NOW) == at_eleven
    assert sent_to(service) == control
    assert send_at(ledger, key, connection, at_eleven - timedelta(seconds=1)) == at_eleven
    assert sent_to(service) == control
    assert send_at(ledger, key, connection, at_eleven) == at_three
    even = [who for who in own if who % 2 == 0]
    assert sent_to(service) == sorted(control + even)
    assert send_at(ledger, key, connection, at_three + timedelta(minutes=59)) is None
    assert sent_to(service) == list(PEOPLE)


def test_an_hour_that_passed_while_the_launch_was_paused_comes_again_on_the_next_day(
    ledger: Ledger, service: Any, connection: ServiceConnection
) -> None:
    key = freeze(ledger)
    send_at(ledger, key, connection, NOW)
    pause(ledger, key, "anna", "wait", now=NOW)
    noon = NOW + timedelta(hours=3)
    resume(ledger, key, "anna", "go on", now=noon)
    assert send_at(ledger, key, connection, noon) == NOW + timedelta(hours=6)
    send_at(ledger, key, connection, NOW + timedelta(hours=6))
    assert send_at(ledger, key, connection, NOW + timedelta(hours=26)) is None
    assert sent_to(service) == list(PEOPLE)


def test_each_wave_waits_for_the_hours_of_its_recipients(
    ledger: Ledger, service: Any, connection: ServiceConnection
) -> None:
    key = freeze(ledger, rollout={"shares": [50], "wait": {"length": 1, "unit": "minutes"}})
    at, ends = NOW, NOW + timedelta(days=3)
    made: set[int] = set()
    while (until := send_at(ledger, key, connection, at)) is not None:
        assert at < until <= ends
        at = until
    for each in ledger.dispatch_queries.requests(key):
        made.add(each.wave)
    assert made == {1, 2}
    assert sent_to(service) == list(PEOPLE)
