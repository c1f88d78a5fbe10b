"""The sums of a launch: from the rows of its query to the audience, and from that to its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sendoff.figures import HEARD_OF, VERDICTS, Figures, share
from sendoff.report.charts.canvas import BAR, WIDE, Sheet, colour_of, shortened, words_of

_ROW = 24.0
_SHARE_ROOM = 56


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the flow: its bar from ``start``, and what is written beside it."""

    name: str
    count: int
    start: int
    colour: str
    text: str
    part: str = ""  # of the audience
    is_sum: bool = False


def flow(figures: Figures, *, width: int = WIDE, name: str = "flow") -> str:
    """Draw the sums of a launch from the rows of its query to its verdicts: each bar begins where the last one ended.

    ``name`` is part of every id in the SVG: give two charts of one page different ones.
    """
    lines = _chosen_by_service(figures) if figures.is_chosen_by_service else _from_rows(figures)
    sheet = Sheet(width, _ROW * len(lines) + 8)
    left, right = _columns(width)
    scale = (right - left) / max(1, *(line.start + line.count for line in lines))
    for place, line in enumerate(lines):
        y = 4 + _ROW * (place + 0.5)
        sheet.write(0, y, shortened(line.name, left - 8), bold=line.is_sum)
        sheet.write(
            width - _SHARE_ROOM * any(each.part for each in lines), y, line.text, ha="right", bold=line.is_sum
        )
        sheet.write(width, y, line.part, ha="right")
        if line.count:
            sheet.bar(left + line.start * scale, y, max(1.5, line.count * scale), line.colour)
        if place + 1 < len(lines):
            end = left + _end(line, lines[place + 1]) * scale
            sheet.line([end, end], [y + BAR / 2, y + _ROW - BAR / 2], "pale", 0.8)
    said = "; ".join(f"{line.name}: {line.text} {line.part}".rstrip() for line in lines)
    title = "From the rows of the query to one verdict for each person"
    return sheet.as_svg(name, "Who was heard of" if figures.is_chosen_by_service else title, said)


def _columns(width: int) -> tuple[float, float]:
    """Give where bars begin and end, between names and numbers."""
    return (178, width - 150) if width >= WIDE else (124, width - 126)


def _end(line: _Line, following: _Line) -> int:
    """Give the count at which two lines meet."""
    ends = {line.start, line.start + line.count} & {following.start, following.start + following.count}
    return max(ends, default=line.start)


def _from_rows(figures: Figures) -> list[_Line]:
    lines = [_Line("rows of the query", figures.rows, 0, "total", f"{figures.rows:,}", is_sum=True)]
    left = figures.rows
    for reason, count in figures.dropped.items():
        left -= count
        lines.append(_Line(f"- {reason}", count, max(0, left), "pale", f"- {count:,}"))
    lines.append(_Line("= audience", figures.audience, 0, "total", f"{figures.audience:,}", is_sum=True))
    return [*lines, *_verdict_lines(figures, VERDICTS)]


def _chosen_by_service(figures: Figures) -> list[_Line]:
    heard = _Line("heard of", figures.audience, 0, "total", f"{figures.audience:,}", is_sum=True)
    return [heard, *_verdict_lines(figures, HEARD_OF)]


def _verdict_lines(figures: Figures, verdicts: Sequence[str]) -> list[_Line]:
    lines, start = [], 0
    for verdict in verdicts:
        count = figures.verdicts.get(verdict, 0)
        part = "" if figures.is_chosen_by_service else share(count, figures.audience)
        lines.append(_Line(words_of(verdict), count, start, colour_of(verdict), f"{count:,}", part))
        start += count
    return lines
