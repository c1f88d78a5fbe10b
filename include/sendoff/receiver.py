"""The receiver: the process that post-backs are sent to.

Several may run side by side: each has a number of its own in the ledger, and numbers what it stores from 1. A
receiver makes no outgoing call, and nothing of a post-back is in its log or its answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait

from granian import Granian as Server
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from sendoff.endpoint import PostBackEndpoint, ReceiverCounts
from sendoff.errors import SettingsError
from sendoff.group_commit import GroupCommit
from sendoff.ledger import Ledger
from sendoff.postbacks import Addresses
from sendoff.settings import Settings

log = logging.getLogger(__name__)


def create_app(
    ledger: Ledger,
    addresses: Addresses,
    *,
    max_body: int = 16_384,
    body_timeout: float = 10.0,
    answer_timeout: float = 10.0,
    queue_limit: int = 10_000,
    log_every: float = 60.0,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Starlette:
    """Make the ASGI application of one receiver process; its lifespan starts and ends the committing thread.

    ``max_body`` is in bytes, the times are in seconds: for the body to arrive, for the commit that the
    answer waits for, and between two lines of figures in the log. ``app.state.counts()`` gives all
    counters.
    """
    counts = ReceiverCounts()
    commit = GroupCommit(
        ledger, f"{socket.gethostname()}:{os.getpid()}", queue_limit=queue_limit, patience=answer_timeout
    )
    endpoint = PostBackEndpoint(
        commit,
        addresses,
        counts,
        max_body=max_body,
        body_timeout=body_timeout,
        clock=clock,
    )

    def all_counts() -> dict[str, int]:
        return asdict(commit.counts) | asdict(counts)

    async def alive(_: Request) -> Response:
        return Response()

    async def ready(_: Request) -> Response:
        return Response(status_code=200 if commit.available else 503)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(commit.start)
        chores = [
            asyncio.create_task(_release(commit)),
            asyncio.create_task(_log_counts(commit, all_counts, log_every)),
        ]
        yield
        for chore in chores:
            chore.cancel()
        await asyncio.to_thread(commit.stop)
        _log(commit, all_counts())

    app = Starlette(
        routes=[Route("/healthz", alive), Route("/readyz", ready), Mount("/", app=endpoint)],
        lifespan=lifespan,
    )
    app.state.counts = all_counts
    return app


async def _release(commit: GroupCommit) -> None:
    while True:
        await asyncio.sleep(1)
        commit.release()


async def _log_counts(commit: GroupCommit, counts: Callable[[], dict[str, int]], every: float) -> None:
    before = counts()
    while True:
        await asyncio.sleep(every)
        if (now := counts()) != before:
            _log(commit, now)
        before = now


def _log(commit: GroupCommit, counts: dict[str, int]) -> None:
    told = " ".join(f"{name}={count}" for name, count in counts.items() if count)
    log.info("Receiver %s since its start: %s", commit.receiver, told or "nothing received")


def app_of(settings: Settings) -> Starlette:
    """Make the application of a deployment."""
    return create_app(Ledger(settings.ledger()), Addresses.from_settings(settings))


def serve(
    host: str,
    port: int,
    settings: Settings,
    workers: int = 1,
    make_app: Callable[[Settings], Starlette] = app_of,
) -> None:
    """Serve post-backs until SIGINT or SIGTERM, from ``workers`` processes that share the address.

    Stopping answers and stores what has arrived. Raises SettingsError for settings that are missing and for
    an address that cannot be listened on. ``make_app`` is called in each worker process.
    """
    Addresses.from_settings(settings)
    settings.ledger()
    Server(
        "sendoff receiver",
        address=_listenable(host, port),
        port=port,
        workers=workers,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=_HEADER_MILLISECONDS, max_buffer_size=65_536),
        websockets=False,
        backlog=_CONNECTIONS,
        backpressure=_CONNECTIONS,
        log_access=False,  # a path is a secret
        log_dictconfig=_LOGGING,
        respawn_failed_workers=True,
    ).serve(target_loader=partial(_in_worker, make_app, settings), wrap_loader=False)


def _listenable(host: str, port: int) -> str:
    """Give the IP address of a host, if it is free: the server's own word for "taken" is a stack trace."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((address[0], port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host}, port {port}: {reason}") from None
    return str(address[0])


def _in_worker(make_app: Callable[[Settings], Starlette], settings: Settings) -> Starlette:
    if (parent := parent_process()) is not None:
        threading.Thread(target=_outlive_not, args=(parent.sentinel,), daemon=True).start()
    return make_app(settings)


def _outlive_not(parent: int) -> None:
    """Stop this worker when its parent is gone, even if it was killed: it would hold the port for ever."""
    wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)


_HEADER_MILLISECONDS = 30_000  # also ends an idle connection: longer than a proxy keeps one
_CONNECTIONS = 2_048  # at once, for each worker
_LOGGING = {
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "_granian": {"handlers": ["console"], "propagate": False},
        "sendoff": {"handlers": ["console"], "level": "INFO", "propagate": False},
    },
}
