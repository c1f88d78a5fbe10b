"""The pages of one launch: its report, its requests, the decisions about it, and its preview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from starlette.responses import HTMLResponse

from sendoff.campaign import Campaign
from sendoff.dispatch import newest_of
from sendoff.launch import Standing, has_begun
from sendoff.ledger import LaunchRecord, Ledger, Selection
from sendoff.report import blocks_as_html, css, sections_as_html
from sendoff.states import DecisionKind, DispatchState, LaunchState, Stage
from sendoff_airflow.views.airflow_state.deadlines import goes_out
from sendoff_airflow.views.facts.decidable import decidable
from sendoff_airflow.views.facts.flow import checked, requests_by_state, rows_to_people
from sendoff_airflow.views.facts.got_nothing import got_nothing
from sendoff_airflow.views.facts.holds import standings_of, stuck_at, unanswered
from sendoff_airflow.views.facts.launch_rows import LaunchRow, sends_nothing
from sendoff_airflow.views.facts.messages import email_page, messages_of_launch
from sendoff_airflow.views.pages.results import downloads, outcomes_of, results_of
from sendoff_airflow.views.web.dependencies import (
    REFRESH_FAST,
    REFRESH_SLOW,
    ExpensiveDep,
    LedgerDep,
    visible_launch,
)
from sendoff_airflow.views.web.permissions import ViewerDep
from sendoff_airflow.views.web.reader import ZoneDep
from sendoff_airflow.views.web.request_models import Name, Number, Paged
from sendoff_airflow.views.web.templates import page

router = APIRouter(default_response_class=HTMLResponse)

REQUESTS_PER_PAGE = 50
MOST_OF_A_PERIOD = 20
"""The most launches of one period that a page links to: the last resends."""
MAX_PEOPLE_PREVIEWED = 20_000_000
"""The most people in a launch for a preview here. A larger one would take too much of the API server's memory."""

_HALTED = {
    LaunchState.STOPPED: [DecisionKind.STOPPED],
    LaunchState.REJECTED: [DecisionKind.REJECTED],
    LaunchState.PAUSED: [DecisionKind.PAUSED],
}
_FOLDED = ("texts", "gates", "request")
"""The sections of a preview that its page folds. The page shows the texts as mock-ups."""

_NOT_ACCEPTED = [state for state in DispatchState if state != DispatchState.ACCEPTED]
_WORDS = {DispatchState.PLANNED: "not made", DispatchState.IN_FLIGHT: "being made"}
_REPEATED = {DispatchState.PLANNED: "planned again", DispatchState.REFUSED: "refused"}
"""What became of requests that are in doubt by their known result alone."""
_FILTERS = {"all": list(DispatchState), **{state.value: [state] for state in DispatchState}}
"""The states of requests that each filter shows. Without a filter, the page shows those that were not accepted."""


@router.get("/launches/{launch_key}")
def show_launch(  # noqa: PLR0913 - the parts of a request
    request: Request,
    viewer: ViewerDep,
    ledger: LedgerDep,
    launch_key: str,
    zone: ZoneDep,
    state: Name = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show one launch from its query to its report."""
    launch = visible_launch(ledger, viewer, launch_key)
    same_period = _of_same_period(ledger, launch)
    stands = standings_of(ledger, Selection.of([launch, *same_period]))
    standing = stands[launch.launch_key]
    states, known = standing.requests, standing.known
    doubts = states.get(DispatchState.IN_DOUBT, 0)
    left_out = {} if launch.is_chosen_by_service else ledger.launches.suppressed_sizes(launch.launch_key)
    parts = ledger.dispatch_queries.segment_sizes(launch.launch_key)
    variations = [part.variation for part in parts]
    repeated = {
        how: states[name] - known.get(name, 0)
        for name, how in _REPEATED.items()
        if states.get(name, 0) > known.get(name, 0)
    }
    is_begun = has_begun(known)
    chosen = _FILTERS.get(state, _NOT_ACCEPTED)
    total = sum(states.get(name, 0) for name in chosen)
    paged = Paged(number, REQUESTS_PER_PAGE, total, {"state": state})
    deciding = decidable(ledger, viewer, launch, states, variations)
    campaign = Campaign.frozen(launch.definition)
    decide = campaign.decide
    [listed] = ledger.overview.page(Selection.of([launch]), limit=1)
    return page(
        request,
        "launch.html",
        launch=launch,
        standing=standing,
        may_steer=viewer.may_steer(launch.campaign),
        deciding=deciding,
        stuck=stuck_at(viewer, ledger, launch, standing),
        goes_out=None if sends_nothing(launch, known) else goes_out(launch, variations),
        is_begun=is_begun,
        went_out_at=LaunchRow(listed, standing).went_out_at,
        same_period=[(each, stands[each.launch_key].stage) for each in same_period],
        resent=newest_of(deciding.decisions, DecisionKind.RESEND) if launch.resend else None,
        nothing=got_nothing(ledger, launch, same_period, states),
        halted=newest_of(deciding.decisions, *_HALTED.get(launch.state, ())),
        decide=decide,
        decides_at=_decides_at(ledger, launch, standing) if decide else None,
        unanswered=unanswered(ledger, viewer, [launch.campaign], launch.launch_key),
        pauses=ledger.pauses.of_connection(launch.connection)
        if states.get(DispatchState.PLANNED) and not launch.state.is_final
        else [],
        people=None
        if launch.is_chosen_by_service
        else blocks_as_html(checked(rows_to_people(launch, left_out, sum(part.people for part in parts)))),
        requests=blocks_as_html(checked(requests_by_state(states, launch.segments))),
        states=states,
        recipients=ledger.dispatch_queries.counts(launch.launch_key).known_recipients,
        doubts=doubts,
        repeated=repeated,
        so_far=ledger.aggregates.newest(launch.launch_key) if launch.settled_at is None else None,
        results=results_of(ledger, launch, zone)
        if is_begun or not states.get(DispatchState.PLANNED)
        else None,
        opted_out=ledger.launch_counts.opt_outs([launch_key])[launch_key]
        if is_begun and campaign.shows_opt_outs
        else None,
        outcomes=outcomes_of(ledger, launch),
        downloads=downloads(),
        messages=messages_of_launch(launch, parts),
        rows=ledger.dispatch_queries.requests(
            launch.launch_key, states=chosen, offset=paged.offset, limit=REQUESTS_PER_PAGE
        ),
        paged=paged,
        state=state,
        is_filtered=bool(state) or number > 1,
        not_accepted=_not_accepted(states, repeated),
        dispatch_states=list(DispatchState),
        refresh=REFRESH_FAST if standing.stage is Stage.SENDING else REFRESH_SLOW,
    )


def _of_same_period(ledger: Ledger, launch: LaunchRecord) -> Sequence[LaunchRecord]:
    """Return the launches of a campaign for the same period, the last resend last."""
    names = [launch.campaign]
    found = ledger.launches.of_period(launch.connection, names, launch.period)
    return sorted(found, key=attrgetter("resend"))[-MOST_OF_A_PERIOD:]


def _decides_at(ledger: Ledger, launch: LaunchRecord, standing: Standing) -> datetime | None:
    """Return when the winner is decided; None if it is decided, or the test share is not sent yet."""
    key = launch.launch_key
    parts = ledger.overview.planned_parts([key]).get(key, [])
    is_next = launch.winner is None and all(part.wave > launch.wave for part in parts)
    return standing.until if is_next and standing.stage is Stage.SCHEDULED else None


def _not_accepted(states: Mapping[str, int], repeated: Mapping[str, int]) -> str:
    """Return the requests that were not accepted in words, such as ``21 not made, 3 in doubt``."""
    again = _REPEATED[DispatchState.PLANNED]
    counts = {_WORDS.get(name, name.replace("_", " ")): states.get(name, 0) for name in _NOT_ACCEPTED}
    counts[again] = repeated.get(again, 0)
    counts[_WORDS[DispatchState.PLANNED]] -= counts[again]
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


@router.get("/launches/{launch_key}/preview")
def show_preview(
    request: Request, viewer: ViewerDep, _: ExpensiveDep, ledger: LedgerDep, launch_key: str
) -> HTMLResponse:
    """Show the preview of a launch as it was frozen, as the approvers see it."""
    from sendoff.launch import preview_launch
    from sendoff.report import describe_preview
    from sendoff_airflow.hooks.service import rate_of

    launch = visible_launch(ledger, viewer, launch_key)
    lead, shown, folded = Markup(), None, []
    if launch.audience <= MAX_PEOPLE_PREVIEWED:
        rate = rate_of(launch.connection)
        preview = describe_preview(preview_launch(ledger, launch_key, rate=rate, visible=viewer.visible))
        lead = blocks_as_html(preview.lead)
        shown = sections_as_html([each for each in preview.sections if each.name not in _FOLDED])
        folded = [
            (each.heading, blocks_as_html(each.blocks, each.name))
            for each in preview.sections
            if each.name in _FOLDED
        ]
    messages = messages_of_launch(launch, ledger.dispatch_queries.segment_sizes(launch_key))
    return page(
        request,
        "preview.html",
        launch=launch,
        stage=standings_of(ledger, Selection.of([launch]))[launch.launch_key].stage,
        messages=messages,
        lead=lead,
        shown=shown,
        folded=folded,
        most=MAX_PEOPLE_PREVIEWED,
    )


@router.get("/launches/{launch_key}/email")
def show_email(
    viewer: ViewerDep, ledger: LedgerDep, launch_key: str, variant: Name = "", language: Name = ""
) -> HTMLResponse:
    """Show the HTML of the email that a launch sends."""
    launch = visible_launch(ledger, viewer, launch_key)
    return email_page(Campaign.frozen(launch.definition), variant, language, launch.period.end)


@router.get("/report.css")
def report_style(_: ViewerDep) -> Response:
    """Return the style sheet of reports."""
    return Response(css(), media_type="text/css", headers={"Cache-Control": "private, max-age=3600"})
