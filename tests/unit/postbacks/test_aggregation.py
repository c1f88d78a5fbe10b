"""Aggregation: the result does not depend on order, splits, repetition, or interruptions."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sendoff.audience.build import Audience
from sendoff.audience.identifiers import Identifiers, integers, strings, union
from sendoff.audience.segmentation import Segment
from sendoff.campaign import dispatch_key, launch_key
from sendoff.errors import LedgerUnavailableError
from sendoff.figures import LaunchStats
from sendoff.ledger import Claim, DispatchTotals, Ledger
from sendoff.ledger.post_backs.post_backs import Parked
from sendoff.ledger.storage.bulk import ahead
from sendoff.ledger.storage.database import Database
from sendoff.ledger.storage.schema import dispatch_totals, dispatches
from sendoff.postbacks.aggregation import _gathered, aggregate
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.service.postbacks import PostBack
from sendoff.states import Accepted, InDoubt, Outcome, Resolution

from ...examples import examples
from ...factories import KEY, NOW, PERIOD, claimed, make_accepted, make_launch, post_back, store
from ...leases import end_leases

MINUTE = timedelta(minutes=1)
LEASE = 5 * MINUTE
SEGMENTS = [integers([1, 2, 3]), integers([4, 5, 6])]
KEYS = [dispatch_key(KEY, Segment(each).fingerprint()) for each in SEGMENTS]
PLATFORMS = {"chrome": integers([1, 2, 4]), "android": integers([3, 5])}


def freeze(ledger: Ledger) -> None:
    people = integers(range(1, 7))
    make_launch(
        ledger,
        segments=[Segment(each) for each in SEGMENTS],
        audience=Audience("device_id", people, 6, {}, {"platform": PLATFORMS}),
    )


@pytest.mark.promise("twice/once")
def test_what_came_back_proves_a_request_that_a_restored_ledger_has_forgotten(ledger: Ledger) -> None:
    freeze(ledger)  # restored from a backup before the first claim
    store(ledger, post_back(KEYS[0], "open", 1))
    assert aggregate(ledger, now=NOW) == 1
    assert [(each.state, each.attempt) for each in ledger.dispatch_queries.of_launch(KEY)] == [
        ("accepted", 0),
        ("planned", 0),
    ]
    assert claimed(ledger).dispatch_key == KEYS[1]
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is None


def test_a_forgery_is_told_by_a_reply_that_comes_after_it(ledger: Ledger) -> None:
    freeze(ledger)
    taken = claimed(ledger)
    store(ledger, post_back(KEYS[0], "open", 1, campaign=18), post_back(KEYS[0], "open", 2))
    assert aggregate(ledger, now=NOW) == 0
    assert ledger.aggregates.totals(KEY) == {}
    ledger.dispatches.record(taken, Accepted(200, 17), NOW)
    assert aggregate(ledger, now=NOW) == 2
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.anomalies["forged"], figures.verdicts["engaged"]) == (1, 1)
    assert aggregate(ledger, now=NOW) == 0


def test_no_reply_is_waited_for_after_the_lease(ledger: Ledger) -> None:
    freeze(ledger)
    claimed(ledger)
    store(ledger, post_back(KEYS[0], "open", 2))
    assert aggregate(ledger, now=NOW + LEASE + MINUTE) == 0  # the aggregating process's clock may be wrong
    end_leases(ledger)
    assert aggregate(ledger, now=NOW) == 1
    reconcile_launch(ledger, KEY, now=NOW + LEASE + MINUTE)
    assert ledger.dispatch_queries.states(KEY) == {"accepted": 1, "planned": 1}


@pytest.mark.parametrize("when", ["in flight", "accepted"])
def test_what_a_request_that_was_made_twice_brings_back_is_no_forgery(ledger: Ledger, when: str) -> None:
    freeze(ledger)
    ledger.dispatches.record(claimed(ledger), InDoubt("no answer"), NOW)
    assert ledger.doubts.resolve(KEYS[0], Resolution.RESEND, "ann", "twice is better than never", NOW)
    again = claimed(ledger)
    if when == "accepted":
        ledger.dispatches.record(again, Accepted(200, 18), NOW)
    store(
        ledger, post_back(KEYS[0], "delivery", 1, campaign=17), post_back(KEYS[0], "delivery", 2, campaign=18)
    )
    assert aggregate(ledger, now=NOW) == 2
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert (figures.anomalies["forged"], figures.verdicts["delivered"]) == (0, 2)


@pytest.mark.promise("lost/kept")
def test_post_backs_of_a_dispatch_that_is_not_there_are_counted_until_it_is(ledger: Ledger) -> None:
    store(
        ledger,
        post_back(KEYS[0], "open", 1),
        post_back("f" * 32, "open", 9, at=NOW + MINUTE),
        post_back(KEYS[0], "open", 2),
    )
    assert aggregate(ledger, now=NOW) == 0
    orphans = ledger.aggregates.orphans()
    assert (orphans.post_backs, orphans.dispatches, orphans.newest_at) == (3, 2, NOW + MINUTE)
    freeze(ledger)
    ledger.dispatches.record(claimed(ledger), Accepted(200, 17), NOW)
    assert aggregate(ledger, now=NOW) == 2
    assert ledger.aggregates.orphans().post_backs == 1
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.verdicts["engaged"] == 2
    assert figures.post_backs == {"delivery": 0, "open": 2}


@dataclass(frozen=True)
class Step:
    """One step: post-backs arrive at a receiver, or a process aggregates or reconciles."""

    what: str
    events: tuple[PostBack, ...] = ()
    run: int = 1


EVENTS = st.lists(
    st.builds(
        post_back,
        st.sampled_from(KEYS),
        st.sampled_from(["delivery", "open"]),
        st.integers(1, 8),  # 7 and 8 are strangers
        campaign=st.sampled_from([17, 17, 18]),  # 18 is forged
        at=st.sampled_from([NOW, NOW + MINUTE, NOW + 3 * MINUTE]),  # the last is late
    ),
    max_size=20,
)


@pytest.mark.proof
@given(
    events=EVENTS,
    outcome=st.sampled_from([Accepted(200, 17), InDoubt("no answer")]),
    data=st.data(),
)
@settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@pytest.mark.promise("honest/verdict")
def test_no_order_of_events_outcomes_folds_and_reports_changes_a_figure(
    migrated_file: Path,
    tmp_path: Path,
    events: list[PostBack],
    outcome: Outcome,
    data: st.DataObject,
) -> None:
    plain = [Step("freeze"), Step("outcomes"), Step("receive", tuple(events))]
    steps = list(_split(data, data.draw(st.permutations(events))))
    between = st.lists(
        st.builds(Step, st.sampled_from(["aggregate", "reconcile"]), run=st.integers(1, 5)), max_size=6
    )
    for step in data.draw(between):
        steps.insert(data.draw(st.integers(0, len(steps))), step)
    frozen = data.draw(st.integers(0, len(steps)))
    steps.insert(frozen, Step("freeze"))
    steps.insert(data.draw(st.integers(frozen + 1, len(steps))), Step("outcomes"))
    assert _after(migrated_file, tmp_path, steps, outcome) == _after(migrated_file, tmp_path, plain, outcome)


def _split(data: st.DataObject, events: list[PostBack]) -> Iterator[Step]:
    while events:
        size = data.draw(st.integers(1, len(events)))
        yield Step("receive", tuple(events[:size]))
        events = events[size:]


def _after(template: Path, folder: Path, steps: Iterable[Step], outcome: Outcome) -> LaunchStats:
    file = folder / "ledger.db"
    for old in folder.glob("ledger.db*"):
        old.unlink()
    shutil.copy(template, file)
    ledger = Ledger(f"sqlite:///{file}")
    try:
        claims: list[Claim] = []
        for step in steps:
            if step.what == "receive":
                store(ledger, *step.events)
            elif step.what == "aggregate":
                aggregate(ledger, run=step.run, now=NOW)
            elif step.what == "freeze":
                freeze(ledger)
                ledger.launches.settle(KEY, NOW + 2 * MINUTE)
                claims = [claimed(ledger), claimed(ledger)]
            elif step.what == "outcomes":
                for each, came in zip(claims, [outcome, Accepted(200, 17)], strict=True):
                    ledger.dispatches.record(each, came, NOW)
            elif claims:
                reconcile_launch(ledger, KEY, now=NOW)
        return replace(reconcile_launch(ledger, KEY, now=NOW), as_of=NOW)
    finally:
        ledger.close()


def prepared(ledger: Ledger) -> None:
    """Store post-backs of two receivers, one run of them parked, and of a dispatch in doubt."""
    store(
        ledger, *(post_back(KEYS[1], kind, device) for kind in ("delivery", "open") for device in (4, 5, 6))
    )
    aggregate(ledger, now=NOW)
    freeze(ledger)
    ledger.dispatches.record(claimed(ledger), InDoubt("no answer"), NOW)
    ledger.dispatches.record(claimed(ledger), Accepted(200, 17), NOW)
    store(
        ledger,
        *(post_back(KEYS[0], "delivery", device) for device in (1, 2, 1)),
        post_back(KEYS[1], "open", 9),
    )


def check(ledger: Ledger) -> None:
    figures = reconcile_launch(ledger, KEY, now=NOW)
    assert figures.post_backs == {"delivery": 6, "open": 4}
    assert figures.timeline == [(NOW, 6, 3)]
    assert figures.verdicts["delivered"] == 2
    assert figures.verdicts["engaged"] == 3
    assert figures.verdicts["missing"] == 1
    assert figures.anomalies == {"unexpected": 1, "forged": 0, "late": 0, "duplicate": 1, "unreadable": 0}
    assert figures.dispatches == {"accepted": 2}


@contextmanager
def breaking_off(ledger: Ledger, statement: int) -> Iterator[list[int]]:
    """Fail before statement number ``at`` of an aggregation; on PostgreSQL, end the connection."""
    engine = ledger._database._engine
    seen = [0]

    def break_off(db: sa.Connection, cursor: Any, *_: Any) -> None:
        seen[0] += 1
        if seen[0] != statement:
            return
        if db.dialect.name == "sqlite":
            raise sqlite3.OperationalError("disk I/O error")
        pid = cursor.connection.info.backend_pid
        admin = sa.create_engine(engine.url, poolclass=sa.NullPool)
        with admin.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid, 120000)"), {"pid": pid})

    sa.event.listen(engine, "before_cursor_execute", break_off)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", break_off)


@pytest.mark.proof
@pytest.mark.promise("lost/aggregated")
def test_a_fold_that_breaks_off_at_any_statement_is_finished_by_the_next(ledger: Ledger) -> None:
    prepared(ledger)
    broken = 0
    for statement in count(1):
        with breaking_off(ledger, statement) as seen:
            try:
                aggregate(ledger, run=1, now=NOW)
            except (LedgerUnavailableError, sqlite3.OperationalError):
                broken += 1
        if seen[0] < statement:
            break
    assert broken >= 10
    assert ledger.post_backs.pending() == []
    assert ledger.aggregates.parked() == []
    check(ledger)


_TURNS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3)),  # dispatches with an awaited reply
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.sampled_from([17, 17, 18])), max_size=12),
    ),
    min_size=1,
    max_size=6,
)


# Post-backs in between that were already aggregated are not added again.
@pytest.mark.proof
@example(turns=[({0}, [(0, 1, 17)]), (set(), [(0, 2, 17)]), ({1}, [(1, 3, 17)])], together=8, span=20, keys=2)
@given(turns=_TURNS, together=st.integers(1, 8), span=st.integers(1, 20), keys=st.integers(0, 2))
@settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_however_what_was_set_aside_is_gathered_each_post_back_is_added_once(
    migrated_file: Path, tmp_path: Path, turns: list[Any], together: int, span: int, keys: int
) -> None:
    for old in tmp_path.glob("ledger.db*"):
        old.unlink()
    ledger = Ledger(f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'ledger.db')}")
    try:
        people = [integers([1, 2]), integers([3, 4]), integers([5, 6]), integers([7, 8])]
        sent = freeze_many(ledger, [("device_id", people)])
        aggregated = _aggregate_in_turns(ledger, [each.key for each in sent], turns)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sendoff.postbacks.aggregation._TOGETHER", together)
            patch.setattr("sendoff.postbacks.aggregation._SPAN", span)
            patch.setattr("sendoff.ledger.storage.bulk._KEYS_AT_ONCE", keys)
            aggregated += aggregate(ledger, now=NOW)
        events = [each for _, some in turns for each in some]
        assert aggregated == len(events)
        assert ledger.aggregates.parked() == []
        returned = ledger.aggregates.totals(launch_key("service", "spring", PERIOD, 0))
        for which, each in enumerate(sent):
            came = [
                post_back(each.key, "open", *rest[:1], campaign=rest[1])
                for at, *rest in events
                if at == which
            ]
            assert (each.key in returned) == bool(came)
            if came:
                assert _plain(returned[each.key]) == _one_by_one(each, "device_id", came)
    finally:
        ledger.close()


def _aggregate_in_turns(ledger: Ledger, keys: Sequence[str], turns: Sequence[Any]) -> int:
    """Aggregate one run per turn, and no parked post-backs; return how many were added."""
    receiver = ledger.post_backs.register_receiver("r", NOW)
    numbers = count(1)
    aggregated = 0
    ledger.aggregates.parked = list  # type: ignore[method-assign]
    for waiting, events in turns:
        _await_replies(ledger, [keys[which] for which in waiting])
        ledger.post_backs.store(
            receiver,
            [(next(numbers), post_back(keys[which], "open", who, campaign=to)) for which, who, to in events],
        )
        aggregated += aggregate(ledger, now=NOW)
    _await_replies(ledger, [])
    del ledger.aggregates.parked
    return aggregated


def _await_replies(ledger: Ledger, keys: Sequence[str]) -> None:
    is_waiting = dispatches.c.dispatch_key.in_(keys)
    state = sa.case((is_waiting, "in_flight"), else_="accepted")
    with ledger._database.write() as db:
        db.execute(sa.update(dispatches).values(state=state, lease_until=datetime.now(UTC) + LEASE))


def test_the_post_backs_of_all_receivers_are_folded_in_one_transaction(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 10))
    for who in range(1, 6):
        store(ledger, post_back(key, "delivery", who), post_back(key, "open", who))
    stored, store_run = [], ledger.aggregates.store_run

    def store_noted(run: Any) -> bool:
        stored.append(list(run.runs))
        return store_run(run)

    ledger.aggregates.store_run = store_noted  # type: ignore[method-assign]
    assert aggregate(ledger, now=NOW) == 10
    (runs,) = stored
    assert len(runs) == 5
    assert aggregate(ledger, now=NOW) == 0
    assert ledger.post_backs.pending() == []
    assert ledger.aggregates.totals(KEY)[key].opens == 5


def test_another_receiver_costs_a_run_two_statements_and_a_transaction(ledger: Ledger) -> None:
    """Its blocks are read, and its mark is moved. Totals are read and written once for all receivers."""
    key = make_accepted(ledger, range(1, 100))
    people = iter(range(1, 100))
    statements: list[str] = []
    sa.event.listen(ledger._database._engine, "before_cursor_execute", lambda *of: statements.append(of[2]))
    needed = {}
    for receivers in (1, 1, 2, 8):  # the first one also reads the recipients
        for _ in range(receivers):
            store(ledger, *(post_back(key, "open", next(people)) for _ in range(8 // receivers)))
        statements.clear()
        assert aggregate(ledger, now=NOW) == 8
        needed[receivers] = len(statements)
    assert needed == {number: needed[1] + 3 * (number - 1) for number in (1, 2, 8)}


def test_if_another_process_was_faster_with_one_receiver_the_others_are_added_later(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 10))
    store(ledger, post_back(key, "open", 1))
    store(ledger, post_back(key, "open", 2))
    store_run, runs = ledger.aggregates.store_run, []

    def store_late(run: Any) -> bool:
        if not runs:
            runs.append(run)
            with closing(Ledger(ledger._database._engine.url.render_as_string(hide_password=False))) as other:
                assert aggregate(other, run=1, now=NOW) == 2
            store(ledger, post_back(key, "open", 3))
        return store_run(run)

    ledger.aggregates.store_run = store_late  # type: ignore[method-assign]
    assert aggregate(ledger, now=NOW) == 0
    assert aggregate(ledger, now=NOW) == 1
    assert ledger.aggregates.totals(KEY)[key].opens == 3


def test_commits_that_were_repeated_in_parts_are_added_once(ledger: Ledger) -> None:
    key = make_accepted(ledger, range(1, 10))
    receiver = ledger.post_backs.register_receiver("r", NOW)
    numbered = list(enumerate([post_back(key, "open", who) for who in range(1, 10)], 1))
    added = 0
    for start, end in ((1, 2), (0, 3), (2, 6), (0, 6), (3, 9), (8, 9)):
        ledger.post_backs.store(receiver, numbered[start:end])
        if end > 2:
            added += aggregate(ledger, run=2, now=NOW)
    assert added == 9
    totals = ledger.aggregates.totals(KEY)[key]
    assert (totals.opens, len(totals.engaged)) == (9, 9)


def test_what_many_dispatches_set_aside_is_folded_in_few_transactions(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = [integers([who]) for who in range(1, 41)]
    keys = [dispatch_key(KEY, Segment(each).fingerprint()) for each in people]
    store(ledger, *(post_back(key, "open", who) for who, key in enumerate(keys, start=1)))
    aggregate(ledger, now=NOW)
    freeze_many(ledger, [("device_id", people)])
    asked, store_parked = [], ledger.aggregates.store_parked

    def store_counted(asides: Any, receivers: Any) -> bool:
        asked.append(len(asides))
        return store_parked(asides, receivers)

    ledger.aggregates.store_parked = store_counted  # type: ignore[method-assign]
    monkeypatch.setattr("sendoff.postbacks.aggregation._TOGETHER", 15)
    assert aggregate(ledger, now=NOW) == 40
    assert asked == [15, 15, 10]


def test_what_another_process_took_from_the_set_aside_is_not_counted(ledger: Ledger) -> None:
    people = [integers([1])]
    key = dispatch_key(KEY, Segment(people[0]).fingerprint())
    store(ledger, post_back(key, "open", 1))
    aggregate(ledger, now=NOW)
    freeze_many(ledger, [("device_id", people)])
    store_parked = ledger.aggregates.store_parked

    def store_late(*what: Any) -> bool:
        with closing(Ledger(ledger._database._engine.url.render_as_string(hide_password=False))) as other:
            assert aggregate(other, now=NOW) == 1
        return store_parked(*what)

    ledger.aggregates.store_parked = store_late  # type: ignore[method-assign]
    assert aggregate(ledger, now=NOW) == 0
    assert ledger.aggregates.totals(KEY)[key].opens == 1


@pytest.mark.proof
def test_any_number_of_doubts_is_resolved_by_what_came_back(ledger: Ledger) -> None:
    freeze(ledger)
    for _ in KEYS:
        ledger.dispatches.record(claimed(ledger), InDoubt("no answer"), NOW)
    store(ledger, post_back(KEYS[0], "open", 1), post_back(KEYS[1], "open", 4))
    assert aggregate(ledger, now=NOW) == 2
    # More copies of the first than PostgreSQL takes as parameters of one statement.
    doubts = 66_000
    numbers = sa.select(sa.literal(1).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < doubts))
    with ledger._database.write() as db:
        for table in (dispatches, dispatch_totals):
            first = sa.select(table).where(table.c.dispatch_key == KEYS[0]).subquery()
            copies = sa.select(numbers.c.n.cast(sa.Text), *list(first.c)[1:]).join_from(
                numbers, first, sa.true()
            )
            db.execute(sa.insert(table).from_select(list(table.c), copies))
        db.execute(sa.update(dispatches).values(state="in_doubt"))
    assert ledger.aggregates.resolve_doubts(NOW) == doubts + 2
    assert ledger.dispatch_queries.states(KEY) == {"accepted": doubts + 2}
    assert ledger.aggregates.resolve_doubts(NOW) == 0


AGGREGATING = """
import sys
from datetime import datetime
from sendoff.postbacks.aggregation import aggregate
from sendoff.ledger import Ledger

ledger = Ledger(sys.argv[1])
ledger.ping()
print("ready", flush=True)
sys.stdin.readline()
aggregate(ledger, run=1, now=datetime.fromisoformat(sys.argv[2]))
"""


@pytest.mark.proof
@pytest.mark.promise("lost/aggregated")
def test_processes_that_fold_at_once_add_each_post_back_once(ledger: Ledger) -> None:
    prepared(ledger)
    url = ledger._database._engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", AGGREGATING, url, NOW.isoformat()]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0]
    assert ledger.post_backs.pending() == []
    assert ledger.aggregates.parked() == []
    check(ledger)


@dataclass(frozen=True)
class Sent:
    """A dispatch of a launch, and its recipients; None: the service chose them."""

    key: str
    people: Identifiers | None


def freeze_many(ledger: Ledger, launches: Sequence[tuple[str, Sequence[Identifiers | None]]]) -> list[Sent]:
    """Make accepted launches, one per kind of identifier."""
    for number, (identified_by, segments) in enumerate(launches):
        key = launch_key("service", "spring", PERIOD, number)
        known = [each for each in segments if each is not None]
        people = union(known[0].kind, known) if known else None
        make_launch(
            ledger,
            segments=[Segment(each) for each in segments],
            audience=None
            if people is None
            else Audience(identified_by, people, len(people), {}, {"platform": {}}),
            resend=number,
            launch_key=key,
        )
        while taken := ledger.dispatches.claim(key, worker="w", now=NOW, lease=LEASE):
            ledger.dispatches.record(taken, Accepted(200, 17), NOW)
    return [
        Sent(dispatch_key(launch_key("service", "spring", PERIOD, number), Segment(each).fingerprint()), each)
        for number, (_, segments) in enumerate(launches)
        for each in segments
    ]


SCATTERED = [1, 77, 2**40, 2**40 + 1, 2**62, 2**63 - 1]
WORLDS: list[tuple[str, list[Identifiers | None]]] = [
    ("device_id", [integers([1, 2, 3, 7]), integers([4, 5, 6, 8])]),  # numbers close together
    ("device_id", [integers(SCATTERED[:3]), integers(SCATTERED[3:])]),
    ("device_id", [integers([2, 2**62, 2**63 - 2]), integers([3, 2**61])]),  # too far apart for one group
    ("device_id", [None]),
    ("user_id", [strings(["ann", "bob"]), strings(["1", "Zoë"])]),
    ("external_id", [strings(["ann"])]),
]
_NAMES = st.tuples(
    st.sampled_from([None, *range(1, 10), *SCATTERED, 2**61]),
    st.sampled_from([None, "ann", "bob", "Zoë", "1"]),
)


@given(
    came=st.lists(
        st.tuples(
            st.integers(0, 9),  # dispatch
            st.sampled_from(["delivery", "open"]),
            _NAMES,
            st.sampled_from([17, 17, 18, None]),  # campaign
            st.booleans(),  # readable
        ),
        max_size=60,
    ),
    run=st.integers(1, 30),
)
@settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_many_dispatches_at_once_are_counted_as_one_by_one(
    migrated_file: Path, tmp_path: Path, came: list[Any], run: int
) -> None:
    file = tmp_path / "ledger.db"
    for old in tmp_path.glob("ledger.db*"):
        old.unlink()
    shutil.copy(migrated_file, file)
    ledger = Ledger(f"sqlite:///{file}")
    try:
        sent = freeze_many(ledger, WORLDS)
        events = [_named(sent[which].key, *rest) for which, *rest in came]
        store(ledger, *events)
        assert aggregate(ledger, run=run, now=NOW) == len(events)
        for number, (identified_by, _) in enumerate(WORLDS):
            returned = ledger.aggregates.totals(launch_key("service", "spring", PERIOD, number))
            for each in sent:
                if each.key in returned:
                    assert _plain(returned[each.key]) == _one_by_one(each, identified_by, events)
        assert sum(each.deliveries + each.opens for each in _all_returned(ledger)) == len(events)
    finally:
        ledger.close()


def test_a_stranger_just_above_scattered_numbers_is_not_the_first_of_the_next_segment(ledger: Ledger) -> None:
    """Segments follow each other on the line, so the next place belongs to another segment."""
    segments: list[Identifiers | None] = [integers([1, 2**40]), integers([2**41, 2**50])]
    first, second = freeze_many(ledger, [("device_id", segments)])
    events = [post_back(first.key, "open", who) for who in (1, 2**40, 2**40 + 1, 2**41)]
    store(ledger, *events, post_back(second.key, "open", 2**41))
    assert aggregate(ledger, now=NOW) == 5
    returned = ledger.aggregates.totals(launch_key("service", "spring", PERIOD, 0))
    assert set(returned[first.key].engaged) == {1, 2**40}
    assert returned[first.key].anomalies == {"unexpected": 2}
    assert set(returned[second.key].engaged) == {2**41}


def test_people_whose_numbers_are_scattered_are_forgotten_between_runs_beyond_a_limit(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = freeze_many(ledger, [("device_id", [integers(SCATTERED[:3]), integers(SCATTERED[3:])])])
    events = [post_back(each.key, "open", int(who)) for each in sent for who in each.people or ()]
    store(ledger, *events, *events)
    read, sent_to = [], ledger.aggregates.sent_to

    def sent_to_noted(keys: Iterable[str]) -> Any:
        for key, people in sent_to(keys):
            read.append(key)
            yield key, people

    ledger.aggregates.sent_to = sent_to_noted  # type: ignore[method-assign]
    monkeypatch.setattr("sendoff.postbacks.recipient_index._KEPT_BYTES", 48)  # of all six
    assert aggregate(ledger, run=3, now=NOW) == 12
    assert read == [sent[0].key, sent[1].key, sent[0].key, sent[1].key]
    returned = ledger.aggregates.totals(launch_key("service", "spring", PERIOD, 0))
    assert [_plain(returned[each.key]) for each in sent] == [
        _one_by_one(each, "device_id", [*events, *events]) for each in sent
    ]


def _named(key: str, kind: str, names: tuple[Any, Any], campaign: int | None, readable: bool) -> PostBack:
    device, user = names
    body: dict[str, Any] = {"time": 1772442000}
    body |= {"device": {"id": device}} if device else {}
    body |= {"profile": {"user_id": user}} if user else {}
    body |= {"campaign": {"id": campaign}} if campaign else {}
    return PostBack.received(kind, key, NOW, json.dumps(body).encode() if readable else b"{")


def _one_by_one(sent: Sent, identified_by: str, events: Sequence[PostBack]) -> tuple[Any, ...]:
    """Return the expected totals of one dispatch, computed one post-back at a time."""
    who: dict[str, set[Any]] = {"delivery": set(), "open": set()}
    counts = dict.fromkeys(("delivery", "open", "unexpected", "forged", "unreadable", "at_opens"), 0)
    is_evidence = False
    for each in events:
        if each.dispatch_key != sent.key:
            continue
        counts[each.kind] += 1
        named = each.fields and getattr(each.fields, identified_by, None)
        if each.fields is not None and each.fields.campaign_id not in (None, 17):
            strange = "forged"
        elif each.fields is not None and identified_by == "external_id":
            is_evidence = True
            continue  # no post-back contains it, so none is unexpected
        elif named is None:
            strange = "unreadable"
            is_evidence |= each.fields is not None
        elif sent.people is not None and named not in sent.people:
            strange = "unexpected"
        else:
            who[each.kind].add(named)
            is_evidence = True
            continue
        counts[strange] += 1
        counts["at_opens"] += each.kind == "open" and strange != "unexpected"
    anomalies = {
        name: counts[name] for name in ("unexpected", "forged", "unreadable", "at_opens") if counts[name]
    }
    return who["delivery"], who["open"], counts["delivery"], counts["open"], anomalies, is_evidence


def _plain(part: DispatchTotals) -> tuple[Any, ...]:
    return (
        set(part.delivered),
        set(part.engaged),
        part.deliveries,
        part.opens,
        dict(part.anomalies),
        part.is_evidence,
    )


def _all_returned(ledger: Ledger) -> list[DispatchTotals]:
    keys = [launch_key("service", "spring", PERIOD, number) for number in range(len(WORLDS))]
    return [part for key in keys for part in ledger.aggregates.totals(key).values()]


@pytest.mark.proof
@pytest.mark.parametrize("has_driver", [True, False])
def test_many_post_backs_are_read_with_and_without_the_driver_for_arrow(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, has_driver: bool
) -> None:
    if not has_driver:
        monkeypatch.setitem(sys.modules, "adbc_driver_postgresql", None)
    people = integers(range(1, 12_001))
    deliveries = strings([f"user {each}" for each in range(12_000)])
    sent = freeze_many(ledger, [("device_id", list(people.slices(1_000))), ("user_id", [deliveries])])
    events = [post_back(each.key, "delivery", int(who)) for each in sent[:-1] for who in each.people or ()]
    events += [_named(sent[-1].key, "open", (5, f"user {each}"), 17, True) for each in range(11_000)]
    assert len(events) > 20_000  # fewer would be read in another way
    store(ledger, *events, _named(sent[0].key, "open", (None, None), None, False))
    assert aggregate(ledger, now=NOW) == len(events) + 1
    figures = [
        reconcile_launch(ledger, launch_key("service", "spring", PERIOD, number), now=NOW)
        for number in range(2)
    ]
    assert [each.verdicts["delivered"] for each in figures] == [12_000, 0]
    assert [each.verdicts["engaged"] for each in figures] == [0, 11_000]
    assert [each.anomalies["unreadable"] for each in figures] == [1, 0]
    assert figures[0].timeline == [(NOW, 12_000, 0)]


def _numbered(numbers: Iterable[int], read: list[int]) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        if number < 0:
            raise LedgerUnavailableError("the server went away")
        read.append(number)
        yield pa.record_batch({"number": [number]})


def _is_reading() -> bool:
    return any(thread.name.startswith("sendoff-read") for thread in threading.enumerate())


def test_batches_that_are_read_ahead_come_in_their_order() -> None:
    read: list[int] = []
    assert [batch["number"][0].as_py() for batch in ahead(_numbered(range(20), read))] == list(range(20))
    assert list(ahead(_numbered([], read))) == []
    assert not _is_reading()


def test_what_breaks_reading_ahead_comes_after_the_batches_before_it() -> None:
    batches = ahead(_numbered([0, 1, 2, -1, 4], []))
    assert [batch["number"][0].as_py() for batch in islice(batches, 3)] == [0, 1, 2]
    with pytest.raises(LedgerUnavailableError, match="the server went away"):
        next(batches)
    assert not _is_reading()


def test_one_batch_is_read_ahead_and_none_once_nobody_wants_them() -> None:
    read: list[int] = []
    with closing(ahead(_numbered(count(), read))) as batches:
        next(batches)
    assert 1 <= len(read) <= 2
    assert not _is_reading()


def test_a_server_that_fails_amid_a_large_result_is_reported_after_what_it_gave(
    migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.ledger.storage.bulk.BATCH_BYTES", 12_000)
    numbers = sa.func.generate_series(1, 60_000, type_=sa.BigInteger).column_valued("n")
    query = sa.select((60_000 / (50_000 - numbers)).cast(sa.BigInteger).label("n"))
    database = Database(migrated_postgres)
    with database.arrow(query, is_large=True) as batches:
        assert next(batches).num_rows > 0
        with pytest.raises(LedgerUnavailableError, match="did not answer"):
            list(batches)
    assert not _is_reading()
    with database.arrow(sa.select(numbers.label("n")), is_large=True) as batches:
        assert sum(batch.num_rows for batch in batches) == 60_000
    database.close()


@pytest.mark.proof
def test_a_fold_that_breaks_off_amid_reading_leaves_no_thread_and_is_made_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.ledger.post_backs.post_backs._LARGE", 1)
    monkeypatch.setattr("sendoff.ledger.post_backs.post_backs._GROUP_BLOCKS", 10)
    monkeypatch.setattr("sendoff.ledger.storage.bulk.BATCH_ROWS", 10)
    monkeypatch.setattr("sendoff.ledger.storage.bulk.BATCH_BYTES", 5_000)
    people = [integers([2 * who, 2 * who + 1]) for who in range(1, 101)]
    sent = freeze_many(ledger, [("device_id", people)])
    receiver = ledger.post_backs.register_receiver("r", NOW)
    events = [post_back(each.key, "open", int(who)) for each in sent for who in each.people or ()]
    for commit in enumerate(events, start=1):
        ledger.post_backs.store(receiver, [commit])
    origins, asked = ledger.aggregates.contexts, count(1)

    def broken(keys: Iterable[str]) -> Any:
        if next(asked) == 2:
            raise LedgerUnavailableError("it went away")
        return origins(keys)

    ledger.aggregates.contexts = broken  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailableError, match="it went away"):
        aggregate(ledger, now=NOW)
    assert not _is_reading()
    assert ledger.aggregates.totals(launch_key("service", "spring", PERIOD, 0)) == {}
    assert aggregate(ledger, now=NOW) == 200
    figures = reconcile_launch(ledger, launch_key("service", "spring", PERIOD, 0), now=NOW)
    assert (figures.verdicts["engaged"], figures.anomalies["duplicate"]) == (200, 0)


IMPORTS = """
import sys
from datetime import datetime

class Asked:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            print("pandas is imported")

sys.meta_path.insert(0, Asked())
from sendoff.ledger.post_backs import post_backs
from sendoff.ledger import Ledger
from sendoff.postbacks.reconcile import reconcile_launch

post_backs._LARGE = 1
figures = reconcile_launch(Ledger(sys.argv[1]), sys.argv[2], now=datetime.fromisoformat(sys.argv[3]))
print(figures.verdicts["engaged"])
"""


@pytest.mark.proof
@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # its rows never become Python objects
def test_whole_numbers_are_reconciled_without_the_time_and_memory_of_importing_pandas(
    migrated_postgres: str, ledger: Ledger
) -> None:
    freeze(ledger)
    for campaign in (17, 18):
        ledger.dispatches.record(claimed(ledger), Accepted(200, campaign), NOW)
    store(
        ledger,
        post_back(KEYS[0], "open", 1),
        post_back(KEYS[0], "delivery", 2),
        post_back(KEYS[1], "open", 9),
    )
    command = [sys.executable, "-c", IMPORTS, migrated_postgres, KEY, NOW.isoformat()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def test_parked_post_backs_are_read_again_in_groups_with_each_dispatch_once() -> None:
    def parked(first: int, key: str, receiver: int = 1) -> Parked:
        return Parked(receiver, first, first + 9, key, 3, NOW)

    near = [parked(1, "a"), parked(11, "b"), parked(21, "a"), parked(31, "c")]
    other = parked(1, "a", receiver=2)
    assert list(_gathered([near[3], other, *near[:3]])) == [near[:2], near[2:], [other]]


def test_parked_post_backs_of_one_dispatch_are_joined() -> None:
    first, later = Parked(1, 3, 9, "a", 4, NOW), Parked(1, 7, 12, "a", 2, NOW + MINUTE)
    joined = Parked(1, 3, 12, "a", 6, NOW + MINUTE)
    assert first | later == later | first == joined
