"""The delivery process. It processes due runs and sends post-backs, separately from the web processes.

It reads its settings from one line of JSON on standard input. It stops when standard input ends, which happens even
if its parent process is killed.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass

import orjson
import uvloop

from messaging_service.clock import ServiceClock
from messaging_service.delivery.behaviour import Behaviour
from messaging_service.delivery.leases import LEASE, LeaseLostError, Leases
from messaging_service.delivery.postbacks import PostBackSender, Retry
from messaging_service.delivery.runs import work_through_due_run
from messaging_service.delivery.webhooks import WebhookCaller
from messaging_service.store import Store
from messaging_service.subprocesses import settings_line, when_input_ends

_IDLE_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of a delivery process."""

    database: str
    behaviour: Behaviour
    retry: Retry
    connections: int
    webhooks_anywhere: bool = False
    post_backs_anywhere: bool = False


def from_line(line: bytes) -> WorkerSettings:
    """Read settings from JSON."""
    values = orjson.loads(line)
    parts = {"behaviour": Behaviour(**values["behaviour"]), "retry": Retry(**values["retry"])}
    return WorkerSettings(**{**values, **parts})


async def run(settings: WorkerSettings, stop: asyncio.Event) -> None:
    """Work until ``stop`` is set."""
    store = Store(settings.database)
    clock, leases = ServiceClock(store), Leases(store)
    try:
        sender = PostBackSender(
            store, leases, clock, settings.retry, settings.connections, settings.post_backs_anywhere
        )
        caller = WebhookCaller(store, leases, clock, settings.webhooks_anywhere)
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.run(stop))
            group.create_task(_renew_leases(leases, stop))
            group.create_task(sender.run(stop))
            group.create_task(_work_through_runs(store, leases, settings.behaviour, clock, stop))
    finally:
        leases.release()
        store.close()


async def _renew_leases(leases: Leases, stop: asyncio.Event) -> None:
    while not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LEASE / 5)
        await asyncio.to_thread(leases.renew)


async def _work_through_runs(
    store: Store, leases: Leases, behaviour: Behaviour, clock: ServiceClock, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        try:
            worked = await asyncio.to_thread(
                work_through_due_run, store, leases, behaviour, clock, stop.is_set
            )
        except LeaseLostError:
            continue
        if not worked:
            await asyncio.sleep(_IDLE_PAUSE)


async def _main() -> None:
    settings = from_line(settings_line())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    when_input_ends(lambda: loop.call_soon_threadsafe(stop.set))
    await run(settings, stop)


if __name__ == "__main__":
    uvloop.run(_main())
