"""What goes out today, in the reader's time zone, and which campaigns do not run although they have a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from sendoff.ledger import Ledger
from sendoff_airflow.views.airflow_state.airflow_db import DagSchedule
from sendoff_airflow.views.airflow_state.missed import Missed, missed_of, paused_since


@dataclass(frozen=True, slots=True)
class Idle:
    """A campaign with a schedule that sends nothing: its DAG is paused, has an error, or is not started."""

    name: str
    title: str
    schedule: DagSchedule
    since: datetime | None  # of the pause, if that is known
    missed: Missed


def idle_campaigns(
    ledger: Ledger, schedules: Mapping[str, DagSchedule], titles: Mapping[str, str]
) -> Sequence[Idle]:
    """Return the campaigns that do not run, sorted by title. A paused campaign counts once it missed a period."""
    chosen = {name: each for name, each in schedules.items() if each.is_idle}
    if not chosen:
        return []
    missed = missed_of(ledger, chosen, since_newest_run=True)
    since = paused_since([name for name, each in chosen.items() if each.is_paused])
    idle = [
        Idle(name, titles.get(name, each.title), each, since.get(name), missed.get(name, Missed()))
        for name, each in chosen.items()
        if each.problem is not None or name in missed
    ]
    return sorted(idle, key=lambda each: (each.title.casefold(), each.name))


def runs_today(schedules: Mapping[str, DagSchedule], zone: ZoneInfo) -> Sequence[DagSchedule]:
    """Return the schedules whose next run starts today."""
    _, end = day_in(zone)
    return [
        each
        for each in schedules.values()
        if each.will_run and not each.is_overdue and each.next_run_at and each.next_run_at < end
    ]


def day_in(zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the beginning and the end of today in a time zone."""
    today = datetime.now(zone).date()
    begin, end = (datetime.combine(day, time(), zone) for day in (today, today + timedelta(days=1)))
    return begin.astimezone(UTC), end.astimezone(UTC)
