"""Ports for servers of tests: nobody else takes one between its choice and its use, nor while its server is down."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_RANGE = range(20_000, 32_000)  # the system gives none of these to whoever asks for any port
_marks: list[socket.socket] = []


@contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a port of the loopback address: the system gives it to nobody, and a server that is told of it may listen.

    Until one does, connections are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers set it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def reserve_ports(count: int = 1) -> list[int]:
    """Reserve ports of the loopback address that follow each other, until this process ends.

    The mark of a reserved port is a socket of UDP at the same number, which every test process sees, and which keeps no
    server from listening with TCP.
    """
    for _ in range(1_000):
        first = random.SystemRandom().choice(_RANGE)
        ports = list(range(first, first + count))
        if _reserve(ports):
            return ports
    raise OSError(f"no {count} ports of the loopback address that follow each other are free")


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
    """Say whether a server could listen on a port: one that was killed lets go of it when it is wholly gone."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
