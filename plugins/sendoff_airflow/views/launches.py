"""The list of launches, newest first, below what waits for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from sendoff.ledger import Launch
from sendoff.states import DispatchState, LaunchState
from sendoff_airflow.views.dependencies import REFRESH_FAST, REFRESH_SLOW, LedgerDep
from sendoff_airflow.views.holds import unanswered, visible_pauses
from sendoff_airflow.views.permissions import ViewerDep
from sendoff_airflow.views.request_models import Name, Number, Paged
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_PER_PAGE = 25

_OPEN = (DispatchState.PLANNED, DispatchState.IN_FLIGHT)


@router.get("/")
def list_launches(
    request: Request,
    viewer: ViewerDep,
    ledger: LedgerDep,
    campaign: Name = "",
    state: Name = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show the launches, newest first, below what waits for a person."""
    visible = viewer.visible(ledger.launches.campaigns())
    chosen = visible & {campaign} if campaign else visible
    states = [state] if state in list(LaunchState) else []
    total = ledger.launches.count_of(chosen, states=states)
    paged = Paged(number, LAUNCHES_PER_PAGE, total, {"campaign": campaign, "state": state})
    page_of_launches = ledger.launches.page(chosen, states=states, offset=paged.offset, limit=paged.size)
    rows = [(launch, ledger.dispatch_queries.states(launch.launch_key)) for launch in page_of_launches]
    return page(
        request,
        "launches.html",
        rows=rows,
        paged=paged,
        campaigns=sorted(visible),
        campaign=campaign,
        state=state,
        states=list(LaunchState),
        held=ledger.launches.count_of(visible, states=[LaunchState.HELD]),
        unanswered=unanswered(ledger, viewer, visible),
        doubted=ledger.stats.doubt_totals(visible),
        pauses=visible_pauses(ledger, viewer, visible),
        refresh=REFRESH_FAST if any(is_running(*row) for row in rows) else REFRESH_SLOW,
    )


def is_running(launch: Launch, states: Mapping[str, int]) -> bool:
    """Check whether a launch is sending, or may start sending at any moment."""
    return launch.state == LaunchState.RELEASED and any(states.get(state) for state in _OPEN)
