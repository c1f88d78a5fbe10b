"""Reports of a launch with a test share: it alone is compared, and the rest shows the winner."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.comparison import leader_of
from sendoff.comparison.balance import mismatch_of_assigned
from sendoff.comparison.engagement import of_engagement
from sendoff.figures import LaunchStats
from sendoff.ledger import Decision, Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import VerdictRows, as_csv, as_text, describe_launch
from sendoff.report.outcomes import sent_at, sides_of
from sendoff.states import Accepted, DecisionKind

from ...factories import KEY, NOW, make_campaign, make_launch, post_back, send, store

PLAIN, WARM, REST = range(1, 51), range(51, 101), range(101, 301)
SEGMENTS = [
    Segment(integers(PLAIN), Variation(variant="plain")),
    Segment(integers(WARM), Variation(variant="warm")),
    Segment(integers(REST), wave=2),
]


@pytest.fixture
def dispatches(ledger: Ledger) -> list[str]:
    """The dispatch keys of a launch whose test share is sent: 30 of warm opened, and 5 of plain."""
    make_launch(ledger, segments=SEGMENTS, campaign=campaign())
    send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
    keys = [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]
    opened = [(keys[0], who) for who in range(1, 6)] + [(keys[1], who) for who in range(51, 81)]
    store(ledger, *(post_back(key, "open", who) for key, who in opened))
    return keys


def campaign(**fields: Any) -> Any:
    return make_campaign(
        variants={"plain": {"percent": 50}, "warm": {"percent": 50}},
        decide={"share": 20, "after": {"length": 2, "unit": "hours"}, "otherwise": "plain"},
        **fields,
    )


def decide(ledger: Ledger) -> None:
    decision = Decision(KEY, DecisionKind.WINNER, "sendoff", "warm is ahead", NOW)
    assert ledger.audit_log.decide(decision, wave=1, winner="warm")
    send(ledger, KEY, Accepted(200, 17))


def test_only_the_test_share_is_compared_before_and_after_the_decision(
    ledger: Ledger, dispatches: list[str]
) -> None:
    before = of_engagement(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert before
    assert [(side.name, side.people, side.count) for side in before.sides] == [
        ("plain", 50, 5),
        ("warm", 50, 30),
    ]
    decide(ledger)
    store(ledger, *(post_back(dispatches[2], "open", who) for who in REST))
    after = of_engagement(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert after
    assert (after.sides, after.differences) == (before.sides, before.differences)
    assert set(sides_of(ledger, ledger.launches.get(KEY))) == {"plain", "warm"}


def test_the_intervals_allow_for_no_opens_of_the_rest(ledger: Ledger) -> None:
    minutes = [timedelta(minutes=number) for number in range(8)]
    make_launch(ledger, segments=SEGMENTS, campaign=campaign())
    send(ledger, KEY, Accepted(200, 17))
    send(ledger, KEY, Accepted(200, 17), at=NOW + minutes[5])
    _, warm, rest = [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]

    def opened(key: str, people: range) -> LaunchStats:
        at = NOW + minutes[6]
        store(ledger, *(post_back(key, "open", who, at=at) for who in people), at=at)
        return reconcile_launch(ledger, KEY, now=NOW + minutes[7])

    before = opened(warm, range(51, 81))
    expected = of_engagement(ledger, before)
    assert expected
    assert "The intervals allow for the 30 opens of the same time before this report." in expected.remarks[-1]
    decide(ledger)
    after = opened(rest, REST)
    assert sum(opens for _, _, opens in after.timeline) == 230
    assert of_engagement(ledger, after) == expected
    opened(warm, range(81, 91))
    assert of_engagement(ledger, before) == expected  # an older report counts no newer opens


def test_the_rest_has_a_row_of_its_own_and_everything_adds_up(ledger: Ledger, dispatches: list[str]) -> None:
    waiting = reconcile_launch(ledger, KEY, now=NOW)
    assert (waiting.winner, waiting.rest["not_sent"]) == (None, 200)
    shown = " ".join(as_text(describe_launch(waiting)).split())
    assert "the rest: not decided yet" in shown
    assert "The rest waits until the winner is decided, and is not compared." in shown
    decide(ledger)
    store(ledger, *(post_back(dispatches[2], "open", who) for who in range(101, 141)))
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.winner, figures.rest["engaged"]) == ("warm", 40)
    everyone = [*figures.by_variant.values(), figures.rest]
    assert figures.verdicts == {name: sum(each[name] for each in everyone) for name in figures.verdicts}
    shown = " ".join(as_text(describe_launch(figures)).split())
    assert "The rest gets warm, and is not compared." in shown
    assert "variant,the rest: warm,engaged,40" in as_csv(figures)


def test_exported_rows_have_the_winner_and_the_wave(ledger: Ledger, dispatches: list[str]) -> None:
    decide(ledger)
    reconcile_launch(ledger, KEY, now=NOW)
    rows = [row for batch in VerdictRows.of(ledger, KEY).batches() for row in batch.to_pylist()]
    found = {(row["wave"], row["variant"]) for row in rows}
    assert found == {(1, "plain"), (1, "warm"), (2, "warm")}


def test_the_variant_that_is_clearly_ahead_of_all_others_leads(ledger: Ledger, dispatches: list[str]) -> None:
    leader = leader_of(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert (leader.variant, leader.engaged) == ("warm", {"plain": 5, "warm": 30})
    store(ledger, *(post_back(dispatches[0], "open", who) for who in range(6, 28)))
    close = leader_of(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert close.variant is None
    assert close.why == "no variant is clearly ahead (engaged: warm 60.00 % of 50, plain 54.00 % of 50)"


def test_no_variant_leads_if_no_one_is_in_the_test_share(ledger: Ledger) -> None:
    make_launch(ledger, segments=[SEGMENTS[2]], campaign=campaign())
    leader = leader_of(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert (leader.variant, leader.why) == (None, "no one in the test share got plain or warm")


def test_variants_are_not_compared_if_the_test_share_lost_people_of_one(ledger: Ledger) -> None:
    uneven = [Segment(integers(range(1, 101)), Variation(variant="plain")), SEGMENTS[2]]
    uneven.insert(1, Segment(integers(range(400, 420)), Variation(variant="warm")))
    make_launch(ledger, segments=uneven, campaign=campaign())
    send(ledger, KEY, Accepted(200, 17), Accepted(200, 17))
    leader = leader_of(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert leader.variant is None
    assert "the variants cannot be compared. Do not compare these sides: plain has 100 devices" in leader.why


def test_a_control_group_is_compared_with_the_test_share_by_its_planned_size() -> None:
    made = campaign(audience={"holdout": {"percent": 10}})
    # Of 10,000 people: 1,000 held out, and 20 % of the other 9,000 in the test share.
    people = {"plain": 900, "warm": 900, "control group": 1_000}
    assert mismatch_of_assigned(made, people, {}, "people") == ""
    assert "Do not compare" in mismatch_of_assigned(made.replace(decide=None), people, {}, "people")


def test_the_choice_of_a_person_does_not_move_the_time_when_the_test_share_got_its_message(
    ledger: Ledger, dispatches: list[str]
) -> None:
    later, detail = NOW + timedelta(hours=3), {"winner": "warm"}
    ledger.audit_log.decide(
        Decision(KEY, DecisionKind.HELD, "sendoff", "choose", later, {"wave": 1, **detail})
    )
    chosen = Decision(KEY, DecisionKind.RELEASED, "ann", "agreed", later, detail)
    assert ledger.audit_log.decide(chosen, winner="warm")
    assert sent_at(ledger, ledger.launches.get(KEY)) == NOW
