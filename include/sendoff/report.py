"""Reports: the figures of a launch as text, JSON and a picture.

A report says what is known, what cannot be known and why, and shows that its sums add up, or that they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sendoff.figures import HEARD_OF, VERDICTS, Figures, share

VERDICT_WORDS = {verdict: verdict.replace("_", " ") for verdict in VERDICTS}
"""Verdicts as people read them."""

_COLOURS = {
    "engaged": "green",
    "delivered": "cyan",
    "missing": "red",
    "unknowable": "magenta",
    "in_doubt": "yellow",
    "not_sent": "",
}
_SENT_AGAIN = "Sent again and again: one person may get many messages, and counts once here."
_REQUESTS = {
    "in_doubt": "in doubt: no clear answer came, and no post-back has shown since that it was processed. Sending "
    "again might reach people twice.",
    "written_off": "written off by a person: nobody knows whether it was processed, and nobody looks any more.",
    "refused": "refused by the service: it reached nobody.",
}
"""What is said of requests of which nobody knows for how many people they were."""

_NOT_MADE = {
    "released": "not made.",
    "held": "not made: the launch is held.",
    "paused": "not made: the launch is paused.",
    "rejected": "not made: the launch was rejected.",
    "stopped": "not made: the launch was stopped.",
}
_BAR = 24
_LARGE = 1_000_000  # by group, columns move together from this sum on, to fit 80 columns
_WIDE = 10_000_000  # and numbers are rounded


def as_json(figures: Figures) -> dict[str, Any]:
    """Give the figures as JSON values, with how many were reached, and whether the sums add up."""
    at_least, at_most = figures.reached
    return figures.to_json() | {
        "reached": {"at_least": at_least, "at_most": at_most},
        "adds_up": figures.unaccounted_rows == 0 and figures.unaccounted_identifiers == 0,
    }


def as_picture(figures: Figures, path: Path) -> Path:
    """Draw the figures into a file, PNG or SVG by its name, and give its path."""
    from sendoff.picture import draw  # Matplotlib takes a while to import

    return draw(figures, path)


def as_text(figures: Figures, width: int = 80) -> str:
    """Give the report as plain text without colours, for logs and files."""
    console = Console(width=width, file=StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(as_table(figures))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def as_table(figures: Figures) -> RenderableType:
    """Give the report for rich to print; 80 columns are enough, and colours only repeat what words say."""
    return Group(*_sections(figures))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Give a number with its noun in the right number: ``1 person``, ``2,000 people``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _sections(figures: Figures) -> Iterator[RenderableType]:
    yield Text.assemble((figures.campaign, "bold"), f"  {figures.period}")
    yield Text(f"launch {figures.launch_key}, as of {figures.as_of:%Y-%m-%d %H:%M:%S %Z}", style="dim")
    if figures.is_sent_again:
        yield Text(_SENT_AGAIN)
    yield from _heard_of(figures) if figures.is_chosen_by_service else _audience(figures)
    if figures.by_platform:
        yield _heading("By platform")
        yield _by_group(figures.by_platform)
        yield from _platform_remark(figures)
    if figures.by_variant:
        yield _heading("By variant")
        yield _by_group(figures.by_variant)
        yield from _variant_remark(figures)
    yield _heading("Requests and post-backs")
    yield _plain(_requests_and_post_backs(figures))


def _audience(figures: Figures) -> Iterator[RenderableType]:
    yield _heading("From rows to audience")
    yield _rows_to_audience(figures.rows, figures.dropped, figures.audience, figures.segments)
    yield from _alarm(figures.unaccounted_rows, "row", "neither kept nor dropped")
    yield _heading("What became of the audience")
    yield _verdicts(figures)
    yield from _alarm(figures.unaccounted_identifiers, "identifier", "without a verdict")
    low, high = figures.reached
    if figures.audience and high is not None:
        shares = [share(count, figures.audience) for count in (low, high)]
        yield _prose(f"Reached: at least {low:,} ({shares[0]}), at most {high:,} ({shares[1]}).")
    yield from _what_cannot_be_known(figures)


def _heard_of(figures: Figures) -> Iterator[RenderableType]:
    """Show a launch whose people the service chose, without a share of nobody knows whom."""
    heard = f"{figures.audience:,} {'was' if figures.audience == 1 else 'were'} heard of"
    yield Text(f"The service chose the people: how many it sent to is not known. {heard}.")
    yield _heading("Who was heard of")
    table = _sum_table()
    for sign, verdict in zip(("", "+"), HEARD_OF, strict=True):
        words = Text(VERDICT_WORDS[verdict], style=_COLOURS[verdict])
        table.add_row(sign, f"{figures.verdicts.get(verdict, 0):,}", "", words)
    table.add_row("=", f"{figures.audience:,}", "", "heard of", style="bold")
    yield table
    yield from _alarm(figures.unaccounted_identifiers, "identifier", "without a verdict")
    yield _prose(f"Reached: at least {figures.reached[0]:,}; at most is not known.")
    yield from map(_prose, _without_people(figures))


def _without_people(figures: Figures) -> Iterator[str]:
    for state, what in (*_REQUESTS.items(), ("planned", _NOT_MADE[figures.state])):
        if count := figures.dispatches.get(state):
            yield f"{counted(count, 'request')} {what}"


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


def _what_cannot_be_known(figures: Figures) -> Iterator[RenderableType]:
    unknowable, in_doubt = figures.verdicts.get("unknowable", 0), figures.verdicts.get("in_doubt", 0)
    if unknowable or in_doubt:
        yield _heading("What cannot be known, and why")
    if unknowable:
        yield _prose(f"{unknowable:,} unknowable: accepted, then silent where {_silence(figures)}.")
    if in_doubt:
        yield _prose(
            f"{in_doubt:,} in doubt: their request got no clear answer, and no post-back has shown since that"
            " it was processed. Sending again might reach them twice."
        )


def _silence(figures: Figures) -> str:
    if figures.is_sent_again:
        return "silence proves nothing: what is sent again and again may still come"
    where = [
        f"{platform} {counts['unknowable']:,}"
        for platform, counts in figures.by_platform.items()
        if counts.get("unknowable")
    ]
    if where:
        return (
            f"silence proves nothing ({', '.join(where)}). Deliveries by Android push, iOS push and Safari are"
            " not reported reliably"
        )
    return (
        "silence proves nothing: no platform in the audience query, no post-backs of deliveries, or identifiers"
        " that post-backs do not carry"
    )


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


def _platform_remark(figures: Figures) -> Iterator[RenderableType]:
    total = sum(sum(row.values()) for row in figures.by_platform.values())
    if total >= _WIDE:
        yield _prose("M: millions, rounded.")
    if total != figures.audience:
        yield _prose(
            f"The platforms sum to {total:,}, not to {figures.audience:,}: an identifier that came with two"
            " platforms counts under both, one that came with none under neither."
        )


def _variant_remark(figures: Figures) -> Iterator[RenderableType]:
    total = sum(sum(row.values()) for row in figures.by_variant.values())
    if total != figures.audience:
        yield _prose(
            f"The variants sum to {total:,}, not to {figures.audience:,}: who is held out gets none of them."
        )


def _requests_and_post_backs(figures: Figures) -> Iterator[tuple[str, str]]:
    yield "requests", _listed(figures.dispatches)
    deliveries, opens = figures.post_backs.get("delivery", 0), figures.post_backs.get("open", 0)
    yield (
        "post-backs",
        f"{counted(deliveries, 'delivery', 'deliveries')}, {counted(opens, 'open or click', 'opens or clicks')}",
    )
    yield "anomalies", _listed(figures.anomalies)


def _alarm(count: int, noun: str, what: str) -> Iterator[RenderableType]:
    if count:
        yield _prose(
            f"DOES NOT ADD UP: {counted(count, noun)} {what}. Please report this defect.", "bold red"
        )


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


def _listed(counts: Mapping[str, int]) -> str:
    some = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(some) or "none"


def _narrow(count: int) -> str:
    return f"{count:,}" if count < _WIDE else f"{count / 1_000_000:,.1f} M"


@dataclass(frozen=True, slots=True)
class _Bar:
    """Show a share of one, in blocks where the terminal has them."""

    share: float
    colour: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(("#" if options.ascii_only else "\u2588") * round(self.share * _BAR), style=self.colour)
