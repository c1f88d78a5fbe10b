"""The receiver's processes: they share an address, start with their parent's settings, and end with it."""

from __future__ import annotations

import asyncio
import gc
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

from sendoff.errors import PermanentError, RetryableError, SettingsError
from sendoff.ledger import Ledger
from sendoff.postbacks.opt_out import NOT_ASKED
from sendoff.postbacks.opt_out_texts import page_texts
from sendoff.postbacks.receiver import ReceiverApp, app_of
from sendoff.service import PostBackSigner
from sendoff.settings import Settings
from sendoff.telemetry import exporters, logs

_log = logging.getLogger(__name__)

_LEDGER_SECONDS = 5  # maximum wait for the ledger's answer at the start
_HEAD_BYTES = 16_384  # the request line and all headers; each connection may use as much
_HEADER_MILLISECONDS = 30_000  # also ends idle connections; longer than a proxy keeps one
_STOP_SECONDS = 50  # answering and storing takes at most 10 and 30 seconds; after this, a worker is killed
_CONNECTIONS = 2_048  # per worker
_OBJECTS = 50_000  # new ones before a collection, which rarely finds one; with Python's 700, it takes 5 % of the time


class Server(MPServer):
    """Granian, except that a worker whose process has ended counts as stopped.

    Granian reaps a worker in one thread and checks in another whether it still runs. If the first thread has not noted
    the end yet, the worker seems to be alive. Granian then logs that it killed a worker that "refused to gracefully
    stop" (Granian 2.8, ``AbstractServer._stop_workers``). The sentinel of a process is never late.
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
    make_app: Callable[[Settings], ReceiverApp] = app_of,
) -> None:
    """Serve post-backs until SIGINT or SIGTERM, from ``workers`` processes that share the address.

    Stopping answers and stores the requests that have arrived. Raise SettingsError if a setting is missing or wrong, or
    the address cannot be used. Raise UnusableLedgerError if someone must correct the ledger, such as one without
    tables, and GateError if the ledger was moved. If it is unavailable, wait for it. ``make_app`` is called in each
    worker process.
    """
    settings.require("public_url", "post_back_secrets", "ledger_url")
    PostBackSigner.from_settings(settings)
    page_texts(settings)
    _check_ledger(settings)
    server = Server(
        "sendoff receiver",
        address=_resolve_bind_address(host, port),
        port=port,
        workers=workers,
        interface=Interfaces.RSGI,
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
        if not server.interrupt_signal:  # otherwise a worker only ended before its parent
            raise


def _check_ledger(settings: Settings) -> None:
    """Raise the ledger's permanent error, if it has one. If the ledger does not answer for some seconds, go on.

    Without the erasure secret, post-backs and opt-outs can be stored, so only log that.
    """
    found: list[PermanentError] = []

    def check() -> None:
        try:
            with closing(Ledger.from_settings(settings)) as ledger:
                ledger.post_backs.check()
                ledger.pauses.check_not_moved()
                try:
                    ledger.erasures.check_secret()
                except SettingsError as error:
                    _log.error(NOT_ASKED, error)
        except RetryableError as error:
            _log.warning("%s; answering 503 until it is back", error)
        except PermanentError as error:
            found.append(error)

    checking = threading.Thread(target=check, name="check-ledger", daemon=True)
    checking.start()
    checking.join(_LEDGER_SECONDS)
    if found:
        raise found[0]


def _resolve_bind_address(host: str, port: int) -> str:
    """Return a host's IP address if the port is free; the server would print a stack trace if not."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((address[0], port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cannot listen on {host}, port {port}: {reason}") from None
    return str(address[0])


def _worker_main(make_app: Callable[[Settings], ReceiverApp], settings: Settings) -> ReceiverApp:
    _take_signals()
    if (parent := parent_process()) is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()
    exporters.start(is_scraped=True)
    app = make_app(settings)
    gc.collect()
    gc.freeze()  # no collection looks at the modules again, which takes a quarter of the event loop's time
    gc.set_threshold(_OBJECTS)
    return app


def _take_signals() -> None:
    """Make signals end a worker from its first moment, and ignore repeated ones.

    A worker starts with its parent's handlers, which would swallow signals that arrive before it serves. A terminal, a
    supervisor, and the parent may each send a signal. The server's own handler hangs forever, with all threads, when it
    is called a third time, or a second time before it serves (Granian 2.8, ``WorkerSignal.set``).
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
    """Stop this worker when its parent is gone or killed; it would hold the port forever."""
    wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)
