"""The application that Airflow's API server mounts under ``/sendoff``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HERE = Path(__file__).parent
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every page. Airflow shows the pages in a frame of its own origin. Paths name launches, so no referrer."""


class LazyApp:
    """An ASGI application that is created at its first request. Every Airflow process loads it, but one serves it."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if self._app is None:
            async with self._lock:
                if self._app is None:
                    self._app = await asyncio.to_thread(self._make)
        await self._app(scope, receive, send)


class SecurityHeaders:
    """An ASGI application that adds our headers to every response, including those to unexpected errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "/static/" in scope["path"]:
                    headers.setdefault("Cache-Control", "no-cache")  # revalidated by its ETag
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def create_app() -> Any:
    """Return the application with its pages, its actions, and its static files."""
    from fastapi import FastAPI
    from starlette.staticfiles import StaticFiles

    from sendoff_airflow.views.pages import (
        actions,
        calendar,
        campaigns,
        launch,
        launches,
        people,
        results,
        suppression,
        table,
        waiting,
    )
    from sendoff_airflow.views.web.errors import add_error_pages

    # No redirects for an extra slash: they would send a client with a forged Host header to that host.
    app = FastAPI(title="Sendoff", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    add_error_pages(app)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    pages = (launches, table, calendar, launch, results, waiting, campaigns, people, suppression, actions)
    for subject in pages:
        app.include_router(subject.router)
    return app


app = SecurityHeaders(LazyApp(create_app))
