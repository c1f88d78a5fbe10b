"""The actions: all routes that change something. They require the user's rights, and a request from our own pages.

Each answers with a sentence on what happened, and on what must run next for it to take effect. If the data changed
since the page was loaded, the answer is 409 and nothing is done. A committed change is reported as done, even if
Airflow cannot tell what must run next.
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
    "release": "Released: the launch may now be sent.",
    "reject": "Rejected: this launch will never be sent.",
    "pause": "Paused: nothing more is sent until someone resumes the launch.",
    "resume": "Resumed: the launch continues by itself within half a minute.",
    "stop": "Stopped: nothing more of this launch is sent. Messages the service already accepted cannot be taken back.",
}

_WAITING = {
    LaunchState.HELD: "The launch is held. They are sent after someone releases it.",
    LaunchState.PAUSED: "The launch is paused. They are sent after someone resumes it.",
}


@dataclass(frozen=True, slots=True)
class NextStep:
    """What must run next for a decision to take effect, in words; the launch's run; and the button to show."""

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
    """Raise 409 if someone with a role must still approve the launch."""
    if role := awaited_role(launch, ledger.audit_log.of_launch(launch.launch_key)):
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            f"Nothing was changed: someone with the role {role} must first approve the launch in Airflow.",
        )


def _decide_held(ledger: Ledger, launch: Launch, act: str, who: str, body: DecisionIn) -> None:
    kind = {"release": "released", "reject": "rejected"}[act]
    moment = datetime.now(UTC)
    key = launch.launch_key
    if not ledger.audit_log.decide(Decision(key, kind, who, body.reason, moment), since=body.since):
        state = ledger.launches.get(key).state
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            f"Nothing was changed: the launch is now {state}, or someone made a decision since you loaded this page. "
            "Reload the page and check.",
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
    """Plan requests in doubt again, or write them off. Requests that changed meanwhile are left alone."""
    launch = _launch_to_steer(ledger, viewer, launch_key)
    in_doubt = {entry.dispatch_key for entry in ledger.doubts.open(launch.launch_key)}
    shown = {key: int(doubts) for key, _, doubts in (entry.partition(":") for entry in body.requests)}
    open_requests = {key: doubts for key, doubts in shown.items() if key in in_doubt}
    done = resolve_seen(ledger, open_requests, how, viewer.name, body.reason) if open_requests else 0
    if not done:
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            "Nothing was changed: these requests were settled meanwhile, or are in doubt again, or their launch has "
            "ended. Reload the page and check.",
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
    return f"{counted(count, 'request')} written off. A later report from the service would still count."


def _left_alone(count: int) -> str:
    was = "was" if count == 1 else "were"
    return f"{counted(count, 'request')} {was} left alone: changed since you loaded this page, or not yours to settle."


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
        raise HTTPException(status.HTTP_409_CONFLICT, "Nothing was changed: that connection has no launches.")
    change = {"pause": pause_all, "resume": resume_all}[act]
    change(ledger, viewer.name, body.reason, connection=body.connection or None)
    whose = f"every launch of connection {body.connection}" if body.connection else "every launch"
    sentence = (
        f"Paused: {whose}. Nothing more is sent until someone resumes."
        if act == "pause"
        else f"Resumed: {whose} continues within half a minute, unless it is held or paused by itself."
    )
    return page(request, "done.html", sentences=[sentence], following=None, campaign=None)


def _launch_to_steer(ledger: Ledger, viewer: Viewer, launch_key: str) -> Launch:
    launch = visible_launch(ledger, viewer, launch_key)
    viewer.check_steers(launch.campaign)
    return launch


def _next_step(viewer: Viewer, launch: Launch, *, was_rejected: bool = False) -> NextStep:
    """Return what must run next. This runs after the commit, so an error in Airflow must not replace the answer."""
    try:
        return _next_step_in_airflow(viewer, launch, was_rejected=was_rejected)
    except Exception:
        _log.exception("The run of launch %s could not be read from Airflow", launch.launch_key)
        return NextStep(
            "Airflow did not tell which run sends this launch. Look at the launch again. The log of Airflow's API "
            "server has the reason."
        )


def _next_step_in_airflow(viewer: Viewer, launch: Launch, *, was_rejected: bool) -> NextStep:
    run = visible_run(viewer, launch)
    if run is None:
        words = "Airflow has no run for this launch. Start it again where it was created."
        return NextStep("" if was_rejected else words)
    if was_rejected:
        asks = "Airflow still asks for approval of this launch. The answer no longer changes anything."
        return NextStep(asks if run.is_asking else "", run)
    if run.is_asking:
        words = "Airflow still asks for approval of this launch. The launch continues when the question is answered."
        return NextStep(words, run, "answer")
    if run.is_sending:
        return NextStep("Its run in Airflow is sending and continues by itself.", run)
    if run.can_be_cleared:
        may = viewer.may_clear(run.dag_id)
        words = "To send it, the task dispatch must run again. Clear it."
        return NextStep(words, run, "clear" if may else None)
    return NextStep("To send it, the sending task of its run must run again.", run)
