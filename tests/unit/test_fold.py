"""Folding: the same comes of it however post-backs are ordered, split, repeated and interrupted."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sendoff.audience import Audience
from sendoff.campaign import Campaign
from sendoff.errors import LedgerUnavailableError
from sendoff.figures import Figures
from sendoff.fold import fold
from sendoff.identifiers import integers
from sendoff.ledger import Claim, Ledger
from sendoff.outcome import Accepted, InDoubt, Outcome
from sendoff.period import Period, dispatch_key, launch_key
from sendoff.postbacks import PostBack
from sendoff.reconcile import reconcile
from sendoff.segments import Segment

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LEASE = 5 * MINUTE
PERIOD = Period(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
KEY = launch_key("service", "spring", PERIOD)
EMAIL = Campaign.model_validate(
    {
        "title": "Spring",
        "channels": {"email": {"from_address": 1, "subject": "Hello", "text": "It is spring"}},
    }
)
SEGMENTS = [integers([1, 2, 3]), integers([4, 5, 6])]
KEYS = [dispatch_key(KEY, Segment(each).fingerprint()) for each in SEGMENTS]
PLATFORMS = {"chrome": integers([1, 2, 4]), "android": integers([3, 5])}


def freeze(ledger: Ledger) -> None:
    people = integers(range(1, 7))
    ledger.launches.freeze(
        KEY,
        connection="service",
        campaign="spring",
        period=PERIOD,
        resend=0,
        definition=EMAIL.model_dump_json(),
        audience=Audience("device_id", people, 6, {}, {"platform": PLATFORMS}, people.fingerprint()),
        segments=[Segment(each) for each in SEGMENTS],
        now=NOW,
        sends_at=NOW,
    )


def claim(ledger: Ledger, now: datetime = NOW) -> Claim:
    taken = ledger.dispatches.claim(KEY, worker="w", now=now, lease=LEASE)
    assert taken is not None
    return taken


def event(key: str, kind: str, device: int, *, campaign: int = 17, at: datetime = NOW) -> PostBack:
    body = {"time": 1772442000, "device": {"id": device}, "campaign": {"id": campaign}}
    return PostBack.received(kind, key, at, json.dumps(body).encode())


def store(ledger: Ledger, *events: PostBack) -> None:
    receiver = ledger.post_backs.register_receiver("r", NOW)
    ledger.post_backs.store(receiver, list(enumerate(events, start=1)))


def test_a_forgery_is_told_by_a_reply_that_comes_after_it(ledger: Ledger) -> None:
    freeze(ledger)
    taken = claim(ledger)
    store(ledger, event(KEYS[0], "open", 1, campaign=18), event(KEYS[0], "open", 2))
    assert fold(ledger, now=NOW) == 0
    assert ledger.post_backs.returned(KEY) == {}
    ledger.dispatches.record(taken, Accepted(200, 17), NOW)
    assert fold(ledger, now=NOW) == 2
    figures = reconcile(ledger, KEY, now=NOW)
    assert (figures.anomalies["forged"], figures.verdicts["engaged"]) == (1, 1)
    assert fold(ledger, now=NOW) == 0


def test_no_reply_is_waited_for_after_the_lease(ledger: Ledger) -> None:
    freeze(ledger)
    claim(ledger)
    store(ledger, event(KEYS[0], "open", 2))
    assert fold(ledger, now=NOW + LEASE) == 0
    assert fold(ledger, now=NOW + LEASE + MINUTE) == 1
    reconcile(ledger, KEY, now=NOW + LEASE + MINUTE)
    assert ledger.dispatches.states(KEY) == {"accepted": 1, "planned": 1}


@pytest.mark.parametrize("when", ["in flight", "accepted"])
def test_what_a_request_that_was_made_twice_brings_back_is_no_forgery(ledger: Ledger, when: str) -> None:
    freeze(ledger)
    ledger.dispatches.record(claim(ledger), InDoubt("no answer"), NOW)
    assert ledger.dispatches.resolve(KEYS[0], "resend", "ann", "twice is better than never", NOW)
    again = claim(ledger)
    if when == "accepted":
        ledger.dispatches.record(again, Accepted(200, 18), NOW)
    store(ledger, event(KEYS[0], "delivery", 1, campaign=17), event(KEYS[0], "delivery", 2, campaign=18))
    assert fold(ledger, now=NOW) == 2
    figures = reconcile(ledger, KEY, now=NOW)
    assert (figures.anomalies["forged"], figures.verdicts["delivered"]) == (0, 2)


def test_post_backs_of_a_dispatch_that_is_not_there_are_counted_until_it_is(ledger: Ledger) -> None:
    store(
        ledger,
        event(KEYS[0], "open", 1),
        event("f" * 32, "open", 9, at=NOW + MINUTE),
        event(KEYS[0], "open", 2),
    )
    assert fold(ledger, now=NOW) == 0
    strays = ledger.post_backs.strays()
    assert (strays.post_backs, strays.dispatches, strays.newest_at) == (3, 2, NOW + MINUTE)
    freeze(ledger)
    ledger.dispatches.record(claim(ledger), Accepted(200, 17), NOW)
    assert fold(ledger, now=NOW) == 2
    assert ledger.post_backs.strays().post_backs == 1
    figures = reconcile(ledger, KEY, now=NOW)
    assert figures.verdicts["engaged"] == 2
    assert figures.post_backs == {"delivery": 0, "open": 2}


@dataclass(frozen=True)
class Step:
    """One thing that happens: post-backs arrive at a receiver, or somebody folds or reconciles."""

    what: str
    events: tuple[PostBack, ...] = ()
    run: int = 1


EVENTS = st.lists(
    st.builds(
        event,
        st.sampled_from(KEYS),
        st.sampled_from(["delivery", "open"]),
        st.integers(1, 8),  # 7 and 8 are strangers
        campaign=st.sampled_from([17, 17, 18]),  # 18 is forged
        at=st.sampled_from([NOW, NOW + MINUTE, NOW + 3 * MINUTE]),  # the last is late
    ),
    max_size=20,
)


@given(
    events=EVENTS,
    outcome=st.sampled_from([Accepted(200, 17), InDoubt("no answer")]),
    data=st.data(),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
        st.builds(Step, st.sampled_from(["fold", "reconcile"]), run=st.integers(1, 5)), max_size=6
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


def _after(template: Path, folder: Path, steps: Iterable[Step], outcome: Outcome) -> Figures:
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
            elif step.what == "fold":
                fold(ledger, run=step.run, now=NOW)
            elif step.what == "freeze":
                freeze(ledger)
                ledger.launches.settle(KEY, NOW + 2 * MINUTE)
                claims = [claim(ledger), claim(ledger)]
            elif step.what == "outcomes":
                for each, came in zip(claims, [outcome, Accepted(200, 17)], strict=True):
                    ledger.dispatches.record(each, came, NOW)
            elif claims:
                reconcile(ledger, KEY, now=NOW)
        return replace(reconcile(ledger, KEY, now=NOW), as_of=NOW)
    finally:
        ledger.close()


def prepared(ledger: Ledger) -> None:
    """Leave post-backs to be folded: of two receivers, one of whose runs is set aside, and of a dispatch in doubt."""
    store(ledger, *(event(KEYS[1], kind, device) for kind in ("delivery", "open") for device in (4, 5, 6)))
    fold(ledger, now=NOW)
    freeze(ledger)
    ledger.dispatches.record(claim(ledger), InDoubt("no answer"), NOW)
    ledger.dispatches.record(claim(ledger), Accepted(200, 17), NOW)
    store(ledger, *(event(KEYS[0], "delivery", device) for device in (1, 2, 1)), event(KEYS[1], "open", 9))


def check(ledger: Ledger) -> None:
    figures = reconcile(ledger, KEY, now=NOW)
    assert figures.post_backs == {"delivery": 6, "open": 4}
    assert figures.timeline == [(NOW, 6, 3)]
    assert figures.verdicts["delivered"] == 2
    assert figures.verdicts["engaged"] == 3
    assert figures.verdicts["missing"] == 1
    assert figures.anomalies == {"unexpected": 1, "forged": 0, "late": 0, "duplicate": 1, "unreadable": 0}
    assert figures.dispatches == {"accepted": 2}


@contextmanager
def breaking_off(ledger: Ledger, statement: int) -> Iterator[list[int]]:
    """Take the database away before a fold's so-many-th statement; on PostgreSQL the server ends the connection."""
    engine = ledger._database._engine
    seen = [0]

    def break_off(connection: sa.Connection, cursor: Any, *_: Any) -> None:
        seen[0] += 1
        if seen[0] != statement:
            return
        if connection.dialect.name == "sqlite":
            raise sqlite3.OperationalError("disk I/O error")
        pid = cursor.connection.info.backend_pid
        admin = sa.create_engine(engine.url, poolclass=sa.NullPool)
        with admin.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    sa.event.listen(engine, "before_cursor_execute", break_off)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", break_off)


def test_a_fold_that_breaks_off_at_any_statement_is_finished_by_the_next(ledger: Ledger) -> None:
    prepared(ledger)
    broken = 0
    for statement in count(1):
        with breaking_off(ledger, statement) as seen:
            try:
                fold(ledger, run=1, now=NOW)
            except (LedgerUnavailableError, sqlite3.OperationalError):
                broken += 1
        if seen[0] < statement:
            break
    assert broken >= 10
    assert ledger.post_backs.unfolded() == []
    assert ledger.post_backs.set_aside() == []
    check(ledger)


FOLDING = """
import sys
from datetime import datetime
from sendoff.fold import fold
from sendoff.ledger import Ledger

ledger = Ledger(sys.argv[1])
ledger.ping()
print("ready", flush=True)
sys.stdin.readline()
fold(ledger, run=1, now=datetime.fromisoformat(sys.argv[2]))
"""


def test_processes_that_fold_at_once_add_each_post_back_once(ledger: Ledger) -> None:
    prepared(ledger)
    url = ledger._database._engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", FOLDING, url, NOW.isoformat()]
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
    assert ledger.post_backs.unfolded() == []
    assert ledger.post_backs.set_aside() == []
    check(ledger)
