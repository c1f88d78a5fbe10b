"""The sender of post-backs (section 6), which retries them until they are accepted.

An answer of 200 to 299 accepts a post-back. After any other answer it is tried again, a limited number of times, with
growing pauses. A post-back to another machine fails at once, unless the service allows other machines. If the service
stops between sending a post-back and storing the answer, it sends the post-back again: at least once, never lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from sqlalchemy import Row, bindparam, select, update
from yarl import URL

from messaging_service.clock import ServiceClock
from messaging_service.delivery.leases import Leases
from messaging_service.delivery.loopback import USER_AGENT, NotOnThisMachineError, refuse_number_elsewhere
from messaging_service.delivery.resolver import resolver
from messaging_service.faults.postback_faults import apply_faults, sent_body
from messaging_service.store import Store
from messaging_service.tables import post_backs, runs

NOT_SENT = (
    "not sent: the address is on another machine; to allow that, start serve with --post-backs-anywhere"
)
_FETCHED_AT_ONCE = 1_000
_NOTED_AT_ONCE = 500
_NOTING_PAUSE = 0.1
_IDLE_PAUSE = 0.05
_ANSWER_LENGTH = 120
_MOST_READ = 65_536  # bytes of an answer to read; only its status matters


@dataclass(frozen=True, slots=True)
class Retry:
    """The maximum number of attempts per post-back, and the pauses in seconds, which double up to the longest."""

    attempts: int = 8
    first_pause: float = 1.0
    longest_pause: float = 60.0
    timeout: float = 10.0

    def pause_after(self, attempts: int) -> float:
        """Return the pause after this number of attempts."""
        return float(min(self.first_pause * 2 ** min(attempts - 1, 30), self.longest_pause))


@dataclass(frozen=True, slots=True)
class _Taken:
    """A claimed post-back, with the name of the lease and the address to send to."""

    name: str
    row: Row[tuple[Any, ...]]
    address: str

    @property
    def faults(self) -> Sequence[str]:
        """The faults to apply: only the first attempt has any."""
        return self.row.faults or () if self.row.attempts == 0 else ()


class PostBackSender:
    """Takes due post-backs from the store, sends up to ``connections`` at once, and stores the answers in batches."""

    def __init__(
        self,
        store: Store,
        leases: Leases,
        clock: ServiceClock,
        retry: Retry,
        connections: int = 48,
        anywhere: bool = False,
    ) -> None:
        self._store = store
        self._leases = leases
        self._clock = clock
        self._retry = retry
        self._connections = connections
        self._anywhere = anywhere
        self._queue: asyncio.Queue[_Taken] = asyncio.Queue()
        self._outcomes: list[dict[str, Any]] = []
        self._addresses: dict[tuple[int, str], str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Send until ``stop`` is set. Post-backs in progress are then cut off, and sent again after the next start."""
        connector = aiohttp.TCPConnector(
            limit=self._connections, resolver=resolver(self._anywhere), ttl_dns_cache=60
        )
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._retry.timeout),
            headers={"Content-Type": "application/json", "User-Agent": USER_AGENT},
            skip_auto_headers=("Accept-Encoding",),
            auto_decompress=False,
        ) as session:
            tasks = [asyncio.create_task(self._send_queued(session)) for _ in range(self._connections)]
            tasks += [asyncio.create_task(self._take_due()), asyncio.create_task(self._note_outcomes())]
            stopped = asyncio.create_task(_wait_for(stop))
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._note(self._outcomes)
            for task in done:
                task.result()

    async def _take_due(self) -> None:
        while True:
            items: Sequence[_Taken] = ()
            if self._queue.qsize() < _FETCHED_AT_ONCE // 2 and self._leases.is_alive:
                items = await asyncio.to_thread(self._take)
                for item in items:
                    self._queue.put_nowait(item)
            await asyncio.sleep(0 if items else _IDLE_PAUSE)

    def _take(self) -> Sequence[_Taken]:
        now = self._clock.time()
        if not self._leases.is_due(post_backs, now):
            return ()
        with self._store.write() as connection:
            name, rows = self._leases.take_due(connection, post_backs, now, _FETCHED_AT_ONCE)
            rows = apply_faults(connection, rows, now)
            for run_id in {row.run_id for row in rows if (row.run_id, row.kind) not in self._addresses}:
                run = connection.execute(select(runs).where(runs.c.id == run_id)).one()
                self._addresses[run_id, "delivery"] = run.webhook_delivery or ""
                self._addresses[run_id, "open"] = run.webhook_open or ""
        return [_Taken(name, row, self._addresses[row.run_id, row.kind]) for row in rows]

    async def _send_queued(self, session: aiohttp.ClientSession) -> None:
        while True:
            item = await self._queue.get()
            if not await self._is_ours(item):
                continue
            row = item.row
            body = sent_body(row.send_id, row.body, item.faults)
            accepted, answer = await self._post(session, item.address, body)
            if "duplicate" in item.faults:
                await self._post(session, item.address, body)
            self._outcomes.append(self._outcome(item, accepted, answer))

    async def _post(self, session: aiohttp.ClientSession, address: str, body: bytes) -> tuple[bool, str]:
        try:
            url = URL(address)
            if not self._anywhere:
                refuse_number_elsewhere(url)
            async with session.post(url, data=body, allow_redirects=False) as response:
                await _read_a_little(response)
                return 200 <= response.status < 300, str(response.status)
        except TimeoutError:
            return False, "no answer in time"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            if isinstance(reason, NotOnThisMachineError):
                return False, NOT_SENT
            return False, f"{type(error).__name__}: {error}"[:_ANSWER_LENGTH]

    async def _is_ours(self, taken: _Taken) -> bool:
        # A process whose lease expired may have lost its claims to another process.
        if not self._leases.is_alive:
            await asyncio.to_thread(self._leases.renew)
        return taken.name == self._leases.name

    def _outcome(self, taken: _Taken, accepted: bool, answer: str) -> dict[str, Any]:
        attempts = taken.row.attempts + 1
        given_up = attempts >= self._retry.attempts or answer == NOT_SENT
        state = "sent" if accepted else "failed" if given_up else "due"
        now = self._clock.time()
        due_at = now + self._retry.pause_after(attempts) if state == "due" else now
        return {
            "key": taken.row.id,
            "name": taken.name,
            "state": state,
            "attempts": attempts,
            "answer": answer,
            "due_at": due_at,
        }

    async def _note_outcomes(self) -> None:
        while True:
            started = time.monotonic()
            while self._outcomes:
                outcomes, self._outcomes = self._outcomes[:_NOTED_AT_ONCE], self._outcomes[_NOTED_AT_ONCE:]
                await self._note(outcomes)
            await asyncio.sleep(max(0.0, _NOTING_PAUSE - (time.monotonic() - started)))

    async def _note(self, outcomes: list[dict[str, Any]]) -> None:
        if outcomes:
            await asyncio.to_thread(self._write, outcomes)

    def _write(self, outcomes: list[dict[str, Any]]) -> None:
        statement = (
            update(post_backs)
            .where(post_backs.c.id == bindparam("key"), post_backs.c.claimed_by == bindparam("name"))
            .values(
                claimed_by=None,
                state=bindparam("state"),
                attempts=bindparam("attempts"),
                answer=bindparam("answer"),
                due_at=bindparam("due_at"),
            )
        )
        with self._store.write() as connection:
            connection.execute(statement, outcomes)


async def _read_a_little(response: aiohttp.ClientResponse) -> None:
    """Read the body of an answer, so that its connection can be reused; if the body is large, close the connection."""
    read = 0
    while part := await response.content.readany():
        read += len(part)
        if read > _MOST_READ:
            response.close()
            return


async def _wait_for(stop: asyncio.Event) -> None:
    await stop.wait()
