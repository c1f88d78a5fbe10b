"""The pages of the request log: the list, newest first, and each request with its answer."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import func, select

from messaging_service.api.external import ServiceDep
from messaging_service.pages.layout import PageRoute, page, page_of
from messaging_service.store import find
from messaging_service.tables import requests

router = APIRouter(route_class=PageRoute)

_AT_ONCE = 50
_GOOD = requests.c.status < 400


@router.get("/requests/{number:int}")
def show_request(request: Request, service: ServiceDep, number: int) -> Response:
    """Show a request with its answer."""
    with service.store.read() as connection:
        row = find(connection, requests, number)
    if row is None:
        raise HTTPException(404, "There is no such request.")
    return page(request, "request.html", row=row)


@router.get("/requests")
def list_requests(request: Request, service: ServiceDep) -> Response:
    """Show the requests, newest first."""
    show = request.query_params.get("show")
    where = {"accepted": _GOOD, "refused": ~_GOOD}.get(show or "")
    part = page_of(request, _AT_ONCE)
    query = select(requests).order_by(requests.c.id.desc())
    with service.store.read() as connection:
        good, total = connection.execute(
            select(func.count().filter(_GOOD), func.count()).select_from(requests)
        ).one()
        rows = part.rows(connection, query if where is None else query.where(where))
    counts = {"all": total, "accepted": good, "refused": total - good}
    shown = show if where is not None else "all"
    return page(request, "requests.html", is_live=True, rows=rows, counts=counts, shown=shown, part=part)
