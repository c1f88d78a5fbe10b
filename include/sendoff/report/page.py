"""The report as one page of HTML that stands alone: nothing in it asks for anything from anywhere.

The charts are SVG inside it, each with its table behind it; colours follow the reader's choice of light or dark.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkstemp

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from sendoff.errors import SettingsError
from sendoff.figures import HEARD_OF, VERDICTS, Figures, counted, share
from sendoff.report import charts, text
from sendoff.report import wording as sentences
from sendoff.report.comparison import Comparison
from sendoff.report.picture import points_of, span

MEANINGS: Mapping[str, str] = {
    "engaged": "Opened or clicked.",
    "delivered": "A delivery was reported, and no open.",
    "missing": "Accepted by the service; no delivery was reported so far, and it would have been.",
    "unknowable": "Accepted by the service, then silent where silence proves nothing.",
    "in_doubt": "Silent, and nobody knows whether the request was processed.",
    "not_sent": "The request was refused or not made, or the person is held out.",
}
"""What each verdict means, in a sentence."""

_OTHER_MEANINGS: Mapping[str, str] = {
    "null": "Of a row of the query: it names nobody.",
    "invalid": "Of a row of the query: what it holds cannot name anybody.",
    "duplicate": "Of a row, or of a post-back: the same came before.",
    "priority": "Left out, since a campaign that goes first reaches them on the same day.",
    "cap": "Left out, since they would get more messages than one person may.",
    "size_limit": "Left out, since this run was limited to fewer people.",
    "held out": "Chosen by chance to be sent nothing, so that the others can be held against them.",
    "unexpected": "A post-back that names somebody whom its request was not for.",
    "forged": "A post-back that names another campaign than the service made of its request.",
    "late": "A post-back that came after nothing had come for a while. It counts all the same.",
    "unreadable": "A post-back that is kept as it came, for nothing in it could be read.",
}
"""What the words mean that a report has only where something is counted under them."""

_MODE = 0o644  # what the page says names nobody


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: what it shows, its columns, and rows that begin with their heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: a heading, a chart on a desk and on a phone, its table, and sentences."""

    name: str
    heading: str
    table: Grid | None = None
    chart: tuple[Markup, Markup] | None = None
    sentences: Sequence[str] = ()
    table_is_open: bool = False


def as_html(figures: Figures, comparisons: Sequence[Comparison] = ()) -> str:
    """Give the report as a page of HTML, complete in itself, with comparisons where there are some."""
    verdicts = HEARD_OF if figures.is_chosen_by_service else VERDICTS
    return _template().render(
        figures=figures,
        css=Markup(charts.css()),  # noqa: S704 - made of our own constants
        tiles=[(verdict, sentences.VERDICT_WORDS[verdict], *_tile(figures, verdict)) for verdict in verdicts],
        alarms=sentences.alarms(figures),
        lead=[*sentences.who_is_meant(figures), *sentences.reached(figures), *sentences.rounding(figures)],
        sections=[*_sections(figures), *map(_compared, comparisons, range(len(comparisons)))],
        counts=sentences.requests_and_post_backs(figures),
        without_people=sentences.requests_without_people(figures),
        unknowns=sentences.what_cannot_be_known(figures),
        meanings=[(sentences.VERDICT_WORDS[verdict], MEANINGS[verdict]) for verdict in verdicts]
        + [(word, meaning) for word, meaning in _OTHER_MEANINGS.items() if word in _counted(figures)],
    )


def write_html(figures: Figures, path: Path, comparisons: Sequence[Comparison] = ()) -> Path:
    """Write the page into a file, in place of one that is there, and give its path; its folder is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(as_html(figures, comparisons))
            Path(name).chmod(_MODE)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or type(error).__name__}") from None
    return path


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def _counted(figures: Figures) -> set[str]:
    """Give the reasons and anomalies under which something is counted."""
    counts = [figures.dropped, figures.not_sent_because, figures.anomalies]
    return {word for each in counts for word, count in each.items() if count}


def _tile(figures: Figures, verdict: str) -> tuple[str, str]:
    count = figures.verdicts.get(verdict, 0)
    return f"{count:,}", "" if figures.is_chosen_by_service else share(count, figures.audience)


def _sections(figures: Figures) -> list[Section]:
    found = [
        Section(
            "flow",
            "From rows to verdicts" if not figures.is_chosen_by_service else "Who was heard of",
            _flow_table(figures),
            _drawn(lambda width, name: charts.flow(figures, width=width, name=name), "flow"),
        )
    ]
    for what, groups, remarks in (
        ("platform", figures.by_platform, sentences.platform_remarks(figures)),
        ("variant", figures.by_variant, sentences.variant_remarks(figures)),
    ):
        if groups:
            found.append(_grouped(figures, what, groups, remarks))
    step, points = points_of(figures.timeline)
    rows = [(f"{at:%Y-%m-%d %H:%M}", f"{delivered:,}", f"{opened:,}") for at, delivered, opened in points]
    table = Grid(f"Post-backs per {span(step)}, in UTC", ("from", "deliveries", "opens and clicks"), rows)
    chart = _drawn(lambda width, name: charts.timeline(figures, width=width, name=name), "timeline")
    found.append(Section("timeline", "When they came", table if rows else None, chart))
    return found


def _flow_table(figures: Figures) -> Grid:
    rows: list[tuple[str, str, str]] = []
    if not figures.is_chosen_by_service:
        rows.append(("rows of the query", f"{figures.rows:,}", ""))
        rows += [(f"less: {reason}", f"{count:,}", "") for reason, count in figures.dropped.items()]
        segments = counted(figures.segments, "segment")
        rows.append((f"audience, in {segments}", f"{figures.audience:,}", ""))
    for verdict in HEARD_OF if figures.is_chosen_by_service else VERDICTS:
        rows.append((sentences.VERDICT_WORDS[verdict], *_tile(figures, verdict)))
        if verdict == "not_sent":
            rows += [
                (f"of these: {reason}", f"{count:,}", share(count, figures.audience))
                for reason, count in figures.not_sent_because.items()
            ]
    total = sum(figures.verdicts.values())
    last = "all heard of" if figures.is_chosen_by_service else "all verdicts"
    whole = "" if figures.is_chosen_by_service else share(total, figures.audience)
    cells = 2 if figures.is_chosen_by_service else 3  # nobody knows what a share would be of
    return Grid(
        "The sums, as they add up",
        ("step", "identifiers", "of the audience")[:cells],
        [row[:cells] for row in rows],
        (last, f"{total:,}", whole)[:cells],
    )


def _grouped(
    figures: Figures, what: str, groups: Mapping[str, Mapping[str, int]], remarks: Sequence[str]
) -> Section:
    shown = [verdict for verdict in VERDICTS if any(row.get(verdict) for row in groups.values())]
    rows = [
        (name, *(f"{row.get(verdict, 0):,}" for verdict in shown), f"{sum(row.values()):,}")
        for name, row in groups.items()
    ]
    sums = [sum(row.get(verdict, 0) for row in groups.values()) for verdict in shown]
    return Section(
        what,
        f"By {what}",
        Grid(
            f"Identifiers by {what} and verdict",
            (what, *(sentences.VERDICT_WORDS[verdict] for verdict in shown), "total"),
            rows,
            ("sum", *(f"{each:,}" for each in sums), f"{sum(sums):,}"),
        ),
        _drawn(
            lambda width, name: charts.verdicts_by(figures, groups, what=what, width=width, name=name), what
        ),
        remarks,
    )


def _compared(compared: Comparison, number: int) -> Section:
    rows = [(side.name, *text.side_cells(side, compared)) for side in compared.sides]
    name = f"compared-{number + 1}"
    return Section(
        name,
        f"Compared: {compared.what}",
        Grid("The sides; ? is what cannot be known", ("side", *text.side_columns(compared)), rows)
        if rows
        else None,
        _drawn(lambda width, name: charts.differences(compared, width=width, name=name), name),
        [
            *(each.sentence for each in compared.differences),
            *(f"{each.name}: {each.note}." for each in compared.sides if each.note),
            *compared.remarks,
        ],
        table_is_open=True,
    )


def _drawn(draw: Callable[[int, str], str], name: str) -> tuple[Markup, Markup] | None:
    """Draw a chart for a desk and for a phone; None where there is nothing to draw."""
    wide, narrow = draw(charts.WIDE, f"{name}-wide"), draw(charts.NARROW, f"{name}-narrow")
    # The charts escape what they say of a launch; their own markup is Matplotlib's.
    return (Markup(wide), Markup(narrow)) if wide else None  # noqa: S704
