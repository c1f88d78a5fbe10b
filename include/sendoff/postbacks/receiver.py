"""The receiver: the application that the service sends post-backs to, and where recipients opt out.

Several may run side by side. Each has its own number in the ledger and numbers its post-backs from 1. A receiver makes
no outgoing calls, and its log and responses contain nothing of a post-back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

from granian.rsgi import HTTPProtocol, Scope

from sendoff.ledger import Ledger
from sendoff.postbacks.endpoint import PostBackEndpoint
from sendoff.postbacks.group_commit import GroupCommit, Limits
from sendoff.postbacks.opt_out import OptOutEndpoint, is_opt_out
from sendoff.postbacks.opt_out_texts import ENGLISH, Texts, page_texts
from sendoff.postbacks.reading import BodyReader
from sendoff.service import OptOutSigner, PostBackSigner
from sendoff.settings import Settings
from sendoff.telemetry import metrics
from sendoff.times import utc_now

_log = logging.getLogger(__name__)

_LIMITS = Limits()


class ReceiverApp:
    """The application of one receiver process. Granian calls it by its own interface, RSGI.

    RSGI costs half as much CPU time for each request as ASGI.
    """

    def __init__(
        self,
        commit: GroupCommit,
        ledger: Ledger,
        signer: PostBackSigner,
        limits: Limits = _LIMITS,
        clock: Callable[[], datetime] = utc_now,
        texts: Texts = ENGLISH,
    ) -> None:
        self._commit = commit
        self._log_every = limits.log_every
        self._bodies = BodyReader(limits.body_timeout)
        self._post_backs = PostBackEndpoint(commit, signer, self._bodies, limits.max_body, clock)
        self._opt_outs = OptOutEndpoint(
            ledger, OptOutSigner.of(signer), commit.counts, self._bodies, limits.answer_timeout, clock, texts
        )
        self._background_tasks: list[asyncio.Task[None]] = []

    def counts(self) -> dict[str, int]:
        """Return all counters."""
        return asdict(self._commit.counts)

    async def start(self) -> None:
        """Start the committing thread."""
        await asyncio.to_thread(self._commit.start)
        self._background_tasks = [
            asyncio.create_task(self._check_every_second()),
            asyncio.create_task(self._log_counts_regularly()),
        ]

    async def stop(self) -> None:
        """Commit and answer what has arrived, and end the committing thread."""
        for background_task in self._background_tasks:
            background_task.cancel()
        await asyncio.to_thread(self._commit.stop)
        self._log_counts()

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare for the first request, before the event loop runs."""
        loop.run_until_complete(self.start())

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Finish after the last request, when the event loop no longer runs."""
        loop.run_until_complete(self.stop())

    async def __call__(self, scope: Scope, proto: HTTPProtocol) -> None:
        """Serve one HTTP request."""
        path = scope.path
        if path == "/healthz":
            proto.response_empty(200, [])
        elif path == "/readyz":
            proto.response_empty(200 if self._commit.available else 503, [])
        elif is_opt_out(path):
            await self._opt_outs(scope, proto)
        else:
            await self._post_backs(scope, proto)

    async def _check_every_second(self) -> None:
        while True:
            metrics.receiver_available(self._commit.available)
            self._commit.release()
            self._bodies.give_up()
            await asyncio.sleep(1)

    async def _log_counts_regularly(self) -> None:
        logged = self.counts()
        while True:
            await asyncio.sleep(self._log_every)
            if self.counts() != logged:
                logged = self._log_counts()

    def _log_counts(self) -> dict[str, int]:
        counts = self.counts()
        told = " ".join(f"{name}={count}" for name, count in counts.items() if count)
        _log.info("Receiver %s since its start: %s", self._commit.receiver, told or "nothing received")
        return counts


def create_app(
    ledger: Ledger,
    signer: PostBackSigner,
    limits: Limits = _LIMITS,
    clock: Callable[[], datetime] = utc_now,
    texts: Texts = ENGLISH,
) -> ReceiverApp:
    """Create the application of one receiver process."""
    commit = GroupCommit(ledger, f"{socket.gethostname()}:{os.getpid()}", limits)
    return ReceiverApp(commit, ledger, signer, limits, clock, texts)


def app_of(settings: Settings) -> ReceiverApp:
    """Create the application from the settings of a deployment."""
    signer = PostBackSigner.from_settings(settings)
    return create_app(Ledger.from_settings(settings), signer, texts=page_texts(settings))
