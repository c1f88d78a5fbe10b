"""A sheet: a drawing that becomes an SVG, whose colours stand for names that the page defines for day and night."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from threading import Lock

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

WIDE, NARROW = 720, 340
"""Widths for a page on a desk and on a phone."""

COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1f2328", "#e6e9ed"),
    "pale": ("#59636e", "#a3adb8"),
    "ground": ("#ffffff", "#14171b"),
    "rule": ("#d1d9e0", "#3d444d"),
    "engaged": ("#007a57", "#3fbf93"),
    "on-engaged": ("#ffffff", "#10130f"),
    "delivered": ("#8fc9ee", "#25719f"),
    "on-delivered": ("#1f2328", "#ffffff"),
    "missing": ("#c24e00", "#f08c4a"),
    "on-missing": ("#ffffff", "#14171b"),
    "unknowable": ("#eceef1", "#22272e"),
    "unknowable-edge": ("#6e7781", "#8b949e"),
    "in-doubt": ("#f2d648", "#c9a91f"),
    "on-in-doubt": ("#1f2328", "#14171b"),
    "in-doubt-edge": ("#8a6d00", "#e8cd5a"),
    "not-sent": ("#ffffff", "#14171b"),
    "not-sent-edge": ("#6e7781", "#8b949e"),
    "total": ("#59636e", "#a3adb8"),
    "deliveries": ("#0069a8", "#58a6e0"),
    "opens": ("#007a57", "#3fbf93"),
}
"""The colours of the charts by name, in the light and in the dark; text on each has a contrast of 4.5 or more."""

NAMED = {name: f"#0{number:05x}" for number, name in enumerate(COLOURS, start=0xA0001)}
"""For each name the colour with which Matplotlib draws, and which becomes the name's variable in the page."""

SIZE = 12.0
"""The size of text."""

EM = 0.56
"""The width of a letter, as a share of its size."""

BAR = 15.0
"""How tall a bar is."""

_HATCHED = "////"
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "sendoff", "font.family": "sans-serif"}
_drawing = Lock()  # for settings are Matplotlib's own, and the same in all threads


def css() -> str:
    """Give the CSS that a page with charts needs: the variables of their colours, and how a chart is shown."""
    light, dark = (
        "".join(f"--chart-{name}:{both[which]};" for name, both in COLOURS.items()) for which in (0, 1)
    )
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{color-scheme:light;{light}}}}}\n"
        "svg.chart{display:block;width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt}\n"
        "svg.chart text{font-family:inherit}\n"
    )


@dataclass(slots=True)
class Sheet:
    """A drawing of so many pixels, measured from its top left corner."""

    width: float
    height: float
    figure: Figure = field(init=False)
    axes: Axes = field(init=False)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)
        FigureCanvasSVG(self.figure)
        self.figure.patch.set_visible(False)
        self.axes = self.figure.add_axes((0, 0, 1, 1), frame_on=False, xticks=[], yticks=[])
        self.axes.set(xlim=(0, self.width), ylim=(self.height, 0))

    def bar(self, x: float, y: float, width: float, colour: str, *, tall: float = BAR) -> None:
        """Draw a bar from ``x``, its middle at the height ``y``; what is not known is hatched or outlined."""
        edge = {"unknowable": "unknowable-edge", "not-sent": "not-sent-edge", "in-doubt": "in-doubt-edge"}
        outlined = colour in edge
        inset = 0.5 if outlined and width > 1 else 0  # so that the outline lies inside
        self.axes.add_patch(
            Rectangle(
                (x + inset, y - tall / 2 + inset),
                width - 2 * inset,
                tall - 2 * inset,
                facecolor=NAMED[colour],
                edgecolor=NAMED[edge.get(colour, colour)],
                linewidth=1 if outlined else 0,
                hatch=_HATCHED if colour == "unknowable" else None,
            )
        )

    def write(
        self, x: float, y: float, words: str, *, colour: str = "ink", ha: str = "left", bold: bool = False
    ) -> None:
        """Write words, their middle at the height ``y``; nothing in them is a formula."""
        self.axes.text(
            x,
            y,
            words,
            ha=ha,
            va="center_baseline",
            color=NAMED[colour],
            size=SIZE,
            weight="bold" if bold else "normal",
            parse_math=False,
        )

    def line(self, x: Sequence[float], y: Sequence[float], colour: str = "rule", width: float = 1) -> None:
        """Draw a line through these points."""
        self.axes.plot(x, y, color=NAMED[colour], linewidth=width, solid_capstyle="butt")

    def as_svg(self, name: str, title: str, description: str) -> str:
        """Give the drawing as an ``<svg>`` element whose ids begin with a name."""
        file = StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with _drawing, rc_context(_SETTINGS):  # type: ignore[arg-type]
            self.figure.savefig(file, format="svg", metadata=nothing)
        drawn = file.getvalue()
        body = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
        body = re.sub(
            r"<(metadata|style)\b.*?</\1>|<!--.*?-->", "", body, flags=re.DOTALL
        )  # their style is for all
        body = re.sub(r'(\sid="|url\(#|href="#)', rf"\1{name}-", body)
        body = body.replace("xlink:href", "href")
        body = re.sub(
            r"font: ([^;\"]*?)(\d[\d.]*)px [^;\"]*", r"font: \1\2px var(--chart-font, sans-serif)", body
        )
        for colour, sentinel in NAMED.items():
            body = body.replace(sentinel, f"var(--chart-{colour})")
        named = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        return (
            f'<svg class="chart" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-labelledby="{name}-title" aria-describedby="{name}-desc">{named}{body.strip()}'
        )


def colour_of(verdict: str) -> str:
    """Give the name of a verdict's colour."""
    return verdict.replace("_", "-")


def words_of(verdict: str) -> str:
    """Give a verdict as people read it."""
    return verdict.replace("_", " ")


def shortened(text: str, room: float) -> str:
    """Give as much of a text as fits into so many pixels, with an ellipsis where that is not all."""
    limit = int(room / (SIZE * EM))
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"
