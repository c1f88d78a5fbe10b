"""Reports: the figures of a launch as text, JSON and a picture; as a page: :mod:`sendoff.report.page`.

A report says what is known, what cannot be known and why, and shows that its sums add up, or that they do not. Its
sentences are those of :mod:`sendoff.report.wording`, the same in each of its forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sendoff.figures import HEARD_OF, VERDICTS, Figures, counted, share
from sendoff.report.comparison import LEVEL, Comparison, Side, amount
from sendoff.report.wording import (
    VERDICT_WORDS,
    alarms,
    platform_remarks,
    reached,
    requests_and_post_backs,
    requests_without_people,
    rounding,
    unaccounted_identifiers,
    unaccounted_rows,
    variant_remarks,
    what_cannot_be_known,
    who_is_meant,
)

__all__ = [
    "VERDICT_WORDS",
    "as_comparison",
    "as_json",
    "as_picture",
    "as_table",
    "as_text",
    "comparison_text",
    "side_cells",
    "side_columns",
]

_COLOURS = {
    "engaged": "green",
    "delivered": "cyan",
    "missing": "red",
    "unknowable": "magenta",
    "in_doubt": "yellow",
    "not_sent": "",
}
_BAR = 24
_LARGE = 1_000_000  # by group, columns move together from this sum on, to fit 80 columns
_WIDE = 10_000_000  # and numbers are rounded


def as_json(figures: Figures, comparisons: Sequence[Comparison] = ()) -> dict[str, Any]:
    """Give the figures as JSON values, with how many were reached, and whether the sums add up.

    ``comparisons`` are a member of their own, where there are some.
    """
    at_least, at_most = figures.reached
    compared = {"comparisons": [each.to_json() for each in comparisons]} if comparisons else {}
    return (
        figures.to_json()
        | {"reached": {"at_least": at_least, "at_most": at_most}, "adds_up": not alarms(figures)}
        | compared
    )


def as_picture(figures: Figures, path: Path) -> Path:
    """Draw the figures into a file, PNG or SVG by its name, and give its path."""
    from sendoff.report.picture import draw  # Matplotlib takes a while to import

    return draw(figures, path)


def as_text(figures: Figures, width: int = 80) -> str:
    """Give the report as plain text without colours, for logs and files."""
    return _as_text(as_table(figures), width)


def comparison_text(compared: Comparison, width: int = 80) -> str:
    """Give a comparison as plain text without colours."""
    return _as_text(as_comparison(compared), width)


def _as_text(shown: RenderableType, width: int) -> str:
    console = Console(width=width, file=StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def as_table(figures: Figures) -> RenderableType:
    """Give the report for rich to print; 80 columns are enough, and colours only repeat what words say."""
    return Group(*_sections(figures))


def as_comparison(compared: Comparison) -> RenderableType:
    """Give a comparison for rich to print: its sides, then its differences and remarks as sentences."""
    return Group(*_comparison(compared))


def _sections(figures: Figures) -> Iterator[RenderableType]:
    yield Text.assemble((figures.campaign, "bold"), f"  {figures.period}")
    yield Text(f"launch {figures.launch_key}, as of {figures.as_of:%Y-%m-%d %H:%M:%S %Z}", style="dim")
    yield from map(Text, who_is_meant(figures))
    yield from _heard_of(figures) if figures.is_chosen_by_service else _audience(figures)
    if figures.by_platform:
        yield _heading("By platform")
        yield _by_group(figures.by_platform)
        yield from map(_prose, _platform_remarks(figures))
    if figures.by_variant:
        yield _heading("By variant")
        yield _by_group(figures.by_variant)
        yield from map(_prose, variant_remarks(figures))
    yield _heading("Requests and post-backs")
    yield _plain(requests_and_post_backs(figures))


def _audience(figures: Figures) -> Iterator[RenderableType]:
    yield _heading("From rows to audience")
    yield _rows_to_audience(figures.rows, figures.dropped, figures.audience, figures.segments)
    yield from _aloud(unaccounted_rows(figures))
    yield _heading("What became of the audience")
    yield _verdicts(figures)
    yield from _aloud(unaccounted_identifiers(figures))
    yield from map(_prose, [*reached(figures), *rounding(figures)])
    why = what_cannot_be_known(figures)
    if why:
        yield _heading("What cannot be known, and why")
        yield from map(_prose, why)


def _heard_of(figures: Figures) -> Iterator[RenderableType]:
    """Show a launch whose people the service chose, without a share of nobody knows whom."""
    yield _heading("Who was heard of")
    table = _sum_table()
    for sign, verdict in zip(("", "+"), HEARD_OF, strict=True):
        words = Text(VERDICT_WORDS[verdict], style=_COLOURS[verdict])
        table.add_row(sign, f"{figures.verdicts.get(verdict, 0):,}", "", words)
    table.add_row("=", f"{figures.audience:,}", "", "heard of", style="bold")
    yield table
    yield from _aloud(unaccounted_identifiers(figures))
    yield from map(_prose, reached(figures))
    yield from map(_prose, requests_without_people(figures))


def _rows_to_audience(rows: int, dropped: Mapping[str, int], audience: int, segments: int) -> Table:
    table = _sum_table()
    table.add_row("", f"{rows:,}", "", "rows of the query")
    for reason, count in dropped.items():
        table.add_row("-", f"{count:,}", "", reason)
    table.add_row("=", f"{audience:,}", "", f"audience, in {counted(segments, 'segment')}", style="bold")
    return table


def _verdicts(figures: Figures) -> Table:
    table = _sum_table()
    table.add_column()
    sign = ""
    for verdict in VERDICTS:
        count = figures.verdicts.get(verdict, 0)
        bar = _Bar(count / figures.audience if figures.audience else 0, _COLOURS[verdict])
        words = Text(VERDICT_WORDS[verdict], style=_COLOURS[verdict])
        table.add_row(sign, f"{count:,}", share(count, figures.audience), words, bar)
        sign = "+"
    for reason, count in figures.not_sent_because.items():
        table.add_row("", "", "", Text(f"  {reason} {count:,}"))
    total = sum(figures.verdicts.values())
    table.add_row("=", f"{total:,}", share(total, figures.audience), "audience", style="bold")
    return table


def _by_group(groups: Mapping[str, Mapping[str, int]]) -> Table:
    shown = [verdict for verdict in VERDICTS if any(row.get(verdict) for row in groups.values())]
    rows = [(name, [row.get(verdict, 0) for verdict in shown]) for name, row in groups.items()]
    sums = [sum(column) for column in zip(*(counts for _, counts in rows), strict=True)]
    gap = 2 if sum(sums) < _LARGE else 1
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for name in (*(VERDICT_WORDS[verdict] for verdict in shown), "total"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, counts in rows:
        table.add_row(Text(name), *map(_narrow, counts), _narrow(sum(counts)))
    table.add_row("sum", *map(_narrow, sums), _narrow(sum(sums)), style="bold")
    return table


def _platform_remarks(figures: Figures) -> list[str]:
    total = sum(sum(row.values()) for row in figures.by_platform.values())
    return [*(["M: millions, rounded."] if total >= _WIDE else []), *platform_remarks(figures)]


def _comparison(compared: Comparison) -> Iterator[RenderableType]:
    yield _heading(f"Compared: {compared.what}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for name in side_columns(compared):
        table.add_column(name, justify="right")
    for side in compared.sides:
        table.add_row(Text(side.name), *side_cells(side, compared))
    yield table
    yield from map(_prose, (f"{each.name}: {each.note}." for each in compared.sides if each.note))
    yield from map(_prose, (each.sentence for each in compared.differences))
    yield from map(_prose, compared.remarks)


def side_columns(compared: Comparison) -> tuple[str, ...]:
    """Name the columns of a comparison's table, behind the name of the side."""
    counted_as = compared.what if compared.measure == "share" else "with a value"
    return ("people", counted_as, compared.measure, f"{LEVEL:.0%} interval".replace("%", " %"))


def side_cells(side: Side, compared: Comparison) -> tuple[str, ...]:
    """Give one side as the cells of these columns; what is not known is a question mark, never 0."""
    if side.count is None or side.estimate is None:
        return (f"{side.people:,}", "?", "?", "?")
    interval = side.interval
    between = (
        f"{amount(interval.low, compared.measure)} to {amount(interval.high, compared.measure)}"
        if interval
        else "?"
    )
    return (f"{side.people:,}", f"{side.count:,}", amount(side.estimate, compared.measure), between)


def _aloud(said: Iterable[str]) -> Iterator[RenderableType]:
    return (_prose(each, "bold red") for each in said)


def _sum_table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(width=3, justify="right")
    table.add_column(justify="right", min_width=11)
    table.add_column(justify="right")
    table.add_column()
    return table


def _plain(rows: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 2), expand=False)


def _heading(words: str) -> Text:
    return Text(f"\n{words}", style="bold underline")


def _prose(words: str, style: str = "") -> RenderableType:
    return Padding(Text(words, style=style), (0, 0, 0, 2), expand=False)


def _narrow(count: int) -> str:
    return f"{count:,}" if count < _WIDE else f"{count / 1_000_000:,.1f} M"


@dataclass(frozen=True, slots=True)
class _Bar:
    """Show a share of one, in blocks where the terminal has them."""

    share: float
    colour: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(("#" if options.ascii_only else "\u2588") * round(self.share * _BAR), style=self.colour)
