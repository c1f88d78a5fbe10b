"""The receiver's application on a real ledger; test_receiver_process.py runs it as a real server."""

import asyncio
import itertools
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from granian.rsgi import ProtocolClosed

from sendoff.ledger import Ledger
from sendoff.postbacks.group_commit import Limits
from sendoff.postbacks.opt_out import _MOST_WAITING
from sendoff.postbacks.receiver import ReceiverApp, create_app
from sendoff.service import OptOut, OptOutSigner
from sendoff.service.postbacks import PostBackSigner

from ...factories import stored_post_backs
from ...waiting import PATIENCE

DOCS = Path(__file__).resolve().parents[3] / "docs"
URL = "https://events.example.com"
SECRET = "n" * 32
KEY = "0123456789abcdef" * 2
ADDRESSES = PostBackSigner(URL, [SECRET])
PATH = ADDRESSES.sign("delivery", KEY).removeprefix(URL)
BODY = b'{"time": 1772355600, "device": {"id": 5}, "campaign": {"id": 7}}'
LATER = b'{"time": 1772355660, "device": {"id": 6}, "campaign": {"id": 7}}'
NOW = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class Database:
    """A ledger's file, with a second connection to look at it."""

    path: Path
    has_tables: bool = False

    def ledger(self) -> Ledger:
        return Ledger(f"sqlite:///{self.path}")

    def stored(self, *names: str) -> list[Any]:
        """Return these fields of the stored post-backs."""
        with closing(self.ledger()) as ledger:
            rows = [tuple(getattr(each, name) for name in names) for each in stored_post_backs(ledger)]
            return [row[0] if len(row) == 1 else row for row in rows]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the write lock."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield


@pytest.fixture
def empty(tmp_path: Path) -> Database:
    """Return a ledger without tables."""
    return Database(tmp_path / "ledger.db")


@pytest.fixture
def database(empty: Database) -> Database:
    with closing(empty.ledger()) as ledger:
        ledger.migrate()
    return replace(empty, has_tables=True)


@asynccontextmanager
async def running(
    database: Database, commits: asyncio.Event | None = None, **options: Any
) -> AsyncIterator[ReceiverApp]:
    with closing(database.ledger()) as ledger:
        if commits:
            tell_of_commits(ledger, asyncio.get_running_loop(), commits)
        app = create_app(ledger, ADDRESSES, Limits(**{"answer_timeout": PATIENCE, **options}), lambda: NOW)
        await app.start()
        try:
            if database.has_tables:
                await eventually(lambda: is_ready(app))
            yield app
        finally:
            await app.stop()


def tell_of_commits(ledger: Ledger, loop: asyncio.AbstractEventLoop, commits: asyncio.Event) -> None:
    """Set an event when the committing thread begins a transaction, before it waits for the lock."""

    def tell(_: object) -> None:
        loop.call_soon_threadsafe(commits.set)

    sa.event.listen(ledger._database._engine, "engine_connect", tell)


async def is_ready(app: ReceiverApp) -> bool:
    return status_of(await send(app, "/readyz", method="GET")) == 200


@dataclass(frozen=True)
class Request:
    """What Granian passes to the application of one request."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Connection:
    """The server's side of a request. A chunked body ends with an empty piece, and a broken one with two."""

    whole: Callable[[], Awaitable[bytes]]
    pieces: Iterator[bytes]
    answer: Answer | None = None

    async def __call__(self) -> bytes:
        return await self.whole()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.answer = Answer(status, dict(headers))

    def response_str(self, status: int, headers: list[tuple[str, str]], _: str) -> None:
        self.response_empty(status, headers)


async def send(
    app: ReceiverApp,
    path: str = PATH,
    body: bytes = BODY,
    method: str = "POST",
    whole: Callable[[], Awaitable[bytes]] | None = None,
    pieces: Iterator[bytes] | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request as Granian would: with a declared length, or with a chunked body if it has ``pieces``."""

    async def whole_body() -> bytes:
        return body

    length = {"transfer-encoding": "chunked"} if pieces else {"content-length": str(len(body))}
    request = Request(method, path, {"host": "events.example.com"} | length | (headers or {}))
    connection = Connection(whole or whole_body, pieces or iter(()))
    await app(request, connection)  # type: ignore[arg-type]
    assert connection.answer is not None
    return connection.answer


def status_of(answer: Answer) -> int:
    return answer.status


def run(test: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test, 5 * PATIENCE))


def test_a_post_back_is_answered_200_and_stored(database: Database) -> None:
    async def test() -> None:
        async with running(database) as app:
            assert await send(app) == Answer(200, {})

    run(test())
    names = ("number", "kind", "dispatch_key", "device_id", "campaign_id", "readable", "body")
    assert database.stored(*names) == [(1, "delivery", KEY, 5, 7, True, None)]


@pytest.mark.promise("lost/stored")
def test_the_answer_waits_for_the_commit(database: Database) -> None:
    async def test() -> None:
        async with running(database) as app:
            with database.locked():
                answer = asyncio.create_task(send(app))
                await asyncio.sleep(0.3)
                assert not answer.done()
            assert status_of(await answer) == 200

    run(test())


def test_post_backs_that_arrive_together_share_commits(database: Database) -> None:
    async def test() -> dict[str, int]:
        async with running(database) as app:
            with database.locked():
                tasks = [asyncio.create_task(send(app)) for _ in range(300)]
                await asyncio.sleep(0.3)
            assert {status_of(await task) for task in tasks} == {200}
            return app.counts()

    counts = run(test())
    assert counts["stored"] == 300
    assert counts["commits"] <= 2  # the first, and those that gathered meanwhile
    assert database.stored("number") == list(range(1, 301))


def test_each_process_numbers_its_own_post_backs_from_one(database: Database) -> None:
    async def test() -> None:
        async with running(database) as first, running(database) as second:
            for app in (first, second, first):
                await send(app)

    run(test())
    numbers: dict[int, list[int]] = {}
    for receiver, number in database.stored("receiver", "number"):
        numbers.setdefault(receiver, []).append(number)
    assert sorted(numbers.values()) == [[1], [1, 2]]


WRONG_PATHS = [
    "/",
    "/v1",
    "/v1/delivery",
    PATH[:-1],
    PATH + "/",
    PATH.replace("delivery", "open"),
    "/metrics",
]


@pytest.mark.promise("private/forged")
def test_a_wrong_address_is_answered_404_and_touches_no_database(empty: Database) -> None:
    async def test() -> dict[str, int]:
        async with running(empty) as app:
            assert {status_of(await send(app, path)) for path in WRONG_PATHS} == {404}
            assert status_of(await send(app, PATH)) == 503  # a valid request needs the ledger
            return app.counts()

    assert run(test())["wrong_address"] == len(WRONG_PATHS)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_post_is_taken(database: Database, method: str) -> None:
    async def test() -> None:
        async with running(database) as app:
            answer = await send(app, method=method)
            assert (answer.status, answer.headers["allow"]) == (405, "POST")

    run(test())
    assert database.stored("number") == []


async def unread() -> bytes:
    raise AssertionError("the body was read")


def test_a_body_declared_too_large_is_not_read(database: Database) -> None:
    async def test() -> None:
        async with running(database, max_body=100) as app:
            assert status_of(await send(app, body=b"x" * 101, whole=unread)) == 413
            assert status_of(await send(app, body=b"x" * 100)) == 200

    run(test())
    assert database.stored("body") == [b"x" * 100]


def counted(pieces: Iterator[bytes], reads: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        reads.append(piece)
        yield piece


@pytest.mark.parametrize("declared", [{}, {"content-length": "5"}])
def test_a_body_that_grows_too_large_is_read_no_further(database: Database, declared: dict[str, str]) -> None:
    reads: list[bytes] = []

    async def test() -> None:
        async with running(database, max_body=100) as app:
            pieces = counted(itertools.repeat(b"x" * 40), reads)
            assert status_of(await send(app, whole=unread, pieces=pieces, headers=declared)) == 413

    run(test())
    assert len(reads) == 3
    assert database.stored("number") == []


def test_a_body_may_come_in_parts(database: Database) -> None:
    async def test() -> None:
        async with running(database) as app:
            pieces = iter([BODY[:10], BODY[10:20], BODY[20:], b""])
            assert status_of(await send(app, pieces=pieces)) == 200

    run(test())
    assert database.stored("device_id", "campaign_id") == [(5, 7)]


def test_a_body_in_more_pieces_than_any_sender_makes_is_read_no_further(database: Database) -> None:
    reads: list[bytes] = []

    async def test() -> None:
        async with running(database) as app:
            assert status_of(await send(app, pieces=counted(itertools.repeat(b"x"), reads))) == 400
            assert app.counts()["in_pieces"] == 1

    run(test())
    assert len(reads) == 65
    assert database.stored("number") == []


def test_a_body_in_64_pieces_and_an_end_is_stored(database: Database) -> None:
    async def test() -> None:
        async with running(database) as app:
            assert status_of(await send(app, pieces=iter([b"x"] * 64 + [b""]))) == 200

    run(test())
    assert database.stored("body") == [b"x" * 64]


def test_the_limits_are_those_of_the_page() -> None:
    page = (DOCS / "reference/receiver.md").read_text()
    limits = Limits()
    assert f"any body of up to {limits.max_body:,} bytes" in page
    assert f"the body takes more than {limits.body_timeout:g} seconds" in page
    assert (
        f"silent for {limits.answer_timeout:g} seconds, or {limits.queue_limit:,} post-backs are waiting"
        in page
    )
    assert f"or {_MOST_WAITING} opt-outs are waiting" in page
    performance = (DOCS / "operations/receiver-performance.md").read_text()
    assert f"up to {limits.batch_limit:,} in each commit" in performance


def test_a_receiver_that_got_nothing_has_counted_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> dict[str, int]:
        async with running(database) as app:
            return app.counts()

    with caplog.at_level(logging.INFO, "sendoff"):
        counts = run(test())
    assert set(counts.values()) == {0}
    assert "since its start: nothing received" in caplog.text


def test_each_way_to_refuse_a_post_back_has_its_own_count(database: Database) -> None:
    async def never() -> bytes:
        await asyncio.sleep(10 * PATIENCE)
        raise AssertionError

    async def breaks_off() -> bytes:
        raise ProtocolClosed

    refusals: dict[str, dict[str, Any]] = {
        "wrong_method": {"method": "GET"},
        "wrong_address": {"path": PATH + "x"},
        "too_large": {"body": b"x" * 101},
        "too_slow": {"whole": never},
        "broken_off": {"whole": breaks_off},
        "in_pieces": {"pieces": itertools.repeat(b"x")},
    }

    async def test() -> None:
        async with running(database, max_body=100, body_timeout=0.1) as app:
            for name, request in refusals.items():
                before = app.counts()
                await send(app, **request)
                assert app.counts() == {**before, name: 1}
            before = app.counts()
            for method in ("GET", "HEAD"):  # as by `sendoff doctor`, or by a link that was cut off
                assert status_of(await send(app, f"{OPT_OUT[:-8]}{'A' * 8}", method=method)) == 404
            assert app.counts() == before
            await send(app, OPT_OUT, b"other=1")
            assert app.counts() == {**before, "opt_outs_refused": 1}
            await send(app, OPT_OUT, ONE_CLICK)
            await send(app, OPT_OUT, ONE_CLICK)  # with repetitions
            assert app.counts() == {**before, "opt_outs_refused": 1, "opted_out": 2}

    run(test())


def test_a_body_that_does_not_arrive_in_time_is_answered_408(database: Database) -> None:
    async def never() -> bytes:
        await asyncio.sleep(10 * PATIENCE)
        raise AssertionError

    async def test() -> None:
        async with running(database, body_timeout=0.1) as app:
            assert status_of(await send(app, whole=never)) == 408
            assert app.counts()["too_slow"] == 1
            assert status_of(await send(app)) == 200

    run(test())
    assert database.stored("number") == [1]


async def closed() -> bytes:
    raise ProtocolClosed


@pytest.mark.parametrize(
    "broken", [{"whole": closed}, {"pieces": [BODY, b"", b""]}], ids=["a declared length", "in chunks"]
)
def test_a_body_that_breaks_off_is_answered_400_and_not_stored(
    database: Database, broken: dict[str, Any]
) -> None:
    async def test() -> None:
        async with running(database) as app:
            sent = {how: iter(part) if how == "pieces" else part for how, part in broken.items()}
            assert status_of(await send(app, **sent)) == 400
            assert app.counts()["broken_off"] == 1

    run(test())
    assert database.stored("number") == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b'{"device": {"id": "x"}}',
        b"[" * 10_000,
        b"\xff\xfe",
        b'{"time": 1e999}',
        b"\x00",
    ],
)
@pytest.mark.promise("lost/kept")
def test_an_unreadable_body_is_stored_and_answered_200(database: Database, body: bytes) -> None:
    async def test() -> dict[str, int]:
        async with running(database) as app:
            assert status_of(await send(app, body=body)) == 200
            return app.counts()

    assert run(test())["unreadable"] == 1
    assert database.stored("kind", "dispatch_key", "readable", "device_id", "body") == [
        ("delivery", KEY, False, None, body)
    ]


@pytest.mark.promise("lost/kept")
def test_members_of_other_types_hide_no_recipient(database: Database) -> None:
    body = (
        b'{"device": {"id": 17}, "profile": {"id": "p-1"}, "send": {"id": "6b1f-4c"}, "campaign": {"id": 20}}'
    )

    async def test() -> dict[str, int]:
        async with running(database) as app:
            assert status_of(await send(app, body=body)) == 200
            return app.counts()

    assert run(test())["unreadable"] == 0
    stored = database.stored("readable", "device_id", "profile_id", "send_id", "campaign_id", "occurred_at")
    assert stored == [(True, 17, None, None, 20, NOW)]


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await check():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.05)


def test_a_ledger_that_comes_back_is_used_again(empty: Database) -> None:
    async def test() -> dict[str, int]:
        async with running(empty) as app:
            answer = await send(app)
            assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True)
            with closing(empty.ledger()) as ledger:
                await asyncio.to_thread(ledger.migrate)

            async def taken() -> bool:
                return status_of(await send(app)) == 200

            await eventually(taken)
            return app.counts()

    assert run(test())["unavailable"] >= 1
    assert database_is_numbered_without_gaps(empty)


def database_is_numbered_without_gaps(database: Database) -> bool:
    numbers = database.stored("number")
    return bool(numbers) and numbers == list(range(1, len(numbers) + 1))


def test_a_full_queue_is_answered_503_and_loses_nothing(database: Database) -> None:
    async def test() -> list[int]:
        commits = asyncio.Event()
        async with running(database, commits, queue_limit=5) as app:
            with database.locked():
                commits.clear()
                first = asyncio.create_task(send(app))
                await commits.wait()  # the first is waiting for the lock
                more = [asyncio.create_task(send(app)) for _ in range(8)]
                await asyncio.sleep(0.3)
                refused = [task for task in more if task.done()]
                assert [status_of(await task) for task in refused] == [503] * 3
            return [status_of(await task) for task in (first, *more)]

    statuses = run(test())
    assert statuses.count(200) == len(database.stored("number")) == 6


def test_a_silent_ledger_is_answered_for_and_what_it_took_late_is_kept_once(database: Database) -> None:
    async def test() -> None:
        async with running(database, answer_timeout=0.5) as app:
            with database.locked():
                begun = time.monotonic()
                assert status_of(await send(app)) == 503  # after the timeout
                assert 0.5 <= time.monotonic() - begun < 15  # the ledger itself gives up after 30
                assert status_of(await send(app, "/readyz", method="GET")) == 503
                assert status_of(await send(app)) == 503  # at once
                assert app.counts()["failed_commits"] == 0  # the ledger has still not answered

            async def taken() -> bool:
                return status_of(await send(app, body=LATER)) == 200

            await eventually(taken)

    run(test())
    first, *rest = database.stored("device_id")
    assert (first, set(rest)) == (5, {6})
    assert database_is_numbered_without_gaps(database)


def test_stopping_stores_and_answers_what_was_taken(database: Database) -> None:
    async def test() -> list[int]:
        async with running(database) as app:
            with database.locked():
                tasks = [asyncio.create_task(send(app)) for _ in range(20)]
                await asyncio.sleep(0.2)
        return [status_of(await task) for task in tasks]

    assert run(test()) == [200] * 20
    assert len(database.stored("number")) == 20


def test_a_ledger_that_is_away_does_not_keep_the_receiver_from_stopping(empty: Database) -> None:
    async def test() -> None:
        async with running(empty):
            assert is_committing()

    run(test())
    assert not is_committing()  # the thread has really ended


def is_committing() -> bool:
    return any(thread.name == "group-commit" for thread in threading.enumerate())


async def health(database: Database) -> list[int]:
    async with running(database) as app:
        return [status_of(await send(app, path, method="GET")) for path in ("/healthz", "/readyz")]


def test_a_receiver_is_alive_and_ready(database: Database) -> None:
    assert run(health(database)) == [200, 200]


def test_a_receiver_without_a_ledger_is_alive_but_not_ready(empty: Database) -> None:
    assert run(health(empty)) == [200, 503]


def test_the_log_counts_and_tells_nothing_of_a_post_back(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(database, log_every=0.1) as app:
            await send(app, body=b'{"time": 1772355600, "device": {"id": 987654321}}')
            await send(app, body=b"not JSON 987654321")
            await send(app, PATH + "x")

            async def is_told() -> bool:
                return counted in caplog.text

            await eventually(is_told)
            await asyncio.sleep(0.4)

    counted = "stored=2 commits=2 largest_commit=1 unreadable=1 wrong_address=1"
    with caplog.at_level(logging.DEBUG, "sendoff"):
        run(test())
    *changes, end = [told for told in caplog.messages if "since its start" in told]
    assert counted in end
    assert changes[-1] == end
    assert len(set(changes)) == len(changes)  # logged after a change, and at the end
    for planted in ("987654321", KEY, PATH.rpartition("/")[2][:20], SECRET):
        assert planted not in caplog.text


OPT_OUT = OptOutSigner(URL, [SECRET]).sign(OptOut(KEY, "account", "device_id", "5")).removeprefix(URL)
ONE_CLICK = b"List-Unsubscribe=One-Click"


def test_an_opt_out_is_not_answered_2xx_before_it_is_stored(database: Database) -> None:
    def opted_out() -> list[Any]:
        with closing(sqlite3.connect(database.path)) as db:
            return db.execute("SELECT identifier FROM suppressions").fetchall()

    async def test() -> dict[str, int]:
        async with running(database, answer_timeout=0.5) as app:
            with database.locked():
                answer = await send(app, OPT_OUT, ONE_CLICK)
                assert (answer.status, int(answer.headers["retry-after"]) > 0) == (503, True)
                assert opted_out() == []

            async def taken() -> bool:
                return status_of(await send(app, OPT_OUT, ONE_CLICK)) == 200

            await eventually(taken)
            assert opted_out() == [("5",)]
            return app.counts()

    counts = run(test())
    assert counts["opted_out"] >= 1
    assert counts["opt_outs_refused"] >= 1


def test_an_opt_out_whose_body_is_not_read_to_the_end_closes_the_connection(database: Database) -> None:
    async def never() -> bytes:
        await asyncio.sleep(10 * PATIENCE)
        raise AssertionError

    requests: dict[int, dict[str, Any]] = {
        400: {"body": b"other=1"},
        405: {"body": ONE_CLICK, "method": "PUT"},
        408: {"whole": never},
        413: {"body": b"x" * 5_000},
    }

    async def test() -> dict[int, Answer]:
        async with running(database, body_timeout=0.1) as app:
            return {status: await send(app, OPT_OUT, **request) for status, request in requests.items()}

    for status, answer in run(test()).items():
        assert (answer.status, answer.headers["connection"]) == (status, "close")


def test_only_so_many_opt_outs_wait_for_the_ledger_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendoff.postbacks.opt_out._MOST_WAITING", 2)

    async def test() -> None:
        async with running(database) as app:
            with database.locked():
                waiting = [asyncio.create_task(send(app, OPT_OUT, ONE_CLICK)) for _ in range(2)]
                await asyncio.sleep(0.1)
                assert status_of(await send(app, OPT_OUT, ONE_CLICK)) == 503
            assert [status_of(await task) for task in waiting] == [200, 200]
            assert [status_of(await send(app, OPT_OUT, ONE_CLICK)) for _ in range(3)] == [200] * 3

    run(test())


@pytest.mark.parametrize("identifier", ["ada\0@example.com", " ", "a" * 1_001])
def test_an_opt_out_of_an_identifier_that_no_one_can_have_is_an_unknown_address(
    database: Database, monkeypatch: pytest.MonkeyPatch, identifier: str
) -> None:
    monkeypatch.setattr("sendoff.service.opt_out.LONGEST_IDENTIFIER", 2_000)
    path = OptOutSigner(URL, [SECRET]).sign(OptOut(KEY, "account", "user_id", identifier)).removeprefix(URL)

    async def test() -> None:
        async with running(database) as app:
            assert status_of(await send(app, path, ONE_CLICK)) == 404

    run(test())


def test_opt_outs_do_not_write_identifiers_or_addresses_to_the_log(
    empty: Database, caplog: pytest.LogCaptureFixture
) -> None:
    address = OptOut(KEY, "account", "user_id", "ada@example.com")
    path = OptOutSigner(URL, [SECRET]).sign(address).removeprefix(URL)

    async def test() -> None:
        async with running(empty) as app:
            assert status_of(await send(app, path, ONE_CLICK)) == 503

    with caplog.at_level(logging.DEBUG):
        run(test())
    assert "An opt-out was not stored" in caplog.text
    assert "ada@example.com" not in caplog.text
    assert path not in caplog.text


def test_an_outage_is_one_line_of_the_log_however_many_opt_outs_come(
    empty: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(empty) as app:
            for _ in range(5):
                assert status_of(await send(app, OPT_OUT, ONE_CLICK)) == 503
            with closing(empty.ledger()) as ledger:
                ledger.migrate()
            for _ in range(5):
                assert status_of(await send(app, OPT_OUT, ONE_CLICK)) == 200

    with caplog.at_level(logging.INFO):
        run(test())
    assert caplog.text.count("An opt-out was not stored") == 1
    assert caplog.text.count("Opt-outs are stored again") == 1
