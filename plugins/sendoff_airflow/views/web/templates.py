"""Render the templates of the pages, with filters for numbers and times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from sendoff.campaign import Period
from sendoff.figures import counted, in_words, noun_for, noun_of, share, span_in_words, spoken_reason
from sendoff.launch import describe_scope
from sendoff.report import period_in_words
from sendoff.states import DispatchState, OutcomeKind
from sendoff_airflow.views.web.permissions import MARK
from sendoff_airflow.views.web.reader import zone_of


def page(request: Request, template: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Render a template. In it, ``root`` is the relative URL of the first page, and ``airflow`` that of Airflow.

    ``zone`` is the reader's time zone.
    """
    depth = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/").count("/")
    root = "../" * depth or "./"
    known = {"root": root, "airflow": f"{root}../", "zone": zone_of(request).key}
    return HTMLResponse(_environment.get_template(template).render(known | values), status_code)


def is_part(request: Request) -> bool:
    """Check whether our script sent the request and will put the answer into the current page."""
    return request.headers.get(MARK) == "1"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _relative(moment: datetime) -> str:
    """Return how far a moment is from now: ``4 s ago``, ``in 3 h 20 min``."""
    seconds = round((moment - datetime.now(UTC)).total_seconds())
    minutes, second = divmod(abs(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(counted(days, "day"), days), (f"{hour} h", hour), (f"{minute} min", minute)]
    length = " ".join([words for words, count in parts if count][:2]) or f"{second} s"
    return f"in {length}" if seconds > 0 else f"{length} ago"


def _capitalized(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:]


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _reason(name: str) -> str:
    return _spoken(spoken_reason(name))


def _slug(name: str) -> str:
    return name.replace("_", "-")


def grouped(periods: Sequence[Period]) -> list[tuple[datetime, datetime]]:
    """Return periods that follow each other as one span each."""
    spans: list[tuple[datetime, datetime]] = []
    for each in periods:
        if spans and spans[-1][1] == each.start:
            spans[-1] = (spans[-1][0], each.end)
        else:
            spans.append((each.start, each.end))
    return spans


_BY_PROGRESS = (
    DispatchState.ACCEPTED,
    DispatchState.REFUSED,
    OutcomeKind.NOT_PROCESSED,
    DispatchState.SUPPRESSED,
    DispatchState.IN_DOUBT,
    DispatchState.WRITTEN_OFF,
    DispatchState.IN_FLIGHT,
    DispatchState.PLANNED,
)


class _Part(NamedTuple):
    """A part of a bar. Its start and its width are in percent."""

    name: str
    size: int
    start: str
    width: str


def _parts(counts: Mapping[str, int]) -> list[_Part]:
    """Return the parts of a bar."""
    whole = sum(counts.values())
    found, start = [], 0
    for name in _BY_PROGRESS:
        if count := counts.get(name, 0):
            found.append(_Part(name, count, f"{100 * start / whole:.3f}%", f"{100 * count / whole:.3f}%"))
            start += count
    return found


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1] / "html"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
FILTERS = {
    "capitalize_first": _capitalized,
    "count": _count,
    "counted": counted,
    "moment": in_words,
    "grouped": grouped,
    "noun": noun_of,
    "noun_for": noun_for,
    "part": lambda text: quote(str(text), safe=""),
    "parts": _parts,
    "period": period_in_words,
    "reason": _reason,
    "relative": _relative,
    "scope": describe_scope,
    "share": share,
    "slug": _slug,
    "span": lambda ends: span_in_words(*ends),
    "spoken": _spoken,
    "tojson_text": json.dumps,
}
_environment.filters |= FILTERS
