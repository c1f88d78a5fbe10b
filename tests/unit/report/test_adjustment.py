"""Means adjusted by what people did before: the closed form, narrower intervals, and no bias or false differences."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from math import log, log1p, pi, sqrt
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

import numpy as np
import pytest

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers, strings, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Campaign, Variation
from sendoff.comparison.adjustment import SideOutcome, compared_adjusted
from sendoff.comparison.result import PEOPLE, Comparison
from sendoff.comparison.statistics import Values, compared_means
from sendoff.errors import AudienceError, QueryError
from sendoff.ledger import Ledger
from sendoff.report import as_text, describe_comparison
from sendoff.report.outcomes import measure_outcome

from ...factories import KEY, make_launch

SIDES = {"blue": range(1, 121), "red": range(121, 201), "control group": range(201, 301)}
AFTER = "SELECT device_id, amount AS value FROM orders WHERE is_after"
BEFORE = "SELECT device_id, amount AS value FROM orders WHERE NOT is_after"
LISTED = "SELECT device_id FROM orders WHERE is_after"


def launch(ledger: Ledger, named: str = "device_id") -> None:
    """Freeze a launch to 120 in blue and 80 in red, with 100 held out."""
    email = {"from_address": 1, "subject": "Hello", "text": "It is spring"}
    variants = {name: {"percent": percent} for name, percent in (("blue", 60), ("red", 40))}
    definition = {"title": "Spring", "channels": {"email": email}, "variants": variants}
    blue, red, held_out = (
        integers(each) if named == "device_id" else strings(map(str, each)) for each in SIDES.values()
    )
    people: Identifiers = union(blue.kind, [blue, red, held_out])
    make_launch(
        ledger,
        segments=[Segment(blue, Variation(variant="blue")), Segment(red, Variation(variant="red"))],
        audience=Audience(named, people, len(people), {}, {}),
        campaign=Campaign.model_validate(definition),
        suppressed={"holdout": held_out},
    )


@pytest.fixture
def orders() -> tuple[dict[int, float], dict[int, float]]:
    """What people spent before and after the launch: not everyone has a row, and strangers have one."""
    chance = np.random.default_rng(7)
    rates = chance.exponential(30, 400)
    found = []
    for noise, has_row in ((8, 0.8), (9, 0.7)):
        amounts = np.round(rates + chance.normal(0, noise, 400) + 5, 2)
        found.append(
            {
                who: float(amounts[who])
                for who in chance.permutation(400).tolist()
                if who and chance.random() < has_row
            }
        )
    return found[0], found[1]


@pytest.fixture
def shop(tmp_path: Path, orders: tuple[dict[int, float], dict[int, float]]) -> str:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        db.execute("CREATE TABLE orders (device_id INTEGER, amount REAL, is_after INTEGER)")
        for is_after, amounts in enumerate(orders):
            db.executemany(f"INSERT INTO orders VALUES (?, ?, {is_after})", amounts.items())
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.mark.parametrize("named", ["device_id", "external_id"])
def test_adjusted_means_are_those_of_the_closed_form(
    ledger: Ledger,
    shop: str,
    orders: tuple[dict[int, float], dict[int, float]],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sendoff.report.outcomes._ROWS_AT_ONCE", 37)
    monkeypatch.setattr("sendoff.report.outcomes._PEOPLE_AT_ONCE", 11)
    launch(ledger, named)
    sql, before_sql = (
        query
        if named == "device_id"
        else query.replace("device_id,", "CAST(device_id AS TEXT) AS external_id,")
        for query in (AFTER, BEFORE)
    )
    compared = measure_outcome(ledger, KEY, shop, sql, before_sql)

    before, after = orders
    x, y = (
        {name: np.array([of.get(who, 0.0) for who in side]) for name, side in SIDES.items()} for of in orders
    )
    centred = [np.concatenate([of[name] - of[name].mean() for name in SIDES]) for of in (x, y)]
    theta = (centred[0] @ centred[1]) / (centred[0] @ centred[0])
    middle = np.concatenate(list(x.values())).mean()
    adjusted = {name: y[name] - theta * (x[name] - middle) for name in SIDES}
    assert [side.name for side in compared.sides] == list(SIDES)
    for side in compared.sides:
        assert side.estimate == pytest.approx(adjusted[side.name].mean())
        assert side.count == sum(who in after for who in SIDES[side.name])
    saved = []
    for difference in compared.differences:
        one, other = adjusted[difference.side], adjusted[difference.against]
        assert difference.estimate == pytest.approx(one.mean() - other.mean())
        found = len(one) / (len(one) + len(other))
        answers = sum(who in after for name in (difference.side, difference.against) for who in SIDES[name])
        unit = 25 / (found * (1 - found)) / answers
        reach = sqrt((1 + unit) * (log1p(1 / unit) + 2 * log(3 / 0.05 * pi**2 / 6)))
        half = reach * sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
        assert difference.interval is not None
        assert difference.interval.high - difference.interval.low == pytest.approx(2 * half)
        plain = [y[name].var(ddof=1) / len(y[name]) for name in (difference.side, difference.against)]
        saved.append(1 - half / reach / sqrt(sum(plain)))
    many = "devices" if named == "device_id" else "people"
    for remark, file, amounts in zip(
        compared.remarks, ("outcome.sql", "before.sql"), (after, before), strict=False
    ):
        inside = sum(0 < who <= 300 for who in amounts)
        others = f"{len(amounts) - inside} others, which are ignored."
        assert remark == f"{file} returned {len(amounts)} rows: {inside} {many} of this launch and {others}"
    least, most = (f"{100 * share:.0f} % narrower" for share in (min(saved), max(saved)))
    assert compared.remarks[2] == (
        f"The means are adjusted by what the {many} did before the launch, according to before.sql. That makes the "
        f"intervals between {least} and {most} than without it."
    )
    assert "narrower than without it" in as_text(describe_comparison(compared), 400)


def of(numbers: Any) -> Values:
    return Values(len(numbers), float(np.mean(numbers)), float(np.square(numbers - np.mean(numbers)).sum()))


def done(name: str, before: Any, after: Any) -> SideOutcome:
    return SideOutcome(name, len(after), of(after), of(before), float(np.dot(before, after - after.mean())))


def compare(*sides: SideOutcome) -> Comparison:
    return compared_adjusted("orders", sides, control="b", noun=PEOPLE)


@pytest.mark.parametrize(
    ("sizes", "intervals"), [([3_000, 1_000], "the interval"), ([800, 900, 2_000], "each interval")]
)
def test_a_correlation_of_0_8_makes_intervals_40_percent_narrower(sizes: list[int], intervals: str) -> None:
    chance, sides = np.random.default_rng(8), []
    for name, people in zip("abc", sizes, strict=False):
        before, noise = chance.standard_normal((2, people))
        before = (before - before.mean()) / before.std()
        noise -= noise.mean() + before * (noise @ before) / people
        after = 20 + 0.8 * before + 0.6 * noise / noise.std()
        assert np.corrcoef(before, after)[0, 1] == pytest.approx(0.8)
        sides.append(done(name, 5 + 3 * before, after))
    compared = compare(*sides)
    plain = compared_means("orders", [(each.name, each.values, each.people) for each in sides], control="b")
    for one, other in zip(compared.differences, plain.differences, strict=True):
        assert one.interval is not None
        assert other.interval is not None
        found, usual = one.interval.high - one.interval.low, other.interval.high - other.interval.low
        assert found <= (1 - 0.4 + 1e-9) * usual
    assert compared.remarks[0].endswith(f"That makes {intervals} 40 % narrower than without it.")


def test_the_adjusted_difference_has_no_bias_and_varies_less() -> None:
    adjusted, plain, effect = [], [], 0.5
    for seed in range(800):
        chance, sides = np.random.default_rng(seed), []
        for name, people in (("a", 150), ("b", 60)):
            rates = chance.exponential(4.0, people)
            sides.append(done(name, chance.poisson(rates), chance.poisson(rates) + effect * (name == "a")))
        compared = compare(*sides)
        if compared.remarks[0].startswith("The means are adjusted"):
            adjusted.append(compared.differences[0].estimate or 0.0)
            plain.append(sides[0].values.mean - sides[1].values.mean)
    assert len(adjusted) >= 790
    assert abs(mean(adjusted) - effect) <= 3 * stdev(adjusted) / sqrt(len(adjusted))
    assert stdev(adjusted) <= 0.65 * stdev(plain)


@pytest.fixture
def simulation(benchmark_module: Callable[[str], Any]) -> Any:
    return benchmark_module("simulate_looks")


def test_equal_sides_seldom_differ_at_any_look_after_an_adjustment(simulation: Any) -> None:
    assert simulation.adjusted(np.random.default_rng(9), 60, people=300).shown <= 0.05


@pytest.mark.proof
def test_equal_sides_differ_in_at_most_5_percent_of_many_launches(simulation: Any) -> None:
    assert simulation.adjusted(np.random.default_rng(10), 800).shown <= 0.05


def test_a_side_that_does_more_is_found_and_never_taken_for_the_other(simulation: Any) -> None:
    found = simulation.adjusted(np.random.default_rng(11), 30, lift=1.2)
    assert found.shown >= 0.95
    assert all(found.ahead)


def test_shares_are_compared_without_an_adjustment_and_the_report_says_so(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    plain = measure_outcome(ledger, KEY, shop, LISTED)
    compared = measure_outcome(ledger, KEY, shop, LISTED, "this is never asked")
    assert compared.differences == plain.differences
    assert compared.remarks[1] == (
        "before.sql is not used, because it adjusts means, and outcome.sql returns no column value. Return 1 AS value "
        "to compare adjusted means instead of shares."
    )


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("0", "it returns the same number for all devices."),
        (
            "is_after",
            "its numbers explain the outcome completely. Check that the query ends before the launch.",
        ),
        (
            "device_id > 200",
            "its means differ between the sides, and chance hardly explains that. Check that",
        ),
    ],
)
def test_means_are_not_adjusted_by_numbers_that_cannot_be_of_use(
    ledger: Ledger, shop: str, where: str, why: str
) -> None:
    launch(ledger)
    plain = measure_outcome(ledger, KEY, shop, AFTER)
    rows = f"{where} AND is_after = {where == 'is_after'}"
    before = f"SELECT device_id, sum(amount * ({rows})) AS value FROM orders GROUP BY device_id"
    compared = measure_outcome(ledger, KEY, shop, AFTER, before)
    assert compared.differences == plain.differences
    assert compared.remarks[2].startswith(f"The means are not adjusted by before.sql, because {why}")


def test_a_few_large_numbers_on_a_small_side_are_seldom_called_a_difference() -> None:
    chance = np.random.default_rng(3)

    def side(name: str, people: int) -> SideOutcome:
        before = chance.lognormal(0, 1, people) * (chance.random(people) < 0.2)
        values = [
            Values(people, float(each.mean()), float(np.square(each - each.mean()).sum()))
            for each in (chance.normal(10, 1, people), before)
        ]
        return SideOutcome(name, people, values[0], values[1], 0.0)

    sides = [[side("a", 2_000), side("b", 25)] for _ in range(400)]
    alarms = sum("not adjusted" in compared_adjusted("spent", each).remarks[0] for each in sides)
    assert alarms <= 8  # 2 %


@pytest.mark.parametrize(
    ("others", "pairs"),
    [((), 1), ((8,), 3), ((1,), 1), ((2,), 3)],  # a side with one person is not compared
)
@pytest.mark.parametrize("times", [0.997, 1.003])
def test_means_of_before_may_differ_as_far_as_chance_alone_goes_in_99_9_percent_of_launches(
    others: tuple[int, ...], pairs: int, times: float
) -> None:
    chance, (many, few) = np.random.default_rng(4), (40, 10)
    one, other = (each - each.mean() for each in (chance.normal(0, 1, size) for size in (many, few)))
    square = (times * NormalDist().inv_cdf(1 - 0.001 / 2 / pairs)) ** 2
    between = square * (one @ one + other @ other) / (many + few - 1 - square)
    one = one + sqrt(between * (many + few) / (many * few))
    both = np.concatenate([one, other])
    error = both.std(ddof=1) * sqrt(1 / many + 1 / few)
    assert (one.mean() - other.mean()) / error == pytest.approx(sqrt(square))
    rest = [np.resize([one.mean() / 2 - 0.1, one.mean() / 2 + 0.1], size) for size in others]
    sides = [
        SideOutcome(name, len(before), of(chance.normal(0, 1, len(before))), of(before), 0.0)
        for name, before in zip("abc", [one, other, *rest], strict=False)
    ]
    assert ("chance hardly explains that" in compare(*sides).remarks[0]) is (times > 1)


def test_people_who_did_nothing_afterwards_are_not_called_explained(ledger: Ledger, shop: str) -> None:
    launch(ledger)
    compared = measure_outcome(ledger, KEY, shop, f"{AFTER} AND 0", BEFORE)
    assert all(each.interval is None for each in compared.differences)
    assert compared.remarks[2].endswith("according to before.sql.")


@pytest.mark.parametrize(
    ("sql", "error", "problem"),
    [
        (
            "SELECT device_id FROM orders",
            QueryError,
            "returns the columns device_id. Return device_id, as audience.sql did for this launch, and value.",
        ),
        (
            "SELECT device_id, amount FROM orders",
            QueryError,
            "device_id, as audience.sql did for this launch, and value.",
        ),
        ("SELECT device_id, amount AS value FROM orders", QueryError, "several rows for one person"),
        (
            "SELECT device_id, 'much' AS value FROM orders",
            QueryError,
            "column value holds text. Return numbers",
        ),
        ("SELECT 'x' AS device_id, 1 AS value", AudienceError, "column device_id holds text"),
        ("SELECT nosuch AS device_id, 1 AS value FROM orders", QueryError, "the warehouse said"),
    ],
)
def test_a_wrong_query_of_what_was_before_is_an_error_that_names_its_file(
    ledger: Ledger, shop: str, sql: str, error: type[Exception], problem: str
) -> None:
    launch(ledger)
    with pytest.raises(error) as told:
        measure_outcome(ledger, KEY, shop, AFTER, sql)
    assert str(told.value).startswith("campaign spring: before.sql: ")
    assert problem in str(told.value)
    assert str(told.value).count("before.sql") == 1


def test_the_query_of_what_was_before_gets_the_parameters_of_the_outcome_query(
    ledger: Ledger, shop: str
) -> None:
    launch(ledger)
    sql = f"{BEFORE} AND :sent_at > :period_start AND :period_start < :period_end"
    assert measure_outcome(ledger, KEY, shop, AFTER, sql).remarks[1].startswith("before.sql returned")
