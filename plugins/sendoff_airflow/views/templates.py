"""Render the templates of the pages, with filters for numbers and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from sendoff.figures import counted
from sendoff.states import DispatchState
from sendoff_airflow.views.permissions import MARK


def page(request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Render a template. In it, ``root`` is the relative URL of the first page, and ``airflow`` that of Airflow."""
    depth = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/").count("/")
    root = "../" * depth or "./"
    known = {"root": root, "airflow": f"{root}../"}
    return HTMLResponse(_environment.get_template(template).render(known | values), status_code)


def is_part(request: Request) -> bool:
    """Check whether our script sent the request and will put the answer into the current page."""
    return request.headers.get(MARK) == "1"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _moment(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else "-"


def _minute(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment else "-"


def _ago(moment: datetime | None) -> str:
    """Return the time since a moment, in the largest unit that fits."""
    if moment is None:
        return "-"
    seconds = int((datetime.now(UTC) - moment).total_seconds())
    for length, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if abs(seconds) >= length:
            return f"{counted(abs(seconds) // length, name)} ago"
    return "just now"


def _period(key: str) -> str:
    """Return a period in the shortest form: a whole day as its date."""
    start, end, *partition = key.split("/", 2)
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
    if first.time() == last.time() == time() and last - first <= timedelta(days=1):
        text = f"{first:%Y-%m-%d}"
    else:
        text = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}"
    return " ".join([text, *partition])


def _capitalized(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:]


def _spoken(name: str) -> str:
    return name.replace("_", " ").replace("holdout", "control group")


def _slug(name: str) -> str:
    return name.replace("_", "-")


_BY_PROGRESS = (
    DispatchState.ACCEPTED,
    DispatchState.REFUSED,
    DispatchState.IN_DOUBT,
    DispatchState.WRITTEN_OFF,
    DispatchState.IN_FLIGHT,
    DispatchState.PLANNED,
)


def _parts(
    counts: Mapping[str, int], order: tuple[str, ...] = _BY_PROGRESS
) -> list[tuple[str, int, str, str]]:
    """Return the parts of a bar as (name, count, start, width), with start and width in percent."""
    whole = sum(counts.values())
    found, start = [], 0
    for name in order:
        if count := counts.get(name, 0):
            found.append((name, count, f"{100 * start / whole:.3f}%", f"{100 * count / whole:.3f}%"))
            start += count
    return found


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("html")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "ago": _ago,
    "capitalize_first": _capitalized,
    "count": _count,
    "counted": counted,
    "minute": _minute,
    "moment": _moment,
    "part": lambda text: quote(str(text), safe=""),
    "parts": _parts,
    "period": _period,
    "slug": _slug,
    "spoken": _spoken,
    "tojson_text": json.dumps,
}
