"""Queries that are read in parts: each row once, all from one snapshot, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from sendoff.audience.build import Audience, build_audience
from sendoff.errors import QueryError, WarehouseUnavailableError
from sendoff.warehouse import Source, read
from sendoff.warehouse.databases import postgresql
from sendoff.warehouse.parallel import together

from ...waiting import PATIENCE

ARE_FASTER = postgresql._are_faster
ROWS = 10_000
LOCK = 5_771_103
NUMBERS = "SELECT device_id, platform FROM devices WHERE device_id % :parts = :part"
TEXTS = "SELECT 'user ' || device_id AS external_id FROM devices WHERE abs(hashtext(device_id::text) % :parts) = :part"


@pytest.fixture(autouse=True)
def parts_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in as many parts as a test wants: with a high number of cores, and without a trial."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("sendoff.warehouse.databases.postgresql._are_faster", lambda *_: True)


IN_PARTS = "SELECT device_id, :parts AS parts FROM devices {} WHERE device_id % :parts = :part {}"
SLEEP = "CROSS JOIN LATERAL pg_sleep({} + 0 * device_id)"


@pytest.fixture
def devices(postgres_url: str) -> Iterator[str]:
    """The URL of a database with 10,000 devices."""
    run(
        postgres_url,
        "DROP TABLE IF EXISTS devices",
        "CREATE TABLE devices AS SELECT n::bigint AS device_id, (ARRAY['android', 'ios'])[1 + n % 2] AS platform "
        f"FROM generate_series(1, {ROWS}) n",
    )
    yield postgres_url
    assert not [each.name for each in threading.enumerate() if each.name.startswith("warehouse")]


def run(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, poolclass=NullPool)
    with engine.begin() as db:
        for statement in statements:
            db.execute(sa.text(statement))
    engine.dispose()


def audience(source: Source, sql: str, parts: int | None, **options: Any) -> Audience:
    with read(source, sql, partitions=parts, **options) as batches:
        return build_audience(batches)


@pytest.mark.parametrize(
    ("slow", "last", "least", "parts"),
    [
        (SLEEP.format("0.002 / :parts"), "", 1, 2),
        (SLEEP.format("0.001 * :parts * :parts * :parts"), "", 1, 1),
        (SLEEP.format("0.002 / :parts"), "", 1_000_000, 1),  # too short for a trial
        ("", "GROUP BY device_id", 1, 1),  # works before its first row
    ],
)
def test_several_parts_are_read_only_if_a_trial_shows_that_they_are_faster(
    devices: str, monkeypatch: pytest.MonkeyPatch, slow: str, last: str, least: int, parts: int
) -> None:
    monkeypatch.setattr("sendoff.warehouse.databases.postgresql._are_faster", ARE_FASTER)
    monkeypatch.setattr("sendoff.warehouse.databases.postgresql._LONG", least)
    run(devices, "DELETE FROM devices WHERE device_id > 200")
    with read(devices, IN_PARTS.format(slow, last), partitions=2, batch_rows=20) as batches:
        found = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(row["device_id"] for row in found) == list(range(1, 201))
    assert {row["parts"] for row in found} == {parts}


@pytest.mark.proof
@pytest.mark.parametrize("sql", [NUMBERS, TEXTS])
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_give_the_audience_of_one(devices: str, sql: str, parts: int) -> None:
    whole = audience(devices, sql.partition(" WHERE ")[0], None)
    found = audience(devices, sql, parts, batch_rows=100)
    assert (found.rows, len(found.identifiers), found.fingerprint) == (ROWS, ROWS, whole.fingerprint)
    assert found.groups == whole.groups


def test_each_part_is_read_by_a_connection_of_its_own(devices: str) -> None:
    sql = f"SELECT pg_backend_pid() AS device_id, :part AS part FROM devices LIMIT :parts + 0 * {ROWS}"
    with read(devices, sql, partitions=3) as batches:
        found = {(row["device_id"], row["part"]) for batch in batches for row in batch.to_pylist()}
    assert len(found) == 3
    assert {part for _, part in found} == {0, 1, 2}


@pytest.mark.parametrize(("cores", "parts"), [(None, 1), (1, 1), (2, 1), (4, 2), (7, 3), (64, 8)])
def test_the_servers_own_machine_has_two_cores_for_each_part(
    devices: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cores: int | None,
    parts: int,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    with read(
        devices, "SELECT pg_backend_pid() AS pid, :part AS part, :parts AS parts", partitions=8
    ) as batches:
        found = [row for batch in batches for row in batch.to_pylist()]
    assert len({row["pid"] for row in found}) == parts
    assert sorted((row["part"], row["parts"]) for row in found) == [(part, parts) for part in range(parts)]
    assert (f"Read in {parts} parts, not 8" in caplog.text) == (parts < 8)
    assert audience(devices, NUMBERS, 8).rows == ROWS


def test_all_parts_see_one_moment(devices: str) -> None:
    """Move each row to the next part while both parts wait for a lock."""
    engine = sa.create_engine(devices, poolclass=NullPool)
    with engine.connect() as mover:
        mover.execute(sa.text("LOCK TABLE devices IN ACCESS EXCLUSIVE MODE"))
        mover.execute(sa.text("UPDATE devices SET device_id = device_id + 100001"))
        with read(devices, NUMBERS, partitions=2) as batches:
            mover.commit()
            found = build_audience(batches)
    engine.dispose()
    assert list(found.identifiers) == list(range(1, ROWS + 1))


def test_a_part_may_be_empty(devices: str) -> None:
    found = audience(devices, "SELECT 7 AS device_id WHERE :part = 1 AND :parts = 4", 4)
    assert (list(found.identifiers), found.rows) == ([7], 1)


def test_without_rows_there_are_still_columns(devices: str) -> None:
    assert audience(devices, f"{NUMBERS} AND device_id < 0", 2).identified_by == "device_id"


def test_an_error_of_one_part_is_told_as_that_of_one_reader(devices: str) -> None:
    broken = (
        "SELECT CASE WHEN device_id = 901 THEN (SELECT 1 / (device_id - 901)) ELSE device_id END AS device_id"
    )
    sql = f"{broken} FROM devices WHERE device_id % :parts = :part"
    with pytest.raises(QueryError) as one:
        audience(devices, sql, 1)
    with pytest.raises(QueryError) as several:
        audience(devices, sql, 2, batch_rows=50)
    assert str(several.value) == str(one.value) == "the warehouse said: division by zero"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nosuch FROM devices WHERE device_id % :parts = :part", '"nosuch" does not exist'),
        ("SELECT device_id FROM devices WHERE device_id % :parts = :prat", "uses :prat, but its parameters"),
        ("DELETE FROM devices WHERE device_id % :parts = :part RETURNING device_id", "begins with DELETE"),
        (
            "WITH gone AS (DELETE FROM devices WHERE device_id % :parts = :part RETURNING device_id) TABLE gone",
            "data-modifying|read-only",
        ),
    ],
)
def test_a_query_that_is_wrong_is_told_once(devices: str, sql: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        audience(devices, sql, 2)
    assert audience(devices, NUMBERS, 2).rows == ROWS


def test_an_error_of_one_part_ends_a_part_that_waits(devices: str) -> None:
    sql = "SELECT 1 / :part AS device_id FROM pg_advisory_xact_lock_shared({} * :part) WHERE :parts > 0"
    with locked(devices), pytest.raises(QueryError, match="division by zero"):
        audience(devices, sql.format(LOCK), 2)


def test_closing_early_ends_a_part_that_waits(devices: str) -> None:
    sql = (
        f"SELECT device_id FROM devices, LATERAL (SELECT pg_advisory_xact_lock_shared({LOCK} * :part)) l "
        "WHERE device_id % :parts = :part"
    )
    with locked(devices), read(devices, sql, partitions=2, batch_rows=10) as batches:
        assert next(batches).num_rows


def test_closing_early_ends_parts_that_have_brought_too_much(devices: str) -> None:
    with read(devices, NUMBERS, partitions=4, batch_rows=10) as batches:
        assert next(batches).num_rows


def test_an_error_of_the_reader_ends_all_parts(devices: str) -> None:
    def store(batches: Iterator[pa.RecordBatch]) -> None:
        next(batches)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk"), read(devices, NUMBERS, partitions=2, batch_rows=10) as batches:
        store(batches)


class locked:  # noqa: N801  # reads as what it does
    """Hold the lock until the block ends, or for two minutes, so that a test fails instead of hanging."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url, poolclass=NullPool)

    def __enter__(self) -> None:
        self._connection = self._engine.connect()
        self._connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        self._freed = threading.Event()
        self._watchdog = threading.Timer(120, self._free)
        self._watchdog.start()

    def __exit__(self, *error: object) -> None:
        self._watchdog.cancel()
        hung = self._freed.is_set()
        self._connection.close()
        self._engine.dispose()
        assert not hung, "a reader was waited for, not ended"

    def _free(self) -> None:
        self._freed.set()
        self._connection.rollback()


def test_where_nothing_answers_it_may_be_tried_again(free_port: int) -> None:
    with pytest.raises(WarehouseUnavailableError):
        audience(f"postgresql://ann@127.0.0.1:{free_port}/none", NUMBERS, 2)


def test_without_a_shared_snapshot_all_is_read_as_one_part(devices: str, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/shop.db"
    run(file, "CREATE TABLE devices (device_id INTEGER)", "INSERT INTO devices VALUES (1), (2), (3)")
    sql = "SELECT device_id, :parts AS language FROM devices WHERE device_id % :parts = :part"
    engine = sa.create_engine(devices, poolclass=NullPool)
    for source, count in ((file, 3), (engine, ROWS)):
        with read(
            source, sql.replace(":parts AS language", "CAST(:parts AS TEXT) AS l"), partitions=4
        ) as batches:
            found = [row for batch in batches for row in batch.to_pylist()]
        assert (len(found), {row["l"] for row in found}) == (count, {"1"})
    engine.dispose()


def test_part_is_no_parameter_of_a_query_that_is_read_whole(devices: str) -> None:
    with pytest.raises(QueryError, match="uses :part, :parts, but its parameters are none"):
        audience(devices, NUMBERS, None)


# The queue alone


def test_readers_wait_until_their_batches_are_taken() -> None:
    made: list[int] = []

    def reader(number: int) -> Generator[pa.RecordBatch, None, None]:
        for _ in range(1_000):
            made.append(number)
            yield pa.record_batch({"device_id": [number]})

    with ExitStack() as stack:
        batches = together([reader(1), reader(2)], [lambda: None] * 2, stack)
        for taken in range(1, 101):
            next(batches)
            assert len(made) <= taken + 4 + 2  # two per reader are waiting, and each reader has one more


def test_every_batch_of_every_reader_arrives() -> None:
    def reader(number: int) -> Generator[pa.RecordBatch, None, None]:
        for each in range(number, 1_000, 3):
            yield pa.record_batch({"device_id": [each]})

    with ExitStack() as stack:
        batches = together([reader(0), reader(1), reader(2)], [lambda: None] * 3, stack)
        found = [batch.column(0)[0].as_py() for batch in batches]
    assert sorted(found) == list(range(1_000))


def test_a_reader_is_closed_in_its_thread() -> None:
    closed: list[str] = []
    both_begin = threading.Barrier(2)

    def reader() -> Generator[pa.RecordBatch, None, None]:
        both_begin.wait(PATIENCE)
        try:
            while True:
                yield pa.record_batch({"device_id": [1]})
        finally:
            closed.append(threading.current_thread().name)

    with ExitStack() as stack:
        next(together([reader(), reader()], [lambda: None] * 2, stack))
    assert [name.partition("_")[0] for name in closed] == ["warehouse", "warehouse"]


def test_no_reader_begins_before_it_can_be_cancelled() -> None:
    begun = []

    def reader() -> Generator[pa.RecordBatch, None, None]:
        begun.append("a query")
        yield pa.record_batch([])

    class Interrupted(list[Generator[pa.RecordBatch, None, None]]):
        """Readers, and a signal that raises an error while they are started."""

        def __iter__(self) -> Iterator[Generator[pa.RecordBatch, None, None]]:
            yield from super().__iter__()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        together(Interrupted([reader()]), [lambda: None], stack)
    assert begun == []
