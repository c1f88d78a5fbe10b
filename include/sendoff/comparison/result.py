"""The result of a comparison: its sides, their differences, and what these mean in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from sendoff.figures import listed

LEVEL = 0.95
PEOPLE = ("person", "people")

Measure = Literal["share", "mean"]

_MOST_DECIMALS = 6
_LARGE = 999.95  # means from here on are shown without decimals


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


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
    difference at all looks together. It is above 0.95, so that all differences of the campaign hold together.
    ``is_final``: False while results still arrive. ``noun``: for the recipients, singular and plural. ``outlook``: how
    much longer it takes to see a difference. ``mismatch``: why the sides must not be compared, if they must not.
    """

    what: str
    measure: Measure
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...] = ()
    remarks: tuple[str, ...] = ()
    level: float = LEVEL
    is_final: bool = True
    noun: tuple[str, str] = PEOPLE
    outlook: str = ""
    mismatch: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values, which ``from_json`` reads."""
        values = asdict(self)
        return {name: list(each) if isinstance(each, tuple) else each for name, each in values.items()}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Comparison:
        """Read a comparison that ``to_json`` wrote."""
        return _comparisons().validate_python(values)


@cache
def _comparisons() -> TypeAdapter[Comparison]:
    return TypeAdapter(Comparison)


def conclusion(compared: Comparison) -> str:
    """Return the result of a comparison in a sentence, or an empty text if there are no differences.

    A side is only called ahead of another if the interval of their difference excludes 0, and never if the sides must
    not be compared.
    """
    if compared.mismatch or not compared.differences:
        return compared.mismatch
    known = [(each, each.interval) for each in compared.differences if each.interval]
    clear = [each for each, interval in known if interval.is_clear]
    if not known:
        begin = "There" if compared.is_final else "So far, there"
        return f"{begin} are too few results to tell which side is ahead."
    if not clear:
        what = "the difference" if len(known) == 1 else "each difference"
        begin = "No" if compared.is_final else "So far, no"
        return f"{begin} side is clearly ahead, because chance can explain {what}."
    sides = sorted(compared.sides, key=lambda side: -(side.estimate or 0))
    results = {side.name: amount(side.estimate or 0, compared.measure) for side in sides}
    pairs = {
        (each.side, each.against) if (each.estimate or 0) > 0 else (each.against, each.side) for each in clear
    }
    ahead = []
    for one, result in results.items():  # the largest first
        if others := [other for other in results if (one, other) in pairs]:
            than = listed(results[other] for other in others)
            ahead.append(f"{one} is ahead of {listed(others)} ({result} against {than} {compared.what})")
    rest = "" if len(clear) == len(compared.differences) else " The other differences may be chance."
    begin = "" if compared.is_final else "So far, "
    return f"{begin}{'; '.join(ahead)}. Chance alone seldom makes such a difference, however often you look.{rest}"


def amount(estimate: float, measure: Measure) -> str:
    """Return a share in percent, or a mean, as text."""
    if measure == "share":
        share = max(0.0, estimate)
        return percent(share, _decimals(min(share, 1 - share)))
    return f"{estimate:#,.4g}" if abs(estimate) < _LARGE else f"{estimate:,.0f}"


def spoken(difference: float, measure: Measure) -> str:
    """Return a difference as text. A difference of shares is in percentage points."""
    if measure == "share":
        return f"{100 * difference:+.{_decimals(difference)}f} points"
    return f"{difference:+#,.4g}" if abs(difference) < _LARGE else f"{difference:+,.0f}"


def _decimals(share: float) -> int:
    """Return how many decimals a share has in percent: two, or more for two significant digits if it is small."""
    exponent = int(f"{100 * abs(share):.1e}".partition("e")[2])
    return max(2, min(_MOST_DECIMALS, 1 - exponent))


def percent(share: float, digits: int = 0) -> str:
    """Return a share between 0 and 1 in percent."""
    return f"{100 * share:.{digits}f} %"
