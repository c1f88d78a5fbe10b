"""Deadlines of exchanges: they cut the connection of their own exchange, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from sendoff.service.deadline import Deadline, _deadline

from ...waiting import PATIENCE

SOON = 0.05


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    near, far = socket.socketpair()
    far.settimeout(PATIENCE)
    with near, far:
        yield near, far


def test_a_deadline_cuts_the_connection_that_uses_it(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    with Deadline(SOON) as deadline:
        assert deadline.attach(near)
        assert far.recv(1) == b""
        assert deadline.is_over
        assert not deadline.attach(near)


def test_the_deadline_that_ends_first_is_kept_first(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    with Deadline(10 * PATIENCE) as long, Deadline(SOON) as short:
        assert short.attach(near)
        assert far.recv(1) == b""
        assert not long.is_over


def test_an_exchange_that_has_ended_is_not_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    with Deadline(SOON) as ended:
        pass
    with Deadline(2 * SOON) as later:
        assert later.attach(near)
        assert far.recv(1) == b""
    assert not ended.is_over


def test_the_deadline_of_a_thread_is_that_of_its_innermost_exchange() -> None:
    with Deadline(PATIENCE) as outer:
        with Deadline(PATIENCE) as inner:
            assert _deadline.get() is inner
        assert _deadline.get() is outer
    assert _deadline.get() is None


def test_a_deadline_keeps_no_connection_open(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.setblocking(False)
    with Deadline(PATIENCE) as deadline:
        deadline.attach(near)
        near.close()
        with pytest.raises(BlockingIOError):
            far.recv(1)
        other, _ = socket.socketpair()
        with other, _:
            deadline.attach(other)
            assert far.recv(1) == b""
    assert deadline._sock is None
