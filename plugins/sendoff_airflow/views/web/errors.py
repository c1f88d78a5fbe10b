"""The error pages: the problem in a sentence, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import urlencode

from fastapi import FastAPI, Request, Response, status
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sendoff.errors import (
    GateError,
    LedgerUnavailableError,
    NotFoundError,
    RecipientsDeletedError,
    SendoffError,
    SettingsError,
    UnusableLedgerError,
)
from sendoff_airflow.views.links import page_in_airflow
from sendoff_airflow.views.web.permissions import not_there
from sendoff_airflow.views.web.templates import is_part, page

_log = logging.getLogger(__name__)
_AWAY = "The database of Sendoff is down, or Airflow's API server cannot reach it."
_TO_DO: dict[type[Exception], str] = {
    LedgerUnavailableError: f"{_AWAY} Nothing was changed. This page tries again by itself.",
    UnusableLedgerError: "An administrator must repair the database of Sendoff. The log of Airflow's API server says "
    "what is wrong.",
    SettingsError: "An administrator must correct the connection sendoff_ledger in Airflow.",
}
"""What to do about each kind of error."""

_PLAIN = {
    status.HTTP_404_NOT_FOUND: not_there().detail,
    status.HTTP_405_METHOD_NOT_ALLOWED: "This cannot be done here.",
}
_REFUSED = (status.HTTP_401_UNAUTHORIZED, status.HTTP_403_FORBIDDEN)
_TITLES = {
    status.HTTP_403_FORBIDDEN: "You may not do this",
    status.HTTP_404_NOT_FOUND: "This page does not exist",
}


def add_error_pages(app: FastAPI) -> None:
    """Answer errors with a page, or with a fragment if our own script sent the request."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(SendoffError, _sendoff)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(Exception, _unforeseen)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in _REFUSED and not getattr(request.state, "is_logged_in", False):
        message = "You are not logged in, or not any more."
        response = _page(request, error.status_code, message, None, login=_login(request))
    else:
        message = _PLAIN.get(error.status_code, str(error.detail))
        response = _page(request, error.status_code, message, None)
    response.headers.update(error.headers or {})
    return response


_CODES: Mapping[type[Exception], int] = {
    GateError: status.HTTP_409_CONFLICT,
    RecipientsDeletedError: status.HTTP_410_GONE,
}


async def _sendoff(request: Request, error: Exception) -> Response:
    if isinstance(error, NotFoundError):
        return await _http(request, not_there())
    code = _CODES.get(type(error), status.HTTP_503_SERVICE_UNAVAILABLE)
    if code == status.HTTP_503_SERVICE_UNAVAILABLE:
        _log.warning("a page could not be shown: %s", error)
    to_do = _TO_DO.get(type(error))
    # Its commit may have been lost, or not.
    if isinstance(error, LedgerUnavailableError) and request.method == "POST":
        to_do = f"{_AWAY} Before you repeat this, reload the page: it shows whether this was done."
    message = f"{str(error)[:1].upper()}{str(error)[1:]}"
    if isinstance(error, (LedgerUnavailableError, UnusableLedgerError)):  # its text names hosts and users
        message = "Sendoff's data cannot be read."
    elif isinstance(error, RecipientsDeletedError):  # its text names the launch by its key
        message = "The recipients of this launch were deleted."
    return _page(request, code, message, to_do)


async def _unreadable(request: Request, _: Exception) -> Response:
    return _page(request, status.HTTP_422_UNPROCESSABLE_CONTENT, "This request cannot be read.", None)


async def _unforeseen(request: Request, _: Exception) -> Response:
    """Answer an unexpected error. The server logs it with its traceback."""
    return _page(
        request,
        500,
        "Something went wrong.",
        "This is a defect. The log of Airflow's API server has the details.",
    )


def _page(
    request: Request, status_code: int, message: str, to_do: str | None, *, login: str | None = None
) -> Response:
    is_away = status_code == status.HTTP_503_SERVICE_UNAVAILABLE
    template = "error_part.html" if is_part(request) else "error_page.html"
    refresh = 10 if is_away else 0
    return page(
        request,
        template,
        status_code=status_code,
        title="Log in to see this" if login else _TITLES.get(status_code, "This cannot be shown"),
        message=message,
        to_do=to_do,
        login=login,
        refresh=refresh,
    )


def _login(request: Request) -> str:
    """Return the address of Airflow's login, relative to Airflow's root. It leads back to this page.

    After a form was sent, it leads to the list of launches, because the address of a form shows no page.
    """
    back = page_in_airflow("")
    if request.method == "GET":
        query = request.url.query
        back += request.scope["path"].removeprefix(request.scope.get("root_path", "")).lstrip("/")
        back += f"?{query}" if query else ""
    return f"api/v2/auth/login?{urlencode({'next': back})}"
