"""Renders pages from templates, with headers that prevent a hostile message from running anything."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import orjson
from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy import Connection, Row, Select

_STATIC = files("messaging_service.pages").joinpath("static")
SHEET = b"".join(_STATIC.joinpath(name).read_bytes() for name in ("tokens.css", "style.css"))
_SCRIPT = _STATIC.joinpath("live.js").read_bytes()
_FILES = {"style.css": (SHEET, "text/css"), "live.js": (_SCRIPT, "text/javascript")}
_VERSION = hashlib.sha256(SHEET + _SCRIPT).hexdigest()[:12]
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src {pictures}; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not no-referrer: browsers would then send forms without an origin, like forms from other sites.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_MAY_REFRESH = "; script-src 'self'; connect-src 'self'"
OWN_PICTURES = "'self' data:"
ALL_PICTURES = "'self' data: http: https:"
_KEYED = re.compile(r"(?<=.) \[[0-9a-f]{32}\]$")
_JSON_PARTS = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d[\d.eE+-]*)')


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a list that a page shows; ``number`` counts pages from 1, and ``size`` is entries per page."""

    number: int
    size: int

    @property
    def skip(self) -> int:
        """The number of entries on earlier pages."""
        return (self.number - 1) * self.size

    def rows(self, connection: Connection, query: Select[Any]) -> Sequence[Row[tuple[Any, ...]]]:
        """Return the rows of this part of a query."""
        return connection.execute(query.limit(self.size).offset(self.skip)).all()


def page_of(request: Request, size: int) -> Slice:
    """Read the page number from the query; anything but a reasonable number means the first page."""
    number = request.query_params.get("page", "1")
    good = number.isascii() and number.isdigit() and 0 < len(number) < 8
    return Slice(max(1, int(number)) if good else 1, size)


def page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    pictures: str = OWN_PICTURES,
    is_live: bool = False,
    **values: Any,
) -> Response:
    """Render a template. Values are escaped, and the policy forbids the browser to run or load anything else.

    ``is_live``: the page runs the script that refreshes its parts with ``data-live``.
    """
    values |= {"request": request, "path": request.url.path, "is_live": is_live}
    policy = _POLICY.format(pictures=pictures) + _MAY_REFRESH * is_live
    text = _TEMPLATES.get_template(template).render(values)
    return Response(text, status, {**_HEADERS, "Content-Security-Policy": policy}, "text/html; charset=utf-8")


def document(text: str, policy: str) -> Response:
    """Return a document from a message, to show in a frame under its own policy."""
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    return Response(text, 200, headers, "text/html; charset=utf-8")


def static_file(name: str) -> Response:
    """Return the style sheet or the script. Browsers may cache it, because its URL changes with its content."""
    if name not in _FILES:
        raise HTTPException(404, "There is no such file.")
    content, kind = _FILES[name]
    headers = {"Cache-Control": "max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(content, 200, headers, f"{kind}; charset=utf-8")


def wants_page(request: Request) -> bool:
    """Check whether a browser asks for a page. Requests that send something get JSON, whatever they accept."""
    return request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")


def error_page(
    request: Request, code: int, text: str, headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    """Return an error as a page."""
    answer = page(request, "error.html", status=code, code=code, text=text)
    answer.headers.update(headers)
    return answer


class PageRoute(APIRoute):
    """A route that answers errors with pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that answers an HTTPException with a page."""
        answer = super().get_route_handler()

        async def answer_with_page(request: Request) -> Response:
            try:
                return await answer(request)
            except HTTPException as error:
                return error_page(request, error.status_code, error.detail, error.headers or {})
            except RequestValidationError:
                return error_page(request, 400, "This address or form does not belong to this service.")

        return answer_with_page


def _moment(seconds: float | None) -> Markup:
    if seconds is None:
        return Markup("&ndash;")
    at = datetime.fromtimestamp(seconds, UTC)
    year = f" {at.year}" if at.year != datetime.now(UTC).year else ""
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(), f"{at:%A} {at.day} {at:%B %Y, %H:%M:%S}", f"{at.day} {at:%b}{year}, {at:%H:%M:%S}"
    )


def _length(seconds: float) -> str:
    """Return a duration, rounded up, as ``clock advance`` reads it: 2d3h1m."""
    minutes = math.ceil(seconds / 60)
    parts = ((minutes // 1_440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "m"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "1m"


def _last_day(seconds: float) -> Markup:
    """Return an expiry as the last day before it ends; midnight counts as the end of the previous day."""
    at = datetime.fromtimestamp(seconds, UTC)
    last = at - timedelta(microseconds=1)
    return Markup('<time datetime="{}" title="to {} UTC">{}</time>').format(
        at.isoformat(), f"{at:%A, %H:%M:%S}", f"{last.day} {last:%B %Y}"
    )


def _plain_title(title: str) -> str:
    """Return the title of a campaign without the key that Sendoff adds."""
    return _KEYED.sub("", title)


def _json_text(text: bytes) -> Markup | str:
    try:
        return _json(orjson.loads(text))
    except ValueError:  # damaged by a fault
        return text.decode(errors="replace")


def _json(value: Any) -> Markup:
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    shown, at = [], 0
    for part in _JSON_PARTS.finditer(text):
        kind = "key" if part[2] else "text" if part[1] else "word" if part[3] else "number"
        shown += [escape(text[at : part.start()]), Markup('<span class="{}">').format(f"json-{kind}")]
        shown += [escape(part[1] or part[0]), Markup("</span>"), escape(part[2] or "")]
        at = part.end()
    return Markup("").join([*shown, escape(text[at:])])


def _with_query(request: Request, **changes: Any) -> str:
    """Return the URL of this page with some query parameters changed; None removes a parameter."""
    query = {**request.query_params, **changes}
    left = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{request.url.path}?{left}" if left else request.url.path


_TEMPLATES = Environment(
    loader=PackageLoader("messaging_service.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "moment": _moment,
    "last_day": _last_day,
    "length_of_time": _length,
    "json": _json,
    "json_text": _json_text,
    "count": "{:,}".format,
    "plain_title": _plain_title,
}
_TEMPLATES.globals |= {"version": _VERSION, "with_query": _with_query}
