"""The report model: a document of sections with sentences, tables and bars.

:mod:`sendoff.report.terminal`, :mod:`sendoff.report.markdown` and :mod:`sendoff.report.html` all render this model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sendoff.figures import LaunchStats, TimelinePoint, share
from sendoff.states import PostBackKind, Verdict


@dataclass(frozen=True, slots=True)
class Code:
    """Verbatim text, such as a name from a file or a warehouse."""

    text: str


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another page."""

    text: str
    url: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A time. A page may show it in the time zone of its reader."""

    at: datetime

    @property
    def text(self) -> str:
        """The time in UTC."""
        return f"{self.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


Inline = str | Code | Link | Moment
Words = Inline | tuple[Inline, ...]
"""The text of a sentence, an item, or a cell of a table."""


# Control characters of terminals, and those that change the direction of writing and can hide text.
_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Replace the control characters of a text, so that it cannot control a terminal."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def inlines(words: Words) -> tuple[Inline, ...]:
    """Return words as a tuple of parts."""
    return words if isinstance(words, tuple) else (words,)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph. An alarm is highlighted."""

    words: Words
    is_alarm: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[Words]


@dataclass(frozen=True, slots=True)
class Listing:
    """Code or a message, shown verbatim."""

    text: str
    language: str = "text"


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a name and its value."""

    rows: Sequence[tuple[str, Words]]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. ``numbers`` holds the indexes of the numeric columns."""

    columns: Sequence[Words]
    rows: Sequence[Sequence[Words]]
    numbers: frozenset[int] = frozenset()
    total: Sequence[Words] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a sum: its sign, its count and label, the colour of its bar, and a note for its tile."""

    sign: str  # empty, +, - or =; "of" for a part of the line above
    count: int
    words: str
    colour: str = ""
    note: str = ""

    @property
    def is_sum(self) -> bool:
        """Whether this line is the total of the lines above."""
        return self.sign == "="

    @property
    def fill(self) -> str:
        """The colour of its bar on a page, which has a bar for each line."""
        return self.colour or ("total" if self.is_sum or not self.sign else "less")


@dataclass(frozen=True, slots=True)
class Sum:
    """Lines that add up. Each bar begins where the last one ended. Shares are shares of ``whole``.

    With ``has_tiles``, a page shows the lines as tiles above the sum. The parts of a line are in its tile.
    """

    lines: Sequence[Line]
    whole: int | None = None
    caption: str = ""  # on a page
    has_tiles: bool = False

    @property
    def tiles(self) -> list[tuple[Line, list[Line]]]:
        """Return the lines without totals, each with its parts."""
        found: list[tuple[Line, list[Line]]] = []
        for line in self.lines:
            if line.sign == "of":
                found[-1][1].append(line)
            elif not line.is_sum:
                found.append((line, []))
        return found

    @property
    def missing(self) -> int:
        """How far the totals differ from the lines above them. Any value but 0 is a defect."""
        total = wrong = 0
        for line in self.lines:
            if line.is_sum:
                wrong += abs(total - line.count)
                total = line.count
            elif line.sign != "of":
                total += -line.count if line.sign == "-" else line.count
        return wrong

    def share(self, line: Line) -> str:
        """Return the share of a line as text, or an empty text if ``whole`` is None."""
        return "" if self.whole is None else share(line.count, self.whole)

    def bars(self) -> list[tuple[float, float]]:
        """Return the start and the width of each line's bar, in percent."""
        spans, total = [], 0
        for line in self.lines:
            if line.sign == "of":
                spans.append((total, 0))
                continue
            start = 0 if line.is_sum else total - line.count if line.sign == "-" else total
            total = line.count if line.is_sum else start if line.sign == "-" else start + line.count
            spans.append((max(0, start), line.count))
        widest = max(1, *(start + count for start, count in spans))
        return [(100 * start / widest, 100 * count / widest) for start, count in spans]


@dataclass(frozen=True, slots=True)
class Groups:
    """The verdicts of each group of recipients, as numbers and bars. The bar of ``everybody`` comes first."""

    what: str
    rows: Mapping[str, Mapping[str, int]]
    everybody: tuple[str, Mapping[str, int]]
    shows_shares: bool = True

    @classmethod
    def of(cls, figures: LaunchStats, what: str, rows: Mapping[str, Mapping[str, int]]) -> Groups:
        """Return the verdicts of groups of a launch, such as its platforms."""
        is_chosen = figures.is_chosen_by_service
        name = "not erased" if figures.erased else "everyone" if is_chosen else "audience"
        return cls(what, rows, (name, figures.verdicts), shows_shares=not is_chosen)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts that occur in at least one group."""
        return [verdict for verdict in Verdict if any(row.get(verdict) for row in self.rows.values())]

    @property
    def legend(self) -> list[Verdict]:
        """The verdicts that occur in at least one bar."""
        return [verdict for verdict in Verdict if self.everybody[1].get(verdict) or verdict in self.verdicts]

    def bars(self, most: int) -> list[tuple[str, Mapping[str, int]]]:
        """Return the bars from top to bottom: everybody, then the ``most`` largest groups, then the rest as one."""
        groups = sorted(self.rows.items(), key=lambda item: (-sum(item[1].values()), item[0]))
        if rest := groups[most:] if len(groups) > most + 1 else []:
            together = {verdict.value: sum(row.get(verdict, 0) for _, row in rest) for verdict in Verdict}
            groups = [*groups[:most], (f"{len(rest)} others", together)]
        return [self.everybody, *groups]

    @property
    def table(self) -> Table:
        """The numbers as a table, with their sums."""
        rows = {name: [row.get(verdict, 0) for verdict in self.verdicts] for name, row in self.rows.items()}
        sums = [sum(column) for column in zip(*rows.values(), strict=True)]
        columns = ["", *(verdict.label for verdict in self.verdicts), "total"]
        cells = [(name, *(f"{count:,}" for count in (*row, sum(row)))) for name, row in rows.items()]
        return Table(
            columns,
            cells,
            frozenset(range(1, len(columns))),
            ("sum", *(f"{count:,}" for count in (*sums, sum(sums)))),
            f"Identifiers by {self.what} and verdict",
        )


@dataclass(frozen=True, slots=True)
class Timeline:
    """Deliveries and opens by the time the receiver got them."""

    span: str  # of one point
    points: Sequence[TimelinePoint]
    noun: str = "person"  # for one recipient

    @property
    def zone(self) -> str:
        """The name of the time zone of the points."""
        return str(self.points[0].at.tzinfo)

    @property
    def counts(self) -> Iterator[tuple[str, str, list[int]]]:
        """Yield the name, the kind, and the counts of deliveries, then of opens."""
        yield "deliveries", PostBackKind.DELIVERY, [point.deliveries for point in self.points]
        yield "opens and clicks", PostBackKind.OPEN, [point.opens for point in self.points]

    @property
    def table(self) -> Table:
        """The numbers as a table."""
        rows = [(f"{at:%Y-%m-%d %H:%M}", f"{came:,}", f"{opened:,}") for at, came, opened in self.points]
        caption = f"Post-backs per {self.span}, in {self.zone}"
        return Table(("from", "deliveries", "opens and clicks"), rows, frozenset((1, 2)), (), caption)


@dataclass(frozen=True, slots=True)
class Range:
    """A difference between two sides: its name, its estimate in words, and its estimate and interval as numbers."""

    name: str
    words: str
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Ranges:
    """Intervals of differences on one scale, with a line for no difference. Only pages show them."""

    rows: Sequence[Range]

    def place(self, value: float) -> float:
        """Return the position of a value on the scale, in percent."""
        ends = [0.0, *(end for row in self.rows for end in (row.low, row.high))]
        return 100 * (value - min(ends)) / ((max(ends) - min(ends)) or 1.0)


Block = Sentence | Bullets | Listing | Facts | Table | Sum | Groups | Timeline | Ranges


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading. ``name`` is the same in every report. A terminal leaves out sections for pages."""

    name: str
    heading: Words
    blocks: Sequence[Block]
    is_for_pages: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A title, introductory blocks, and sections."""

    title: Words
    lead: Sequence[Block]
    sections: Sequence[Section]
    subtitle: Words = ""
    caption: str = ""
    notes: Sequence[str] = ()  # at the end of a page


def sentences(words: Iterable[Words]) -> list[Block]:
    """Return each text as a paragraph."""
    return [Sentence(each) for each in words]
