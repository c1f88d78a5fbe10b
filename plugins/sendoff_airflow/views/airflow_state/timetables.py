"""When the DAGs of campaigns run by the clock, according to Airflow's own timetables.

Like :mod:`airflow_db`, this uses Airflow's own models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.decoders import decode_timetable
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.utils.session import create_session
from pendulum import instance
from sqlalchemy import select

Ends = tuple[datetime, datetime]
"""The beginning and the end of a run's period. They are the same if its timetable has only moments."""


@dataclass(frozen=True, slots=True)
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
        bounds = TimeRestriction(
            instance(begin), instance(self.ends_at) if self.ends_at else None, catchup=True
        )
        interval = DataInterval(*map(instance, after)) if after else None
        while info := self.timetable.next_dagrun_info(
            last_automated_data_interval=interval, restriction=bounds
        ):
            if info.run_after > until:
                return
            interval = info.data_interval
            yield info.run_after, (interval.start, interval.end)


def clocks_of(dag_ids: Collection[str]) -> dict[str, Clock]:
    """Return the clocks of the DAGs that have one, in their newest version, by the DAG's ID."""
    stored = SerializedDagModel
    query = select(stored.dag_id, stored.dag_hash).where(stored.dag_id.in_(dag_ids))
    with create_session() as session:
        newest = dict(session.execute(query.order_by(stored.created_at)).tuples().all())
    found = {dag_id: _clock(dag_id, dag_hash) for dag_id, dag_hash in newest.items()}
    return {dag_id: each for dag_id, each in found.items() if each is not None}


@lru_cache(maxsize=2_000)  # because reading a whole DAG takes long
def _clock(dag_id: str, dag_hash: str) -> Clock | None:
    """Return the clock of a version of a DAG, or None if it has none."""
    stored = SerializedDagModel
    query = select(stored).where(stored.dag_id == dag_id, stored.dag_hash == dag_hash).limit(1)
    with create_session() as session:
        row = session.scalar(query)
        data = row.data["dag"] if row and row.data else {}
    timetable = decode_timetable(data["timetable"]) if data else None
    if timetable is None or not (timetable.can_be_scheduled and timetable.periodic):
        return None
    end = data.get("end_date")
    return Clock(timetable, datetime.fromtimestamp(end, UTC) if end else None)
