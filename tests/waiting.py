"""Waiting for what is certain to happen, however slow and busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests

PATIENCE = 180.0
"""Seconds for what must happen some time, far beyond what it takes; no test passes because they are over."""


def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {PATIENCE:g} seconds"
        time.sleep(0.02)


def answers(address: str) -> bool:
    """Say whether something answers well at an address."""
    try:
        return requests.get(address, timeout=PATIENCE).ok
    except requests.RequestException:
        return False
