"""The dependencies of the routes: the ledger, a launch that the user may see, and a limit on expensive work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from threading import BoundedSemaphore
from typing import Annotated

from fastapi import Depends

from sendoff.ledger import LaunchRecord, Ledger
from sendoff_airflow.hooks.ledger import open_ledger
from sendoff_airflow.views.web.permissions import Viewer, not_there, too_busy

REFRESH_FAST, REFRESH_SLOW = 4, 30
"""Seconds until a page refreshes: while requests are made, and otherwise."""

_expensive = BoundedSemaphore(2)


def ledger_of_request() -> Iterator[Ledger]:
    """Open the ledger of this deployment for one request."""
    with closing(open_ledger()) as ledger:
        yield ledger


LedgerDep = Annotated[Ledger, Depends(ledger_of_request)]


async def limit_expensive_work() -> AsyncIterator[None]:
    """Limit work that takes much memory to two requests at a time. Raise 503 at once for any further request.

    This does not run in a thread, because waiting requests would occupy the threads that other routes need.
    """
    if not _expensive.acquire(blocking=False):
        raise too_busy()
    try:
        yield
    finally:
        _expensive.release()


# Released before the response is sent, so that a slow reader does not hold it.
ExpensiveDep = Annotated[None, Depends(limit_expensive_work, scope="function")]


def visible_launch(ledger: Ledger, viewer: Viewer, launch_key: str) -> LaunchRecord:
    """Return a launch. Raise 404 if there is none, or if the user may not see it."""
    launch = ledger.launches.find(launch_key) if launch_key.isprintable() else None  # PostgreSQL takes no NUL
    if launch is None:
        raise not_there()
    viewer.check_sees(launch.campaign)
    return launch
