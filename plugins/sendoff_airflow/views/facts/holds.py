"""What keeps launches from being sent: decisions about one launch, open questions in Airflow, and global pauses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sendoff.launch import Standing, standings
from sendoff.ledger import GlobalPause, LaunchRecord, Ledger, Selection
from sendoff.states import UNFINISHED, LaunchState, Stage
from sendoff_airflow.views.airflow_state import airflow_db
from sendoff_airflow.views.facts.unsent import Unsent, unsent_of
from sendoff_airflow.views.web.permissions import Viewer

ENDED = (LaunchState.REJECTED, LaunchState.STOPPED)


def acts_on(launch: LaunchRecord, role: str | None, requests: Mapping[str, int]) -> Sequence[str]:
    """Return the possible actions for a launch.

    ``role``: the role that must approve it, if any. ``requests``: its requests by state. If all are made, there is
    nothing left to pause or stop.
    """
    if launch.state == LaunchState.HELD:
        return ("reject",) if role else ("release", "reject")
    if not any(requests.get(state) for state in UNFINISHED):
        return ()
    return {LaunchState.RELEASED: ("pause", "stop"), LaunchState.PAUSED: ("resume", "stop")}.get(
        launch.state, ()
    )


@dataclass(frozen=True, slots=True)
class Stuck:
    """A launch that may send while nothing works on it, and its next step.

    ``step``: *unpause* its DAG, *continue* its run, *ask* someone who may, or run a *command*.
    """

    launch: LaunchRecord
    unsent: Unsent
    run: airflow_db.Run | None
    step: Literal["unpause", "continue", "ask", "command"]


def stuck_at(viewer: Viewer, ledger: Ledger, launch: LaunchRecord, standing: Standing) -> Stuck | None:
    """Return why a launch is stuck and what to do, or None if it is not stuck."""
    if standing.stage is not Stage.STUCK:
        return None
    run = visible_run(viewer, launch)
    return Stuck(launch, unsent_of(ledger, launch), run, _next_step(viewer, launch, run))


def _next_step(
    viewer: Viewer, launch: LaunchRecord, run: airflow_db.Run | None
) -> Literal["unpause", "continue", "ask", "command"]:
    if run is None:
        return "command"
    if run.is_paused:
        return "unpause"
    is_allowed = viewer.may_steer(launch.campaign) and viewer.may_clear(run.dag_id)
    return "continue" if run.to_clear and is_allowed else "ask"


def stuck_launches(ledger: Ledger, campaigns: Collection[str]) -> dict[str, Standing]:
    """Return the launches of some campaigns that are stuck, by key, newest first."""
    unsent = ledger.launches.unsent(LaunchState.RELEASED, of=UNFINISHED)
    found = standings_of(ledger, Selection(campaigns, unsent)) if unsent else {}
    return {key: standing for key, standing in found.items() if standing.stage is Stage.STUCK}


def standings_of(ledger: Ledger, selection: Selection) -> dict[str, Standing]:
    """Return the states of launches, which depend on their runs in Airflow too."""
    return standings(ledger, selection, works=_works_in_airflow)


def visible_run(viewer: Viewer, launch: LaunchRecord) -> airflow_db.Run | None:
    """Return the run of a launch, or None if there is none that the viewer may see."""
    run = airflow_db.run_of(launch.launch_key, launch.campaign)
    return run if run is not None and viewer.may_see(run.dag_id) else None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A launch that was decided in the ledger while its run still asks in Airflow."""

    launch: LaunchRecord
    question: airflow_db.Question
    may_answer: bool  # with a button on our pages
    stage: Stage


def unanswered(
    ledger: Ledger, viewer: Viewer, campaigns: Collection[str], launch_key: str | None = None
) -> Sequence[Unanswered]:
    """Return the launches of some campaigns that are decided, but not yet in Airflow. ``launch_key``: only this one."""
    questions = airflow_db.open_questions(campaigns, launch_key)
    launches = ledger.launches.of_keys([question.launch_key for question in questions]) if questions else []
    decided = {
        launch.launch_key: launch
        for launch in launches
        if launch.campaign in campaigns and launch.state != LaunchState.HELD
    }
    found = standings_of(ledger, Selection.of(decided.values())) if decided else {}
    return [
        Unanswered(
            launch,
            question,
            viewer.may_steer(launch.campaign) and bool(way_to_settle(viewer, launch, question)),
            found[launch.launch_key].stage,
        )
        for question in questions
        if (launch := decided.get(question.launch_key)) is not None and launch.campaign == question.campaign
    ]


@dataclass(frozen=True, slots=True)
class Asked:
    """The open question about a launch that a role must approve. ``names``: the users who may answer, if known."""

    question: airflow_db.Question
    names: Sequence[str]
    may_answer: bool  # with a button on our pages


def asked_at(viewer: Viewer, launch: LaunchRecord) -> Asked | None:
    """Return the newest open question about a held launch, or None if Airflow does not ask."""
    questions = airflow_db.open_questions([launch.campaign], launch.launch_key)
    if not questions:
        return None
    question = questions[-1]
    is_allowed = viewer.may_steer(launch.campaign) and viewer.may_answer(question.dag_id, question.assigned)
    # Without assigned users, Airflow lets anyone with rights answer, so no one is known to have the role.
    return Asked(question, sorted(question.assigned), is_allowed and bool(question.assigned))


def way_to_settle(
    viewer: Viewer, launch: LaunchRecord, question: airflow_db.Question
) -> Literal["answer", "clear"] | None:
    """Return how a viewer may settle the open question about a decided launch, or None.

    If the launch has ended, clearing the task closes the question too: the task asks no one about such a launch.
    """
    if viewer.may_answer(question.dag_id, question.assigned):
        return "answer"
    return "clear" if launch.state in ENDED and viewer.may_clear(question.dag_id) else None


def _works_in_airflow(launches: Sequence[LaunchRecord]) -> Mapping[str, bool]:
    """Return for launches with a run in Airflow whether the run will send them, by key."""
    runs = airflow_db.runs_of({launch.launch_key: launch.campaign for launch in launches})
    return {key: run.goes_on for key, run in runs.items()}


@dataclass(frozen=True, slots=True)
class VisiblePauses:
    """The global pauses: those the viewer may see in full, and the number of the others."""

    known: Sequence[GlobalPause]
    others: int


def visible_pauses(ledger: Ledger, viewer: Viewer, seen: Collection[str]) -> VisiblePauses:
    """Return the global pauses. Only viewers of the affected campaigns see the author, the reason and the connection.

    A viewer who may pause everything sees all pauses in full, even for a connection without launches.
    """
    pauses = ledger.pauses.all()
    known = [
        pause for pause in pauses if not ledger.launches.campaigns(pause.connection).keys().isdisjoint(seen)
    ]
    if len(known) < len(pauses) and seen and viewer.may_act_on_all(ledger.launches.campaigns()):
        known = pauses
    return VisiblePauses(known, len(pauses) - len(known))


def pausable(ledger: Ledger, viewer: Viewer) -> Sequence[str]:
    """Return the connections that a viewer may pause. An empty text means all of them together."""
    connections = ledger.launches.connections()
    if viewer.may_act_on_all(ledger.launches.campaigns()):
        return ["", *connections]
    return [name for name in connections if viewer.may_act_on_all(ledger.launches.campaigns(name))]
