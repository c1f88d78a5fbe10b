"""Waves: claiming, judging, and opening the next one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.campaign.gates import Rollout
from sendoff.dispatch.control import release, resolve
from sendoff.dispatch.rollout import open_next_wave
from sendoff.errors import NotYetError
from sendoff.ledger import Decision, Ledger, SuppressionChange
from sendoff.ledger.launches.launch_record import LaunchRecord
from sendoff.ledger.requests.dispatch_queries import Progress
from sendoff.postbacks.aggregation import aggregate
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, Outcome, Refused, Resolution

from ...factories import KEY, NOW, claimed, make_launch, post_back, send, store
from ...leases import expire

LATER = NOW + timedelta(minutes=30)
YES, NO, DOUBT = Accepted(200, 17), Refused(400, "no"), InDoubt("HTTP 500")
WAVES = [*(Segment(integers([n, n + 1]), wave=1) for n in (1, 3, 5, 7)), Segment(integers([9, 10]), wave=2)]


def seen(ledger: Ledger) -> LaunchRecord:
    return ledger.launches.get(KEY)


def judge(ledger: Ledger, *, now: datetime = LATER, **rollout: Any) -> str:
    """Judge the open waves, and return the launch's state and newest wave."""
    open_next_wave(ledger, seen(ledger), Rollout.model_validate(rollout), now=now)
    return f"{seen(ledger).state} {seen(ledger).wave}"


def deliveries(ledger: Ledger, *people: int) -> None:
    keys = {
        person: dispatch.dispatch_key
        for dispatch, members in ledger.dispatch_queries.segments(KEY)
        for person in members
    }
    store(ledger, *(post_back(keys[person], "delivery", person) for person in people))


def test_only_open_waves_and_zones_are_claimed(ledger: Ledger) -> None:
    zones = [("Asia/Tokyo", 1), (None, 1), ("Europe/Dublin", 1), ("Europe/Dublin", 2)]
    make_launch(
        ledger,
        segments=[
            Segment(integers([n]), Variation(time_zone=zone), wave)
            for n, (zone, wave) in enumerate(zones, start=1)
        ],
    )
    closed: list[set[str | None]] = [
        {"Asia/Tokyo", None, "Europe/Dublin"},
        {"Asia/Tokyo", None},
        {"Asia/Tokyo"},
        {"Asia/Tokyo"},
        set(),
        set(),
    ]
    claims = [
        ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=timedelta(minutes=5), closed_zones=each)
        for each in closed
    ]
    assert [claim and claim.segment for claim in claims] == [None, 3, 2, None, 1, None]


def test_progress_is_counted_by_wave_zone_and_state(ledger: Ledger) -> None:
    make_launch(ledger, segments=[*WAVES, Segment(integers([11]), Variation(time_zone="Asia/Tokyo"), 2)])
    send(ledger, KEY, YES, NO, YES)
    assert sorted(ledger.dispatch_queries.progress(KEY), key=str) == [
        Progress(1, None, "accepted", 2),
        Progress(1, None, "planned", 1),
        Progress(1, None, "refused", 1),
        Progress(2, "Asia/Tokyo", "planned", 1),
        Progress(2, None, "planned", 1),
    ]
    accepted = [sorted(people) for people, _ in ledger.launch_counts.accepted(KEY, waves=[1])]
    assert accepted == [[1, 2], [5, 6]]
    assert list(ledger.launch_counts.accepted(KEY, waves=[2])) == []


def test_the_newest_request_of_a_wave_is_not_that_of_a_later_one(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, YES)
    assert judge(ledger) == "released 2"
    send(ledger, KEY, YES, at=LATER)
    assert ledger.dispatch_queries.newest_request(KEY, up_to_wave=1) == NOW
    assert ledger.dispatch_queries.newest_request(KEY) == LATER


def test_the_next_wave_waits_after_a_late_answer_as_after_its_request(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES)
    ledger.dispatches.record(claimed(ledger), YES, LATER)
    with pytest.raises(NotYetError) as early:
        judge(ledger, wait={"length": 30, "unit": "minutes"})
    assert early.value.until == LATER + timedelta(minutes=30)


@pytest.mark.parametrize("last", [DOUBT, None])  # no clear answer; or its worker died
def test_what_becomes_known_later_does_not_delay_the_next_wave(ledger: Ledger, last: Outcome | None) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, last)
    expire(ledger, KEY, LATER)
    deliveries(ledger, 7)
    aggregate(ledger, now=LATER)
    assert judge(ledger) == "released 2"


@pytest.mark.parametrize(
    ("outcomes", "allowed", "after"),
    [
        ([YES, YES, YES, YES], 1, "released 2"),
        ([YES, YES, YES, NO], 25, "released 2"),
        ([YES, YES, YES, NO], 24, "held 1"),
        ([YES, YES, DOUBT, NO], 49, "held 1"),  # a doubt counts as refused
        ([YES, YES, DOUBT, NO], 50, "released 2"),
        ([YES, YES, NO, None], 33, "held 1"),  # what is in flight does not count
    ],
)
def test_a_wave_is_judged_by_what_was_refused(
    ledger: Ledger, outcomes: list[Outcome | None], allowed: float, after: str
) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, *outcomes)
    assert judge(ledger, refused=allowed) == after


def test_a_doubt_that_a_post_back_resolves_counts_as_accepted(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, DOUBT)
    deliveries(ledger, 7)
    assert judge(ledger) == "released 2"


@pytest.mark.parametrize(("delivered", "after"), [((), "held 1"), ((7,), "released 2")])
def test_a_written_off_doubt_counts_as_refused_until_a_post_back_comes(
    ledger: Ledger, delivered: tuple[int, ...], after: str
) -> None:
    make_launch(ledger, segments=WAVES)
    *_, doubted = send(ledger, KEY, YES, YES, YES, DOUBT)
    resolve(ledger, doubted, Resolution.WRITE_OFF, "ann", "no answer", now=NOW)
    deliveries(ledger, *delivered)
    assert judge(ledger, refused=24) == after


@pytest.mark.parametrize(
    ("outcomes", "counted", "after"), [([NO], (1, 1), "held 1"), ([YES], (1, 0), "released 2")]
)
def test_requests_whose_recipients_are_all_left_out_do_not_count(
    ledger: Ledger, outcomes: list[Outcome], counted: tuple[int, int], after: str
) -> None:
    make_launch(ledger, segments=WAVES)
    ledger.suppressions.add(SuppressionChange("account", "device_id", "crm", "ann"), range(1, 7), NOW)
    send(ledger, KEY, *outcomes)
    assert judge(ledger, refused=25) == after
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.detail
    assert (decision.detail["requests"], decision.detail["refused"]) == counted


def test_a_wave_whose_recipients_are_all_left_out_opens_the_next_one(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    ledger.suppressions.add(SuppressionChange("account", "device_id", "crm", "ann"), range(1, 9), NOW)
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=timedelta(minutes=5)) is None
    assert judge(ledger) == "released 2"


@pytest.mark.parametrize(
    ("delivered", "allowed", "after"),
    [
        ((1, 2, 3, 4, 5, 6), 1, "released 2"),
        ((1, 2, 3), 50, "released 2"),
        ((1, 2, 3), 49, "held 1"),
        ((), None, "released 2"),  # the campaign sets no limit
    ],
)
def test_a_wave_is_judged_by_who_is_missing(
    ledger: Ledger, delivered: tuple[int, ...], allowed: float | None, after: str
) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, NO)  # 7 and 8 are refused, not missing
    deliveries(ledger, *delivered)
    assert judge(ledger, refused=25, missing=allowed) == after


def test_requests_with_a_post_back_that_may_hide_a_delivery_do_not_count_for_missing(ledger: Ledger) -> None:
    parts = ((range(1, 91), 1), (range(91, 101), 1), (range(101, 111), 2))
    make_launch(ledger, segments=[Segment(integers(people), wave=wave) for people, wave in parts])
    first, _ = send(ledger, KEY, YES, YES)
    store(ledger, PostBack.received("delivery", first, NOW, b"{"))
    assert judge(ledger, missing=20) == "held 1"
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.why == "after wave 1: 10 of 10 people missing (100.0 %); at most 20 % is allowed"


def test_what_is_found_and_what_is_allowed_is_in_the_ledger_and_names_nobody(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, NO)
    deliveries(ledger, 1, 2, 3)
    assert judge(ledger, missing=10) == "held 1"
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.detail == {"wave": 1, "requests": 4, "refused": 1, "people": 6, "missing": 3}
    assert decision.why == (
        "after wave 1: "
        "1 of 4 requests refused or in doubt (25.0 %); at most 1 % is allowed; "
        "3 of 6 people missing (50.0 %); at most 10 % is allowed"
    )


def test_a_wave_that_is_judged_only_by_what_was_refused_counts_no_people(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, NO)
    assert judge(ledger) == "held 1"
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.detail == {"wave": 1, "requests": 4, "refused": 1, "people": 0, "missing": 0}


def test_a_wave_is_not_judged_before_post_backs_were_waited_for(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, NO)
    with pytest.raises(NotYetError) as caught:
        judge(ledger, now=LATER - timedelta(microseconds=1))
    assert caught.value.until == LATER
    assert ledger.audit_log.of_launch(KEY) == []


def test_after_a_release_the_next_wave_opens_at_once(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, NO, NO, NO, NO)
    assert judge(ledger) == "held 1"
    release(ledger, KEY, "ann", "mended", now=LATER)
    assert judge(ledger) == "released 2"
    assert ledger.audit_log.of_launch(KEY)[-1].why == "a person released the launch"  # it is not judged again


def test_releasing_what_a_person_held_opens_no_wave(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, NO, NO, NO, NO)
    assert ledger.audit_log.decide(Decision(KEY, "held", "bob", "a moment, please", NOW))
    release(ledger, KEY, "bob", "go on", now=NOW)
    assert judge(ledger) == "held 1"


def test_a_worker_that_saw_the_launch_before_another_opened_a_wave_opens_none(ledger: Ledger) -> None:
    make_launch(ledger, segments=WAVES)
    send(ledger, KEY, YES, YES, YES, YES)
    before = seen(ledger)
    for _ in range(2):
        open_next_wave(ledger, before, Rollout(), now=LATER)
    assert (seen(ledger).state, seen(ledger).wave) == ("released", 2)
    assert [each.kind for each in ledger.audit_log.of_launch(KEY)] == ["wave"]
