"""What a worker may do when it could claim nothing: end, wait until a moment, or go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.dispatch.checks import check_all_sent
from sendoff.dispatch.control import pause, pause_all, stop
from sendoff.dispatch.policy import SendPolicy
from sendoff.errors import GateError, NotYetError, RateLimitedLocallyError, RetryableError
from sendoff.ledger import DailyLimit, Decision, Ledger
from sendoff.states import Accepted, Arm, DecisionKind, InDoubt, Refused

from ...factories import KEY, LEASE, NOW, make_campaign, make_launch, send
from ...leases import end_leases

pytestmark = pytest.mark.code_decides
YES = Accepted(200, 17)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
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


@pytest.mark.parametrize("on_doubt", ["resend", "hold"])
def test_requests_in_flight_that_may_be_resent_are_waited_for_until_just_after_their_leases(
    ledger: Ledger, on_doubt: str
) -> None:
    make_launch(ledger, [1], campaign=make_campaign(on_doubt=on_doubt))
    send(ledger, KEY, None)
    policy = SendPolicy(ledger, KEY)
    if on_doubt == "hold":
        assert not policy.has_more(NOW)
        return
    with pytest.raises(NotYetError, match=f"launch {KEY}: its last requests are in flight") as error:
        policy.has_more(NOW)
    left = ledger.doubts.next_expiry(KEY)
    assert left is not None
    assert left + SECOND <= error.value.until - NOW <= LEASE + SECOND


def test_a_launch_is_completely_sent_at_the_earliest_just_after_the_leases_of_its_requests(
    ledger: Ledger,
) -> None:
    make_launch(ledger, [1, 2], size=1)
    send(ledger, KEY, YES, None)
    before = datetime.now(UTC)
    with pytest.raises(NotYetError, match="dispatches in flight: 1;") as error:
        check_all_sent(ledger, KEY)
    left = ledger.doubts.next_expiry(KEY)
    assert left is not None
    assert before + left + SECOND <= error.value.until <= datetime.now(UTC) + LEASE + SECOND
    end_leases(ledger)
    check_all_sent(ledger, KEY)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "in_doubt": 1}


def test_a_launch_is_not_completely_sent_while_requests_are_planned_unless_it_has_ended(
    ledger: Ledger,
) -> None:
    make_launch(ledger, [1, 2], size=1)
    send(ledger, KEY, YES)
    with pytest.raises(RetryableError, match=f"launch {KEY}: dispatches not sent yet: 1"):
        check_all_sent(ledger, KEY)
    stop(ledger, KEY, "ann", "no", now=NOW)
    check_all_sent(ledger, KEY)


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


@pytest.mark.parametrize("by", ["itself", "person"])
def test_the_winner_is_decided_once_its_time_has_come(ledger: Ledger, by: str) -> None:
    fields = decide(length=2, unit="hours")
    campaign = make_campaign(**{**fields, "decide": {**fields["decide"], "by": by}})
    make_launch(ledger, segments=WAVES, campaign=campaign)
    send(ledger, KEY, YES)
    due = NOW + 2 * HOUR
    with pytest.raises(NotYetError, match="the winner is not decided yet") as early:
        SendPolicy(ledger, KEY).has_more(due - timedelta(microseconds=1))
    assert early.value.until == due
    assert ledger.audit_log.of_launch(KEY) == []
    assert SendPolicy(ledger, KEY).has_more(due)
    [decision] = ledger.audit_log.of_launch(KEY)
    detail = decision.detail or {}
    assert (decision.who, decision.decided_at) == ("sendoff", due)
    assert (detail["winner"], detail["is_clear"]) == ("a", False)
    assert decision.why is not None
    launch = ledger.launches.get(KEY)
    if by == "person":
        assert decision.why.startswith("a person must choose the variant for the rest. Proposed: a, because ")
        assert (decision.kind, launch.state, launch.wave, launch.winner) == ("held", "held", 1, None)
        assert detail["wave"] == 1
    else:
        assert decision.why.startswith("the rest gets a, the default: ")
        assert (decision.kind, launch.state, launch.wave, launch.winner) == ("winner", "released", 2, "a")


def test_the_next_wave_opens_once_the_rollout_has_waited(ledger: Ledger) -> None:
    gates = {"rollout": {"shares": [50], "wait": {"length": 1, "unit": "hours"}}}
    make_launch(ledger, segments=WAVES, campaign=make_campaign(gates=gates))
    send(ledger, KEY, YES)
    with pytest.raises(NotYetError, match="post-backs may still come") as early:
        SendPolicy(ledger, KEY).has_more(NOW + HOUR - timedelta(microseconds=1))
    assert early.value.until == NOW + HOUR
    assert SendPolicy(ledger, KEY).has_more(NOW + HOUR)
    assert ledger.launches.get(KEY).wave == 2


def test_a_launch_whose_time_has_passed_is_stopped(ledger: Ledger) -> None:
    once = {"kind": "once", "date": "2026-03-02", "time": "08:00", "time_zone": "UTC"}  # NOW is at 9
    make_launch(ledger, range(1, 4), size=1, campaign=make_campaign(send=once))
    assert not SendPolicy(ledger, KEY).has_more(NOW)
    [decision] = ledger.audit_log.of_launch(KEY)
    why = "too late: the time of sending has passed, and 3 requests are not sent"
    assert decision == Decision(KEY, DecisionKind.STOPPED, "sendoff", why, NOW)
    assert ledger.launches.get(KEY).state == "stopped"


def test_with_own_hours_a_launch_is_closed_at_the_second_when_its_messages_end(ledger: Ledger) -> None:
    until = {"date": "2026-03-02", "time": "09:30", "time_zone": "UTC"}
    send_at = {"kind": "now", "own_hours": {}}
    made = make_campaign(
        send=send_at,
        push_expiry={"until": until},
        channels={"android_push": {}},
        message={"title": "a", "text": "b"},
    )
    make_launch(ledger, segments=[Segment(integers([1]), hour=9, arm=Arm.OWN_HOUR)], campaign=made)
    policy, end = SendPolicy(ledger, KEY), NOW + 30 * MINUTE
    assert policy.closed_until(end) == {}
    assert list(policy.closed_until(end + SECOND).values()) == [None]


@pytest.mark.parametrize(("hours", "day", "most"), [(14, 2, 500), (15, 3, 1_000)])
def test_the_daily_limit_is_that_of_the_day_in_utc(ledger: Ledger, hours: int, day: int, most: int) -> None:
    rule = {
        "connection": "sendoff_default", "start": "2026-03-02", "first_day": 500, "growth": 2, "most": 9_000
    }  # fmt: skip
    make_launch(ledger, [1], campaign=make_campaign(rules={"warm_up": [rule]}))
    policy, west = SendPolicy(ledger, KEY), timezone(timedelta(hours=-8))
    assert policy.is_limited_daily
    moment = (NOW + hours * HOUR).astimezone(west)
    assert policy.daily_limit(moment) == DailyLimit("service", date(2026, 3, day), most)


def test_without_a_rule_there_is_no_daily_limit(ledger: Ledger) -> None:
    make_launch(ledger, [1])
    policy = SendPolicy(ledger, KEY)
    assert (policy.is_limited_daily, policy.daily_limit(NOW)) == (False, None)


@pytest.mark.parametrize("on_doubt", ["resend", "hold"])
def test_a_doubt_is_sent_again_once_if_the_campaign_says_so(ledger: Ledger, on_doubt: str) -> None:
    make_launch(ledger, [1, 2], size=1, campaign=make_campaign(on_doubt=on_doubt))
    send(ledger, KEY, InDoubt("lost"), YES)
    policy = SendPolicy(ledger, KEY)
    policy.resend_doubts(NOW)
    if on_doubt == "hold":
        assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "in_doubt": 1}
        return
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 1}
    [decision] = ledger.audit_log.of_launch(KEY)
    assert (decision.kind, decision.who, decision.why) == ("resend_dispatch", "sendoff", "on_doubt: resend")
    send(ledger, KEY, InDoubt("lost again"))
    policy.resend_doubts(NOW)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "in_doubt": 1}
