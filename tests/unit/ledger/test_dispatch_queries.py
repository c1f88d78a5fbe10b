"""Pages of launches and requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Period, Variation, launch_key
from sendoff.dispatch.control import resolve_seen
from sendoff.ledger import Ledger
from sendoff.states import Accepted, InDoubt, NotProcessed, Outcome, Refused, Resolution

from ...factories import LEASE, NOW, make_launch, send
from ...leases import expire


def freeze(ledger: Ledger, campaign: str, day: int, *, state: str = "released", people: int = 5) -> str:
    period = Period(datetime(2026, 3, day, tzinfo=UTC), datetime(2026, 3, day + 1, tzinfo=UTC))
    key = launch_key("service", campaign, period)
    identifiers = integers(range(1, people + 1))
    make_launch(
        ledger,
        identifiers,
        segments=[Segment(segment, Variation(language="de")) for segment in identifiers.slices(1)],
        name=campaign,
        period=period,
        launch_key=key,
        created_at=NOW + timedelta(days=day),
        sends_at=None,
        state=state,
    )
    return key


def attempt(ledger: Ledger, key: str, outcome: Outcome) -> str:
    claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    ledger.dispatches.record(claim, outcome, NOW)
    return claim.dispatch_key


def test_launches_come_newest_first_of_those_campaigns_and_states_alone(ledger: Ledger) -> None:
    old, new = freeze(ledger, "spring", 1), freeze(ledger, "spring", 2)
    held = freeze(ledger, "autumn", 3, state="held")
    freeze(ledger, "secret", 4)

    def page(*campaigns: str, **more: object) -> list[str]:
        return [each.launch_key for each in ledger.launches.page(campaigns, **more)]  # type: ignore[arg-type]

    assert page("spring", "autumn") == [held, new, old]
    assert page("spring", "autumn", offset=1, limit=1) == [new]
    assert page("spring", "autumn", states=["held", "paused"]) == [held]
    assert page() == []
    assert ledger.launches.count_of(["spring", "autumn"]) == 3
    assert ledger.launches.count_of(["spring"], states=["held"]) == 0
    assert ledger.launches.campaigns() == {"autumn": 1, "secret": 1, "spring": 2}
    assert ledger.launches.connections() == ["service"]


def test_the_launches_of_a_period_are_those_of_some_campaigns_the_first_one_first(ledger: Ledger) -> None:
    def made(name: str, first: int, last: int, **fields: Any) -> str:
        start, end = (datetime(2026, 3, day, tzinfo=UTC) for day in (first, last))
        period = Period(start, end, fields.pop("partition", None))
        at = NOW - timedelta(days=first)
        return make_launch(ledger, [1], name=name, period=period, created_at=at, **fields).launch_key

    day, week = made("spring", 3, 4), made("autumn", 1, 8)
    made("spring", 2, 3)
    made("spring", 4, 5)
    made("other", 3, 4)
    made("spring", 3, 4, connection="other")
    of_shop = made("spring", 3, 4, partition="shop")
    period = Period(datetime(2026, 3, 3, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC))

    def found(period: Period, *, or_overlapping: bool) -> list[str]:
        names = ["spring", "autumn"]
        launches = ledger.launches.of_period("service", names, period, or_overlapping=or_overlapping)
        return [each.launch_key for each in launches]

    assert found(period, or_overlapping=False) == [day]
    assert found(period, or_overlapping=True) == [day, week]
    assert found(Period(period.start, period.end, "shop"), or_overlapping=True) == [of_shop]
    early = Period(period.start, period.end - timedelta(hours=1))
    assert found(early, or_overlapping=False) == []
    assert found(early, or_overlapping=True) == [day, week]


def test_launches_are_found_by_the_start_of_their_key_and_their_campaign(ledger: Ledger) -> None:
    spring, autumn = freeze(ledger, "spring", 1), freeze(ledger, "autumn", 2)

    def found(*of: str, **more: Any) -> list[str]:
        return [each.launch_key for each in ledger.launches.search(*of, **more)]

    assert found() == [autumn, spring]
    assert found(limit=1) == [autumn]
    assert found(spring[:8]) == [spring]
    assert found(spring[1:9]) == found("%") == found("_") == []
    assert found(campaign="spring") == [spring]
    assert found(autumn[:8], campaign="spring") == []


@pytest.mark.parametrize(
    ("last", "is_written_off"), [(Accepted(200, 7), False), (InDoubt("lost"), False), (InDoubt("lost"), True)]
)
def test_sending_took_from_the_first_request_that_may_be_sent_to_the_last(
    ledger: Ledger, last: Outcome, is_written_off: bool
) -> None:
    key = freeze(ledger, "spring", 1)
    assert ledger.dispatch_queries.sending_span(key) == timedelta()
    outcomes = [Refused(400, "no"), Accepted(200, 7), Accepted(200, 7), last, Refused(400, "no")]
    for minutes, outcome in enumerate(outcomes):
        (made,) = send(ledger, key, outcome, at=NOW + timedelta(minutes=minutes))
        if outcome == last and is_written_off:
            assert ledger.doubts.resolve(made, Resolution.WRITE_OFF, "ann", "no answer", NOW)
    assert ledger.dispatch_queries.sending_span(key) == timedelta(minutes=2)


def test_requests_come_with_what_was_recorded_of_their_attempts(ledger: Ledger) -> None:
    key = freeze(ledger, "spring", 1)
    attempt(ledger, key, NotProcessed("no token"))
    attempt(ledger, key, Accepted(200, 7))
    attempt(ledger, key, Refused(400, "bad title"))
    requests = ledger.dispatch_queries.requests(key)
    assert [each.segment for each in requests] == [1, 2, 3, 4, 5]
    first, second, *_ = requests
    assert (first.state, first.campaign_id, first.attempt, first.people) == ("accepted", 7, 2, 1)
    assert (first.language, first.time_zone, first.deliveries) == ("de", None, 0)
    assert [(each.attempt, each.kind, each.reason) for each in first.recorded] == [
        (1, "not_processed", "no token"),
        (2, "accepted", None),
    ]
    assert (second.recorded[0].status, second.recorded[0].reason) == (400, "bad title")
    assert [each.segment for each in ledger.dispatch_queries.requests(key, states=["planned"], offset=1)] == [
        4,
        5,
    ]
    assert [each.segment for each in ledger.dispatch_queries.requests(key, offset=3, limit=1)] == [4]


def test_refusals_and_their_reasons_are_those_since_a_moment(ledger: Ledger) -> None:
    key = freeze(ledger, "spring", 1)
    for minutes, reason in ((0, "bad title"), (1, "no channel"), (2, "bad title")):
        claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
        assert claim is not None
        ledger.dispatches.record(claim, Refused(400, reason), NOW + timedelta(minutes=minutes))
    queries = ledger.dispatch_queries
    assert (queries.refused(key), queries.reasons(key, "refused")) == (3, ["bad title", "no channel"])
    assert (queries.refused(key, NOW), queries.reasons(key, "refused", NOW)) == (
        2,
        ["bad title", "no channel"],
    )
    since = NOW + timedelta(minutes=1)
    assert (queries.refused(key, since), queries.reasons(key, "refused", since)) == (1, ["bad title"])
    assert queries.reasons(key, "in_doubt") == []


def test_a_doubt_is_resolved_only_as_it_was_seen(ledger: Ledger) -> None:
    key = freeze(ledger, "spring", 1, people=1)
    dispatch = attempt(ledger, key, InDoubt("it timed out"))
    [seen] = ledger.dispatch_queries.requests(key, states=["in_doubt"])
    assert seen.doubts == 1
    assert resolve_seen(ledger, {dispatch: 1}, Resolution.RESEND, "ann", "again", now=NOW) == 1
    attempt(ledger, key, InDoubt("it timed out"))
    assert resolve_seen(ledger, {dispatch: seen.doubts}, Resolution.WRITE_OFF, "bob", "late", now=NOW) == 0
    [now] = ledger.dispatch_queries.requests(key)
    assert (now.state, now.doubts) == ("in_doubt", 2)
    assert resolve_seen(ledger, {dispatch: 2}, Resolution.WRITE_OFF, "bob", "now", now=NOW) == 1
    assert ledger.dispatch_queries.states(key) == {"written_off": 1}


def test_an_attempt_that_was_said_to_be_refused_later_is_no_doubt(ledger: Ledger) -> None:
    key = freeze(ledger, "spring", 1, people=1)
    claim = ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE)
    assert claim is not None
    expire(ledger, key, NOW + 2 * LEASE)
    assert [each.doubts for each in ledger.dispatch_queries.requests(key)] == [1]
    ledger.dispatches.record(claim, Refused(400, "no"), NOW)
    assert [each.doubts for each in ledger.dispatch_queries.requests(key)] == [0]
