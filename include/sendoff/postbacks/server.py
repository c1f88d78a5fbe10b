"""The receiver's processes: they share an address, start from their parent's settings, and end with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server import MPServer
from starlette.applications import Starlette

from sendoff.errors import PermanentError, RetryableError, SettingsError
from sendoff.ledger import Ledger
from sendoff.postbacks.receiver import app_of
from sendoff.service import PostBackSigner
from sendoff.settings import Settings
from sendoff.telemetry import exporters, logs

log = logging.getLogger(__name__)

_LEDGER_SECONDS = 5  # for the ledger to answer before the receiver starts without having heard of it
_HEAD_BYTES = 16_384  # the request line and all headers; each connection may hold as much
_HEADER_MILLISECONDS = 30_000  # also ends an idle connection: longer than a proxy keeps one
_STOP_SECONDS = 50  # to answer and store what has arrived takes 10 and 30 at most; then a worker is killed
_CONNECTIONS = 2_048  # at once, for each worker


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
    PostBackSigner.from_settings(settings)
    _check_ledger(settings.ledger())
    server = Server(
        "sendoff receiver",
        address=_resolve_bind_address(host, port),
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
        server.serve(target_loader=partial(_worker_main, make_app, settings), wrap_loader=False)
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


def _resolve_bind_address(host: str, port: int) -> str:
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


def _worker_main(make_app: Callable[[Settings], Starlette], settings: Settings) -> Starlette:
    _take_signals()
    if (parent := parent_process()) is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()
    exporters.start(is_scraped=True)
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


def _exit_with_parent(parent: int) -> None:
    """Stop this worker when its parent is gone, even if it was killed: it would hold the port for ever."""
    wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)
