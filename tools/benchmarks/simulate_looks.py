"""Simulated launches whose report is read every ten minutes for a day: how often it is wrong, and how fast it is right.

Each launch has two variants. The opens come with a half-life of one hour, and the functions of the report judge each
look. The scenarios:

.. code-block:: text

    equal ............ 10,000 people a side, 5 % open on both
    equal, holdout ... 1,000 people beside 19,000, 2 % answer on both
    equal, waves ..... a tenth of the people at first, the rest after two hours
    equal, many ...... half of 1,000 people a side open
    better ........... 10,000 people a side, 5 % open on one and 6.5 % on the other
    equal, adjusted .. means of 1,000 people a side, correlation of 0.8 with what they did before, hourly looks
    better, adjusted . the same, 15 % more on one side
    campaign ......... 26 equal launches to the same people, who keep their habits; each look at its level
    campaign, 95 % ... the same, every launch at 95 %

It also divides a million people by chance, loses people, and counts how often the sides are called unbalanced. The
figures are seeded. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import numpy.typing as npt

from sendoff.comparison.adjustment import SideOutcome, compared_adjusted
from sendoff.comparison.balance import are_losses_off, are_shares_off
from sendoff.comparison.result import LEVEL
from sendoff.comparison.result import PEOPLE as NOUN
from sendoff.comparison.sequential import Answers, differs, spent
from sendoff.comparison.statistics import Values

LOOK = 10  # minutes
LOOKS = 24 * 60 // LOOK
HALF_LIFE = 60  # minutes
SIDE = 10_000
SHARE = 0.05
LIFT = 1.3
PEOPLE = 1_000_000  # of a launch whose sides may be unbalanced
LOST = 0.01
LIFT_OF_MEANS = 1.15
HOURS = 24  # looks at adjusted means
ORDERS = 4  # of a person before the launch, and on the day after it, in the mean
WEEKS = 26  # launches of a campaign
OPENERS = 0.1  # the share of people who open messages; they open a half
_LOADS = 20  # looks while people are lost

Counts = npt.NDArray[np.int64]
Judge = Callable[[Answers, Answers], bool]
FIRST: Judge = partial(differs, alpha=(1 - LEVEL) * spent(1))


@dataclass(frozen=True)
class Looks:
    """The first look of each launch that shows a difference, in minutes, and whether its sign is right."""

    launches: int
    minutes: Sequence[int]
    ahead: Sequence[bool]

    @property
    def shown(self) -> float:
        """The share of the launches that show a difference at any look."""
        return len(self.minutes) / self.launches


def answers_at(
    chance: np.random.Generator, launches: int, people: int, share: float, after: float = 0
) -> Counts:
    """Return how many people of one side answered by each look, for each launch. The launch goes out ``after``."""
    passed = np.maximum(0, LOOK * np.arange(1, LOOKS + 1) - after)
    arrived = 1 - 0.5 ** (passed / HALF_LIFE)
    steps = np.append(np.diff(arrived, prepend=0), 1 - arrived[-1])
    return chance.multinomial(chance.binomial(people, share, launches), steps)[:, :-1].cumsum(axis=1)


def looked_at(sides: tuple[Counts, Counts], people: tuple[Counts, Counts], judge: Judge = FIRST) -> Looks:
    """Look at each launch until it shows a difference. ``people``: on each side at each look of each launch."""
    minutes, ahead = [], []
    for answers, sizes in zip(np.stack(sides, 2).tolist(), np.stack(people, 2).tolist(), strict=True):
        before = None
        for look, (both, of) in enumerate(zip(answers, sizes, strict=True), start=1):
            if (both, of) != before and judge(Answers(both[0], of[0]), Answers(both[1], of[1])):
                minutes.append(LOOK * look)
                ahead.append(both[0] * of[1] > both[1] * of[0])
                break
            before = both, of
    return Looks(len(sides[0]), minutes, ahead)


def at_once(
    chance: np.random.Generator,
    launches: int,
    one: tuple[int, float],
    other: tuple[int, float],
    judge: Judge = FIRST,
) -> Looks:
    """Simulate launches that go out at once. ``one`` and ``other``: the people and the share that answers."""
    answers = [answers_at(chance, launches, *side) for side in (one, other)]
    sizes = [np.full((launches, LOOKS), people) for people, _ in (one, other)]
    return looked_at((answers[0], answers[1]), (sizes[0], sizes[1]), judge)


def in_waves(chance: np.random.Generator, launches: int) -> Looks:
    """Simulate launches with equal variants to a tenth of the people, and after two hours to the rest.

    Chance divides the people of each wave between the variants.
    """
    answers = [np.zeros((launches, LOOKS), np.int64) for _ in range(2)]
    sizes = [np.zeros((launches, LOOKS), np.int64) for _ in range(2)]
    for people, after in ((2 * SIDE // 10, 0), (2 * SIDE - 2 * SIDE // 10, 120)):
        first = chance.binomial(people, 0.5, launches)
        for side, of in enumerate((first, people - first)):
            came = [answers_at(chance, 1, int(size), SHARE, after)[0] for size in of]
            answers[side] += np.array(came)
            sizes[side] += np.where(LOOK * np.arange(1, LOOKS + 1) > after, of[:, None], 0)
    return looked_at((answers[0], answers[1]), (sizes[0], sizes[1]))


def campaigns(chance: np.random.Generator, count: int, levels: Callable[[int], float] = spent) -> float:
    """Return how many campaigns with equal variants show a difference in any launch, at any look.

    Everyone is on the same side in all launches. Those who open messages are the same people too. ``levels``: the part
    of the 5 % that a launch has, by its number from 1.
    """
    found = 0
    sizes = np.full((1, LOOKS), SIDE)
    for _ in range(count):
        openers = chance.binomial(SIDE, OPENERS, 2).tolist()
        for week in range(1, WEEKS + 1):
            answers = [answers_at(chance, 1, people, SHARE / OPENERS) for people in openers]
            judge = partial(differs, alpha=(1 - LEVEL) * levels(week))
            if looked_at((answers[0], answers[1]), (sizes, sizes), judge).minutes:
                found += 1
                break
    return found / count


def unbalanced(chance: np.random.Generator, launches: int, lost: tuple[float, float]) -> float:
    """Return how often two halves of a million people are called unbalanced, if these shares of them are lost."""
    found = 0
    for _ in range(launches):
        first = int(chance.binomial(PEOPLE, 0.5))
        assigned = {"a": first, "b": PEOPLE - first}
        is_off = are_shares_off({"a": 50, "b": 50}, assigned)
        gone = [
            chance.multinomial(chance.binomial(people, share), [1 / _LOADS] * _LOADS).cumsum()
            for people, share in zip(assigned.values(), lost, strict=True)
        ]
        for a, b in zip(*gone, strict=True):
            is_off = is_off or are_losses_off(assigned, {"a": first - int(a), "b": PEOPLE - first - int(b)})
        found += is_off
    return found / launches


def adjusted(chance: np.random.Generator, launches: int, people: int = 1_000, lift: float = 1.0) -> Looks:
    """Simulate launches whose means of orders are adjusted by the orders before, for two sides of some people.

    The people's rates of orders differ (exponential), so the correlation of all their orders before and after is 0.8.
    ``lift``: how many times as many orders the first side makes.
    """
    hours, ahead = [], []
    for _ in range(launches):
        sides = [orders(chance, people, factor) for factor in (lift, 1.0)]
        for hour in range(HOURS):
            both = [
                outcome(name, before, after[hour]) for name, (before, after) in zip("ab", sides, strict=True)
            ]
            (found,) = compared_adjusted("orders", both, control="b", noun=NOUN).differences
            if found.interval and not found.interval.low <= 0 <= found.interval.high:
                hours.append(60 * (hour + 1))
                ahead.append(found.interval.low > 0)
                break
    return Looks(launches, hours, ahead)


def orders(chance: np.random.Generator, people: int, lift: float = 1.0) -> tuple[Counts, Counts]:
    """Return the orders of each person before a launch, and after it by each hour."""
    rates = ORDERS * chance.exponential(1.0, people)
    return chance.poisson(rates), chance.poisson(rates * lift / HOURS, (HOURS, people)).cumsum(axis=0)


def outcome(name: str, before: npt.NDArray[np.number], after: npt.NDArray[np.number]) -> SideOutcome:
    """Return what the people of a side did. Those who did nothing have no row."""
    return SideOutcome(
        name,
        len(after),
        _values(after[after != 0]),
        _values(before[before != 0]),
        float(np.dot(before, after - after.mean())),
    )


def _values(numbers: npt.NDArray[np.number]) -> Values:
    if not len(numbers):
        return Values()
    return Values(len(numbers), float(numbers.mean()), float(numbers.var() * len(numbers)))


def simulated(launches: int, seed: int) -> dict[str, float]:
    """Return all figures, as shares of the launches, and the median time of the better variant in hours."""
    chance = np.random.default_rng(seed)
    better = at_once(chance, launches, (SIDE, LIFT * SHARE), (SIDE, SHARE))
    return {
        "equal": at_once(chance, launches, (SIDE, SHARE), (SIDE, SHARE)).shown,
        "equal_holdout": at_once(chance, launches, (19_000, 0.02), (1_000, 0.02)).shown,
        "equal_waves": in_waves(chance, launches).shown,
        "equal_many": at_once(chance, launches, (1_000, 0.5), (1_000, 0.5)).shown,
        "better_shown": better.shown,
        "better_hours": median(better.minutes) / 60,
        "better_wrong_side": better.ahead.count(False) / launches,
        "campaign": campaigns(np.random.default_rng(seed), launches // 10),
        "campaign_each_95": campaigns(np.random.default_rng(seed), launches // 10, lambda _: 1.0),
        "unbalanced_by_chance": unbalanced(chance, launches, (0, 0)),
        "unbalanced_equal_losses": unbalanced(chance, launches, (LOST, LOST)),
        "unbalanced_one_side_lost": unbalanced(chance, launches // 10, (LOST, 0)),
        "equal_adjusted": adjusted(np.random.default_rng(seed), launches // 10).shown,
        "better_adjusted": adjusted(np.random.default_rng(seed), launches // 10, lift=LIFT_OF_MEANS).shown,
    }


def main() -> None:
    """Simulate the launches and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    found = simulated(chosen.launches, chosen.seed)
    for name, figure in found.items():
        print(f"{name:26} {figure:.2f} h" if name.endswith("hours") else f"{name:26} {100 * figure:.2f} %")
    print(json.dumps({"launches": chosen.launches, "seed": chosen.seed, **found}))


if __name__ == "__main__":
    main()
