"""The list of launches, newest first, below what waits for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from sendoff.ledger import Ledger, NotLaunched, Selection
from sendoff.states import UNFINISHED, LaunchState, Stage
from sendoff_airflow.views.airflow_state import airflow_dags
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule
from sendoff_airflow.views.airflow_state.deadlines import deadlines_of
from sendoff_airflow.views.facts.happenings import Days, Happening, happenings
from sendoff_airflow.views.facts.holds import standings_of, unanswered, visible_pauses
from sendoff_airflow.views.facts.launch_rows import WAITS, LaunchRow, rows_of
from sendoff_airflow.views.facts.problems import campaign_problems
from sendoff_airflow.views.web.dependencies import REFRESH_FAST, REFRESH_SLOW, LedgerDep
from sendoff_airflow.views.web.permissions import Viewer, ViewerDep
from sendoff_airflow.views.web.reader import ZoneDep, midnight
from sendoff_airflow.views.web.request_models import Name, Number, Paged, query_of
from sendoff_airflow.views.web.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_PER_PAGE = 25
MOST_IN_TABLE = 10_000
"""The most launches in one table to download. Its next page has those after them."""
COLUMNS = ("campaign", "sends", "period", "state", "recipients", "reached", "opened", "requests")
"""The columns of the list, by which it can be sorted."""
_FIRST_ASCENDING = ("campaign", "state")
_MOST_HAPPENING = 100  # launches of each kind, today and tomorrow


class Filter(BaseModel):
    """What the form above the list asks for, and the order of the list. Unknown values count as left out."""

    campaign: Name = ""
    state: list[Name] = []
    words: Name = ""
    since: Name = ""
    until: Name = ""
    sort: Name = ""
    page: Number = 1

    @property
    def choices(self) -> dict[str, str | Sequence[str]]:
        """The parameters of an address that asks for the same."""
        return self.model_dump(exclude={"page"})

    @property
    def stages(self) -> list[Stage]:
        """The states to show; all if empty."""
        return [stage for stage in Stage if stage in self.state]

    @property
    def is_whole(self) -> bool:
        """Whether this asks for the beginning of the whole list."""
        narrowed = (self.campaign, self.state, self.words, self.since, self.until, self.sort)
        return self.page == 1 and not any(narrowed)

    @property
    def column(self) -> str | None:
        """The column to sort by."""
        name = self.sort.removeprefix("-")
        return name if name in COLUMNS else None

    @property
    def is_ascending(self) -> bool:
        """Whether the smallest value comes first."""
        return not self.sort.startswith("-")

    def sort_links(self) -> dict[str, str]:
        """Return the query of the address that sorts by each column, or reverses the order if it already does."""
        links = {}
        for name in COLUMNS:
            ascending = not self.is_ascending if name == self.column else name in _FIRST_ASCENDING
            links[name] = query_of(self.choices | {"sort": name if ascending else f"-{name}"})
        return links

    def selection(self, visible: frozenset[str], zone: ZoneInfo) -> Selection:
        """Return the launches to show, whatever their state is. ``zone``: of the dates."""
        chosen = visible & {self.campaign} if self.campaign else visible
        return Selection(
            chosen,
            words=self.words.strip(),
            since=_midnight(self.since, zone),
            until=_midnight(self.until, zone, days=1),
        )


@router.get("/")
def list_launches(
    request: Request,
    viewer: ViewerDep,
    ledger: LedgerDep,
    zone: ZoneDep,
    asked: Annotated[Filter, Query()],
) -> HTMLResponse:
    """Show the launches, newest first, below what waits for a person and what goes out today and tomorrow."""
    visible = campaigns_seen(viewer, ledger)
    selection = asked.selection(visible, zone)
    paged, keys = keys_of(ledger, asked, selection, LAUNCHES_PER_PAGE)
    shown = listed(ledger, selection, keys)
    titles, schedules = titles_of(ledger, visible), airflow_dags.schedules_of(visible)
    days = _today_and_tomorrow(ledger, visible, schedules, zone) if asked.is_whole else []
    return page(
        request,
        "launches.html",
        rows=shown,
        paged=paged,
        campaigns=titles,
        days=days,
        deadlines=deadlines_of([each.launch for day in days for each in day if isinstance(each, LaunchRow)]),
        problems=campaign_problems(ledger, schedules, titles),
        asked=asked,
        choices=query_of(asked.choices),
        most_in_table=MOST_IN_TABLE,
        sort_links=asked.sort_links(),
        stages=list(Stage),
        waiting=_waiting(ledger, visible),
        unanswered=unanswered(ledger, viewer, visible),
        doubted=ledger.stats.doubt_totals(visible),
        pauses=visible_pauses(ledger, viewer, visible),
        refresh=refresh_of([row for row in shown if isinstance(row, LaunchRow)]),
    )


def campaigns_seen(viewer: Viewer, ledger: Ledger) -> frozenset[str]:
    """Return the campaigns that a viewer sees: with launches, made or not, or with a DAG."""
    known = (*ledger.launches.campaigns(), *ledger.not_launched.campaigns())
    return viewer.visible([*known, *airflow_dags.campaigns_with_a_dag()])


def _waiting(ledger: Ledger, visible: frozenset[str]) -> Mapping[Stage, int]:
    """Count the launches in each state that one leaves only if someone does something."""
    states = [LaunchState.HELD, LaunchState.PAUSED]
    launches = ledger.launches.page(
        visible, states=states, limit=ledger.launches.count_of(visible, states=states)
    )
    unsent = ledger.launches.unsent(LaunchState.RELEASED, of=UNFINISHED)
    found = standings_of(ledger, Selection(visible, [*(each.launch_key for each in launches), *unsent]))
    return Counter(each.stage for each in found.values() if each.stage in WAITS)


def _today_and_tomorrow(
    ledger: Ledger, visible: frozenset[str], schedules: Mapping[str, DagSchedule], zone: ZoneInfo
) -> Sequence[Sequence[Happening]]:
    today = datetime.now(zone).date()
    days = Days(today, today + timedelta(days=1), zone)
    found = happenings(ledger, visible, schedules, days, _MOST_HAPPENING).found
    middle = midnight(days.last, zone)
    return [
        [each for at, each in found if at < middle],
        [each for at, each in found if at >= middle],
    ]


def keys_of(ledger: Ledger, asked: Filter, selection: Selection, size: int) -> tuple[Paged, Sequence[str]]:
    """Return the keys of a page of so many launches, and its place in the list.

    The states are not in the ledger, so all are derived to filter or sort by them.
    """
    has_others = not asked.stages or Stage.NOT_LAUNCHED in asked.stages
    order, is_ascending = asked.column or "created", bool(asked.column) and asked.is_ascending
    if asked.stages or order == "state":
        found = standings_of(ledger, selection)
        stages = {key: each.stage for key, each in found.items() if each.stage in (asked.stages or Stage)}
        if order == "state":
            ranks = {stage: rank for rank, stage in enumerate(Stage)}
            others = ledger.overview.keys_not_made(selection) if has_others else []
            keys = sorted(
                [*stages, *others],
                key=lambda key: ranks[stages.get(key, Stage.NOT_LAUNCHED)],
                reverse=not is_ascending,
            )
            paged = Paged(asked.page, size, len(keys), asked.choices)
            return paged, keys[paged.offset : paged.offset + size]
        selection = replace(selection, keys=list(stages))
    total = ledger.overview.count(selection, with_not_made=has_others)
    paged = Paged(asked.page, size, total, asked.choices)
    return paged, ledger.overview.keys(
        selection,
        order=order,
        is_ascending=is_ascending,
        offset=paged.offset,
        limit=size,
        with_not_made=has_others,
    )


def listed(ledger: Ledger, selection: Selection, keys: Sequence[str]) -> Sequence[LaunchRow | NotLaunched]:
    """Return launches, and those that were not made, in the order of their keys."""
    chosen = Selection(selection.campaigns, keys)
    rows = rows_of(ledger, ledger.overview.page(chosen, limit=len(keys)))
    found: dict[str, LaunchRow | NotLaunched] = {row.launch.launch_key: row for row in rows}
    found |= {each.launch_key: each for each in ledger.not_launched.of_keys(keys)}
    return [found[key] for key in keys if key in found]


def titles_of(ledger: Ledger, campaigns: Collection[str]) -> dict[str, str]:
    """Return the titles of campaigns with launches, made or not, by name and sorted by title."""
    refused = ledger.not_launched.campaigns()
    titles = {name: each.title for name, each in refused.items() if name in campaigns}
    titles |= {name: each.launch.title for name, each in ledger.overview.newest(campaigns).items()}
    return dict(sorted(titles.items(), key=lambda item: (item[1].casefold(), item[0])))


def with_not_launched(
    ledger: Ledger, rows: Sequence[LaunchRow], selection: Selection
) -> Sequence[LaunchRow | NotLaunched]:
    """Return the newest launches together with the newest of those that were not made, newest first.

    If there are more launches than ``rows``, launches that were not made before them are left out.
    """
    found = ledger.not_launched.newest(selection.campaigns, limit=LAUNCHES_PER_PAGE)
    if len(rows) < ledger.overview.count(selection):
        found = [each for each in found if each.checked_at >= rows[-1].launch.created_at]
    return sorted(
        [*rows, *found],
        key=lambda each: each.checked_at if isinstance(each, NotLaunched) else each.launch.created_at,
        reverse=True,
    )


def refresh_of(rows: Sequence[LaunchRow]) -> int:
    """Return after how many seconds a page with some launches reloads."""
    return REFRESH_FAST if any(row.standing.stage is Stage.SENDING for row in rows) else REFRESH_SLOW


def _midnight(day: str, zone: ZoneInfo, days: int = 0) -> datetime | None:
    """Return when a day in a time zone begins, or a later day, in UTC; None if the text is no day of the calendar."""
    try:
        return midnight(date.fromisoformat(day) + timedelta(days), zone)
    except (ValueError, OverflowError):
        return None
