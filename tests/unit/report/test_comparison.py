"""Comparisons: what they compare, how they say it, and that unknown values say so."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, empty, integers, strings, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Variation
from sendoff.comparison.engagement import leader_of, of_engagement
from sendoff.comparison.result import Comparison, Interval, amount, conclusion, spoken
from sendoff.comparison.statistics import FEW_VALUES, FEWEST, Counted, Values, compared_means, compared_shares
from sendoff.errors import AudienceError, QueryError
from sendoff.figures import CONTROL_GROUP, LaunchStats
from sendoff.ledger import Decision, Ledger, SuppressionChange
from sendoff.ledger.storage.schema import launches
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import as_json, as_text, describe_comparison
from sendoff.report.outcomes import SENT_TO, measure_outcome, sent_at, store_outcome, stored_outcomes
from sendoff.states import Accepted, InDoubt, Outcome, Refused

from ...factories import KEY, NOW, make_launch, post_back, send, store

EMAIL = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
VARIANTS = {
    name: {"percent": 50, "channels": {"email": {**EMAIL, "subject": name}}} for name in ("blue", "red")
}
LISTED = "SELECT device_id FROM orders"
VALUED = "SELECT device_id, sum(amount) AS value FROM orders GROUP BY device_id"


def only(compared: Comparison) -> Interval:
    (difference,) = compared.differences
    assert difference.interval is not None
    return difference.interval


def test_people_without_a_value_count_with_zero() -> None:
    chance = np.random.default_rng(4)
    bought = chance.lognormal(3, 1, 50)
    everybody = np.append(bought, np.zeros(950))
    compared = compared_means("value", [("a", values(bought), 1_000), ("b", values(bought[:30]), 500)])
    assert compared.sides[0].estimate == pytest.approx(everybody.mean())
    assert compared.sides[0].count == 50
    half = np.append(bought[:30], np.zeros(470))
    errors = half.var(ddof=1) / 500 + everybody.var(ddof=1) / 1_000
    assert (only(compared).low + only(compared).high) / 2 == pytest.approx(half.mean() - everybody.mean())
    # Of 80 values, divided as 500 to 1,000 people; see docs/reference/comparisons.md.
    expected = math.sqrt(
        errors * (1 + 112.5 / 80) * (math.log1p(80 / 112.5) + 2 * math.log(20 * math.pi**2 / 6))
    )
    assert only(compared).high - only(compared).low == pytest.approx(2 * expected)


def values(numbers: Any) -> Values:
    return Values(len(numbers), float(numbers.mean()), float(((numbers - numbers.mean()) ** 2).sum()))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_values_in_parts_are_the_values_as_a_whole(one: list[float], other: list[float]) -> None:
    whole = values(np.array([*one, *other]))
    parts = values(np.array(one)).and_(values(np.array(other)))
    assert parts.count == whole.count
    assert parts.mean == pytest.approx(whole.mean, abs=1e-6)
    assert parts.squares == pytest.approx(whole.squares, rel=1e-6, abs=1e-3)


def test_a_mean_of_few_values_has_no_interval() -> None:
    few = compared_means(
        "x", [("a", Values(FEWEST - 1, 20.0, 900.0), 60), ("b", Values(FEWEST, 20.0, 900.0), 60)]
    )
    assert [side.interval is None for side in few.sides] == [True, False]
    assert few.sides[0].estimate is not None


@pytest.mark.parametrize(
    ("mean", "shown"),
    [(0.0, "0.000"), (1.0, "1.000"), (999.94, "999.9"), (999.95, "1,000"), (12_345.6, "12,346")],
)
def test_means_are_shown_with_as_many_digits_as_each_other(mean: float, shown: str) -> None:
    assert amount(mean, "mean") == shown
    assert spoken(-mean, "mean").lstrip("-") == shown
    assert spoken(mean, "mean") == f"+{shown}"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            [("a", 250, 2_000), ("b", 180, 2_000)],
            "a is ahead of b (12.50 % against 9.00 % opened). Chance alone",
        ),
        (
            [("a", 180, 2_000), ("b", 250, 2_000)],
            "b is ahead of a (12.50 % against 9.00 % opened). Chance alone",
        ),
        (
            [("a", 180, 2_000), ("b", 181, 2_000)],
            "No side is clearly ahead, because chance can explain the difference.",
        ),
        ([("a", 9, 10), ("b", 1, 10)], "There are too few results to tell which side is ahead."),
        ([("a", 9, 10)], ""),
        (
            [("a", 260, 2_000), ("b", 180, 2_000), ("c", 259, 2_000)],
            "a is ahead of b (13.00 % against 9.00 % opened); c is ahead of b (12.95 % against 9.00 % opened).",
        ),
        (
            [("a", 180, 2_000), ("b", 181, 2_000), ("c", 300, 2_000)],
            "c is ahead of b and a (15.00 % against 9.05 % and 9.00 % opened). Chance alone",
        ),
    ],
)
def test_a_conclusion_names_the_side_ahead_only_if_chance_seldom_explains_it(
    counts: list[tuple[str, int, int]], said: str
) -> None:
    compared = compared_shares("opened", counts)
    found = conclusion(compared)
    assert found.startswith(said)
    assert bool(found) is bool(said)
    if said:
        assert conclusion(replace(compared, is_final=False)) == f"So far, {found[0].lower()}{found[1:]}"
        assert found in as_text(describe_comparison(compared), 400)


def test_each_variant_is_compared_with_each_other_whatever_their_names_are() -> None:
    counts = [("a", 1_000, 10_000), ("b", 850, 10_000), ("c", 1_150, 10_000)]
    compared = compared_shares("opened", counts)
    assert [(each.side, each.against) for each in compared.differences] == [
        ("b", "a"),
        ("c", "a"),
        ("c", "b"),
    ]
    assert compared.level == pytest.approx(1 - 0.05 * 6 / math.pi**2 / 3)
    assert conclusion(compared).startswith(
        "c is ahead of b (11.50 % against 8.50 % opened); a is ahead of b ("
    )
    best = compared_shares("opened", [*counts[:2], ("c", 1_300, 10_000)])
    said = (
        "c is ahead of a and b (13.00 % against 10.00 % and 8.50 % opened); a is ahead of b (10.00 % against"
    )
    assert conclusion(best).startswith(said)


def test_several_differences_say_how_they_are_corrected() -> None:
    compared = compared_shares(
        "x", [("a", 10, 100), ("b", 12, 100), ("control group", 5, 100)], control="control group"
    )
    assert [(each.side, each.against) for each in compared.differences] == [
        ("a", "control group"),
        ("b", "control group"),
        ("b", "a"),
    ]
    assert compared.level == pytest.approx(1 - 0.05 * 6 / math.pi**2 / 3)
    assert compared.remarks[1].startswith(
        "This is compared launch 1 of its campaign with 3 differences, so the interval of each difference has a level "
        "of 98.99 %."
    )


@pytest.mark.parametrize(
    ("launch", "level"), [(1, "96.96 %"), (2, "99.24 %"), (26, "99.9955 %"), (100, "99.99970 %")]
)
def test_a_later_launch_of_a_campaign_has_a_higher_level(launch: int, level: str) -> None:
    for compared in (
        compared_shares("x", [("a", 10, 100), ("b", 12, 100)], launch=launch),
        compared_means("x", [(name, Values(FEW_VALUES, 5.0, 400.0), 400) for name in "ab"], launch=launch),
    ):
        assert compared.level == pytest.approx(1 - 0.05 * 6 / (math.pi * launch) ** 2)
        assert (
            f"launch {launch} of its campaign, so the interval of the difference has a level of {level}"
            in (compared.remarks[1])
        )


def test_a_launch_that_compares_anything_keeps_the_number_it_was_frozen_with(ledger: Ledger) -> None:
    """Each launch here was begun before the one that was frozen before it, such as with a slow query."""
    made = []
    for number, (name, held_out, variant) in enumerate(
        [
            ("spring", [], "a"),
            ("spring", [], None),
            ("other", [], "a"),
            ("spring", [9], None),
            ("spring", [], "a"),
        ]
    ):
        people = integers(range(1, 9))
        whole = union("integer", [people, integers(held_out)])
        made.append(
            make_launch(
                ledger,
                name=name,
                resend=number,
                created_at=NOW - timedelta(days=number),
                segments=[Segment(people, Variation(variant=variant))],
                audience=Audience("device_id", whole, len(whole), {}, {}),
                suppressed={"holdout": integers(held_out)} if held_out else {},
            )
        )
    assert [each.comparison_number for each in made] == [1, None, 1, 2, 3]
    assert [ledger.launches.get(each.launch_key) for each in made] == made


def test_every_comparison_says_that_it_may_be_read_at_any_time() -> None:
    said = "The intervals hold with 95 % at all looks together, so you may read this report as often as you like."
    two = [("a", 10, 100), ("b", 12, 100)]
    many = Values(FEW_VALUES, 5.0, 400.0)
    for compared in (
        compared_shares("x", two[:1]),
        compared_shares("x", two),
        compared_means("x", [("a", many, 400), ("b", many, 400)]),
    ):
        assert compared.remarks[0] == said
        assert len(compared.remarks) == 1 + len(compared.differences)  # none about differences without one


def test_means_of_few_values_say_so() -> None:
    few, many = Values(30, 20.0, 900.0), Values(FEW_VALUES, 20.0, 9_000.0)
    said = compared_means("x", [("a", many, 10_000), ("b", few, 1_000)]).remarks[0]
    assert said.startswith("Few people have a value: 30 of b.")
    assert "Few" not in compared_means("x", [("a", many, 10_000), ("b", many, 3_000)]).remarks[0]


def test_means_say_how_many_values_it_takes() -> None:
    values = Values(400, 20.0, 160_000.0)
    compared = compared_means("x", [("a", values, 4_000), ("b", values, 4_000)])
    assert compared.outlook.startswith(
        "Between b and a, a difference such as 2.000 against 2.200 shows in four of five launches once about "
    )
    assert "people have a value. So far 800 have" in compared.outlook
    balanced = Values(400, 1e-30, 160_000.0)  # as if refunds made up for all orders
    assert compared_means("x", [("a", balanced, 4_000), ("b", balanced, 4_000)]).outlook == ""


@pytest.mark.parametrize("people", [0, 1, FEWEST - 1])
def test_few_people_are_too_few_to_tell(people: int) -> None:
    compared = compared_shares("engaged", [("a", 50, 100), ("b", min(people, 1), people)])
    (difference,) = compared.differences
    assert difference.interval is difference.estimate is None
    assert "too few to tell (b has" in difference.sentence
    assert f"needs {FEWEST} or more on each side" in difference.sentence


def test_few_answers_are_too_few_to_tell() -> None:
    (difference,) = compared_shares("opened", [("a", 9, 5_000), ("b", 10, 5_000)]).differences
    assert difference.interval is None
    assert difference.sentence == (
        f"b against a: too few to tell (19 opened on both sides, and a difference needs {FEWEST} or more)."
    )
    (enough,) = compared_shares("opened", [("a", 10, 5_000), ("b", FEWEST - 10, 5_000)]).differences
    assert enough.interval is not None


def test_nobody_has_no_share_and_no_mean() -> None:
    for compared in (compared_shares("engaged", [("a", 0, 0)]), compared_means("x", [("a", Values(), 0)])):
        (side,) = compared.sides
        assert (side.people, side.count, side.estimate, side.interval) == (0, None, None, None)
        assert side.note == "no people"
    assert "nan" not in as_text(describe_comparison(compared_shares("engaged", [("a", 0, 0), ("b", 1, 1)])))


@pytest.mark.parametrize(
    ("held", "people", "why"),
    [
        (Values(), 100, "0 of b have a value"),
        (Values(3, 5.0, 1.0), 100, "3 of b have a value"),
        (Values(100, 1.0, 0.0), 100, "everyone has the same value"),
        (Values(1, 1.0, 0.0), 1, "b has 1 person"),
        (Values(), 0, "b has 0 people"),
    ],
)
def test_values_that_say_nothing_are_too_few_to_tell(held: Values, people: int, why: str) -> None:
    same = Values(100, 1.0, 0.0)
    (difference,) = compared_means("value", [("a", same, 100), ("b", held, people)]).differences
    assert difference.interval is None
    assert why in difference.sentence


@pytest.mark.parametrize(
    ("share", "shown", "difference"),
    [
        (0.0, "0.00 %", "+0.00 points"),
        (0.0123, "1.23 %", "+1.23 points"),
        (0.001, "0.10 %", "+0.10 points"),
        (0.00099999, "0.10 %", "+0.10 points"),
        (0.00031, "0.031 %", "+0.031 points"),
        (0.0000002, "0.000020 %", "+0.000020 points"),
        (1e-12, "0.000000 %", "+0.000000 points"),
    ],
)
def test_small_shares_and_differences_have_two_digits(share: float, shown: str, difference: str) -> None:
    assert amount(share, "share") == shown
    assert spoken(share, "share") == difference
    assert spoken(-share, "share").lstrip("-+") == difference.lstrip("+")
    assert amount(1 - 0.00031, "share") == "99.969 %"
    assert amount(1.0, "share") == "100.00 %"


def test_the_ends_of_a_small_difference_can_be_told_apart() -> None:
    compared = compared_shares("ordered", [("a", 2_000, 10_000_000), ("b", 3_000, 10_000_000)])
    assert compared.differences[0].sentence == (
        "b against a: more, by 0.010 points (between 0.0076 points and 0.012 points)."
    )


def test_no_answer_of_many_people_is_not_called_too_few_people() -> None:
    compared = compared_shares("engaged", [("a", 0, 1_000), ("b", 0, 1_000)])
    assert conclusion(compared) == "There are too few results to tell which side is ahead."


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            [("a", 100, 1_000), ("b", 200, 1_000)],
            "b against a: more, by 10.00 points (between 4.76 points and",
        ),
        (
            [("a", 200, 1_000), ("b", 100, 1_000)],
            "b against a: less, by 10.00 points (between 4.76 points and",
        ),
        (
            [("a", 100, 1_000), ("b", 101, 1_000)],
            "b against a: no clear difference. +0.10 points was measured",
        ),
    ],
)
def test_a_difference_is_said_in_a_sentence(counts: list[tuple[str, int, int]], words: str) -> None:
    assert compared_shares("x", counts).differences[0].sentence.startswith(words)


def launch(
    ledger: Ledger,
    *,
    variants: bool = True,
    held_out: Identifiers | None = None,
    outcomes: tuple[Outcome, ...] = (Accepted(200, 17), Accepted(200, 17)),
    kinds: tuple[str, ...] = ("delivery", "open"),
    named: str = "device_id",
    holdout: float | None = None,
) -> list[str]:
    """Freeze a launch to 1 to 100 in blue and 101 to 200 in red, with 201 to 300 held out. Return its dispatch keys."""
    campaign = Campaign.model_validate(
        {
            "title": "Spring",
            "channels": {"email": EMAIL},
            "variants": VARIANTS if variants else {},
            "post_backs": {"kinds": kinds},
            "audience": {"holdout": {"percent": holdout}} if holdout else {},
        }
    )
    held_out = integers(range(201, 301)) if held_out is None else held_out
    blue, red = integers(range(1, 101)), integers(range(101, 201))
    if named == "external_id":
        blue, red, held_out = (strings(map(str, each)) for each in (blue, red, held_out))
    people = union(blue.kind, [blue, red, held_out])
    make_launch(
        ledger,
        segments=[
            Segment(who, Variation(variant=name) if variants else Variation())
            for name, who in (("blue", blue), ("red", red))
        ],
        audience=Audience(named, people, len(people), {}, {}),
        campaign=campaign,
        suppressed={"holdout": held_out},
    )
    send(ledger, KEY, *outcomes)
    return [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]


def opened(ledger: Ledger, key: str, people: range) -> None:
    store(ledger, *(post_back(key, "open", who) for who in people))


def engagement(ledger: Ledger) -> Comparison:
    compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert compared is not None
    return compared


def test_variants_are_compared_by_who_engaged(ledger: Ledger) -> None:
    blue, red = launch(ledger)
    opened(ledger, blue, range(1, 41))
    opened(ledger, red, range(101, 121))
    compared = engagement(ledger)
    assert [(side.name, side.people, side.count) for side in compared.sides] == [
        ("blue", 100, 40),
        ("red", 100, 20),
        (CONTROL_GROUP, 100, None),
    ]
    assert only(compared) == only(compared_shares("engaged", [("blue", 40, 100), ("red", 20, 100)]))
    assert "were certainly sent to" in compared.remarks[0]


def test_engagement_of_the_holdout_is_never_a_zero(ledger: Ledger) -> None:
    launch(ledger)
    held_out = engagement(ledger).sides[-1]
    assert (held_out.count, held_out.estimate, held_out.interval) == (None, None, None)
    text = " ".join(as_text(describe_comparison(engagement(ledger))).split())
    assert "control group 100 ? ? ?" in text
    assert "control group: not measurable, because they got no message." in text


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"kinds": ("delivery",)}, "the launch did not request post-backs of opens"),
        ({"named": "external_id"}, "post-backs do not carry external_id and so do not show who opened"),
    ],
)
def test_opens_that_nobody_can_know_of_are_not_counted_as_none(
    ledger: Ledger, how: dict[str, Any], why: str
) -> None:
    launch(ledger, **how)
    compared = engagement(ledger)
    assert [side.note for side in compared.sides[:2]] == [f"not measurable, because {why}"] * 2
    assert {side.estimate for side in compared.sides} == {None}
    assert compared.differences == ()
    assert "open" in reconcile_launch(ledger, KEY, now=NOW).unmeasured


def test_opens_that_a_machine_probably_made_widen_the_intervals(ledger: Ledger) -> None:
    blue, red = launch(ledger)
    opened(ledger, blue, range(1, 61))
    opened(ledger, red, range(101, 121))
    figures = replace(
        reconcile_launch(ledger, KEY, now=NOW), suspects=15, suspects_by_variant={"blue": 10, "red": 5}
    )
    compared = of_engagement(ledger, figures)
    assert compared is not None
    sides = [Counted("blue", 60, 100, doubtful=10), Counted("red", 20, 100, doubtful=5)]
    assert only(compared) == only(compared_shares("engaged", sides))
    one_side = of_engagement(ledger, replace(figures, suspects=10, suspects_by_variant={"blue": 10}))
    assert one_side
    assert only(one_side) == only(compared_shares("engaged", [sides[0], Counted("red", 20, 100)]))
    certain = compared_shares("engaged", [("blue", 60, 100), ("red", 20, 100)])
    assert only(compared).low < only(certain).low < only(certain).high < only(compared).high
    assert compared.sides[0].estimate == 0.6
    assert any(
        each.startswith("A machine probably made all opens of 15 devices.") for each in compared.remarks
    )


def test_a_variant_that_lost_people_is_not_compared_and_the_causes_are_counted(ledger: Ledger) -> None:
    blue, _ = launch(ledger, outcomes=(Accepted(200, 17), InDoubt("no answer")))
    opened(ledger, blue, range(1, 61))
    compared = engagement(ledger)
    assert [side.people for side in compared.sides[:2]] == [100, 0]
    assert any(
        "Of red, 100 are in doubt: they got the message, or did not." in each for each in compared.remarks
    )
    assert compared.differences == ()
    assert compared.mismatch == (
        "Do not compare these sides: 100 of 100 devices of red were not certainly sent to. Chance hardly explains that "
        "the losses differ. Possible causes in the whole launch: 100 in doubt."
    )
    assert conclusion(compared) == compared.mismatch
    section = as_text(describe_comparison(compared), 400)
    assert compared.mismatch in section
    assert "is ahead" not in section
    assert Comparison.from_json(json.loads(json.dumps(compared.to_json()))) == compared


def test_only_the_causes_of_the_launch_are_named(ledger: Ledger) -> None:
    launch(ledger, outcomes=(Accepted(200, 17), Refused(400, "no")))
    assert engagement(ledger).mismatch.endswith(
        "Possible causes in the whole launch: 100 refused by the service."
    )


def test_variants_that_are_still_sent_are_not_compared_yet(ledger: Ledger) -> None:
    launch(ledger, outcomes=(Accepted(200, 17),))
    assert conclusion(engagement(ledger)) == (
        "The variants cannot be compared yet: requests are still to be made, to 100 of 100 devices of red."
    )


def test_a_few_people_in_doubt_widen_the_interval(ledger: Ledger) -> None:
    figures = LaunchStats.from_json(whole_figures(ledger))
    verdicts = {
        "blue": {"engaged": 80, "delivered": 20},
        "red": {"engaged": 30, "delivered": 60, "in_doubt": 10},
    }
    known = replace(figures, by_variant=verdicts)
    compared = of_engagement(ledger, known)
    assert compared
    assert compared.mismatch == ""
    expected = compared_shares("engaged", [Counted("blue", 80, 100), Counted("red", 30, 90, 10)])
    assert only(compared) == only(expected)
    unread = of_engagement(ledger, replace(known, anomalies={"unreadable": 8, "forged": 2}))
    assert unread
    assert only(unread).high > only(compared).high
    assert any(
        "10 post-backs were unreadable, or named another campaign (sent twice, or forged). The intervals allow"
        in each
        for each in unread.remarks
    )


def test_a_variant_that_went_out_before_another_is_not_ahead_because_of_that(ledger: Ledger) -> None:
    (blue, red), later = launch(ledger, outcomes=()), NOW + timedelta(minutes=5)
    send(ledger, KEY, Accepted(200, 17))
    send(ledger, KEY, Accepted(200, 17), at=later)
    first, last = NOW + timedelta(minutes=2), NOW + timedelta(minutes=7)
    store(ledger, *(post_back(blue, "open", who, at=first) for who in range(1, 41)), at=first)
    store(ledger, *(post_back(red, "open", who, at=last) for who in range(101, 121)), at=last)
    for after, early in ((timedelta(minutes=10), 20), (timedelta(hours=1), 0)):
        compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=NOW + after))
        assert compared
        sides = [Counted("blue", 40, 100, hidden=early), Counted("red", 20, 100, hidden=early)]
        assert only(compared) == only(compared_shares("engaged", sides))
        said = "The requests took 5 min, so one variant may have gone out before another. The intervals allow for the "
        assert any(each.startswith(f"{said}20 opens") for each in compared.remarks) is bool(early)


@pytest.mark.parametrize(
    ("second", "early"),
    [
        (5, 20),  # the report came as long after the minute began as the requests took
        (20, 5),
        (60, 2),  # 20 * 5 / 60, rounded up
        (64, 1),
        (65, 0),
    ],
)
def test_opens_of_a_minute_count_by_the_part_of_it_that_is_within_the_time(
    ledger: Ledger, second: int, early: int
) -> None:
    (blue, red), took = launch(ledger, outcomes=()), timedelta(seconds=5)
    send(ledger, KEY, Accepted(200, 17))
    send(ledger, KEY, Accepted(200, 17), at=NOW + took)
    opened(ledger, blue, range(1, 11))
    opened(ledger, red, range(101, 111))
    compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=NOW + timedelta(seconds=second)))
    assert compared
    sides = [Counted("blue", 10, 100, hidden=early), Counted("red", 10, 100, hidden=early)]
    assert only(compared) == only(compared_shares("engaged", sides))


def test_sides_of_other_sizes_than_planned_are_not_compared(ledger: Ledger) -> None:
    figures = LaunchStats.from_json(whole_figures(ledger))
    verdicts = {"blue": {"engaged": 80, "delivered": 720}, "red": {"engaged": 30, "delivered": 570}}
    compared = of_engagement(ledger, replace(figures, by_variant=verdicts, dropped={"null": 3, "cap": 200}))
    assert compared
    assert conclusion(compared) == (
        "Do not compare these sides: blue has 800 devices instead of about 700 and red has 600 devices instead of "
        "about 700. Chance hardly explains that. Possible causes in the whole launch: 200 left out (cap)."
    )


def whole_figures(ledger: Ledger) -> dict[str, Any]:
    launch(ledger)
    return reconcile_launch(ledger, KEY, now=NOW).to_json()


def test_a_launch_without_variants_has_no_sides_that_engaged(ledger: Ledger) -> None:
    launch(ledger, variants=False)
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert of_engagement(ledger, figures) is None
    assert "comparisons" not in as_json(figures)


def test_a_report_made_soon_after_the_launch_says_that_later_opens_are_not_in_it(ledger: Ledger) -> None:
    launch(ledger)
    words = "This report was made 2 h 5 min after the launch went out. Later opens are not in it."
    sent = ledger.launches.get(KEY).sends_at
    assert sent
    for after, is_final in ((timedelta(hours=2, minutes=5), False), (timedelta(days=1), True)):
        compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=sent + after))
        assert compared
        assert compared.is_final is is_final
        assert any(words in each for each in compared.remarks) is not is_final
    for after, when in ((1, "1 s after"), (0, "before")):
        compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=sent + timedelta(seconds=after)))
        assert compared
        assert any(f"made {when} the launch went out" in each for each in compared.remarks)
    early = reconcile_launch(ledger, KEY, now=sent + timedelta(hours=2))
    ledger.launches.settle(KEY, NOW)
    settled = of_engagement(ledger, early)
    assert settled
    assert settled.is_final
    assert not any("Later opens" in each for each in settled.remarks)


def test_a_launch_that_the_service_still_sends_is_not_final(ledger: Ledger) -> None:
    launch(ledger)
    with ledger._database.write() as db:
        db.execute(sa.update(launches).values(sends_at=None))
    compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=NOW + timedelta(days=9)))
    assert compared
    assert "The service still sends this launch, so opens still arrive." in compared.remarks[-1]
    assert not compared.is_final


def test_no_variant_is_ahead_if_no_one_can_tell_who_opened(ledger: Ledger) -> None:
    launch(ledger, kinds=("delivery",))
    leader = leader_of(ledger, reconcile_launch(ledger, KEY, now=NOW))
    assert leader.variant is None
    assert leader.why.startswith("no one can tell which variant is ahead, because ")


def test_a_launch_that_was_approved_late_or_takes_days_is_not_final_a_day_after_it_was_made(
    ledger: Ledger,
) -> None:
    launch(ledger, outcomes=())
    approved = NOW + timedelta(days=2)
    for number, said in enumerate(
        (
            "Requests are still to be made, so opens still arrive.",
            "This report was made 5 min after the launch went out. Later opens are not in it.",
        )
    ):
        sent = approved + timedelta(days=number)
        send(ledger, KEY, Accepted(200, 17), at=sent)
        compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=sent + timedelta(minutes=5)))
        assert compared
        assert not compared.is_final
        assert any(each.startswith(said) for each in compared.remarks)
    compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=sent + timedelta(days=1)))
    assert compared
    assert compared.is_final


def test_what_is_learnt_of_a_request_later_does_not_make_its_opens_early(ledger: Ledger) -> None:
    launch(ledger, outcomes=(Accepted(200, 17), InDoubt("no answer")))
    doubtful = ledger.dispatch_queries.of_launch(KEY)[1].dispatch_key
    later = NOW + timedelta(days=3)
    assert ledger.doubts.accept(doubtful, 18, "the service lists it", later)
    compared = of_engagement(ledger, reconcile_launch(ledger, KEY, now=later))
    assert compared
    assert compared.is_final


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A warehouse where 30 of blue, 25 of red and 20 of the holdout ordered, 5 of them twice, and also a stranger."""
    bought = [*range(1, 31), *range(101, 126), *range(201, 221), 999]
    orders = [(who, 10.0 + who % 7) for who in bought] + [(who, 1.0) for who in range(1, 6)]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        db.execute("CREATE TABLE orders (device_id INTEGER, amount REAL)")
        db.executemany("INSERT INTO orders VALUES (?, ?)", orders)
    return f"sqlite:///{tmp_path / 'shop.db'}"


def test_variants_and_holdout_are_compared_by_who_is_listed(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    compared = measure_outcome(ledger, KEY, shop, LISTED)
    assert [(side.name, side.people, side.count) for side in compared.sides] == [
        ("blue", 100, 30),
        ("red", 100, 25),
        (CONTROL_GROUP, 100, 20),
    ]
    assert [(each.side, each.against) for each in compared.differences] == [
        ("blue", CONTROL_GROUP),
        ("red", CONTROL_GROUP),
        ("red", "blue"),
    ]
    assert compared.remarks[0] == (
        "outcome.sql returned 81 rows: 75 devices of this launch and 1 others, which are ignored."
    )


def test_variants_and_holdout_are_compared_by_their_values(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    compared = measure_outcome(ledger, KEY, shop, VALUED)
    blue = np.array([10.0 + who % 7 + (who <= 5) for who in range(1, 31)] + [0.0] * 70)
    held_out = np.array([10.0 + who % 7 for who in range(201, 221)] + [0.0] * 80)
    assert compared.measure == "mean"
    assert compared.sides[0].estimate == pytest.approx(blue.mean())
    assert compared.sides[0].count == 30
    found = compared.differences[0].interval
    assert found is not None
    assert (found.low + found.high) / 2 == pytest.approx(blue.mean() - held_out.mean())


@pytest.mark.parametrize("sql", [LISTED, VALUED])
def test_outcomes_are_never_final(ledger: Ledger, shop: str, sql: str) -> None:
    launch(ledger)
    compared = measure_outcome(ledger, KEY, shop, sql)
    assert not compared.is_final
    assert conclusion(compared).startswith("So far, ")


def test_values_in_sqlite_may_be_whole_in_some_rows_and_have_a_fraction_in_others(
    ledger: Ledger, shop: str
) -> None:
    launch(ledger)
    mixed = "SELECT device_id, CASE WHEN device_id % 2 THEN 20 ELSE 0.5 END AS value FROM orders GROUP BY 1"
    blue, *_ = measure_outcome(ledger, KEY, shop, mixed).sides
    assert (blue.count, blue.estimate) == (30, (15 * 20 + 15 * 0.5) / 100)


def test_people_listed_with_zero_are_like_people_who_are_not_listed(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    everybody = (
        "WITH RECURSIVE who(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM who WHERE id < 300) "
        "SELECT id AS device_id, coalesce(sum(amount), 0.0) AS value FROM who LEFT JOIN orders ON device_id = id "
    )
    with_zeros = measure_outcome(ledger, KEY, shop, everybody + "GROUP BY id")
    assert with_zeros.sides == measure_outcome(ledger, KEY, shop, VALUED).sides
    assert with_zeros.differences == measure_outcome(ledger, KEY, shop, VALUED).differences
    nothing = measure_outcome(ledger, KEY, shop, everybody + "AND amount < 0 GROUP BY id")
    assert [(side.count, side.estimate) for side in nothing.sides] == [(0, 0.0)] * 3


def test_a_comparison_is_stored_in_place_of_an_earlier_one_by_another_column(
    ledger: Ledger, shop: str
) -> None:
    launch(ledger)
    for sql, what in ((LISTED, "converted"), (VALUED, "value of converted"), (LISTED, "converted")):
        compared = measure_outcome(ledger, KEY, shop, sql)
        assert compared.what == what
        store_outcome(ledger, KEY, compared, NOW)
        assert stored_outcomes(ledger, KEY) == [(NOW, compared)]


def test_people_named_by_texts_are_compared_too(ledger: Ledger, shop: str) -> None:
    launch(ledger, named="external_id")
    sql = VALUED.replace("device_id,", "CAST(device_id AS TEXT) AS external_id,")
    assert [side.count for side in measure_outcome(ledger, KEY, shop, sql).sides] == [30, 25, 20]


def test_white_space_around_identifiers_of_outcomes_is_removed(ledger: Ledger, shop: str) -> None:
    launch(ledger, named="external_id")
    bare = VALUED.replace("device_id,", "CAST(device_id AS TEXT) AS external_id,")
    padded = bare.replace(" AS external_id", " || '  ' AS external_id")
    found = [measure_outcome(ledger, KEY, shop, sql, sql) for sql in (bare, padded)]
    assert [side.count for side in found[0].sides] == [30, 25, 20]
    assert found[0] == found[1]
    with pytest.raises(QueryError, match="several rows for one person"):
        measure_outcome(ledger, KEY, shop, f"{bare} UNION ALL {padded}")


def test_without_variants_those_sent_to_are_held_against_the_holdout(ledger: Ledger, shop: str) -> None:
    launch(ledger, variants=False)
    compared = measure_outcome(ledger, KEY, shop, LISTED)
    assert [(side.name, side.people, side.count) for side in compared.sides] == [
        (SENT_TO, 200, 55),
        (CONTROL_GROUP, 100, 20),
    ]


def test_people_count_where_chance_put_them_sent_to_or_not(ledger: Ledger, shop: str) -> None:
    launch(ledger, outcomes=(Accepted(200, 17),))
    reconcile_launch(ledger, KEY, now=NOW)
    compared = measure_outcome(ledger, KEY, shop, LISTED)
    assert [side.people for side in compared.sides] == [100, 100, 100]
    assert any("100 of red were not sent to" in each for each in compared.remarks)


def test_whoever_opted_out_after_the_freeze_stays_on_their_side(ledger: Ledger, shop: str) -> None:
    change = SuppressionChange("everything", "device_id", "csv", "ann")
    ledger.suppressions.add(change, [1, 2, 101, 201], NOW)
    launch(ledger)
    reconcile_launch(ledger, KEY, now=NOW)
    compared = measure_outcome(ledger, KEY, shop, LISTED)
    assert [side.people for side in compared.sides] == [100, 100, 100]
    assert any("2 of blue were not sent to" in each for each in compared.remarks)


def test_without_a_holdout_it_is_said_what_is_not_told(ledger: Ledger, shop: str) -> None:
    launch(ledger, held_out=empty("integer"))
    compared = measure_outcome(ledger, KEY, shop, LISTED)
    assert [(each.side, each.against) for each in compared.differences] == [("red", "blue")]
    assert any("There is no control group" in each for each in compared.remarks)


def test_one_side_alone_is_compared_with_nothing(ledger: Ledger, shop: str) -> None:
    launch(ledger, variants=False, held_out=empty("integer"))
    compared = measure_outcome(ledger, KEY, shop, "this is never asked")
    assert compared.sides == ()
    assert "only one side" in compared.remarks[0]


def test_the_query_knows_when_the_launch_was_sent(ledger: Ledger, shop: str) -> None:
    launch(ledger, outcomes=())
    sql = "SELECT :sent_at AS device_id, :period_start AS value, :period_end AS x, :partition AS y"
    with pytest.raises(QueryError, match="returns the columns device_id, value, x, y"):
        measure_outcome(ledger, KEY, shop, sql)
    later = NOW + timedelta(days=1)
    ledger.audit_log.record(Decision(KEY, "approved", "ann", None, later))

    def is_sent_at(moment: datetime) -> bool:
        found = f"SELECT device_id FROM orders WHERE :sent_at = '{moment.replace(tzinfo=None)}'"
        return measure_outcome(ledger, KEY, shop, found).sides[0].count == 30

    assert is_sent_at(later)
    later += timedelta(days=1)
    for kind in ("held", "released"):  # such as after refusals, so no one has the message yet
        ledger.audit_log.record(Decision(KEY, kind, "ann", None, later))
    assert is_sent_at(later)
    send(ledger, KEY, Accepted(200, 17), at=later + timedelta(hours=1))
    for kind in ("held", "released"):
        ledger.audit_log.record(Decision(KEY, kind, "ann", None, later + timedelta(days=1)))
    assert is_sent_at(later)


@pytest.mark.parametrize(
    ("time", "zone", "first", "hours"),
    [
        ("18:00", "Europe/Berlin", datetime(2026, 3, 2, 17, tzinfo=UTC), 0),
        ("18:00", "query", datetime(2026, 3, 2, 17, tzinfo=UTC), 9),
        ("18:00", "user", NOW, 21),  # before the launch is made, it is 18:00 somewhere
        ("23:30", "user", datetime(2026, 3, 2, 9, 30, tzinfo=UTC), 26),
    ],
)
def test_the_query_begins_when_the_first_time_zone_gets_the_message(
    ledger: Ledger, time: str, zone: str, first: datetime, hours: int
) -> None:
    send = {"kind": "once", "time": time, "time_zone": zone, "date": "2026-03-02"}
    default = {"default_time_zone": "Europe/Berlin"} if zone == "query" else {}
    zones = ["America/Los_Angeles", "Europe/Berlin"] if zone == "query" else [None]
    made = make_launch(
        ledger,
        segments=[
            Segment(integers([number]), Variation(time_zone=each)) for number, each in enumerate(zones, 1)
        ],
        campaign=Campaign.model_validate(
            {"title": "Spring", "channels": {"email": EMAIL}, "send": {**send, **default}}
        ),
        sends_at=first + timedelta(hours=hours),
    )
    assert sent_at(ledger, made) == first


@pytest.mark.parametrize(
    ("sql", "error", "problem"),
    [
        ("SELECT device_id, amount FROM orders", QueryError, "returns the columns device_id, amount. Return"),
        (
            "SELECT device_id AS user_id FROM orders",
            QueryError,
            "returns the columns user_id. Return device_id",
        ),
        ("SELECT device_id, amount AS value FROM orders", QueryError, "several rows for one person"),
        ("SELECT device_id, 'much' AS value FROM orders", QueryError, "column value holds text"),
        ("SELECT device_id, 9e999 AS value FROM orders", QueryError, "not finite"),
        ("SELECT 'x' || device_id AS device_id FROM orders", AudienceError, "device_id holds text"),
        (
            "SELECT device_id * CASE WHEN device_id > 9 THEN 1 ELSE 0.5 END AS device_id FROM orders",
            AudienceError,
            "device_id holds a number that may have a fraction, but the launch has whole numbers",
        ),
        ("SELECT nosuch AS device_id FROM orders", QueryError, "the warehouse said"),
    ],
)
def test_a_query_that_is_none_of_outcomes_is_told(
    ledger: Ledger, shop: str, sql: str, error: type[Exception], problem: str
) -> None:
    launch(ledger)
    with pytest.raises(error, match=problem) as told:
        measure_outcome(ledger, KEY, shop, sql)
    assert str(told.value).startswith("campaign spring: outcome.sql: ")
    assert str(told.value).count("outcome.sql") == 1


def test_a_sum_of_whole_numbers_in_postgresql_is_a_value(ledger: Ledger, empty_postgres_url: str) -> None:
    """Its type is numeric, which Arrow does not have."""
    launch(ledger)
    orders = "(VALUES (1, 7), (1, 3), (2, 8)) AS orders (device_id, amount)"
    sql = f"SELECT device_id, SUM(amount::bigint) AS value FROM {orders} GROUP BY device_id"
    [blue, *_] = measure_outcome(ledger, KEY, empty_postgres_url, sql).sides
    assert blue.count == 2


def test_values_and_people_that_are_null_are_passed_over(ledger: Ledger, shop: str, tmp_path: Path) -> None:
    launch(ledger)
    sql = (
        "SELECT nullif(device_id, 1) AS device_id, nullif(sum(amount), 12.0) AS value FROM orders "
        "WHERE device_id > 0 GROUP BY device_id UNION ALL SELECT -5, 3.0 UNION ALL SELECT 0, 1.0"
    )
    compared = measure_outcome(ledger, KEY, shop, sql)
    nothing = sum(10 + who % 7 + (who <= 5) == 12 for who in range(2, 31))
    assert compared.sides[0].count == 30 - 1 - nothing
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        rows, unusable = db.execute(
            f"SELECT count(*), sum(device_id IS NULL OR device_id <= 0 OR value IS NULL) FROM ({sql})"
        ).fetchone()
    assert compared.remarks[0].startswith(f"outcome.sql returned {rows} rows: ")
    assert compared.remarks[0].endswith(f" {unusable} rows had no usable identifier or no value.")


def test_a_query_that_lists_nobody_makes_shares_of_zero_that_are_known(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    compared = measure_outcome(ledger, KEY, shop, f"{LISTED} WHERE device_id < 0")
    assert [(side.count, side.estimate) for side in compared.sides] == [(0, 0), (0, 0), (0, 0)]
    assert all(side.interval is not None for side in compared.sides)
    assert conclusion(compared) == "So far, there are too few results to tell which side is ahead."


def test_a_holdout_of_another_size_than_planned_is_not_compared(ledger: Ledger, shop: str) -> None:
    launch(ledger, holdout=10)
    compared = measure_outcome(ledger, KEY, shop, LISTED)
    assert compared.differences == ()
    assert "control group has 100 devices instead of about 30" in conclusion(compared)
    assert measure_outcome(ledger, KEY, shop, VALUED).mismatch == compared.mismatch


def test_a_side_whose_answers_are_all_doubtful_beside_one_without_any_is_no_error() -> None:
    sides = [Counted("b", 25, 1_000, 0, 0, 25), Counted("a", 0, 1_000)]
    (difference,) = compared_shares("engaged", sides).differences
    assert difference.interval is None or difference.interval.low < 0 < difference.interval.high
