"""The report of a launch as a document, and as JSON.

A report says what is known, what cannot be known and why, and shows that its sums add up, or that they do not. Its
sentences are those of :mod:`sendoff.report.wording`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sendoff.errors import SettingsError
from sendoff.figures import LaunchStats, counted
from sendoff.report import wording
from sendoff.report.model import (
    Block,
    Document,
    Facts,
    Groups,
    Line,
    Range,
    Ranges,
    Section,
    Sentence,
    Sum,
    Table,
    Timeline,
    sentences,
)
from sendoff.report.statistics import LEVEL, Comparison, Side, amount, percent, spoken
from sendoff.report.timeline import points_of, span
from sendoff.states import Verdict

MEANINGS: Mapping[str, str] = {
    Verdict.ENGAGED: "Opened or clicked.",
    Verdict.DELIVERED: "A delivery was reported, and no open.",
    Verdict.MISSING: "Accepted by the service; no delivery was reported so far, and it would have been.",
    Verdict.UNKNOWABLE: "Accepted by the service, then silent where silence proves nothing.",
    Verdict.IN_DOUBT: "Silent, and nobody knows whether the request was processed.",
    Verdict.NOT_SENT: "The request was refused or not made, or the person is held out.",
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


def as_json(figures: LaunchStats, comparisons: Sequence[Comparison] = ()) -> dict[str, Any]:
    """Return the figures as JSON values, with how many were reached, and whether the sums add up.

    ``comparisons`` are a member of their own, where there are some.
    """
    at_least, at_most = figures.reached
    compared = {"comparisons": [each.to_json() for each in comparisons]} if comparisons else {}
    reached = {"reached": {"at_least": at_least, "at_most": at_most}}
    return figures.to_json() | reached | {"adds_up": not wording.alarms(figures)} | compared


def as_picture(figures: LaunchStats, path: Path) -> Path:
    """Draw the figures into a file, PNG or SVG by its name, and return its path."""
    try:
        from sendoff.report.picture import draw
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise SettingsError(
            "A picture needs Matplotlib, which is not installed here: pip install 'airflow-provider-sendoff[picture]'."
        ) from None
    return draw(figures, path)


def describe_launch(figures: LaunchStats, comparisons: Sequence[Comparison] = ()) -> Document:
    """Return the report of a launch, with comparisons where there are some."""
    alarms = wording.alarms(figures)
    people = "everybody who was heard of has one verdict."
    if not figures.is_chosen_by_service:
        people = (
            "every row of the query was kept or dropped for one reason, and everybody in the audience has exactly "
            "one verdict."
        )
    return Document(
        title=figures.campaign,
        subtitle=figures.period,
        caption=f"launch {figures.launch_key}, as of {figures.as_of:%Y-%m-%d %H:%M:%S %Z}",
        lead=[*(Sentence(each, is_alarm=True) for each in alarms), *sentences(wording.who_is_meant(figures))],
        sections=[
            *_sections(figures),
            *map(describe_comparison, comparisons, range(1, len(comparisons) + 1)),
            _words(figures),
        ],
        notes=[
            *([] if alarms else [f"The sums of this report add up: {people}"]),
            "Made by Sendoff. This file holds counts, and names nobody.",
        ],
    )


def _sections(figures: LaunchStats) -> Iterator[Section]:
    if figures.is_chosen_by_service:
        yield Section(
            "verdicts",
            "Who was heard of",
            [
                _heard_of(figures),
                *sentences(wording.reached(figures)),
                *sentences(wording.requests_without_people(figures)),
            ],
        )
    else:
        yield Section("rows", "From rows to audience", [_rows_to_audience(figures)])
        said = [*wording.reached(figures), *wording.rounding(figures)]
        yield Section("verdicts", "What became of the audience", [_verdicts(figures), *sentences(said)])
        if why := wording.what_cannot_be_known(figures):
            yield Section("unknowns", "What cannot be known, and why", sentences(why))
    for what, rows, remarks in (
        ("platform", figures.by_platform, wording.platform_remarks(figures)),
        ("variant", figures.by_variant, wording.variant_remarks(figures)),
    ):
        if rows:
            yield Section(what, f"By {what}", [Groups.of(figures, what, rows), *sentences(remarks)])
    step, points = points_of(figures.timeline)
    timeline: Block = Timeline(span(step), points) if points else Sentence("No post-back yet.")
    yield Section("timeline", "When deliveries and opens came", [timeline], is_for_pages=True)
    yield Section("requests", "Requests and post-backs", [Facts(wording.requests_and_post_backs(figures))])


def _rows_to_audience(figures: LaunchStats) -> Sum:
    return Sum(
        [
            Line("", figures.rows, "rows of the query"),
            *(Line("-", count, reason) for reason, count in figures.dropped.items()),
            Line("=", figures.audience, f"audience, in {counted(figures.segments, 'segment')}"),
        ]
    )


def _verdicts(figures: LaunchStats) -> Sum:
    lines = verdict_lines(figures)
    parts = [Line("of", count, reason) for reason, count in figures.not_sent_because.items()]
    total = Line("=", sum(figures.verdicts.values()), "audience")
    people = counted(figures.audience, "person", "people")
    return Sum(
        [*lines, *parts, total], figures.audience, f"{people}, the audience. Each share is of all of them."
    )


def _heard_of(figures: LaunchStats) -> Sum:
    """Return the sum of a launch whose people the service chose, without a share of nobody knows whom."""
    return Sum([*verdict_lines(figures), Line("=", figures.audience, "heard of")])


def verdict_lines(figures: LaunchStats) -> list[Line]:
    """Return a line for each verdict that is counted."""
    return [
        Line("+" if number else "", figures.verdicts.get(verdict, 0), verdict.label, verdict)
        for number, verdict in enumerate(figures.known_verdicts)
    ]


def describe_comparison(compared: Comparison, number: int = 1) -> Section:
    """Return the sides of a comparison, its differences, and what must be known to read them."""
    rows = [(side.name, *_cells(side, compared)) for side in compared.sides]
    columns = ("", *_columns(compared))
    sides = Table(columns, rows, frozenset(range(1, 5)), (), "The sides; ? is what cannot be known")
    known = [
        Range(
            f"{each.side} against {each.against}",
            spoken(each.estimate, compared.measure),
            each.interval.low,
            each.estimate,
            each.interval.high,
        )
        for each in compared.differences
        if each.interval is not None and each.estimate is not None
    ]
    return Section(
        f"compared-{number}",
        f"Compared: {compared.what}",
        [
            sides,
            *([Ranges(known)] if known else []),
            *sentences(f"{side.name}: {side.note}." for side in compared.sides if side.note),
            *sentences(each.sentence for each in compared.differences),
            *sentences(compared.remarks),
        ],
    )


def _columns(compared: Comparison) -> tuple[str, ...]:
    counted_as = compared.what if compared.measure == "share" else "with a value"
    return ("people", counted_as, compared.measure, f"{percent(LEVEL)} interval")


def _cells(side: Side, compared: Comparison) -> tuple[str, ...]:
    """Return one side as cells. What is not known is a question mark, never 0."""
    if side.count is None or side.estimate is None:
        return (f"{side.people:,}", "?", "?", "?")
    ends = (
        [amount(end, compared.measure) for end in (side.interval.low, side.interval.high)]
        if side.interval
        else []
    )
    return (
        f"{side.people:,}",
        f"{side.count:,}",
        amount(side.estimate, compared.measure),
        " to ".join(ends) or "?",
    )


def _words(figures: LaunchStats) -> Section:
    """Return what the words mean under which something is counted."""
    used = {
        word
        for counts in (figures.dropped, figures.not_sent_because, figures.anomalies)
        for word, count in counts.items()
        if count
    }
    verdicts = [(verdict.label, MEANINGS[verdict]) for verdict in figures.known_verdicts]
    others = [(word, meaning) for word, meaning in _OTHER_MEANINGS.items() if word in used]
    return Section("words", "What the words mean", [Facts([*verdicts, *others])], is_for_pages=True)
