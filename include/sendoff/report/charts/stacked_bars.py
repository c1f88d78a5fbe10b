"""The verdicts of the groups of a launch, such as its platforms, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sendoff.figures import VERDICTS, Figures, share
from sendoff.report.charts.canvas import COLOURS, EM, SIZE, WIDE, Sheet, colour_of, shortened, words_of

_MOST_GROUPS = 12


def verdicts_by(
    figures: Figures,
    groups: Mapping[str, Mapping[str, int]],
    *,
    what: str,
    width: int = WIDE,
    name: str = "groups",
) -> str:
    """Draw the verdicts of each group as shares of it, below those of everybody; ``what``: of what there are groups.

    Of many groups, the largest are drawn, and the others as one.
    """
    rows = _rows(figures, groups)
    used = [verdict for verdict in VERDICTS if any(counts.get(verdict) for _, counts in rows)]
    key = _key(used, width)
    top = 20.0 * (1 + max((line for _, _, line in key), default=-1)) + 6
    sheet = Sheet(width, top + 30 * len(rows) + 4)
    for verdict, x, line in key:
        sheet.bar(x, 10 + 20 * line, 12, colour_of(verdict), tall=12)
        sheet.write(x + 18, 10 + 20 * line, words_of(verdict))
    left, right = (128.0, width - 76.0) if width >= WIDE else (86.0, width - 66.0)
    for place, (group, counts) in enumerate(rows):
        y = top + 30 * (place + 0.5)
        sheet.write(0, y, shortened(group, left - 8), bold=not place)
        sheet.write(width, y, f"{sum(counts.values()):,}", ha="right", bold=not place)
        _stack(sheet, counts, left, right, y, shows_shares=not figures.is_chosen_by_service)
    said = "; ".join(
        f"{group}: " + ", ".join(f"{words_of(verdict)} {counts.get(verdict, 0):,}" for verdict in used)
        for group, counts in rows
    )
    return sheet.as_svg(name, f"Verdicts by {what}, as shares of each", said)


def _rows(figures: Figures, groups: Mapping[str, Mapping[str, int]]) -> list[tuple[str, Mapping[str, int]]]:
    ordered = sorted(groups.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    shown, rest = ordered, ordered[_MOST_GROUPS:]
    if len(rest) > 1:
        together = {verdict: sum(counts.get(verdict, 0) for _, counts in rest) for verdict in VERDICTS}
        shown = [*ordered[:_MOST_GROUPS], (f"{len(rest)} others", together)]
    return [("heard of" if figures.is_chosen_by_service else "audience", figures.verdicts), *shown]


def _key(verdicts: Sequence[str], width: int) -> list[tuple[str, float, int]]:
    """Place the verdicts of the key: each with its distance from the left, and its line."""
    placed, x, line = [], 0.0, 0
    for verdict in verdicts:
        needed = 18 + len(verdict) * SIZE * EM + 18
        if x and x + needed > width:
            x, line = 0.0, line + 1
        placed.append((verdict, x, line))
        x += needed
    return placed


def _stack(
    sheet: Sheet, counts: Mapping[str, int], left: float, right: float, y: float, *, shows_shares: bool
) -> None:
    total, x = sum(counts.values()), left
    if not total:
        sheet.line([left, right], [y, y])
    for verdict in VERDICTS:
        count = counts.get(verdict, 0)
        wide = (right - left) * count / total if total else 0
        if not wide:
            continue
        gap = 1.0 if wide > 3 else 0.0  # lets the ground show between two bars
        sheet.bar(x, y, wide - gap, colour_of(verdict), tall=22)
        words = share(count, total) if shows_shares else f"{count:,}"
        needed = len(words) * SIZE * EM + 8
        if wide > needed:
            if verdict == "unknowable":  # a plate, or the hatching would cross the number
                sheet.bar(x + wide / 2 - needed / 2, y, needed, "ground", tall=16)
            ink = f"on-{colour_of(verdict)}"
            sheet.write(x + wide / 2, y, words, colour=ink if ink in COLOURS else "ink", ha="center")
        x += wide
