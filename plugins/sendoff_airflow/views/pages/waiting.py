"""The page of what waits for a person: launches held or asked about, requests in doubt, and global pauses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from sendoff.ledger import AttemptRecord, LaunchDoubts, LaunchRecord, Ledger, Selection
from sendoff.ledger import Request as Dispatched
from sendoff.states import DispatchState, LaunchState, Stage
from sendoff_airflow.views.facts.decidable import Decidable, decidable
from sendoff_airflow.views.facts.holds import (
    Stuck,
    pausable,
    standings_of,
    stuck_at,
    stuck_launches,
    unanswered,
    visible_pauses,
)
from sendoff_airflow.views.facts.messages import ShownMessage, messages_of_launch
from sendoff_airflow.views.web.dependencies import REFRESH_SLOW, LedgerDep, visible_launch
from sendoff_airflow.views.web.permissions import Viewer, ViewerDep
from sendoff_airflow.views.web.request_models import Name, Number, Paged
from sendoff_airflow.views.web.templates import page

router = APIRouter(default_response_class=HTMLResponse)

HELD_PER_PAGE, STUCK_PER_PAGE, LAUNCHES_IN_DOUBT_PER_PAGE = 10, 10, 10
DOUBTS_PER_PAGE, DOUBTS_PER_LAUNCH = 50, 10
"""Requests in doubt per page: on the page of one launch, and per launch on the page of all."""


@router.get("/waiting")
def show_waiting(
    request: Request,
    viewer: ViewerDep,
    ledger: LedgerDep,
    launch_key: Annotated[Name, Query(alias="launch")] = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show what waits for a person. ``launch``: show all requests in doubt of this launch, and nothing else."""
    if launch_key:
        return _doubts_of(request, viewer, ledger, visible_launch(ledger, viewer, launch_key), number)
    visible = viewer.visible(ledger.launches.campaigns())
    doubt_totals = ledger.stats.doubt_totals(visible)
    paged = Paged(number, LAUNCHES_IN_DOUBT_PER_PAGE, doubt_totals.launches, {})
    held = [
        _held(ledger, viewer, row)
        for row in ledger.launches.page(visible, states=[LaunchState.HELD], limit=HELD_PER_PAGE)
    ]
    in_doubt = ledger.stats.launch_doubts(visible, offset=paged.offset, limit=paged.size)
    stages = standings_of(ledger, Selection(visible, [row.launch_key for row in in_doubt]))
    doubted = [
        _doubted(ledger, ledger.launches.get(row.launch_key), row, stages[row.launch_key].stage)
        for row in in_doubt
    ]
    stuck, all_stuck = _stuck(ledger, viewer, visible)
    shown = [
        *(each.deciding.launch for each in held),
        *(each.launch for each in stuck),
        *(each.launch for each in doubted),
    ]
    pauses, may_pause = visible_pauses(ledger, viewer, visible), pausable(ledger, viewer)
    return page(
        request,
        "waiting.html",
        held=held,
        stuck=stuck,
        all_stuck=all_stuck,
        unanswered=unanswered(ledger, viewer, visible),
        all_held=ledger.launches.count_of(visible, states=[LaunchState.HELD]),
        doubted=doubted,
        doubt_totals=doubt_totals,
        paged=paged,
        pauses=pauses,
        pausable=may_pause,
        resumable=[
            pause for pause in pauses.known if not pause.is_move and (pause.connection or "") in may_pause
        ],
        may_steer=viewer.steerable(launch.campaign for launch in shown),
        refresh=REFRESH_SLOW,
    )


def _doubts_of(
    request: Request, viewer: Viewer, ledger: Ledger, launch: LaunchRecord, number: int
) -> HTMLResponse:
    counted = ledger.stats.launch_doubts([launch.campaign], launch_key=launch.launch_key)
    stage = standings_of(ledger, Selection.of([launch]))[launch.launch_key].stage
    doubted = [_doubted(ledger, launch, row, stage, number, DOUBTS_PER_PAGE) for row in counted]
    return page(
        request,
        "doubts.html",
        launch=launch,
        doubted=doubted,
        may_steer=viewer.steerable([launch.campaign]),
        refresh=REFRESH_SLOW,
    )


class _Held(NamedTuple):
    deciding: Decidable
    messages: Sequence[ShownMessage]
    left_out: Mapping[str, int]


def _held(ledger: Ledger, viewer: Viewer, launch: LaunchRecord) -> _Held:
    key = launch.launch_key
    requests, parts = ledger.dispatch_queries.states(key), ledger.dispatch_queries.segment_sizes(key)
    return _Held(
        decidable(ledger, viewer, launch, requests, [part.variation for part in parts]),
        messages_of_launch(launch, parts),
        ledger.launches.suppressed_sizes(key),
    )


def _stuck(ledger: Ledger, viewer: Viewer, visible: Collection[str]) -> tuple[list[Stuck], int]:
    """Return the newest stuck launches, and the number of all of them."""
    found = stuck_launches(ledger, visible)
    newest = list(found)[:STUCK_PER_PAGE]
    launches = {launch.launch_key: launch for launch in ledger.launches.of_keys(newest)}
    shown = [stuck_at(viewer, ledger, launches[key], found[key]) for key in newest]
    return [each for each in shown if each], len(found)


@dataclass(frozen=True, slots=True)
class _Doubted:
    launch: LaunchRecord
    stage: Stage
    requests: Sequence[tuple[Dispatched, AttemptRecord | None]]  # each with the attempt that put it in doubt
    counted: LaunchDoubts
    paged: Paged


def _doubted(
    ledger: Ledger,
    launch: LaunchRecord,
    counted: LaunchDoubts,
    stage: Stage,
    number: int = 1,
    size: int = DOUBTS_PER_LAUNCH,
) -> _Doubted:
    paged = Paged(number, size, counted.requests, {"launch": launch.launch_key})
    requests = ledger.dispatch_queries.requests(
        launch.launch_key, states=[DispatchState.IN_DOUBT], offset=paged.offset, limit=paged.size
    )
    return _Doubted(launch, stage, [(request, _doubt(request)) for request in requests], counted, paged)


def _doubt(request: Dispatched) -> AttemptRecord | None:
    return next((attempt for attempt in reversed(request.recorded) if attempt.kind == "in_doubt"), None)
