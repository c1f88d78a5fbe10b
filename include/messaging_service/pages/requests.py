"""The pages of the request log: the list, newest first, and each request with its answer."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import func, select

from messaging_service.api.external import Service
from messaging_service.pages.layout import page, page_of
from messaging_service.store import find
from messaging_service.tables import requests

_AT_ONCE = 50
_GOOD = requests.c.status < 400


def add(router: APIRouter, service: Service) -> None:
    """Add the routes of these pages."""

    @router.get("/requests")
    def log(request: Request) -> Response:
        return _log(request, service)

    @router.get("/requests/{number:int}")
    def one(request: Request, number: int) -> Response:
        with service.store.read() as connection:
            row = find(connection, requests, number)
        if row is None:
            raise HTTPException(404, "There is no such request.")
        return page(request, "request.html", row=row)


def _log(request: Request, service: Service) -> Response:
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
