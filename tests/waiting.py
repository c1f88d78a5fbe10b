"""Waits for events that are certain to happen, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

PATIENCE = 400.0
"""The seconds to wait for an event, far longer than it takes; no test passes because they are over."""


def until(is_so: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {PATIENCE:g} seconds"
        time.sleep(0.05)


def answers(address: str) -> bool:
    """Check whether an address answers successfully."""
    try:
        return requests.get(address, timeout=PATIENCE).ok
    except requests.RequestException:
        return False
