"""The results of a launch for its page, and its downloads: what is known so far, and the newest report in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fastapi import APIRouter, Response
from markupsafe import Markup
from starlette.responses import HTMLResponse

from sendoff.comparison import comparisons_of
from sendoff.errors import NotFoundError
from sendoff.figures import LaunchStats
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.report import (
    Block,
    Document,
    Section,
    Sentence,
    as_csv,
    as_html,
    as_picture,
    blocks_as_html,
    describe_comparison,
    describe_launch,
    sections_as_html,
    stored_outcomes,
)
from sendoff.states import Arm
from sendoff_airflow.views.web.dependencies import ExpensiveDep, LedgerDep, visible_launch
from sendoff_airflow.views.web.permissions import ViewerDep, not_there
from sendoff_airflow.views.web.reader import ZoneDep

router = APIRouter(default_response_class=HTMLResponse)

DOWNLOADS = ("html", "png", "csv")
WITH_MARK = "utf-8-sig"
"""The encoding of tables. Without a mark at the beginning, Excel shows wrong letters for all that are not ASCII."""


class Compared(NamedTuple):
    """The question that a comparison answers, the answer, and the remarks on how to read it, both as HTML."""

    question: str
    html: Markup
    remarks: Markup


@dataclass(frozen=True)
class Results:
    """The newest report of a launch in parts, each as HTML. A part that the report does not have is empty."""

    figures: LaunchStats
    document: Document

    @property
    def as_of(self) -> datetime:
        """When the report was made."""
        return self.figures.as_of

    @property
    def lead(self) -> Markup:
        """Remarks on the whole report, and alarms."""
        return blocks_as_html(self.document.lead)

    def part(self, name: str) -> Markup:
        """Return the blocks of a section, without its heading."""
        section = self._sections.get(name)
        return blocks_as_html(section.blocks, name) if section else Markup()

    @property
    def comparisons(self) -> Sequence[Compared]:
        """The comparisons of the variants, and of those who got the message at their own hour or at once.

        Without a conclusion, nothing was compared, and the remarks say why. Then they are part of the comparison.
        """
        found = []
        for section in self.document.sections:
            if section.name.startswith("compared-"):
                blocks, remarks = list(section.blocks), list[Block]()
                if isinstance(blocks[0], Sentence):
                    while isinstance(blocks[-1], Sentence):
                        remarks.insert(0, blocks.pop())
                html = (blocks_as_html(each, section.name) for each in (blocks, remarks))
                found.append(Compared("Which variant is ahead?", *html))
        if found and {Arm.OWN_HOUR, Arm.CONTROL} <= self.figures.by_arm.keys():
            found[-1] = found[-1]._replace(question="Do more people open it at their own hour?")
        return found

    @property
    def breakdowns(self) -> Markup:
        """The sections that divide the result by platform, by variant and over time, with their headings."""
        names = ("platform", "variant", "timeline")
        return sections_as_html([self._sections[name] for name in names if name in self._sections])

    @cached_property
    def _sections(self) -> Mapping[str, Section]:
        return {section.name: section for section in self.document.sections}


def results_of(ledger: Ledger, launch: LaunchRecord, zone: tzinfo = UTC) -> Results | None:
    """Return the newest report of a launch, or None if there is none yet. ``zone``: of its timeline."""
    try:
        figures = ledger.verdicts.figures(launch.launch_key)
    except NotFoundError:
        return None
    return Results(
        figures, describe_launch(figures, comparisons_of(ledger, figures), zone=zone, title=launch.title)
    )


class Outcome(NamedTuple):
    """A comparison of what recipients did after a launch: its outcome, as HTML, and when it was made."""

    what: str
    html: Markup
    at: datetime


def outcomes_of(ledger: Ledger, launch: LaunchRecord) -> Sequence[Outcome]:
    """Return the comparisons of what recipients did after a launch."""
    return [
        Outcome(compared.what, blocks_as_html(describe_comparison(compared).blocks, f"outcome-{number}"), at)
        for number, (at, compared) in enumerate(stored_outcomes(ledger, launch.launch_key), start=1)
    ]


def downloads() -> Sequence[str]:
    """Return the kinds of files that this server can make of a report."""
    return [form for form in DOWNLOADS if form != "png" or find_spec("matplotlib")]


@router.get("/launches/{launch_key}/report.{form}")
def download_report(
    viewer: ViewerDep, _: ExpensiveDep, ledger: LedgerDep, zone: ZoneDep, launch_key: str, form: str
) -> Response:
    """Return the newest report of a launch as a file, with the reader's date in its name. It holds only counts."""
    launch = visible_launch(ledger, viewer, launch_key)
    results = results_of(ledger, launch)
    if results is None or form not in downloads():
        raise not_there()
    start = launch.period.start.astimezone(zone)
    name = f"{launch.campaign}-{start:%Y-%m-%d}-{launch.launch_key[:12]}.{form}"
    content, kind = _file(results, form, launch.title)
    return Response(
        content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )


def _file(results: Results, form: str, title: str) -> tuple[str | bytes, str]:
    if form == "html":
        return as_html(results.document), "text/html"
    if form == "csv":
        return as_csv(results.figures).encode(WITH_MARK), "text/csv"
    with TemporaryDirectory() as folder:
        return as_picture(results.figures, Path(folder) / "report.png", title).read_bytes(), "image/png"
