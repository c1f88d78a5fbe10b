"""One launch: from its query to its report, each of its requests, what was decided of it, and what it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import HTMLResponse

from sendoff.dispatch import role_awaited
from sendoff.errors import NotFoundError
from sendoff.figures import Figures
from sendoff.ledger import DISPATCH_STATES, Launch, Ledger
from sendoff_airflow.views.dependencies import LATER, SOON, HeavyDep, LedgerDep, seen_launch
from sendoff_airflow.views.flow import requests_by_state, rows_to_people, unknowable_of, verdicts_of
from sendoff_airflow.views.held import acts_on, seen_run, why_held
from sendoff_airflow.views.launches import is_running
from sendoff_airflow.views.paging import Name, Number, Paged
from sendoff_airflow.views.permissions import ViewerDep
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

REQUESTS_AT_ONCE = 50
MOST_PEOPLE_PREVIEWED = 20_000_000
"""People of a launch whose preview is made here; that of a larger one takes the API server too much memory."""


@router.get("/launches/{launch_key}")
def launch(
    request: Request,
    viewer: ViewerDep,
    book: LedgerDep,
    launch_key: str,
    state: Name = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show one launch from its query to its report."""
    found = seen_launch(book, viewer, launch_key)
    figures, states = _figures_of(book, found), book.dispatches.states(found.launch_key)
    left_out = {} if found.is_chosen_by_service else book.launches.left_out_sizes(found.launch_key)
    parts = book.dispatches.parts(found.launch_key)
    chosen = [state] if state in DISPATCH_STATES else []
    total = sum(states.get(each, 0) for each in chosen) if chosen else sum(states.values())
    paged = Paged(number, REQUESTS_AT_ONCE, total, {"state": state})
    decisions = book.decisions.of_launch(found.launch_key)
    return page(
        request,
        "launch.html",
        launch=found,
        may_steer=viewer.may_steer(found.campaign),
        acts=acts_on(found, role := role_awaited(found, decisions)),
        role=role,
        since=book.decisions.newest(found.launch_key),
        why_held=why_held(decisions) if found.state == "held" else None,
        brakes=book.brakes.on(found.connection),
        people=None
        if found.is_chosen_by_service
        else rows_to_people(found, left_out, sum(size for _, _, size in parts)),
        requests=requests_by_state(states, found.segments),
        states=states,
        doubts=states.get("in_doubt", 0),
        figures=figures,
        verdicts=verdicts_of(figures) if figures else None,
        unknowable=unknowable_of(figures) if figures else (),
        charts=_charts(figures),
        points=_points(figures),
        run=seen_run(viewer, found),
        rows=book.launches.requests(
            found.launch_key, states=chosen, offset=paged.offset, limit=REQUESTS_AT_ONCE
        ),
        paged=paged,
        state=state,
        dispatch_states=DISPATCH_STATES,
        decisions=decisions,
        refresh=SOON if is_running(found, states) else LATER,
    )


@router.get("/launches/{launch_key}/preview")
def preview(
    request: Request, viewer: ViewerDep, _: HeavyDep, book: LedgerDep, launch_key: str
) -> HTMLResponse:
    """Show what a launch sends as it was frozen: the text that those read who must agree to it."""
    from sendoff.launch import as_markdown, preview_launch
    from sendoff_airflow.hooks.service import rate_of
    from sendoff_airflow.views.markdown import as_html

    found = seen_launch(book, viewer, launch_key)
    text = None
    if found.audience <= MOST_PEOPLE_PREVIEWED:
        text = as_html(as_markdown(preview_launch(book, found.launch_key, rate=rate_of(found.connection))))
    return page(request, "preview.html", launch=found, text=text, most=MOST_PEOPLE_PREVIEWED)


@router.get("/charts.css")
def chart_colours(_: ViewerDep) -> Response:
    """Give the colours of the charts."""
    from sendoff_airflow.views.charts import colours

    return Response(colours(), media_type="text/css", headers={"Cache-Control": "private, max-age=3600"})


def _figures_of(book: Ledger, launch: Launch) -> Figures | None:
    """Give the newest report of a launch, if there is one."""
    try:
        return book.verdicts.figures(launch.launch_key)
    except NotFoundError:
        return None


def _charts(figures: Figures | None) -> Mapping[str, Any]:
    from sendoff_airflow.views.charts import charts_of

    return charts_of(figures) if figures else {}


def _points(figures: Figures | None) -> Sequence[tuple[Any, int, int]]:
    """Give the points of the timeline as its chart has them."""
    from sendoff.report import points_of

    return points_of(figures.timeline)[1] if figures else ()
