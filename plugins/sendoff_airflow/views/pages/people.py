"""A person's history: why they got the messages of a campaign, or did not.

The identifier is in the body of the request and never in a URL, because URLs are logged. It is not stored, and pages do
not repeat it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse

from sendoff.campaign import Campaign, Once, Variation
from sendoff.errors import AudienceError
from sendoff.launch import Standing
from sendoff.ledger import LaunchRecord, Ledger, RecipientStatus, Selection
from sendoff.states import DispatchState, Stage
from sendoff_airflow.views.facts.holds import standings_of
from sendoff_airflow.views.facts.launch_rows import rows_of
from sendoff_airflow.views.pages.launches import titles_of
from sendoff_airflow.views.pages.suppression import KINDS
from sendoff_airflow.views.web.dependencies import ExpensiveDep, LedgerDep
from sendoff_airflow.views.web.permissions import ViewerDep
from sendoff_airflow.views.web.request_models import PersonQuery, body_of
from sendoff_airflow.views.web.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_PER_PAGE = 50
MAX_SECONDS = 8.0
"""Seconds after which the page answers with the launches it has checked so far."""


@dataclass(frozen=True, slots=True)
class _Found:
    launch: LaunchRecord
    status: RecipientStatus
    went_out_at: datetime | None = None  # the launch, if the person got it or may have
    standing: Standing | None = None  # of a launch that may still send to the person

    @property
    def goes_on_at(self) -> datetime | None:
        """When the launch goes on, if the person's turn comes later and that time is known."""
        return self.standing.until if self.standing else None

    @property
    def sent_later_at(self) -> datetime | None:
        """When the service, which has the message already, sends it at the latest; None if it is sent."""
        if not self.status.is_sent or self.status.is_received:
            return None
        own = Variation(time_zone=self.status.time_zone)
        send = Campaign.frozen(self.launch.definition).variation(own, self.launch.period.end).send
        at = send.sends_at() if isinstance(send, Once) else self.launch.sends_at
        return at if at is not None and at > datetime.now(UTC) else None

    @property
    def is_stuck(self) -> bool:
        return self.standing is not None and self.standing.stage is Stage.STUCK


@router.get("/person")
def show_person_form(request: Request, viewer: ViewerDep, ledger: LedgerDep) -> HTMLResponse:
    """Show the form that asks for an identifier."""
    visible = viewer.visible(ledger.launches.campaigns())
    return page(request, "person.html", campaigns=titles_of(ledger, visible), refresh=0)


@router.post("/person")
def show_history(
    request: Request,
    viewer: ViewerDep,
    query: Annotated[PersonQuery, Depends(body_of(PersonQuery))],
    _: ExpensiveDep,
    ledger: LedgerDep,
) -> HTMLResponse:
    """Show what happened to one person in each launch, newest first."""
    visible = viewer.visible(ledger.launches.campaigns())
    chosen = visible & {query.campaign} if query.campaign else visible
    total = ledger.launches.count_of(chosen)
    rows: list[_Found] = []
    unfit = Counter[str]()  # launches by their identifier, which this one cannot be
    started = time.monotonic()
    for launch in ledger.launches.page(chosen, offset=query.offset, limit=LAUNCHES_PER_PAGE):
        if (rows or unfit) and time.monotonic() - started > MAX_SECONDS:
            break
        try:
            rows.append(_Found(launch, ledger.launches.recipient(launch.launch_key, query.identifier)))
        except AudienceError:
            unfit[KINDS[launch.identified_by]] += 1
    checked = len(rows)
    looked_at = query.offset + checked + unfit.total()
    rows = _with_times(ledger, _with_standings(ledger, rows))
    is_named = any(row.status.is_named for row in rows)
    return page(
        request,
        "history.html",
        rows=rows if is_named else [row for row in rows if not row.status.is_known],
        checked=checked,
        unfit=unfit,
        is_named=is_named,
        campaign=titles_of(ledger, chosen).get(query.campaign),
        first=query.offset + 1,
        last=looked_at,
        total=total,
        offset=looked_at if looked_at < total else None,
    )


def _with_standings(ledger: Ledger, rows: list[_Found]) -> list[_Found]:
    """Add the states of the launches that may still send to the person."""
    waiting = [row.launch for row in rows if row.status.is_waiting]
    found = standings_of(ledger, Selection.of(waiting)) if waiting else {}
    return [replace(row, standing=found.get(row.launch.launch_key)) for row in rows]


def _with_times(ledger: Ledger, rows: list[_Found]) -> list[_Found]:
    """Add when the launches went out that the person got or may have got."""
    sent = [row.launch for row in rows if row.status.is_sent or row.status.dispatch == DispatchState.IN_DOUBT]
    listed = ledger.overview.page(Selection.of(sent), limit=len(sent)) if sent else []
    times = {each.launch.launch_key: each.went_out_at for each in rows_of(ledger, listed)}
    return [replace(row, went_out_at=times.get(row.launch.launch_key)) for row in rows]
