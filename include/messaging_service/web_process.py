"""The web server of the HTTP interface, in the process of ``serve`` and in additional processes on the same port.

An additional process reads its settings from one line of JSON on standard input, and inherits the listening socket.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from messaging_service.api.external import Service
from messaging_service.api.fault_responses import TRANSPORT
from messaging_service.app import create_app
from messaging_service.clock import ServiceClock
from messaging_service.store import Store
from messaging_service.subprocesses import settings_line, when_input_ends
from messaging_service.undocumented_names import Names

# Only the client should close an idle connection: if the server did, a request that is not read yet would be lost.
_IDLE_SECONDS = 3_600


class Protocol(HttpToolsProtocol):
    """Speaks HTTP, and passes the connection to the application, so that a fault can break it."""

    def on_message_begin(self) -> None:
        """Begin a request; put the transport into its scope as the extension TRANSPORT."""
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}


class WebServer(uvicorn.Server):
    """Calls ``ready`` when it listens, and stops when ``is_over`` returns true."""

    def __init__(
        self,
        config: uvicorn.Config,
        is_over: Callable[[], bool] = lambda: False,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._is_over = is_over
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and call ``ready``."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop."""
        return self._is_over() or await super().on_tick(counter)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The settings of a web process. ``listener``: the descriptor of its socket. ``names``: the overrides."""

    listener: int
    database: str
    names: Mapping[str, str]
    admin_for_all: bool
    post_backs_anywhere: bool


def configure(store: Store, settings: WebSettings) -> uvicorn.Config:
    """Return the configuration of a web server for this store."""
    service = Service(store, ServiceClock(store), Names(settings.names), settings.post_backs_anywhere)
    app = create_app(service, admin_for_all=settings.admin_for_all)
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=_IDLE_SECONDS,
    )


def main() -> None:
    """Answer requests until standard input ends."""
    settings = WebSettings(**orjson.loads(settings_line()))
    store = Store(settings.database)
    server = WebServer(configure(store, settings))
    # The parent process decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    when_input_ends(lambda: setattr(server, "should_exit", True))
    try:
        server.run(sockets=[socket.socket(fileno=settings.listener)])
    finally:
        store.close()


if __name__ == "__main__":
    main()
