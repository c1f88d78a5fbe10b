"""Read from Airflow's database: runs and their launches, open questions, the next run of a campaign, and its team.

This uses Airflow's own models, because an API server has no other way to read this in one query. The models are not
part of Airflow's public interface. So only :mod:`missed` uses them too, and tests run against the real ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.models.dag import DagModel, DagTag
from airflow.models.dagrun import DagRun
from airflow.models.errors import ParseImportError
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.team import Team, dag_bundle_team_association_table
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import ColumnElement, Text, and_, cast, func, or_, select, tuple_
from sqlalchemy.orm import Session

from sendoff.campaign import (
    CampaignFolder,
    JourneyFolder,
    Period,
    is_journey_folder,
    load_campaign,
    load_journey,
)
from sendoff.errors import CampaignError
from sendoff_airflow.run_notes import KEY as NOTE
from sendoff_airflow.xcoms import parsed, xcoms_of

AUDIENCE, PREVIEW, APPROVE, DISPATCH = "audience", "preview", "approve", "dispatch"
"""Tasks of a campaign's DAG, as :mod:`sendoff_airflow.dags` names them."""

TAG = "sendoff"
"""The tag that :mod:`sendoff_airflow.dags` gives each DAG."""

_ACTIVE = frozenset(
    {"scheduled", "queued", "running", "deferred", "restarting", "up_for_retry", "up_for_reschedule"}
)
STARTS_WITHIN = timedelta(minutes=5)  # of a run's time, if Airflow's scheduler works
_BEGUN = frozenset({"queued", "running", "deferred", "restarting"})
_UNDER_WAY = ("queued", "running")
_ASKING = ("running", "deferred", "awaiting_input")  # the question is stored shortly before the task waits
_NAMES_LAUNCH = (
    or_(XComModel.task_id == AUDIENCE, XComModel.task_id.endswith(f".{AUDIENCE}")),
    XComModel.key == "launch_key",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a DAG, with how many instances of each task are in each state."""

    dag_id: str
    run_id: str
    state: str
    started_at: datetime | None
    tasks: Mapping[str, Counter[str]]
    is_paused: bool  # its DAG: tasks that run or wait go on, and no other begins
    group: str = (
        ""  # the prefix of the launch's tasks, if they are a task group; the keys of ``tasks`` lack it
    )

    @property
    def path(self) -> str:
        """Its page in Airflow's UI, relative to Airflow's root."""
        return run_path(self.dag_id, self.run_id)

    @property
    def question_path(self) -> str:
        """The page where its task ``approve`` asks, relative to Airflow's root."""
        return f"{self.path}/tasks/{_part(self.group + APPROVE)}/required_actions?map_index=-1"

    @property
    def goes_on(self) -> bool:
        """Whether a sending task runs, or will run by itself."""
        if self.is_paused:
            return any(state in _BEGUN for state in self.tasks.get(DISPATCH, ()))
        return self.is_intact

    @property
    def is_intact(self) -> bool:
        """Whether a sending task runs, or will run by itself unless the DAG is paused."""
        sending = self.tasks.get(DISPATCH, Counter())
        is_next = self.state in _UNDER_WAY and sending.keys() == {"none"} and not self._failed
        return is_next or any(state in _ACTIVE for state in sending)

    @property
    def to_clear(self) -> str | None:
        """The task to clear so that a run that does not go on sends: the first that failed, or else the sending one."""
        task = self._failed or (DISPATCH if self.tasks.get(DISPATCH) else None)
        return task and f"{self.group}{task}"

    @property
    def _failed(self) -> str | None:
        """The first task before the sending one that failed."""
        before = (AUDIENCE, PREVIEW, APPROVE)
        return next((task for task in before if "failed" in self.tasks.get(task, {})), None)


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a task ``approve`` that no one has answered.

    ``assigned``: who may answer; empty: anyone. ``expires_at``: when Airflow rejects the launch, once the task waits.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    launch_key: str
    assigned: frozenset[str]
    expires_at: datetime | None

    @property
    def campaign(self) -> str:
        """The campaign whose DAG or task group asks."""
        return _campaign_of(self.dag_id, self.task_id.removesuffix(APPROVE))

    @property
    def path(self) -> str:
        """The page of its run in Airflow's UI, relative to Airflow's root."""
        return run_path(self.dag_id, self.run_id)


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
        return f"dags/{_part(self.dag_id)}"

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


def run_of(launch_key: str, campaign: str) -> Run | None:
    """Return the newest run of a campaign's DAG that created or found a launch, or None if Airflow has none."""
    return runs_of({launch_key: campaign}).get(launch_key)


def runs_of(campaigns: Mapping[str, str]) -> dict[str, Run]:
    """Return for launches the newest run of the campaign's DAG that created or found each. Others are left out.

    ``campaigns``: the campaign of each launch. A task group counts if the campaign is named after its DAG and itself.
    XComs of other DAGs do not count, because buttons act on the run with the rights of the user who presses them.
    """
    is_of_dag = and_(XComModel.dag_id.in_(set(campaigns.values())), XComModel.task_id == AUDIENCE)
    query = (
        select(XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.value)
        .where(or_(is_of_dag, XComModel.task_id.endswith(f".{AUDIENCE}")))
        .where(XComModel.key == "launch_key", _value_is(*campaigns))
        .order_by(XComModel.timestamp, XComModel.dag_run_id)
    )
    with create_session() as session:
        places = {}
        for dag_id, run_id, task_id, value in session.execute(query):
            key, group = _key_of(value), task_id.removesuffix(AUDIENCE)
            if campaigns.get(key) == _campaign_of(dag_id, group):
                places[key] = (dag_id, run_id, group)
        found = _runs_at(session, {(dag_id, run_id) for dag_id, run_id, _ in places.values()})
    return {key: _of_group(found[dag_id, run_id], group) for key, (dag_id, run_id, group) in places.items()}


def _campaign_of(dag_id: str, group: str) -> str:
    """Return the name of the campaign of a DAG, or of a task group in it. ``group``: the prefix of its tasks."""
    from sendoff_airflow.operators.preparation import name_of

    return name_of(dag_id, group.removesuffix(".")) if group else dag_id


def _of_group(run: Run, group: str) -> Run:
    """Return a run with the tasks of one task group only."""
    tasks = {name.removeprefix(group): counts for name, counts in run.tasks.items() if name.startswith(group)}
    return replace(run, tasks=tasks, group=group)


def _runs_at(session: Session, places: Collection[tuple[str, str]]) -> dict[tuple[str, str], Run]:
    """Return the runs with some DAG IDs and run IDs."""
    instance = (TaskInstance.dag_id, TaskInstance.run_id)
    instances = (
        select(*instance, TaskInstance.task_id, TaskInstance.state, func.count())
        .where(tuple_(*instance).in_(places))
        .group_by(*instance, TaskInstance.task_id, TaskInstance.state)
    )
    tasks: dict[tuple[str, str], dict[str, Counter[str]]] = {}
    for dag_id, run_id, task_id, state, count in session.execute(instances):
        of_run = tasks.setdefault((dag_id, run_id), {})
        of_run.setdefault(task_id, Counter())[str(state or "none")] += count
    runs = (
        select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagModel.is_paused)
        .outerjoin(DagModel, DagModel.dag_id == DagRun.dag_id)
        .where(tuple_(DagRun.dag_id, DagRun.run_id).in_(places))
    )
    return {
        (row.dag_id, row.run_id): Run(
            row.dag_id,
            row.run_id,
            str(row.state),
            row.start_date,
            tasks.get((row.dag_id, row.run_id), {}),
            bool(row.is_paused),
        )
        for row in session.execute(runs)
    }


def open_questions(campaigns: Collection[str], launch_key: str | None = None) -> list[Question]:
    """Return the questions about launches of some campaigns that no one has answered, the oldest first.

    ``launch_key``: only about this launch. Only the DAG or the task group of a campaign counts, as in :func:`runs_of`.
    """
    of_run = (XComModel.dag_id == TaskInstance.dag_id, XComModel.run_id == TaskInstance.run_id)
    group = func.substr(
        TaskInstance.task_id, 1, func.length(TaskInstance.task_id) - len(APPROVE), type_=Text()
    )
    names_launch = (XComModel.task_id == group + AUDIENCE, XComModel.key == "launch_key")
    is_of_dag = and_(TaskInstance.task_id == APPROVE, TaskInstance.dag_id.in_(campaigns))
    query = (
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.trigger_timeout,
            HITLDetail.assignees,
            XComModel.value,
        )
        .join_from(HITLDetail, TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .join(XComModel, and_(*of_run, *names_launch))
        .where(or_(is_of_dag, TaskInstance.task_id.endswith(f".{APPROVE}")))
        .where(TaskInstance.state.in_(_ASKING), HITLDetail.responded_at.is_(None))
        .order_by(HITLDetail.created_at)
    )
    if launch_key is not None:
        query = query.where(_value_is(launch_key))
    with create_session() as session:
        rows = session.execute(query).all()
    return [
        Question(
            row.dag_id,
            row.run_id,
            row.task_id,
            row.map_index,
            key,
            frozenset(each["id"] for each in row.assignees or ()),
            row.trigger_timeout,
        )
        for row in rows
        if isinstance(key := parsed(row.value), str)
        and _campaign_of(row.dag_id, row.task_id.removesuffix(APPROVE)) in campaigns
    ]


def all_teams() -> frozenset[str]:
    """Return Airflow's teams. The set is empty if Airflow is not used by several teams."""
    with create_session() as session:
        return frozenset(session.scalars(select(Team.name)))


def dags_of(campaigns: Iterable[str]) -> dict[str, str]:
    """Return the DAG of each campaign: the one of its name, or for ``<journey>.<step>`` the DAG ``<journey>``.

    The DAG of a task group's campaign is found in the same way, also of a group inside others. An unrelated DAG does
    not count: the DAG must have Sendoff's tag, or have run the group's task ``audience``.
    """
    heads = {name: name.rpartition(".")[0] for name in set(campaigns)}
    own = select(DagModel.dag_id).where(DagModel.dag_id.in_(heads))
    tagged = select(DagTag.dag_id).where(DagTag.name == TAG, DagTag.dag_id.in_(set(heads.values())))
    instance = (TaskInstance.dag_id, TaskInstance.task_id)
    with create_session() as session:
        known, ours = set(session.scalars(own)), set(session.scalars(tagged))
        dags = {name: name if name in known else head for name, head in heads.items()}
        places = {
            (outer, f"{name.removeprefix(outer)[1:]}.{AUDIENCE}"): name
            for name, head in dags.items()
            if name not in known and head not in ours
            for outer in _outer(name)
        }
        query = select(*instance).where(tuple_(*instance).in_(set(places))).distinct()
        ran = (
            {places[dag_id, task_id]: dag_id for dag_id, task_id in session.execute(query)} if places else {}
        )
    return {name: dag if dag == name or dag in ours else ran.get(name, name) for name, dag in dags.items()}


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


def launches_of(dag_id: str, run_id: str) -> dict[str, str]:
    """Return the keys of the launches that a run created or found, each with the name of its campaign, oldest first.

    The campaign is that of the task or the task group, and the launch may be of another one.
    """
    of_run = (XComModel.dag_id == dag_id, XComModel.run_id == run_id, *_NAMES_LAUNCH)
    query = select(XComModel.task_id, XComModel.value).where(*of_run)
    with create_session() as session:
        rows = session.execute(query.order_by(XComModel.timestamp, XComModel.map_index.desc())).all()
    found = ((_key_of(value), task_id) for task_id, value in rows)
    return {key: _campaign_of(dag_id, task_id.removesuffix(AUDIENCE)) for key, task_id in found if key}


def state_of(dag_id: str, run_id: str) -> str | None:
    """Return the state of a run, or None if Airflow has no such run."""
    with create_session() as session:
        found = _runs_at(session, {(dag_id, run_id)}).get((dag_id, run_id))
    return found.state if found else None


def note_of(dag_id: str, run_id: str) -> str | None:
    """Return what a task of a run wrote for the run's note, or None."""
    with create_session() as session:
        notes = xcoms_of(session, NOTE, dag_id=dag_id, run_id=run_id)
    return notes[0].text if notes else None


def schedule_of(campaign: str) -> DagSchedule | None:
    """Return the schedule of a campaign's DAG, or None if Airflow has no such DAG."""
    return schedules_of_campaigns([campaign]).get(campaign)


def schedules_of_campaigns(campaigns: Collection[str]) -> dict[str, DagSchedule]:
    """Return the schedules of those campaigns whose DAG Airflow has, by name. Steps of a journey share its DAG."""
    dags = dags_of(campaigns)
    found = schedules_of(set(dags.values()))
    return {
        name: replace(found[dag_id], step=name.removeprefix(dag_id).removeprefix(".") or None)
        for name, dag_id in dags.items()
        if dag_id in found
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
                words=dag.timetable_description,
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

    A broken campaign has no DAG while the other campaigns of its file have theirs.
    """
    for bundle, file, text in errors:
        line = re.search(rf"(?:^|[/\\\s])({re.escape(dag.dag_id)}[/\\]\S.*)$", text or "", re.MULTILINE)
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


def _value_is(*texts: str) -> ColumnElement[bool]:
    """Compare an XCom with texts, as text, because PostgreSQL compares JSON only with JSON.

    A task stores the text as JSON. Airflow's REST API stores that JSON as JSON again.
    """
    as_json = [json.dumps(text) for text in texts]
    return cast(XComModel.value, Text).in_([*as_json, *map(json.dumps, as_json)])


def _key_of(value: Any) -> str:
    """Return the text of an XCom, or an empty text if it is not one."""
    text = parsed(value)
    return text if isinstance(text, str) else ""


def run_path(dag_id: str, run_id: str) -> str:
    """Return the page of a run in Airflow's UI, relative to Airflow's root."""
    return f"dags/{_part(dag_id)}/runs/{_part(run_id)}"


def _part(text: str) -> str:
    return quote(text, safe="")
