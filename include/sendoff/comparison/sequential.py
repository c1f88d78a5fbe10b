"""Confidence sequences: tests and intervals that hold however often they are looked at.

A fixed-time interval of 95 % is wrong at some look far more often than in one of twenty launches. The functions here
bound the probability of ever being wrong, in one launch and in all launches of a campaign together.
docs/reference/comparisons.md has the reasons and the papers.
"""

from __future__ import annotations

from math import exp, hypot, inf, lgamma, log, log1p, pi, sqrt
from typing import NamedTuple

TIGHTEST = 800
"""The answers, on two sides of equal size together, at which the interval of a difference is tightest."""

UNIT = TIGHTEST / 32
"""The inverse of the variance that is expected of the logarithm of the odds: lifts of about 20 %."""

FEW_ANSWERS = 5
"""The interval of one share is tightest at about eight times as many answers."""

_EXPECTED = ((0.9, UNIT), (0.1, 1.0))  # the second, with a small weight, for much larger lifts
_STEPS = 50  # of a bisection
_TINY = 1e-9


def spent(launch: int) -> float:
    """Return the part that one launch has of the probability that any launch of its campaign is ever wrong.

    ``launch``: its number among the compared launches of the campaign, from 1. The parts of all launches add up to 1.
    """
    return 6 / (pi * launch) ** 2


class Answers(NamedTuple):
    """How many answered, and how many people might have answered."""

    answers: int
    people: int


def evidence(one: Answers, other: Answers, expected: float | None = None) -> float:
    """Return the logarithm of the evidence that the answers are not divided between two sides as expected.

    ``expected``: the probability that an answer comes from ``one``, while no one has answered. By default, people on
    both sides answer alike. Then the evidence is exact: with a probability of at most ``alpha``, it is
    ``-log(alpha)`` or more at any look, whenever and however often one looks.

    It is the ratio of two probabilities of the sides that the answers came from, in their order. Above the line, each
    comes from ``one`` with an unknown probability (beta-binomial). Below, each comes from someone drawn at random from
    those who have not answered yet.
    """
    alike = one.people / (one.people + other.people)
    share = alike if expected is None else expected
    ratio = sqrt(share / (1 - share) * (1 - alike) / alike) if expected else 1.0
    pools = one.people * ratio, other.people / ratio
    if pools[0] < one.answers or pools[1] < other.answers:
        return inf
    drawn = _log_orders(pools[0], one.answers) + _log_orders(pools[1], other.answers)
    drawn -= _log_orders(sum(pools), one.answers + other.answers)
    found = [
        log(weight)
        + _log_beta(unit / (1 - share) + one.answers, unit / share + other.answers)
        - _log_beta(unit / (1 - share), unit / share)
        for weight, unit in _EXPECTED
    ]
    return max(found) + log1p(exp(min(found) - max(found))) - drawn


def _log_beta(one: float, other: float) -> float:
    return lgamma(one) + lgamma(other) - lgamma(one + other)


def _log_orders(people: float, drawn: int) -> float:
    """Return the logarithm of people * (people - 1) * ..., with as many factors as ``drawn``."""
    return lgamma(people + 1) - lgamma(people - drawn + 1)


def differs(one: Answers, other: Answers, alpha: float = 0.05) -> bool:
    """Check whether two sides of people answer differently. If they do not, ``alpha`` bounds the chance of ever True.

    The bound holds for all looks together.
    """
    return bool(one.people and other.people) and evidence(one, other) >= -log(alpha)


def end_of_interval(one: Answers, other: Answers, alpha: float, *, is_low: bool) -> float:
    """Return an end of the interval of the share of ``one`` minus that of ``other``.

    It is the end of the divisions of the answers that the evidence allows, at the number of answers so far. The
    uncertainty of that number moves it further, but never across 0. Answers of nearly everyone can hardly be divided in
    another way. So if most people answered, it is at least as far as the same end for those who did not. The ends of
    both shares limit that.
    """
    end = _end(one, other, alpha, is_low=is_low)
    if 2 * (one.answers + other.answers) <= one.people + other.people:
        return end
    silent, others = (each._replace(answers=each.people - each.answers) for each in (one, other))
    further = -_end(silent, others, alpha, is_low=not is_low)
    ours, theirs = (interval_of_share(each, alpha / 2) for each in (one, other))
    at_most = ours[0] - theirs[1] if is_low else ours[1] - theirs[0]
    further = min(end, max(further, at_most)) if is_low else max(end, min(further, at_most))
    return end if end * further < 0 or (end and not further) else further


def interval_of_share(of: Answers, alpha: float) -> tuple[float, float]:
    """Return the interval of the share that answers, which holds at all looks together."""
    share = of.answers / of.people
    half = reach(share * (1 - share) / of.people, FEW_ANSWERS / of.people**2, alpha)
    return max(0.0, share - half), min(1.0, share + half)


def _end(one: Answers, other: Answers, alpha: float, *, is_low: bool) -> float:
    answers = one.answers + other.answers
    if not answers:  # all of them are doubtful
        return -1.0 if is_low else 1.0
    inside, outside = one.answers / answers, 0.0 if is_low else 1.0
    if inside != outside:
        inside = min(max(inside, _TINY), 1 - _TINY)
        for _ in range(_STEPS):
            middle = (inside + outside) / 2
            if evidence(one, other, middle) < -log(alpha):
                inside = middle
            else:
                outside = middle
    end = answers * inside / one.people - answers * (1 - inside) / other.people
    if abs(end) < _TINY:
        return 0.0
    share = answers / (one.people + other.people)
    total = reach(answers * (1 - share), FEW_ANSWERS, alpha) / answers
    measured = one.answers / one.people - other.answers / other.people
    far = hypot(end - measured, total * end)
    return max(-1.0, measured - far) if is_low else min(1.0, measured + far)


def reach(variance: float, tuned: float, alpha: float) -> float:
    """Return half the width of an asymptotic confidence sequence at the variance of an estimate.

    It is tightest at about eight times the variance ``tuned``.
    """
    return sqrt((variance + tuned) * (log1p(variance / tuned) - 2 * log(alpha)))
