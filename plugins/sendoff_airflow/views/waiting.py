"""What waits for a person, over all launches: what is held, what is in doubt, and which brakes are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from sendoff.dispatch import role_awaited
from sendoff.ledger import Doubted, Launch, Ledger, Recorded
from sendoff.ledger import Request as Dispatched
from sendoff_airflow.views import airflow_db
from sendoff_airflow.views.brakes import connection_of, pausable, seen_brakes
from sendoff_airflow.views.dependencies import LATER, LedgerDep, seen_launch
from sendoff_airflow.views.held import acts_on, seen_run, why_held
from sendoff_airflow.views.paging import Name, Number, Paged
from sendoff_airflow.views.permissions import Viewer, ViewerDep
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

HELD_AT_ONCE, LAUNCHES_IN_DOUBT_AT_ONCE = 10, 10
DOUBTS_AT_ONCE, DOUBTS_AT_FIRST = 50, 10
"""Requests in doubt of one launch by itself, and beside those of others."""


@router.get("/waiting")
def waiting(
    request: Request,
    viewer: ViewerDep,
    book: LedgerDep,
    launch_key: Annotated[Name, Query(alias="launch")] = "",
    number: Annotated[Number, Query(alias="page")] = 1,
) -> HTMLResponse:
    """Show what waits for a person; ``launch``: only what is in doubt of one launch, all of it."""
    if launch_key:
        return _doubts_of(request, viewer, book, seen_launch(book, viewer, launch_key), number)
    seen = viewer.among(book.launches.campaigns())
    all_doubted = book.counts.all_doubted(seen)
    paged = Paged(number, LAUNCHES_IN_DOUBT_AT_ONCE, all_doubted.launches, {})
    held = [
        _held(book, viewer, each) for each in book.launches.page(seen, states=["held"], limit=HELD_AT_ONCE)
    ]
    doubted = [
        _doubted(book, book.launches.get(each.launch_key), each)
        for each in book.counts.doubted(seen, offset=paged.offset, limit=paged.size)
    ]
    brakes, may_pause = seen_brakes(book, viewer, seen), pausable(book, viewer)
    return page(
        request,
        "waiting.html",
        held=held,
        all_held=book.launches.count_of(seen, states=["held"]),
        doubted=doubted,
        all_doubted=all_doubted,
        paged=paged,
        brakes=brakes,
        pausable=may_pause,
        liftable=[each for each in brakes.known if (connection_of(each) or "") in may_pause],
        may_steer=viewer.steered(
            [each.launch.campaign for each in held] + [each.launch.campaign for each in doubted]
        ),
        refresh=LATER,
    )


def _doubts_of(request: Request, viewer: Viewer, book: Ledger, launch: Launch, number: int) -> HTMLResponse:
    counted = book.counts.doubted([launch.campaign], launch_key=launch.launch_key)
    doubted = [_doubted(book, launch, each, number, DOUBTS_AT_ONCE) for each in counted]
    return page(
        request,
        "doubts.html",
        launch=launch,
        doubted=doubted,
        may_steer=viewer.steered([launch.campaign]),
        refresh=LATER,
    )


@dataclass(frozen=True, slots=True)
class _Held:
    launch: Launch
    since: int
    why: Any
    planned: int
    role: str | None
    acts: Sequence[str]
    run: airflow_db.Run | None  # looked for where it is to be answered there


def _held(book: Ledger, viewer: Viewer, launch: Launch) -> _Held:
    key = launch.launch_key
    decisions = book.decisions.of_launch(key)
    planned = book.dispatches.states(key).get("planned", 0)
    role = role_awaited(launch, decisions)
    run = seen_run(viewer, launch) if role else None
    newest = book.decisions.newest(key)
    return _Held(launch, newest, why_held(decisions), planned, role, acts_on(launch, role), run)


@dataclass(frozen=True, slots=True)
class _Doubted:
    launch: Launch
    requests: Sequence[tuple[Dispatched, Recorded | None]]  # each with what put it into doubt
    counted: Doubted
    paged: Paged


def _doubted(
    book: Ledger, launch: Launch, counted: Doubted, number: int = 1, size: int = DOUBTS_AT_FIRST
) -> _Doubted:
    paged = Paged(number, size, counted.requests, {"launch": launch.launch_key})
    found = book.launches.requests(
        launch.launch_key, states=["in_doubt"], offset=paged.offset, limit=paged.size
    )
    return _Doubted(launch, [(each, _doubt(each)) for each in found], counted, paged)


def _doubt(request: Dispatched) -> Recorded | None:
    return next((each for each in reversed(request.recorded) if each.kind == "in_doubt"), None)
