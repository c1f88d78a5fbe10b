"""A person's history: why somebody got the messages of a campaign, or did not.

The identifier is asked for in the body of a request and stands in no address, since addresses are logged; nor is it
given back in a page or kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse

from sendoff.errors import AudienceError
from sendoff.ledger import Fate, Launch, Ledger
from sendoff_airflow.views.dependencies import HeavyDep, LedgerDep
from sendoff_airflow.views.permissions import ViewerDep
from sendoff_airflow.views.request_models import Asking, said
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_AT_ONCE = 50
LONGEST = 8.0
"""Seconds after which an answer is given with the launches that were looked at by then."""


@dataclass(frozen=True, slots=True)
class _Found:
    launch: Launch
    fate: Fate | None  # None: the launch names its people in another way
    sentence: str


@router.get("/person")
def person(request: Request, viewer: ViewerDep, book: LedgerDep) -> HTMLResponse:
    """Show the form that asks for an identifier."""
    seen = viewer.among(book.launches.campaigns())
    return page(request, "person.html", campaigns=sorted(seen), refresh=0)


@router.post("/person")
def history(
    request: Request,
    viewer: ViewerDep,
    asked: Annotated[Asking, Depends(said(Asking))],
    _: HeavyDep,
    book: LedgerDep,
) -> HTMLResponse:
    """Say for each launch, newest first, what became of one person."""
    seen = viewer.among(book.launches.campaigns())
    chosen = seen & {asked.campaign} if asked.campaign else seen
    total = book.launches.count_of(chosen)
    rows: list[_Found] = []
    started = time.monotonic()
    for launch in book.launches.page(chosen, offset=asked.offset, limit=LAUNCHES_AT_ONCE):
        if rows and time.monotonic() - started > LONGEST:
            break
        rows.append(_of_launch(book, launch, asked.identifier))
    looked_at = asked.offset + len(rows)
    return page(
        request,
        "history.html",
        rows=rows,
        first=asked.offset + 1,
        last=looked_at,
        total=total,
        offset=looked_at if looked_at < total else None,
    )


def _of_launch(book: Ledger, launch: Launch, identifier: str) -> _Found:
    try:
        fate = book.launches.why(launch.launch_key, identifier)
    except (AudienceError, OverflowError):
        return _Found(launch, None, f"not looked for: this launch names its people by {launch.identified_by}")
    return _Found(launch, fate, fate.sentence)
