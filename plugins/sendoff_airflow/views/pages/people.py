"""A person's history: why they got the messages of a campaign, or did not.

The identifier is in the body of the request and never in a URL, because URLs are logged. It is not stored, and pages do
not repeat it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse

from sendoff.campaign import Campaign, Once, Variation
from sendoff.errors import AudienceError
from sendoff.launch import Standing
from sendoff.ledger import LaunchRecord, Ledger, RecipientStatus, Selection
from sendoff.states import Stage
from sendoff_airflow.views.facts.holds import standings_of
from sendoff_airflow.views.pages.launches import titles_of
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
    status: RecipientStatus | None  # None: the launch uses another kind of identifier
    standing: Standing | None = None  # of a launch that may still send to the person

    @property
    def sentence(self) -> str:
        if self.status is None:
            return (
                f"not checked: this launch identifies people by {self.launch.identified_by.replace('_', ' ')}"
            )
        return self.status.sentence

    @property
    def is_received(self) -> bool:
        return self.status is not None and self.status.is_received

    @property
    def goes_on_at(self) -> datetime | None:
        """When the launch goes on, if the person's turn comes later and that time is known."""
        return self.standing.until if self.standing else None

    @property
    def sent_later_at(self) -> datetime | None:
        """When the service, which has the message already, sends it at the latest; None if it is sent."""
        if self.status is None or not self.status.is_sent or self.status.is_received:
            return None
        own = Variation(time_zone=self.status.time_zone)
        send = Campaign.frozen(self.launch.definition).variation(own, self.launch.period.end).send
        at = send.sends_at() if isinstance(send, Once) else self.launch.sends_at
        return at if at is not None and at > datetime.now(UTC) else None

    @property
    def is_stuck(self) -> bool:
        return self.standing is not None and self.standing.stage is Stage.STUCK

    @property
    def is_named(self) -> bool:
        return self.status is not None and self.status.is_named

    @property
    def is_open(self) -> bool:
        """Whether it is not known whether the identifier was in the launch."""
        return self.status is None or not self.status.is_known


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
    started = time.monotonic()
    for launch in ledger.launches.page(chosen, offset=query.offset, limit=LAUNCHES_PER_PAGE):
        if rows and time.monotonic() - started > MAX_SECONDS:
            break
        rows.append(_of_launch(ledger, launch, query.identifier))
    looked_at = query.offset + len(rows)
    rows = _with_standings(ledger, rows)
    is_named = any(row.is_named for row in rows)
    return page(
        request,
        "history.html",
        rows=rows if is_named else [row for row in rows if row.is_open],
        is_named=is_named,
        campaign=titles_of(ledger, chosen).get(query.campaign),
        first=query.offset + 1,
        last=looked_at,
        total=total,
        offset=looked_at if looked_at < total else None,
    )


def _with_standings(ledger: Ledger, rows: list[_Found]) -> list[_Found]:
    """Add the states of the launches that may still send to the person."""
    waiting = [row.launch for row in rows if row.status and row.status.is_waiting]
    found = standings_of(ledger, Selection.of(waiting)) if waiting else {}
    return [replace(row, standing=found.get(row.launch.launch_key)) for row in rows]


def _of_launch(ledger: Ledger, launch: LaunchRecord, identifier: str) -> _Found:
    try:
        return _Found(launch, ledger.launches.recipient(launch.launch_key, identifier))
    except (AudienceError, OverflowError):
        return _Found(launch, None)
