"""Generate the table in docs/reference/gates.md of the recipients that the gate ``hold_above`` needs.

The numbers are exact: the probability of each count of problems is carried from one recipient to the next.
"""

from __future__ import annotations

from itertools import count
from math import ceil, log

import numpy as np

from sendoff.dispatch.rate_test import FALSE_ALARMS, Draws, evidence
from tools.reference.markdown import table

TIMES = 3  # the true rate, in multiples of the limit
ENOUGH = 500  # recipients
LIMITS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0)  # percent
_LONG = 100  # problems at the limit in the launches whose false alarms are counted

_HEAD = (
    "Limit",
    f"Held in half of the cases at {TIMES} times the limit",
    f"Held in 99 % of the cases at {TIMES} times the limit",
    "Held by mistake at the limit",
)


def probabilities(limit: float, rate: float, most: int) -> list[float]:
    """Return the probability that a launch is held, after each number of recipients from 0 to ``most``."""
    without, with_ = (evidence(limit, [Draws(1, problems)]) for problems in (0, 1))
    holds = [max(ceil((-log(FALSE_ALARMS) - n * without) / (with_ - without)), 0) for n in range(most + 1)]
    going_on = np.zeros(holds[-1] + 2)  # the probability of each number of problems in a launch not held yet
    going_on[0] = 1.0
    held = [0.0]
    for least in holds[1:]:
        more = going_on[:-1] * rate
        going_on *= 1 - rate
        going_on[1:] += more
        held.append(held[-1] + float(going_on[least:].sum()))
        going_on[least:] = 0.0
    return held


def needed(limit: float, share: float) -> int:
    """Return after how many recipients this share of launches is held at three times the limit."""
    held = probabilities(limit, TIMES * limit, ceil(25 / limit))
    return next(n for n in count() if held[n] >= share)


def smallest_limit() -> float:
    """Return the smallest limit, in percent with one decimal, that needs at most 500 recipients in 99 % of cases."""
    return next(tenths / 10 for tenths in count(1) if needed(tenths / 1000, 0.99) <= ENOUGH)


def block() -> str:
    """Return the table with a sentence before it."""
    rows = [
        (
            f"{limit:g} %",
            f"{needed(limit / 100, 0.5):,} recipients",
            f"{needed(limit / 100, 0.99):,} recipients",
            f"{100 * probabilities(limit / 100, limit / 100, ceil(100 * _LONG / limit))[-1]:.1f} %",
        )
        for limit in LIMITS
    ]
    sentence = (
        f"From a limit of {smallest_limit():g} %, {ENOUGH} recipients are enough to notice {TIMES} times the limit in "
        "99 % of cases. A smaller limit needs more:"
    )
    return f"{sentence}\n\n{table(_HEAD, rows)}"
