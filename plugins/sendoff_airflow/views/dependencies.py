"""What the routes are given: the ledger, a launch that somebody may see, and a place for what takes much memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from threading import BoundedSemaphore
from typing import Annotated

from fastapi import Depends

from sendoff.ledger import Launch, Ledger
from sendoff_airflow.hooks.ledger import open_ledger
from sendoff_airflow.views.permissions import Viewer, not_there, too_busy

REFRESH_FAST, REFRESH_SLOW = 4, 30
"""Seconds until a page looks again: while requests are made, and otherwise."""

_expensive = BoundedSemaphore(2)


def ledger_of_request() -> Iterator[Ledger]:
    """Open the ledger of this deployment for one request."""
    with closing(open_ledger()) as ledger:
        yield ledger


LedgerDep = Annotated[Ledger, Depends(ledger_of_request)]


async def limit_expensive_work() -> AsyncIterator[None]:
    """Let two requests at a time do what takes much memory; 503 at once for one that would have to wait.

    Not in a thread: what waits in one keeps it from the work that it waits for, and from every other route.
    """
    if not _expensive.acquire(blocking=False):
        raise too_busy()
    try:
        yield
    finally:
        _expensive.release()


ExpensiveDep = Annotated[
    None, Depends(limit_expensive_work, scope="function")
]  # not while somebody slowly reads the answer


def visible_launch(ledger: Ledger, viewer: Viewer, launch_key: str) -> Launch:
    """Return a launch that somebody may see; 404 for one that is not there, and for one that they may not see."""
    launch = ledger.launches.find(launch_key) if launch_key.isprintable() else None  # PostgreSQL takes no NUL
    if launch is None:
        raise not_there()
    viewer.check_sees(launch.campaign)
    return launch
