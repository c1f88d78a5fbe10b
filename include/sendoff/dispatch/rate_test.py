"""Find out by a sequential test whether the true rate of a problem, such as missing recipients, is above its limit.

A bare percentage is often above the limit by chance, above all early and if it is looked at often. This test may be
looked at after every recipient, for as long as a launch takes. If the true rate is at the limit or below, the
probability that it ever finds "above the limit" is at most :data:`FALSE_ALARMS`.

It is Wald's sequential probability ratio test of the limit against twice the limit:

.. code-block:: text

    each draw with the problem ....... evidence + log(2)
    each draw without it ............. evidence + log((1 - 2 * limit) / (1 - limit))
    above the limit .................. evidence >= log(1 / FALSE_ALARMS)

The alternative is twice the limit, because that test needs the fewest recipients to notice three times the limit in
99 % of cases. At rates between the limit and about 1.4 times the limit, it may never find anything. For limits above
one third, the alternative lies in the middle between the limit and 1.

The draws must be independent, or at least each must have the problem with a probability of at most the limit, whatever
happened before. If several recipients always share their fate, count them as one draw: all recipients of a refused
request are refused. A smaller ``weight`` lets a draw count less, for example a small request. The weight must not
depend on the result.

The order of draws makes no difference. A draw without a result yet counts as one without the problem. So a result that
arrives late cannot cause a false alarm, whatever its delay depends on.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log, log1p
from typing import NamedTuple

FALSE_ALARMS = 0.01
"""The probability that the test ever finds "above the limit" if the true rate is at the limit."""


class Draws(NamedTuple):
    """Independent draws of one weight, from 0 to 1: how many there are, and how many have the problem."""

    number: int
    problems: int
    weight: float = 1.0


def is_above(limit: float, draws: Iterable[Draws]) -> bool:
    """Check whether the true rate is above ``limit``, a share between 0 and 1."""
    return evidence(limit, draws) >= -log(FALSE_ALARMS)


def evidence(limit: float, draws: Iterable[Draws]) -> float:
    """Return the logarithm of the evidence that the true rate is above ``limit``; it is below 0 if there is none."""
    if limit >= 1:
        return 0.0
    stake = min(1 / (1 - limit), 1 / (2 * limit))
    return sum(
        each.problems * log1p(stake * each.weight * (1 - limit))
        + (each.number - each.problems) * log1p(-stake * each.weight * limit)
        for each in draws
    )
