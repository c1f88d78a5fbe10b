"""Retention deletes aggregated post-backs without changing a report, and keeps those that are still needed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from sendoff.audience.identifiers import integers
from sendoff.audience.segmentation import Segment
from sendoff.campaign import dispatch_key
from sendoff.ledger import Ledger
from sendoff.postbacks.aggregation import aggregate
from sendoff.postbacks.reconcile import reconcile_launch
from sendoff.postbacks.retention import maintain
from sendoff.service.postbacks import PostBack

from ...factories import KEY, NOW, PERIOD, make_accepted, stored_post_backs

if TYPE_CHECKING:
    from tests.conftest import Command

DAY = timedelta(days=1)
PEOPLE = integers(range(1, 7))
DISPATCH = dispatch_key(KEY, Segment(PEOPLE).fingerprint())
STRANGE = "f" * 32


@pytest.fixture
def launched(ledger: Ledger) -> Ledger:
    """Return a ledger with one accepted launch and partitions from its day on."""
    for day in (day for day in range(10) if ledger.name.startswith("postgresql")):
        _drop_partition(ledger, NOW + day * DAY)
    ledger.retention.prepare(NOW, days=10)
    make_accepted(ledger, PEOPLE, period=PERIOD, at=NOW)
    return ledger


def _drop_partition(ledger: Ledger, day: datetime) -> None:
    with ledger._database.write() as db:  # the previous test shares the database
        db.execute(sa.text(f"DROP TABLE IF EXISTS post_backs_{day:%Y_%m_%d}"))


def event(device: int, at: datetime, kind: str = "delivery", key: str = DISPATCH) -> PostBack:
    body = {"time": 1772442000, "device": {"id": device}, "campaign": {"id": 17}}
    return PostBack.received(kind, key, at, json.dumps(body).encode())


def store(ledger: Ledger, events: Iterable[PostBack]) -> int:
    receiver = ledger.post_backs.register_receiver("r", NOW)
    ledger.post_backs.store(receiver, list(enumerate(events, 1)))
    return receiver


def stored(ledger: Ledger) -> int:
    return len(stored_post_backs(ledger))


def is_partitioned(ledger: Ledger) -> bool:
    return ledger.name.startswith("postgresql")


@pytest.mark.promise("lost/forgotten")
def test_what_was_folded_is_forgotten_and_the_report_stays(launched: Ledger) -> None:
    store(launched, [event(1, NOW), event(2, NOW + DAY), event(2, NOW + 2 * DAY, "open")])
    before = reconcile_launch(launched, KEY, now=NOW + 3 * DAY)
    deleted = launched.retention.delete_before(NOW + 3 * DAY)
    assert stored(launched) == 0
    if is_partitioned(launched):
        assert deleted.days == tuple(date(2026, 3, day) for day in (2, 3, 4))
        assert deleted.post_backs == 0
    else:
        assert deleted.post_backs == 3
    assert reconcile_launch(launched, KEY, now=NOW + 3 * DAY) == before


def test_what_is_younger_stays(launched: Ledger) -> None:
    store(launched, [event(1, NOW), event(2, NOW + 2 * DAY)])
    aggregate(launched, now=NOW + 3 * DAY)
    launched.retention.delete_before(NOW + 2 * DAY)
    assert stored(launched) == 1


def test_what_came_at_that_moment_stays_although_its_clock_was_ahead(launched: Ledger) -> None:
    receiver = launched.post_backs.register_receiver("r", NOW)
    for number, at in enumerate([NOW, NOW + timedelta(seconds=1), NOW], 1):
        launched.post_backs.store(receiver, [(number, event(number, at))])
    aggregate(launched, now=NOW + DAY)
    assert launched.retention.delete_before(NOW + timedelta(seconds=1)).post_backs == 2
    assert stored(launched) == 1


@pytest.mark.promise("lost/forgotten")
def test_what_is_not_folded_stays_however_old_it_is(launched: Ledger) -> None:
    store(launched, [event(1, NOW)])
    deleted = launched.retention.delete_before(NOW + 9 * DAY)
    assert stored(launched) == 1
    if is_partitioned(launched):
        assert deleted.needed == (date(2026, 3, 2),)
    assert reconcile_launch(launched, KEY, now=NOW + 9 * DAY).verdicts["delivered"] == 1


def test_what_is_set_aside_stays_and_the_rest_of_a_day_without_a_partition_goes(ledger: Ledger) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    store(ledger, [event(1, long_ago, key=STRANGE), event(2, long_ago, key=STRANGE)])
    aggregate(ledger, now=NOW)
    assert ledger.aggregates.orphans().post_backs == 2
    assert ledger.retention.delete_before(NOW).post_backs == 0
    assert stored(ledger) == 2


def test_what_is_set_aside_stays_with_its_commit_and_what_lies_beside_it_goes(launched: Ledger) -> None:
    receiver = store(launched, [event(1, NOW)])
    launched.post_backs.store(receiver, [(2, event(2, NOW, key=STRANGE)), (3, event(3, NOW))])
    launched.post_backs.store(receiver, [(4, event(4, NOW))])
    aggregate(launched, now=NOW)
    assert launched.retention.delete_before(NOW + 9 * DAY).post_backs == 2
    assert [each.number for each in stored_post_backs(launched)] == [2, 3]
    assert launched.aggregates.orphans().post_backs == 1


def test_what_is_set_aside_on_two_days_keeps_no_day_between(launched: Ledger) -> None:
    days = [event(1, NOW, key=STRANGE), event(2, NOW + DAY), event(3, NOW + 2 * DAY, key=STRANGE)]
    store(launched, days)
    aggregate(launched, now=NOW + 2 * DAY)
    launched.retention.delete_before(NOW + 9 * DAY)
    assert [each.number for each in stored_post_backs(launched)] == [1, 3]
    assert launched.aggregates.orphans().post_backs == 2


def test_forgetting_what_one_receiver_sent_keeps_what_is_not_folded_of_another(launched: Ledger) -> None:
    """Each receiver numbers from 1, so the same number can mean different post-backs."""
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)  # this day has no partition, so they are deleted one by one
    store(launched, [event(1, long_ago), event(2, long_ago)])
    aggregate(launched, now=NOW)
    other = launched.post_backs.register_receiver("other", NOW)
    launched.post_backs.store(other, [(1, event(3, long_ago)), (2, event(4, long_ago))])
    assert launched.retention.delete_before(NOW).post_backs == 2
    assert stored(launched) == 2
    assert reconcile_launch(launched, KEY, now=NOW).verdicts["delivered"] == 4


def test_forgetting_again_changes_nothing(launched: Ledger) -> None:
    store(launched, [event(1, NOW)])
    aggregate(launched, now=NOW)
    launched.retention.delete_before(NOW + 9 * DAY)
    again = launched.retention.delete_before(NOW + 9 * DAY)
    assert (again.days, again.post_backs, again.needed, again.in_use) == ((), 0, (), ())


def test_what_comes_later_is_folded_as_ever(launched: Ledger) -> None:
    receiver = store(launched, [event(1, NOW)])
    aggregate(launched, now=NOW)
    launched.retention.delete_before(NOW + 9 * DAY)
    launched.post_backs.store(receiver, [(2, event(2, NOW + DAY, "open"))])
    figures = reconcile_launch(launched, KEY, now=NOW + 9 * DAY)
    assert (figures.verdicts["delivered"], figures.verdicts["engaged"]) == (1, 1)


def test_days_are_prepared_once_and_never_over_what_has_come(ledger: Ledger) -> None:
    start = datetime(2031, 5, 1, 12, tzinfo=UTC)
    store(ledger, [event(1, start + DAY)])
    days = ledger.retention.prepare(start, days=3)
    assert days == ([date(2031, 5, 1), date(2031, 5, 3)] if is_partitioned(ledger) else [])
    assert ledger.retention.prepare(start, days=3) == []
    for day in (0, 2):
        if is_partitioned(ledger):
            _drop_partition(ledger, start + day * DAY)


def test_for_a_day_that_has_come_nobody_is_kept_waiting(ledger: Ledger) -> None:
    """The check for existing post-backs needs no lock, unlike creating the partition."""
    start = datetime(2031, 6, 1, 12, tzinfo=UTC)
    store(ledger, [event(1, start)])
    made: list[str] = []
    engine = ledger._database._engine
    listener = sa.event.listens_for(engine, "before_cursor_execute")
    listener(
        lambda _c, _cursor, statement, *_: made.append(statement) if "CREATE TABLE" in statement else None
    )
    assert ledger.retention.prepare(start, days=2) == ([date(2031, 6, 2)] if is_partitioned(ledger) else [])
    assert len(made) == (1 if is_partitioned(ledger) else 0)
    if is_partitioned(ledger):
        _drop_partition(ledger, start + DAY)


@pytest.mark.proof
@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)  # SQLite has no partitions
def test_a_day_whose_partition_could_not_be_made_is_not_reported_as_made(ledger: Ledger) -> None:
    start = datetime(2031, 7, 1, 12, tzinfo=UTC)
    with ledger._database.read() as reader:  # holds the table for longer than the lock timeout
        assert reader.scalar(sa.text("SELECT count(*) FROM post_backs")) == 0
        assert ledger.retention.prepare(start, days=1) == []
    assert ledger.retention.prepare(start, days=1) == [start.date()]
    _drop_partition(ledger, start)


def test_how_many_days_ahead_have_partitions_is_known(launched: Ledger) -> None:
    ahead = [launched.retention.ahead(NOW + days * DAY) for days in (-2, 0, 8, 9)]
    assert ahead == ([0, 9, 1, 0] if is_partitioned(launched) else [None] * 4)
    if is_partitioned(launched):
        _drop_partition(launched, NOW + 3 * DAY)
        assert launched.retention.ahead(NOW) == 2


def test_too_few_days_ahead_are_told(launched: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """If a receiver's clock is ahead, a future day gets post-backs early and no partition."""
    store(launched, [event(1, NOW + 12 * DAY)])
    maintain(launched, keep=DAY, now=NOW + 9 * DAY)
    assert "days ahead" not in caplog.text
    maintain(launched, keep=DAY, now=NOW + 10 * DAY)
    assert ("1 days ahead have partitions" in caplog.text) is is_partitioned(launched)
    for day in range(9, 17):
        if is_partitioned(launched):
            _drop_partition(launched, NOW + day * DAY)


@pytest.mark.proof
def test_a_day_that_somebody_reads_is_left_for_the_next_time(launched: Ledger) -> None:
    store(launched, [event(1, NOW)])
    aggregate(launched, now=NOW)
    day = (date(2026, 3, 2),)
    with launched._database.read() as reader:
        assert reader.scalar(sa.text("SELECT count(*) FROM post_backs")) == 1
        found = launched.retention.delete_before(NOW + DAY)
        # On SQLite, readers keep their snapshot and block no one.
        assert (found.in_use, found.post_backs) == ((day, 0) if is_partitioned(launched) else ((), 1))
    found = launched.retention.delete_before(NOW + DAY)
    assert found.days == (day if is_partitioned(launched) else ())
    assert stored(launched) == 0


def test_maintaining_folds_first_and_then_forgets(launched: Ledger) -> None:
    store(launched, [event(1, NOW)])
    deleted = maintain(launched, keep=DAY, now=NOW + 9 * DAY)
    assert deleted.needed == ()
    assert stored(launched) == 0
    assert reconcile_launch(launched, KEY, now=NOW + 9 * DAY).verdicts["delivered"] == 1
    for day in range(9, 16):
        if is_partitioned(launched):
            _drop_partition(launched, NOW + day * DAY)


def test_when_something_was_heard_last_is_known_after_it_was_forgotten(launched: Ledger) -> None:
    store(launched, [event(1, NOW), event(2, NOW + DAY)])
    aggregate(launched, now=NOW + DAY)
    launched.retention.delete_before(NOW + 9 * DAY)
    assert stored(launched) == 0
    assert launched.post_backs.reception() == (1, NOW + DAY)


def test_less_than_a_day_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="a day or longer"):
        maintain(ledger, keep=timedelta(hours=23))


def test_the_command_says_what_was_forgotten(tmp_path: Path, sendoff: Command) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert sendoff("migrate", "--ledger", url).returncode == 0
    done = sendoff("maintain", "--keep-days", "30", "--ledger", url)
    assert (done.returncode, done.stdout) == (0, "deleted: 0 days and 0 single post-backs\n")
