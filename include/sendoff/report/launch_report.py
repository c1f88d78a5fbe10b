"""The report of a launch as a document, and as JSON.

A report separates the known from the unknown, gives reasons for the unknown, and checks its sums. Its sentences come
from :mod:`sendoff.report.wording`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any

from sendoff.comparison import LEVEL, Comparison, Side, amount, conclusion, percent, spoken
from sendoff.errors import SettingsError
from sendoff.figures import LaunchStats, counted, noun_for, rows_for, spoken_reason
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
from sendoff.report.timeline import FEWEST_POINTS, points_of, span
from sendoff.states import Stage, Verdict

MEANINGS: Mapping[str, str] = {
    Verdict.ENGAGED: "Opened or clicked.",
    Verdict.DELIVERED: "A delivery was reported, and no open.",
    Verdict.MISSING: "Accepted by the service, but no delivery was reported, although the service reports them here.",
    Verdict.UNKNOWABLE: "Accepted by the service. No report followed, but here that proves nothing.",
    Verdict.IN_DOUBT: "No report came, and it is not known whether the service processed the request.",
    Verdict.NOT_SENT: "The request was refused or never made. The control group counts here too.",
}
"""The meaning of each verdict, in a sentence."""

_NOTES: Mapping[str, str] = {
    Verdict.ENGAGED: "opened or clicked",
    Verdict.DELIVERED: "arrived, no open reported",
    Verdict.MISSING: "sent, but no arrival reported",
    Verdict.UNKNOWABLE: "sent, and silence proves nothing",
    Verdict.IN_DOUBT: "not clear whether sent",
    Verdict.NOT_SENT: "refused, never made, or control group",
}
"""The meaning of each verdict in a few words, for its tile."""

_UNMEASURED = "not measured, so this is not a count"
MACHINE = "probably a machine"
_ERASED = "asked to be forgotten"
_OTHER_MEANINGS: Mapping[str, str] = {
    "without an identifier": "Rows whose identifier is empty.",
    "invalid": "Rows with an invalid identifier.",
    "duplicate": "Rows or post-backs that repeat an earlier one.",
    "priority": "Left out because a campaign with higher priority reaches them on the same day.",
    "over the cap on messages": "Left out because they would get more messages than the cap allows.",
    "size limit": "Left out because the size of this run was limited.",
    "already sent": "Left out because they got, or may have got, an earlier launch for the same period.",
    "control group": "Chosen by chance to get no message, so that the others can be compared with them.",
    "unexpected": "Post-backs that name an identifier that is not in the request.",
    "of another campaign": "Post-backs that name a different campaign than the service created for the request: it was "
    "sent twice, or they are forged.",
    "late": "Post-backs that came after a long silence. They still count.",
    "unreadable": "Post-backs that could not be read, or do not name anyone by the identifier of the request.",
    MACHINE: "Opened within seconds of the delivery, or with many others in one second, and not again.",
    "erased": "People who asked to be forgotten. Only their number is kept.",
}
"""The meaning of words that a report uses only if something is counted under them."""


def as_json(
    figures: LaunchStats, comparisons: Sequence[Comparison] = (), stage: Stage | None = None
) -> dict[str, Any]:
    """Return the figures as JSON values, with how many people were reached and whether the sums add up.

    The member ``comparisons`` is there only if there are comparisons, and ``stage`` only if the state is known.
    """
    at_least, at_most = figures.reached
    compared = {"comparisons": [each.to_json() for each in comparisons]} if comparisons else {}
    state = {"stage": stage.value} if stage else {}
    reached = {"reached": {"at_least": at_least, "at_most": at_most}}
    return figures.to_json() | reached | {"adds_up": not wording.alarms(figures)} | compared | state


def as_picture(figures: LaunchStats, path: Path, title: str | None = None) -> Path:
    """Draw the figures to a PNG or SVG file and return its path. Raise SettingsError if Matplotlib is missing.

    ``title``: of the campaign, for people who do not know its name.
    """
    try:
        from sendoff.report.picture import draw
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise SettingsError(
            "A picture needs Matplotlib, which is not installed. Run: pip install 'airflow-provider-sendoff[picture]'"
        ) from None
    return draw(figures, path, title)


def describe_launch(
    figures: LaunchStats,
    comparisons: Sequence[Comparison] = (),
    stage: Stage | None = None,
    zone: tzinfo = UTC,
    title: str | None = None,
) -> Document:
    """Return the report of a launch as a document, with its comparisons, and its state if it is known.

    ``zone``: the time zone of its timeline. ``title``: of the campaign, for people who do not know its name.
    """
    alarms, state = wording.alarms(figures), f"{stage.label}, " if stage else ""
    name = f" of {figures.campaign}" if title else ""
    people = "everyone in the post-backs has exactly one verdict."
    if not figures.is_chosen_by_service:
        people = (
            f"every {'identifier in the request' if figures.is_own_request else 'row'} was kept or "
            "dropped for one reason, and everyone in the audience has exactly one verdict."
        )
    return Document(
        title=title or figures.campaign,
        subtitle=wording.period_in_words(figures.period) if title else figures.period,
        caption=f"launch {figures.launch_key}{name}, {state}as of {figures.as_of:%Y-%m-%d %H:%M:%S %Z}",
        lead=[*(Sentence(each, is_alarm=True) for each in alarms), *sentences(wording.who_is_meant(figures))],
        sections=[
            *_sections(figures, zone),
            *map(describe_comparison, comparisons, range(1, len(comparisons) + 1)),
            _words(figures),
        ],
        notes=[
            *([] if alarms else [f"The sums of this report add up: {people}"]),
            "Made by Sendoff. This file holds only counts. It identifies no one.",
        ],
    )


def _sections(figures: LaunchStats, zone: tzinfo) -> Iterator[Section]:
    if figures.is_chosen_by_service:
        yield Section(
            "verdicts",
            f"{figures.noun[1].capitalize()} in the post-backs",
            [
                _verdicts(figures),
                *sentences(wording.reached(figures)),
                *sentences(wording.requests_without_people(figures)),
            ],
        )
    else:
        origin = "identifiers" if figures.is_own_request else "rows"
        yield Section("rows", f"From {origin} to audience", [_rows_to_audience(figures)])
        said = [*wording.reached(figures), *wording.rounding(figures)]
        yield Section("verdicts", "What became of the audience", [_verdicts(figures), *sentences(said)])
        if why := wording.what_cannot_be_known(figures):
            yield Section("unknowns", "What cannot be known, and why", sentences(why))
        if nothing := wording.got_nothing(figures):
            yield Section("nothing", "Who got nothing, and why", sentences(nothing))
    for what, rows, remarks in (
        ("platform", figures.by_platform, wording.platform_remarks(figures)),
        ("variant", wording.variant_rows(figures), wording.variant_remarks(figures)),
    ):
        if rows:
            yield Section(what, f"By {what}", [Groups.of(figures, what, rows), *sentences(remarks)])
    yield Section("timeline", "Deliveries and opens over time", [_timeline(figures, zone)], is_for_pages=True)
    yield Section(
        "requests",
        "Requests and post-backs",
        [Facts(wording.requests_and_post_backs(figures)), *sentences(wording.second_campaigns(figures))],
    )


def _timeline(figures: LaunchStats, zone: tzinfo) -> Block:
    step, points = points_of(figures.timeline, zone)
    if len(points) < FEWEST_POINTS:
        return Sentence(wording.few_points(step, points))
    return Timeline(span(step), points, figures.noun[0])


def _rows_to_audience(figures: LaunchStats) -> Sum:
    return Sum(
        [
            Line("", figures.rows, rows_for(figures.rows, is_own_request=figures.is_own_request)),
            *(Line("-", count, spoken_reason(reason)) for reason, count in figures.dropped.items()),
            Line("=", figures.audience, f"audience, in {counted(figures.segments, 'segment')}"),
        ]
    )


def _verdicts(figures: LaunchStats) -> Sum:
    """Return the sum of the verdicts. If the service chose the people, it has no shares: their number is not known."""
    lines = _verdict_lines(figures)
    lines += [Line("of", count, spoken_reason(reason)) for reason, count in figures.not_sent_because.items()]
    if figures.erased:
        lines.append(Line("+", figures.erased, "erased", note=_ERASED))
    total = sum(figures.verdicts.values()) + figures.erased
    if figures.is_chosen_by_service:
        lines.append(Line("=", total, f"{noun_for(total, *figures.noun)} in the post-backs"))
        return Sum(lines, has_tiles=True)
    lines.append(Line("=", total, "audience"))
    people = counted(figures.audience, *figures.noun)
    caption = f"Audience: {people}. Each share is a share of the audience."
    return Sum(lines, figures.audience, caption, has_tiles=True)


def _verdict_lines(figures: LaunchStats) -> list[Line]:
    """Return a line of the sum for each verdict, and one for the engaged whose opens a machine probably made."""
    lines = [
        Line(
            "+" if number else "",
            figures.verdicts.get(verdict, 0),
            verdict.label,
            verdict,
            _NOTES[verdict] if figures.is_measured(verdict) else _UNMEASURED,
        )
        for number, verdict in enumerate(figures.known_verdicts)
    ]
    if figures.suspects:
        lines.insert(1, Line("of", figures.suspects, MACHINE))
    return lines


def describe_comparison(compared: Comparison, number: int = 1) -> Section:
    """Return a comparison as a section: its sides, its differences, and remarks on how to read them."""
    lead = (conclusion(compared), compared.outlook)
    rows = [(side.name, *_cells(side, compared)) for side in compared.sides]
    columns = ("", *_columns(compared))
    sides = Table(columns, rows, frozenset(range(1, 5)), (), "Results by side; ? means not measurable")
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
            *(Sentence(each, is_alarm=bool(compared.mismatch)) for each in lead if each),
            sides,
            *([Ranges(known)] if known else []),
            *sentences(f"{side.name}: {side.note}." for side in compared.sides if side.note),
            *sentences(each.sentence for each in compared.differences),
            *sentences(compared.remarks),
        ],
    )


def _columns(compared: Comparison) -> tuple[str, ...]:
    people, interval = compared.noun[1], f"{percent(LEVEL)} interval"
    if compared.measure == "share":
        return (people, compared.what, f"share of {people}", interval)
    return (people, "with a value", compared.measure, interval)


def _cells(side: Side, compared: Comparison) -> tuple[str, ...]:
    """Return one side as cells. An unknown value is a question mark, never 0."""
    if side.count is None or side.estimate is None:
        return (f"{side.people:,}", "?", "?", "?")
    ends = (side.interval.low, side.interval.high) if side.interval else ()
    interval = " to ".join(amount(end, compared.measure) for end in ends) or "?"
    return (f"{side.people:,}", f"{side.count:,}", amount(side.estimate, compared.measure), interval)


def _words(figures: LaunchStats) -> Section:
    """Return the section that explains the words in this report."""
    used = {
        spoken_reason(word)
        for counts in (figures.dropped, figures.not_sent_because, figures.anomalies)
        for word, count in counts.items()
        if count
    }
    used |= {word for word, count in (("erased", figures.erased), (MACHINE, figures.suspects)) if count}
    verdicts = [(verdict.label, MEANINGS[verdict]) for verdict in figures.known_verdicts]
    others = [(word, meaning) for word, meaning in _OTHER_MEANINGS.items() if word in used]
    return Section("words", "What the words mean", [Facts([*verdicts, *others])], is_for_pages=True)
