"""Counts as CSV, for spreadsheets, such as those of a report. It holds no identifiers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sendoff.figures import LaunchStats, spoken_reason
from sendoff.report.wording import variant_rows
from sendoff.states import Verdict

# A spreadsheet would calculate a cell that begins so. Some, such as a German Excel, begin a cell after a semicolon, and
# then quotation marks in a cell do not join its lines. Japanese ones also know wide signs.
_FORMULA = re.compile(r'(^"*(?=[\t\r\n])|(?:^|\r\n|[;\t\r\n])"*(?=[-=+@\uff0b\uff0d\uff1d\uff20]))')


def as_csv(figures: LaunchStats) -> str:
    """Return the counts as CSV, one in each row, with the columns ``of``, ``group``, ``what`` and ``count``.

    ``count`` is empty for a verdict that no post-back can show.
    """
    return csv_of(("of", "group", "what", "count"), _rows(figures))


def csv_of(columns: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> str:
    """Return rows as CSV without formulas."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_plain(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return file.getvalue()


def _rows(figures: LaunchStats) -> Iterator[tuple[str, str, str, int | None]]:
    if not figures.is_chosen_by_service:
        yield "rows", "", "rows read", figures.rows
        yield from _reasons("rows", "dropped", figures.dropped)
    yield "people", "", "audience", figures.audience
    verdicts = {str(verdict): figures.verdicts.get(verdict, 0) for verdict in figures.known_verdicts}
    yield from _counts("people", "by verdict", _measured(figures, verdicts))
    if figures.erased:
        yield "people", "", "erased", figures.erased
    yield from _reasons("people", "not sent because", figures.not_sent_because)
    yield from _counts("people", "unknowable because", figures.unknowable_because)
    for what, groups in (("platform", figures.by_platform), ("variant", variant_rows(figures))):
        for group, counts in groups.items():
            yield from _counts(what, group, _measured(figures, counts))
    yield from _counts("requests", "by state", figures.dispatches)
    yield from _counts("post-backs", "by kind", figures.post_backs)


def _counts(
    of: str, group: str, counts: Mapping[str, int] | Mapping[str, int | None]
) -> Iterator[tuple[str, str, str, int | None]]:
    for name, count in counts.items():
        yield of, group, name.replace("_", " "), count


def _measured(figures: LaunchStats, verdicts: Mapping[str, int]) -> dict[str, int | None]:
    return {name: count if figures.is_measured(Verdict(name)) else None for name, count in verdicts.items()}


def _reasons(of: str, group: str, counts: Mapping[str, int]) -> Iterator[tuple[str, str, str, int | None]]:
    """Yield a row for each reason. Two reasons may have the same words in a launch that an older version froze."""
    for reason, count in counts.items():
        yield from _counts(of, group, {spoken_reason(reason): count})


def _plain(text: str) -> str:
    return _FORMULA.sub(r"\1'", text)
