"""The periods that a campaign should have sent and did not: its DAG was paused or broken, or a run failed.

Airflow does not repeat such periods by itself, so the pages name them. Like :mod:`airflow_db`, this uses Airflow's own
models.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunType
from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import aliased

from sendoff.campaign import Period
from sendoff.ledger import Ledger
from sendoff_airflow.views.airflow_state import airflow_dags
from sendoff_airflow.views.airflow_state.airflow_dags import STARTS_WITHIN
from sendoff_airflow.views.airflow_state.airflow_db import run_path
from sendoff_airflow.views.airflow_state.timetables import Clock, Ends, clocks_of

MOST_PERIODS = 200
"""The most periods of one campaign to look at."""

_MOST_RUNS = 60
_CLI_PAUSE, _CLI_UNPAUSE = "cli_dag_pause", "cli_dag_unpause"
_BY_CLOCK = (DagRunType.SCHEDULED, DagRunType.BACKFILL_JOB)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed before it made a launch."""

    period: Period
    path: str  # its page in Airflow's UI, relative to Airflow's root


@dataclass(frozen=True, slots=True)
class Missed:
    """The periods of a campaign that were not sent, oldest first.

    ``periods``: since the newest one that has a run or a launch. ``earlier``: before that one. ``is_cut``: there are
    more than ``periods`` lists.
    """

    periods: Sequence[Period] = ()
    earlier: Sequence[Period] = ()
    failed: Sequence[FailedRun] = ()
    is_cut: bool = False


@dataclass(slots=True)
class _Known:
    """What is known about the periods of one campaign."""

    runs: dict[Ends, tuple[str, str]] = field(default_factory=dict)  # run ID and state
    launched: set[Ends] = field(default_factory=set)
    is_for_life: bool = False  # the service repeats the campaign


def missed_of(ledger: Ledger, names: Collection[str], *, since_newest_run: bool = False) -> dict[str, Missed]:
    """Return the periods that campaigns with a schedule did not send. Campaigns without any are left out.

    A campaign that has never run has missed nothing. ``since_newest_run``: only those after the newest scheduled run,
    which takes less time.
    """
    known: defaultdict[str, _Known] = defaultdict(_Known)
    clocks = clocks_of(names)
    with create_session() as session:
        for row in session.execute(_newest_runs(clocks)):
            if row.data_interval_start and row.data_interval_end and (row.place == 1 or not since_newest_run):
                ends = (row.data_interval_start, row.data_interval_end)
                known[row.dag_id].runs[ends] = (row.run_id, str(row.state))
    dags = airflow_dags.dags_of([*clocks, *ledger.launches.campaigns(), *ledger.not_launched.campaigns()])
    own = {name: dag_id for name, dag_id in dags.items() if dag_id in clocks}
    periods = ledger.overview.periods(own)
    for name, start, end in periods:
        known[own[name]].launched.add((start, end))
    # Other campaigns of a DAG may have moments as periods too, such as tests, and so have requests of one's own.
    without_length = {name for name, start, end in periods if name in clocks and start == end}
    newest = ledger.overview.newest(without_length) if without_length else {}
    for name in without_length:
        known[name].is_for_life = name not in newest or not newest[name].launch.is_own_request
    found = {name: _missed(name, clocks[name], each) for name, each in known.items()}
    return {name: each for name, each in found.items() if each != Missed()}


def failed_newest_runs(names: Collection[str]) -> set[str]:
    """Return the DAGs whose newest scheduled run failed, whether it made a launch or not."""
    later = aliased(DagRun)
    has_later = exists().where(
        later.dag_id == DagRun.dag_id, later.run_type.in_(_BY_CLOCK), later.run_after > DagRun.run_after
    )
    is_failed = and_(
        DagRun.dag_id.in_(names), DagRun.run_type.in_(_BY_CLOCK), DagRun.state == DagRunState.FAILED
    )
    with create_session() as session:  # only failed runs are read, because there may be many others
        return set(session.scalars(select(DagRun.dag_id).where(is_failed, ~has_later)))


def paused_since(names: Collection[str]) -> dict[str, datetime]:
    """Return since when DAGs are paused, according to Airflow's audit log. Some are not in it."""
    is_change = or_(
        and_(Log.event == "patch_dag", Log.extra.contains('"is_paused"')),
        Log.event.in_((_CLI_PAUSE, _CLI_UNPAUSE)),
    )
    newest = select(func.max(Log.id)).where(Log.dag_id.in_(names), is_change).group_by(Log.dag_id)
    with create_session() as session:
        rows = session.execute(select(Log.dag_id, Log.dttm, Log.event, Log.extra).where(Log.id.in_(newest)))
        return {row.dag_id: row.dttm for row in rows if _pauses(row.event, row.extra)}


def _pauses(event: str, extra: str | None) -> bool:
    """Check whether an entry of Airflow's audit log pauses a DAG, by a request or by a command."""
    if event in (_CLI_PAUSE, _CLI_UNPAUSE):
        return event == _CLI_PAUSE
    try:
        return bool(json.loads(extra or "{}").get("is_paused"))
    except ValueError:
        return False


def _newest_runs(names: Collection[str]) -> Any:
    columns = (
        DagRun.dag_id,
        DagRun.run_id,
        DagRun.state,
        DagRun.data_interval_start,
        DagRun.data_interval_end,
    )
    place = func.row_number().over(partition_by=DagRun.dag_id, order_by=DagRun.run_after.desc())
    ranked = (
        select(*columns, place.label("place"))
        .where(DagRun.dag_id.in_(names), DagRun.run_type.in_(_BY_CLOCK))
        .subquery()
    )
    return select(ranked).where(ranked.c.place <= _MOST_RUNS)


def _missed(name: str, clock: Clock, known: _Known) -> Missed:
    if known.is_for_life or not (known.runs or known.launched):
        return Missed()
    begin = min(start for start, _ in known.runs) if known.runs else max(end for _, end in known.launched)
    due = clock.runs(begin, datetime.now(UTC) - STARTS_WITHIN)
    expected = [ends for _, ends in islice(due, MOST_PERIODS) if ends[0] < ends[1]]
    done = known.launched | known.runs.keys()
    of_schedule, is_cut = set(expected), len(expected) == MOST_PERIODS
    if is_cut:  # what came later is not compared with the timetable
        of_schedule |= {ends for ends in done if ends[1] > expected[-1][1]}
    # A run that the timetable does not have was made under an earlier schedule, and so were the gaps before it.
    changed_at = max((end for _, end in known.runs.keys() - of_schedule), default=begin)
    newest = max((end for _, end in done & of_schedule), default=begin)
    gaps = [ends for ends in expected if ends not in done and ends[0] >= changed_at]
    # A schedule such as "@daily" has moments, which are the ends of its launches' periods.
    launched = known.launched | {(end, end) for _, end in known.launched}
    failed = [
        FailedRun(Period(*ends), run_path(name, run_id))
        for ends, (run_id, state) in sorted(known.runs.items())
        if state == DagRunState.FAILED and ends not in launched
    ]
    return Missed(
        periods=[Period(*ends) for ends in gaps if ends[0] >= newest],
        earlier=[Period(*ends) for ends in gaps if ends[0] < newest],
        failed=failed,
        is_cut=is_cut,
    )
