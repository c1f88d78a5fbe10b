"""A launch that is sent to the local service, and what the service says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign
from sendoff.dispatch.request import Sender
from sendoff.dispatch.worker import Tally, work
from sendoff.ledger import Ledger
from sendoff.period import Period, launch_key
from sendoff.service.client import Client
from sendoff.service.postbacks import Addresses
from sendoff.service.tokens import ClientSecret, TokenSource

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)
CAMPAIGN: dict[str, Any] = {
    "title": "Spring",
    "message": {"title": "Hello", "text": "It is spring"},
    "channels": {"android_push": {}},
    "post_backs": {"kinds": []},
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")) as ledger:
        ledger.migrate()
        yield ledger


@pytest.fixture
def service(service_start: Callable[..., Any]) -> Any:
    return service_start()


@pytest.fixture
def sender(service: Any) -> Sender:
    session = requests.Session()
    tokens = TokenSource(ClientSecret(service.client_id, service.client_secret), service.base_url, session)
    addresses = Addresses("http://127.0.0.1:9", ["x" * 32])
    return Sender(Client(service.base_url, session, tokens), addresses, requests_at_once=1)


def freeze(
    ledger: Ledger, segments: Sequence[Segment], *, due_at: datetime | None = None, **fields: Any
) -> None:
    """Freeze a launch of these segments; ``fields``: of its campaign, beside those of CAMPAIGN."""
    campaign = Campaign.model_validate({**CAMPAIGN, **fields}).resolved(PERIOD.end)
    people = union("integer", [segment.identifiers for segment in segments if segment.identifiers])
    ledger.launches.freeze(
        KEY,
        connection="service",
        campaign="spring",
        period=PERIOD,
        resend=0,
        definition=campaign.model_dump_json(),
        audience=Audience("device_id", people, len(people), {}, {}, people.fingerprint()),
        segments=segments,
        now=NOW,
        due_at=due_at,
        sends_at=NOW,
    )


def work_at(ledger: Ledger, sender: Sender, moment: datetime = NOW) -> Tally:
    return work(ledger, KEY, sender, now=lambda: moment)


def fault(service: Any, kind: str, count: int) -> None:
    """Have the service fail the next so many requests in this way."""
    asked = {"kind": kind, "at": ["create"], "count": count}
    assert service.post("/admin/faults", json=asked).status_code == 201


def sent_to(service: Any) -> list[int]:
    """Everybody whom the service was told to send to, once for each telling."""
    service.wait_until_quiet()
    campaigns = service.admin("campaigns?count=1000")["campaigns"]
    return sorted(
        device for each in campaigns for device in service.admin(f"campaigns/{each['id']}/truth")["targeted"]
    )
