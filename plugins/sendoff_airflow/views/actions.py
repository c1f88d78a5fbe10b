"""The actions: everything that changes something, by people who may, from our own pages alone.

Each answers with what happened, in words, and with what must run for it to have an effect. What changed since the page
was made is not acted upon: the answer is 409, and says so. What was committed is answered as done, also where Airflow
cannot say what must run next.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Request, status
from starlette.responses import HTMLResponse

from sendoff.dispatch import awaited_role, pause, pause_all, resolve_seen, resume, resume_all, stop
from sendoff.figures import counted
from sendoff.ledger import Decision, Launch, Ledger
from sendoff.states import LaunchState
from sendoff_airflow.views import airflow_db
from sendoff_airflow.views.dependencies import LedgerDep, visible_launch
from sendoff_airflow.views.holds import visible_run
from sendoff_airflow.views.permissions import Viewer, ViewerDep, check_own_request
from sendoff_airflow.views.request_models import DecisionIn, PauseIn, ResolutionIn, body_of
from sendoff_airflow.views.templates import page

_log = logging.getLogger(__name__)

router = APIRouter(dependencies=[Depends(check_own_request)], default_response_class=HTMLResponse)

_ACTIONS = {"pause": pause, "resume": resume, "stop": stop}
_DONE = {
    "release": "Released: what is planned may be sent.",
    "reject": "Rejected: nothing more of this launch is ever sent.",
    "pause": "Paused: no further request is made until somebody resumes it.",
    "resume": "Resumed: the launch goes on by itself within half a minute.",
    "stop": "Stopped: no request of this launch is made any more. What the service accepted is not taken back.",
}

_WAITING = {
    LaunchState.HELD: "The launch is held: they are sent when somebody releases it.",
    LaunchState.PAUSED: "The launch is paused: they are sent when somebody resumes it.",
}


@dataclass(frozen=True, slots=True)
class NextStep:
    """What must run for a decision to have an effect, in words; the run of the launch; what can be asked of Airflow."""

    words: str
    run: airflow_db.Run | None = None
    ask: Literal["clear", "answer"] | None = None


@router.post("/launches/{launch_key}/{act}")
def decide_launch(
    request: Request,
    viewer: ViewerDep,
    body: Annotated[DecisionIn, Depends(body_of(DecisionIn))],
    ledger: LedgerDep,
    launch_key: str,
    act: Literal["release", "reject", "pause", "resume", "stop"],
) -> HTMLResponse:
    """Release, reject, pause, resume or stop a launch."""
    launch = _launch_to_steer(ledger, viewer, launch_key)
    if act in _ACTIONS:
        _ACTIONS[act](ledger, launch.launch_key, viewer.name, body.reason)
    else:
        if act == "release":
            _check_answered(ledger, launch)
        _decide_held(ledger, launch, act, viewer.name, body)
    following = None
    if act in ("release", "reject"):
        following = _next_step(viewer, launch, was_rejected=act == "reject")
    return page(request, "done.html", sentences=[_DONE[act]], following=following, campaign=launch.campaign)


def _check_answered(ledger: Ledger, launch: Launch) -> None:
    """Raise 409 where somebody of a role must agree to a launch, and did not yet."""
    if role := awaited_role(launch, ledger.audit_log.of_launch(launch.launch_key)):
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            f"Nothing was changed: somebody of the role {role} must agree first, and answers in Airflow.",
        )


def _decide_held(ledger: Ledger, launch: Launch, act: str, who: str, body: DecisionIn) -> None:
    kind = {"release": "released", "reject": "rejected"}[act]
    moment = datetime.now(UTC)
    key = launch.launch_key
    if not ledger.audit_log.decide(Decision(key, kind, who, body.reason, moment), since=body.since):
        state = ledger.launches.get(key).state
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            f"Nothing was changed: the launch is {state} by now, or something was decided of it since this page was "
            "made. Look at it again.",
        )


@router.post("/launches/{launch_key}/doubts/{how}")
def resolve_doubts(
    request: Request,
    viewer: ViewerDep,
    body: Annotated[ResolutionIn, Depends(body_of(ResolutionIn))],
    ledger: LedgerDep,
    launch_key: str,
    how: Literal["resend", "write_off"],
) -> HTMLResponse:
    """Plan requests in doubt again, or write them off; those of which something changed meanwhile are left alone."""
    launch = _launch_to_steer(ledger, viewer, launch_key)
    in_doubt = {entry.dispatch_key for entry in ledger.doubts.open(launch.launch_key)}
    shown = {key: int(doubts) for key, _, doubts in (entry.partition(":") for entry in body.requests)}
    open_requests = {key: doubts for key, doubts in shown.items() if key in in_doubt}
    done = resolve_seen(ledger, open_requests, how, viewer.name, body.reason) if open_requests else 0
    if not done:
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            "Nothing was changed: these requests were settled meanwhile, or went into doubt once more, or their launch "
            "is over. Look at them again.",
        )
    sentences = [f"{counted(done, 'request')} planned again." if how == "resend" else _written_off(done)]
    if left := len(shown) - done:
        sentences.append(_left_alone(left))
    following = None
    if how == "resend":
        waits = _WAITING.get(launch.state)
        following = NextStep(waits) if waits else _next_step(viewer, launch)
    return page(request, "done.html", sentences=sentences, following=following, campaign=launch.campaign)


def _written_off(count: int) -> str:
    return f"{counted(count, 'request')} written off: nobody looks any more, but evidence would still count."


def _left_alone(count: int) -> str:
    was = "was" if count == 1 else "were"
    return f"{counted(count, 'request')} {was} left alone: changed since this page was made, or out of reach."


@router.post("/pauses/{act}")
def pause_or_resume_all(
    request: Request,
    viewer: ViewerDep,
    body: Annotated[PauseIn, Depends(body_of(PauseIn))],
    ledger: LedgerDep,
    act: Literal["pause", "resume"],
) -> HTMLResponse:
    """Pause or resume every launch, or every launch of a connection."""
    viewer.check_pauses_all(ledger.launches.campaigns(body.connection or None))
    if body.connection and body.connection not in ledger.launches.connections():
        raise HTTPException(
            status.HTTP_409_CONFLICT, "Nothing was changed: no launch was made for that connection."
        )
    change = {"pause": pause_all, "resume": resume_all}[act]
    change(ledger, viewer.name, body.reason, connection=body.connection or None)
    whose = f"every launch of connection {body.connection}" if body.connection else "every launch"
    sentence = (
        f"Paused: no further request of {whose} is made."
        if act == "pause"
        else f"Resumed: {whose} goes on within half a minute, unless something else holds it."
    )
    return page(request, "done.html", sentences=[sentence], following=None, campaign=None)


def _launch_to_steer(ledger: Ledger, viewer: Viewer, launch_key: str) -> Launch:
    launch = visible_launch(ledger, viewer, launch_key)
    viewer.check_steers(launch.campaign)
    return launch


def _next_step(viewer: Viewer, launch: Launch, *, was_rejected: bool = False) -> NextStep:
    """Return what must run next. It is asked for after the commit, so no error of Airflow's may replace the answer."""
    try:
        return _next_step_in_airflow(viewer, launch, was_rejected=was_rejected)
    except Exception:
        _log.exception("Airflow could not be asked for the run of launch %s", launch.launch_key)
        return NextStep(
            "Airflow could not be asked for the run of this launch. The log of Airflow's API server says why; look at "
            "the launch again."
        )


def _next_step_in_airflow(viewer: Viewer, launch: Launch, *, was_rejected: bool) -> NextStep:
    run = visible_run(viewer, launch)
    if run is None:
        words = "Airflow knows no run of this launch: whatever made it must work on it again."
        return NextStep("" if was_rejected else words)
    if was_rejected:
        asks = "The task approve of its run still asks: the answer changes nothing any more."
        return NextStep(asks if run.is_asking else "", run)
    if run.is_asking:
        words = "The task approve of its run still waits for an answer in Airflow, and the run goes on when it has one."
        return NextStep(words, run, "answer")
    if run.is_sending:
        return NextStep("The task dispatch of its run is at work, and goes on by itself.", run)
    if run.can_be_cleared:
        may = viewer.may_clear(run.dag_id)
        words = "For it to be sent, the task dispatch of its run must run once more: clear it."
        return NextStep(words, run, "clear" if may else None)
    return NextStep("For it to be sent, the task of its run that sends must run once more.", run)
