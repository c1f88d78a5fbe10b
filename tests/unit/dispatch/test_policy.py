"""What a worker may do when it could claim nothing: end, wait until a moment, or go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.dispatch.control import pause, pause_all, stop
from sendoff.dispatch.policy import SendPolicy
from sendoff.errors import GateError, NotYetError, RateLimitedLocallyError
from sendoff.ledger import Decision, Ledger
from sendoff.states import Accepted, Arm, Refused

from ...factories import KEY, NOW, make_campaign, make_launch, send

pytestmark = pytest.mark.code_decides
YES = Accepted(200, 17)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
WAVES = [Segment(integers([1])), Segment(integers([2]), wave=2)]
VARIANTS: dict[str, Any] = {"variants": {"a": {"percent": 50}, "b": {"percent": 50}}}
HOURS = {"earliest": "10:00", "latest": "20:00"}  # NOW is at 9


def decide(**after: Any) -> dict[str, Any]:
    return {**VARIANTS, "decide": {"share": 20, "after": after, "otherwise": "a"}}


def test_a_launch_without_planned_requests_has_no_more(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    send(ledger, KEY, YES)
    assert not SendPolicy(ledger, KEY).has_more(NOW)


def test_a_stopped_launch_has_no_more(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    stop(ledger, KEY, "ann", "no", now=NOW)
    assert not SendPolicy(ledger, KEY).has_more(NOW)


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({"gates": {"rollout": {"shares": [50], "wait": {"length": 2, "unit": "hours"}}}}, 5 * MINUTE),
        ({"gates": {"rollout": {"shares": [50], "wait": {"length": 3, "unit": "minutes"}}}}, 3 * MINUTE),
        (decide(length=2, unit="hours"), 5 * MINUTE),  # about a lease
        (decide(length=2, unit="minutes"), 2 * MINUTE),
    ],
)
def test_the_next_wave_waits_for_requests_in_flight(
    ledger: Ledger, fields: dict[str, Any], wait: timedelta
) -> None:
    make_launch(ledger, segments=WAVES, campaign=make_campaign(**fields))
    send(ledger, KEY, None)
    with pytest.raises(NotYetError, match=f"launch {KEY}: wave 1 is in flight") as error:
        SendPolicy(ledger, KEY).has_more(NOW)
    assert error.value.until == NOW + wait


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"send": {"kind": "now", "own_hours": {}}}, r"it is the own hour \(send\.own_hours\) of none"),
        (
            {"gates": {"window": {**HOURS, "time_zone": "UTC"}}},
            r"the send window \(gates\.window\) is closed",
        ),
        (
            {"rules": {"quiet_hours": HOURS, "default_time_zone": "UTC"}},
            "the rules for all campaigns or the send window allow no message now",
        ),
    ],
)
def test_a_launch_waits_for_its_hours_and_says_which(
    ledger: Ledger, fields: dict[str, Any], why: str
) -> None:
    segment = (
        Segment(integers([1]), hour=10, arm=Arm.OWN_HOUR) if "send" in fields else Segment(integers([1]))
    )
    make_launch(ledger, segments=[segment], campaign=make_campaign(**fields))
    with pytest.raises(NotYetError, match=f"launch {KEY}: {why}") as error:
        SendPolicy(ledger, KEY).has_more(NOW)
    assert error.value.until == NOW + HOUR
    assert SendPolicy(ledger, KEY).has_more(NOW + HOUR)


def test_a_launch_waits_for_the_first_zone_that_opens(ledger: Ledger) -> None:
    window = {**HOURS, "time_zone": "query", "default_time_zone": "UTC"}
    zones = ("UTC", "Atlantic/Azores")  # 10:00 and 11:00 in UTC
    parts = [Segment(integers([n]), Variation(time_zone=zone)) for n, zone in enumerate(zones, 1)]
    make_launch(ledger, segments=parts, campaign=make_campaign(gates={"window": window}))
    with pytest.raises(NotYetError) as error:
        SendPolicy(ledger, KEY).has_more(NOW)
    assert error.value.until == NOW + HOUR


@pytest.mark.parametrize(
    ("act", "error", "why"),
    [
        (lambda ledger: pause(ledger, KEY, "ann", "wait", now=NOW), NotYetError, "is paused by ann: wait"),
        (lambda ledger: pause_all(ledger, "ann", "wait", now=NOW), NotYetError, "paused .* by ann: wait"),
        (
            lambda ledger: ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "3 refused", NOW)),
            GateError,
            "is held: 3 refused",
        ),
    ],
)
def test_a_launch_that_may_not_send_says_why(
    ledger: Ledger, act: Callable[[Ledger], object], error: type[Exception], why: str
) -> None:
    make_launch(ledger, [1])
    act(ledger)
    with pytest.raises(error, match=why) as caught:
        SendPolicy(ledger, KEY).has_more(NOW)
    assert getattr(caught.value, "until", NOW + timedelta(seconds=30)) == NOW + timedelta(seconds=30)


@pytest.mark.parametrize(("ahead", "is_early"), [(timedelta(), False), (timedelta(seconds=1), True)])
def test_a_connection_that_the_service_asked_to_wait_is_early(
    ledger: Ledger, ahead: timedelta, is_early: bool
) -> None:
    make_launch(ledger, [1])
    ledger.rate_limits.delay("service", NOW + ahead)
    policy = SendPolicy(ledger, KEY)
    if is_early:
        with pytest.raises(RateLimitedLocallyError) as error:
            policy.has_more(NOW)
        assert error.value.until == NOW + ahead
    else:
        assert policy.has_more(NOW)


@pytest.mark.parametrize(("late", "is_late"), [(HOUR, False), (HOUR + timedelta(seconds=1), True)])
@pytest.mark.parametrize("is_sent", [False, True])
def test_a_launch_is_stopped_once_it_is_too_late_if_some_of_it_is_unsent(
    ledger: Ledger, late: timedelta, is_late: bool, is_sent: bool
) -> None:
    campaign = make_campaign(gates={"lateness": {"length": 1, "unit": "hours"}})
    make_launch(ledger, [1], campaign=campaign, due_at=NOW)
    if is_sent:
        send(ledger, KEY, YES)
    policy = SendPolicy(ledger, KEY)
    assert policy.is_too_late(NOW + late) is is_late
    assert policy.closed_zones(NOW + late) == ({None} if is_late else set())
    assert (ledger.launches.get(KEY).state == "stopped") is (is_late and not is_sent)


@pytest.mark.parametrize(("refused", "is_held"), [(1, False), (2, True)])
def test_a_launch_is_held_once_as_many_requests_fail_as_its_limit(
    ledger: Ledger, refused: int, is_held: bool
) -> None:
    campaign = make_campaign(gates={"failures": {"refused": 2, "of": 3}})
    make_launch(ledger, range(1, 5), size=1, campaign=campaign)
    no = Refused(400, "no")
    send(ledger, KEY, YES, *[no] * refused)
    SendPolicy(ledger, KEY).hold_if_failing(no, NOW)
    assert (ledger.launches.get(KEY).state == "held") is is_held


def test_no_wave_opens_after_one_whose_requests_were_refused_too_often(ledger: Ledger) -> None:
    gates = {
        "failures": None,
        "hold_above": {"refused": 5},
        "rollout": {"shares": [50], "refused": 100, "wait": {"length": 1, "unit": "minutes"}},
    }
    segments = [*(Segment(integers([n])) for n in range(1, 21)), Segment(integers([99]), wave=2)]
    make_launch(ledger, segments=segments, campaign=make_campaign(gates=gates))
    send(ledger, KEY, *[Refused(400, "no")] * 20)
    with pytest.raises(GateError, match=f"launch {KEY} is held: refused: 20 of 20 devices"):
        SendPolicy(ledger, KEY).has_more(NOW + HOUR)
    assert ledger.launches.get(KEY).wave == 1
