"""Adjust means by what the people did before the launch (CUPED), so that their differences have narrower intervals.

Chance assigns the people after they did it, so it differs between the sides only by chance. The part of an outcome that
it explains is noise, and is subtracted on every side with the same slope. docs/reference/comparisons.md has the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple, Unpack

from sendoff.comparison.balance import FALSE_ALARMS
from sendoff.comparison.result import Comparison, percent
from sendoff.comparison.statistics import Asked, SideValues, Values, compared_means

BEFORE = "before.sql"
"""The file of a campaign with the query of what the people did before the launch."""

_NOTHING = 1e-9  # of the variance; with less left, both queries return the same numbers


class SideOutcome(NamedTuple):
    """What the people of one side did before and after a launch.

    ``values`` and ``before``: the numbers of those with one; all others of the ``people`` count with 0. ``products``:
    the sum over everyone of both deviations from the means, multiplied.
    """

    name: str
    people: int
    values: Values
    before: Values
    products: float


def compared_adjusted(what: str, sides: Sequence[SideOutcome], **asked: Unpack[Asked]) -> Comparison:
    """Compare means that are adjusted by what people did before. Remarks say by how much the intervals are narrower.

    If that explains nothing, or cannot be from before the launch, the means are not adjusted, and a remark says why.
    """
    values = [SideValues(side.name, side.values, side.people) for side in sides]
    plain = compared_means(what, values, **asked)
    many = plain.noun[1]
    if reason := _why_not(sides, many):
        said, found = f"The means are not adjusted by {BEFORE}, because {reason}", plain
    else:
        adjusted = _adjusted(sides)
        values = [each._replace(adjusted=adjusted[each.name]) for each in values]
        found = compared_means(what, values, **asked)
        said = f"The means are adjusted by what the {many} did before the launch, according to {BEFORE}."
        said += _widths(plain, found)
    return replace(found, remarks=(said, *found.remarks))


def _adjusted(sides: Sequence[SideOutcome]) -> Mapping[str, Values]:
    """Return the outcomes of everyone on each side, less the part that what they did before explains."""
    before = {side.name: side.before.with_zeros(side.people) for side in sides}
    slope = sum(side.products for side in sides) / sum(each.squares for each in before.values())
    centre = sum(each.mean * each.count for each in before.values()) / sum(side.people for side in sides)
    found = {}
    for name, people, values, _, products in sides:
        whole, early = values.with_zeros(people), before[name]
        squares = whole.squares - 2 * slope * products + slope**2 * early.squares
        found[name] = Values(people, whole.mean - slope * (early.mean - centre), max(0.0, squares))
    return found


def _why_not(sides: Sequence[SideOutcome], many: str) -> str:
    """Return why the means must not be adjusted, or an empty text."""
    before = [side.before.with_zeros(side.people) for side in sides]
    if not any(each.squares for each in before):
        return f"it returns the same number for all {many}."
    left, whole = (
        sum(each.squares for each in summaries)
        for summaries in (_adjusted(sides).values(), [side.values.with_zeros(side.people) for side in sides])
    )
    if whole and left <= _NOTHING * whole:
        return "its numbers explain the outcome completely. Check that the query ends before the launch."
    pairs = list(combinations([each for each in before if each.count > 1], 2))
    limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / 2 / max(1, len(pairs)))
    if any(abs(one.mean - other.mean) > limit * _error_by_chance(one, other) for one, other in pairs):
        return (
            "its means differ between the sides, and chance hardly explains that. Check that the query counts only "
            "what happened before this launch and before earlier launches of the campaign."
        )
    return ""


def _error_by_chance(one: Values, other: Values) -> float:
    """Return the standard error of the difference of two means if chance divided all people between the sides.

    A small side alone would show too little of the variance, if a few people have much larger numbers than others.
    """
    together = one.and_(other)
    return sqrt(together.squares / (together.count - 1) * (1 / one.count + 1 / other.count))


def _widths(plain: Comparison, found: Comparison) -> str:
    """Return a sentence on the intervals after the adjustment, or an empty text without any."""
    shares = sorted(_parts_saved(plain, found))
    if not shares:
        return ""
    least, most = (
        f"{percent(abs(share))} {'wider' if share < 0 else 'narrower'}" for share in (shares[0], shares[-1])
    )
    if least == most:
        return (
            f" That makes {'the interval' if len(shares) == 1 else 'each interval'} {most} than without it."
        )
    return f" That makes the intervals between {least} and {most} than without it."


def _parts_saved(plain: Comparison, found: Comparison) -> Iterator[float]:
    """Yield by what share the interval of each difference is narrower after the adjustment."""
    for one, other in zip(plain.differences, found.differences, strict=True):
        if one.interval and other.interval:
            yield 1 - (other.interval.high - other.interval.low) / (one.interval.high - one.interval.low)
