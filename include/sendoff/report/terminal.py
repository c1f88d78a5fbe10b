"""Render documents for a terminal, and as plain text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.highlighter import JSONHighlighter
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from sendoff.report.model import (
    Block,
    Bullets,
    Document,
    Facts,
    Groups,
    Listing,
    Ranges,
    Section,
    Sentence,
    Sum,
    Table,
    Timeline,
    Words,
    clean,
    inlines,
)
from sendoff.states import Verdict

_COLOURS: dict[str, str] = dict(zip(Verdict, ("green", "cyan", "red", "magenta", "yellow", ""), strict=True))
_BAR = 24
_LARGE = 1_000_000  # from this sum on, the gaps in tables by group shrink to fit 80 columns
_WIDE = 10_000_000  # from this sum on, their numbers are rounded


def as_text(document: Document | Section, width: int = 80) -> str:
    """Return a document as plain text without colours, for logs and files."""
    console = Console(width=width, file=StringIO(), color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(as_terminal(document))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def as_terminal(document: Document | Section) -> RenderableType:
    """Return a document for rich to print. It fits into 80 columns, and no information is in colour alone."""
    if isinstance(document, Section):
        return Group(*_section(document))
    parts: list[RenderableType] = [
        Text.assemble((_plain(document.title), "bold"), f"  {_plain(document.subtitle)}")
    ]
    if document.caption:
        parts.append(Text(document.caption, style="dim"))
    parts += [_shown(block) for block in document.lead]
    for section in document.sections:
        if not section.is_for_pages:
            parts += _section(section)
    return Group(*parts)


def _section(section: Section) -> Iterator[RenderableType]:
    yield Text(f"\n{_plain(section.heading)}", style="bold underline")
    for block in section.blocks:
        is_flush = isinstance(block, Sum | Groups)
        yield _shown(block) if is_flush else Padding(_shown(block), (0, 0, 0, 2), expand=False)


def _plain(words: Words) -> str:
    return "".join(clean(each if isinstance(each, str) else each.text) for each in inlines(words))


def _shown(block: Block) -> RenderableType:
    match block:
        case Sentence():
            return Text(_plain(block.words), style="bold red" if block.is_alarm else "")
        case Listing():
            text = Text(clean(block.text))
            return JSONHighlighter()(text) if block.language == "json" else text
        case Bullets():
            return _table(Table(("", ""), [("-", item) for item in block.items]))
        case Facts():
            return _table(Table(("", ""), block.rows))
        case Sum():
            return _sum(block)
        case Groups():
            return _groups(block)
        case Table():
            return _table(block)
        case Timeline() | Ranges():  # for pages
            return Group()


def _table(table: Table, gap: int = 2) -> Grid:
    names = [_plain(name) for name in table.columns]
    grid = Grid(box=None, show_header=any(names), padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for number, name in enumerate(names):
        if number in table.numbers:
            grid.add_column(name, justify="right", no_wrap=True)
        else:
            grid.add_column(name, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(_plain(cell)) for cell in row))
    if table.total:
        grid.add_row(*map(_plain, table.total), style="bold")
    return grid


def _sum(block: Sum) -> RenderableType:
    grid = Grid(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(width=3, justify="right")
    grid.add_column(justify="right", min_width=11)
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_column()
    for line in block.lines:
        words = clean(line.words)
        if line.sign == "of":
            grid.add_row("", "", "", Text(f"  {words} {line.count:,}"))
            continue
        colour = _COLOURS.get(line.colour, "")
        bar = _Bar(line.count / block.whole if block.whole else 0, colour) if line.colour else ""
        cells = (line.sign, f"{line.count:,}", block.share(line), Text(words, style=colour), bar)
        grid.add_row(*cells, style="bold" if line.is_sum else "")
    return grid


def _groups(block: Groups) -> RenderableType:
    counts = [count for row in block.rows.values() for count in row.values()]
    table = block.table
    if sum(counts) >= _WIDE:
        narrow = [[cells[0], *map(_narrow, cells[1:])] for cells in (*table.rows, table.total)]
        table = replace(table, rows=narrow[:-1], total=narrow[-1])
        note = [Padding(Text("M: rounded millions."), (0, 0, 0, 2), expand=False)]
    else:
        note = []
    return Group(_table(table, gap=2 if sum(counts) < _LARGE else 1), *note)


def _narrow(cell: Words) -> str:
    count = int(_plain(cell).replace(",", ""))
    return f"{count:,}" if count < _WIDE else f"{count / 1_000_000:,.1f} M"


@dataclass(frozen=True, slots=True)
class _Bar:
    """A share between 0 and 1 as a bar. It is drawn with # if the terminal has only ASCII."""

    share: float
    colour: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(("#" if options.ascii_only else "\u2588") * round(self.share * _BAR), style=self.colour)
