"""The winner of a test share in the ledger: stored once, and part of every later claim."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.dispatch.request import ServiceConnection
from sendoff.errors import CampaignError
from sendoff.ledger import Decision, Ledger
from sendoff.ledger.control.audit_log import AuditLog
from sendoff.service.client import Client
from sendoff.service.postbacks import PostBackSigner
from sendoff.states import Accepted, DecisionKind

from ...factories import KEY, LEASE, NOW, make_campaign, make_launch, send

SEGMENTS = [
    Segment(integers([1, 2]), Variation(variant="plain")),
    Segment(integers([3, 4]), Variation(variant="warm")),
    Segment(integers([5, 6]), Variation(language="en"), wave=2),
    Segment(integers([7, 8]), Variation(language="en"), wave=2),
]
CAMPAIGN = make_campaign(
    variants={"plain": {"percent": 50}, "warm": {"percent": 50}},
    decide={"share": 50, "after": {"length": 2, "unit": "hours"}, "otherwise": "plain"},
)


def decide(
    log: AuditLog, winner: str, *, wave: int | None = 1, kind: DecisionKind = DecisionKind.WINNER
) -> bool:
    return log.decide(Decision(KEY, kind, "sendoff", f"{winner} is ahead", NOW), wave=wave, winner=winner)


@pytest.mark.promise("twice/winner")
def test_there_is_one_winner_and_every_later_claim_has_it(ledger: Ledger) -> None:
    make_launch(ledger, segments=SEGMENTS, campaign=CAMPAIGN)
    send(ledger, KEY, Accepted(200, 1), Accepted(200, 2))
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is None
    with ThreadPoolExecutor(4) as pool:
        wins = list(pool.map(lambda name: decide(ledger.audit_log, name), ("warm", "plain", "warm", "plain")))
    assert sum(wins) == 1
    launch = ledger.launches.get(KEY)
    assert (launch.winner, launch.wave) == (("warm", "plain", "warm", "plain")[wins.index(True)], 2)
    assert not decide(ledger.audit_log, "plain", wave=None)
    first = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert first
    second = ledger.dispatches.record_and_claim(first, Accepted(200, 3), NOW, worker="w", lease=LEASE)
    assert second
    assert {first.content.variation, second.content.variation} == {Variation("en", launch.winner)}
    assert [each.variant for each in ledger.dispatch_queries.requests(KEY)] == [
        "plain",
        "warm",
        *[launch.winner] * 2,
    ]
    assert ledger.dispatch_queries.variants(KEY) == {1: "plain", 2: "warm"}


def test_a_held_launch_gets_its_winner_with_its_release(ledger: Ledger) -> None:
    make_launch(ledger, segments=SEGMENTS, campaign=CAMPAIGN, state="held")
    assert not decide(ledger.audit_log, "warm")  # only a person may decide about it
    assert decide(ledger.audit_log, "warm", kind=DecisionKind.RELEASED)
    launch = ledger.launches.get(KEY)
    assert (launch.state, launch.winner, launch.wave) == ("released", "warm", 2)


def test_a_recipient_of_the_rest_waits_for_the_winner_and_then_has_it(ledger: Ledger) -> None:
    make_launch(ledger, segments=SEGMENTS, campaign=CAMPAIGN)
    waiting = ledger.launches.recipient(KEY, 5)
    assert (waiting.variant, waiting.awaits_winner, waiting.is_waiting) == (None, True, True)
    assert (
        waiting.sentence
        == "not sent yet: it gets the variant that wins in the test share, which is not decided yet"
    )
    assert not ledger.launches.recipient(KEY, 1).awaits_winner
    assert decide(ledger.audit_log, "warm")
    decided = ledger.launches.recipient(KEY, 5)
    assert (decided.variant, decided.awaits_winner) == ("warm", False)
    assert decided.details == "segment 3, variant warm, language en, wave 2, request planned"


def test_the_keys_of_the_rest_do_not_depend_on_the_winner(ledger: Ledger) -> None:
    make_launch(ledger, segments=SEGMENTS, campaign=CAMPAIGN)
    before = [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]
    assert decide(ledger.audit_log, "warm")
    assert [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)] == before
    again = make_launch(ledger, segments=SEGMENTS, campaign=CAMPAIGN)
    assert (again.winner, [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]) == (
        "warm",
        before,
    )


def test_no_request_is_written_without_a_winner(ledger: Ledger) -> None:
    launch = make_launch(ledger, segments=[Segment(integers([5, 6]))], campaign=CAMPAIGN)
    claim = ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE)
    assert claim
    client: Client = object()  # type: ignore[assignment]
    connection = ServiceConnection(client, PostBackSigner("http://127.0.0.1:9", ["x" * 32]))
    with pytest.raises(CampaignError, match="the winner for segment 1 is not decided"):
        connection.build_request(claim, CAMPAIGN, launch)
