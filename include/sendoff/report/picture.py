"""Draw a launch as a picture: its verdicts by platform, and the post-backs over time.

It uses only Matplotlib's objects, so that any thread can draw. The colours are those of the pages, in hues that
colour-blind people can tell apart. Hatching marks the unknowable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sendoff.errors import UsageError
from sendoff.figures import LaunchStats, TimelinePoint, share
from sendoff.report.model import Groups
from sendoff.report.timeline import FEWEST_POINTS, points_of, span
from sendoff.report.tokens import light_colours
from sendoff.report.whole_file import page_file
from sendoff.report.wording import few_points, period_in_words
from sendoff.states import Verdict

_WIDTH, _DPI = 12.0, 160
_COLOURS = light_colours()
_INK, _PALE, _RULE, _GROUND = (_COLOURS[name] for name in ("ink", "pale", "rule", "ground"))
_DELIVERIES, _OPENS = _COLOURS["delivery"], _COLOURS["open"]
_EDGE, _RIGHT_EDGE = 0.035, 0.965  # of the page
_LEFT, _RIGHT = 0.125, 0.87  # of the panels: names to the left, totals to the right
_LABEL_FITS = 0.055  # of a bar's length
_MOST_PLATFORMS = 10
_FEW = 40  # below this number of points, each is marked


@dataclass(frozen=True, slots=True)
class _Look:
    fill: str
    ink: str
    edge: str | None
    hatch: str | None

    @classmethod
    def of(cls, verdict: Verdict) -> _Look:
        name = verdict.replace("_", "-")
        hatch = "////" if verdict == Verdict.UNKNOWABLE else None
        return cls(_COLOURS[name], _COLOURS[f"on-{name}"], _COLOURS.get(f"{name}-edge"), hatch)


_LOOKS: Mapping[str, _Look] = {verdict: _Look.of(verdict) for verdict in Verdict}


def draw(figures: LaunchStats, path: Path, title: str | None = None) -> Path:
    """Draw a launch to a PNG or SVG file, by its suffix, and return its path. Create the folder if it is missing.

    ``title``: of the campaign, for people who do not know its name.

    Raise UsageError for a suffix of no picture, and SettingsError if the file cannot be written.
    """
    kind = path.suffix[1:].lower()
    if kind not in ("png", "svg"):
        raise UsageError(f"{path.name}: the file name must end in .png or .svg.")
    rows = Groups.of(figures, "platform", figures.by_platform).bars(_MOST_PLATFORMS)
    step, points = points_of(figures.timeline)
    timeline = 2.2 if len(points) >= FEWEST_POINTS else 0.4  # a chart, or a sentence
    inches = {"head": 2.3, "bars": 0.2 + 0.47 * len(rows), "gap": 0.9, "timeline": timeline, "foot": 0.9}
    height = sum(inches.values())
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor=_GROUND)
    FigureCanvasAgg(figure)

    def panel(bottom: float, tall: float) -> Axes:
        axes = figure.add_axes((_LEFT, bottom / height, _RIGHT - _LEFT, tall / height))
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0, colors=_PALE, labelsize=10)
        return axes

    _head(figure, figures, title)
    _tiles(figure, figures)
    bars = panel(inches["foot"] + inches["timeline"] + inches["gap"], inches["bars"])
    _bars(bars, rows, shows_shares=not figures.is_chosen_by_service)
    _timeline(panel(inches["foot"], timeline), step, points)
    _foot(figure, figures)
    with page_file(path) as file:
        figure.savefig(file, format=kind)
    return path


def _head(figure: Figure, figures: LaunchStats, title: str | None) -> None:
    period = period_in_words(figures.period) if title else figures.period
    what = f"{period}   launch {figures.launch_key[:8]}   as of {figures.as_of:%Y-%m-%d %H:%M %Z}"
    source = f"audience: {figures.rows:,} rows less {sum(figures.dropped.values()):,} dropped"
    if figures.is_chosen_by_service:
        source = "in the post-backs; the service chose the people"
    title = _shortened(title or figures.campaign, 44)
    for x, side, large, small in (
        (_EDGE, "left", title, what),
        (_RIGHT_EDGE, "right", f"{figures.audience:,}", source),
    ):
        _write(figure, x, 0.35, large, size=22, weight="bold", ha=side)
        _write(figure, x, 0.82, small, color=_PALE, ha=side)


def _write(figure: Figure, x: float, below_top: float, words: str, **style: Any) -> None:
    """Write text on the page, ``below_top`` inches from its top. The text is never read as a formula."""
    look: dict[str, Any] = {"size": 10.5, "color": _INK, "va": "top", "parse_math": False} | style
    figure.text(x, 1 - below_top / figure.get_figheight(), words, **look)


def _tiles(figure: Figure, figures: LaunchStats) -> None:
    """Draw each verdict's share and count. Their swatches are the legend of the bars.

    If the service chose the people, only counts are shown: the total is not known.
    """
    tall = figure.get_figheight()
    step = (_RIGHT_EDGE - _EDGE) / len(Verdict)
    for place, verdict in enumerate(figures.known_verdicts):
        count, x = figures.verdicts.get(verdict, 0), _EDGE + place * step
        look = _LOOKS[verdict]
        swatch = Rectangle(
            (x, 1 - 1.46 / tall),
            0.16 / _WIDTH,
            0.16 / tall,
            facecolor=look.fill,
            edgecolor=look.edge or look.fill,
            hatch=look.hatch,
            transform=figure.transFigure,
        )
        figure.add_artist(swatch)
        word = verdict.replace("_", " ")
        _write(figure, x + 0.25 / _WIDTH, 1.38, word, va="center")
        big, small = share(count, figures.audience), f"{count:,}"
        if figures.is_chosen_by_service:
            big, small = small, ""
        if not figures.is_measured(verdict):
            big, small = "?", "not measured"
        _write(figure, x, 1.55, big, size=17, weight="bold", color=_INK if count else _PALE)
        _write(figure, x, 1.89, small, color=_PALE)


def _bars(axes: Axes, rows: Sequence[tuple[str, Mapping[str, int]]], *, shows_shares: bool) -> None:
    for place, (name, counts) in enumerate(rows):
        y = -place - (0.25 if place else 0)  # a gap below the audience
        _bar(axes, y, counts, shows_shares=shows_shares)
        weight = "normal" if place else "bold"
        style: dict[str, Any] = {"va": "center", "size": 10.5, "color": _INK, "weight": weight}
        axes.text(-0.012, y, _shortened(name, 12), ha="right", parse_math=False, **style)
        axes.text(1.012, y, f"{sum(counts.values()):,}", ha="left", **style)
    axes.set(
        xlim=(0, 1), ylim=(0.55 - len(rows) - (0.25 if len(rows) > 1 else 0), 0.55), xticks=[], yticks=[]
    )
    axes.spines["bottom"].set_visible(False)


def _bar(axes: Axes, y: float, counts: Mapping[str, int], *, shows_shares: bool) -> None:
    total, left = sum(counts.values()), 0.0
    if not total:
        axes.add_patch(Rectangle((0, y - 0.36), 1, 0.72, facecolor="none", edgecolor=_RULE, linestyle=":"))
        return
    for verdict in Verdict:
        width, look = counts.get(verdict, 0) / total, _LOOKS[verdict]
        if not width:
            continue
        axes.barh(
            y,
            width,
            0.72,
            left,
            color=look.fill,
            edgecolor=look.edge or _GROUND,
            hatch=look.hatch,
            linewidth=0 if look.hatch else 1,
        )
        if width > _LABEL_FITS:
            plate = {"boxstyle": "round,pad=0.2", "facecolor": _GROUND, "edgecolor": "none"}
            axes.text(
                left + width / 2,
                y,
                share(counts[verdict], total) if shows_shares else f"{counts[verdict]:,}",
                ha="center",
                va="center",
                size=10,
                color=look.ink,
                bbox=plate if look.hatch else None,
            )
        left += width


def _timeline(axes: Axes, step: int, points: Sequence[TimelinePoint]) -> None:
    if len(points) < FEWEST_POINTS:
        axes.set_axis_off()
        axes.text(0, 1, "Post-backs", size=11, weight="bold", color=_INK)
        axes.text(0, 0.2, few_points(step, points), size=10.5, color=_PALE)
        return
    _timeline_heading(axes, step, points)
    axes.spines["bottom"].set_color(_RULE)
    times, deliveries, opens = zip(*points, strict=True)
    moments = date2num(times)  # type: ignore[no-untyped-call]
    for counts, colour in ((deliveries, _DELIVERIES), (opens, _OPENS)):
        axes.fill_between(moments, counts, color=colour, alpha=0.12, linewidth=0)
        marker = "o" if len(points) < _FEW else None
        axes.plot(moments, counts, color=colour, linewidth=2, marker=marker, clip_on=False)
    axes.set_ylim(0, 1.08 * max(1, *deliveries, *opens))
    margin = max(len(points) * 0.03, 2) * step / 1_440  # in days
    axes.set_xlim(moments[0] - margin, moments[-1] + margin)
    axes.grid(axis="y", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    locator = AutoDateLocator(tz=UTC, minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.tick_params(axis="x", pad=7)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)


def _timeline_heading(axes: Axes, step: int, points: Sequence[TimelinePoint]) -> None:
    deliveries, opens = sum(each.deliveries for each in points), sum(each.opens for each in points)
    words = [
        (f"Post-backs per {span(step)} (UTC)", _INK, "bold"),
        (f"deliveries {deliveries:,}", _DELIVERIES, "bold"),
        (f"opens and clicks {opens:,}", _OPENS, "bold"),
    ]
    parts: list[Artist] = [
        TextArea(text, textprops={"color": colour, "size": 11, "weight": weight})
        for text, colour, weight in words
    ]
    axes.add_artist(
        AnchoredOffsetbox(
            "lower left",
            child=HPacker(children=parts, pad=0, sep=16),
            bbox_to_anchor=(0, 1.06),
            bbox_transform=axes.transAxes,
            frameon=False,
            pad=0,
            borderpad=0,
        )
    )


def _foot(figure: Figure, figures: LaunchStats) -> None:
    words, colour = _remark(figures), _PALE
    if figures.unaccounted_rows or figures.unaccounted_identifiers:
        words, colour = "THESE FIGURES DO NOT ADD UP. Please report this defect.", _COLOURS["refused"]
    _write(figure, _EDGE, figure.get_figheight() - 0.22, words, size=9.5, color=colour, va="bottom")


def _remark(figures: LaunchStats) -> str:
    low, high = figures.reached
    if high is None:
        words = "The service chose the people, so their number is not known."
        again = " Sent again and again." if figures.is_recurring else ""
        return f"{words} Reached: at least {low:,}; at most is not known.{again}"
    shares = [share(count, figures.audience) for count in (low, high)]
    words = (
        f"Reached of the audience: at least {shares[0]}, at most {shares[1]}. " if figures.audience else ""
    )
    if figures.is_recurring:
        words += "Sent again and again: silence proves nothing."
    else:
        words += "Unknowable: accepted, then silent where silence proves nothing."
    erased = f" Erased since: {figures.erased:,}." if figures.erased else ""
    return f"{words}\nIn doubt: it is not known whether the service processed it.{erased}"


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"
