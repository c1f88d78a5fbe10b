"""A person's history: why they got the messages of a campaign, or did not.

The identifier is in the body of the request and never in a URL, because URLs are logged. It is not stored, and pages do
not repeat it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse

from sendoff.errors import AudienceError
from sendoff.ledger import Launch, Ledger, RecipientStatus
from sendoff_airflow.views.dependencies import ExpensiveDep, LedgerDep
from sendoff_airflow.views.launches import titles_of
from sendoff_airflow.views.permissions import ViewerDep
from sendoff_airflow.views.request_models import PersonQuery, body_of
from sendoff_airflow.views.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_PER_PAGE = 50
MAX_SECONDS = 8.0
"""Seconds after which the page answers with the launches it has checked so far."""


@dataclass(frozen=True, slots=True)
class _Found:
    launch: Launch
    status: RecipientStatus | None  # None: the launch uses another kind of identifier

    @property
    def sentence(self) -> str:
        if self.status is None:
            return (
                f"not checked: this launch identifies people by {self.launch.identified_by.replace('_', ' ')}"
            )
        return self.status.sentence

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
    is_named = any(row.is_named for row in rows)
    return page(
        request,
        "history.html",
        rows=rows if is_named else [row for row in rows if row.is_open],
        is_named=is_named,
        first=query.offset + 1,
        last=looked_at,
        total=total,
        offset=looked_at if looked_at < total else None,
    )


def _of_launch(ledger: Ledger, launch: Launch, identifier: str) -> _Found:
    try:
        return _Found(launch, ledger.launches.recipient(launch.launch_key, identifier))
    except (AudienceError, OverflowError):
        return _Found(launch, None)
