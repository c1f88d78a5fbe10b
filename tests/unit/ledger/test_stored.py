"""Storing post-backs: each once, each batch whole or not at all, and within time limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import LedgerUnavailableError
from sendoff.ledger import Ledger
from sendoff.ledger.post_backs.blocks import StoredPostBack
from sendoff.ledger.storage import engines
from sendoff.service.postbacks import PostBack
from sendoff.service.wire import PostBackBody

from ...factories import stored_post_backs

KEY = "0123456789abcdef" * 2
NOW = datetime(2026, 3, 1, 9, 0, 0, 123_456, UTC)


def post_back(device: int, **fields: Any) -> PostBack:
    return PostBack("delivery", KEY, NOW, b"%d" % device, PostBackBody(time=NOW, device_id=device, **fields))


def numbered(*numbers: int) -> list[tuple[int, PostBack]]:
    return [(number, post_back(number)) for number in numbers]


def kept(ledger: Ledger, *columns: str) -> Sequence[Any]:
    names = columns or StoredPostBack.__slots__
    return [tuple(getattr(each, name) for name in names) for each in stored_post_backs(ledger)]


def test_every_field_is_kept_as_it_was_given_and_a_body_that_was_not_read(ledger: Ledger) -> None:
    elsewhere = NOW.astimezone(tz=datetime.now().astimezone().tzinfo) - timedelta(hours=1)
    full = PostBackBody(
        time=elsewhere, device_id=2**63 - 1, profile_id=3, user_id="Zoë '\\\t\n🎈", send_id=4, campaign_id=5
    )
    ledger.post_backs.store(
        7,
        [
            (1, PostBack("delivery", KEY, NOW, b"\0\xff\\x41\n", full)),
            (2, PostBack("open", KEY[::-1], NOW, b"", PostBackBody(time=NOW, user_id="x"))),
            (3, PostBack("open", KEY, NOW, b"not JSON", None)),
        ],
    )
    assert kept(ledger) == [
        (7, 1, "delivery", KEY, NOW, elsewhere, 2**63 - 1, 3, "Zoë '\\\t\n🎈", 4, 5, True, None),
        (7, 2, "open", KEY[::-1], NOW, NOW, None, None, "x", None, None, True, None),
        (7, 3, "open", KEY, NOW, None, None, None, None, None, None, False, b"not JSON"),
    ]


@pytest.mark.parametrize(
    ("batches", "numbers"),
    [
        ([[1, 2, 3], [1, 2, 3]], [1, 2, 3]),  # the whole batch again
        ([[1, 2, 3], [2, 3, 4, 5]], [1, 2, 3, 4, 5]),  # part of the batch, and more
        ([[1, 2, 3, 4, 5], [1, 2, 3]], [1, 2, 3, 4, 5]),  # a smaller part of it
        ([[2], [1, 2, 3]], [1, 2, 3]),  # one from the middle
        ([[1], [2], [1, 2, 3], [3]], [1, 2, 3]),  # one by one, and then all together
        ([[1], [1], [1]], [1]),
        ([[]], []),
    ],
)
def test_numbers_that_are_stored_are_passed_over(
    ledger: Ledger, batches: list[list[int]], numbers: list[int]
) -> None:
    for batch in batches:
        ledger.post_backs.store(1, numbered(*batch))
    assert kept(ledger, "number", "device_id") == [(number, number) for number in numbers]


def test_the_same_batch_stored_by_several_at_once_is_there_once(ledger: Ledger) -> None:
    """A commit whose reply was lost may still be running when it is repeated."""
    together = threading.Barrier(4)

    def store(first: int) -> None:
        together.wait(120)
        ledger.post_backs.store(1, numbered(*range(first, first + 200)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store, [1, 1, 101, 51]))
    assert kept(ledger, "number") == [(number,) for number in range(1, 301)]


@pytest.mark.parametrize(
    "unfit",
    [
        post_back(2**63),
        PostBack("delivery", KEY, NOW.replace(tzinfo=None), b"", None),
        PostBack("a kind that is far too long" * 2**20, KEY, NOW, b"", None),
    ],
    ids=["a number beyond 63 bits", "a time without a zone", "a text beyond what a value holds"],
)
def test_a_batch_with_a_value_that_does_not_fit_is_not_stored_at_all(ledger: Ledger, unfit: PostBack) -> None:
    if len(unfit.kind) > 8 and ledger.name.startswith("sqlite"):
        unfit = PostBack(None, KEY, NOW, b"", None)  # type: ignore[arg-type]  # SQLite limits no text
    with pytest.raises(Exception) as error:  # noqa: PT011 - each driver has its own
        ledger.post_backs.store(1, [*numbered(1), (2, unfit), *numbered(3)])
    assert not isinstance(error.value, LedgerUnavailableError)
    assert kept(ledger, "number") == []
    ledger.post_backs.store(1, numbered(1, 2, 3))  # the connection still works
    assert kept(ledger, "number") == [(1,), (2,), (3,)]


on_postgresql = pytest.mark.parametrize("ledger", ["postgresql"], indirect=True)


def test_a_zero_in_a_text_is_kept(ledger: Ledger) -> None:
    ledger.post_backs.store(1, [*numbered(1), (2, post_back(2, user_id="a\0b"))])
    assert kept(ledger, "user_id") == [(None,), ("a\0b",)]


@on_postgresql
def test_a_connection_that_is_lost_while_it_stores_is_told_and_replaced(
    ledger: Ledger, migrated_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = sa.create_engine(migrated_postgres)
    with ThreadPoolExecutor(1) as pool, engine.begin() as holder:
        holder.execute(sa.text("LOCK TABLE post_backs IN EXCLUSIVE MODE"))
        storing = pool.submit(ledger.post_backs.store, 1, numbered(1, 2))
        assert until(lambda: end_whoever_waits(engine)) == 1
        with pytest.raises(LedgerUnavailableError, match="ended the connection"):
            storing.result(120)
    ledger.post_backs.store(1, numbered(1, 2, 3))
    assert kept(ledger, "number") == [(1,), (2,), (3,)]
    assert caplog.text == ""  # the pool logs nothing about the broken connection
    engine.dispose()


END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def end_whoever_waits(engine: sa.Engine) -> int:
    """End every backend of this database that waits for a lock, and return their number."""
    with engine.begin() as db:
        return int(db.execute(sa.text(END)).scalar_one())


def until(check: Callable[[], int]) -> int:
    deadline = time.monotonic() + 120
    while not (found := check()):
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("idle", [0.0, 3600.0])
def test_a_connection_that_the_server_ended_is_replaced(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, idle: float
) -> None:
    """If it was idle, before it is used; otherwise, after one transaction failed."""
    monkeypatch.setattr(engines, "_IDLE_SECONDS", idle)
    with closing(Ledger(postgres_url)) as ledger:
        ledger.migrate()
        with ledger._database.read() as db:
            pid = db.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        with closing(Ledger(postgres_url)) as other, other._database.read() as db:
            assert db.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 60000)").scalar_one()
        if idle:
            with pytest.raises(LedgerUnavailableError):
                ledger.ping()
        ledger.ping()


LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def limits(url: str) -> tuple[list[str], dict[str, str]]:
    with closing(Ledger(url)) as ledger, ledger._database.read() as db:
        driver: Any = db.connection.driver_connection
        return [str(db.exec_driver_sql(f"SHOW {name}").scalar()) for name in LIMITS], {
            name: value
            for name, value in driver.info.get_parameters().items()
            if name.endswith("timeout") or name.startswith("keepalives_")
        }


def test_no_query_is_compiled_before_it_runs(postgres_url: str) -> None:
    with closing(Ledger(postgres_url)) as ledger, ledger._database.read() as db:
        assert db.exec_driver_sql("SHOW jit").scalar() == "off"


def test_a_database_with_another_isolation_does_not_change_that_of_the_ledger(
    empty_postgres_url: str,
) -> None:
    engine = sa.create_engine(empty_postgres_url, poolclass=sa.NullPool)
    with engine.begin() as db:
        name = engine.url.database
        db.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
    with closing(Ledger(empty_postgres_url)) as ledger, ledger._database.write() as db:
        assert db.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"


def test_no_connection_waits_for_ever(postgres_url: str) -> None:
    assert limits(postgres_url) == (
        ["30min", "5min", "30min"],
        {
            "connect_timeout": "10",
            "tcp_user_timeout": "30000",
            "keepalives_idle": "15",
            "keepalives_interval": "5",
            "keepalives_count": "3",
        },
    )


def test_the_address_may_say_other_limits(postgres_url: str) -> None:
    own = {"connect_timeout": "4", "tcp_user_timeout": "5000", "options": "-c lock_timeout=7s"}
    url = sa.make_url(postgres_url).update_query_dict(own).render_as_string(hide_password=False)
    server, network = limits(url)
    assert server == ["30min", "7s", "30min"]
    assert (network["connect_timeout"], network["tcp_user_timeout"]) == ("4", "5000")
    assert network["keepalives_idle"] == "15"


@on_postgresql
def test_a_lock_that_nobody_gives_back_ends_in_an_error(ledger: Ledger, migrated_postgres: str) -> None:
    url = sa.make_url(migrated_postgres).update_query_dict({"options": "-c lock_timeout=100ms"})
    with closing(Ledger(url.render_as_string(hide_password=False))) as impatient:
        with ledger._database.write() as db:
            db.execute(sa.text("LOCK TABLE post_backs IN EXCLUSIVE MODE"))
            with pytest.raises(LedgerUnavailableError, match="another session holds a lock for too long"):
                impatient.post_backs.store(1, numbered(1))
        impatient.post_backs.store(1, numbered(1))
    assert kept(ledger, "number") == [(1,)]


@on_postgresql
@pytest.mark.parametrize("write", [Ledger.ping, lambda ledger: ledger.post_backs.store(1, numbered(1))])
def test_a_session_that_takes_no_writes_is_left_for_another(
    ledger: Ledger, write: Callable[[Ledger], None]
) -> None:
    """The server was a standby when the connection was opened, and is not any more."""
    with ledger._database.write() as db:
        db.execute(sa.text("SET SESSION default_transaction_read_only = on"))
    with pytest.raises(LedgerUnavailableError):
        write(ledger)
    write(ledger)


def test_a_server_that_takes_no_writes_is_passed_over_unless_the_address_says_otherwise(
    migrated_postgres: str,
) -> None:
    url = sa.make_url(migrated_postgres)
    any_server = url.update_query_dict({"target_session_attrs": "any"}).render_as_string(hide_password=False)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with (
        engine.connect() as db,
        closing(Ledger(migrated_postgres)) as ledger,
        closing(Ledger(any_server)) as reader,
    ):
        db.execute(sa.text(f"ALTER DATABASE {url.database} SET default_transaction_read_only = on"))
        try:
            with pytest.raises(LedgerUnavailableError, match="is read-only"):
                ledger.launches.search("0")
            assert reader.launches.search("0") == []
        finally:
            db.execute(sa.text(f"ALTER DATABASE {url.database} RESET default_transaction_read_only"))
        ledger.ping()
    engine.dispose()
