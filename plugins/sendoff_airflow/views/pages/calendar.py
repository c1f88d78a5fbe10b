"""The calendar: the launches and the coming runs of each day of a month."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from sendoff.ledger import Ledger, ListedLaunch, NotLaunched
from sendoff.states import Stage
from sendoff_airflow.views.airflow_state import airflow_dags
from sendoff_airflow.views.facts.happenings import ComingRuns, Days, Happening, Timed, happenings
from sendoff_airflow.views.facts.holds import visible_pauses
from sendoff_airflow.views.facts.launch_rows import WAITS, LaunchRow
from sendoff_airflow.views.pages.launches import campaigns_seen
from sendoff_airflow.views.web.dependencies import REFRESH_SLOW, LedgerDep
from sendoff_airflow.views.web.permissions import ViewerDep
from sendoff_airflow.views.web.reader import ZoneDep
from sendoff_airflow.views.web.request_models import Name, query_of
from sendoff_airflow.views.web.templates import page

MONTHS_AHEAD = 3
"""How many months the calendar goes beyond the current one."""

_MOST_HAPPENING = 1_000  # launches of each kind in a month
_TELLING = (*WAITS, Stage.SENDING, Stage.REFUSED, Stage.STOPPED, Stage.NOT_LAUNCHED)
"""The states that a group shows first."""
_ENDED = (Stage.REFUSED, Stage.STOPPED, Stage.REJECTED)
"""The states of launches that some of their recipients do not get."""

router = APIRouter(default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one campaign does on one day. ``recipients``: those who get its launches; None if that is not known."""

    title: str
    address: str  # relative to the first page
    at: datetime | None  # of the first launch; None: as soon as someone approves it
    state: str
    recipients: int | None
    is_expected: bool  # some of it is still to come, or waits
    is_last: bool = False  # ``at`` is the last of several moments
    times: int = 1


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the calendar."""

    date: date
    entries: Sequence[Entry]

    @property
    def recipients(self) -> int:
        """How many recipients get a message, as far as that is known. A recipient of two launches counts twice."""
        return sum(each.recipients or 0 for each in self.entries)

    @property
    def is_expected(self) -> bool:
        """Whether some of it is still to come."""
        return any(each.is_expected for each in self.entries)


@router.get("/calendar")
def show_calendar(
    request: Request, viewer: ViewerDep, ledger: LedgerDep, zone: ZoneDep, month: Name = ""
) -> HTMLResponse:
    """Show a month: what went out, what waits, and the runs that are to come, by day. By default the current one."""
    today = datetime.now(zone).date()
    last_month = _first_of(today.replace(day=1), MONTHS_AHEAD)
    first = min(_month_of(month) or today.replace(day=1), last_month)
    after = _first_of(first, 1)
    start = first - timedelta(first.weekday())
    dates = [start + timedelta(days) for days in range((after - start).days + -after.weekday() % 7)]
    visible = campaigns_seen(viewer, ledger)
    schedules = airflow_dags.schedules_of(visible)
    shown = Days(dates[0], dates[-1], zone)
    found = happenings(ledger, visible, schedules, shown, _MOST_HAPPENING)
    days = _days(dates, shown, found.found, _recipients(ledger, found.found), ledger.overview.newest(visible))
    return page(
        request,
        "calendar.html",
        first=first,
        today=today,
        weeks=[days[at : at + 7] for at in range(0, len(days), 7)],
        most=max(day.recipients for day in days),
        is_cut=found.is_cut,
        pauses=visible_pauses(ledger, viewer, visible),
        before=_first_of(first, -1) if first > date(1970, 1, 1) else None,
        after=after if after <= last_month else None,
        refresh=REFRESH_SLOW,
    )


def _month_of(text: str) -> date | None:
    """Return the first day of a month such as 2026-11, or None if the text is none."""
    found = re.fullmatch(r"(19[7-9]\d|2\d{3})-(0[1-9]|1[0-2])", text)
    return date(int(found[1]), int(found[2]), 1) if found else None


def _first_of(month: date, later: int) -> date:
    """Return the first day of the month that comes some months later."""
    years, number = divmod(month.month - 1 + later, 12)
    return date(month.year + years, number + 1, 1)


def _recipients(ledger: Ledger, found: Sequence[Timed]) -> dict[str, int | None]:
    """Return how many recipients get each launch, by key. Of one that has ended, it is how many have it at most."""
    rows = [each for _, each in found if isinstance(each, LaunchRow)]
    ended = [each.launch.launch_key for each in rows if each.standing.stage in _ENDED]
    whole = {each.launch.launch_key: each.listed.recipients for each in rows}
    return whole | dict.fromkeys(ended, 0) | ledger.overview.recipients_at_most(ended)


def _days(
    dates: Sequence[date],
    shown: Days,
    found: Sequence[Timed],
    recipients: Mapping[str, int | None],
    newest: Mapping[str, ListedLaunch],
) -> list[Day]:
    """Return days with their entries, in the order of time. What one campaign does on one day is one entry."""
    groups: dict[date, dict[str, list[Timed]]] = {day: {} for day in dates}
    for moment, each in found:
        at = moment.astimezone(shown.zone)
        day = at.date() if at.date() >= shown.first else datetime.now(shown.zone).date()  # was due, and waits
        day = min(day, shown.last)  # which may end just now
        groups[day].setdefault(each.campaign, []).append((at, each))
    return [
        Day(day, [_entry(day, name, each, recipients, newest.get(name)) for name, each in of_day.items()])
        for day, of_day in groups.items()
    ]


def _entry(
    day: date,
    campaign: str,
    group: Sequence[Timed],
    recipients: Mapping[str, int | None],
    newest: ListedLaunch | None,
) -> Entry:
    """Return what a campaign does on a day. ``newest``: its newest launch."""
    entries = [_alone(at, each, recipients, newest) for at, each in group]
    launches = [each for _, each in group if not isinstance(each, ComingRuns)]
    states, counts = {each.state for each in entries}, [each.recipients for each in entries]
    address = entries[0].address
    if len(launches) > 1:
        zone = group[0][0].tzinfo
        times = [
            each.checked_at if isinstance(each, NotLaunched) else each.listed.sends_at for each in launches
        ]
        is_of_day = all(time is not None and time.astimezone(zone).date() == day for time in times)
        days = {"since": f"{day}", "until": f"{day}"} if is_of_day else {}
        address = f"?{query_of({'campaign': campaign, **days})}"
    return Entry(
        title=entries[-1].title,
        address=address,
        at=entries[0].at,
        state=next((state for state in _TELLING if state in states), entries[-1].state),
        recipients=None if None in counts else sum(count or 0 for count in counts),
        is_expected=any(each.is_expected for each in entries),
        is_last=entries[0].is_last,
        times=sum(each.times for each in entries),
    )


def _alone(
    at: datetime, each: Happening, recipients: Mapping[str, int | None], newest: ListedLaunch | None
) -> Entry:
    """Return the entry of something alone. A coming run has the recipients of the newest launch."""
    if isinstance(each, LaunchRow):
        launch, stage = each.launch, each.standing.stage
        address = f"launches/{quote(launch.launch_key, safe='')}"
        return Entry(
            launch.title,
            address,
            None if each.is_open else at,
            stage,
            recipients[launch.launch_key],
            stage in WAITS,
            each.is_last,
        )
    address = f"campaigns/{quote(each.campaign, safe='')}"
    if isinstance(each, NotLaunched):
        return Entry(each.title, address, at, Stage.NOT_LAUNCHED, 0, is_expected=False)
    times = 1 + each.more
    last = newest.recipients if newest else None
    return Entry(each.schedule.title, address, at, "scheduled", last and last * times, True, times=times)
