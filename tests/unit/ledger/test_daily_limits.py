"""Daily limits: how many recipients of a connection count, and which requests stop counting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from sendoff.audience.identifiers import integers
from sendoff.errors import NotYetError
from sendoff.ledger import DailyLimit, Ledger, SuppressionChange
from sendoff.ledger.requests.claims import Claim
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused

from ...factories import KEY, LEASE, NOW, make_launch

LIMIT = DailyLimit("service", NOW.date(), 10)
MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC)


def claim(ledger: Ledger, key: str = KEY, limit: DailyLimit = LIMIT) -> Claim:
    found = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE, limit=limit)
    assert found is not None
    return found


def used(ledger: Ledger) -> int:
    return ledger.daily_limits.recipients_on("service", NOW.date())


def test_a_claim_that_does_not_fit_into_the_day_waits_for_the_next_one(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 13), size=4)
    claim(ledger)
    claim(ledger)
    with pytest.raises(
        NotYetError, match=r"may reach 10 recipients on 2026-03-02 .* request has 4"
    ) as caught:
        claim(ledger)
    assert caught.value.until == MIDNIGHT
    assert used(ledger) == 8
    assert ledger.dispatch_queries.states(KEY) == {"in_flight": 2, "planned": 1}
    tomorrow = DailyLimit("service", MIDNIGHT.date(), 15)
    assert claim(ledger, limit=tomorrow).is_limited
    assert ledger.daily_limits.recipients_on("service", tomorrow.day) == 4


def test_all_launches_of_a_connection_share_the_limit(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 7))
    other = make_launch(ledger, range(101, 108), name="autumn")
    foreign = make_launch(ledger, range(1, 8), connection="other")
    claim(ledger)
    with pytest.raises(NotYetError):
        claim(ledger, other.launch_key)
    claim(ledger, foreign.launch_key, DailyLimit("other", NOW.date(), 10))


@pytest.mark.parametrize(
    ("outcome", "count"),
    [(Accepted(200, 1), 6), (Refused(403, "no"), 6), (InDoubt("silence"), 6), (NotProcessed("429"), 0)],
)
def test_only_a_request_that_was_certainly_not_processed_is_taken_back_and_only_once(
    ledger: Ledger, outcome: Outcome, count: int
) -> None:
    make_launch(ledger, range(1, 7))
    made = claim(ledger)
    for _ in range(2):  # the reply to the first commit was lost
        ledger.dispatches.record(made, outcome, NOW)
    assert used(ledger) == count


def test_a_claim_that_its_worker_never_learned_of_is_taken_back(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 7))
    ledger.suppressions.add(SuppressionChange("account", "device_id", "test", "ann"), [1, 2], NOW)
    assert len(claim(ledger).content) == used(ledger) == 4
    ledger.dispatches.give_back(KEY, "w", NOW, is_limited=True)
    assert used(ledger) == 0
    assert ledger.dispatch_queries.states(KEY) == {"planned": 1}


def test_a_launch_without_a_limit_counts_nothing(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 7))
    made = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert made is not None
    ledger.dispatches.record(made, NotProcessed("429"), NOW)
    assert used(ledger) == 0


def test_workers_at_once_never_exceed_the_limit(ledger: Ledger) -> None:
    limit = DailyLimit("service", NOW.date(), 50)
    launches = [make_launch(ledger, range(n, n + 60), size=3, name=f"c{n}").launch_key for n in (100, 200)]

    def work(number: int) -> int:
        claimed = 0
        try:
            while True:
                found = ledger.dispatches.claim(
                    launches[number % 2], worker=f"w{number}", now=NOW, lease=LEASE, limit=limit
                )
                claimed += len(found.content) if found else 0
        except NotYetError:
            return claimed

    with ThreadPoolExecutor(4) as pool:
        total = sum(pool.map(work, range(4)))
    assert total == used(ledger) == 48


def test_a_request_over_midnight_is_taken_back_from_the_day_of_its_claim(ledger: Ledger) -> None:
    make_launch(ledger, integers(range(1, 7)))
    made = claim(ledger)
    ledger.dispatches.record(made, NotProcessed("429"), MIDNIGHT + timedelta(seconds=1))
    assert used(ledger) == 0
    assert ledger.daily_limits.recipients_on("service", MIDNIGHT.date()) == 0
