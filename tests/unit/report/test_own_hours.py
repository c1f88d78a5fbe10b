"""The report of a launch at own hours: what sending at the usual hour gains, or that no gain can be shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.comparison import Comparison, comparisons_of
from sendoff.comparison.engagement import of_own_hours
from sendoff.comparison.statistics import Counted, compared_shares
from sendoff.figures import LaunchStats
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import as_text, describe_launch
from sendoff.states import Accepted, Arm, InDoubt, Outcome

from ...factories import KEY, NOW, make_campaign, make_launch, post_back, send, store

CONTROL, OWN, EXPLORE, UNKNOWN = (
    range(1, 1_001),
    range(1_001, 2_001),
    range(2_001, 2_201),
    range(3_001, 3_301),
)
SEGMENTS = [
    Segment(integers(UNKNOWN)),
    Segment(integers(CONTROL), arm=Arm.CONTROL),
    Segment(integers(OWN), hour=18, arm=Arm.OWN_HOUR),
    Segment(integers(EXPLORE), hour=20, arm=Arm.EXPLORE),
]
EVENING, LATER = NOW + timedelta(hours=9), NOW + timedelta(days=3)


@pytest.fixture
def keys(ledger: Ledger) -> list[str]:
    """The dispatch keys of a launch whose requests took nine hours."""
    campaign = make_campaign(send={"kind": "now", "own_hours": {}})
    make_launch(ledger, segments=SEGMENTS, campaign=campaign)
    at_once = send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
    return at_once + send(ledger, KEY, Accepted(200, 17), Accepted(200, 17), at=EVENING)


def opened(ledger: Ledger, key: str, who: Iterable[int], at: datetime = EVENING) -> None:
    store(ledger, *(post_back(key, "open", one, at=at + timedelta(seconds=one)) for one in who))


def compared(ledger: Ledger, at: datetime = LATER) -> Comparison:
    found = of_own_hours(ledger, reconcile_launch(ledger, KEY, now=at))
    assert found is not None
    return found


def keys_of(ledger: Ledger) -> list[str]:
    return [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]


def test_a_gain_is_told_with_its_size(ledger: Ledger, keys: list[str]) -> None:
    _, control, own, _ = keys_of(ledger)
    opened(ledger, control, CONTROL[:200])
    opened(ledger, own, OWN[:400])
    found = compared(ledger)
    assert [(side.name, side.people, side.count) for side in found.sides] == [
        ("own hour", 1_000, 400),
        ("at once", 1_000, 200),
    ]
    figures = reconcile_launch(ledger, KEY, now=LATER)
    text = " ".join(as_text(describe_launch(figures, comparisons_of(ledger, figures))).split())
    assert "own hour is ahead of at once (40.00 % against 20.00 % engaged)" in text
    assert "Sending at own hours gains: +" in text
    assert "200 devices got the message at a random hour. They are not compared." in text


def test_a_loss_is_told(ledger: Ledger, keys: list[str]) -> None:
    _, control, own, _ = keys_of(ledger)
    opened(ledger, control, CONTROL[:400])
    opened(ledger, own, OWN[:200])
    assert any("Sending at own hours loses: -" in each for each in compared(ledger).remarks)


def test_without_a_clear_difference_no_gain_is_claimed(ledger: Ledger, keys: list[str]) -> None:
    _, control, own, _ = keys_of(ledger)
    opened(ledger, control, CONTROL[:200])
    opened(ledger, own, OWN[:215])
    assert compared(ledger).remarks[0] == "No gain of sending at own hours can be shown, and no loss."


def test_opens_of_the_last_hours_count_for_either_side(ledger: Ledger, keys: list[str]) -> None:
    """The control group had nine hours more to open, so its opens may be ahead for that reason alone."""
    _, control, own, _ = keys_of(ledger)
    opened(ledger, control, CONTROL[:400], NOW + timedelta(hours=2))
    opened(ledger, own, OWN[:200], EVENING + timedelta(minutes=10))
    early = compared(ledger, EVENING + timedelta(hours=1))
    assert early.remarks[0].startswith("No gain")
    assert any("had less time to open" in each for each in early.remarks)
    assert not early.is_final
    assert compared(ledger).remarks[0].startswith("Sending at own hours loses")
    assert compared(ledger).is_final


@pytest.mark.parametrize("last", [Accepted(200, 17), InDoubt("lost")])
def test_a_request_in_doubt_takes_as_long_as_an_accepted_one(ledger: Ledger, last: Outcome) -> None:
    """The post-backs of a request in doubt prove later that the service sent it."""
    make_launch(ledger, segments=SEGMENTS[1:3], campaign=make_campaign(send={"kind": "now", "own_hours": {}}))
    (control,) = send(ledger, KEY, Accepted(200, 17))
    (own,) = send(ledger, KEY, last, at=EVENING)
    opened(ledger, control, CONTROL[:200], NOW + timedelta(hours=1))
    opened(ledger, own, OWN[:20], EVENING - timedelta(minutes=15))
    assert compared(ledger, EVENING + timedelta(minutes=10)).remarks[0].startswith("No gain")


def test_opens_that_a_machine_probably_made_count_for_one_side_only(ledger: Ledger, keys: list[str]) -> None:
    _, control, own, _ = keys_of(ledger)
    opened(ledger, control, CONTROL[:200])
    opened(ledger, own, OWN[:400])
    found = of_own_hours(
        ledger, replace(reconcile_launch(ledger, KEY, now=LATER), suspects_by_arm={"own_hour": 50})
    )
    assert found
    sides = [Counted("own hour", 400, 1_000, doubtful=50), Counted("at once", 200, 1_000)]
    assert (
        found.differences[0].interval
        == compared_shares("engaged", sides, control="at once").differences[0].interval
    )


def test_nothing_is_compared_before_every_request_is_made(ledger: Ledger) -> None:
    make_launch(ledger, segments=SEGMENTS, campaign=make_campaign(send={"kind": "now", "own_hours": {}}))
    send(ledger, KEY, Accepted(200, 17), Accepted(200, 17), Accepted(200, 17))
    found = compared(ledger)
    assert found.mismatch == "The sides cannot be compared yet: requests are still to be made."
    assert found.differences == ()


def test_sides_of_other_sizes_than_planned_are_not_compared(ledger: Ledger) -> None:
    uneven = [SEGMENTS[1], Segment(integers(range(5_001, 5_501)), hour=18, arm=Arm.OWN_HOUR)]
    make_launch(ledger, segments=uneven, campaign=make_campaign(send={"kind": "now", "own_hours": {}}))
    send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
    assert compared(ledger).mismatch.startswith("Do not compare these sides: their sizes")


def test_the_arms_are_figures_of_the_report(ledger: Ledger, keys: list[str]) -> None:
    opened(ledger, keys_of(ledger)[2], OWN[:10])
    figures = reconcile_launch(ledger, KEY, now=LATER)
    assert {arm: sum(counts.values()) for arm, counts in figures.by_arm.items()} == {
        "control": 1_000,
        "explore": 200,
        "own_hour": 1_000,
    }
    assert figures.by_arm["own_hour"]["engaged"] == 10
    assert LaunchStats.from_json(figures.to_json()).by_arm == figures.by_arm


def test_a_launch_without_own_hours_has_no_arms(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 10))
    assert of_own_hours(ledger, reconcile_launch(ledger, KEY, now=LATER)) is None


def test_launches_at_own_hours_share_the_level_of_their_campaign(ledger: Ledger, keys: list[str]) -> None:
    assert ledger.launches.get(KEY).comparison_number == 1
    campaign = make_campaign(send={"kind": "now", "own_hours": {}})
    later = make_launch(
        ledger, segments=SEGMENTS, campaign=campaign, resend=1, created_at=NOW + timedelta(days=1)
    )
    assert later.comparison_number == 2
    keys = send(ledger, later.launch_key, *[Accepted(200, 17)] * 4)
    opened(ledger, keys[1], CONTROL[:200])
    opened(ledger, keys[2], OWN[:400])
    found = of_own_hours(ledger, reconcile_launch(ledger, later.launch_key, now=LATER))
    assert found
    sides = [Counted("own hour", 400, 1_000), Counted("at once", 200, 1_000)]
    of_second = compared_shares("engaged", sides, control="at once", launch=2)
    assert found.differences[0].interval == of_second.differences[0].interval
