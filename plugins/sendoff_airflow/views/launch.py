"""The pages of one launch: its report, its requests, the decisions about it, and its preview."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from starlette.responses import HTMLResponse

from sendoff.dispatch import awaited_role
from sendoff.errors import NotFoundError
from sendoff.figures import LaunchStats
from sendoff.ledger import Launch, Ledger, Selection
from sendoff.report import blocks_as_html, css, sections_as_html
from sendoff.states import DispatchState, LaunchState, Stage
from sendoff_airflow.views.dependencies import (
    REFRESH_FAST,
    REFRESH_SLOW,
    ExpensiveDep,
    LedgerDep,
    visible_launch,
)
from sendoff_airflow.views.flow import checked, requests_by_state, rows_to_people
from sendoff_airflow.views.holds import acts_on, unanswered, visible_run, why_held
from sendoff_airflow.views.launches import standings_of
from sendoff_airflow.views.permissions import ViewerDep
from sendoff_airflow.views.request_models import Name, Number, Paged
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

REQUESTS_PER_PAGE = 50
MAX_PEOPLE_PREVIEWED = 20_000_000
"""The most people in a launch for a preview here. A larger one would take too much of the API server's memory."""


@router.get("/launches/{launch_key}")
def show_launch(
    request: Request,
    viewer: ViewerDep,
    ledger: LedgerDep,
    launch_key: str,
    state: Name = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show one launch from its query to its report."""
    launch = visible_launch(ledger, viewer, launch_key)
    standing = standings_of(ledger, Selection.of([launch]))[launch.launch_key]
    figures, states = _figures_of(ledger, launch), standing.requests
    left_out = {} if launch.is_chosen_by_service else ledger.launches.suppressed_sizes(launch.launch_key)
    parts = ledger.dispatch_queries.segment_sizes(launch.launch_key)
    chosen = [state] if state in list(DispatchState) else []
    total = sum(states.get(name, 0) for name in chosen) if chosen else sum(states.values())
    paged = Paged(number, REQUESTS_PER_PAGE, total, {"state": state})
    decisions = ledger.audit_log.of_launch(launch.launch_key)
    return page(
        request,
        "launch.html",
        launch=launch,
        standing=standing,
        may_steer=viewer.may_steer(launch.campaign),
        acts=acts_on(launch, role := awaited_role(launch, decisions)),
        role=role,
        since=ledger.audit_log.newest(launch.launch_key),
        why_held=why_held(decisions) if launch.state == LaunchState.HELD else None,
        unanswered=unanswered(ledger, viewer, [launch.campaign], launch.launch_key),
        pauses=ledger.pauses.of_connection(launch.connection),
        people=None
        if launch.is_chosen_by_service
        else blocks_as_html(checked(rows_to_people(launch, left_out, sum(size for _, _, size in parts)))),
        requests=blocks_as_html(checked(requests_by_state(states, launch.segments))),
        states=states,
        doubts=states.get(DispatchState.IN_DOUBT, 0),
        reported_at=figures.as_of if figures else None,
        report=_report(figures) if figures else "",
        run=visible_run(viewer, launch),
        rows=ledger.dispatch_queries.requests(
            launch.launch_key, states=chosen, offset=paged.offset, limit=REQUESTS_PER_PAGE
        ),
        paged=paged,
        state=state,
        dispatch_states=list(DispatchState),
        decisions=decisions,
        refresh=REFRESH_FAST if standing.stage is Stage.SENDING else REFRESH_SLOW,
    )


@router.get("/launches/{launch_key}/preview")
def show_preview(
    request: Request, viewer: ViewerDep, _: ExpensiveDep, ledger: LedgerDep, launch_key: str
) -> HTMLResponse:
    """Show the preview of a launch as it was frozen, as the approvers see it."""
    from sendoff.launch import preview_launch
    from sendoff.report import describe_preview
    from sendoff_airflow.hooks.service import rate_of

    launch = visible_launch(ledger, viewer, launch_key)
    text = None
    if launch.audience <= MAX_PEOPLE_PREVIEWED:
        preview = describe_preview(preview_launch(ledger, launch.launch_key, rate=rate_of(launch.connection)))
        text = blocks_as_html(preview.lead) + sections_as_html(preview.sections)
    return page(request, "preview.html", launch=launch, text=text, most=MAX_PEOPLE_PREVIEWED)


@router.get("/report.css")
def report_style(_: ViewerDep) -> Response:
    """Return the style sheet of reports."""
    return Response(css(), media_type="text/css", headers={"Cache-Control": "private, max-age=3600"})


def _figures_of(ledger: Ledger, launch: Launch) -> LaunchStats | None:
    """Return the figures of the newest report, or None."""
    try:
        return ledger.verdicts.figures(launch.launch_key)
    except NotFoundError:
        return None


def _report(figures: LaunchStats) -> Markup:
    """Return a report as HTML, without the sections that the page already shows."""
    from sendoff.report import describe_launch

    document = describe_launch(figures)
    sections = [section for section in document.sections if section.name not in ("rows", "words")]
    return blocks_as_html(document.lead) + sections_as_html(sections)
