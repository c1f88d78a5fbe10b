"""The winner of a test share goes to the rest, once, checked against the service's own record."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from messaging_service.campaigns.content import unpack
from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.dispatch.checks import check_all_sent
from sendoff.dispatch.control import release, release_all, stop
from sendoff.dispatch.request import ServiceConnection
from sendoff.dispatch.winner import proposal_of
from sendoff.dispatch.worker import SendResult
from sendoff.errors import GateError
from sendoff.ledger import Ledger

from ..factories import KEY, NOW, post_back, store
from . import sending
from .sending import sent_to, too_early, work_at

connection = sending.connection  # a fixture

EVERYBODY = list(range(1, 101))
CONTROL, WARM = range(1, 31), range(31, 61)
TEST_SHARE = [
    Segment(integers(CONTROL), Variation(variant="control")),
    Segment(integers(WARM), Variation(variant="warm")),
]
REST = [Segment(integers(range(n, n + 10)), wave=2) for n in (61, 71, 81, 91)]
VARIANTS = {"control": {"percent": 50}, "warm": {"percent": 50, "message": {"text": "It is warm"}}}
TWO_HOURS = timedelta(hours=2)
DECIDE = {"share": 60, "after": {"length": 2, "unit": "hours"}, "otherwise": "control"}
WORDS = {"control": "It is spring", "warm": "It is warm"}


@pytest.fixture
def service(service_start: Callable[..., Any]) -> Any:
    return service_start("--opened", "0")


@pytest.fixture
def got(service: Any, tmp_path: Path) -> Callable[[str], list[int]]:
    """Return the devices that got a variant, by the service's own record."""

    def devices(variant: str) -> list[int]:
        service.wait_until_quiet()
        with closing(sqlite3.connect(tmp_path / "one" / "service.db")) as db:
            rows = db.execute("SELECT id, content FROM campaigns").fetchall()
        sent = [number for number, content in rows if unpack(content)["push_text"] == WORDS[variant]]
        return sorted(
            device for each in sent for device in service.admin(f"campaigns/{each}/truth")["targeted"]
        )

    return devices


def freeze(ledger: Ledger, *, segments: Iterable[Segment] = (*TEST_SHARE, *REST), **decide: Any) -> None:
    sending.freeze(
        ledger,
        [*segments],
        variants=VARIANTS,
        decide={**DECIDE, **decide},
        post_backs={"kinds": ["open"]},
    )


def opened(ledger: Ledger, *people: range) -> None:
    """Store opens of the test share, in the order of its segments, by people's numbers."""
    keys = [each.dispatch_key for each in ledger.dispatch_queries.of_launch(KEY)]
    store(
        ledger,
        *(post_back(keys[n], "open", who, campaign=None) for n, some in enumerate(people) for who in some),
    )


def winners(ledger: Ledger) -> list[tuple[str, str | None]]:
    """Return who decided about a winner, and what."""
    decisions = ledger.audit_log.of_launch(KEY)
    return [
        (each.who, each.detail["winner"])
        for each in decisions
        if each.detail and "winner" in each.detail and each.kind != "held"
    ]


@pytest.mark.promise("twice/winner")
def test_the_winner_goes_to_the_rest_when_the_time_is_over(
    service: Any, ledger: Ledger, connection: ServiceConnection, got: Callable[[str], list[int]]
) -> None:
    freeze(ledger)
    assert too_early(ledger, connection, NOW) == NOW + TWO_HOURS
    assert (got("control"), got("warm")) == ([*CONTROL], [*WARM])
    opened(ledger, range(1, 4), range(31, 59))
    assert too_early(ledger, connection, NOW + TWO_HOURS - timedelta(seconds=1)) == NOW + TWO_HOURS
    assert sent_to(service) == EVERYBODY[:60]
    assert work_at(ledger, connection, NOW + TWO_HOURS) == SendResult(accepted=4)
    assert work_at(ledger, connection, NOW + 2 * TWO_HOURS) == SendResult()
    assert (got("control"), got("warm")) == ([*CONTROL], EVERYBODY[30:])
    assert winners(ledger) == [("sendoff", "warm")]
    (decision,) = ledger.audit_log.of_launch(KEY)
    shares = "engaged: warm 93.33 % of 30, control 10.00 % of 30"
    assert decision.why == f"the rest gets warm: warm is clearly ahead ({shares})"
    assert decision.detail
    assert decision.detail["is_clear"] is True
    check_all_sent(ledger, KEY)


@pytest.mark.promise("twice/winner")
@pytest.mark.parametrize(
    ("people", "shares"),
    [
        (
            (range(1, 16), range(31, 47)),
            "engaged: warm 53.33 % of 30, control 50.00 % of 30",
        ),
        ((), "engaged: control 0.00 % of 30, warm 0.00 % of 30"),
    ],
)
def test_without_a_clear_winner_the_rest_gets_the_default(
    service: Any,
    ledger: Ledger,
    connection: ServiceConnection,
    got: Callable[[str], list[int]],
    people: tuple[range, ...],
    shares: str,
) -> None:
    freeze(ledger)
    too_early(ledger, connection, NOW)
    opened(ledger, *people)
    assert work_at(ledger, connection, NOW + TWO_HOURS) == SendResult(accepted=4)
    assert (got("control"), got("warm")) == ([*CONTROL, *EVERYBODY[60:]], [*WARM])
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.why == f"the rest gets control, the default: no variant is clearly ahead ({shares})"
    assert decision.detail
    assert decision.detail["is_clear"] is False


def test_sides_that_lost_people_have_no_winner(
    service: Any, ledger: Ledger, connection: ServiceConnection, got: Callable[[str], list[int]]
) -> None:
    freeze(ledger)
    sending.fault(service, "403", 1)  # the request of the first variant
    too_early(ledger, connection, NOW)
    opened(ledger, range(0), WARM)
    assert work_at(ledger, connection, NOW + TWO_HOURS) == SendResult(accepted=4)
    assert (got("control"), got("warm")) == (EVERYBODY[60:], [*WARM])
    (decision,) = ledger.audit_log.of_launch(KEY)
    assert decision.why
    assert decision.why.startswith(
        "the rest gets control, the default: the variants cannot be compared. Do not compare these sides: 30 of 30 "
        "devices of control were not certainly sent to."
    )


def test_a_test_share_without_people_leaves_the_default(
    service: Any, ledger: Ledger, connection: ServiceConnection, got: Callable[[str], list[int]]
) -> None:
    freeze(ledger, segments=[TEST_SHARE[0], *REST])
    too_early(ledger, connection, NOW)
    work_at(ledger, connection, NOW + TWO_HOURS)
    assert (got("control"), got("warm")) == ([*CONTROL, *EVERYBODY[60:]], [])
    assert [each.why for each in ledger.audit_log.of_launch(KEY)] == [
        "the rest gets control, the default: no one in the test share got warm"
    ]


@pytest.mark.promise("twice/winner")
def test_a_person_chooses_the_variant_that_the_rest_gets(
    service: Any, ledger: Ledger, connection: ServiceConnection, got: Callable[[str], list[int]]
) -> None:
    freeze(ledger, by="person")
    too_early(ledger, connection, NOW)
    opened(ledger, range(1, 4), range(31, 59))
    for _ in range(2):  # a second call changes nothing
        with pytest.raises(
            GateError, match=r"is held: a person must choose the variant for the rest. Proposed: warm"
        ):
            work_at(ledger, connection, NOW + TWO_HOURS)
    decisions = ledger.audit_log.of_launch(KEY)
    proposal = proposal_of(ledger.launches.get(KEY), decisions)
    assert proposal
    assert (len(decisions), proposal.variant, proposal.variants) == (1, "warm", ("control", "warm"))
    for variant in (None, "cold"):
        with pytest.raises(GateError, match=r"Name one with --variant: control, warm \(proposed: warm\)"):
            release(ledger, KEY, "ann", "agreed", variant=variant)
    assert release_all(ledger, "ann", "the service is back") == []
    assert sent_to(service) == EVERYBODY[:60]
    release(ledger, KEY, "ann", "control fits the season", variant="control")
    with pytest.raises(GateError, match="does not wait for a variant"):
        release(ledger, KEY, "bob", "no, warm", variant="warm")
    assert work_at(ledger, connection, NOW + TWO_HOURS) == SendResult(accepted=4)
    assert (got("control"), got("warm")) == ([*CONTROL, *EVERYBODY[60:]], [*WARM])
    assert winners(ledger) == [("ann", "control")]


def test_a_launch_that_is_stopped_before_the_decision_sends_no_more(
    service: Any, ledger: Ledger, connection: ServiceConnection
) -> None:
    freeze(ledger)
    too_early(ledger, connection, NOW)
    stop(ledger, KEY, "ann", "wrong words")
    assert work_at(ledger, connection, NOW + TWO_HOURS) == SendResult()
    assert sent_to(service) == EVERYBODY[:60]
    assert winners(ledger) == []


@pytest.mark.promise("twice/winner")
def test_workers_at_once_decide_once(
    service: Any, ledger: Ledger, connection: ServiceConnection, got: Callable[[str], list[int]]
) -> None:
    freeze(ledger)
    too_early(ledger, connection, NOW)
    opened(ledger, range(1, 4), range(31, 59))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: work_at(ledger, connection, NOW + TWO_HOURS), range(4)))
    assert sum(each.accepted for each in results) == 4
    assert got("warm") == EVERYBODY[30:]
    assert winners(ledger) == [("sendoff", "warm")]
