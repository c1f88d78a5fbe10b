"""Read from Airflow's database: the DAGs of campaigns, with their schedules, folders and teams.

Like :mod:`airflow_db`, this uses Airflow's own models.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.models.dag import DagModel, DagTag
from airflow.models.errors import ParseImportError
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.team import Team, dag_bundle_team_association_table
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select, tuple_

from sendoff.campaign import (
    TEST,
    CampaignFolder,
    JourneyFolder,
    Period,
    is_journey_folder,
    load_campaign,
    load_journey,
)
from sendoff.errors import CampaignError
from sendoff_airflow.views.airflow_state.airflow_db import AUDIENCE, run_path
from sendoff_airflow.xcoms import parsed

TAG = "sendoff"
"""The tag that :mod:`sendoff_airflow.dags` gives each DAG."""

MAKES_LAUNCHES = frozenset(
    {
        "BuildAudienceOperator",
        "CreateCampaignOperator",
        "ExecuteCampaignOperator",
        "_AudienceDecoratedOperator",
    }
)
"""The operators whose tasks make launches. No user can edit the operator of a task instance, as they can an XCom."""

DRY_RUN = "dry_run"
"""The field of a DAG's trigger form that counts the recipients, and sends nothing."""

NO_SCHEDULE = "None"
"""Airflow's summary of the schedule of a DAG that only people and other DAGs trigger."""

TEST_DAG = "sendoff_test"
"""The default name of the DAG of :func:`sendoff_airflow.dags.send_test_dag`."""

STARTS_WITHIN = timedelta(minutes=5)  # of a run's time, if Airflow's scheduler works


@dataclass(frozen=True, slots=True)
class DagSchedule:
    """The schedule of a campaign's DAG in Airflow."""

    dag_id: str
    is_paused: bool
    words: str | None
    next_run_at: datetime | None
    next_start: datetime | None  # the period of the next run
    next_end: datetime | None
    file: str | None
    title: str
    problem: str | None = None  # the error that keeps Airflow from running it; empty if its text is not known
    step: str | None = None  # the step or the task group that the campaign is in the DAG

    @property
    def path(self) -> str:
        """Its page in Airflow's UI, relative to Airflow's root."""
        return f"dags/{quote(self.dag_id, safe='')}"

    @property
    def place(self) -> str:
        """The campaign as the form of its tests names it, with its journey."""
        return f"{self.dag_id}/{self.step}" if self.step else self.dag_id

    @property
    def will_run(self) -> bool:
        """Whether Airflow starts its runs by itself."""
        return self.problem is None and not self.is_paused and self.next_run_at is not None

    @property
    def is_overdue(self) -> bool:
        """Whether Airflow should have started the next run already."""
        return self.next_run_at is not None and datetime.now(UTC) - self.next_run_at > STARTS_WITHIN

    @property
    def is_idle(self) -> bool:
        """Whether it has a schedule and does not run, as its DAG is paused, has an error, or is not started."""
        return self.problem is not None or (
            self.next_run_at is not None and (self.is_paused or self.is_overdue)
        )


@dataclass(frozen=True, slots=True)
class DryRun:
    """The counts of a campaign's newest dry run. A dry run freezes and sends nothing."""

    run_id: str
    path: str
    counted_at: datetime
    counts: Mapping[str, Any]

    @property
    def period(self) -> Period | None:
        """The period that it counted. Counts of an earlier version do not name it."""
        text = self.counts.get("period")
        return Period.of(text) if text else None


def all_teams() -> frozenset[str]:
    """Return Airflow's teams. The set is empty if Airflow is not used by several teams."""
    with create_session() as session:
        return frozenset(session.scalars(select(Team.name)))


def dags_of(campaigns: Iterable[str]) -> dict[str, str]:
    """Return the DAG of each campaign: the one of its name, or for ``<journey>.<step>`` the DAG ``<journey>``.

    The DAG of a campaign of a task group or of one task is found in the same way, also inside other groups. An
    unrelated DAG does not count: the DAG must have Sendoff's tag, or have run the group's task ``audience``, or this
    task with an operator that makes launches. The DAG of a campaign is also that of its tests.
    """
    tested = {name: name.removesuffix(TEST) for name in set(campaigns)}
    heads = {name: name.rpartition(".")[0] for name in {*tested, *tested.values()}}
    own = select(DagModel.dag_id).where(DagModel.dag_id.in_(heads))
    tagged = select(DagTag.dag_id).where(DagTag.name == TAG, DagTag.dag_id.in_(set(heads.values())))
    instance = (TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.operator)
    with create_session() as session:
        known, ours = set(session.scalars(own)), set(session.scalars(tagged))
        dags = {name: name if name in known else head for name, head in heads.items()}
        places = [
            (name, outer, name.removeprefix(outer)[1:])
            for name, head in dags.items()
            if name not in known and head not in ours
            for outer in _outer(name)
        ]
        tasks = {(outer, task) for _, outer, rest in places for task in (rest, f"{rest}.{AUDIENCE}")}
        query = select(*instance).where(tuple_(*instance[:2]).in_(tasks)).distinct()
        rows = session.execute(query).all() if tasks else ()
    begun = {(dag_id, task_id) for dag_id, task_id, _ in rows}
    making = {(dag_id, task_id) for dag_id, task_id, operator in rows if operator in MAKES_LAUNCHES}
    ran = {
        name: outer
        for name, outer, rest in places
        if (outer, f"{rest}.{AUDIENCE}") in begun or (outer, rest) in making
    }
    found = {name: dag if dag == name or dag in ours else ran.get(name, name) for name, dag in dags.items()}
    return {name: name if name in known else found[without] for name, without in tested.items()}


def _outer(name: str) -> Iterator[str]:
    """Yield what is before each dot of a name."""
    return (name[:at] for at, letter in enumerate(name) if letter == "." and at)


def teams_of(dag_ids: Iterable[str]) -> Mapping[str, Collection[str | None]]:
    """Return the teams of each DAG: None if it has no team, and every team if Airflow does not know the DAG.

    If Airflow has no teams, no DAG has one.
    """
    names = set(dag_ids)
    if not (teams := all_teams()):
        return dict.fromkeys(names, (None,))
    of_bundle = dag_bundle_team_association_table
    query = (
        select(DagModel.dag_id, of_bundle.c.team_name)
        .outerjoin(of_bundle, of_bundle.c.dag_bundle_name == DagModel.bundle_name)
        .where(DagModel.dag_id.in_(names))
    )
    with create_session() as session:
        known: dict[str, Collection[str | None]] = {
            row.dag_id: (row.team_name,) for row in session.execute(query)
        }
    return {name: known.get(name, teams) for name in names}


def schedule_of(campaign: str) -> DagSchedule | None:
    """Return the schedule of a campaign's DAG, or None if Airflow has no such DAG."""
    return schedules_of_campaigns([campaign]).get(campaign)


def fields_of(dag_id: str) -> dict[str, Sequence[Any]]:
    """Return the fields of a DAG's trigger form, each with the values that it offers; none if it takes others too."""
    fields = _stored(dag_id).get("params", ())
    return {name: field["schema"]["__var"].get("enum", ()) for name, field in fields}


def takes_dry_run(dag_id: str) -> bool:
    """Check whether a DAG has Sendoff's tag, and the field for a dry run in its trigger form.

    Any other DAG would ignore the field, and send.
    """
    stored = _stored(dag_id)
    return TAG in stored.get("tags", ()) and DRY_RUN in dict(stored.get("params", ()))


def _stored(dag_id: str) -> Mapping[str, Any]:
    """Return a DAG as Airflow's scheduler stored it; an empty mapping if it did not."""
    with create_session() as session:
        stored = SerializedDagModel.get(dag_id, session=session)
        return (stored.data or {}).get("dag", {}) if stored else {}


def test_dag_of(schedule: DagSchedule) -> DagSchedule | None:
    """Return the DAG that sends tests, or None if there is none with the default name, or not for this campaign."""
    dag = schedules_of([TEST_DAG]).get(TEST_DAG)
    is_for_it = schedule.place in fields_of(TEST_DAG).get("campaign", ())
    return dag if dag and dag.problem is None and is_for_it else None


def schedules_of_campaigns(campaigns: Collection[str]) -> dict[str, DagSchedule]:
    """Return the schedules of those campaigns whose DAG Airflow has, by name. Steps of a journey share its DAG.

    Tests have no schedule.
    """
    dags = dags_of(campaigns)
    found = schedules_of(set(dags.values()))
    return {
        name: replace(found[dag_id], step=name.removeprefix(dag_id).removeprefix(".") or None)
        for name, dag_id in dags.items()
        if dag_id in found and (dag_id == name or not name.endswith(TEST))
    }


def schedules_of(dag_ids: Collection[str]) -> dict[str, DagSchedule]:
    """Return the schedules of those DAGs that Airflow has, or had until their files got an error, by their IDs."""
    with create_session() as session:
        errors = session.execute(
            select(ParseImportError.bundle_name, ParseImportError.filename, ParseImportError.stacktrace)
        ).all()
        found = {}
        for dag in session.scalars(select(DagModel).where(DagModel.dag_id.in_(dag_ids))):
            problem = _problem_of(dag, errors)
            if dag.is_stale and problem is None:
                continue
            found[dag.dag_id] = DagSchedule(
                dag_id=dag.dag_id,
                is_paused=bool(dag.is_paused),
                words=dag.timetable_description if dag.timetable_summary != NO_SCHEDULE else None,
                next_run_at=dag.next_dagrun_create_after,
                next_start=dag.next_dagrun_data_interval_start,
                next_end=dag.next_dagrun_data_interval_end,
                file=dag.fileloc,
                title=dag.dag_display_name,
                problem=problem,
            )
    return found


def _problem_of(dag: DagModel, errors: Sequence[Any]) -> str | None:
    """Return the import error that names the campaign's folder, or an empty text for another one of its DAG's file.

    A broken campaign has no DAG while the other campaigns of its file have theirs. A traceback can name a folder of the
    same name, but then a quotation mark follows its path, and no colon.
    """
    own = rf"{re.escape(dag.dag_id)}(?:[/\\][\w.-]+){{1,2}}(?::|, line )"
    for bundle, file, text in errors:
        line = re.search(rf"(?:^|[/\\\s])({own}.*)$", text or "", re.MULTILINE)
        if line and bundle == dag.bundle_name:
            return line[1].strip()
        if (bundle, file) == (dag.bundle_name, dag.relative_fileloc):
            return ""
    return None


def campaigns_with_a_dag() -> list[str]:
    """Return the names of campaigns and journeys with a DAG whose folders this process can read."""
    query = (
        select(DagModel.dag_id, DagModel.fileloc)
        .join(DagTag, DagTag.dag_id == DagModel.dag_id)
        .where(DagTag.name == TAG, DagModel.is_stale.is_(False))
    )
    with create_session() as session:
        rows = session.execute(query).all()
    return [row.dag_id for row in rows if _folder(row.fileloc, row.dag_id) is not None]


def folder_of(schedule: DagSchedule) -> CampaignFolder | None:
    """Return the campaign folder beside the file of its DAG, or None if this process cannot read it.

    Also return the campaign of a journey's step, but None for the journey itself.
    """
    folder = _folder(schedule.file, schedule.dag_id)
    if folder is None:
        return None
    try:
        return load_campaign(folder / schedule.step if schedule.step else folder)
    except (CampaignError, OSError):
        return None


def journey_of(schedule: DagSchedule) -> JourneyFolder | None:
    """Return the journey beside the file of its DAG, or None if it is none or this process cannot read it."""
    folder = _folder(schedule.file, schedule.dag_id)
    try:
        return load_journey(folder) if folder and is_journey_folder(folder) else None
    except (CampaignError, OSError):
        return None


def newest_dry_run(schedule: DagSchedule) -> DryRun | None:
    """Return the newest dry run of a campaign with its counts, or None."""
    dag_id = schedule.dag_id
    task = f"{schedule.step}.{AUDIENCE}" if schedule.step else AUDIENCE
    query = (
        select(XComModel.run_id, XComModel.value, XComModel.timestamp)
        .where(XComModel.dag_id == dag_id, XComModel.task_id == task, XComModel.key == "preview")
        .order_by(XComModel.timestamp.desc())
        .limit(1)
    )
    with create_session() as session:
        row = session.execute(query).first()
    counts = parsed(row.value) if row else None
    if row is None or not isinstance(counts, dict):
        return None
    return DryRun(row.run_id, run_path(dag_id, row.run_id), row.timestamp, counts)


def _folder(file: str | None, name: str) -> Path | None:
    """Return the folder ``campaigns/<name>`` beside the file of its DAG, or None (docs/reference/airflow.md)."""
    if not file:
        return None
    folder = Path(file).parent / "campaigns" / name
    try:
        return folder if (folder / "campaign.yaml").is_file() or is_journey_folder(folder) else None
    except OSError:  # the API server may not enter the folder
        return None
