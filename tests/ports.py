"""Ports for test servers. No other process takes a port before the server uses it, or while the server is down."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_RANGE = range(20_000, 32_000)  # the system does not assign these ports automatically
_marks: list[socket.socket] = []


@contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a port of the loopback address. The system does not assign it, but a server can listen on it explicitly.

    Until a server listens, connections are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like the servers
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def reserve_ports(count: int = 1) -> list[int]:
    """Reserve consecutive ports of the loopback address until this process ends.

    A UDP socket with the same number marks a reserved port. All test processes can see it, and it does not prevent a
    server from listening with TCP.
    """
    for _ in range(1_000):
        first = random.SystemRandom().choice(_RANGE)
        ports = list(range(first, first + count))
        if _reserve(ports):
            return ports
    raise OSError(f"no {count} consecutive ports of the loopback address are free")


def _reserve(ports: list[int]) -> bool:
    marks: list[socket.socket] = []
    try:
        for port in ports:
            marks.append(socket.socket(type=socket.SOCK_DGRAM))
            marks[-1].bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        for mark in marks:
            mark.close()
        return False
    _marks.extend(marks)
    return True


def is_free(port: int) -> bool:
    """Check whether a server could listen on a port. A killed server releases its port only when it has fully ended."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
