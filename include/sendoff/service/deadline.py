"""Connections that leave few requests in doubt.

A deadline for a whole exchange cuts its connection, however much was received. A connection that was idle is not used
again.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from time import monotonic
from types import TracebackType
from typing import Any, Self

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError

_MAX_IDLE = 1.0
"""Seconds after which a connection is not used again.

Servers close idle connections, many after two or five seconds, and routers forget them. A request that crosses with
the end of its connection gets no answer, and would be in doubt.
"""


class Deadline:
    """Cuts the connection that this thread uses when an exchange takes too long.

    The libraries' timeouts apply to each read, so a server that sends a byte now and then never exceeds them.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self.is_connecting = False  # or failed to: then no part of the request was sent
        self.ends_at = math.inf
        self._seconds = seconds
        self._sock: socket.socket | None = None
        self._changing = threading.Lock()

    def __enter__(self) -> Self:
        self._before = _deadline.set(self)
        self.ends_at = monotonic() + self._seconds
        _watchdog.watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _deadline.reset(self._before)
        _watchdog.forget(self)
        with self._changing:
            self._detach()

    def attach(self, sock: Any) -> bool:
        """Cut this connection when the deadline ends. Return False if it has already ended."""
        with self._changing:
            self._detach()
            # Duplicate the socket: TLS takes over the first one, and no one else can reach it during the handshake.
            self._sock = socket.socket(fileno=os.dup(sock.fileno()))
            return not self.is_over

    def cut(self) -> None:
        """End the deadline now."""
        with self._changing:
            self.is_over = True
            if self._sock is not None:
                with suppress(OSError):  # the other side closed it
                    self._sock.shutdown(socket.SHUT_RDWR)

    def _detach(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class _Watchdog:
    """One thread that ends the deadlines of all exchanges of this process."""

    def __init__(self) -> None:
        self.watched: set[Deadline] = set()
        self._changed = threading.Condition()
        self._wakes_at: float | None = None  # None: the thread was not started yet

    def watch(self, deadline: Deadline) -> None:
        with self._changed:
            self.watched.add(deadline)
            if self._wakes_at is None:
                threading.Thread(target=self._run, name="deadlines", daemon=True).start()
                self._wakes_at = deadline.ends_at
            elif deadline.ends_at < self._wakes_at:
                self._changed.notify()

    def forget(self, deadline: Deadline) -> None:
        with self._changed:  # the thread may wake in vain later, which costs less than waking it now
            self.watched.discard(deadline)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = monotonic()
                over = [deadline for deadline in self.watched if deadline.ends_at <= now]
                self.watched.difference_update(over)
                if not over:
                    self._wakes_at = min((deadline.ends_at for deadline in self.watched), default=math.inf)
                    self._changed.wait(None if self._wakes_at == math.inf else self._wakes_at - now)
            for deadline in over:
                deadline.cut()


_watchdog = _Watchdog()


def _start_anew() -> None:
    """Drop the watchdog that a forked process inherits: its thread is in the parent only."""
    global _watchdog  # noqa: PLW0603 - a lock held at the time of the fork stays locked forever
    _watchdog = _Watchdog()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)

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
    _answered_at = -math.inf

    @property
    def is_connected(self) -> bool:
        """Whether this connection may take another request. urllib3 asks before it uses a connection again."""
        return super().is_connected and monotonic() - self._answered_at < _MAX_IDLE  # type: ignore[misc]

    def getresponse(self) -> Any:
        response = super().getresponse()  # type: ignore[misc]
        self._answered_at = monotonic()
        return response

    def connect(self) -> None:
        """Open the connection, with the proxy tunnel and TLS. A request is written only after that."""
        end = _deadline.get()
        if end is not None:
            end.is_connecting = True
        super().connect()  # type: ignore[misc]
        if end is not None:
            end.is_connecting = False

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
