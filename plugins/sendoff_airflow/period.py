"""The logical period of a DAG run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Context

from sendoff.errors import SettingsError
from sendoff.period import Period

if TYPE_CHECKING:
    from sendoff.campaign import Campaign

_DAY = timedelta(days=1)


def period_of(context: Context, campaign: Campaign | None = None) -> Period:
    """Return the period that a run is for: its data interval, or the day (UTC) before that of its logical date.

    The day is for DAGs that no clock starts (``schedule=None``, assets): however often such a DAG is triggered on one
    day, it is one launch, for the last day that is over, as a daily schedule would have it. A run that a clock's DAG
    was given without a logical date is for no period, and refused.

    A run for a partition is for that partition of its period; where the partition has a date, the period is that day
    (UTC), so that the partition is the same whenever it runs. Every run of a ``campaign`` that the service repeats is
    for the campaign's whole life.
    """
    if campaign and campaign.fixed_period:
        return campaign.fixed_period
    run, timetable = context["dag_run"], context["dag"].timetable
    start, end, partition = run.data_interval_start, run.data_interval_end, run.partition_key or None
    if start and end and start < end:
        return Period(start, end, partition)
    if partition and run.partition_date:
        day = _midnight(run.partition_date)
        return Period(day, day + _DAY, partition)
    if timetable.can_be_scheduled and timetable.asset_condition is None and not partition:
        if not (start and end):
            raise SettingsError("this run has no data interval; trigger the DAG with a logical date")
        return Period(start, end)
    day = _midnight(run.logical_date or run.run_after)
    return Period(day - _DAY, day, partition)


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
