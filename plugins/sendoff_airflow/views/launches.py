"""The launches, newest first, and above them what waits for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from sendoff.ledger import LAUNCH_STATES, Launch
from sendoff_airflow.views.brakes import seen_brakes
from sendoff_airflow.views.dependencies import LATER, SOON, LedgerDep
from sendoff_airflow.views.paging import Name, Number, Paged
from sendoff_airflow.views.permissions import ViewerDep
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_AT_ONCE = 25

_OPEN = ("planned", "in_flight")


@router.get("/")
def launches(
    request: Request,
    viewer: ViewerDep,
    book: LedgerDep,
    campaign: Name = "",
    state: Name = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show the launches, newest first, and above them what waits for a person."""
    seen = viewer.among(book.launches.campaigns())
    chosen = seen & {campaign} if campaign else seen
    states = [state] if state in LAUNCH_STATES else []
    total = book.launches.count_of(chosen, states=states)
    paged = Paged(number, LAUNCHES_AT_ONCE, total, {"campaign": campaign, "state": state})
    found = book.launches.page(chosen, states=states, offset=paged.offset, limit=paged.size)
    rows = [(launch, book.dispatches.states(launch.launch_key)) for launch in found]
    return page(
        request,
        "launches.html",
        rows=rows,
        paged=paged,
        campaigns=sorted(seen),
        campaign=campaign,
        state=state,
        states=LAUNCH_STATES,
        held=book.launches.count_of(seen, states=["held"]),
        doubted=book.counts.all_doubted(seen),
        brakes=seen_brakes(book, viewer, seen),
        refresh=SOON if any(is_running(*row) for row in rows) else LATER,
    )


def is_running(launch: Launch, states: Mapping[str, int]) -> bool:
    """Say whether requests of a launch are made, or may be made at any moment."""
    return launch.state == "released" and any(states.get(each) for each in _OPEN)
