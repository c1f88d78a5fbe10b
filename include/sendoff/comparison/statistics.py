"""Compare shares or means of several sides, with intervals that hold however often a report is looked at.

.. code-block:: text

    two shares ................. an exact test at every look, and its confidence sequence
    a share, a mean ............ asymptotic confidence sequence
    two means, difference ...... the same, for sides of different variance
    several differences ........ Bonferroni's correction: all of a comparison hold together
    several launches ........... a campaign spends 5 % on all of its launches together
    sides with too few people .. a test of the shares of the sides, and an exact test of the losses

docs/reference/comparisons.md has the reasons and the papers. An unknown value is None and comes with a sentence that
says why. It is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import floor, log10, sqrt
from typing import NamedTuple, TypedDict, Unpack

from sendoff.comparison.result import (
    LEVEL,
    PEOPLE,
    Comparison,
    Difference,
    Interval,
    Measure,
    Side,
    amount,
    percent,
    spoken,
)
from sendoff.comparison.sequential import UNIT, Answers, end_of_interval, interval_of_share, reach, spent
from sendoff.figures import counted

FEWEST = 20
"""The fewest people on each side for a difference, and the fewest answers on both together.

For means, also the fewest people with a value on each side.
"""

FEW_VALUES = 300
"""With fewer people with a value on a side, the interval of a mean holds less often than its level."""

NOTICEABLE = 0.1
"""The relative difference for which a report says how many answers it takes, unless its reader chooses another."""

_STEPS = 50  # of a bisection
_FOUR_OF_FIVE = 0.8416  # quantile of the normal distribution
_HOPELESS = 1e-12  # if one answer shows so little of a difference, no number of answers shows it


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

    def with_zeros(self, people: int) -> Values:
        """Return the summary of so many people, if those without a number count with 0."""
        return self.and_(Values(people - self.count))

    @property
    def error(self) -> float:
        """The squared standard error of the mean. It needs at least two values."""
        return self.squares / (self.count - 1) / self.count


class Counted(NamedTuple):
    """The answers of one side, such as opens, and its people.

    ``unknown``: further people without an answer, who may belong to the side or not. ``hidden``: further answers that
    may be of this side or not. ``doubtful``: those of the answers that may be none.
    """

    name: str
    answers: int
    people: int
    unknown: int = 0
    hidden: int = 0
    doubtful: int = 0

    @property
    def fewest(self) -> Answers:
        """The smallest share that is possible."""
        return Answers(self.answers - self.doubtful, self.people + self.unknown)

    @property
    def most(self) -> Answers:
        """The largest share that is possible."""
        return Answers(min(self.answers + self.hidden, self.people), self.people)


class Asked(TypedDict, total=False):
    """What is known of a comparison besides the numbers.

    ``control``: the name of the side that each other side is compared with first. ``noun``: for the people, singular
    and plural. ``launch``: its number among the compared launches of its campaign. ``detect``: the relative difference
    that the outlook is about.
    """

    control: str
    noun: tuple[str, str]
    launch: int
    detect: float


class _Pair(NamedTuple):
    """What is known of one side minus another. ``few``: why that is nothing, or an empty text."""

    few: str
    estimate: float = 0.0
    interval: Interval | None = None
    so_far: _SoFar | None = None


def compared_shares(
    what: str, counts: Sequence[Counted | tuple[str, int, int]], **asked: Unpack[Asked]
) -> Comparison:
    """Compare shares. ``counts`` holds a :class:`Counted` for each side, or its name, answers and people."""
    of = {each[0]: Counted(*each) for each in counts}

    def pair(name: str, against: str, alpha: float, detect: float) -> _Pair:
        one, other = of[name], of[against]
        answers, people = one.answers + other.answers, one.people + other.people
        if answers < FEWEST:
            return _Pair(f"{answers:,} {what} on both sides, and a difference needs {FEWEST} or more")
        low = end_of_interval(one.fewest, other.most, alpha, is_low=True)
        high = end_of_interval(one.most, other.fewest, alpha, is_low=False)
        share = answers / people
        difference = detect * min(share, 1 - share)
        seen = _seen_in_answer(share, difference, one.people / people)
        silent = 1 - share - difference / 2
        so_far = _SoFar(answers, one.people, other.people, share, difference, seen, silent)
        return _Pair("", one.answers / one.people - other.answers / other.people, Interval(low, high), so_far)

    return _compared(what, "share", [_share(each) for each in of.values()], pair, **asked)


def _seen_in_answer(share: float, difference: float, part: float) -> float:
    """Return how much one answer shows of a difference of shares: a squared mean in standard deviations.

    An answer shows which side it is from. ``part``: how many of the people are on one side. An answer shows so much or
    more, whichever side has the larger share. Return 0 if that share would be above 1.
    """
    if not difference or share + difference > 1:
        return 0.0
    seen = []
    for ahead in (part, 1 - part):
        moved = ahead * (share + difference) / (share + difference * ahead) - ahead
        seen.append(moved**2 / (ahead * (1 - ahead)))
    return min(seen)


def _share(counts: Counted) -> Side:
    if not counts.people:
        return Side(counts.name, 0)
    (low, _), (_, high) = (interval_of_share(each, 1 - LEVEL) for each in (counts.fewest, counts.most))
    estimate = counts.answers / counts.people
    return Side(counts.name, counts.people, counts.answers, estimate, Interval(low, high))


class SideValues(NamedTuple):
    """The values of one side, and all its people. Those without a value count with 0.

    ``adjusted``: the summary to compare instead, with everyone in it.
    """

    name: str
    values: Values
    people: int
    adjusted: Values | None = None

    @property
    def of_everyone(self) -> Values:
        """The summary of all people of the side."""
        return self.adjusted or self.values.with_zeros(self.people)


def compared_means(
    what: str, values: Sequence[SideValues | tuple[str, Values, int]], **asked: Unpack[Asked]
) -> Comparison:
    """Compare means. ``values`` holds a :class:`SideValues` for each side, or its name, values and people."""
    of = [SideValues(*each) for each in values]
    everybody = {each.name: each.of_everyone for each in of}
    sides = {each.name: _mean(each.name, each.values.count, each.of_everyone) for each in of}

    def pair(name: str, against: str, alpha: float, detect: float) -> _Pair:
        if few := _too_few_values(sides[name], sides[against]):
            return _Pair(few)
        one, other = everybody[name], everybody[against]
        answers = (sides[name].count or 0) + (sides[against].count or 0)
        error, estimate = one.error + other.error, one.mean - other.mean
        half = reach(error, error * _unit(one.count, other.count) / answers, alpha)
        mean = (one.mean * one.count + other.mean * other.count) / (one.count + other.count)
        difference = detect * abs(mean)
        with_it = error + max(one.error, other.error) * ((1 + detect) ** 2 - 1)  # if larger values make it
        seen = difference**2 / (with_it * answers) if error else 0.0
        so_far = _SoFar(answers, one.count, other.count, mean, difference, seen)
        return _Pair("", estimate, Interval(estimate - half, estimate + half), so_far)

    found = _compared(what, "mean", list(sides.values()), pair, **asked)
    return replace(found, remarks=(*_few_values(found), *found.remarks))


def _compared(  # noqa: PLR0913 - the last four are those of Asked
    what: str,
    measure: Measure,
    sides: Sequence[Side],
    pair: Callable[[str, str, float, float], _Pair],
    *,
    control: str = "",
    noun: tuple[str, str] = PEOPLE,
    launch: int = 1,
    detect: float = NOTICEABLE,
) -> Comparison:
    """Compare each side with ``control`` and with each other side.

    ``pair``: compares two sides that have enough people. It gets their names, the probability of a wrong interval, and
    ``detect``.
    """
    people = {side.name: side.people for side in sides}
    pairs = _pairs(list(people), control)
    level = _level(len(pairs), launch)
    differences, unclear = [], {}
    for name, against in pairs:
        few = _too_few_people(noun, {each: people[each] for each in (name, against)})
        found = _Pair(few) if few else pair(name, against, 1 - level, detect)
        differences.append(_difference(measure, name, against, found))
        if found.so_far and found.interval and not found.interval.is_clear:
            unclear[f"{name} and {against}"] = found.so_far
    return Comparison(
        what,
        measure,
        tuple(side if side.people else replace(side, note=f"no {noun[1]}") for side in sides),
        tuple(differences),
        _methods(len(pairs), launch),
        level,
        noun=noun,
        outlook=_outlook(measure, what, unclear, level, noun),
    )


def _unit(people: int, others: int) -> float:
    """Return how many answers an interval of the difference is tuned by: fewer if the sides are of one size."""
    share = people / (people + others)
    return UNIT / (share * (1 - share))


class _SoFar(NamedTuple):
    """The numbers of two sides, to tell when a difference between them is clear."""

    answers: int
    people: int
    others: int
    estimate: float  # of both sides together
    difference: float  # that the outlook is about
    seen: float  # how much one answer shows of it: a squared mean in standard deviations
    silent: float = 1.0  # the part of the people without an answer: if it is small, chance moves answers less

    def needed(self, alpha: float) -> float:
        """Return at how many answers the difference is clear in four of five launches."""
        low = high = 1.0
        while not self._are_enough(high, alpha):
            low, high = high, 2 * high
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._are_enough(middle, alpha) else (middle, high)
        return high * self.silent

    def _are_enough(self, independent: float, alpha: float) -> bool:
        """Check whether so many answers are enough if people may answer repeatedly."""
        half = reach(1.0, _unit(self.people, self.others) / independent, alpha)
        return sqrt(independent * self.seen) >= half + _FOUR_OF_FIVE


def _outlook(
    measure: Measure,
    what: str,
    unclear: Mapping[str, _SoFar],
    level: float,
    noun: tuple[str, str],
) -> str:
    """Return a sentence on how much longer it takes to see a noticeable difference between the sides without one."""
    sentences = {}
    have = f"have {what}" if measure == "share" else "have a value"
    for pair, each in unclear.items():
        if each.seen <= _HOPELESS:
            continue
        needed = each.needed(1 - level)
        low, high = (amount(end, measure) for end in (each.estimate, each.estimate + each.difference))
        more = needed - each.answers
        people = (each.people + each.others) * more / each.answers
        sentences[needed / each.answers] = (
            f"Between {pair}, a difference such as {low} against {high} shows in four of five launches"
            + (
                f" once about {_rounded(needed)} {noun[1]} {have}. So far {each.answers:,} have: it takes "
                f"about {_rounded(more)} more, or a launch to about {_rounded(people)} more {noun[1]}."
                if more > 0
                else f" before {each.answers:,} {noun[1]} {have}, as is the case now."
            )
        )
    return sentences[max(sentences)] if sentences else ""


def _rounded(number: float) -> str:
    """Return a number with two significant digits."""
    return f"{int(float(f'{number:.2g}')):,}" if number >= 1 else "1"


def _few_values(compared: Comparison) -> Iterator[str]:
    people = compared.noun[1]
    known = {name for each in compared.differences if each.interval for name in (each.side, each.against)}
    counts = {side.name: side.count or 0 for side in compared.sides if side.name in known}
    if few := [f"{count:,} of {name}" for name, count in counts.items() if count < FEW_VALUES]:
        yield (
            f"Few {people} have a value: {', '.join(few)}. If some values are many times larger than others, an "
            f"interval from fewer than {FEW_VALUES} {people} per side is too narrow, above all next to a much larger "
            "side. Treat it as a hint."
        )


def _mean(name: str, count: int, whole: Values) -> Side:
    if not whole.count:
        return Side(name, 0)
    if count < FEWEST or whole.count < 2 or not whole.squares:
        return Side(name, whole.count, count, whole.mean)
    half = reach(whole.error, whole.error * UNIT / count, 1 - LEVEL)
    return Side(name, whole.count, count, whole.mean, Interval(whole.mean - half, whole.mean + half))


def _pairs(names: Sequence[str], control: str) -> list[tuple[str, str]]:
    """Return the pairs to compare: each side with the control, and the other sides with each other."""
    others = [name for name in names if name != control]
    against_control = [(name, control) for name in others] if control in names else []
    return against_control + [(name, other) for other, name in combinations(others, 2)]


def _level(differences: int, launch: int) -> float:
    return 1 - (1 - LEVEL) * spent(launch) / max(1, differences)


def _methods(differences: int, launch: int) -> tuple[str, ...]:
    """Return sentences on what the intervals promise."""
    level = percent(LEVEL)
    looks = f"The intervals hold with {level} at all looks together, so you may read this report as often as you like."
    if not differences:
        return (looks,)
    wrong = (1 - _level(differences, launch)) * 100
    each = f"{100 - wrong:.{max(2, 1 - floor(log10(wrong)))}f} %"
    why, which = ("", "the") if differences == 1 else (f" with {differences} differences", "each")
    return looks, (
        f"This is compared launch {launch} of its campaign{why}, so the interval of {which} difference has a level of "
        f"{each}. The differences of all launches of the campaign hold together with {level}."
    )


def _too_few_people(noun: tuple[str, str], sides: Mapping[str, int]) -> str:
    for name, people in sides.items():
        if people < FEWEST:
            return (
                f"{name} has {counted(people, *noun)}, and a difference needs {FEWEST} or more on each side"
            )
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


def _difference(measure: Measure, side: str, against: str, found: _Pair) -> Difference:
    pair, estimate, interval = f"{side} against {against}", found.estimate, found.interval
    if interval is None:
        return Difference(side, against, None, None, f"{pair}: too few to tell ({found.few}).")
    ends = (interval.low, interval.high)
    low, high, seen = (spoken(each, measure) for each in (*ends, estimate))
    if interval.is_clear:
        least, most, by = (
            spoken(each, measure).lstrip("+") for each in (*sorted(map(abs, ends)), abs(estimate))
        )
        said = f"{'more' if estimate > 0 else 'less'}, by {by} (between {least} and {most})"
    else:
        said = (
            f"no clear difference. {seen} was measured, and any value between {low} and {high} is plausible"
        )
    return Difference(side, against, estimate, interval, f"{pair}: {said}.")
