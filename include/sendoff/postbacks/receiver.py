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
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server import MPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from sendoff import logs, telemetry
from sendoff.errors import PermanentError, RetryableError, SettingsError
from sendoff.ledger import Ledger
from sendoff.postbacks.endpoint import PostBackEndpoint, ReceiverCounts
from sendoff.postbacks.group_commit import GroupCommit
from sendoff.service import Addresses
from sendoff.settings import Settings

log = logging.getLogger(__name__)


class ReceiverApp(Starlette):
    """The application around an endpoint: what is asked of its routes is theirs, everything else the endpoint's.

    The endpoint is called directly: passing through Starlette's layers takes longer than what it does itself.
    """

    def __init__(
        self, endpoint: ASGIApp, routes: Sequence[Route], lifespan: Lifespan[ReceiverApp] | None = None
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan)
        self._endpoint = endpoint
        self._paths = frozenset(route.path for route in routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the start and the end of the process."""
        if scope["type"] == "http" and scope["path"] not in self._paths:
            await self._endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


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

    app = ReceiverApp(endpoint, [Route("/healthz", alive), Route("/readyz", ready)], lifespan)
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


class Server(MPServer):
    """Granian, except that a worker whose process has ended counts as stopped.

    Granian reaps a worker in one thread and asks in another whether it still runs. If the first thread has not
    noted the end yet, the worker seems to be alive, and Granian logs that it killed a worker that "refused to
    gracefully stop" (Granian 2.8, ``AbstractServer._stop_workers``). The sentinel of a process is never late.
    """

    def _spawn_worker(self, *args: Any, **options: Any) -> Any:
        worker = super()._spawn_worker(*args, **options)
        worker.is_alive = lambda: not wait([worker.inner.sentinel], 0)  # type: ignore[method-assign]
        return worker


def serve(
    host: str,
    port: int,
    settings: Settings,
    workers: int = 1,
    make_app: Callable[[Settings], Starlette] = app_of,
) -> None:
    """Serve post-backs until SIGINT or SIGTERM, from ``workers`` processes that share the address.

    Stopping answers and stores what has arrived. Raises SettingsError for settings that are missing and for
    an address that cannot be listened on, and UnusableLedgerError for a ledger that somebody must correct, such as
    one without tables. A ledger that is away is waited for. ``make_app`` is called in each worker process.
    """
    Addresses.from_settings(settings)
    _check_ledger(settings.ledger())
    server = Server(
        "sendoff receiver",
        address=_listenable(host, port),
        port=port,
        workers=workers,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=_HEADER_MILLISECONDS, max_buffer_size=_HEAD_BYTES),
        websockets=False,
        backlog=_CONNECTIONS,
        backpressure=_CONNECTIONS,
        log_access=False,  # a path is a secret
        log_dictconfig=logs.of_receiver(),
        respawn_failed_workers=True,
        workers_kill_timeout=_STOP_SECONDS,
    )
    try:
        server.serve(target_loader=partial(_in_worker, make_app, settings), wrap_loader=False)
    except SystemExit:
        if not server.interrupt_signal:  # else a worker was only faster than its parent
            raise


def _check_ledger(url: str) -> None:
    """Raise what a person must correct of a ledger; one that is silent for some seconds may be well later."""
    found: list[PermanentError] = []

    def check() -> None:
        try:
            with closing(Ledger(url)) as ledger:
                ledger.post_backs.check()
        except RetryableError as error:
            log.warning("%s; answering 503 until it is back", error)
        except PermanentError as error:
            found.append(error)

    checking = threading.Thread(target=check, name="check-ledger", daemon=True)
    checking.start()
    checking.join(_LEDGER_SECONDS)
    if found:
        raise found[0]


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
    _take_signals()
    if (parent := parent_process()) is not None:
        threading.Thread(target=_outlive_not, args=(parent.sentinel,), daemon=True).start()
    telemetry.start(is_scraped=True)
    return make_app(settings)


def _take_signals() -> None:
    """Let a worker end by a signal from its first moment on, and by one that is repeated no differently.

    A worker comes with the handlers of its parent, which would swallow what arrives before it serves. And the server's
    own handler waits for ever, all threads with it, when it is called a third time, or a second time before it serves
    (Granian 2.8, ``WorkerSignal.set``): a terminal, a supervisor and the parent each send a signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    loop = asyncio.get_event_loop_policy().get_event_loop()
    add_handler = loop.add_signal_handler
    is_told = False

    def add_once(number: int, handler: Callable[..., object], *args: object) -> None:
        def handle() -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                handler(*args)

        add_handler(number, handle)

    loop.add_signal_handler = add_once  # type: ignore[method-assign, assignment]


def _outlive_not(parent: int) -> None:
    """Stop this worker when its parent is gone, even if it was killed: it would hold the port for ever."""
    wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)


_LEDGER_SECONDS = 5  # for the ledger to answer before the receiver starts without having heard of it
_HEAD_BYTES = 16_384  # the request line and all headers; each connection may hold as much
_HEADER_MILLISECONDS = 30_000  # also ends an idle connection: longer than a proxy keeps one
_STOP_SECONDS = 50  # to answer and store what has arrived takes 10 and 30 at most; then a worker is killed
_CONNECTIONS = 2_048  # at once, for each worker
