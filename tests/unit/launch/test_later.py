"""What the service sends later, whatever happens to a launch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.launch.later import HeldByService, held_by_service
from sendoff.ledger import Ledger
from sendoff.states import Accepted

from ...factories import KEY, NOW, make_campaign, make_launch, send


def later(ledger: Ledger, days: float = 0) -> list[HeldByService]:
    return held_by_service(ledger, ledger.launches.get(KEY), now=NOW + timedelta(days=days))


def test_accepted_requests_of_a_campaign_with_a_time_are_held_until_then(ledger: Ledger) -> None:
    once = {"kind": "once", "date": "2026-03-03", "time": "18:30", "time_zone": "UTC"}
    at = NOW.replace(day=3, hour=18, minute=30)
    make_launch(ledger, [1, 2, 3], size=1, campaign=make_campaign(send=once), sends_at=at)
    assert later(ledger) == []
    send(ledger, KEY, Accepted(200, 8), Accepted(200, 7))
    assert later(ledger) == [HeldByService(None, 2, at, [7, 8])]
    assert later(ledger, days=2) == []
    assert held_by_service(ledger, ledger.launches.get(KEY)) == []  # now, which is later


def test_only_the_zones_that_were_not_sent_to_are_held(ledger: Ledger) -> None:
    once = {
        "kind": "once",
        "date": "2026-03-02",
        "time": "18:30",
        "time_zone": "query",
        "default_time_zone": "UTC",
    }
    zones = ("Asia/Tokyo", "Europe/Dublin")  # 09:30 and 18:30 UTC
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, 1)]
    at = NOW.replace(hour=18, minute=30)
    make_launch(ledger, segments=parts, campaign=make_campaign(send=once), sends_at=at)
    send(ledger, KEY, Accepted(200, 7), Accepted(200, 8))
    tokyo = HeldByService("Asia/Tokyo", 1, NOW.replace(minute=30), [7])
    dublin = HeldByService("Europe/Dublin", 1, at, [8])
    assert later(ledger) == [tokyo, dublin]
    assert later(ledger, days=1 / 48) == later(ledger, days=0.1) == [dublin]


@pytest.mark.parametrize(
    ("zone", "end", "ended"),
    [
        ("UTC", "never", None),
        ("UTC", "2026-03-09", datetime(2026, 3, 10, tzinfo=UTC)),
        ("Pacific/Auckland", "2026-03-09", datetime(2026, 3, 9, 11, tzinfo=UTC)),
        ("user", "2026-03-09", datetime(2026, 3, 10, 12, tzinfo=UTC)),  # in the last time zone on Earth
    ],
)
def test_a_recurring_campaign_is_held_until_its_end(
    ledger: Ledger, zone: str, end: str, ended: datetime | None
) -> None:
    recurring: dict[str, Any] = {"kind": "recurring", "time": "09:00", "start": "2026-03-02", "end": end}
    campaign = make_campaign(send={**recurring, "time_zone": zone, "days": ["monday"]})
    make_launch(ledger, [1], campaign=campaign, sends_at=None)
    send(ledger, KEY, Accepted(200, 7))
    held = [HeldByService(None, 1, None, [7])]
    if ended is None:
        assert later(ledger, 900) == held
    else:
        assert later(ledger, (ended - NOW) / timedelta(days=1) - 1e-9) == held
        assert later(ledger, (ended - NOW) / timedelta(days=1)) == []


def test_nothing_is_held_of_a_campaign_that_sends_at_once(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    send(ledger, KEY, Accepted(200, 7))
    assert later(ledger) == []
