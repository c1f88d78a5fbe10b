"""The logical period of a DAG run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Context

from sendoff.errors import SettingsError
from sendoff.period import Period


def period_of(context: Context) -> Period:
    """Give the period that a run is for: its data interval, or the day (UTC) before that of its logical date.

    The day is for DAGs that no clock starts (``schedule=None``, assets): however often such a DAG is triggered on one
    day, it is one launch, for the last day that is over, as a daily schedule would have it. A run that a clock's DAG
    was given without a logical date is for no period, and refused.
    """
    run, timetable = context["dag_run"], context["dag"].timetable
    start, end = run.data_interval_start, run.data_interval_end
    if start and end and start < end:
        return Period(start, end)
    if timetable.can_be_scheduled and timetable.asset_condition is None:
        if not (start and end):
            raise SettingsError("this run has no data interval; trigger the DAG with a logical date")
        return Period(start, end)
    return _day(run.logical_date or run.run_after)


def _day(moment: datetime) -> Period:
    end = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return Period(end - timedelta(days=1), end)
