"""The sequential test, over 10,000 simulated launches at each limit. Seeds are fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sendoff.dispatch.rate_test import FALSE_ALARMS, Draws, evidence, is_above
from tools.reference.hold_above import needed, probabilities, smallest_limit

LAUNCHES = 10_000
ENOUGH = 500
LIMITS = (0.025, 0.05, 0.1, 0.2, 0.33)
LONG = 3_000  # recipients of a launch

Holds = Callable[[float, int, int], bool]  # limit, recipients, problems


def sequential(limit: float, count: int, problems: int) -> bool:
    return is_above(limit, [Draws(count, problems)])


def bare_percentage(limit: float, count: int, problems: int) -> bool:
    """Hold as soon as the share is above the limit, after a first hundred recipients: wrong on purpose."""
    return count >= 100 and problems > limit * count


def held_after(holds: Holds, limit: float, rate: float, recipients: int, look: int = 1) -> npt.NDArray[Any]:
    """Simulate launches that are looked at after each ``look`` recipients.

    Return after how many recipients each is held; a number above ``recipients`` means never.
    """
    looks = np.arange(look, recipients + 1, look)
    least, bounds = 0, []
    for n in looks.tolist():
        while least <= n and not holds(limit, n, least):
            least += 1
        bounds.append(least)
        least = max(least - 1, 0)
    random = np.random.default_rng(17)
    ends = []
    for _ in range(LAUNCHES // 500):
        problems = np.cumsum(random.random((500, recipients), np.float32) < rate, axis=1, dtype=np.int32)
        are_held = problems[:, looks - 1] >= np.asarray(bounds)
        first = looks[are_held.argmax(axis=1)]
        ends.append(np.where(are_held.any(axis=1), first, recipients + 1))
    return np.concatenate(ends)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.promise("hands/rates")
def test_three_times_the_limit_is_noticed_within_500_recipients(limit: float) -> None:
    assert np.mean(held_after(sequential, limit, 3 * limit, ENOUGH) <= ENOUGH) >= 0.99


@pytest.mark.parametrize("look", [1, 50])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.promise("hands/rates")
def test_a_launch_at_its_limit_is_seldom_held_however_often_one_looks(limit: float, look: int) -> None:
    assert np.mean(held_after(sequential, limit, limit, LONG, look) <= LONG) <= FALSE_ALARMS


def test_the_simulation_catches_a_bare_percentage() -> None:
    assert np.mean(held_after(bare_percentage, 0.05, 0.05, LONG) <= LONG) > 0.5


def test_half_the_limit_never_holds() -> None:
    assert not (held_after(sequential, 0.05, 0.025, LONG) <= LONG).any()


REQUESTS, RECIPIENTS, LIMIT = 300, 100, 0.05


def refusals(seed: int) -> npt.NDArray[np.bool_]:
    """Return which requests of each simulated launch are refused, at the limit."""
    return np.random.default_rng(seed).random((LAUNCHES, REQUESTS)) < LIMIT


def share_held(log_factors: npt.NDArray[np.float64]) -> float:
    """Return the share of launches that have enough evidence after any request."""
    enough = evidence_needed()
    return float(np.mean((np.cumsum(log_factors, axis=1) >= enough).any(axis=1)))


def evidence_needed() -> float:
    return float(-np.log(FALSE_ALARMS))


def test_refused_requests_count_as_a_whole_because_their_recipients_share_one_answer() -> None:
    refused = refusals(1)
    whole = [evidence(LIMIT, [Draws(1, problems)]) for problems in (0, 1)]
    assert share_held(np.where(refused, whole[1], whole[0])) <= FALSE_ALARMS
    alone = [evidence(LIMIT, [Draws(RECIPIENTS, problems)]) for problems in (0, RECIPIENTS)]
    assert share_held(np.where(refused, alone[1], alone[0])) > 0.5, "as if each recipient had its own answer"


def test_small_requests_may_be_mixed_with_large_ones() -> None:
    refused = refusals(2)
    weights = np.random.default_rng(3).choice([0.05, 0.5, 1.0], REQUESTS)
    without, with_ = (
        np.array([evidence(LIMIT, [Draws(1, problems, weight)]) for weight in weights]) for problems in (0, 1)
    )
    assert share_held(np.where(refused, with_, without)) <= FALSE_ALARMS


def test_refusals_that_arrive_before_acceptances_hold_no_launch_by_mistake() -> None:
    refused, slow = refusals(4), 30
    without, with_ = (evidence(LIMIT, [Draws(1, problems)]) for problems in (0, 1))
    seen_refused = np.cumsum(refused, axis=1)
    made = np.arange(1, REQUESTS + 1)
    # A refusal is known at once, and an acceptance only after 30 more requests.
    answered = (
        seen_refused + np.maximum(made - slow, 0) - np.pad(seen_refused, ((0, 0), (slow, 0)))[:, :-slow]
    )
    on_the_way_counts = seen_refused * with_ + (made - seen_refused) * without
    on_the_way_left_out = seen_refused * with_ + (answered - seen_refused) * without
    enough = evidence_needed()
    assert np.mean((on_the_way_counts >= enough).any(axis=1)) <= FALSE_ALARMS
    assert np.mean((on_the_way_left_out >= enough).any(axis=1)) > FALSE_ALARMS


def test_a_limit_of_everybody_holds_nothing() -> None:
    assert not is_above(1.0, [Draws(1_000, 1_000)])
    assert is_above(0.99, [Draws(10_000, 10_000)])
    assert not is_above(0.05, [])


@pytest.mark.proof
def test_the_table_of_the_reference_agrees_with_the_simulation() -> None:
    held = held_after(sequential, 0.05, 0.15, ENOUGH)
    exact = probabilities(0.05, 0.15, ENOUGH)
    for n in (50, 100, 200):
        assert np.mean(held <= n) == pytest.approx(exact[n], abs=0.02)
    assert exact[needed(0.05, 0.99)] >= 0.99 > exact[needed(0.05, 0.99) - 1]
    assert needed(smallest_limit() / 100, 0.99) <= ENOUGH < needed(smallest_limit() / 100 - 0.001, 0.99)
