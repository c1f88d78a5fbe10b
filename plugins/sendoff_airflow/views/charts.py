"""The charts of a launch for a page whose policy allows no style in the page itself.

Drawn once for each report and kept: a page that is looked at again, or that looks again by itself, draws nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from threading import BoundedSemaphore, Lock

from markupsafe import Markup

from sendoff.figures import Figures
from sendoff_airflow.views.permissions import too_busy

_KEPT = 128
_STYLE = re.compile(r'\sstyle="([^"]*)"')
_FONT = re.compile(r"(?P<weight>bold|[1-9]00)?\s*(?P<size>\d[\d.]*px)\s+(?P<family>.+)")

_drawing = Lock()
_places = BoundedSemaphore(4)
_drawn: dict[tuple[str, str], Mapping[str, Markup]] = {}


def charts_of(figures: Figures) -> Mapping[str, Markup]:
    """Give the charts of a report by name, each for a desk and for a phone; an empty one is left out.

    Raises 503 where others draw and wait already: the threads that wait here are those that answer everybody.
    """
    key = (figures.launch_key, figures.as_of.isoformat())
    if (drawn := _drawn.get(key)) is not None:
        return drawn
    if not _places.acquire(blocking=False):
        raise too_busy()
    try:
        return _draw_once(key, figures)
    finally:
        _places.release()


def _draw_once(key: tuple[str, str], figures: Figures) -> Mapping[str, Markup]:
    with _drawing:  # one at a time: they take the processor, and what waits will find them drawn
        if key not in _drawn:
            while len(_drawn) >= _KEPT:
                del _drawn[next(iter(_drawn))]
            _drawn[key] = dict(_draw(figures))
        return _drawn[key]


def _draw(figures: Figures) -> Iterator[tuple[str, Markup]]:
    from sendoff.report import charts  # Matplotlib takes a while to import

    widths = (("wide", charts.WIDE), ("narrow", charts.NARROW))
    for width, pixels in widths:
        yield f"flow_{width}", _as_attributes(charts.flow(figures, width=pixels, name=f"flow-{width}"))
        yield (
            f"timeline_{width}",
            _as_attributes(charts.timeline(figures, width=pixels, name=f"time-{width}")),
        )
        for what, groups in (("platform", figures.by_platform), ("variant", figures.by_variant)):
            if groups:
                drawn = charts.verdicts_by(figures, groups, what=what, width=pixels, name=f"{what}-{width}")
                yield f"{what}_{width}", _as_attributes(drawn)


@lru_cache(maxsize=1)
def colours() -> str:
    """Give the colours of the charts as CSS: by day and by night, and as Airflow's own page has it where that says."""
    from sendoff.report import COLOURS

    light, dark = (
        "".join(f"--chart-{name}:{both[which]};" for name, both in COLOURS.items()) for which in (0, 1)
    )
    return (
        f":root{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
        f"@media print{{:root{{{light}}}}}\n"
    )


def _as_attributes(svg: str) -> Markup:
    """Say as attributes what a drawing says as style: the same to a browser, and no style of the page's own."""
    return Markup(_STYLE.sub(lambda found: _attributes(found[1]), svg))  # noqa: S704  # names are escaped in it


def _attributes(style: str) -> str:
    found: dict[str, str] = {}
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font" and (font := _FONT.fullmatch(value)):
            found |= {"font-size": font["size"], "font-family": font["family"]}
            if font["weight"]:
                found["font-weight"] = font["weight"]
        elif name:
            found[name] = value
    return "".join(f' {name}="{value}"' for name, value in found.items())
