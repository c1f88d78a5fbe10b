"""Compare shares or means of several sides, with intervals for each side and each difference.

The intervals come from statsmodels and scipy, in the extra ``statistics``:

.. code-block:: text

    a share .................... Wilson's score interval
    two shares, difference ..... Newcombe's hybrid score interval
    a mean ..................... Student's t
    two means, difference ...... Welch's t, for sides of different variance
    several differences ........ Bonferroni's correction: all of a comparison hold together with 95 %

An unknown value is None and comes with a sentence that says why. It is never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Literal, Self

from sendoff.figures import counted

LEVEL = 0.95
FEWEST = 20
"""The fewest people on each side for a difference. For means, also the fewest people with a value."""

FEW_VALUES = 300
"""With fewer people with a value on a side, the interval of a mean holds less often than its level."""

PEOPLE = ("person", "people")

_MISSING = (
    "Intervals need the statistics library, which is not installed. "
    "Run: pip install 'airflow-provider-sendoff[statistics]'"
)
_LARGE = 999.95  # means from here on are shown without decimals


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    ``people``: the people in this side. ``count``: how many of them engaged, converted, or have a value. ``estimate``:
    their share between 0 and 1, or the mean over everyone. A value is None if it cannot be known; ``note`` says why.
    """

    name: str
    people: int
    count: int | None = None
    estimate: float | None = None
    interval: Interval | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One side minus another: the estimate, its interval, and a sentence. None if there are too few people to tell."""

    side: str
    against: str
    estimate: float | None
    interval: Interval | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sides of a launch by one measure, their differences, and remarks on how to read them.

    ``measure``: whether the estimates are shares between 0 and 1, or means. ``level``: the confidence level of each
    difference. It is above 0.95 if there are several, so that all of them hold together. ``is_final``: False while
    results still arrive. ``noun``: for the recipients, singular and plural.
    """

    what: str
    measure: Literal["share", "mean"]
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...] = ()
    remarks: tuple[str, ...] = ()
    level: float = LEVEL
    is_final: bool = True
    noun: tuple[str, str] = PEOPLE

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values, which ``from_json`` reads."""
        values = asdict(self)
        return {name: list(each) if isinstance(each, tuple) else each for name, each in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a comparison that ``to_json`` wrote."""
        noun = tuple(values["noun"])
        of_side = {"sides": Side, "differences": Difference}
        parts = {
            name: tuple(
                kind(**{**each, "interval": Interval(**each["interval"]) if each["interval"] else None})
                for each in values[name]
            )
            for name, kind in of_side.items()
        }
        return cls(**{**values, **parts, "remarks": tuple(values["remarks"]), "noun": noun})


@dataclass(frozen=True, slots=True)
class Values:
    """A summary of numbers: how many, their mean, and the sum of squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def and_(self, other: Values) -> Values:
        """Return the summary of both, without the rounding errors of large sums of squares."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        return Values(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart**2 * self.count * other.count / count,
        )

    @property
    def error(self) -> float:
        """The squared standard error of the mean. It needs at least two values."""
        return self.squares / (self.count - 1) / self.count


def compared_shares(
    what: str,
    counts: Sequence[tuple[str, int, int]],
    *,
    control: str = "",
    noun: tuple[str, str] = PEOPLE,
) -> Comparison:
    """Compare shares. ``counts`` holds for each side its name, how many of its people count, and all its people.

    Each side is compared with ``control`` and with the first of the other sides.
    """
    pairs = _pairs([name for name, _, _ in counts], control)
    level = _level(len(pairs))
    try:
        from statsmodels.stats.proportion import (  # type: ignore[import-untyped]
            confint_proportions_2indep,
            proportion_confint,
        )
    except ImportError:
        return _without_intervals(what, counts, noun)

    sides = {
        name: _share(
            name, count, people, Interval(*map(float, proportion_confint(count, people, 1 - LEVEL, "wilson")))
        )
        if people
        else Side(name, 0, note=f"no {noun[1]}")
        for name, count, people in counts
    }
    of = {name: (count, people) for name, count, people in counts}
    differences = []
    for name, against in pairs:
        (count, people), (other, others) = of[name], of[against]
        few = _too_few(noun, sides[name], sides[against])
        estimate = count / people - other / others if people and others else 0.0
        interval = None
        if not few:
            ends = confint_proportions_2indep(
                count, people, other, others, method="newcomb", compare="diff", alpha=1 - level
            )
            interval = Interval(*map(float, ends))
        differences.append(_difference("share", name, against, estimate, interval, few))
    remarks = _methods("Wilson's score", "Newcombe's hybrid score", pairs)
    return Comparison(what, "share", tuple(sides.values()), tuple(differences), remarks, level, noun=noun)


def _share(name: str, count: int, people: int, interval: Interval | None) -> Side:
    return Side(name, people, count, count / people, interval)


def _without_intervals(
    what: str, counts: Sequence[tuple[str, int, int]], noun: tuple[str, str]
) -> Comparison:
    sides = (
        _share(name, count, people, None) if people else Side(name, 0, note=f"no {noun[1]}")
        for name, count, people in counts
    )
    return Comparison(what, "share", tuple(sides), remarks=(_MISSING,), noun=noun)


def compared_means(
    what: str,
    values: Sequence[tuple[str, Values, int]],
    *,
    control: str = "",
    noun: tuple[str, str] = PEOPLE,
) -> Comparison:
    """Compare means. ``values`` holds for each side its name, the values of its people, and all its people.

    People without a value count with 0. Each side is compared with ``control`` and with the first of the other sides.
    """
    everybody = {name: held.and_(Values(people - held.count)) for name, held, people in values}
    pairs = _pairs([name for name, _, _ in values], control)
    level = _level(len(pairs))
    try:
        from scipy import stats  # type: ignore[import-untyped]
    except ImportError:
        sides = tuple(_mean(name, held.count, everybody[name], None, noun) for name, held, _ in values)
        return Comparison(what, "mean", sides, remarks=(_MISSING,), noun=noun)

    def around(estimate: float, error: float, freedom: float, sure: float) -> Interval:
        reach = float(stats.t.ppf((1 + sure) / 2, freedom)) * sqrt(error)
        return Interval(estimate - reach, estimate + reach)

    sides_of = {}
    for name, held, people in values:
        whole = everybody[name]
        tells = held.count >= FEWEST and people > 1 and whole.squares
        own = around(whole.mean, whole.error, people - 1, LEVEL) if tells else None
        sides_of[name] = _mean(name, held.count, whole, own, noun)
    differences = []
    for name, against in pairs:
        one, other = everybody[name], everybody[against]
        few = _too_few(noun, sides_of[name], sides_of[against]) or _too_few_values(
            sides_of[name], sides_of[against]
        )
        interval = None
        if not few:
            errors = one.error + other.error
            freedom = errors**2 / (one.error**2 / (one.count - 1) + other.error**2 / (other.count - 1))
            interval = around(one.mean - other.mean, errors, freedom, level)
        differences.append(_difference("mean", name, against, one.mean - other.mean, interval, few))
    remarks = (*_few_values(differences, sides_of, noun[1]), *_methods("Student's t", "Welch's t", pairs))
    return Comparison(what, "mean", tuple(sides_of.values()), tuple(differences), remarks, level, noun=noun)


def _few_values(differences: Sequence[Difference], sides: Mapping[str, Side], people: str) -> Iterator[str]:
    held = {name for each in differences if each.interval for name in (each.side, each.against)}
    few = [f"{side.count:,} of {name}" for name, side in sides.items() if name in held and _has_few(side)]
    if few:
        yield (
            f"Few {people} have a value: {', '.join(few)}. If some values are many times larger than others, an "
            f"interval from fewer than {FEW_VALUES} {people} per side is too narrow, above all next to a much larger "
            "side. Treat it as a hint."
        )


def _has_few(side: Side) -> bool:
    return (side.count or 0) < FEW_VALUES


def _mean(name: str, count: int, whole: Values, interval: Interval | None, noun: tuple[str, str]) -> Side:
    if not whole.count:
        return Side(name, 0, note=f"no {noun[1]}")
    return Side(name, whole.count, count, whole.mean, interval)


def _pairs(names: Sequence[str], control: str) -> list[tuple[str, str]]:
    """Return the pairs to compare: each side with the control, and each further side with the first."""
    others = [name for name in names if name != control]
    against_control = [(name, control) for name in others] if control in names else []
    return against_control + [(name, others[0]) for name in others[1:]]


def _level(differences: int) -> float:
    return 1 - (1 - LEVEL) / max(1, differences)


def _methods(of_side: str, of_difference: str, pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return sentences on how the intervals are computed and corrected."""
    level = percent(LEVEL)
    if not pairs:
        return (f"Interval: {of_side}, {level}.",)
    if len(pairs) == 1:
        return (f"Intervals: {of_side} for each side, {of_difference} for the difference, {level} each.",)
    corrected = (
        f"There are {len(pairs)} differences, so each of their intervals has a level of "
        f"{percent(_level(len(pairs)), 2)} (Bonferroni's correction). All of them hold together with {level}."
    )
    return f"Intervals: {of_side} for each side, {level}; {of_difference} for each difference.", corrected


def percent(share: float, digits: int = 0) -> str:
    """Return a share between 0 and 1 in percent."""
    return f"{100 * share:.{digits}f} %"


def _too_few(noun: tuple[str, str], *sides: Side) -> str:
    for side in sides:
        if side.people < FEWEST:
            found = counted(side.people, *noun)
            return f"{side.name} has {found}, and a difference needs {FEWEST} or more on each side"
    return ""


def _too_few_values(*sides: Side) -> str:
    for side in sides:
        if (side.count or 0) < FEWEST:
            return (
                f"{side.count:,} of {side.name} have a value, and a difference of means needs {FEWEST} or more on "
                "each side"
            )
    if not any(side.interval for side in sides):
        return "everyone has the same value, so its random variation is not known"
    return ""


def _difference(
    measure: Literal["share", "mean"],
    side: str,
    against: str,
    estimate: float,
    interval: Interval | None,
    few: str,
) -> Difference:
    pair = f"{side} against {against}"
    if interval is None:
        return Difference(side, against, None, None, f"{pair}: too few to tell ({few}).")
    ends = (interval.low, interval.high)
    low, high, seen = (spoken(each, measure) for each in (*ends, estimate))
    if interval.low > 0 or interval.high < 0:
        least, most, by = (
            spoken(each, measure).lstrip("+") for each in (*sorted(map(abs, ends)), abs(estimate))
        )
        said = f"{'more' if estimate > 0 else 'less'}, by {by} (between {least} and {most})"
    else:
        said = (
            f"no clear difference. {seen} was measured, and any value between {low} and {high} is plausible"
        )
    return Difference(side, against, estimate, interval, f"{pair}: {said}.")


def conclusion(compared: Comparison) -> str:
    """Return the result of a comparison in a sentence, or an empty text if there are no differences.

    A side is only called ahead of another if the interval of their difference excludes 0.
    """
    if not compared.differences:
        return ""
    known = [(each, each.interval) for each in compared.differences if each.interval]
    clear = [each for each, interval in known if interval.low > 0 or interval.high < 0]
    if not known:
        begin = "There" if compared.is_final else "So far, there"
        return f"{begin} are too few {compared.noun[1]} to tell which side is ahead."
    if not clear:
        what = "the difference" if len(known) == 1 else "each difference"
        begin = "No" if compared.is_final else "So far, no"
        return f"{begin} side is clearly ahead, because chance can explain {what}."
    results = {side.name: amount(side.estimate or 0, compared.measure) for side in compared.sides}
    ahead = [
        f"{one} is ahead of {other} ({results[one]} against {results[other]} {compared.what})"
        for each in clear
        for one, other in [
            (each.side, each.against) if (each.estimate or 0) > 0 else (each.against, each.side)
        ]
    ]
    rest = "" if len(clear) == len(compared.differences) else " The other differences may be chance."
    begin = "" if compared.is_final else "So far, "
    return f"{begin}{', and '.join(ahead)}. Chance alone seldom makes such a difference.{rest}"


def amount(estimate: float, measure: Literal["share", "mean"]) -> str:
    """Return a share in percent, or a mean, as text."""
    if measure == "share":
        return percent(max(0.0, estimate), 2)
    return f"{estimate:#,.4g}" if abs(estimate) < _LARGE else f"{estimate:,.0f}"


def spoken(difference: float, measure: Literal["share", "mean"]) -> str:
    """Return a difference as text. A difference of shares is in percentage points."""
    if measure == "share":
        return f"{100 * difference:+.2f} points"
    return f"{difference:+#,.4g}" if abs(difference) < _LARGE else f"{difference:+,.0f}"
