"""The gate ``hold_above`` on a ledger: what counts, and that one of several workers decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Thread
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign
from sendoff.dispatch.control import release
from sendoff.dispatch.pace import Pace
from sendoff.dispatch.rate_watch import RateWatch, hold_launches_above_limits
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.states import Accepted, InDoubt, Refused

from ...factories import EMAIL, KEY, NOW, claimed, make_campaign, make_launch, post_back, send, store
from ...waiting import PATIENCE

ACCEPTED, REFUSED = Accepted(200, 17), Refused(403, "no")
WORKERS = 6


def watch(ledger: Ledger, limits: dict[str, Any], *sizes: int) -> RateWatch:
    """Freeze a launch with requests of these sizes, and return its watch."""
    campaign = make_campaign(gates={"failures": None, "hold_above": limits})
    start, segments = 1, []
    for size in sizes:
        segments.append(Segment(integers(range(start, start + size))))
        start += size
    launch = make_launch(ledger, segments=segments, campaign=campaign)
    return RateWatch(ledger, launch, campaign)


def reason(ledger: Ledger) -> str | None:
    (decision,) = ledger.audit_log.of_launch(KEY)
    return decision.why


def test_one_of_several_workers_holds_the_launch(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5}, *[1] * 30)
    send(ledger, KEY, *[REFUSED] * 10)
    barrier = Barrier(WORKERS)

    def look(_: int) -> bool:
        barrier.wait()
        return rates.look(NOW)

    with ThreadPoolExecutor(WORKERS) as pool:
        held = list(pool.map(look, range(WORKERS)))
    assert held.count(True) == 1
    assert reason(ledger) == (
        "refused: 10 of 10 devices (10 of 10 requests), more than 5 % (sequential test, 1 % false alarms)"
    )


def test_a_request_counts_as_a_whole_however_many_recipients_it_has(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5}, *[1_000] * 10)
    send(ledger, KEY, *[REFUSED] * 6)
    assert not rates.look(NOW)
    send(ledger, KEY, REFUSED)
    assert rates.look(NOW)


def test_accepted_requests_of_other_sizes_are_not_refused(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5}, *[1_000] * 6, 999, 998, 997, 1_000)
    send(ledger, KEY, *[REFUSED] * 6, *[ACCEPTED] * 3)
    assert not rates.look(NOW)


def test_a_small_request_counts_less_than_a_large_one(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5}, *[10] * 20, 1_000)
    send(ledger, KEY, *[REFUSED] * 20)
    assert not rates.look(NOW)


def test_requests_without_an_answer_count_as_not_refused(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5}, *[1] * 60)
    send(ledger, KEY, *[None] * 20, *[InDoubt("lost")] * 20, *[REFUSED] * 7)
    assert not rates.look(NOW)


def test_nothing_is_held_if_nothing_is_left_to_send(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5}, *[1] * 10)
    send(ledger, KEY, *[REFUSED] * 10)
    assert not rates.look(NOW)
    assert ledger.audit_log.of_launch(KEY) == []


def test_several_limits_may_be_exceeded_together(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5, "opt_outs": 5}, *[1] * 30)
    send(ledger, KEY, *[REFUSED] * 8, *[ACCEPTED] * 8)
    new = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(new, range(9, 17), NOW)
    assert rates.look(NOW + timedelta(hours=1))
    why = reason(ledger)
    assert why is not None
    assert why.startswith("refused: 8 of 16 devices")
    assert "; opt outs: 8 of 8 devices, more than 5 % " in why


def test_after_a_refusal_only_refused_requests_are_looked_at(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 50, "opt_outs": 5}, *[1] * 80)
    send(ledger, KEY, *[ACCEPTED] * 40, REFUSED)
    new = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(new, range(1, 21), NOW)
    rates.look_at_refused(NOW)
    assert ledger.launches.get(KEY).state == "released"
    assert rates.look(NOW)


def test_opt_outs_of_earlier_recipients_do_not_count_after_a_release(ledger: Ledger) -> None:
    rates = watch(ledger, {"opt_outs": 5}, *[1] * 80)
    send(ledger, KEY, *[ACCEPTED] * 40)
    new = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(new, range(1, 21), NOW)
    assert rates.look(NOW)
    release(ledger, KEY, "ann", "a joke that some did not like", now=NOW + timedelta(hours=1))
    later = NOW + timedelta(hours=2)
    send(ledger, KEY, *[ACCEPTED] * 20, at=later)
    ledger.suppressions.add(new, range(21, 41), later)
    assert not rates.look(later)
    ledger.suppressions.add(new, range(41, 61), later)
    assert rates.look(later)


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_opt_outs_count_once_their_request_is_accepted(ledger: Ledger, is_in_doubt: bool) -> None:
    rates = watch(ledger, {"opt_outs": 2}, *[100] * 3)
    send(ledger, KEY, ACCEPTED)
    second = claimed(ledger)
    if is_in_doubt:
        ledger.dispatches.record(second, InDoubt("lost"), NOW)
    new = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(new, range(101, 121), NOW)
    assert not rates.look(NOW)
    ledger.dispatches.record(second, ACCEPTED, NOW)
    assert rates.look(NOW)
    assert reason(ledger) == "opt outs: 20 of 200 devices, more than 2 % (sequential test, 1 % false alarms)"


def test_opt_outs_are_at_most_the_recipients_of_accepted_requests(ledger: Ledger) -> None:
    rates = watch(ledger, {"opt_outs": 5}, *[1] * 30)
    send(ledger, KEY, *[ACCEPTED] * 10, *[InDoubt("lost")] * 10)  # the service may have sent the others, too
    new = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(new, range(1, 21), NOW)
    assert rates.look(NOW)
    assert reason(ledger) == ("opt outs: 10 of 10 devices, more than 5 % (sequential test, 1 % false alarms)")


def test_recipients_who_were_left_out_of_requests_do_not_count(ledger: Ledger) -> None:
    rates = watch(ledger, {"refused": 5, "opt_outs": 5}, *[2] * 30)
    left_out = SuppressionChange("account", "device_id", "complaint", "ann")
    ledger.suppressions.add(left_out, [1, 17], NOW)
    send(ledger, KEY, *[REFUSED] * 8, *[ACCEPTED] * 8)
    opt_outs = SuppressionChange("account", "device_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(opt_outs, range(18, 33), NOW)
    assert rates.look(NOW + timedelta(hours=1))
    why = reason(ledger)
    assert why is not None
    assert why.startswith("refused: 15 of 30 devices (8 of 16 requests)")
    assert "; opt outs: 15 of 15 devices" in why


@pytest.mark.code_decides
def test_recipients_are_missing_once_their_deliveries_had_their_time(ledger: Ledger) -> None:
    after = {"length": 2, "unit": "hours"}
    gates = {"failures": None, "hold_above": {"missing": 5, "after": after}}
    campaign = Campaign.model_validate({**EMAIL.model_dump(exclude_none=True), "gates": gates})
    launch = make_launch(ledger, range(1, 61), size=30, campaign=campaign)
    (key,) = send(ledger, KEY, ACCEPTED)
    store(ledger, *(post_back(key, "delivery", who) for who in range(1, 21)))
    store(ledger, post_back(key, "open", 21))  # who opened has got it, too
    rates, due = RateWatch(ledger, launch, campaign), NOW + timedelta(hours=2)
    assert not rates.look(due - timedelta(microseconds=1))
    assert rates.look(due)
    assert reason(ledger) == ("missing: 9 of 30 devices, more than 5 % (sequential test, 1 % false alarms)")


@pytest.mark.code_decides
def test_launches_that_wait_are_held_as_soon_as_a_rate_is_above_its_limit(ledger: Ledger) -> None:
    rates = {"gates": {"failures": None, "hold_above": {"refused": 5}}}
    keys = {
        name: make_launch(ledger, range(1, 31), size=1, name=name, campaign=make_campaign(**rates)).launch_key
        for name in ("good", "bad", "worse")
    }
    for name, outcome in (("good", ACCEPTED), ("bad", REFUSED), ("worse", REFUSED)):
        send(ledger, keys[name], *[outcome] * 10)
    assert hold_launches_above_limits(ledger, now=NOW) == sorted([keys["bad"], keys["worse"]])
    assert [ledger.launches.get(key).state for key in keys.values()] == ["released", "held", "held"]
    assert hold_launches_above_limits(ledger, now=NOW) == []


@pytest.mark.parametrize(
    ("between", "took", "rest"),
    [
        (0.0, 0.0, 0.0),
        (0.0, 0.015625, 0.0),  # quick
        (0.0, 1.0, 20.0),  # 5 % of the time
        (8.0, 0.0, 8.0),
        (8.0, 1.0, 20.0),
        (32.0, 1.0, 32.0),
    ],
)
def test_a_look_is_due_again_after_its_rest(
    between: float, took: float, rest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = [4_096.0], []
    monkeypatch.setattr("sendoff.dispatch.pace.time.monotonic", lambda: now[0])
    pace = Pace(between)

    def look() -> None:
        looks.append(now[0])
        now[0] += took

    assert pace.is_due
    pace.run(look)
    now[0] += rest
    assert pace.is_due
    if rest:
        now[0] -= 0.125
        assert not pace.is_due
        pace.run(look)
        assert len(looks) == 1
        now[0] += 0.125
    pace.run(look)
    assert len(looks) == 2


def test_one_thread_looks_at_a_time_and_the_others_go_on() -> None:
    pace, seen = Pace(0.0), list[str]()

    def look() -> None:
        seen.append("first")
        other = Thread(target=pace.run, args=(lambda: seen.append("second"),), daemon=True)
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive()

    pace.run(look)
    assert seen == ["first"]
