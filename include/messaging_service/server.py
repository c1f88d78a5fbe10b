"""Opens the port, starts the deliveries process, and stops both."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from messaging_service.app import create_app
from messaging_service.breakdowns import TRANSPORT
from messaging_service.clock import Clock
from messaging_service.external import Service
from messaging_service.names import Names
from messaging_service.store import Store
from messaging_service.worker import WorkerSettings, to_line

_LOG = logging.getLogger(__name__)
_STOP_WITHIN = 5.0


class PortTakenError(OSError):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What ``serve`` needs to know."""

    host: str
    port: int
    worker: WorkerSettings
    names: Names
    admin_for_all: bool = False


class Protocol(HttpToolsProtocol):
    """Speaks HTTP, and gives the application the connection under a request, so that it can break it."""

    def on_message_begin(self) -> None:
        """Begin a request; its scope carries the transport under the extension TRANSPORT."""
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}


class _Server(uvicorn.Server):
    """Says when it listens, and stops when the deliveries process has ended by itself."""

    def __init__(
        self, config: uvicorn.Config, worker: subprocess.Popen[bytes], ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._worker = worker
        self._ready = ready
        self.worker_failed = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        if self._worker.poll() is not None and not self.should_exit:
            self.worker_failed = True
            return True
        return await super().on_tick(counter)


def serve(settings: ServeSettings, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, and give the exit status; ``ready`` is told the address once it is open."""
    listener = _listen(settings.host, settings.port)
    store = Store(settings.worker.database)
    service = Service(store, Clock(store), settings.names)
    app = create_app(service, admin_for_all=settings.admin_for_all)
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    # The server raises the signal again when it has stopped; by then it has done its work.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    worker = _start_worker(settings.worker)
    server = _Server(config, worker, lambda: ready(_address(listener)))
    try:
        server.run(sockets=[listener])
    finally:
        _stop_worker(worker)
        store.close()
        listener.close()
    if server.worker_failed:
        _LOG.error("the deliveries process ended by itself, with status %s", worker.returncode)
    return 1 if server.worker_failed else 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2_048)
    except OSError as error:
        raise PortTakenError(f"{host}:{port} cannot be listened on: {error.strerror}") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _start_worker(settings: WorkerSettings) -> subprocess.Popen[bytes]:
    # A group of its own, so that Ctrl-C reaches only this process, which then closes the other's input.
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "messaging_service.worker"], stdin=subprocess.PIPE, process_group=0
    )
    assert worker.stdin is not None
    worker.stdin.write(to_line(settings))
    worker.stdin.flush()
    return worker


def _stop_worker(worker: subprocess.Popen[bytes]) -> None:
    if worker.stdin is not None:
        worker.stdin.close()
    try:
        worker.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
