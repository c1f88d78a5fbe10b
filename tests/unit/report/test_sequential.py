"""Confidence sequences: they match brute force and published formulas, and hold at all looks together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sendoff.comparison.balance import FALSE_ALARMS, are_losses_off, are_shares_off
from sendoff.comparison.sequential import Answers, differs, end_of_interval, evidence, reach
from sendoff.comparison.statistics import FEWEST, Counted, Values, compared_means, compared_shares

LAUNCHES = 400


def brute_force(one: Answers, other: Answers) -> float:
    """Return the evidence, with the two expectations integrated, and the draws multiplied one by one."""
    share = one.people / (one.people + other.people)
    odds = np.linspace(0, 1, 400_001)[1:-1]
    likely = one.answers * np.log(odds) + other.answers * np.log1p(-odds)
    found = 0.0
    for weight, unit in ((0.9, 25), (0.1, 1)):
        a, b = unit / (1 - share), unit / share
        prior = (a - 1) * np.log(odds) + (b - 1) * np.log1p(-odds)
        largest = prior.max()
        found += weight * np.exp(likely + prior - largest).sum() / np.exp(prior - largest).sum()
    drawn, left, right = 1.0, one.people, other.people
    for count in range(one.answers):
        drawn *= (left - count) / (left + right - count)
    for count in range(other.answers):
        drawn *= (right - count) / (left - one.answers + right - count)
    return math.log(found / drawn)


@pytest.mark.parametrize(
    ("one", "other"),
    [((30, 400), (12, 400)), ((3, 50), (60, 900)), ((90, 100), (50, 100)), ((0, 40), (25, 60))],
)
def test_evidence_is_that_of_numeric_integration(one: tuple[int, int], other: tuple[int, int]) -> None:
    sides = Answers(*one), Answers(*other)
    assert evidence(*sides) == pytest.approx(brute_force(*sides), abs=1e-6)
    assert evidence(sides[1], sides[0]) == pytest.approx(evidence(*sides), abs=1e-9)


@pytest.mark.parametrize(
    ("people", "others", "alpha"), [(60, 60, 0.05), (150, 12, 0.05), (40, 90, 0.2), (80, 80, 0.01)]
)
def test_equal_sides_ever_differ_at_most_as_often_as_stated_summed_over_all_orders(
    people: int, others: int, alpha: float
) -> None:
    """Look after every answer until everyone has answered: no choice of looks can find more."""
    chances, ever = {(0, 0): 1.0}, 0.0
    for answers in range(people + others):
        following: dict[tuple[int, int], float] = {}
        for (x, y), chance in chances.items():
            left = people + others - answers
            for state, part in (((x + 1, y), people - x), ((x, y + 1), others - y)):
                if part:
                    following[state] = following.get(state, 0.0) + chance * part / left
        chances = {}
        for (x, y), chance in following.items():
            if differs(Answers(x, people), Answers(y, others), alpha):
                ever += chance
            else:
                chances[x, y] = chance
    assert sum(chances.values()) + ever == pytest.approx(1)
    assert 0 < ever <= alpha


@given(st.data())
def test_an_interval_leaves_out_zero_exactly_if_the_sides_differ(data: st.DataObject) -> None:
    sides = []
    for _ in range(2):
        people = data.draw(st.integers(FEWEST, 5_000))
        sides.append(Answers(data.draw(st.integers(0, people)), people))
    one, other = sides
    assume(one.answers + other.answers >= FEWEST)
    low, high = (end_of_interval(one, other, 0.05, is_low=is_low) for is_low in (True, False))
    assert (low > 0 or high < 0) is differs(one, other)
    assert -1 <= low <= one.answers / one.people - other.answers / other.people + 1e-8
    assert one.answers / one.people - other.answers / other.people <= high + 1e-8 <= 1 + 1e-7
    mirrored = end_of_interval(other, one, 0.05, is_low=True)
    assert mirrored == pytest.approx(-high, abs=1e-7)


def test_the_reach_is_that_of_the_papers() -> None:
    """I. Waudby-Smith and others, *Time-uniform central limit theory and asymptotic confidence sequences*."""
    deviation, rho, alpha = 1.7, 0.09, 0.05
    for count in (10, 800, 1e6):
        parts = 2 * (count * rho**2 + 1) / (count * rho) ** 2, math.sqrt(count * rho**2 + 1) / alpha
        expected = deviation * math.sqrt(parts[0] * math.log(parts[1]))
        tuned = deviation**2 / count / (count * rho**2)
        assert reach(deviation**2 / count, tuned, alpha) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("variance", "tuned"), [(0.8, 0.3), (40, 5), (0.01, 1)])
def test_the_reach_is_where_the_mixed_likelihood_ratio_is_large_enough(variance: float, tuned: float) -> None:
    effect = np.linspace(-20, 20, 800_001) / math.sqrt(tuned)
    weight = np.exp(-tuned * effect**2 / 2)  # normal effects with the variance 1 / tuned
    ratio = np.exp(effect * reach(variance, tuned, 0.05) - effect**2 * variance / 2)
    assert (weight * ratio).sum() / weight.sum() == pytest.approx(20, rel=1e-6)


def growthbook(error: float, count: float, rho: float, alpha: float) -> float:
    """Return half the width of an interval as ``SequentialTwoSidedTTest`` of gbstats 0.8 calculates it."""
    parts = 2 * (count * rho**2 + 1), math.log(math.sqrt(count * rho**2 + 1) / alpha), (count * rho) ** 2
    return math.sqrt(error * count) * math.sqrt(parts[0] * parts[1] / parts[2])


def test_intervals_of_means_and_shares_are_those_of_growthbook() -> None:
    one, other = Values(400, 12.0, 90_000.0), Values(900, 11.0, 150_000.0)
    compared = compared_means("x", [("a", one, 4_000), ("b", other, 8_000)], launch=3)
    interval = compared.differences[0].interval
    assert interval is not None
    error = one.with_zeros(4_000).error + other.with_zeros(8_000).error
    rho = math.sqrt(4 / 12 * 8 / 12 / 25)
    half = growthbook(error, 1_300, rho, 1 - compared.level)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=1e-9)
    of_one = compared.sides[0].interval
    assert of_one is not None
    half = growthbook(one.with_zeros(4_000).error, 400, 1 / 5, 0.05)
    assert (of_one.high - of_one.low) / 2 == pytest.approx(half, rel=1e-9)
    (side,) = compared_shares("x", [("a", 400, 4_000)]).sides
    assert side.interval is not None
    half = growthbook(0.1 * 0.9 / 4_000, 4_000, math.sqrt(0.1 * 0.9 / 5), 0.05)
    assert side.interval.high - 0.1 == pytest.approx(half, rel=1e-9)


@pytest.fixture
def simulation(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("simulate_looks")


def fixed_time(one: Answers, other: Answers) -> bool:
    """Check whether a fixed-time interval of 95 % leaves out 0, as a report must not at every look."""
    shares = [each.answers / each.people for each in (one, other)]
    error = sum(share * (1 - share) / each.people for share, each in zip(shares, (one, other), strict=True))
    return abs(shares[0] - shares[1]) > 1.96 * math.sqrt(error)


def test_equal_variants_seldom_differ_at_any_look_and_fixed_time_intervals_often_do(simulation: Any) -> None:
    chance = np.random.default_rng(2)
    sides = (simulation.SIDE, simulation.SHARE)
    assert simulation.at_once(chance, LAUNCHES, sides, sides).shown <= 0.05
    assert simulation.at_once(chance, LAUNCHES, sides, sides, fixed_time).shown >= 0.15
    assert simulation.in_waves(chance, LAUNCHES // 4).shown <= 0.05


def test_campaigns_with_equal_variants_seldom_show_a_difference_in_any_launch(simulation: Any) -> None:
    """With 95 % for each launch, a fifth of the campaigns show one."""
    assert simulation.campaigns(np.random.default_rng(8), 25) <= 0.05
    assert simulation.campaigns(np.random.default_rng(8), 25, lambda _: 1.0) >= 0.1


def test_a_better_variant_is_found_soon_and_never_taken_for_the_worse(simulation: Any) -> None:
    chance = np.random.default_rng(3)
    share = simulation.SHARE
    found = simulation.at_once(
        chance, LAUNCHES, (simulation.SIDE, simulation.LIFT * share), (simulation.SIDE, share)
    )
    assert found.shown >= 0.92
    assert median(found.minutes) <= 90
    assert all(found.ahead)


def test_unbalanced_sides_are_found_and_chance_is_not_taken_for_one(simulation: Any) -> None:
    chance = np.random.default_rng(4)
    assert simulation.unbalanced(chance, 300, (0.01, 0.01)) <= 0.01
    assert simulation.unbalanced(chance, 20, (0.01, 0)) == 1


@pytest.mark.parametrize(
    ("planned", "people", "is_off"),
    [
        ({"a": 50, "b": 50}, {"a": 500_000, "b": 495_000}, True),
        ({"a": 50, "b": 50}, {"a": 500_000, "b": 499_000}, False),
        ({"a": 90, "b": 10}, {"a": 900, "b": 100}, False),
        ({"a": 90, "b": 10}, {"a": 500, "b": 500}, True),
        ({"a": 40, "b": 40, "c": 20}, {"a": 400, "b": 400, "c": 200}, False),
        ({"a": 40, "b": 40, "c": 20}, {"a": 400, "b": 400, "c": 100}, True),
        ({"a": 50, "b": 50}, {"a": 0, "b": 0}, False),
        ({"a": 50, "b": 50}, {"a": 2, "b": 0}, False),
        ({"a": 50, "b": 50}, {"a": 5_184, "b": 4_816}, True),  # by chance once in 4,000 times, on this side
        ({"a": 50, "b": 50}, {"a": 5_183, "b": 4_817}, False),
    ],
)
def test_shares_of_people_are_off_only_if_chance_hardly_explains_it(
    planned: dict[str, float], people: dict[str, int], is_off: bool
) -> None:
    assert are_shares_off(planned, people) is is_off


def test_losses_are_off_only_if_they_depend_on_the_side() -> None:
    assigned = {"a": 10_000, "b": 10_000, "c": 5_000}
    assert not are_losses_off(assigned, assigned)
    assert not are_losses_off(assigned, {"a": 9_000, "b": 9_010, "c": 4_490})
    assert are_losses_off(assigned, {"a": 9_000, "b": 9_010, "c": 4_800})
    assert are_losses_off(assigned, {**assigned, "b": 0})
    assert are_losses_off({"a": 0, "b": 100}, {"a": 0, "b": 0}) is False


def looks(chance: np.random.Generator, people: int, share: float) -> Iterator[tuple[int, float]]:
    """Yield how many answered at each of ten looks, and the share that is expected to."""
    at = chance.random(chance.binomial(people, share))
    for part in np.geomspace(0.05, 1, 10):
        yield int((at <= part).sum()), share * part


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((4_000, 0.05), (4_000, 0.065)),
        ((500, 0.5), (500, 0.7)),
        ((9_000, 0.04), (500, 0.02)),
        ((50_000, 0.2), (50_000, 0.05)),
    ],
)
def test_intervals_hold_the_true_values_at_all_looks_together(
    one: tuple[int, float], other: tuple[int, float]
) -> None:
    chance = np.random.default_rng(5)
    missed = 0
    for _ in range(100):
        is_held = True
        for (x, share), (y, expected) in zip(looks(chance, *one), looks(chance, *other), strict=True):
            compared = compared_shares("x", [("b", y, other[0]), ("a", x, one[0])])
            for estimate, true in (
                *zip(compared.sides, (expected, share), strict=True),
                (compared.differences[0], share - expected),
            ):
                interval = estimate.interval
                is_held = is_held and (interval is None or interval.low <= true <= interval.high)
        missed += not is_held
    assert missed <= 9  # three intervals of 95 % each; in 10,000 launches, 2 to 5 % are wrong somewhere


def test_several_differences_hold_together_at_all_looks() -> None:
    chance = np.random.default_rng(6)
    wrong = 0
    for _ in range(80):
        opened = [list(looks(chance, 2_000, 0.1)) for _ in "abcd"]
        found = (
            compared_shares(
                "x", [(name, at[look][0], 2_000) for name, at in zip("abcd", opened, strict=True)]
            )
            for look in (0, 2, 4, 6, 9)
        )
        wrong += any(
            each.interval is not None and (each.interval.low > 0 or each.interval.high < 0)
            for compared in found
            for each in compared.differences
        )
    assert wrong / 80 <= 0.05


def test_means_hold_at_all_looks_together() -> None:
    chance = np.random.default_rng(7)
    missed = 0
    for _ in range(200):
        orders = [(chance.lognormal(3, 1, 300), chance.random(300), people) for people in (3_000, 6_000)]
        is_held = True
        for part in np.linspace(0.1, 1, 10):
            sides = [(str(people), values(amounts[at <= part]), people) for amounts, at, people in orders]
            interval = compared_means("x", sides).differences[0].interval
            true = part * 300 * math.exp(3.5) * (1 / 6_000 - 1 / 3_000)
            is_held = is_held and (interval is None or interval.low <= true <= interval.high)
        missed += not is_held
    assert missed / 200 <= 0.05


def values(numbers: Any) -> Values:
    return Values(len(numbers), float(numbers.mean()), float(((numbers - numbers.mean()) ** 2).sum()))


def test_people_in_doubt_and_hidden_answers_widen_an_interval_by_what_they_may_be() -> None:
    certain = Counted("a", 300, 2_000), Counted("b", 200, 2_000)
    doubtful = Counted("a", 300, 2_000, 400), Counted("b", 200, 2_000, 100)
    hidden = Counted("a", 300, 2_000, 0, 60), Counted("b", 200, 2_000, 0, 60)
    (plain,), (wide,), (wider,) = (
        [each.interval for each in compared_shares("x", list(reversed(sides))).differences]
        for sides in (certain, doubtful, hidden)
    )
    assert plain is not None
    assert wide is not None
    assert wider is not None
    assert plain.low > 0
    low = compared_shares("x", [Counted("b", 200, 2_000), Counted("a", 300, 2_400)]).differences[0].interval
    high = compared_shares("x", [Counted("b", 200, 2_100), Counted("a", 300, 2_000)]).differences[0].interval
    assert low is not None
    assert high is not None
    assert (wide.low, wide.high) == (low.low, high.high)
    assert wider.low < 0 < plain.low
    assert wider.high > plain.high
    side = compared_shares("x", [doubtful[0]]).sides[0]
    assert (side.people, side.estimate) == (2_000, 0.15)
    assert side.interval is not None
    assert side.interval.low < compared_shares("x", [certain[0]]).sides[0].interval.low  # type: ignore[union-attr]


@pytest.mark.parametrize("people", [1_000, 20_000])
def test_the_outlook_names_the_answers_at_which_a_difference_shows(people: int) -> None:
    answers = people // 20
    compared = compared_shares("opened", [("a", answers, people), ("b", answers, people)])
    assert "such as 5.00 % against 5.50 % shows in four of five launches" in compared.outlook
    needed = int(compared.outlook.partition("once about ")[2].partition(" ")[0].replace(",", ""))
    more = int(compared.outlook.partition("launch to about ")[2].partition(" ")[0].replace(",", ""))
    assert more == pytest.approx((needed - 2 * answers) * 20, rel=0.1)
    for times, shows in ((1.0, True), (0.6, False)):
        size = round(times * needed / 2 / 0.0525)  # so that both together have so many answers
        sides = Answers(round(0.055 * size), size), Answers(round(0.05 * size), size)
        assert differs(*sides, 1 - compared.level) is shows


@pytest.mark.parametrize(
    ("share", "parts", "launch", "detect"),
    [
        (0.05, (1, 1), 1, 0.1),
        (0.05, (1, 1), 20, 0.1),
        (0.05, (1, 1), 1, 1),
        (0.05, (1, 9), 1, 0.1),
        (0.5, (1, 1), 1, 0.1),
        (0.9, (1, 1), 1, 0.1),
    ],
)
def test_the_difference_of_the_outlook_shows_in_four_of_five_launches(
    share: float, parts: tuple[int, int], launch: int, detect: float
) -> None:
    sides = [(name, round(400 * share) * part, 400 * part) for name, part in zip("ab", parts, strict=True)]
    compared = compared_shares("x", sides, launch=launch, detect=detect)
    answers = int(compared.outlook.partition("once about ")[2].partition(" ")[0].replace(",", ""))
    chance, launches = np.random.default_rng(9), 400
    shares = share + detect * min(share, 1 - share), share
    for better, worse in {parts, parts[::-1]}:
        scale = answers / (better * shares[0] + worse * shares[1])
        people = round(better * scale), round(worse * scale)
        shown = sum(
            differs(Answers(one, people[0]), Answers(other, people[1]), 1 - compared.level)
            for one, other in zip(
                *(chance.binomial(n, p, launches).tolist() for n, p in zip(people, shares, strict=True)),
                strict=True,
            )
        )
        assert 0.75 <= shown / launches <= 0.92


def test_the_difference_of_means_of_the_outlook_shows_in_four_of_five_launches() -> None:
    def side(name: str, count: int, mean: float, deviation: float) -> tuple[str, Values, int]:
        return name, Values(count, mean, deviation**2 * (count - 1)), count

    compared = compared_means("x", [side(name, 1_000, 20.0, 30.0) for name in "ab"])
    assert "such as 20.00 against 22.00 shows" in compared.outlook
    answers = int(compared.outlook.partition("once about ")[2].partition(" ")[0].replace(",", ""))
    chance, count, shown = np.random.default_rng(10), answers // 2, 0
    for _ in range(400):
        one, other = chance.normal([22.0, 20.0], np.array([33.0, 30.0]) / math.sqrt(count)).tolist()
        sides = [side("a", count, other, 30.0), side("b", count, one, 33.0)]
        interval = compared_means("x", sides).differences[0].interval
        shown += interval is not None and interval.low > 0
    assert 0.75 <= shown / 400 <= 0.85


def test_an_outlook_names_no_share_above_all_people() -> None:
    sides = [("a", 400, 1_000), ("b", 410, 1_000)]
    assert "such as 40.50 % against 81.00 %" in compared_shares("x", sides, detect=1).outlook
    assert compared_shares("x", sides, detect=2).outlook == ""


def test_of_a_large_share_the_outlook_is_about_a_part_of_those_who_do_not_answer() -> None:
    found = compared_shares("opened", [("a", 1_800, 2_000), ("b", 1_800, 2_000)])
    assert "such as 90.00 % against 91.00 % shows in four of five launches" in found.outlook


def test_the_reader_chooses_the_difference_of_the_outlook() -> None:
    sides = [("a", 100, 2_000), ("b", 100, 2_000)]
    found = compared_shares("opened", sides, detect=0.2)
    assert "such as 5.00 % against 6.00 % shows in four of five launches" in found.outlook
    means = compared_means("x", [(name, Values(400, 20.0, 160_000.0), 4_000) for name in "ab"], detect=0.05)
    assert "such as 2.000 against 2.100 shows in four of five launches" in means.outlook


def test_a_side_that_is_ahead_needs_no_outlook() -> None:
    assert compared_shares("opened", [("a", 500, 2_000), ("b", 200, 2_000)]).outlook == ""
    assert compared_shares("opened", [("a", 3, 2_000), ("b", 2, 2_000)]).outlook == ""
    many = compared_shares("opened", [("a", 50_000, 200_000), ("b", 50_010, 200_000)]).outlook
    assert many.endswith(
        "shows in four of five launches before 100,010 people have opened, as is the case now."
    )


@pytest.mark.parametrize(("answers", "others"), [(20, 20), (400, 400), (399, 400), (190, 180)])
def test_the_interval_has_room_where_nearly_everyone_answers(answers: int, others: int) -> None:
    people = 20 if answers == 20 else 400 if answers > 200 else 200
    one, other = Answers(answers, people), Answers(others, people)
    low, high = (end_of_interval(one, other, 0.03, is_low=is_low) for is_low in (True, False))
    measured = (answers - others) / people
    assert low < measured < high
    assert high - low < 0.7


def test_of_nearly_everyone_a_single_look_misses_the_difference_as_seldom_as_promised() -> None:
    people, shares = 60, (0.98, 0.95)
    chances = [[binomial(count, people, share) for count in range(people + 1)] for share in shares]
    missed = 0.0
    for answers, chance in enumerate(chances[0]):
        for others, chance_of_others in enumerate(chances[1]):
            if chance * chance_of_others < 1e-7:
                continue
            one, other = Answers(answers, people), Answers(others, people)
            low, high = (end_of_interval(one, other, 0.03, is_low=is_low) for is_low in (True, False))
            missed += chance * chance_of_others * (not low <= shares[0] - shares[1] <= high)
    assert missed < 0.03


def binomial(count: int, people: int, share: float) -> float:
    return math.comb(people, count) * share**count * (1 - share) ** (people - count)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("whole", [20, 50, 200, 1_000])
def test_chance_seldom_calls_sides_uneven_however_small_they_are(whole: int, share: float) -> None:
    planned = {"a": 100 * share, "b": 100 * (1 - share)}
    alarms = sum(
        math.comb(whole, count) * share**count * (1 - share) ** (whole - count)
        for count in range(whole + 1)
        if are_shares_off(planned, {"a": count, "b": whole - count})
    )
    assert 0 < alarms <= FALSE_ALARMS / 2
