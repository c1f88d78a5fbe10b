"""A deadline for a whole exchange. When it ends, the connection is cut, however much was received."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError


class Deadline:
    """Cuts the connection that this thread uses when an exchange takes too long.

    The libraries' timeouts apply to each read, so a server that sends a byte now and then never exceeds them.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._sock: socket.socket | None = None
        self._changing = threading.Lock()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._before = _deadline.set(self)
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _deadline.reset(self._before)
        self._timer.cancel()
        with self._changing:
            self._detach()

    def attach(self, sock: Any) -> bool:
        """Cut this connection when the deadline ends. Return False if it has already ended."""
        with self._changing:
            self._detach()
            # Duplicate the socket: TLS takes over the first one, and no one else can reach it during the handshake.
            self._sock = socket.socket(fileno=os.dup(sock.fileno()))
            return not self.is_over

    def _cut(self) -> None:
        with self._changing:
            self.is_over = True
            if self._sock is not None:
                with suppress(OSError):  # the other side closed it
                    self._sock.shutdown(socket.SHUT_RDWR)

    def _detach(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


_deadline: ContextVar[Deadline | None] = ContextVar("_deadline", default=None)


def enforce_deadline(session: requests.Session, url: str) -> None:
    """Make the deadline of an exchange cut the session's connections to a URL.

    A custom adapter is not replaced, and has no deadline.
    """
    adapter = session.get_adapter(url)
    if type(adapter) is HTTPAdapter:
        its = vars(adapter)
        own = _Adapter(
            its["_pool_connections"], its["_pool_maxsize"], adapter.max_retries, its["_pool_block"]
        )
        session.mount(url, own)


class _Adapter(HTTPAdapter):
    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _with_deadline(pool.ConnectionCls)
        return pool


class _DeadlineConnection:
    sock: Any

    def _new_conn(self) -> Any:
        """Connect. The proxy tunnel and TLS come after this, and they may hang too."""
        sock = super()._new_conn()  # type: ignore[misc]
        end = _deadline.get()
        if end is not None and not end.attach(sock):
            sock.close()
            raise ConnectTimeoutError(self, "the deadline was over before a connection was accepted")
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request on a new or an open connection, unless the deadline has ended."""
        if self.sock is not None and (end := _deadline.get()) and not end.attach(self.sock):
            raise ConnectTimeoutError(self, "the deadline was over before a connection was free")
        super().request(*args, **kwargs)  # type: ignore[misc]


@lru_cache(maxsize=8)
def _with_deadline(connection: type) -> type:
    if issubclass(connection, _DeadlineConnection):
        return connection
    return type(f"Deadline{connection.__name__}", (_DeadlineConnection, connection), {})
