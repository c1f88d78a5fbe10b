"""When the post-backs of a launch came."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sendoff.figures import Figures
from sendoff.report.charts.canvas import NAMED, SIZE, WIDE, Sheet
from sendoff.report.picture import points_of, span

_FEW = 40  # points of the timeline, below which each is marked
_MARKS = {"deliveries": "o", "opens": "s"}


def timeline(figures: Figures, *, width: int = WIDE, name: str = "timeline") -> str:
    """Draw when deliveries and opens came, by the minute of their reception (UTC) or by longer steps."""
    step, points = points_of(figures.timeline)
    is_wide = width >= WIDE
    sheet = Sheet(width, 240 if points else 70)
    totals = [("deliveries", sum(count for _, count, _ in points), 0.0)]
    totals.append(("opens", sum(count for _, _, count in points), width / 2 if not is_wide else 180.0))
    for kind, total, x in totals:
        sheet.line([x, x + 18], [10, 10], kind, 2.4)
        sheet.axes.plot([x + 9], [10], color=NAMED[kind], marker=_MARKS[kind], markersize=6)
        sheet.write(x + 25, 10, f"{'opens, clicks' if kind == 'opens' else kind} {total:,}")
    title = f"Deliveries and opens per {span(step)} (UTC)"
    if not points:
        sheet.write(width / 2, 50, "No post-back yet", colour="pale", ha="center")
        return sheet.as_svg(name, title, "No post-back yet.")
    low, high = 212.0, 34.0
    axes = sheet.figure.add_axes(
        (46 / width, (sheet.height - low) / sheet.height, 1 - 58 / width, (low - high) / sheet.height)
    )
    _draw_timeline(axes, points, step, is_wide=is_wide)
    said = ", ".join(f"{total:,} {kind}" for kind, total, _ in totals)
    first, last = (f"{at:%Y-%m-%d %H:%M}" for at in (points[0][0], points[-1][0]))
    return sheet.as_svg(name, title, f"{said}, from {first} to {last} UTC.")


def _draw_timeline(
    axes: Axes, points: Sequence[tuple[object, int, int]], step: int, *, is_wide: bool
) -> None:
    times, deliveries, opens = zip(*points, strict=True)
    moments = date2num(times)  # type: ignore[no-untyped-call]
    axes.patch.set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(NAMED["rule"])
    axes.tick_params(length=0, labelcolor=NAMED["pale"], labelsize=SIZE - 1)
    for kind, counts in (("deliveries", deliveries), ("opens", opens)):
        axes.fill_between(moments, counts, color=NAMED[kind], alpha=0.14, linewidth=0)
        marker = _MARKS[kind] if len(points) < _FEW else None
        style = "-" if kind == "deliveries" else (0, (5, 1.5))  # told apart without colours too
        axes.plot(moments, counts, color=NAMED[kind], linewidth=1.8, linestyle=style, marker=marker, ms=4)
    axes.set_ylim(0, 1.08 * max(1, *deliveries, *opens))
    margin = max(len(points) * 0.03, 2) * step / 1_440  # in days
    axes.set_xlim(moments[0] - margin, moments[-1] + margin)
    axes.grid(axis="y", color=NAMED["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _rounded(value)))
    locator = AutoDateLocator(tz=UTC, minticks=2, maxticks=8 if is_wide else 5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.get_offset_text().set_color(NAMED["pale"])
    axes.xaxis.get_offset_text().set_fontsize(SIZE - 1)


def _rounded(value: float) -> str:
    return f"{value / 1_000_000:g} M" if value >= 1_000_000 else f"{value:,.0f}"
