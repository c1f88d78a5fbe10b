"""Comparisons: their intervals match published values and hold as often as stated, and unknown values say so."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, empty, integers, strings, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Variation
from sendoff.errors import AudienceError, QueryError
from sendoff.ledger import Decision, Ledger
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.report import as_json, as_text, describe_comparison
from sendoff.report.comparison import CONTROL_GROUP, of_engagement
from sendoff.report.outcomes import SENT_TO, measure_outcome
from sendoff.report.statistics import (
    FEW_VALUES,
    FEWEST,
    Comparison,
    Interval,
    Values,
    amount,
    compared_means,
    compared_shares,
    conclusion,
    spoken,
)
from sendoff.states import Accepted, InDoubt, Outcome

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


# R. G. Newcombe, Statistics in Medicine 17 (1998): single proportions by Wilson's score (857 to 872), and
# differences of two by his method 10 (873 to 890).
@pytest.mark.parametrize(
    ("count", "people", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)],
)
def test_the_interval_of_a_share_is_as_published(count: int, people: int, low: float, high: float) -> None:
    (side,) = compared_shares("engaged", [("a", count, people)]).sides
    assert side.estimate == count / people
    assert side.interval is not None
    assert (side.interval.low, side.interval.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("one", "other", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((10, 10), (0, 20), None, None),
        ((5, 56), (0, 29), -0.0381, 0.1926),
    ],
)
def test_the_interval_of_a_difference_is_as_published(
    one: tuple[int, int], other: tuple[int, int], low: float | None, high: float
) -> None:
    compared = compared_shares("engaged", [("other", *other), ("one", *one)])
    if low is None:  # with ten people there is no result, however clear it looks
        assert compared.differences[0].interval is None
        return
    assert (only(compared).low, only(compared).high) == pytest.approx((low, high), abs=5e-5)


def test_the_difference_of_means_is_welchs() -> None:
    chance = np.random.default_rng(3)
    one, other = chance.normal(5, 2, 60), chance.normal(4, 7, 45)
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    found = only(compared_means("value", [("other", values(other), 45), ("one", values(one), 60)]))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_people_without_a_value_count_with_zero() -> None:
    chance = np.random.default_rng(4)
    bought = chance.lognormal(3, 1, 50)
    everybody = np.append(bought, np.zeros(950))
    compared = compared_means("value", [("a", values(bought), 1_000), ("b", values(bought[:30]), 500)])
    assert compared.sides[0].estimate == pytest.approx(everybody.mean())
    assert compared.sides[0].count == 50
    half = np.append(bought[:30], np.zeros(470))
    expected = stats.ttest_ind(half, everybody, equal_var=False).confidence_interval(0.95)
    assert (only(compared).low, only(compared).high) == pytest.approx((expected.low, expected.high))


def values(numbers: Any) -> Values:
    return Values(len(numbers), float(numbers.mean()), float(((numbers - numbers.mean()) ** 2).sum()))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_values_in_parts_are_the_values_as_a_whole(one: list[float], other: list[float]) -> None:
    whole = values(np.array([*one, *other]))
    parts = values(np.array(one)).and_(values(np.array(other)))
    assert parts.count == whole.count
    assert parts.mean == pytest.approx(whole.mean, abs=1e-6)
    assert parts.squares == pytest.approx(whole.squares, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize(
    ("rate", "people", "others"), [(0.02, 2_000, 500), (0.2, 200, 60), (0.5, 40, 40), (0.001, 20_000, 5_000)]
)
def test_where_nothing_differs_shares_are_told_to_differ_once_in_twenty(
    rate: float, people: int, others: int
) -> None:
    chance = np.random.default_rng(5)
    pairs = zip(chance.binomial(people, rate, 600), chance.binomial(others, rate, 600), strict=True)
    found = [only(compared_shares("x", [("b", int(b), others), ("a", int(a), people)])) for a, b in pairs]
    held = sum(interval.low <= 0 <= interval.high for interval in found) / len(found)
    assert held >= 0.93  # of 600 tries at 95 %, 0.93 is two standard errors below


def test_several_differences_hold_together() -> None:
    chance = np.random.default_rng(6)
    held = 0
    for _ in range(400):
        counts = [(name, int(chance.binomial(1_500, 0.1)), 1_500) for name in "abcd"]
        intervals = [each.interval for each in compared_shares("x", counts, control="a").differences]
        assert len(intervals) == 5
        held += all(each is not None and each.low <= 0 <= each.high for each in intervals)
    assert held / 400 >= 0.93


def test_means_of_few_large_values_hold_often_enough() -> None:
    chance = np.random.default_rng(7)
    held = tries = 0
    for _ in range(500):
        sides = [
            (name, values(chance.lognormal(3, 1, bought)), people)
            for name, people in (("a", 2_000), ("b", 6_000))
            if (bought := int(chance.binomial(people, 0.02)))
        ]
        interval = compared_means("x", sides).differences[0].interval
        if interval:
            tries += 1
            held += interval.low <= 0 <= interval.high
    assert tries > 450
    assert held / tries >= 0.92


def test_a_small_holdout_of_whom_few_convert_is_told_to_differ_somewhat_too_often() -> None:
    assert held_by_shares(0.05, 100, 2_000) >= 0.94
    assert held_by_shares(0.005, 100, 2_000) >= 0.94
    assert 0.90 <= held_by_shares(0.005, FEWEST, 2_000) <= 0.94  # a tenth of a person: the page says so


def held_by_shares(rate: float, few: int, many: int) -> float:
    """Return how often the interval of two equal sides holds 0, summed over all possible results."""
    chances = [stats.binom.pmf(range(people + 1), people, rate) for people in (few, many)]
    held = 0.0
    for one, other in np.argwhere(np.outer(*chances) > 1e-6).tolist():
        found = only(compared_shares("x", [("b", one, few), ("a", other, many)]))
        held += chances[0][one] * chances[1][other] * (found.low <= 0 <= found.high)
    return held


def held_by_means(bought: int, people: int, others: int) -> float:
    """Return how often the interval of two sides with equal orders holds 0: the same share buys on each."""
    chance = np.random.default_rng(8)
    found = []
    for _ in range(600):
        sides = [
            (name, values(chance.lognormal(3, 1, chance.binomial(size, bought / people))), size)
            for name, size in (("a", others), ("b", people))
        ]
        interval = compared_means("x", sides).differences[0].interval
        found += [interval.low <= 0 <= interval.high] if interval else []
    return sum(found) / len(found)


def test_means_of_few_orders_beside_many_hold_too_seldom_and_this_is_said() -> None:
    assert held_by_means(30, 1_000, 10_000) < 0.93
    assert held_by_means(FEW_VALUES, 3_000, 30_000) >= 0.93
    few, many = Values(30, 20.0, 900.0), Values(FEW_VALUES, 20.0, 9_000.0)
    said = compared_means("x", [("a", many, 10_000), ("b", few, 1_000)]).remarks[0]
    assert said.startswith("Few people have a value: 30 of b.")
    assert "Few" not in compared_means("x", [("a", many, 10_000), ("b", many, 3_000)]).remarks[0]


def test_a_mean_of_few_values_has_no_interval() -> None:
    few = compared_means(
        "x", [("a", Values(FEWEST - 1, 20.0, 900.0), 60), ("b", Values(FEWEST, 20.0, 900.0), 60)]
    )
    assert [side.interval is None for side in few.sides] == [True, False]
    assert few.sides[0].estimate is not None


@pytest.mark.parametrize(
    ("mean", "shown"),
    [(0.0, "0.000"), (1.0, "1.000"), (999.94, "999.9"), (999.96, "1,000"), (12_345.6, "12,346")],
)
def test_means_are_shown_with_as_many_digits_as_each_other(mean: float, shown: str) -> None:
    assert amount(mean, "mean") == shown
    assert spoken(-mean, "mean").lstrip("-") == shown
    assert spoken(mean, "mean") == f"+{shown}"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (
            [("a", 240, 2_000), ("b", 180, 2_000)],
            "a is ahead of b (12.00 % against 9.00 % opened). Chance alone",
        ),
        (
            [("a", 180, 2_000), ("b", 240, 2_000)],
            "b is ahead of a (12.00 % against 9.00 % opened). Chance alone",
        ),
        (
            [("a", 180, 2_000), ("b", 181, 2_000)],
            "No side is clearly ahead, because chance can explain the difference.",
        ),
        ([("a", 9, 10), ("b", 1, 10)], "There are too few people to tell which side is ahead."),
        ([("a", 9, 10)], ""),
        (
            [("a", 240, 2_000), ("b", 180, 2_000), ("c", 239, 2_000)],
            "a is ahead of b (12.00 % against 9.00 % opened). Chance alone seldom makes such a difference.",
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


def test_several_differences_say_how_they_are_corrected() -> None:
    compared = compared_shares(
        "x", [("a", 10, 100), ("b", 12, 100), ("control group", 5, 100)], control="control group"
    )
    assert [(each.side, each.against) for each in compared.differences] == [
        ("a", "control group"),
        ("b", "control group"),
        ("b", "a"),
    ]
    assert compared.level == pytest.approx(1 - 0.05 / 3)
    assert "a level of 98.33 % (Bonferroni's correction)" in compared.remarks[1]
    assert not any(
        "Bonferroni" in each for each in compared_shares("x", [("a", 10, 100), ("b", 12, 100)]).remarks
    )


def test_every_interval_comes_with_its_method_and_level() -> None:
    one, two = [("a", 10, 100)], [("a", 10, 100), ("b", 12, 100)]
    assert compared_shares("x", one).remarks == ("Interval: Wilson's score, 95 %.",)
    assert compared_shares("x", two).remarks == (
        "Intervals: Wilson's score for each side, Newcombe's hybrid score for the difference, 95 % each.",
    )
    many = Values(FEW_VALUES, 5.0, 400.0)
    means = compared_means("x", [("a", many, 400), ("b", many, 400)])
    assert means.remarks == (
        "Intervals: Student's t for each side, Welch's t for the difference, 95 % each.",
    )


@pytest.mark.parametrize("people", [0, 1, FEWEST - 1])
def test_few_people_are_too_few_to_tell(people: int) -> None:
    compared = compared_shares("engaged", [("a", 50, 100), ("b", min(people, 1), people)])
    (difference,) = compared.differences
    assert difference.interval is difference.estimate is None
    assert "too few to tell (b has" in difference.sentence
    assert f"needs {FEWEST} or more on each side" in difference.sentence


def test_nobody_has_no_share() -> None:
    (side,) = compared_shares("engaged", [("a", 0, 0)]).sides
    assert (side.count, side.estimate, side.interval, side.note) == (None, None, None, "no people")
    assert "nan" not in as_text(describe_comparison(compared_shares("engaged", [("a", 0, 0), ("b", 1, 1)])))


@pytest.mark.parametrize(
    ("held", "people", "why"),
    [
        (Values(), 100, "0 of b have a value"),
        (Values(3, 5.0, 1.0), 100, "3 of b have a value"),
        (Values(100, 1.0, 0.0), 100, "everyone has the same value"),
        (Values(1, 1.0, 0.0), 1, "b has 1 person"),
    ],
)
def test_values_that_say_nothing_are_too_few_to_tell(held: Values, people: int, why: str) -> None:
    same = Values(100, 1.0, 0.0)
    (difference,) = compared_means("value", [("a", same, 100), ("b", held, people)]).differences
    assert difference.interval is None
    assert why in difference.sentence


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            [("a", 100, 1_000), ("b", 200, 1_000)],
            "b against a: more, by 10.00 points (between 6.89 points and",
        ),
        (
            [("a", 200, 1_000), ("b", 100, 1_000)],
            "b against a: less, by 10.00 points (between 6.89 points and",
        ),
        (
            [("a", 100, 1_000), ("b", 101, 1_000)],
            "b against a: no clear difference. +0.10 points was measured",
        ),
    ],
)
def test_a_difference_is_said_in_a_sentence(counts: list[tuple[str, int, int]], words: str) -> None:
    assert compared_shares("x", counts).differences[0].sentence.startswith(words)


def test_without_the_statistics_library_shares_are_given_and_intervals_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("statsmodels.stats.proportion", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    for compared in (
        compared_shares("x", [("a", 1, 4), ("b", 0, 0)]),
        compared_means("x", [("a", Values(1, 1.0), 4), ("b", Values(), 0)]),
    ):
        assert compared.sides[0].estimate == 0.25
        assert compared.sides[0].interval is None
        assert "pip install 'airflow-provider-sendoff[statistics]'" in compared.remarks[0]
        assert "0.00 %" not in as_text(describe_comparison(compared))


def launch(
    ledger: Ledger,
    *,
    variants: bool = True,
    held_out: Identifiers | None = None,
    outcomes: tuple[Outcome, ...] = (Accepted(200, 17), Accepted(200, 17)),
    kinds: tuple[str, ...] = ("delivery", "open"),
    named: str = "device_id",
) -> list[str]:
    """Freeze a launch to 1 to 100 in blue and 101 to 200 in red, with 201 to 300 held out. Return its dispatch keys."""
    campaign = Campaign.model_validate(
        {
            "title": "Spring",
            "channels": {"email": EMAIL},
            "variants": VARIANTS if variants else {},
            "post_backs": {"kinds": kinds},
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


def test_those_in_doubt_are_not_counted_and_this_is_said(ledger: Ledger) -> None:
    launch(ledger, outcomes=(Accepted(200, 17), InDoubt("no answer")))
    compared = engagement(ledger)
    assert [side.people for side in compared.sides[:2]] == [100, 0]
    assert any("Of red, 100 in doubt are not counted" in each for each in compared.remarks)


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
    early = reconcile_launch(ledger, KEY, now=sent + timedelta(hours=2))
    ledger.launches.settle(KEY, NOW)
    settled = of_engagement(ledger, early)
    assert settled
    assert settled.is_final
    assert not any("Later opens" in each for each in settled.remarks)


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
    expected = stats.ttest_ind(blue, held_out, equal_var=False).confidence_interval(1 - 0.05 / 3)
    found = compared.differences[0].interval
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_people_named_by_texts_are_compared_too(ledger: Ledger, shop: str) -> None:
    launch(ledger, named="external_id")
    sql = VALUED.replace("device_id,", "CAST(device_id AS TEXT) AS external_id,")
    assert [side.count for side in measure_outcome(ledger, KEY, shop, sql).sides] == [30, 25, 20]


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
    launch(ledger)
    sql = "SELECT :sent_at AS device_id, :period_start AS value, :period_end AS x, :partition AS y"
    with pytest.raises(QueryError, match="returns the columns device_id, value, x, y"):
        measure_outcome(ledger, KEY, shop, sql)
    later = NOW + timedelta(days=1)
    ledger.audit_log.record(Decision(KEY, "held", "ann", None, NOW))
    ledger.audit_log.record(Decision(KEY, "approved", "ann", None, later))
    found = f"SELECT device_id FROM orders WHERE :sent_at = '{later.replace(tzinfo=None)}'"
    assert measure_outcome(ledger, KEY, shop, found).sides[0].count == 30


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


def test_values_and_people_that_are_null_are_passed_over(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    sql = (
        "SELECT nullif(device_id, 1) AS device_id, nullif(sum(amount), 12.0) AS value FROM orders "
        "WHERE device_id > 0 GROUP BY device_id UNION ALL SELECT -5, 3.0 UNION ALL SELECT 0, 1.0"
    )
    compared = measure_outcome(ledger, KEY, shop, sql)
    assert compared.sides[0].count == 30 - 1 - sum(10 + who % 7 + (who <= 5) == 12 for who in range(2, 31))


def test_a_query_that_lists_nobody_makes_shares_of_zero_that_are_known(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    compared = measure_outcome(ledger, KEY, shop, f"{LISTED} WHERE device_id < 0")
    assert [side.count for side in compared.sides] == [0, 0, 0]
    assert all(each.interval is not None for each in compared.differences)
