"""The page of the service's clock and its injected faults, with forms that change them."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from messaging_service.api.access import only_own_forms
from messaging_service.api.external import Service, ServiceDep
from messaging_service.clock import DurationError, advance, described, seconds_of
from messaging_service.faults.faults import (
    POST_BACK_FAULTS,
    POST_BACKS,
    REQUEST_FAULTS,
    REQUESTS,
    Fault,
    FaultRefusedError,
    add_fault,
    list_faults,
    remove_faults,
)
from messaging_service.pages.layout import PageRoute, page

router = APIRouter(route_class=PageRoute)

_ADDRESS = "/faults"
_EFFECTS = {**REQUEST_FAULTS, **POST_BACK_FAULTS}
_OWN_FORM = [Depends(only_own_forms)]
_Text = Annotated[str, Form(max_length=40)]


class FaultForm(BaseModel):
    """The form of a new fault, as text."""

    kind: str = "503"
    at: tuple[str, ...] = ()
    percent: str = ""
    count: str = ""
    after: bool = False
    seconds: str = ""
    retry_after: str = ""


@router.get(_ADDRESS)
def show(request: Request, service: ServiceDep) -> Response:
    """Show the clock and the faults."""
    return _page(request, service)


@router.post(f"{_ADDRESS}/clock", dependencies=_OWN_FORM)
def advance_clock(request: Request, service: ServiceDep, by: _Text = "") -> Response:
    """Advance the clock."""
    try:
        advance(service.store, seconds_of(by.strip()))
    except DurationError as error:
        return _page(request, service, by=by, clock_problem=str(error))
    return RedirectResponse(_ADDRESS, 303)


@router.post(f"{_ADDRESS}/add", dependencies=_OWN_FORM)
def inject(request: Request, service: ServiceDep, given: Annotated[FaultForm, Form()]) -> Response:
    """Add a fault."""
    try:
        add_fault(service.store, _fault(given))
    except FaultRefusedError as error:
        return _page(request, service, given=given, problem=str(error))
    return RedirectResponse(_ADDRESS, 303)


@router.post(f"{_ADDRESS}/remove", dependencies=_OWN_FORM)
def remove_all(service: ServiceDep) -> Response:
    """Remove all faults."""
    remove_faults(service.store)
    return RedirectResponse(_ADDRESS, 303)


@router.post(f"{_ADDRESS}/{{number:int}}/remove", dependencies=_OWN_FORM)
def remove(service: ServiceDep, number: int) -> Response:
    """Remove one fault."""
    if not (number < 2**63 and remove_faults(service.store, number)):
        raise HTTPException(404, "There is no such fault.")
    return RedirectResponse(_ADDRESS, 303)


def _page(
    request: Request,
    service: Service,
    *,
    by: str = "",
    clock_problem: str = "",
    given: FaultForm | None = None,
    problem: str = "",
) -> Response:
    clock = described(service.clock)
    return page(
        request,
        "faults.html",
        is_live=True,
        status=400 if clock_problem or problem else 200,
        now=service.clock.time(),
        ahead=clock["ahead"],
        faults=list_faults(service.store),
        effects=_EFFECTS,
        kinds={"Requests": REQUEST_FAULTS, "Post-backs": POST_BACK_FAULTS},
        places=(*REQUESTS, *POST_BACKS),
        by=by,
        clock_problem=clock_problem,
        given=given or FaultForm(),
        problem=problem,
    )


def _fault(given: FaultForm) -> Fault:
    """Return the fault of a form. Raise FaultRefusedError for a field that is not a number, or a wrong setting."""
    percent, count = _number("Share", given.percent), _number("Times", given.count)
    retry_after = _number("Retry-After", given.retry_after)
    return Fault(
        given.kind,
        given.at,
        None if percent is None else percent / 100,
        None if count is None else int(count),
        given.after,
        _number("Seconds", given.seconds),
        None if retry_after is None else int(retry_after),
    )


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FaultRefusedError(f"{name} is not a number")
    return number
