"""When the DAGs of campaigns run by the clock, according to Airflow's own timetables.

Like :mod:`airflow_db`, this uses Airflow's own models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any

from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.decoders import decode_timetable
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import DeltaDataIntervalTimetable
from airflow.timetables.trigger import DeltaTriggerTimetable
from airflow.utils.session import create_session
from pendulum import instance
from sqlalchemy import select

Ends = tuple[datetime, datetime]
"""The beginning and the end of a run's period. They are the same if its timetable has only moments."""


@dataclass(frozen=True, eq=False, slots=True)
class Clock:
    """The timetable of a DAG, and the end of the DAG if it has one."""

    timetable: Any
    ends_at: datetime | None

    def runs(
        self, begin: datetime, until: datetime, after: Ends | None = None
    ) -> Iterator[tuple[datetime, Ends]]:
        """Yield the time and the period of each run from a moment on, up to another.

        ``after``: a period before the first one.
        """
        latest = instance(self.ends_at) if self.ends_at else None
        bounds = TimeRestriction(instance(begin), latest, catchup=True)
        interval = DataInterval(*map(instance, after)) if after else None
        while info := self.timetable.next_dagrun_info(
            last_automated_data_interval=interval, restriction=bounds
        ):
            if info.run_after > until:
                return
            interval = info.data_interval
            yield info.run_after, (interval.start, interval.end)


@lru_cache(maxsize=2_000)  # because each step of a timetable takes up to a millisecond
def coming_runs(clock: Clock, next_period: Ends, begin: datetime, end: datetime, most: int) -> list[datetime]:
    """Return when a DAG runs after its next run, from ``begin`` to before ``end``, and at most so many times."""
    start, after = next_period[0], next_period
    is_by_length = isinstance(clock.timetable, DeltaDataIntervalTimetable | DeltaTriggerTimetable)
    if begin > after[1] and not is_by_length:  # the times of others do not depend on the runs before
        before = clock.timetable.infer_manual_data_interval(run_after=instance(begin - timedelta(seconds=1)))
        start, after = before.start, (before.start, before.end)
    runs = clock.runs(start, end, after)
    return list(islice((at for at, _ in runs if begin <= at < end), most))


def clocks_of(dag_ids: Collection[str]) -> dict[str, Clock]:
    """Return the clocks of the DAGs that have one, in their newest version, by the DAG's ID."""
    stored = SerializedDagModel
    query = select(stored.dag_id, stored.dag_hash).where(stored.dag_id.in_(dag_ids))
    with create_session() as session:
        newest = dict(session.execute(query.order_by(stored.created_at)).tuples().all())
    found = {}
    for dag_id, dag_hash in newest.items():
        with suppress(LookupError, ValueError, ImportError):  # the API server may lack a timetable's class
            found[dag_id] = _clock(dag_id, dag_hash)
    return {dag_id: clock for dag_id, clock in found.items() if clock}


@lru_cache(maxsize=2_000)  # because reading a whole DAG takes long
def _clock(dag_id: str, dag_hash: str) -> Clock | None:
    """Return the clock of a version of a DAG, or None if it has none. Raise LookupError if there is no such version."""
    stored = SerializedDagModel
    query = select(stored).where(stored.dag_id == dag_id, stored.dag_hash == dag_hash).limit(1)
    with create_session() as session:
        row = session.scalar(query)
        if row is None or not row.data:
            raise LookupError
        data = row.data["dag"]
    timetable = decode_timetable(data["timetable"])
    if not (timetable.can_be_scheduled and timetable.periodic):
        return None
    end = data.get("end_date")
    return Clock(timetable, datetime.fromtimestamp(end, UTC) if end else None)
