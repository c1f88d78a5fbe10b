"""The main process: it opens the port, and starts and stops the other processes."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from messaging_service.delivery.worker import WorkerSettings
from messaging_service.store import Store
from messaging_service.subprocesses import start_child, stop_children
from messaging_service.undocumented_names import Names
from messaging_service.web_process import WebServer, WebSettings, configure

_LOG = logging.getLogger(__name__)


class PortTakenError(OSError):
    """The service cannot listen on the address."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of ``serve``; ``workers`` processes answer requests, and as many deliver messages."""

    host: str
    port: int
    worker: WorkerSettings
    names: Names
    admin_for_all: bool = False
    workers: int = 1

    def of_web(self, listener: socket.socket) -> WebSettings:
        """Return the settings of a web process that answers on a socket."""
        names, worker = dict(self.names.overrides), self.worker
        return WebSettings(
            listener.fileno(), worker.database, names, self.admin_for_all, worker.post_backs_anywhere
        )


def serve(settings: ServeSettings, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then return the exit status. Call ``ready`` with the address once it is open."""
    listener = _listen(settings.host, settings.port)
    address = _address(listener)
    store = Store(settings.worker.database)
    config = configure(store, settings.of_web(listener))
    # The server raises the signal again after it has stopped, so ignore it here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    children = _start_children(settings, listener)
    server = WebServer(config, lambda: bool(_ended(children)), lambda: ready(address))
    failed: list[subprocess.Popen[bytes]] = []
    try:
        server.run(sockets=[listener])
        failed = _ended(children)
    finally:
        stop_children(children)
        store.close()
        listener.close()
    for child in failed:
        _LOG.error(
            "a process of the service ended unexpectedly with status %s: %s", child.returncode, child.args
        )
    return 1 if failed else 0


def _start_children(settings: ServeSettings, listener: socket.socket) -> list[subprocess.Popen[bytes]]:
    """Start the delivery processes and the additional web processes."""
    deliveries = [start_child("delivery.worker", settings.worker) for _ in range(settings.workers)]
    web, inherited = settings.of_web(listener), (listener.fileno(),)
    return deliveries + [start_child("web_process", web, inherited) for _ in range(settings.workers - 1)]


def _ended(children: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    return [child for child in children if child.poll() is not None]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2_048)
    except OSError as error:
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
