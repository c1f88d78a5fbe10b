"""What the routes are given: the ledger, a launch that somebody may see, and a place for what takes much memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from threading import BoundedSemaphore
from typing import Annotated

from fastapi import Depends

from sendoff.ledger import Launch, Ledger
from sendoff_airflow.hooks.stores import ledger
from sendoff_airflow.views.permissions import Viewer, not_there, too_busy

SOON, LATER = 4, 30
"""Seconds until a page looks again: while requests are made, and otherwise."""

_heavy = BoundedSemaphore(2)


def open_ledger() -> Iterator[Ledger]:
    """Open the ledger of this deployment for one request."""
    with closing(ledger()) as book:
        yield book


LedgerDep = Annotated[Ledger, Depends(open_ledger)]


async def heavy_work() -> AsyncIterator[None]:
    """Let two requests at a time do what takes much memory; 503 at once for one that would have to wait.

    Not in a thread: what waits in one keeps it from the work that it waits for, and from every other route.
    """
    if not _heavy.acquire(blocking=False):
        raise too_busy()
    try:
        yield
    finally:
        _heavy.release()


HeavyDep = Annotated[
    None, Depends(heavy_work, scope="function")
]  # not while somebody slowly reads the answer


def seen_launch(book: Ledger, viewer: Viewer, launch_key: str) -> Launch:
    """Give a launch that somebody may see; 404 for one that is not there, and for one that they may not see."""
    found = book.launches.find(launch_key) if launch_key.isprintable() else None  # PostgreSQL takes no NUL
    if found is None:
        raise not_there()
    viewer.check_sees(found.campaign)
    return found
