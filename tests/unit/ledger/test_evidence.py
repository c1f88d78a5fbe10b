"""Evidence in the ledger overrides further requests and decisions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.ledger import Claim, Ledger
from sendoff.ledger.post_backs.aggregates import AggregatedRun
from sendoff.ledger.post_backs.post_backs import PendingRun
from sendoff.ledger.post_backs.totals import DispatchTotals
from sendoff.ledger.storage.schema import attempts
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Resolution

from ...factories import KEY, LEASE, NOW, make_launch
from ...leases import expire


def claim(ledger: Ledger, worker: str = "w") -> Claim | None:
    return ledger.dispatches.claim(KEY, worker=worker, now=NOW, lease=LEASE)


def claimed(ledger: Ledger, worker: str = "w") -> Claim:
    found = claim(ledger, worker)
    assert found is not None
    return found


def states(ledger: Ledger) -> list[tuple[str, int]]:
    return [(each.state, each.attempt) for each in ledger.dispatch_queries.of_launch(KEY)]


def sent_again(ledger: Ledger, segments: int = 1) -> Claim:
    """Return the second attempt of a dispatch that was in doubt; it is in flight after a resend."""
    make_launch(ledger, range(1, segments + 1), size=1)
    first = claimed(ledger)
    ledger.dispatches.record(first, InDoubt("no answer"), NOW)
    assert ledger.doubts.resolve(first.dispatch_key, Resolution.RESEND, "ann", "again", NOW)
    second = claimed(ledger, "other")
    assert (second.dispatch_key, second.attempt) == (first.dispatch_key, 2)
    return second


def hear(ledger: Ledger, key: str) -> None:
    """Aggregate a post-back from the recipient in the first segment."""
    receiver = ledger.post_backs.register_receiver("test", NOW)
    body = b'{"time": 1772355600, "device": {"id": 1}}'
    ledger.post_backs.store(receiver, [(1, PostBack.received("open", key, NOW, body))])
    assert aggregate(ledger, now=NOW) == 1


def hear_and_die(ledger: Ledger, key: str) -> None:
    """Store evidence without resolving doubts, as an aggregation does that dies in between."""
    receiver = ledger.post_backs.register_receiver("test", NOW)
    nobody, somebody = integers([]), integers([1])
    part = DispatchTotals(nobody, somebody, nobody, 0, 1, {}, NOW, is_evidence=True)
    assert ledger.aggregates.store_run(AggregatedRun([PendingRun(receiver, 0, 1)], [{key: part}], [KEY], {}))


def ends(outcome: Outcome) -> Callable[[Ledger, Claim], None]:
    return lambda ledger, held: ledger.dispatches.record(held, outcome, NOW)


def is_given_back(ledger: Ledger, _: Claim) -> None:
    ledger.dispatches.give_back(KEY, "other", NOW)


def dies(ledger: Ledger, _: Claim) -> None:
    assert expire(ledger, None, NOW + 2 * LEASE) == 1


ENDS = {
    "not processed": ends(NotProcessed("patience", is_rate_limited=True)),
    "in doubt": ends(InDoubt("no answer")),
    "given back": is_given_back,
    "dead": dies,
}


@pytest.mark.promise("twice/once")
@pytest.mark.parametrize("hears", [hear, hear_and_die], ids=["aggregated", "aggregation died"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_evidence_that_came_while_a_later_attempt_was_in_flight_stands_when_that_ends(
    ledger: Ledger, end: Callable[[Ledger, Claim], None], hears: Callable[[Ledger, str], None]
) -> None:
    held = sent_again(ledger)
    hears(ledger, held.dispatch_key)
    assert states(ledger) == [("in_flight", 2)]
    end(ledger, held)
    assert states(ledger) == [("accepted", 2)]
    assert claim(ledger) is None
    assert ledger.dispatch_queries.reasons(KEY, "evidence") == ["a post-back came from it"]


@pytest.mark.promise("twice/once")
@pytest.mark.parametrize("is_recording", [False, True], ids=["claim", "record and claim"])
def test_what_evidence_is_stored_of_is_accepted_and_not_claimed_though_nobody_has_resolved_it(
    ledger: Ledger, is_recording: bool
) -> None:
    held = sent_again(ledger, segments=3)
    other = claimed(ledger)
    ledger.dispatches.record(held, NotProcessed("no connection"), NOW)
    hear_and_die(ledger, held.dispatch_key)
    assert states(ledger) == [("planned", 2), ("in_flight", 1), ("planned", 0)]
    following = None
    if is_recording:  # on PostgreSQL, it leaves the dispatch with evidence to the claim
        following = ledger.dispatches.record_and_claim(other, Accepted(200, 17), NOW, worker="w", lease=LEASE)
    following = following or claim(ledger)
    assert following is not None
    assert (following.segment, following.attempt) == (3, 1)
    assert states(ledger)[0] == ("accepted", 2)
    assert ledger.dispatch_queries.reasons(KEY, "evidence") == ["a post-back came from it"]
    with ledger._database.read() as db:
        assert db.scalar(sa.select(sa.func.count()).select_from(attempts)) == 4


@pytest.mark.promise("twice/once")
def test_many_that_evidence_is_stored_of_are_all_passed_over(ledger: Ledger) -> None:
    """The state after restoring a backup from before the request."""
    make_launch(ledger, range(1, 21), size=1)
    for each in ledger.dispatch_queries.of_launch(KEY)[:-1]:
        hear_and_die(ledger, each.dispatch_key)
    assert claimed(ledger).segment == 20
    assert states(ledger) == [("accepted", 0)] * 19 + [("in_flight", 1)]


@pytest.mark.code_decides
def test_the_revision_of_a_launch_is_one_less_until_it_has_a_report(ledger: Ledger) -> None:
    assert ledger.verdicts.revision(KEY) == 0  # there is no such launch
    make_launch(ledger, range(1, 3))
    before = ledger.verdicts.revision(KEY)
    reconcile_launch(ledger, KEY, now=NOW)
    assert ledger.verdicts.revision(KEY) == before + 1


def test_evidence_that_a_claim_comes_upon_is_news_for_a_report_that_was_made(ledger: Ledger) -> None:
    make_launch(ledger, range(1, 3), size=1)
    key = ledger.dispatch_queries.of_launch(KEY)[0].dispatch_key
    figures = reconcile_launch(ledger, KEY, now=NOW)
    hear_and_die(ledger, key)
    # A report that is being made at this time.
    ledger.verdicts.store(figures, {}, revision=ledger.verdicts.revision(KEY))
    assert ledger.verdicts.stale(NOW) == []
    assert claimed(ledger).segment == 2
    assert states(ledger)[0] == ("accepted", 0)
    assert ledger.verdicts.stale(NOW) == [KEY]


@pytest.mark.promise("twice/once")
@pytest.mark.parametrize("how", list(Resolution))
def test_evidence_that_nobody_has_resolved_stands_over_whoever_decides(ledger: Ledger, how: str) -> None:
    make_launch(ledger, range(1, 2), size=1)
    held = claimed(ledger)
    ledger.dispatches.record(held, InDoubt("no answer"), NOW)
    hear_and_die(ledger, held.dispatch_key)
    assert not ledger.doubts.resolve(held.dispatch_key, how, "ann", "again", NOW)  # type: ignore[arg-type]
    assert states(ledger) == [("accepted", 1)]
    assert ledger.audit_log.of_launch(KEY) == []


@pytest.mark.promise("twice/once")
@pytest.mark.parametrize("is_in_flight", [False, True], ids=["planned", "in flight"])
def test_what_the_service_lists_is_accepted_though_somebody_had_it_sent_again_meanwhile(
    ledger: Ledger, is_in_flight: bool
) -> None:
    held = sent_again(ledger)
    if not is_in_flight:
        ledger.dispatches.record(held, NotProcessed("no connection"), NOW)
    assert ledger.doubts.accept(held.dispatch_key, 17, "the service lists it", NOW)
    if is_in_flight:
        assert states(ledger) == [("in_flight", 2)]
        ledger.dispatches.record(held, NotProcessed("no connection"), NOW)
    assert states(ledger) == [("accepted", 2)]
    assert ledger.dispatch_queries.of_launch(KEY)[0].campaign_id == 17
    assert not ledger.doubts.accept(held.dispatch_key, 18, "the service lists it", NOW)
    assert ledger.dispatch_queries.of_launch(KEY)[0].campaign_id == 17
    assert claim(ledger) is None
