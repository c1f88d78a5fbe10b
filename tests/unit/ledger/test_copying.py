"""Copying a ledger: every row arrives on the other database, all at once or not at all."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sendoff.audience.identifiers import integers
from sendoff.dispatch import pause_all, release_all, resume_all, resume_moved, stop, stop_all
from sendoff.errors import GateError, LedgerUnavailableError, SettingsError, UnusableLedgerError
from sendoff.launch import replace_suppressions, unsuppress
from sendoff.launch import suppress as suppress_people
from sendoff.ledger import Ledger, SuppressionChange, copying
from sendoff.ledger.control.audit_log import ALL
from sendoff.ledger.storage.schema import (
    OneOf,
    UtcDateTime,
    erasure_state,
    feed_states,
    launches,
    metadata,
    pauses,
    post_backs,
)
from sendoff.postbacks import forget
from sendoff.states import Accepted, DispatchState, FeedHealth

from ...databases import connected
from ...factories import KEY, LEASE, NOW, claimed, make_launch, post_back, send, store
from ...waiting import PATIENCE, until

Values = dict[str, list[tuple[Any, ...]]]
MOMENT = datetime(2026, 11, 2, 9, 30, 1, 250_001, UTC)


@pytest.fixture
def other(request: pytest.FixtureRequest, migrated_file: Path, tmp_path: Path) -> Iterator[Ledger]:
    """A second ledger, empty and migrated, on the database that the first one is not on."""
    if request.node.callspec.params["ledger"] == "postgresql":
        file = shutil.copy(migrated_file, tmp_path / "other.db")
        with closing(Ledger(f"sqlite:///{file}")) as other:
            yield other
    else:
        yield request.getfixturevalue("postgres_ledger")


def value_of(column: sa.Column[Any], number: int) -> Any:
    """Return a value for a column of a row, different for each number. The last row has nulls where it may."""
    if column.nullable and number == 2:
        return sa.JSON.NULL if isinstance(column.type, sa.JSON) else None
    if isinstance(column.type, sa.JSON):
        return sa.null() if column.nullable and number == 1 else {"ü": [number, None, 0.1]}
    if isinstance(column.type, OneOf):
        certain = [state for state in FeedHealth if state.is_certain]
        states = certain if column.table is feed_states else list(column.type.states)
        return states[number % len(states)]
    if isinstance(column.type, UtcDateTime):
        return MOMENT + timedelta(days=number)
    values: dict[type, Any] = {
        sa.Boolean: bool(number % 2),
        sa.BigInteger: 2**62 + number if column.table.name != "decisions" else number + 7,
        sa.Integer: number + 7,
        sa.Date: date(2026, 11, 2 + number),
        sa.LargeBinary: bytes([number, 0, 255]) * 1_000,
        sa.String: f"{number}ü'\n"[: getattr(column.type, "length", None) or 9],
    }
    return next(value for kind, value in values.items() if isinstance(column.type, kind))


def fill(ledger: Ledger) -> None:
    """Write three rows into each table, and change the row of the one that has one."""
    with ledger._database.write() as db:
        for table in metadata.sorted_tables:
            if table is erasure_state:
                db.execute(sa.update(table).values(version=41))
                continue
            for number in range(3):
                db.execute(
                    sa.insert(table).values({each.name: value_of(each, number) for each in table.columns})
                )
        db.execute(sa.update(pauses).where(pauses.c.scope.like("0%")).values(scope=ALL))
        db.execute(sa.text("UPDATE dispatches SET state = 'accepted' WHERE state = 'in_flight'"))


def rows_of(ledger: Ledger) -> Values:
    """Return everything in a ledger as Python values. A null of JSON is a text, and one of SQL is None."""
    found = {}
    for table in metadata.sorted_tables:
        columns = [
            sa.cast(each, sa.Text) if isinstance(each.type, sa.JSON) else each for each in table.columns
        ]
        found[table.name] = sorted(map(tuple, ledger._database.rows(sa.select(*columns))), key=repr)
    return found


def is_empty(ledger: Ledger) -> bool:
    return not any(rows for name, rows in rows_of(ledger).items() if name != erasure_state.name)


def pause(ledger: Ledger) -> None:
    ledger.pauses.pause(ALL, "ann", "moving", now=NOW)


def test_every_row_of_every_table_arrives(ledger: Ledger, other: Ledger) -> None:
    fill(ledger)
    before = rows_of(ledger)
    copied = other.copy_from(ledger)
    assert rows_of(other) == before
    move = ledger.pauses.move()
    assert move is not None
    assert move.why == f"moved to {other.name}"
    assert other.pauses.move() is None
    assert {**rows_of(ledger), "pauses": before["pauses"]} == before
    assert copied == {name: len(rows) for name, rows in before.items()}
    assert set(copied.values()) == {1, 3}
    assert [row[2] for row in rows_of(other)["launch_sources"]][1:] == [None, "null"]


def test_a_launch_goes_on_where_it_was(ledger: Ledger, other: Ledger) -> None:
    make_launch(ledger, range(1, 41), size=10)
    (sent,) = send(ledger, KEY, Accepted(200, 17))
    store(ledger, post_back(sent, "delivery", 3, campaign=17))
    pause(ledger)
    other.copy_from(ledger)
    other.pauses.resume(ALL, "ann", "moved", now=NOW)
    assert len(send(other, KEY, *[Accepted(200, n) for n in range(3)])) == 3
    assert other.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is None
    assert other.dispatch_queries.states(KEY) == {DispatchState.ACCEPTED: 4}
    store(other, post_back(sent, "open", 3, campaign=17))  # a receiver that starts gets a number of its own
    assert len(other._database.rows(sa.select(post_backs.c.receiver).distinct())) == 2


def sends_from_both(source: Ledger, target: Ledger) -> bool:
    """Move a ledger, resume everything in both, and check whether each makes the same request."""
    make_launch(source, range(1, 41))
    pause(source)
    target.copy_from(source)
    for each in (source, target):
        with suppress(GateError):
            resume_all(each, "ann", "moved the ledger")
    claims = [each.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) for each in (target, source)]
    assert claims[0] is not None
    return claims[1] is not None


def test_a_ledger_that_was_moved_is_not_resumed(ledger: Ledger, other: Ledger) -> None:
    assert not sends_from_both(ledger, other)
    for connection in (None, "service"):
        with pytest.raises(GateError, match=r"this ledger was moved to .*; set SENDOFF_LEDGER_URL") as caught:
            resume_all(ledger, "ann", "over", connection=connection)
        assert other.name in str(caught.value)
    with pytest.raises(UnusableLedgerError, match="this ledger was moved to"):
        ledger.check()
    other.check()


def test_a_mark_that_no_claim_honours_would_be_noticed(
    ledger: Ledger, other: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MOVED", "unknown")
    assert sends_from_both(ledger, other)


def test_a_ledger_that_was_moved_is_not_copied_again(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    pause(ledger)
    other.copy_from(ledger)
    refused = pytest.raises(UnusableLedgerError, match="this ledger was moved to")
    with closing(Ledger(f"sqlite:///{tmp_path / 'second.db'}")) as second, refused:
        second.copy_from(ledger)
    assert not (tmp_path / "second.db").exists()


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)
def test_a_second_copy_waits_for_the_first(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(ledger)
    write, copies, is_writing = copying._write, [], threading.Event()
    url = ledger._database._engine.url.render_as_string(hide_password=False)
    with (
        closing(Ledger(url)) as again,
        closing(Ledger(f"sqlite:///{tmp_path / 'first.db'}")) as first,
        closing(Ledger(f"sqlite:///{tmp_path / 'second.db'}")) as second,
        ThreadPoolExecutor(1) as pool,
    ):

        def begin_second(*rows: Any) -> int:
            if copies:
                is_writing.set()
            else:
                copies.append(pool.submit(second.copy_from, again))
                until(lambda: is_writing.is_set() or again._database.rows(_WAITING))
            return write(*rows)

        monkeypatch.setattr(copying, "_write", begin_second)
        first.copy_from(ledger)
        assert "this ledger was moved to" in str(copies[0].exception(PATIENCE))
    assert not (tmp_path / "second.db").exists()


_WAITING = sa.text(
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def test_a_mark_that_cannot_be_written_leaves_no_copy(ledger: Ledger, other: Ledger) -> None:
    fill(ledger)

    def fail(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE pauses"):
            raise KeyboardInterrupt

    event.listen(ledger._database._engine, "before_cursor_execute", fail)
    with pytest.raises(KeyboardInterrupt):
        other.copy_from(ledger)
    event.remove(ledger._database._engine, "before_cursor_execute", fail)
    assert is_empty(other)
    assert ledger.pauses.move() is None


CHANGE = SuppressionChange("account", "device_id", "crm", "ann", "asked")
CHANGES: dict[str, Callable[[Ledger], object]] = {
    "stop": lambda ledger: stop(ledger, KEY, "ann", "wrong text"),
    "stop all": lambda ledger: stop_all(ledger, "ann", "wrong text", connection="none"),
    "release all": lambda ledger: release_all(ledger, "ann", "over"),
    "pause all": lambda ledger: pause_all(ledger, "ann", "a storm"),
    "suppress": lambda ledger: suppress_people(ledger, CHANGE, integers([7])),
    "unsuppress": lambda ledger: unsuppress(ledger, CHANGE, integers([8])),
    "replace": lambda ledger: replace_suppressions(ledger, CHANGE, integers([7])),
    "forget": lambda ledger: forget(ledger, [7], identified_by="device_id", who="ann", reason="asked"),
    "replay": lambda ledger: ledger.erasures.remember([], NOW),
    "upload": lambda ledger: ledger.uploaded_lists.store("vip", "device_id", integers([7]), "ann", NOW),
    "delete": lambda ledger: ledger.uploaded_lists.delete("old"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_ledger_that_was_moved_takes_no_change_that_the_new_one_would_lack(
    ledger: Ledger,
    other: Ledger,
    change: Callable[[Ledger], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SENDOFF_ERASURE_SECRET", "e" * 32)
    monkeypatch.setenv("SENDOFF_ERASURE_LOG", str(tmp_path / "erasures.log"))
    make_launch(ledger, range(1, 41))
    ledger.uploaded_lists.store("old", "device_id", integers([7]), "ann", NOW)
    pause(ledger)
    other.copy_from(ledger)
    before = rows_of(ledger)
    with pytest.raises(GateError, match=f"this ledger was moved to {re.escape(other.name)}"):
        change(ledger)
    assert rows_of(ledger) == before
    assert not (tmp_path / "erasures.log").exists()
    resume_all(other, "ann", "moved")
    change(other)


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)
def test_an_opt_out_during_a_move_is_refused_at_its_end(
    ledger: Ledger, other: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(ledger)
    write, changes = copying._write, []
    with ThreadPoolExecutor(1) as pool:

        def begin_change(*rows: Any) -> int:
            if not changes:
                changes.append(pool.submit(ledger.suppressions.add, CHANGE, [7], NOW))
                until(lambda: changes[0].done() or ledger._database.rows(_WAITING))
            return write(*rows)

        monkeypatch.setattr(copying, "_write", begin_change)
        other.copy_from(ledger)
        assert isinstance(changes[0].exception(PATIENCE), GateError)


def test_a_move_is_undone_on_purpose(ledger: Ledger, other: Ledger) -> None:
    make_launch(ledger, range(1, 41))
    with pytest.raises(GateError, match="was not moved"):
        resume_moved(ledger, "ann", "the copy was deleted")
    pause(ledger)
    other.copy_from(ledger)
    resume_moved(ledger, "ann", "the copy was deleted")
    assert ledger.dispatches.claim(KEY, worker="w", now=NOW, lease=LEASE) is not None


def test_a_ledger_that_is_not_paused_is_not_copied(ledger: Ledger, other: Ledger) -> None:
    make_launch(ledger, range(1, 41))
    ledger.pauses.pause("connection:service", "ann", "not enough", now=NOW)
    with pytest.raises(UnusableLedgerError, match="only while everything is paused"):
        other.copy_from(ledger)
    assert is_empty(other)


def test_a_ledger_with_requests_in_flight_is_not_copied(ledger: Ledger, other: Ledger) -> None:
    make_launch(ledger, range(1, 41), size=10)
    claimed(ledger)
    pause(ledger)
    with pytest.raises(UnusableLedgerError, match=f"still in flight: 1 request\\..* sendoff report {KEY}"):
        other.copy_from(ledger)
    assert is_empty(other)


def test_a_ledger_that_has_something_is_not_written(ledger: Ledger, other: Ledger) -> None:
    make_launch(ledger, range(1, 41))
    pause(ledger)
    pause(other)
    before = rows_of(other)
    with pytest.raises(UnusableLedgerError, match="not empty: its table decisions has rows"):
        other.copy_from(ledger)
    assert rows_of(other) == before


def test_a_ledger_of_another_version_is_not_copied(ledger: Ledger, other: Ledger) -> None:
    pause(ledger)
    with ledger._database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(UnusableLedgerError, match="different versions"):
        other.copy_from(ledger)
    with ledger._database.write() as db:  # which other tests use too
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    assert is_empty(other)


def test_a_row_that_the_other_database_does_not_take(migrated_url: str, empty_postgres_url: str) -> None:
    with closing(Ledger(migrated_url)) as ledger, closing(Ledger(empty_postgres_url)) as other:
        other.migrate()
        pause(ledger)
        with ledger._database.write() as db:  # SQLite has no limit for the length of a text
            row = {each.name: value_of(each, 0) for each in launches.columns}
            db.execute(sa.insert(launches).values(row | {"launch_key": "secret" * 9}))
        with pytest.raises(UnusableLedgerError, match="does not take a row of the table launches") as caught:
            other.copy_from(ledger)
        assert "secret" not in repr(caught.value)
        assert caught.value.__context__ is None
        assert is_empty(other)


def test_its_own_numbers_continue_after_those_of_the_copy(migrated_url: str, empty_postgres_url: str) -> None:
    with closing(Ledger(migrated_url)) as ledger, closing(Ledger(empty_postgres_url)) as other:
        fill(ledger)
        other.copy_from(ledger)
        for table in ("decisions", "outcomes", "erasures", "receivers"):
            (number,) = metadata.tables[table].primary_key.columns
            query = (
                f"SELECT last_value, (SELECT max({number.name}) FROM {table}) FROM {table}_{number.name}_seq"
            )
            last, newest = other._database.one(sa.text(query))
            assert last == newest > 1


def test_a_value_that_cannot_be_read_is_not_shown(migrated_url: str, tmp_path: Path) -> None:
    with closing(Ledger(migrated_url)) as ledger, closing(Ledger(f"sqlite:///{tmp_path / 'o.db'}")) as other:
        pause(ledger)
        with ledger._database.write() as db:
            db.exec_driver_sql("UPDATE decisions SET decided_at = 'secret'")
        with pytest.raises(
            UnusableLedgerError, match=r"a row of the table decisions \(ValueError\)"
        ) as caught:
            other.copy_from(ledger)
        assert "secret" not in repr(caught.value)
        assert caught.value.__context__ is None


def test_few_large_rows_are_in_memory_at_a_time(
    ledger: Ledger, other: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.ledger.storage.stored_sets.LARGEST", 9_000)
    fill(ledger)
    sizes = []

    def note(_db: Any, _cursor: Any, statement: str, rows: Any, _context: Any, are_many: bool) -> None:
        if statement.startswith("INSERT INTO dispatch_totals"):
            sizes.append(len(rows) if are_many else 1)

    event.listen(other._database._engine, "before_cursor_execute", note)
    other.copy_from(ledger)
    assert sizes == [1, 1, 1]  # rows with 9,000 bytes each


def test_a_ledger_is_not_copied_into_itself(migrated_url: str, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "ledger.db")
    with closing(Ledger(migrated_url)) as ledger, closing(Ledger(f"sqlite:///{link}")) as other:
        pause(ledger)
        with pytest.raises(SettingsError, match="this is the ledger to copy"):
            other.copy_from(ledger)


def test_a_refused_copy_makes_no_tables(ledger: Ledger, tmp_path: Path) -> None:
    refused = pytest.raises(UnusableLedgerError, match="only while everything is paused")
    with closing(Ledger(f"sqlite:///{tmp_path / 'new.db'}")) as new, refused:
        new.copy_from(ledger)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)
def test_a_database_without_a_ledger_is_no_source(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    refused = pytest.raises(UnusableLedgerError, match=r"empty\.db: there is no ledger to copy")
    with closing(Ledger(f"sqlite:///{tmp_path / 'empty.db'}")) as source, refused:
        other.copy_from(source)


def test_an_error_is_that_of_the_database_that_has_it(
    migrated_url: str, empty_postgres_url: str, postgres_server: str
) -> None:
    with closing(Ledger(migrated_url)) as ledger, closing(Ledger(empty_postgres_url)) as other:
        fill(ledger)
        name = sa.make_url(empty_postgres_url).database

        def end(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("INSERT INTO verdicts"):
                with connected(postgres_server) as engine, engine.connect() as db:
                    db.execute(
                        sa.text(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
                        ),
                        {"name": name},
                    )

        event.listen(other._database._engine, "before_cursor_execute", end)
        with pytest.raises(LedgerUnavailableError, match=r"127\.0\.0\.1"):
            other.copy_from(ledger)
        event.remove(other._database._engine, "before_cursor_execute", end)
        assert is_empty(other)
        assert ledger.pauses.move() is None


def interrupted(source: Ledger, target: Ledger, statement: int) -> bool:
    """Copy a ledger, and stop before one of the statements on the target. Return False if there are fewer."""
    seen = 0

    def stop(*_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == statement:
            raise KeyboardInterrupt

    event.listen(target._database._engine, "before_cursor_execute", stop)
    try:
        target.copy_from(source)
    except KeyboardInterrupt:
        return True
    finally:
        event.remove(target._database._engine, "before_cursor_execute", stop)
    return False


def is_all_or_nothing(source: Ledger, target: Ledger) -> bool:
    """Check that the target has nothing after each interruption, and everything at the end."""
    for statement in range(1, 500):
        if not interrupted(source, target, statement):
            return {**rows_of(target), "pauses": []} == {**rows_of(source), "pauses": []}
        if not is_empty(target):
            return False
    return False


@pytest.mark.proof
def test_a_copy_that_was_interrupted_has_nothing(ledger: Ledger, other: Ledger) -> None:
    fill(ledger)
    assert is_all_or_nothing(ledger, other)


@pytest.mark.proof
def test_a_copy_in_several_transactions_would_be_noticed(
    ledger: Ledger, other: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)
    write = copying._write

    def commit_each(into: sa.Connection, table: sa.Table, rows: Iterator[dict[str, Any]]) -> int:
        written = write(into, table, rows)
        into.exec_driver_sql("COMMIT")
        into.exec_driver_sql("BEGIN")
        return written

    monkeypatch.setattr(copying, "_write", commit_each)
    assert not is_all_or_nothing(ledger, other)


@pytest.mark.parametrize("is_source", [True, False], ids=["to the source", "to the copy"])
def test_other_processes_that_write_wait(ledger: Ledger, other: Ledger, is_source: bool) -> None:
    fill(ledger)
    before, errors = rows_of(ledger), []
    url = (ledger if is_source else other)._database._engine.url
    is_sqlite = url.get_backend_name() == "sqlite"
    briefly = {"timeout": 0.05} if is_sqlite else {"options": "-c lock_timeout=50"}
    engine = sa.create_engine(url, connect_args=briefly)

    def write() -> None:
        with engine.begin() as db:
            db.execute(sa.text("UPDATE launches SET campaign = 'later'"))

    def try_to_write(_db: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO verdicts"):
            with pytest.raises(sa.exc.OperationalError) as caught:
                write()
            errors.append(caught.type)

    event.listen(other._database._engine, "before_cursor_execute", try_to_write)
    other.copy_from(ledger)
    assert len(errors) == 1
    assert rows_of(other) == before
    write()
    engine.dispose()
