"""Decisions: who decided what of a launch, and the states that follow, each reached once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from sendoff.audience.segmentation import Segment
from sendoff.errors import NotFoundError
from sendoff.ledger import Decision, Ledger
from sendoff.period import Period, launch_key

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)
KINDS = ("approved", "released", "rejected", "held", "paused", "resumed", "stopped", "wave")


@pytest.fixture
def frozen(ledger: Ledger) -> Callable[[str], None]:
    def freeze(state: str) -> None:
        ledger.launches.freeze(
            KEY,
            connection="service",
            campaign="spring",
            period=PERIOD,
            resend=0,
            definition="{}",
            audience=None,
            segments=[Segment(None)],
            now=NOW,
            state=state,
        )

    return freeze


@pytest.mark.parametrize(
    ("state", "possible"),
    [
        (
            "held",
            {"approved": "released", "released": "released", "rejected": "rejected", "stopped": "stopped"},
        ),
        ("released", {"held": "held", "paused": "paused", "stopped": "stopped", "wave": "released"}),
        ("paused", {"resumed": "released", "stopped": "stopped"}),
        ("rejected", {}),
        ("stopped", {}),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_only_what_a_state_allows_is_decided(
    ledger: Ledger, frozen: Callable[[str], None], state: str, possible: dict[str, str], kind: str
) -> None:
    frozen(state)
    assert ledger.decisions.decide(KEY, kind, "ann", "so it is", now=NOW) is (kind in possible)
    assert ledger.launches.get(KEY).state == possible.get(kind, state)
    assert len(ledger.decisions.of_launch(KEY)) == (kind in possible)


def test_decisions_are_told_oldest_first(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")
    ledger.decisions.record(KEY, "gates", "sendoff", None, {"gates": [{"name": "least"}]}, now=NOW)
    ledger.decisions.record(None, "stopped", "bob", "all of them", now=NOW)
    assert ledger.decisions.decide(KEY, "approved", "ann", "looks right", now=NOW, detail={"people": 5})
    assert ledger.decisions.of_launch(KEY) == [
        Decision(KEY, "gates", "sendoff", None, {"gates": [{"name": "least"}]}, NOW),
        Decision(KEY, "approved", "ann", "looks right", {"people": 5}, NOW),
    ]


def test_of_many_who_approve_at_once_one_does(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")

    def approve(number: int) -> bool:
        return ledger.decisions.decide(KEY, "approved", f"person {number}", None, now=NOW)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(approve, range(8))) == [False] * 7 + [True]
    assert len(ledger.decisions.of_launch(KEY)) == 1


def test_of_many_who_open_a_wave_at_once_one_does(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("released")

    def open_next(_: int) -> bool:
        return ledger.decisions.decide(KEY, "wave", "sendoff", None, now=NOW, wave=1)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(open_next, range(8))) == [False] * 7 + [True]
    assert ledger.launches.get(KEY).wave == 2


def test_a_wave_that_was_judged_too_late_holds_nothing(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("released")
    assert ledger.decisions.decide(KEY, "wave", "sendoff", None, now=NOW, wave=1)
    assert not ledger.decisions.decide(KEY, "held", "sendoff", "too many refused", now=NOW, wave=1)
    assert ledger.launches.get(KEY).state == "released"


def test_a_verdict_gives_way_to_what_was_decided_since(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")
    seen = ledger.decisions.newest(KEY)
    assert seen == 0
    assert ledger.decisions.decide(KEY, "released", "ann", "looks right", now=NOW)
    assert not ledger.decisions.decide(KEY, "held", "sendoff", "too many refused", now=NOW, since=seen)
    assert ledger.launches.get(KEY).state == "released"
    seen = ledger.decisions.newest(KEY)
    assert ledger.decisions.decide(KEY, "held", "sendoff", "too many refused", now=NOW, since=seen)
    assert ledger.launches.get(KEY).state == "held"


def test_of_many_verdicts_and_a_person_the_person_has_the_last_word(
    ledger: Ledger, frozen: Callable[[str], None]
) -> None:
    frozen("released")
    seen = ledger.decisions.newest(KEY)

    def judge(_: int) -> bool:
        return ledger.decisions.decide(KEY, "held", "sendoff", "too many refused", now=NOW, since=seen)

    def release() -> None:
        while not ledger.decisions.decide(KEY, "released", "ann", "known", now=NOW):
            pass

    with ThreadPoolExecutor(8) as pool:
        released = pool.submit(release)
        assert sum(pool.map(judge, range(20))) == 1
        released.result(120)
    assert ledger.launches.get(KEY).state == "released"


def test_nothing_is_decided_of_a_launch_that_is_not_there(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="no launch"):
        ledger.decisions.decide(KEY, "stopped", "ann", None, now=NOW)
