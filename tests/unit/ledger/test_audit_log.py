"""Decisions about launches, and the states that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from sendoff.errors import NotFoundError
from sendoff.ledger import Decision, Ledger
from sendoff.ledger.control.audit_log import append_decision
from sendoff.ledger.storage.schema import launches

from ...factories import KEY, NOW, make_launch

KINDS = ("approved", "released", "rejected", "held", "paused", "resumed", "stopped", "wave")


@pytest.fixture
def frozen(ledger: Ledger) -> Callable[[str], None]:
    def freeze(state: str) -> None:
        make_launch(ledger, sends_at=None, state=state)

    return freeze


@pytest.mark.code_decides
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
    assert ledger.audit_log.decide(Decision(KEY, kind, "ann", "so it is", NOW)) is (kind in possible)
    assert ledger.launches.get(KEY).state == possible.get(kind, state)
    assert len(ledger.audit_log.of_launch(KEY)) == (kind in possible)


def test_decisions_are_told_oldest_first(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")
    ledger.audit_log.record(Decision(KEY, "gates", "sendoff", None, NOW, {"gates": [{"name": "least"}]}))
    ledger.audit_log.record(Decision(None, "stopped", "bob", "all of them", NOW))
    assert ledger.audit_log.decide(Decision(KEY, "approved", "ann", "looks right", NOW, {"people": 5}))
    assert ledger.audit_log.of_launch(KEY) == [
        Decision(KEY, "gates", "sendoff", None, NOW, {"gates": [{"name": "least"}]}),
        Decision(KEY, "approved", "ann", "looks right", NOW, {"people": 5}),
    ]


def test_of_many_who_approve_at_once_one_does(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")

    def approve(number: int) -> bool:
        return ledger.audit_log.decide(Decision(KEY, "approved", f"person {number}", None, NOW))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(approve, range(8))) == [False] * 7 + [True]
    assert len(ledger.audit_log.of_launch(KEY)) == 1


def test_of_many_who_open_a_wave_at_once_one_does(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("released")

    def open_next(_: int) -> bool:
        return ledger.audit_log.decide(Decision(KEY, "wave", "sendoff", None, NOW), wave=1)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(open_next, range(8))) == [False] * 7 + [True]
    assert ledger.launches.get(KEY).wave == 2


def test_a_wave_that_was_judged_too_late_holds_nothing(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("released")
    assert ledger.audit_log.decide(Decision(KEY, "wave", "sendoff", None, NOW), wave=1)
    assert not ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW), wave=1)
    assert ledger.launches.get(KEY).state == "released"


def test_a_verdict_gives_way_to_what_was_decided_since(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")
    seen = ledger.audit_log.newest(KEY)
    ledger.audit_log.record(Decision(KEY, "exported", "ann", None, NOW))  # decides nothing
    assert ledger.audit_log.newest(KEY) == seen
    assert seen == 0
    assert ledger.audit_log.decide(Decision(KEY, "released", "ann", "looks right", NOW))
    assert not ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW), since=seen)
    assert ledger.launches.get(KEY).state == "released"
    seen = ledger.audit_log.newest(KEY)
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW), since=seen)
    assert ledger.launches.get(KEY).state == "held"


def test_each_hold_is_reported_once_by_one_of_many(ledger: Ledger, frozen: Callable[[str], None]) -> None:
    frozen("held")  # for its approval
    assert ledger.audit_log.report_holds(NOW) == []
    holds = [Decision(KEY, "held", "sendoff", f"reason {number}", NOW) for number in range(3)]
    for hold in holds[:2]:
        assert ledger.audit_log.decide(Decision(KEY, "released", "ann", None, NOW))
        assert ledger.audit_log.decide(hold)
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda _: ledger.audit_log.report_holds(NOW), range(8)))
    assert sorted(reports, key=len) == [[]] * 7 + [[holds[1]]]
    assert ledger.audit_log.decide(Decision(KEY, "released", "ann", None, NOW))
    assert ledger.audit_log.decide(holds[2])
    assert ledger.audit_log.decide(Decision(KEY, "stopped", "ann", None, NOW))
    assert ledger.audit_log.report_holds(NOW) == []
    assert [each.kind for each in ledger.audit_log.of_launch(KEY)].count("hold_reported") == 1


def test_the_report_of_a_hold_keeps_no_one_from_deciding(
    ledger: Ledger, frozen: Callable[[str], None]
) -> None:
    frozen("released")
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW))
    seen, launch = ledger.audit_log.newest(KEY), ledger.launches.get(KEY)
    assert len(ledger.audit_log.report_holds(NOW)) == 1
    assert ledger.launches.get(KEY) == launch
    assert ledger.audit_log.decide(Decision(KEY, "released", "ann", "looks right", NOW), since=seen)


def test_a_verdict_waits_for_the_decision_that_someone_is_taking(
    ledger: Ledger, frozen: Callable[[str], None]
) -> None:
    frozen("released")
    seen = ledger.audit_log.newest(KEY)
    with ThreadPoolExecutor(1) as pool:
        with ledger._database.write() as db:
            db.execute(sa.update(launches).values(wave=2))
            append_decision(db, Decision(KEY, "wave", "ann", "looks right", NOW))
            hold = Decision(KEY, "held", "sendoff", "too many refused", NOW)
            verdict = pool.submit(ledger.audit_log.decide, hold, since=seen)
            while db.dialect.name == "postgresql" and not (verdict.done() or db.scalar(_WAITING)):
                pass
        assert verdict.result(120) is False
    assert ledger.launches.get(KEY).state == "released"


def test_a_report_waits_for_another_that_is_being_stored(
    ledger: Ledger, frozen: Callable[[str], None]
) -> None:
    frozen("released")
    assert ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW))
    with ThreadPoolExecutor(1) as pool:
        with ledger._database.write() as db:
            db.execute(sa.select(launches.c.launch_key).with_for_update())
            append_decision(db, Decision(KEY, "hold_reported", "sendoff", None, NOW))
            report = pool.submit(ledger.audit_log.report_holds, NOW)
            while db.dialect.name == "postgresql" and not (report.done() or db.scalar(_WAITING)):
                pass
        assert report.result(120) == []


_WAITING = sa.text(
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE NOT granted AND datname = current_database()"
)


def test_of_many_verdicts_and_a_person_the_person_has_the_last_word(
    ledger: Ledger, frozen: Callable[[str], None]
) -> None:
    frozen("released")
    seen = ledger.audit_log.newest(KEY)

    def judge(_: int) -> bool:
        return ledger.audit_log.decide(Decision(KEY, "held", "sendoff", "too many refused", NOW), since=seen)

    def release() -> None:
        while not ledger.audit_log.decide(Decision(KEY, "released", "ann", "known", NOW)):
            pass

    with ThreadPoolExecutor(8) as pool:
        released = pool.submit(release)
        assert sum(pool.map(judge, range(20))) == 1
        released.result(120)
    assert ledger.launches.get(KEY).state == "released"


def test_nothing_is_decided_of_a_launch_that_is_not_there(ledger: Ledger) -> None:
    with pytest.raises(NotFoundError, match="no launch"):
        ledger.audit_log.decide(Decision(KEY, "stopped", "ann", None, NOW))
