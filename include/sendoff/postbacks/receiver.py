"""The receiver: the application that the service sends post-backs to, and where recipients opt out.

Several may run side by side. Each has its own number in the ledger and numbers its post-backs from 1. A receiver makes
no outgoing calls, and its log and responses contain nothing of a post-back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from sendoff.ledger import Ledger
from sendoff.postbacks.endpoint import PostBackEndpoint, ReceiverCounts
from sendoff.postbacks.group_commit import GroupCommit, Limits, utc_now
from sendoff.postbacks.opt_out import OptOutCounts, OptOutEndpoint, is_opt_out
from sendoff.service import OptOutSigner, PostBackSigner
from sendoff.settings import Settings

log = logging.getLogger(__name__)

_LIMITS = Limits()


class ReceiverApp(Starlette):
    """The application around two endpoints, for post-backs and for opt-outs. Requests to its routes go to Starlette.

    The endpoints are called directly, because Starlette's layers take longer than its own work.
    """

    def __init__(
        self,
        endpoint: ASGIApp,
        opt_outs: ASGIApp,
        routes: Sequence[Route],
        lifespan: Lifespan[ReceiverApp] | None = None,
    ) -> None:
        super().__init__(routes=routes, lifespan=lifespan)
        self._endpoint = endpoint
        self._opt_outs = opt_outs
        self._paths = frozenset(route.path for route in routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the start and end of the process."""
        if scope["type"] == "http" and scope["path"] not in self._paths:
            endpoint = self._opt_outs if is_opt_out(scope["path"]) else self._endpoint
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    ledger: Ledger,
    signer: PostBackSigner,
    limits: Limits = _LIMITS,
    clock: Callable[[], datetime] = utc_now,
) -> Starlette:
    """Create the ASGI application of one receiver process. Its lifespan starts and ends the committing thread.

    ``app.state.counts()`` returns all counters.
    """
    counts = ReceiverCounts()
    commit = GroupCommit(ledger, f"{socket.gethostname()}:{os.getpid()}", limits)
    endpoint = PostBackEndpoint(commit, signer, counts, limits, clock)
    opt_out_counts = OptOutCounts()
    opt_outs = OptOutEndpoint(ledger, OptOutSigner.of(signer), opt_out_counts, limits, clock)

    def all_counts() -> dict[str, int]:
        return asdict(commit.counts) | asdict(counts) | asdict(opt_out_counts)

    async def alive(_: Request) -> Response:
        return Response()

    async def ready(_: Request) -> Response:
        return Response(status_code=200 if commit.available else 503)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(commit.start)
        background_tasks = [
            asyncio.create_task(_release(commit)),
            asyncio.create_task(_log_counts(commit, all_counts, limits.log_every)),
        ]
        yield
        for background_task in background_tasks:
            background_task.cancel()
        await asyncio.to_thread(commit.stop)
        _log(commit, all_counts())

    app = ReceiverApp(endpoint, opt_outs, [Route("/healthz", alive), Route("/readyz", ready)], lifespan)
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
    """Create the application from the settings of a deployment."""
    return create_app(Ledger(settings.ledger()), PostBackSigner.from_settings(settings))
