"""A launch that is sent to the local service, and the service's record of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
import requests

from sendoff.audience.segmentation import Segment
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import SendResult, send_launch
from sendoff.errors import NotYetError
from sendoff.ledger import Ledger
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource

from ..factories import KEY, NOW, PERIOD, make_campaign, make_launch


@pytest.fixture
def service(service_start: Callable[..., Any]) -> Any:
    return service_start()


@pytest.fixture
def connection(service: Any) -> ServiceConnection:
    session = requests.Session()
    tokens = TokenSource(ClientSecret(service.client_id, service.client_secret), service.base_url, session)
    signer = PostBackSigner("http://127.0.0.1:9", ["x" * 32])
    return ServiceConnection(Client(service.base_url, session, tokens), signer, requests_at_once=1)


def freeze(
    ledger: Ledger, segments: Sequence[Segment], *, due_at: datetime | None = None, **fields: Any
) -> None:
    """Freeze a launch of these segments without post-backs; ``fields`` are fields of its campaign."""
    campaign = make_campaign(**{"post_backs": {"kinds": []}, **fields}).resolved(PERIOD.end)
    make_launch(ledger, segments=segments, campaign=campaign, due_at=due_at)


def work_at(ledger: Ledger, connection: ServiceConnection, moment: datetime = NOW) -> SendResult:
    return send_launch(ledger, KEY, connection, now=lambda: moment)


def fault(service: Any, kind: str, count: int) -> None:
    """Make the service fail the next ``count`` requests in this way."""
    asked = {"kind": kind, "at": ["create"], "count": count}
    assert service.post("/admin/faults", json=asked).status_code == 201


def sent_to(service: Any) -> list[int]:
    """Return all devices that the service was asked to send to, with repetitions."""
    service.wait_until_quiet()
    campaigns = service.admin("campaigns?count=1000")["campaigns"]
    return sorted(
        device for each in campaigns for device in service.admin(f"campaigns/{each['id']}/truth")["targeted"]
    )


def too_early(ledger: Ledger, connection: ServiceConnection, moment: datetime) -> datetime:
    """Work, expect NotYetError, and return when to try again."""
    with pytest.raises(NotYetError) as caught:
        work_at(ledger, connection, moment)
    return caught.value.until
