"""Waiting for what is certain to happen, however slow and busy the machine is; and ports that nobody else takes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import requests

PATIENCE = 120.0
"""Seconds for what must happen some time: far beyond what it takes where all else stands still for a while."""


def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {PATIENCE:g} seconds"
        time.sleep(0.05)


def answers(address: str) -> bool:
    """Say whether something answers well at an address."""
    try:
        return requests.get(address, timeout=PATIENCE).ok
    except requests.RequestException:
        return False


@contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a port of the loopback address: the system gives it to nobody, and a server that is told of it may listen.

    Until one does, connections are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers set it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
