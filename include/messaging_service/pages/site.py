"""The routes of the pages."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from fastapi.responses import RedirectResponse

from messaging_service.api.access import only_this_machine
from messaging_service.api.external import Service
from messaging_service.pages import campaigns, faults, launches, messages, requests, search, settings
from messaging_service.pages.layout import PageRoute, static_file


def page_routes(service: Service, *, for_all: bool = False) -> APIRouter:
    """Return the routes of all pages; they answer loopback addresses only, unless ``for_all``."""
    guard = Depends(only_this_machine(for_all))
    router = APIRouter(route_class=PageRoute, dependencies=[guard], include_in_schema=False)

    @router.get("/")
    def front() -> Response:
        return RedirectResponse("/campaigns", 303)

    @router.get("/static/{name}")
    def static(name: str) -> Response:
        return static_file(name)

    for add in (
        launches.add,
        campaigns.add,
        messages.add,
        search.add,
        requests.add,
        faults.add,
        settings.add,
    ):
        add(router, service)
    return router
