"""Which dispatch is claimed next, how many rows that reads, and what a claim records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import Variation
from sendoff.dispatch.worker import LEASE
from sendoff.errors import LedgerUnavailableError
from sendoff.ledger import Claim, Decision, Ledger, SuppressionChange
from sendoff.ledger.control.rate_limits import LOOKAHEAD, check_rate, interval
from sendoff.ledger.storage.schema import attempts, dispatches, launches, rate_limits, reports
from sendoff.states import Accepted, InDoubt, Resolution

from ...factories import KEY, NOW, PUSH, make_launch
from ...leases import expire

YES = Accepted(200, 17)
Part = tuple[str | None, int]
"""The time zone and the wave of a segment."""


def freeze(ledger: Ledger, parts: Sequence[Part]) -> None:
    people = integers(range(1, len(parts) + 1))
    make_launch(
        ledger,
        people,
        segments=(
            Segment(person, Variation(time_zone=zone), wave)
            for person, (zone, wave) in zip(people.slices(1), parts, strict=True)
        ),
        campaign=PUSH,
    )


def claim(ledger: Ledger, worker: str = "w", now: datetime = NOW, **how: Any) -> Claim | None:
    return ledger.dispatches.claim(KEY, worker=worker, now=now, lease=LEASE, **how)


def record_and_claim(ledger: Ledger, held: Claim, now: datetime = NOW, **how: Any) -> Claim | None:
    return ledger.dispatches.record_and_claim(held, YES, now, worker="w", lease=LEASE, **how)


def claimed(ledger: Ledger, worker: str = "w", **how: Any) -> Claim:
    found = claim(ledger, worker, **how)
    assert found is not None
    return found


def states(ledger: Ledger) -> list[str]:
    return [each.state for each in ledger.dispatch_queries.of_launch(KEY)]


def test_the_next_is_the_first_segment_whatever_its_zone(ledger: Ledger) -> None:
    zones = ["Europe/Dublin", "Asia/Tokyo", None, "Europe/Dublin", "Asia/Tokyo", "Africa/Cairo"]
    freeze(ledger, [(zone, 1) for zone in zones])
    assert [claimed(ledger).segment for _ in zones] == [1, 2, 3, 4, 5, 6]
    assert claim(ledger) is None


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # SQLite admits one writer at a time
def test_nobody_waits_for_a_zone_whose_last_dispatch_another_worker_is_taking(ledger: Ledger) -> None:
    freeze(ledger, [("Asia/Tokyo", 1), ("Europe/Dublin", 1)])
    taking = sa.select(dispatches.c.segment).where(dispatches.c.segment == 1).with_for_update()
    with ledger._database.write() as db:
        assert db.scalar(taking) == 1
        assert claimed(ledger).segment == 2
        assert claim(ledger) is None
    assert claimed(ledger).segment == 1


CLOSED = [f"Zone/{number:02}" for number in range(30)]


def test_a_claim_reads_nothing_of_closed_zones_and_later_waves(ledger: Ledger) -> None:
    parts: list[Part] = [(zone, 1) for zone in CLOSED for _ in range(100)]
    freeze(ledger, [*parts, ("Zone/99", 1), *(("Zone/99", 2) for _ in range(3_000))])
    statements: list[tuple[str, Any]] = []

    def note(_link: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "dispatches" in statement and "UPDATE" in statement:
            statements.append((statement, values))

    engine = ledger._database._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    found = claim(ledger, closed_zones=CLOSED)
    sa.event.remove(engine, "before_cursor_execute", note)
    assert found is not None
    assert found.segment == 3_001
    assert claim(ledger, closed_zones=CLOSED) is None  # wave 2 is not open
    plan = explained(ledger, *statements[0])
    if ledger.name.startswith("sqlite"):
        tables = ("dispatches", "next", "first", "least", "more")
        assert [line for line in plan if line.startswith("SCAN") and line.split()[1] in tables] == []
    else:
        assert not any("Seq Scan on dispatches" in line for line in plan)
        assert most_rows(plan) <= len(CLOSED) + 2


def explained(ledger: Ledger, statement: str, values: Any) -> list[str]:
    """Return the plan of a statement that runs after ANALYZE; both are rolled back."""
    is_sqlite = ledger.name.startswith("sqlite")
    how = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)"
    plan: list[str] = []
    with suppress(InterruptedError), ledger._database.write() as db:
        db.exec_driver_sql("ANALYZE")
        plan += [str(row[-1]).strip() for row in db.exec_driver_sql(f"{how} {statement}", values)]
        raise InterruptedError
    return plan


def most_rows(plan: Sequence[str]) -> int:
    """Return the most rows that any node of a PostgreSQL plan read or removed, over all its loops."""
    found = [0]
    for line in plan:
        if "actual rows=" in line:
            rows, loops = (
                float(line.split(f"{name}=")[1].split()[0].rstrip(")")) for name in ("rows", "loops")
            )
            found.append(round(rows * loops))
        if line.startswith("Rows Removed"):
            found.append(int(line.rsplit(" ", 1)[1]))
    return max(found)


def test_whoever_looks_for_dead_workers_or_counts_doubts_reads_nothing_that_is_settled(
    ledger: Ledger,
) -> None:
    freeze(ledger, [(None, 1)] * 2_000)
    settled, silent = claimed(ledger), claimed(ledger)
    ledger.dispatches.record(settled, InDoubt("no answer"), NOW)
    with ledger._database.write() as db:
        db.execute(sa.update(dispatches).where(dispatches.c.segment > 3).values(state="accepted"))
    seen: list[tuple[str, Any]] = []

    def note(_link: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "dispatches" in statement and statement.startswith(("UPDATE dispatches", "SELECT")):
            seen.append((statement, values))

    engine = ledger._database._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    assert ledger.doubts.expire_leases(None, NOW + timedelta(seconds=1)) == 0
    assert ledger.stats.read().doubts == {"service": 1}
    sa.event.remove(engine, "before_cursor_execute", note)
    expiry, in_doubt = seen[0], next(each for each in seen if "'in_doubt'" in each[0] and "count" in each[0])
    for each, index in ((expiry, "in_flight"), (in_doubt, "doubtful")):
        plan = explained(ledger, *each)
        assert not any("Seq Scan on dispatches" in line for line in plan)
        if ledger.name.startswith("sqlite"):
            assert any(f"ix_dispatches_{index}" in line for line in plan), plan
    assert silent.segment == 2


def test_recording_and_claiming_is_one_transaction(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)
    [_, dispatch, _] = ledger.dispatch_queries.of_launch(KEY)
    of_the_next = attempts.c.dispatch_key == dispatch.dispatch_key
    with ledger._database.write() as db:  # its intent is there already, so the claim fails
        intent = {"dispatch_key": dispatch.dispatch_key, "number": 1, "worker": "x", "started_at": NOW}
        db.execute(sa.insert(attempts), intent)
    with pytest.raises(sa.exc.IntegrityError):
        record_and_claim(ledger, first)
    assert states(ledger) == ["in_flight", "planned", "planned"]
    with ledger._database.write() as db:
        db.execute(sa.delete(attempts).where(of_the_next))
    second = record_and_claim(ledger, first)
    assert second is not None
    assert (second.segment, second.attempt, second.claimed_at) == (2, 1, NOW)
    assert states(ledger) == ["accepted", "in_flight", "planned"]


def test_a_worker_that_fails_after_the_statement_is_given_the_same_claim_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)

    def fail(*_: object) -> None:
        raise LedgerUnavailableError("the ledger database did not answer")

    with monkeypatch.context() as patch:
        patch.setattr("sendoff.ledger.requests.claims._content", fail)
        with pytest.raises(LedgerUnavailableError):
            record_and_claim(ledger, first)
    second = record_and_claim(ledger, first)
    assert second is not None
    assert (second.segment, second.attempt, second.claimed_at) == (2, 1, NOW)
    assert states(ledger) == ["accepted", "in_flight", "planned"]


def test_whoever_asks_again_is_given_the_same_claim_as_old_as_it_is(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)
    second = record_and_claim(ledger, first)
    again = record_and_claim(ledger, first, NOW + timedelta(minutes=1), closed_zones=[None])
    assert second is not None
    assert again == second
    assert again.claimed_at == NOW
    with ledger._database.read() as db:
        assert db.scalar(sa.select(sa.func.count()).select_from(attempts)) == 2


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # SQLite admits one writer at a time
def test_whoever_asks_again_while_the_first_try_is_being_committed_is_given_the_same_claim(
    ledger: Ledger,
) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)
    with (
        ledger._database.write() as db
    ):  # the statement raises the revision of a launch with a report at its end
        report = {"launch_key": KEY, "as_of": NOW, "revision": 0, "figures": "{}"}
        db.execute(sa.insert(reports), report)
    with ThreadPoolExecutor(2) as pool:
        with ledger._database.write() as blocker:
            blocker.execute(sa.select(launches.c.launch_key).with_for_update())
            one = pool.submit(record_and_claim, ledger, first)
            wait_for_locks(ledger, 1)
            again = pool.submit(record_and_claim, ledger, first)
            wait_for_locks(ledger, 2)
        assert again.result() == one.result()
    assert states(ledger) == ["accepted", "in_flight", "planned"]


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # SQLite admits one writer at a time
def test_a_claim_that_waited_so_long_that_it_may_have_missed_an_opt_out_is_given_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.ledger.requests.dispatches.LONGEST_WAIT", 0.1)
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)
    with ThreadPoolExecutor(1) as pool:
        with ledger._database.write() as other:
            other.execute(sa.select(dispatches).with_for_update())
            here = pool.submit(record_and_claim, ledger, first)
            wait_for_locks(ledger, 1)
            ledger.suppressions.add(SuppressionChange("account", "device_id", "opt-out", "ann"), [2], NOW)
            time.sleep(0.1)
        assert here.result() is None
    assert states(ledger) == ["accepted", "planned", "planned"]
    following = claimed(ledger)
    assert following.content.identifiers is not None
    assert list(following.content.identifiers.values()) == [3]


def test_workers_of_a_launch_without_a_report_do_not_wait_for_its_row(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 3)
    before = ledger.verdicts.revision(KEY)
    assert record_and_claim(ledger, claimed(ledger)) is not None
    assert ledger.verdicts.revision(KEY) == before


def wait_for_locks(ledger: Ledger, at_least: int) -> None:
    query = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = "
    deadline = time.monotonic() + 60
    waiting = 0
    while waiting < at_least:
        assert time.monotonic() < deadline
        with ledger._database.read() as db:
            waiting = db.exec_driver_sql(query + "current_database()").scalar_one()


@pytest.mark.parametrize("rate", [None, 10.0])
def test_one_statement_records_and_claims_on_postgresql_if_nothing_else_happened(
    ledger: Ledger, rate: float | None
) -> None:
    freeze(ledger, [(None, 1)] * 2)
    first, seen = claimed(ledger, rate=rate), []

    def note(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(ledger._database._engine, "before_cursor_execute", note)
    assert record_and_claim(ledger, first, rate=rate) is not None
    assert (
        ledger.name.startswith("sqlite") or not seen
    )  # the driver executes the statement, as one transaction


def test_what_a_worker_claimed_and_did_not_learn_of_is_planned_again(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 2)
    assert claimed(ledger, "mine").segment == 1
    assert claimed(ledger, "other").segment == 2
    for _ in range(2):  # asking again is harmless
        ledger.dispatches.give_back(KEY, "mine", NOW)
        assert states(ledger) == ["planned", "in_flight"]


def test_nothing_is_taken_where_a_later_attempt_has_moved_the_dispatch(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)
    ledger.dispatches.record(first, InDoubt("no answer"), NOW)
    assert ledger.doubts.resolve(first.dispatch_key, Resolution.RESEND, "ann", "again", NOW)
    assert claimed(ledger, "other").attempt == 2
    assert record_and_claim(ledger, first) is None
    assert states(ledger) == ["in_flight", "planned", "planned"]


def test_evidence_that_came_before_the_record_hinders_no_claim(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 2)
    first = claimed(ledger)
    assert expire(ledger, KEY, NOW + 2 * LEASE) == 1
    assert ledger.doubts.accept(first.dispatch_key, 17, "the service lists it", NOW)
    following = record_and_claim(ledger, first)
    assert following is not None
    assert states(ledger) == ["accepted", "in_flight"]


@pytest.mark.parametrize("kind", ["paused", "held", "stopped"])
def test_an_outcome_is_recorded_and_nothing_claimed_of_a_launch_that_must_not_be_sent(
    ledger: Ledger, kind: str
) -> None:
    freeze(ledger, [(None, 1)] * 2)
    first = claimed(ledger)
    assert ledger.audit_log.decide(Decision(KEY, kind, "ann", "wrong picture", NOW))
    assert record_and_claim(ledger, first) is None
    assert states(ledger) == ["accepted", "planned"]


def test_an_outcome_is_recorded_and_nothing_claimed_where_a_global_pause_is_set_or_patience_asked_for(
    ledger: Ledger,
) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger)
    assert ledger.pauses.pause("all", "ann", "wrong picture", now=NOW)
    assert record_and_claim(ledger, first) is None
    assert ledger.pauses.resume("all", "ann", "right picture", now=NOW)
    second = claimed(ledger)
    ledger.rate_limits.delay("service", NOW + timedelta(minutes=1))
    assert record_and_claim(ledger, second) is None
    assert states(ledger) == ["accepted", "accepted", "planned"]


def test_a_rate_is_at_least_one_request_a_day() -> None:
    assert interval(1 / 86_400) == timedelta(days=1)
    for impossible in (1 / 86_401, 0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at least 1 request per day"):
            check_rate(impossible)


def test_the_statement_that_records_also_reserves_the_next_moment_of_the_rate_limit(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 4)
    first = claimed(ledger, rate=5)
    second = record_and_claim(ledger, first, rate=5)
    third = record_and_claim(ledger, second, rate=5) if second else None
    assert second is not None
    assert third is not None
    moments = [each.not_before for each in (first, second, third)]
    assert moments == [NOW + each * timedelta(seconds=0.2) for each in range(3)]
    assert ledger.rate_limits.next_at("service") == NOW + timedelta(seconds=0.6)


def test_an_outcome_is_recorded_and_nothing_claimed_or_reserved_if_the_next_moment_is_not_near(
    ledger: Ledger,
) -> None:
    freeze(ledger, [(None, 1)] * 2)
    first = claimed(ledger, rate=1)
    assert record_and_claim(ledger, first, rate=1) is None
    assert states(ledger) == ["accepted", "planned"]
    assert ledger.rate_limits.next_at("service") == NOW + timedelta(seconds=1)


def test_no_moment_is_reserved_without_a_dispatch_to_claim(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1), ("Asia/Tokyo", 1)])
    first = claimed(ledger, rate=10)
    assert record_and_claim(ledger, first, rate=10, closed_zones=["Asia/Tokyo"]) is None
    assert ledger.rate_limits.next_at("service") == NOW + timedelta(seconds=0.1)


def test_whoever_asks_again_at_a_rate_takes_no_second_moment(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 3)
    first = claimed(ledger, rate=5)
    second = record_and_claim(ledger, first, rate=5)
    again = record_and_claim(ledger, first, NOW + timedelta(seconds=10), rate=5)
    assert second is not None
    assert again is not None
    assert (again.dispatch_key, again.claimed_at) == (second.dispatch_key, NOW)
    assert again.not_before is not None
    assert second.not_before is not None
    assert second.not_before <= again.not_before == NOW + LOOKAHEAD  # not earlier than its moment
    assert ledger.rate_limits.next_at("service") == NOW + timedelta(seconds=0.4)


def test_an_outcome_stays_recorded_if_a_slow_try_finds_no_near_moment(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(ledger, [(None, 1)] * 2)
    first = claimed(ledger)
    monkeypatch.setattr(ledger._database, "can_combine", False)

    far = NOW + timedelta(seconds=9)  # another worker was faster, between two statements
    monkeypatch.setattr("sendoff.ledger.requests.dispatches.reserve", lambda *_: far)
    assert record_and_claim(ledger, first, rate=1) is None
    assert states(ledger) == ["accepted", "planned"]


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # SQLite admits one writer at a time
def test_a_moment_that_another_worker_is_reserving_is_not_reserved_twice(ledger: Ledger) -> None:
    freeze(ledger, [(None, 1)] * 2)
    first = claimed(ledger, rate=5)
    with ThreadPoolExecutor(1) as pool:
        with ledger._database.write() as other:
            other.execute(sa.update(rate_limits).values(next_at=NOW + timedelta(seconds=0.6)))
            here = pool.submit(record_and_claim, ledger, first, rate=5)
            wait_for_locks(ledger, 1)
        assert here.result() is None  # the moment that it saw was near, but the next one is not
    assert states(ledger) == ["accepted", "planned"]
    assert ledger.rate_limits.next_at("service") == NOW + timedelta(seconds=0.6)
