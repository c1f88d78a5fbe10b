"""The logical period of a DAG run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

from airflow.sdk import (
    Context,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
)

from sendoff.campaign import Period, interval_before
from sendoff.errors import SettingsError

if TYPE_CHECKING:
    from airflow.sdk.bases.timetable import BaseTimetable

    from sendoff.campaign import Campaign

_DAY = timedelta(days=1)
_BY_CLOCK = ("scheduled", "backfill")
"""The types of runs that Airflow makes for the moments of a schedule."""


def period_of(context: Context, campaign: Campaign | None = None) -> Period:
    """Return the period of a run: its data interval, or the day (UTC) before its logical date.

    A schedule such as ``"@daily"`` has moments and no intervals. Its period is the time between the last moment and the
    one before, so all runs between two moments are one launch. The same holds for several cron expressions, and for
    events; the period of the first event is the day before it. A schedule such as ``timedelta(hours=1)`` does not say
    when its moments are, so only its scheduled runs have a period. Raise SettingsError for its other runs, and for any
    other schedule without intervals.

    The day is for DAGs without a clock (``schedule=None``, assets). All runs of such a DAG on one day are one launch,
    for the previous day, as with a daily schedule. A run of a DAG with a clock needs a data interval: without a logical
    date it has none. Then raise SettingsError. If a DAG has a clock and assets, a run that an asset started is for the
    day, and any other run is for the clock's period.

    A run for a partition is for that partition of its period. If the partition has a date, the period is that day
    (UTC), whenever the run takes place. Every run of a ``campaign`` that the service repeats has the same period: the
    campaign's whole life.
    """
    if campaign and campaign.fixed_period:
        return campaign.fixed_period
    run, clock = context["dag_run"], _clock(context)
    start, end, partition = run.data_interval_start, run.data_interval_end, run.partition_key or None
    if moments := _last_moments(clock, _plain(end or run.run_after)):
        return Period(*moments, partition)
    if start and end and start < end:
        return Period(start, end, partition)
    if end and isinstance(clock, CronDataIntervalTimetable):  # a manual run after clocks skipped its time
        return Period(*_interval_before(clock, _plain(end)), partition)
    if partition and run.partition_date:
        day = _midnight(run.partition_date)
        return Period(day, day + _DAY, partition)
    if clock and not partition:
        if not (start and end):
            raise SettingsError("this run has no data interval; trigger the DAG with a logical date")
        # each manual run would be another launch
        if isinstance(clock, DeltaTriggerTimetable) and run.run_type in _BY_CLOCK:
            return Period(end - clock.delta, end)
        raise SettingsError(
            f"a {run.run_type.value} run of this DAG has no period, because its schedule has no intervals. Use a "
            "schedule with intervals, such as CronDataIntervalTimetable or DeltaDataIntervalTimetable"
        )
    day = _midnight(run.logical_date or run.run_after)
    return Period(day - _DAY, day, partition)


def scheduled_at(context: Context, campaign: Campaign, period: Period) -> datetime | None:
    """Return when the clock of a run's DAG made a period due: at its end, or when Airflow was to start the run.

    A manual run may start at any time, so its period is due at its end. Return None for a run without a clock, and for
    a campaign that the service repeats.
    """
    if campaign.fixed_period or _clock(context) is None:
        return None
    run = context["dag_run"]
    return max(period.end, _plain(run.run_after)) if run.run_type in _BY_CLOCK else period.end


def _clock(context: Context) -> BaseTimetable | None:
    """Return the timetable that a run's period comes from, or None if the run is not for a time of a clock."""
    timetable: Any = context["dag"].timetable
    if timetable.asset_condition is not None:
        is_by_asset = context["dag_run"].run_type == "asset_triggered"
        timetable = None if is_by_asset else getattr(timetable, "timetable", None)
    return timetable if timetable and timetable.can_be_scheduled else None


def _last_moments(clock: BaseTimetable | None, at: datetime) -> tuple[datetime, datetime] | None:
    """Return the last two moments of a timetable up to a time. Return None if the timetable does not list its moments.

    Raise SettingsError before the first event of a timetable.
    """
    if isinstance(clock, EventsTimetable):
        events = sorted({event for event in map(_plain, clock.event_dates) if event <= at})
        if not events:
            raise SettingsError(
                "this run has no period before the first event of its DAG. Trigger the DAG after it"
            )
        return (events[-2] if len(events) > 1 else events[-1] - _DAY), events[-1]
    if type(clock) is CronTriggerTimetable:  # a subclass has partitions
        crons = [clock]
    elif isinstance(clock, MultipleCronTriggerTimetable):
        crons = clock.timetables
    else:
        return None
    moments: set[datetime] = set()
    for cron in crons:
        moments.update(_interval_before(cron, at))
    *_, start, end = sorted(moments)
    interval = crons[0].interval  # the same for all
    return (end - interval if interval else start), end


def _interval_before(
    cron: CronTriggerTimetable | CronDataIntervalTimetable, at: datetime
) -> tuple[datetime, datetime]:
    """Return the last two moments of a cron expression up to a time."""
    zone = ZoneInfo(cron.timezone) if isinstance(cron.timezone, str) else cast("tzinfo", cron.timezone)
    return interval_before(cron.expression, zone, at)


def displaced_run(context: Context) -> str | None:
    """Return a warning if the run has the logical date of the next scheduled run, which Airflow then does not start.

    A scheduled run has the start of its period as its logical date, and a manual run the moment that was entered. The
    end of one period is the start of the next. Airflow has at most one run for each logical date.
    """
    run = context["dag_run"]
    start, end = run.data_interval_start, run.data_interval_end
    if not (start and end) or start == end or run.logical_date != end:
        return None
    return (
        f"This run took the place of the scheduled run for the period that starts on {end:%Y-%m-%d} at {end:%H:%M} "
        "UTC, so Airflow does not start that run. To send that period, trigger the DAG with a logical date a few "
        "minutes after the period's end."
    )


def _plain(moment: datetime) -> datetime:
    return Period(moment, moment).end  # pendulum's own type can lose UTC in a sum


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
