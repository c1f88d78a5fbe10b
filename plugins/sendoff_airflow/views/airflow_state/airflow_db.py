"""Read from Airflow's database: runs and their launches, and open questions.

This uses Airflow's own models, because an API server has no other way to read this in one query. The models are not
part of Airflow's public interface. So tests run against the real ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import ColumnElement, Text, and_, cast, func, or_, select, tuple_
from sqlalchemy.orm import Session

from sendoff_airflow.run_notes import KEY as NOTE
from sendoff_airflow.xcoms import parsed, xcoms_of

AUDIENCE, PREVIEW, APPROVE, DISPATCH = "audience", "preview", "approve", "dispatch"
"""Tasks of a campaign's DAG, as :mod:`sendoff_airflow.dags` names them."""

_ACTIVE = frozenset(
    {"scheduled", "queued", "running", "deferred", "restarting", "up_for_retry", "up_for_reschedule"}
)
_BEGUN = frozenset({"queued", "running", "deferred", "restarting"})
_UNDER_WAY = ("queued", "running")
_ASKING = ("running", "deferred", "awaiting_input")  # the question is stored shortly before the task waits


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a DAG, with how many instances of each task are in each state."""

    dag_id: str
    run_id: str
    state: str
    tasks: Mapping[str, Counter[str]]
    is_paused: bool  # its DAG: tasks that run or wait go on, and no other begins
    group: str = ""
    """The prefix of the launch's tasks, if they are a task group; the keys of ``tasks`` lack it."""

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
    def to_ask(self) -> str | None:
        """The task to clear so that ``approve`` asks, or None if the run has no such task, or may ask by itself."""
        asking = self.tasks.get(APPROVE, Counter())
        is_next = asking.keys() <= {"none", *_ACTIVE, *_ASKING} and not self._failed
        if not asking or (is_next and self.state in _UNDER_WAY):
            return None
        return f"{self.group}{self._failed or APPROVE}"

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


def run_of(launch_key: str, campaign: str) -> Run | None:
    """Return the run of a launch that :func:`runs_of` chooses, or None if Airflow has none."""
    return runs_of({launch_key: campaign}).get(launch_key)


def runs_of(campaigns: Mapping[str, str]) -> dict[str, Run]:
    """Return for launches a run of the campaign's DAG that created or found each. Others are left out.

    Of several, it is the newest one that goes on, or else the newest that is intact, or else the newest.
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
        places: dict[str, list[tuple[str, str, str]]] = {}
        for dag_id, run_id, task_id, value in session.execute(query):
            key, group = _key_of(value), task_id.removesuffix(AUDIENCE)
            if campaigns.get(key) == _campaign_of(dag_id, group):
                places.setdefault(key, []).append((dag_id, run_id, group))
        found = _runs_at(session, {place[:2] for several in places.values() for place in several})
    runs = {
        key: [_of_group(found[dag_id, run_id], group) for dag_id, run_id, group in reversed(several)]
        for key, several in places.items()
    }
    return {key: max(several, key=lambda run: (run.goes_on, run.is_intact)) for key, several in runs.items()}


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
        select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagModel.is_paused)
        .outerjoin(DagModel, DagModel.dag_id == DagRun.dag_id)
        .where(tuple_(DagRun.dag_id, DagRun.run_id).in_(places))
    )
    return {
        (row.dag_id, row.run_id): Run(
            row.dag_id,
            row.run_id,
            str(row.state),
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


def is_answered(run: Run) -> bool:
    """Check whether someone answered the question of a run, and its task has not acted on the answer yet."""
    query = (
        select(HITLDetail.responded_at)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
        .where(TaskInstance.task_id == run.group + APPROVE, TaskInstance.state.in_(_ACTIVE.union(_ASKING)))
        .where(HITLDetail.responded_at.is_not(None))
    )
    with create_session() as session:
        return session.execute(query).first() is not None


def launches_of(dag_id: str, run_id: str) -> dict[str, str]:
    """Return the keys of the launches that a run created or found, each with the name of its campaign, oldest first.

    Both are XComs of the same task. Users may edit them, so a launch may be of another campaign or of another DAG.
    """
    of_run = {"dag_id": dag_id, "run_id": run_id}
    with create_session() as session:
        names = {xcom[:2]: xcom.text for xcom in xcoms_of(session, "campaign", **of_run)}
        keys = xcoms_of(session, "launch_key", **of_run)
    return {xcom.text: names[xcom[:2]] for xcom in reversed(keys) if xcom[:2] in names}


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
