"""The intervals of a comparison, held against no difference."""

from __future__ import annotations

from sendoff.report.charts.canvas import EM, NAMED, SIZE, WIDE, Sheet, shortened
from sendoff.report.comparison import Comparison, spoken


def differences(compared: Comparison, *, width: int = WIDE, name: str = "differences") -> str:
    """Draw the intervals of a comparison against the line where there is no difference; without any, give ''."""
    known = [
        (each, each.interval, each.estimate)
        for each in compared.differences
        if each.interval is not None and each.estimate is not None
    ]
    if not known:
        return ""
    ends = [0.0, *(end for _, interval, _ in known for end in (interval.low, interval.high))]
    low, high = min(ends), max(ends)
    left, right, tall = 10.0, width - 10.0, 52.0
    scale = (right - left) / ((high - low) or 1.0)
    sheet = Sheet(width, tall * len(known) + 30)
    zero, bottom = left - low * scale, tall * len(known) + 8
    sheet.line([zero, zero], [2, bottom], "rule", 1.5)
    sheet.write(_kept_in(zero, 46, width), bottom + 11, "no difference", colour="pale", ha="center")
    for place, (each, interval, estimate) in enumerate(known):
        y = tall * (place + 1) - 14
        seen = spoken(estimate, compared.measure)
        sheet.write(width, y - 22, seen, ha="right", bold=True)
        room = width - 12 - len(seen) * SIZE * EM
        sheet.write(0, y - 22, shortened(f"{each.side} against {each.against}", room))
        start, end = (left + (edge - low) * scale for edge in (interval.low, interval.high))
        for x, y_ in (([start, end], [y, y]), ([start] * 2, [y - 5, y + 5]), ([end] * 2, [y - 5, y + 5])):
            sheet.line(x, y_, "deliveries", 2)
        middle = left + (estimate - low) * scale
        sheet.axes.plot([middle], [y], color=NAMED["deliveries"], marker="o", markersize=8)
    said = "; ".join(each.sentence for each, _, _ in known)
    return sheet.as_svg(name, f"Differences in {compared.what}, with their intervals", said)


def _kept_in(x: float, half: float, width: float) -> float:
    return min(max(x, half), width - half)
