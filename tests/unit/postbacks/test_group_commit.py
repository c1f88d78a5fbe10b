"""Group commit on real ledgers, with commits that fail or succeed without a reply."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from sendoff.errors import LedgerUnavailableError
from sendoff.ledger import Ledger
from sendoff.ledger.storage.schema import post_backs, receivers
from sendoff.postbacks.group_commit import GroupCommit, Limits
from sendoff.service.postbacks import PostBack
from sendoff.service.wire import PostBackBody

from ...factories import stored_post_backs
from ...waiting import PATIENCE

KEY = "0123456789abcdef" * 2
NOW = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


def post_back(device: int, user_id: str | None = None) -> PostBack:
    body = PostBackBody(time=NOW, device_id=device, user_id=user_id)
    return PostBack("delivery", KEY, NOW, b"%d" % device, body)


@dataclass
class Disturbed:
    """The post-backs of a real ledger with planned disturbances, one per commit."""

    real: Any
    plans: list[str]
    calls: list[list[int]] = field(default_factory=list)
    asked: int = 0

    def register_receiver(self, name: str, now: datetime) -> int:
        return int(self.real.register_receiver(name, now))

    def is_registered(self, receiver: int, name: str, started_at: datetime) -> bool:
        self.asked += 1
        return bool(self.real.is_registered(receiver, name, started_at))

    def store(self, receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> None:
        self.calls.append([number for number, _ in numbered])
        plan = self.plans.pop(0) if self.plans else "works"
        if plan == "away":
            raise LedgerUnavailableError("away")
        if plan == "the thread ends":
            raise SystemExit
        self.real.store(receiver, numbered)
        if plan == "answer lost":
            raise LedgerUnavailableError("the commit was made, but nobody heard of it")


@asynccontextmanager
async def committing(ledger: Ledger, **options: Any) -> AsyncIterator[GroupCommit]:
    commit = GroupCommit(ledger, "test:1", Limits(**{"pause": 0.05, "answer_timeout": PATIENCE, **options}))
    await asyncio.to_thread(commit.start, PATIENCE)
    await available(commit)
    yield commit
    await asyncio.to_thread(commit.stop)


async def stored(commit: GroupCommit, *post_backs: PostBack) -> list[bool | None]:
    waiting = [commit.submit(each) for each in post_backs]
    return [await future if future else None for future in waiting]


def run(test: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test, 5 * PATIENCE))


def rows(ledger: Ledger, *columns: str, receiver: int = 1) -> list[tuple[Any, ...]]:
    own = [each for each in stored_post_backs(ledger) if each.receiver == receiver]
    return [tuple(getattr(each, name) for name in columns) for each in own]


async def available(commit: GroupCommit, *, be: bool = True, within: float = PATIENCE) -> None:
    deadline = time.monotonic() + within
    while commit.available is not be:
        assert time.monotonic() < deadline, "it was never noticed that the ledger is back, or away"
        await asyncio.sleep(0.02)


def test_a_commit_that_succeeded_unseen_is_repeated_and_stored_once(ledger: Ledger) -> None:
    disturbed = Disturbed(ledger.post_backs, ["answer lost"])
    ledger.post_backs = disturbed  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger) as commit:
            assert await stored(commit, post_back(1)) == [False]  # the commit got no reply
            await available(commit)
            assert await stored(commit, post_back(2)) == [True]

    run(test())
    ledger.post_backs = disturbed.real
    assert rows(ledger, "number", "device_id") == [(1, 1), (2, 2)]
    assert disturbed.calls == [[1], [1], [2]]


@pytest.mark.promise("lost/aggregated")
def test_no_number_is_committed_before_a_lower_one(ledger: Ledger) -> None:
    disturbed = Disturbed(ledger.post_backs, ["works", "away", "away", "answer lost", "away"])
    ledger.post_backs = disturbed  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger) as commit:
            for device in range(1, 5):
                await stored(commit, post_back(device))
                await available(commit)

    run(test())
    ledger.post_backs = disturbed.real
    assert disturbed.calls == [[1], [2], [2], [2], [2], [2], [3], [4]]
    assert rows(ledger, "number", "device_id") == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_while_the_ledger_is_away_nothing_is_queued(ledger: Ledger) -> None:
    ledger.post_backs = Disturbed(ledger.post_backs, ["away"] * 1_000)  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger) as commit:
            assert await stored(commit, post_back(1)) == [False]
            assert await stored(commit, post_back(2)) == [None]

    run(test())


def unavailable(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often the log says that the ledger is unavailable."""
    return sum("The ledger is unavailable" in each.getMessage() for each in caplog.records)


@pytest.mark.code_decides
def test_each_outage_is_logged_once(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    ledger.post_backs = Disturbed(ledger.post_backs, ["away"] * 3)  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger) as commit:
            assert await stored(commit, post_back(1)) == [False]
            await available(commit)
            assert commit.counts.failed_commits == 3

    run(test())
    assert unavailable(caplog) == 1


@pytest.mark.code_decides
def test_an_outage_at_the_start_is_logged_once(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    tries = threading.Semaphore(0)

    class Away(Disturbed):
        def register_receiver(self, name: str, now: datetime) -> int:
            tries.release()
            raise LedgerUnavailableError("away")

    ledger.post_backs = Away(ledger.post_backs, [])  # type: ignore[assignment]
    commit = GroupCommit(ledger, "test:1", Limits(pause=0.01))
    commit.start(PATIENCE)
    for _ in range(3):
        assert tries.acquire(timeout=PATIENCE)
    commit.stop()
    assert unavailable(caplog) == 1


@pytest.mark.promise("lost/kept")
def test_what_the_ledger_cannot_hold_is_kept_as_it_arrived_and_harms_no_neighbour(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    too_large = post_back(2**70)  # the wire format refuses such a number

    async def test() -> None:
        async with committing(ledger) as commit:
            assert await stored(commit, post_back(1), too_large, post_back(3)) == [True] * 3

    with caplog.at_level(logging.DEBUG):
        run(test())
    assert rows(ledger, "number", "device_id", "readable") == [(1, 1, True), (2, None, False), (3, 3, True)]
    assert str(2**70) not in caplog.text


def test_a_name_with_a_zero_in_it_is_answered_for(ledger: Ledger) -> None:
    """JSON may contain U+0000, and text in PostgreSQL may not."""

    async def test() -> None:
        async with committing(ledger) as commit:
            assert await stored(commit, post_back(1, user_id="a\0b"), post_back(2)) == [True, True]

    run(test())
    assert rows(ledger, "number") == [(1,), (2,)]


@pytest.mark.parametrize(("gather", "sizes"), [(PATIENCE, [4]), (0.0, [1, 1, 1, 1])])
def test_post_backs_share_a_transaction_while_they_keep_coming_but_not_forever(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, gather: float, sizes: list[int]
) -> None:
    """Each of three lulls ends with another post-back. The transaction waits for it if ``gather`` is not over."""
    in_lull, is_over = threading.Semaphore(0), threading.Semaphore(0)

    def sleep(_: float) -> None:
        in_lull.release()
        assert is_over.acquire(timeout=PATIENCE)

    monkeypatch.setattr("sendoff.postbacks.group_commit.sleep", sleep)
    disturbed = Disturbed(ledger.post_backs, [])
    ledger.post_backs = disturbed  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger, gather=gather) as commit:
            waiting = [commit.submit(post_back(1))]
            for device in (2, 3, 4):
                if gather:
                    assert await asyncio.to_thread(in_lull.acquire, timeout=PATIENCE)
                elif last := waiting[-1]:
                    assert await last is True
                waiting.append(commit.submit(post_back(device)))
                is_over.release()
            is_over.release()  # no other post-back comes in the last lull
            assert [await future for future in waiting if future] == [True] * 4

    run(test())
    assert [len(call) for call in disturbed.calls] == sizes


def test_a_lull_ends_sooner_the_faster_post_backs_came(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lulls: list[float] = []
    in_lull, is_over = threading.Semaphore(0), threading.Semaphore(0)
    passed = 0.0

    def sleep(seconds: float) -> None:
        lulls.append(seconds)
        in_lull.release()
        assert is_over.acquire(timeout=PATIENCE)

    monkeypatch.setattr("sendoff.postbacks.group_commit.sleep", sleep)
    monkeypatch.setattr("sendoff.postbacks.group_commit.monotonic", lambda: passed)

    async def test() -> None:
        nonlocal passed
        async with committing(ledger, gather=0.25, lull=0.125) as commit:
            waiting = [commit.submit(post_back(1))]
            for devices in (range(2, 4), range(4, 64)):
                assert await asyncio.to_thread(in_lull.acquire, timeout=PATIENCE)
                waiting += [commit.submit(post_back(device)) for device in devices]
                passed += 0.0625
                is_over.release()
            is_over.release()  # no other post-back comes in the last lull
            assert [await future for future in waiting if future] == [True] * 63

    run(test())
    assert lulls == [0.125, 0.125, 4 * 0.25 / 64]


def test_a_batch_is_bounded(ledger: Ledger) -> None:
    disturbed = Disturbed(ledger.post_backs, [])
    ledger.post_backs = disturbed  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger, batch_limit=3) as commit:
            assert await stored(commit, *(post_back(device) for device in range(1, 11))) == [True] * 10

    run(test())
    assert max(map(len, disturbed.calls)) <= 3
    assert [number for call in disturbed.calls for number in call] == list(range(1, 11))


def test_a_ledger_that_is_lost_while_nothing_comes_is_noticed(ledger: Ledger) -> None:
    lost = threading.Event()
    works = ledger.ping

    def ping() -> None:
        if lost.is_set():
            raise LedgerUnavailableError("away")
        works()

    ledger.ping = ping  # type: ignore[method-assign]

    async def test() -> None:
        async with committing(ledger, idle=0.05) as commit:
            await available(commit)
            lost.set()
            await available(commit, be=False)
            lost.clear()
            await available(commit)
            assert await stored(commit, post_back(1)) == [True]

    run(test())


@pytest.mark.code_decides
def test_a_receiver_at_rest_stores_a_post_back_and_ends_without_waiting_to_check_its_ledger(
    ledger: Ledger,
) -> None:
    async def test() -> GroupCommit:
        async with committing(ledger, idle=100 * PATIENCE) as commit:
            for device in range(1, 3):
                assert await stored(commit, post_back(device)) == [True]
        return commit

    commit = run(test())
    assert not commit._thread.is_alive()
    assert not commit.available
    assert rows(ledger, "number") == [(1,), (2,)]


def test_a_request_that_went_away_harms_no_other(ledger: Ledger) -> None:
    async def test() -> None:
        async with committing(ledger) as commit:
            gone = commit.submit(post_back(1))
            assert gone is not None
            gone.cancel()
            assert await stored(commit, post_back(2)) == [True]

    run(test())
    assert rows(ledger, "device_id") == [(1,), (2,)]


def test_a_ledger_that_comes_back_as_an_older_copy_gets_the_receiver_anew(ledger: Ledger) -> None:
    disturbed = Disturbed(ledger.post_backs, ["works", "away"])
    ledger.post_backs = disturbed  # type: ignore[assignment]

    async def test() -> int:
        async with committing(ledger) as commit:
            assert await stored(commit, post_back(1)) == [True]
            forget_receivers(ledger)
            other = disturbed.real.register_receiver("test:2", NOW)  # may get the number that became free
            disturbed.real.store(other, [(1, post_back(7)), (2, post_back(8))])
            assert await stored(commit, post_back(2)) == [False]
            await available(commit)
            assert await stored(commit, post_back(3)) == [True]
            assert commit.receiver not in {None, other}
            return int(commit.receiver or 0)

    receiver = run(test())
    ledger.post_backs = disturbed.real
    assert rows(ledger, "number", "device_id", receiver=receiver) == [(1, 2), (2, 3)]
    assert (receiver, 0, 2) in ledger.post_backs.pending()


def test_only_after_a_failure_the_ledger_is_asked_whether_it_knows_the_receiver(ledger: Ledger) -> None:
    disturbed = Disturbed(ledger.post_backs, ["works", "works", "away"])
    ledger.post_backs = disturbed  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger) as commit:
            asked = []
            for device in range(1, 6):
                await stored(commit, post_back(device))
                await available(commit)
                asked.append(disturbed.asked)
            assert asked == [0, 0, 1, 1, 1]

    run(test())


def forget_receivers(ledger: Ledger) -> None:
    """Reset a ledger to its state before the first receiver, as restoring a backup would."""
    with ledger._database.write() as db:
        db.execute(sa.delete(post_backs))
        db.execute(sa.delete(receivers))


@dataclass
class Silent(Disturbed):
    """The post-backs of a real ledger that does not answer until the test lets it."""

    heard: threading.Event = field(default_factory=threading.Event)

    def store(self, receiver: int, numbered: Sequence[tuple[int, PostBack]]) -> None:
        assert self.heard.wait(PATIENCE)
        super().store(receiver, numbered)


def test_nobody_waits_longer_than_the_patience_for_a_ledger_that_gives_no_answer(ledger: Ledger) -> None:
    ledger.post_backs = silent = Silent(ledger.post_backs, [])  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger, answer_timeout=0.2) as commit:
            waiting = commit.submit(post_back(1))
            assert waiting is not None
            await available(commit, be=False, within=30)
            commit.release()
            assert await waiting is False
            assert commit.submit(post_back(2)) is None
            assert commit.counts.failed_commits == 0  # the ledger did not answer all that time
            silent.heard.set()
            await available(commit)

    try:
        run(test())
    finally:
        silent.heard.set()
    ledger.post_backs = silent.real
    assert rows(ledger, "number", "device_id") == [(1, 1)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_its_thread_nobody_is_kept_waiting(ledger: Ledger) -> None:
    ledger.post_backs = Disturbed(ledger.post_backs, ["the thread ends"])  # type: ignore[assignment]

    async def test() -> None:
        async with committing(ledger) as commit:
            waiting = commit.submit(post_back(1))
            assert waiting is not None
            await available(commit, be=False)
            commit.release()
            assert await waiting is False
            assert commit.submit(post_back(2)) is None

    run(test())
