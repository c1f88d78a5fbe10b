"""What goes out on some days, by campaign: launches, launches that were not made, and the runs that are to come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sendoff.campaign import Period
from sendoff.ledger import Ledger, NotLaunched, Selection
from sendoff.states import LaunchState, Stage
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule
from sendoff_airflow.views.airflow_state.timetables import clocks_of, coming_runs
from sendoff_airflow.views.facts.launch_rows import WAITS, LaunchRow, rows_of
from sendoff_airflow.views.web.reader import midnight

_log = logging.getLogger(__name__)

_MOST_RUNS = 1_100
"""The most runs of one campaign to look at: hourly ones for six weeks."""


class Days(NamedTuple):
    """Some days in a row, in a time zone."""

    first: date
    last: date
    zone: ZoneInfo

    @property
    def begin(self) -> datetime:
        """When the first day begins."""
        return midnight(self.first, self.zone)

    @property
    def end(self) -> datetime:
        """When the last day is over."""
        return midnight(self.last + timedelta(days=1), self.zone)


class ComingRuns(NamedTuple):
    """The runs of a campaign or a journey that are to come on one day."""

    schedule: DagSchedule
    runs_at: datetime  # the first of them
    period: Period | None  # of the first, if it is the next one
    more: int  # runs after the first

    @property
    def campaign(self) -> str:
        """The name of the campaign or the journey."""
        return self.schedule.dag_id


Happening = LaunchRow | NotLaunched | ComingRuns
Timed = tuple[datetime, Happening]


@dataclass(frozen=True, slots=True)
class Happenings:
    """What happens on some days, each with its time, earliest first. ``is_cut``: there is more of it."""

    found: Sequence[Timed]
    is_cut: bool


def happenings(
    ledger: Ledger,
    visible: frozenset[str],
    schedules: Mapping[str, DagSchedule],
    days: Days,
    limit: int,
) -> Happenings:
    """Return what happens on some days, with the newest ``limit`` launches of each kind.

    Launches count if they went out or go out then. So do those that may go out then. They wait for a person and not for
    a later day, their window or wave opens by then, or their first request is about to be made.
    """
    begin, end = days.begin, days.end
    then = Selection(visible, since=begin, until=end)
    listed = ledger.overview.page(then, order="sends", limit=limit + 1)
    rows = rows_of(ledger, listed)
    known = {each.launch.launch_key for each in listed}
    held = ledger.launches.page(visible, states=[LaunchState.HELD], limit=limit + 1)
    held_keys = [launch.launch_key for launch in held]
    unsent = ledger.launches.unsent(LaunchState.RELEASED)
    if keys := [key for key in (*held_keys, *unsent) if key not in known]:
        waiting = rows_of(ledger, ledger.overview.page(Selection(visible, keys), limit=len(keys)))
        rows += [row for row in waiting if _may_go_out(row, end)]
    refused = ledger.overview.keys_not_made(then)
    runs, is_cut = _runs_on(schedules, days)
    every: list[Happening] = [*rows, *ledger.not_launched.of_keys(refused[:limit]), *runs]
    is_now = begin <= datetime.now(UTC) < end
    timed = [(moment_of(each, end), each) for each in every]
    chosen = [(at, each) for at, each in timed if (is_now or begin <= at) and at < end]
    is_cut = is_cut or max(len(listed), len(held), len(refused)) > limit
    return Happenings(sorted(chosen, key=itemgetter(0)), is_cut)


def moment_of(each: Happening, end: datetime) -> datetime:
    """Return the time of something that happens. What may happen at any time, or should have happened, counts as now.

    A launch that has begun counts when it goes on, if that is before ``end``.
    """
    now = datetime.now(UTC)
    if isinstance(each, LaunchRow):
        until, out_at = each.standing.until, each.goes_out_at
        is_due = each.is_unsent and each.standing.stage in WAITS and out_at is not None and out_at < now
        goes_on = each.is_to_continue and until is not None and until < end
        moment = None if each.is_open or is_due else until if goes_on else out_at
    else:
        moment = each.checked_at if isinstance(each, NotLaunched) else each.runs_at
    return moment or now


def _may_go_out(row: LaunchRow, end: datetime) -> bool:
    """Check whether a launch that waits may go out, or go on, before a moment."""
    if row.launch.state != LaunchState.HELD:
        until = row.standing.until
        return row.standing.stage == Stage.SENDING if until is None else until < end
    return row.listed.sends_at is None or row.listed.sends_at < end


def _runs_on(schedules: Mapping[str, DagSchedule], days: Days) -> tuple[list[ComingRuns], bool]:
    """Return the runs of some days, earliest first, and whether there are more.

    Only DAGs that will run count.
    """
    now = datetime.now(UTC)
    coming = {
        each.dag_id: each
        for each in schedules.values()
        if each.will_run and each.next_run_at and each.next_run_at < days.end
    }
    clocks = clocks_of(coming)
    found, is_cut = [], False
    for dag_id, each in coming.items():
        assert each.next_run_at is not None
        ends = (each.next_start, each.next_end) if each.next_start and each.next_end else None
        runs = [each.next_run_at] if each.next_run_at >= days.begin and not each.is_overdue else []
        if ends and dag_id in clocks:
            try:
                later = coming_runs(clocks[dag_id], ends, days.begin, days.end, _MOST_RUNS)
            except Exception as error:  # of a timetable of the user's own
                _log.warning("The timetable of the DAG %s raises %s", dag_id, type(error).__name__)
                later = []
            runs += [at for at in later if at > now]  # those before are overdue too
        is_cut = is_cut or len(runs) >= _MOST_RUNS
        for _, of_day in groupby(runs, key=lambda at: at.astimezone(days.zone).date()):
            at, *others = of_day
            period = Period(*ends) if ends and at == each.next_run_at else None
            found.append(ComingRuns(each, at, period, len(others)))
    return sorted(found, key=lambda each: each.runs_at), is_cut
