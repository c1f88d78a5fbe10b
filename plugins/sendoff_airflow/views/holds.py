"""What keeps launches from being sent: decisions about one launch, open questions in Airflow, and global pauses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sendoff.ledger import ALL, GlobalPause, Launch, Ledger, scope_of
from sendoff.states import DecisionKind, LaunchState
from sendoff_airflow.views import airflow_db
from sendoff_airflow.views.permissions import Viewer

ENDED = (LaunchState.REJECTED, LaunchState.STOPPED)


def acts_on(launch: Launch, role: str | None) -> Sequence[str]:
    """Return the possible actions for a launch in its state. ``role``: the role that must approve it, if any."""
    return {
        LaunchState.HELD: ("reject",) if role else ("release", "reject"),
        LaunchState.RELEASED: ("pause", "stop"),
        LaunchState.PAUSED: ("resume", "stop"),
    }.get(launch.state, ())


def why_held(decisions: Sequence[Any]) -> Any:
    """Return the decision that holds a launch, or None if it has waited for approval since it was frozen."""
    return next((decision for decision in reversed(decisions) if decision.kind == DecisionKind.HELD), None)


def visible_run(viewer: Viewer, launch: Launch) -> airflow_db.Run | None:
    """Return the newest run of a launch, or None if there is none that the viewer may see."""
    run = airflow_db.run_of(launch.launch_key, launch.campaign)
    return run if run is not None and viewer.may_see(run.dag_id) else None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A launch that was decided in the ledger while its run still asks in Airflow."""

    launch: Launch
    question: airflow_db.Question
    may_answer: bool  # with a button on our pages


def unanswered(
    ledger: Ledger, viewer: Viewer, campaigns: Collection[str], launch_key: str | None = None
) -> Sequence[Unanswered]:
    """Return the launches of some campaigns that are decided, but not yet in Airflow. ``launch_key``: only this one."""
    found = []
    for question in airflow_db.open_questions(campaigns, launch_key):
        launch = ledger.launches.find(question.launch_key)
        if launch is not None and launch.campaign in campaigns and launch.state != LaunchState.HELD:
            may_answer = viewer.may_steer(launch.campaign) and bool(way_to_settle(viewer, launch, question))
            found.append(Unanswered(launch, question, may_answer))
    return found


def way_to_settle(
    viewer: Viewer, launch: Launch, question: airflow_db.Question
) -> Literal["answer", "clear"] | None:
    """Return how a viewer may settle the open question about a decided launch, or None.

    If the launch has ended, clearing the task closes the question too: the task asks no one about such a launch.
    """
    if viewer.may_answer(question.dag_id, question.assigned):
        return "answer"
    return "clear" if launch.state in ENDED and viewer.may_clear(question.dag_id) else None


def works_in_airflow(launches: Sequence[Launch]) -> Mapping[str, bool]:
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
        pause
        for pause in pauses
        if not ledger.launches.campaigns(connection_of(pause)).keys().isdisjoint(seen)
    ]
    if len(known) < len(pauses) and seen and viewer.may_pause_all(ledger.launches.campaigns()):
        known = pauses
    return VisiblePauses(known, len(pauses) - len(known))


def connection_of(pause: GlobalPause) -> str | None:
    """Return the connection of a global pause, or None if it is for all connections."""
    return None if pause.scope == ALL else pause.scope.removeprefix(scope_of(""))


def pausable(ledger: Ledger, viewer: Viewer) -> Sequence[str]:
    """Return the connections that a viewer may pause. An empty text means all of them together."""
    connections = ledger.launches.connections()
    if viewer.may_pause_all(ledger.launches.campaigns()):
        return ["", *connections]
    return [name for name in connections if viewer.may_pause_all(ledger.launches.campaigns(name))]
