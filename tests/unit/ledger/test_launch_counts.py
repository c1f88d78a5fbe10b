"""Counts of launches in progress."""

from __future__ import annotations

from dataclasses import astuple
from datetime import timedelta

import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.ledger import Ledger, SuppressionChange
from sendoff.ledger.launches.launch_counts import RequestCount
from sendoff.ledger.storage.schema import withheld
from sendoff.states import Accepted, InDoubt, NotProcessed, Refused, Resolution

from ...factories import KEY, NOW, make_launch, post_back, send, store

ACCEPTED = Accepted(200, 17)
LATER = NOW + timedelta(hours=1)


def freeze(ledger: Ledger) -> None:
    make_launch(
        ledger,
        segments=[Segment(integers(range(start, start + 3))) for start in range(1, 16, 3)]
        + [Segment(integers([16]))],
    )


def test_requests_are_counted_by_size_and_state_whether_answered_or_not(ledger: Ledger) -> None:
    freeze(ledger)
    assert ledger.launch_counts.requests(KEY) == []
    assert ledger.launch_counts.largest_segment(KEY) == 3
    send(ledger, KEY, ACCEPTED, Refused(403, "no"), InDoubt("lost"), NotProcessed("later"))
    send(ledger, KEY, ACCEPTED, None, Refused(403, "no"), at=LATER)

    def counted(**since: object) -> list[RequestCount]:
        return sorted(ledger.launch_counts.requests(KEY, **since))  # type: ignore[arg-type]

    assert counted() == [
        (1, "refused", 1, 0),
        (3, "accepted", 2, 0),
        (3, "in_doubt", 1, 0),
        (3, "in_flight", 1, 0),
        (3, "refused", 1, 0),
    ]
    assert counted(since=NOW) == [(1, "refused", 1, 0), (3, "accepted", 1, 0), (3, "in_flight", 1, 0)]


def test_recipients_left_out_of_a_request_are_not_counted(ledger: Ledger) -> None:
    freeze(ledger)
    key, _ = send(ledger, KEY, ACCEPTED, ACCEPTED)
    with ledger.launch_counts._database.write() as db:
        for reason, who in (("suppressed", 2), ("engaged", 3)):
            row = {"dispatch_key": key, "attempt": 1, "reason": reason}
            db.execute(sa.insert(withheld), {**row, "size": 1, "identifiers": integers([who]).to_bytes()})
    assert ledger.launch_counts.requests(KEY) == [(3, "accepted", 2, 2)]
    assert [sorted(people) for people, _ in ledger.launch_counts.accepted(KEY)] == [[1], [4, 5, 6]]


def test_recipients_left_out_of_all_requests_were_not_sent_to(ledger: Ledger) -> None:
    freeze(ledger)
    leave_out(ledger, 1, 4)
    doubted, accepted, _ = send(ledger, KEY, InDoubt("lost"), ACCEPTED, InDoubt("lost"))
    leave_out(ledger, 2, 10, 16)
    assert ledger.doubts.resolve(doubted, Resolution.RESEND, "ann", "again", NOW)
    (planned,) = ledger.doubts.pending_resends(KEY)
    send(ledger, KEY, InDoubt("lost"), NotProcessed("later"))  # without 1 and 2, and without 10
    left = {each.dispatch_key: len(people) for each, people in ledger.dispatch_queries.segments(KEY)}
    assert (planned.people, left[doubted], left[accepted]) == (2, 2, 2)  # 2 may have got the first request
    assert {each.dispatch_key: each.people for each in ledger.dispatch_queries.requests(KEY)} == left
    assert ledger.dispatch_queries.counts(KEY).recipients == {
        "accepted": 2,
        "in_doubt": 5,
        "planned": 7,
        "suppressed": 2,
    }
    assert sorted(each.people for each in ledger.doubts.open(KEY)) == [2, 3]
    campaigns = [ledger.launches.get(KEY).campaign]
    assert astuple(ledger.stats.doubt_totals(campaigns)) == (1, 2, 5)
    assert [each.people for each in ledger.stats.launch_doubts(campaigns)] == [5]
    assert [each.recipients for each in ledger.overview.accepted_parts(KEY)] == [2]
    send(ledger, KEY, ACCEPTED, ACCEPTED)
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=timedelta(minutes=5)) is None
    assert ledger.dispatch_queries.states(KEY)["suppressed"] == 1
    assert ledger.dispatch_queries.counts(KEY).recipients == {"accepted": 7, "in_doubt": 5, "suppressed": 4}


def test_recipients_that_only_a_request_in_doubt_may_have_reached_are_not_accepted(ledger: Ledger) -> None:
    freeze(ledger)
    (doubted,) = send(ledger, KEY, InDoubt("lost"))
    leave_out(ledger, 2)
    assert ledger.doubts.resolve(doubted, Resolution.RESEND, "ann", "again", NOW)
    send(ledger, KEY, ACCEPTED)
    assert [sorted(people) for people, _ in ledger.launch_counts.accepted(KEY)] == [[1, 3]]
    assert 2 in ledger.launches.sent(KEY)


def leave_out(ledger: Ledger, *people: int) -> None:
    ledger.suppressions.add(SuppressionChange("account", "device_id", "crm", "ann"), people, NOW)


def test_who_was_left_out_as_reached_and_later_as_opened_has_opened(ledger: Ledger) -> None:
    freeze(ledger)
    key, _ = send(ledger, KEY, ACCEPTED, ACCEPTED)
    left_out = ((1, "delivered", [1, 2]), (2, "engaged", [1]), (1, "suppressed", [3]))
    with ledger.launch_counts._database.write() as db:
        for attempt, reason, people in left_out:
            row = {"dispatch_key": key, "attempt": attempt, "reason": reason, "size": len(people)}
            db.execute(sa.insert(withheld), {**row, "identifiers": integers(people).to_bytes()})
    found = ledger.dispatch_queries.withheld_by_verdict(KEY)
    assert {verdict: list(people) for verdict, people in found.items()} == {"delivered": [2], "engaged": [1]}


def test_accepted_requests_come_with_their_post_backs(ledger: Ledger) -> None:
    from sendoff.postbacks import aggregate

    freeze(ledger)
    key, *_ = send(ledger, KEY, ACCEPTED, Refused(403, "no"))
    send(ledger, KEY, ACCEPTED, at=LATER)
    store(ledger, post_back(key, "delivery", 2))
    aggregate(ledger, now=LATER)
    (early, totals), (late, none) = ledger.launch_counts.accepted(KEY)
    assert (sorted(early), sorted(late), none) == ([1, 2, 3], [7, 8, 9], None)
    assert totals is not None
    assert sorted(totals.delivered) == [2]
    assert [sorted(people) for people, _ in ledger.launch_counts.accepted(KEY, before=NOW)] == [[1, 2, 3]]
    assert [sorted(people) for people, _ in ledger.launch_counts.accepted(KEY, since=NOW)] == [[7, 8, 9]]


def test_opt_outs_belong_to_the_launch_that_led_to_them(ledger: Ledger) -> None:
    freeze(ledger)
    launch = ledger.launches.get(KEY)
    for scope in ("account", "channel:email"):  # one person counts once
        new = SuppressionChange(scope, "device_id", "opt-out", "a recipient", launch_key=KEY)
        ledger.suppressions.add(new, [1, 2], NOW)
    by_user = SuppressionChange("account", "user_id", "opt-out", "a recipient", launch_key=KEY)
    ledger.suppressions.add(by_user, ["cust-1"], NOW)
    others = SuppressionChange("account", "device_id", "csv", "ann")
    ledger.suppressions.add(others, [3], NOW)
    assert sorted(ledger.launch_counts.opted_out(launch)) == [1, 2]
    assert sorted(ledger.launch_counts.opted_out(launch, NOW)) == []
    assert ledger.launch_counts.opt_outs([KEY]) == {KEY: 2}
