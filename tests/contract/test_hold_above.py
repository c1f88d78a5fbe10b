"""The gate ``hold_above`` against the real service: refused requests, missing recipients, and opt-outs."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.dispatch.control import pause, release
from sendoff.dispatch.rate_watch import hold_launches_above_limits
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.worker import send_launch
from sendoff.errors import GateError, NotYetError, PermanentError
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.storage.schema import launches
from sendoff.service.client import Client
from sendoff.service.credentials import ClientSecret
from sendoff.service.postbacks import PostBackSigner
from sendoff.service.tokens import TokenSource

from ..factories import KEY, NOW, PERIOD, make_campaign, make_launch, post_back, store
from ..local_receiver import local_receiver
from ..local_service import QUICK
from ..waiting import PATIENCE
from . import sending
from .sending import fault, sent_to, work_at

service, connection = sending.service, sending.connection  # fixtures

HOUR = timedelta(hours=1)
EMAIL = {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}}


@pytest.fixture(autouse=True)
def _every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow workers to look as often as they may, also on a slow machine."""
    monkeypatch.setattr("sendoff.dispatch.pace._QUICK", PATIENCE)


def freeze(
    ledger: Ledger,
    limits: dict[str, Any],
    *,
    people: int = 600,
    of: range | None = None,
    size: int = 1,
    waves: int = 300,
    **more: Any,
) -> None:
    """Freeze a launch in two waves, the first up to recipient ``waves``; its gate holds it above the limits."""
    gates = {
        "failures": None,
        "hold_above": limits,
        "rollout": {"shares": [50], "wait": {"length": 4, "unit": "hours"}, "refused": 100},
    }
    campaign = make_campaign(**{"gates": gates, "post_backs": {"kinds": []}, **more}).resolved(PERIOD.end)
    everybody = of or range(1, people + 1)
    parts = [everybody[start : start + size] for start in range(0, len(everybody), size)]
    segments = [Segment(integers(part), wave=1 if part[-1] <= waves else 2) for part in parts]
    make_launch(ledger, segments=segments, campaign=campaign)


def refuse(service: Any, share: float) -> None:
    asked = {"kind": "403", "at": ["create"], "probability": share}
    assert service.post("/admin/faults", json=asked).status_code == 201


def state(ledger: Ledger) -> str:
    return ledger.launches.get(KEY).state


def decided(ledger: Ledger) -> list[str]:
    return [each.kind for each in ledger.audit_log.of_launch(KEY)]


@pytest.mark.promise("hands/rates")
def test_a_launch_with_three_times_as_many_refusals_as_allowed_is_held(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, {"refused": 10})
    refuse(service, 0.3)
    with pytest.raises(
        GateError,
        match=r"is held: refused: \d+ of \d+ devices \(\d+ of \d+ requests\), more than 10 % "
        r"\(sequential test, 1 % false alarms\)",
    ):
        work_at(ledger, connection)
    states = ledger.dispatch_queries.states(KEY)
    assert states["accepted"] + states["refused"] <= 300, "within the first wave"
    assert decided(ledger) == ["held"]


def test_a_launch_with_half_as_many_refusals_as_allowed_reaches_everybody(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, {"refused": 10}, people=100, waves=50)
    refuse(service, 0.05)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    work_at(ledger, connection, NOW + 4 * HOUR)
    states = ledger.dispatch_queries.states(KEY)
    assert states.keys() <= {"accepted", "refused"}
    assert decided(ledger) == ["wave"]
    assert len(sent_to(service)) == states["accepted"]


def test_after_a_release_only_later_refusals_count(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, {"refused": 20}, people=60, waves=30)
    fault(service, "403", 13)
    with pytest.raises(GateError, match=r"refused: (\d+) of \1 devices"):
        work_at(ledger, connection)
    release(ledger, KEY, "ann", "they say it works again", now=NOW + timedelta(minutes=1))
    with pytest.raises(NotYetError):  # at most six more refusals, which are not enough
        work_at(ledger, connection, NOW + timedelta(minutes=2))
    assert ledger.dispatch_queries.states(KEY)["refused"] == 13
    assert decided(ledger) == ["held", "released"]


def test_workers_that_see_the_limit_at_the_same_time_hold_the_launch_once(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, {"refused": 10})
    refuse(service, 1.0)

    def attempt(_: int) -> None:
        with pytest.raises((GateError, NotYetError)):
            send_launch(ledger, KEY, connection, now=lambda: NOW)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(attempt, n) for n in range(4)]:
            each.result(PATIENCE)
    assert decided(ledger) == ["held"]
    assert state(ledger) == "held"


MISSING = {"missing": 10, "after": {"length": 2, "unit": "hours"}}
ASKED = {"channels": EMAIL, "message": None, "post_backs": {"kinds": ["delivery"]}}


def deliver(ledger: Ledger, missing_of_ten: int) -> None:
    """Store a delivery for all recipients of accepted requests, except some of each ten."""
    sent = [each for each in ledger.dispatch_queries.of_launch(KEY) if each.campaign_id is not None]
    store(
        ledger,
        *(
            post_back(each.dispatch_key, "delivery", each.segment, campaign=each.campaign_id, at=NOW + HOUR)
            for each in sent
            if each.segment % 10 >= missing_of_ten
        ),
        at=NOW + HOUR,
    )


@pytest.mark.promise("hands/rates")
def test_a_launch_that_waits_for_its_next_wave_is_held_for_missing_recipients(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, MISSING, people=120, waves=60, **ASKED)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    deliver(ledger, missing_of_ten=3)
    assert hold_launches_above_limits(ledger, now=NOW + 1.9 * HOUR) == [], "deliveries may take two hours"
    assert hold_launches_above_limits(ledger, now=NOW + 2 * HOUR) == [KEY]
    assert hold_launches_above_limits(ledger, now=NOW + 3 * HOUR) == []
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.why == "missing: 18 of 60 devices, more than 10 % (sequential test, 1 % false alarms)"
    with pytest.raises(GateError, match="is held: missing"):
        work_at(ledger, connection, NOW + 4 * HOUR)
    release(ledger, KEY, "ann", "a slow provider", now=NOW + 4 * HOUR)
    work_at(ledger, connection, NOW + 5 * HOUR)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 120}


@pytest.mark.parametrize(("limit", "is_held"), [(10, True), (60, False)])
def test_the_rate_of_real_post_backs_decides(
    service_start: Callable[..., Any], tmp_path: Path, limit: int, is_held: bool
) -> None:
    """The service loses 30 % of the messages: three times the first limit, and half of the second."""
    service, url = service_start(*QUICK, "--delivered", "0.7"), f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(Ledger(url)) as ledger, requests.Session() as session:
        ledger.migrate()
        with local_receiver(url, "x" * 32) as address:
            tokens = TokenSource(
                ClientSecret(service.client_id, service.client_secret), service.base_url, session
            )
            client = Client(service.base_url, session, tokens)
            connection = ServiceConnection(client, PostBackSigner(address, ["x" * 32]), requests_at_once=4)
            freeze(ledger, {"missing": limit}, of=range(2, 602, 2), size=10, waves=300, **ASKED)
            with pytest.raises(NotYetError):
                work_at(ledger, connection)
            service.wait_until_quiet()
            assert hold_launches_above_limits(ledger, now=NOW + 2 * HOUR) == [KEY] * is_held
            if is_held:
                (decision,) = ledger.audit_log.of_launch(KEY)
                assert re.match(r"missing: \d+ of 150 devices, more than 10 % ", decision.why or "")
                assert ledger.dispatch_queries.states(KEY) == {"accepted": 15, "planned": 15}
            else:
                work_at(ledger, connection, NOW + 4 * HOUR)
                assert ledger.dispatch_queries.states(KEY) == {"accepted": 30}
                assert decided(ledger) == ["wave"]


def test_half_as_many_missing_recipients_as_allowed_hold_nothing(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, {**MISSING, "missing": 20}, people=100, waves=50, **ASKED)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    deliver(ledger, missing_of_ten=1)
    work_at(ledger, connection, NOW + 4 * HOUR)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 100}
    assert decided(ledger) == ["wave"]


def test_silence_holds_nothing_if_no_delivery_is_reported(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, MISSING, people=100, waves=50, post_backs={"kinds": ["delivery"]})
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    assert hold_launches_above_limits(ledger, now=NOW + 3 * HOUR) == []


def test_a_launch_that_cannot_be_read_keeps_no_other_from_being_held(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    broken = make_launch(ledger, [1], name="broken", created_at=NOW - HOUR).launch_key  # it is checked first
    with ledger.launch_counts._database.write() as db:  # as another version of Sendoff may freeze it
        of_broken = sa.update(launches).where(launches.c.launch_key == broken)
        db.execute(of_broken.values(definition='{"title": "Spring", "unheard_of": 5}'))
    freeze(ledger, {"opt_outs": 5}, people=100, waves=50)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    led_by_this = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(led_by_this, range(1, 20), NOW + HOUR)
    with pytest.raises(PermanentError, match=f"^launch {broken}: this launch was frozen by another version"):
        hold_launches_above_limits(ledger, now=NOW + HOUR)
    assert state(ledger) == "held"


@pytest.mark.promise("hands/rates")
def test_a_launch_that_waits_is_held_if_too_many_recipients_opt_out(
    ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger, {"opt_outs": 5}, people=100, waves=50)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    led_by_this = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    led_by_another = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key="another")
    ledger.suppressions.add(led_by_this, range(1, 4), NOW + HOUR)
    ledger.suppressions.add(led_by_another, range(50, 80), NOW + HOUR)
    assert hold_launches_above_limits(ledger, now=NOW + HOUR) == []
    ledger.suppressions.add(led_by_this, range(4, 20), NOW + 2 * HOUR)
    assert hold_launches_above_limits(ledger, now=NOW + 2 * HOUR) == [KEY]
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.why == "opt outs: 19 of 50 devices, more than 5 % (sequential test, 1 % false alarms)"
    release(ledger, KEY, "ann", "a joke that some did not like", now=NOW + 3 * HOUR)
    ledger.suppressions.add(led_by_this, range(20, 50), NOW + 4 * HOUR)  # recipients of the first wave
    work_at(ledger, connection, NOW + 5 * HOUR)
    assert decided(ledger) == ["held", "released", "wave"]


def test_a_worker_looks_at_opt_outs_while_it_sends(
    service: Any, ledger: Ledger, connection: ServiceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.dispatch.rate_watch._BETWEEN", 0.0)
    monkeypatch.setattr("sendoff.dispatch.pace._SHARE", 1.0)
    freeze(ledger, {"opt_outs": 5}, people=200, waves=50)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    led_by_this = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(led_by_this, range(1, 40), NOW)
    with pytest.raises(GateError, match="opt outs: "):
        work_at(ledger, connection, NOW + 4 * HOUR)
    assert 50 <= len(sent_to(service)) < 150


def test_a_decision_by_a_person_comes_first(ledger: Ledger, connection: ServiceConnection) -> None:
    freeze(ledger, {"opt_outs": 5}, people=100, waves=50)
    with pytest.raises(NotYetError):
        work_at(ledger, connection)
    ledger.suppressions.add(
        SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY), range(1, 50), NOW
    )
    pause(ledger, KEY, "ann", "wrong picture")
    assert hold_launches_above_limits(ledger, now=NOW) == []
    assert state(ledger) == "paused"


def test_recipients_that_the_service_chooses_are_not_counted(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    campaign = make_campaign(
        gates={"hold_above": {"refused": 1, "missing": 1, "opt_outs": 1}}, targeting={"kind": "broadcast"}
    ).resolved(PERIOD.end)
    make_launch(ledger, campaign=campaign)
    fault(service, "403", 1)
    assert work_at(ledger, connection).refused == 1
    assert hold_launches_above_limits(ledger, now=NOW + 3 * HOUR) == []
