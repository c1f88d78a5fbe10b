"""The routes of the pages."""

from __future__ import annotations

from functools import cache

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse

from messaging_service.api.access import only_this_machine
from messaging_service.pages import campaigns, faults, launches, messages, requests, search, settings
from messaging_service.pages.layout import PageRoute, static_file

router = APIRouter(route_class=PageRoute)


@router.get("/")
def front() -> Response:
    """Redirect to the first page."""
    return RedirectResponse("/campaigns", 303)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return the style sheet or the script."""
    return static_file(name)


@cache
def page_routes(*, for_all: bool = False) -> APIRouter:
    """Return the routes of all pages; they answer loopback addresses only, unless ``for_all``."""
    guard = Depends(only_this_machine(for_all))
    every = APIRouter(dependencies=[guard], include_in_schema=False)
    for subject in (launches, campaigns, messages, search, requests, faults, settings):
        every.include_router(subject.router)
    every.include_router(router)
    return every
