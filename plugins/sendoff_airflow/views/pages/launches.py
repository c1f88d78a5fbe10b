"""The list of launches, newest first, below what waits for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from sendoff.launch import Standing, has_begun, has_gone_out
from sendoff.ledger import LaunchRecord, Ledger, ListedLaunch, NotLaunched, Selection
from sendoff.states import LaunchState, Stage
from sendoff_airflow.views.airflow_state import airflow_dags
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule
from sendoff_airflow.views.airflow_state.deadlines import deadlines_of
from sendoff_airflow.views.facts.holds import standings_of, stuck_launches, unanswered, visible_pauses
from sendoff_airflow.views.facts.today import campaign_problems, days_in, runs_before
from sendoff_airflow.views.web.dependencies import REFRESH_FAST, REFRESH_SLOW, LedgerDep
from sendoff_airflow.views.web.permissions import ViewerDep
from sendoff_airflow.views.web.reader import ZoneDep
from sendoff_airflow.views.web.request_models import Name, Number, Paged, query_of
from sendoff_airflow.views.web.templates import page

router = APIRouter(default_response_class=HTMLResponse)

LAUNCHES_PER_PAGE = 25
COLUMNS = ("campaign", "sends", "period", "state", "recipients", "reached", "opened", "requests")
"""The columns of the list, by which it can be sorted."""
_FIRST_ASCENDING = ("campaign", "state")
_MOST_HAPPENING = 50  # of each kind, today and tomorrow
WAITS = (Stage.STUCK, Stage.PAUSED, Stage.WAITING_FOR_APPROVAL, Stage.WAITING_FOR_DECISION)
"""The states that a launch leaves only if someone does something."""


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


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch of a list."""

    listed: ListedLaunch
    standing: Standing

    @property
    def launch(self) -> LaunchRecord:
        """The launch."""
        return self.listed.launch

    @property
    def goes_out_at(self) -> datetime | None:
        """When it went out or will go out, if that is known."""
        return self.listed.sends_at or self.standing.until

    @property
    def when(self) -> str:
        """The words before the time: whether it went out, goes out by itself, or waits for someone."""
        if self.goes_out_at is not None and self.goes_out_at <= datetime.now(UTC):
            return "Went out" if has_gone_out(self.standing.requests) else "Was due"
        return "Due" if self.standing.stage in WAITS else "Goes out"

    @property
    def is_unsent(self) -> bool:
        """Whether no request of it was begun."""
        return not has_begun(self.standing.requests)

    @property
    def is_still_to_go_out(self) -> bool:
        """Whether no one got it so far: no request was begun, or the service sends it later."""
        is_later = self.goes_out_at is not None and self.goes_out_at > datetime.now(UTC)
        return self.is_unsent or (is_later and not self.listed.reached)

    @property
    def is_open(self) -> bool:
        """Whether it is held and goes on as soon as someone approves or releases it."""
        return self.launch.state == LaunchState.HELD and (self.goes_out_at is None or not self.is_unsent)

    @property
    def is_to_continue(self) -> bool:
        """Whether some of it went out, and the rest waits for the send window or the next wave."""
        until = self.standing.until
        return until is not None and self.listed.sends_at is not None and self.listed.sends_at < until


_Happening = LaunchRow | NotLaunched | DagSchedule


@router.get("/")
def list_launches(
    request: Request,
    viewer: ViewerDep,
    ledger: LedgerDep,
    zone: ZoneDep,
    asked: Annotated[Filter, Query()],
) -> HTMLResponse:
    """Show the launches, newest first, below what waits for a person and what goes out today and tomorrow."""
    visible = viewer.visible(
        [
            *ledger.launches.campaigns(),
            *ledger.not_launched.campaigns(),
            *airflow_dags.campaigns_with_a_dag(),
        ]
    )
    selection = asked.selection(visible, zone)
    paged, shown = _page_of(ledger, asked, selection)
    titles, schedules = titles_of(ledger, visible), airflow_dags.schedules_of(visible)
    days = _days(ledger, visible, schedules, zone) if asked.is_whole else []
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
        sort_links=asked.sort_links(),
        stages=list(Stage),
        held=_held(ledger, visible),
        paused=ledger.launches.count_of(visible, states=[LaunchState.PAUSED]),
        stuck=len(stuck_launches(ledger, visible)),
        unanswered=unanswered(ledger, viewer, visible),
        doubted=ledger.stats.doubt_totals(visible),
        pauses=visible_pauses(ledger, viewer, visible),
        refresh=refresh_of([row for row in shown if isinstance(row, LaunchRow)]),
    )


def _held(ledger: Ledger, visible: frozenset[str]) -> Mapping[Stage, int]:
    """Count the held launches by what they wait for."""
    states = [LaunchState.HELD]
    launches = ledger.launches.page(
        visible, states=states, limit=ledger.launches.count_of(visible, states=states)
    )
    return Counter(each.stage for each in standings_of(ledger, Selection.of(launches)).values())


def _days(
    ledger: Ledger, visible: frozenset[str], schedules: Mapping[str, DagSchedule], zone: ZoneInfo
) -> Sequence[Sequence[_Happening]]:
    """Return what happens today and tomorrow, earliest first: launches that go out or may go out, others, and runs.

    The others are launches that were not made. A launch may go out if it waits for a person and not for a later day,
    or if its send window or its next wave opens by then. It also may if its first request is about to be made. Of each
    schedule, only the next run is known.
    """
    begin, middle, end = days_in(zone)
    listed = ledger.overview.page(
        Selection(visible, since=begin, until=end), order="sends", is_ascending=True, limit=_MOST_HAPPENING
    )
    rows = rows_of(ledger, listed)
    known = {each.launch.launch_key for each in listed}
    held = ledger.launches.page(visible, states=[LaunchState.HELD], limit=_MOST_HAPPENING)
    held_keys = [launch.launch_key for launch in held]
    unsent = ledger.launches.unsent(LaunchState.RELEASED)
    if keys := [key for key in (*held_keys, *unsent) if key not in known]:
        waiting = rows_of(ledger, ledger.overview.page(Selection(visible, keys), limit=len(keys)))
        rows += [row for row in waiting if _may_go_out(row, end)]
    refused = ledger.not_launched.newest(visible, limit=_MOST_HAPPENING)
    found: list[_Happening] = [
        *rows,
        *(each for each in refused if begin <= each.checked_at < end),
        *runs_before(schedules, end),
    ]
    found.sort(key=_moment_of)
    return [
        [each for each in found if _moment_of(each) < middle],
        [each for each in found if _moment_of(each) >= middle],
    ]


def _may_go_out(row: LaunchRow, end: datetime) -> bool:
    """Check whether a launch that waits may go out, or go on, before a moment."""
    if row.launch.state != LaunchState.HELD:
        until = row.standing.until
        return row.standing.stage == Stage.SENDING if until is None else until < end
    return row.listed.sends_at is None or row.listed.sends_at < end


def _moment_of(each: _Happening) -> datetime:
    """Return the time of something that happens. What may happen at any time counts as now."""
    if isinstance(each, LaunchRow):
        moment = None if each.is_open else each.standing.until if each.is_to_continue else each.goes_out_at
    else:
        moment = each.checked_at if isinstance(each, NotLaunched) else each.next_run_at
    return moment or datetime.now(UTC)


def _page_of(
    ledger: Ledger, asked: Filter, selection: Selection
) -> tuple[Paged, Sequence[LaunchRow | NotLaunched]]:
    """Return a page of the list. The states are not in the ledger, so all are derived to filter or sort by them."""
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
            paged = Paged(asked.page, LAUNCHES_PER_PAGE, len(keys), asked.choices)
            return paged, _listed(ledger, selection, keys[paged.offset : paged.offset + paged.size])
        selection = replace(selection, keys=list(stages))
    total = ledger.overview.count(selection, with_not_made=has_others)
    keys = ledger.overview.keys(
        selection,
        order=order,
        is_ascending=is_ascending,
        offset=(asked.page - 1) * LAUNCHES_PER_PAGE,
        limit=LAUNCHES_PER_PAGE,
        with_not_made=has_others,
    )
    return Paged(asked.page, LAUNCHES_PER_PAGE, total, asked.choices), _listed(ledger, selection, keys)


def _listed(ledger: Ledger, selection: Selection, keys: Sequence[str]) -> Sequence[LaunchRow | NotLaunched]:
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


def rows_of(ledger: Ledger, listed: Sequence[ListedLaunch]) -> list[LaunchRow]:
    """Return the rows of a list, with their states."""
    found = standings_of(ledger, Selection.of([each.launch for each in listed]))
    return [LaunchRow(each, found[each.launch.launch_key]) for each in listed]


def refresh_of(rows: Sequence[LaunchRow]) -> int:
    """Return after how many seconds a page with some launches reloads."""
    return REFRESH_FAST if any(row.standing.stage is Stage.SENDING for row in rows) else REFRESH_SLOW


def _midnight(day: str, zone: ZoneInfo, days: int = 0) -> datetime | None:
    """Return when a day in a time zone begins, or a later day, in UTC; None if the text is no day of the calendar."""
    try:
        begin = datetime.combine(date.fromisoformat(day), time(), zone)
        return (begin + timedelta(days)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
