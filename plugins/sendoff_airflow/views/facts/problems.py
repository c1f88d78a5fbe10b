"""Campaigns with a schedule that do not run, or whose newest run failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sendoff.ledger import Ledger
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule
from sendoff_airflow.views.airflow_state.missed import Missed, failed_newest_runs, missed_of, paused_since


@dataclass(frozen=True, slots=True)
class CampaignProblem:
    """A campaign that does not run, as its DAG is paused, has an error, or is not started; or whose newest run failed.

    That run failed before it made a launch.
    """

    name: str
    title: str
    schedule: DagSchedule
    since: datetime | None  # of the pause, if that is known
    missed: Missed


def campaign_problems(
    ledger: Ledger, schedules: Mapping[str, DagSchedule], titles: Mapping[str, str]
) -> Sequence[CampaignProblem]:
    """Return the campaigns that do not run, or whose newest run failed before its launch, sorted by title.

    A paused campaign counts once it missed a period.
    """
    failed = failed_newest_runs(schedules)
    chosen = {name: each for name, each in schedules.items() if each.is_idle or name in failed}
    if not chosen:
        return []
    missed = missed_of(ledger, chosen, since_newest_run=True)
    since = paused_since([name for name, each in chosen.items() if each.is_paused])
    problems = [
        CampaignProblem(name, titles.get(name, each.title), each, since.get(name), missed.get(name, Missed()))
        for name, each in chosen.items()
        if each.problem is not None or (name in missed if each.is_idle else missed.get(name, Missed()).failed)
    ]
    return sorted(problems, key=lambda each: (each.title.casefold(), each.name))
