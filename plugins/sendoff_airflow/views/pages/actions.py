"""The actions: all routes that change something. They require the user's rights, and a request from our own pages.

Each answers with a sentence on what happened, and continues the launch's run in Airflow for it to take effect. If the
data changed since the page was loaded, the answer is 409 and nothing is done. A committed change is reported as done,
even if Airflow cannot continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, HTTPException, Request, status
from starlette.responses import HTMLResponse

from sendoff.dispatch import (
    awaited_role,
    check_answered,
    newest_of,
    pause,
    pause_all,
    proposal_of,
    resolve_seen,
    resume,
    resume_all,
    stop,
)
from sendoff.errors import GateError
from sendoff.figures import counted
from sendoff.launch import held_by_service
from sendoff.ledger import Decision, LaunchRecord, Ledger
from sendoff.states import DecisionKind, LaunchState, Resolution
from sendoff_airflow.views.airflow_state.deadlines import deadlines_of
from sendoff_airflow.views.facts.continuing import NextStep, approve_in_airflow, continue_run
from sendoff_airflow.views.facts.holds import asked_at
from sendoff_airflow.views.facts.unsent import unsent_of
from sendoff_airflow.views.web.dependencies import LedgerDep, visible_launch
from sendoff_airflow.views.web.permissions import Viewer, ViewerDep, check_own_request, conflict
from sendoff_airflow.views.web.request_models import DecisionIn, PauseIn, ResolutionIn, body_of
from sendoff_airflow.views.web.templates import page

router = APIRouter(dependencies=[Depends(check_own_request)], default_response_class=HTMLResponse)

_ACTIONS = {"pause": pause, "resume": resume, "stop": stop}
_DONE = {
    "release": "Released: the launch may now be sent.",
    "reject": "Rejected: this launch will never be sent.",
    "pause": "Paused: nothing more is sent until someone resumes the launch.",
    "resume": "Resumed: the launch may send again.",
    "stop": "Stopped: nothing more of this launch is sent. Messages the service already accepted cannot be taken back.",
}

_UNANSWERED = "Rejected: no one approved this launch in time, so it will never be sent."

_DONE_BUT = {
    "reject": "Rejected: this launch makes no more requests.",
    "stop": "Stopped: this launch makes no more requests.",
}
"""What is said if the service has messages of the launch that it sends later."""

_WAITING = {
    LaunchState.HELD: "The launch is held. They are sent after someone releases it.",
    LaunchState.PAUSED: "The launch is paused. They are sent after someone resumes it.",
}


@router.post("/launches/{launch_key}/continue")
def continue_launch(request: Request, viewer: ViewerDep, ledger: LedgerDep, launch_key: str) -> HTMLResponse:
    """Continue the run of a launch that was decided here, but not yet in Airflow."""
    launch = _launch_to_steer(ledger, viewer, launch_key)
    if launch.state == LaunchState.HELD:
        raise conflict("the launch is held. Release or reject it.")
    following = continue_run(viewer, ledger, launch)
    return page(request, "done.html", sentences=[], following=following)


@router.post("/launches/{launch_key}/approve")
def approve_launch(request: Request, viewer: ViewerDep, ledger: LedgerDep, launch_key: str) -> HTMLResponse:
    """Answer *Approve* in Airflow for a launch that a role must approve. The task then releases the launch."""
    launch = _launch_to_steer(ledger, viewer, launch_key)
    role = awaited_role(launch, ledger.audit_log.of_launch(launch.launch_key))
    asked = asked_at(viewer, launch) if role else None
    if asked is None or not asked.may_answer:
        raise conflict("Airflow does not ask about this launch any more, or you may not answer there.")
    return page(
        request,
        "done.html",
        sentences=["Approved."],
        following=approve_in_airflow(viewer, launch, asked.question),
    )


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
    decisions = ledger.audit_log.of_launch(launch.launch_key)
    is_approval = newest_of(decisions, DecisionKind.HELD) is None
    if act == "release" and not deadlines_of([launch]):  # a question in Airflow has its own deadline
        try:
            check_answered(ledger, launch, decisions)
        except GateError:
            return page(request, "done.html", sentences=[_UNANSWERED], following=None)
    winner = _chosen(launch, decisions, body) if act == "release" else None
    if act in _ACTIONS:
        _ACTIONS[act](ledger, launch.launch_key, viewer.name, body.reason)
    else:
        _decide_held(ledger, launch.launch_key, act, viewer.name, body, winner)
    following, later = None, []
    done = _DONE[act]
    if winner:
        done = f"Chosen: the rest may now get {winner}."
    elif act == "release" and is_approval:
        done = "Approved: the launch may now be sent."
    if act != "pause":
        launch = ledger.launches.get(launch.launch_key)
        following = continue_run(viewer, ledger, launch, is_resumed=act == "resume")
        later = held_by_service(ledger, launch) if launch.state.is_final else []
        unsent = None if launch.state.is_final else unsent_of(ledger, launch)
        if unsent and unsent.is_too_late:
            done, following = f"{done.partition(':')[0]}.", replace(following, unsent=unsent)
    return page(
        request,
        "done.html",
        sentences=[_DONE_BUT[act] if later else done],
        following=following,
        later=later,
        launch=launch,
    )


def _chosen(launch: LaunchRecord, decisions: Sequence[Decision], body: DecisionIn) -> str | None:
    """Return the variant that the user chose for the rest; None if the launch does not wait for that.

    Raise 409 if someone with a role must still approve the launch.
    """
    if role := awaited_role(launch, decisions):
        raise conflict(f"someone with the role {role} must first approve the launch in Airflow.")
    proposal = proposal_of(launch, decisions)
    if proposal and body.variant not in proposal.variants:
        raise HTTPException(
            status.HTTP_422_UNPROCESSABLE_CONTENT,
            f"Nothing was changed. Choose the variant that the rest gets: {' or '.join(proposal.variants)}.",
        )
    return body.variant if proposal else None


def _decide_held(
    ledger: Ledger, launch_key: str, act: str, who: str, body: DecisionIn, winner: str | None
) -> None:
    """Release or reject a held launch. ``winner``: the variant that the user chose for the rest, if any."""
    kind = {"release": DecisionKind.RELEASED, "reject": DecisionKind.REJECTED}[act]
    detail = {"winner": winner} if winner else None
    decision = Decision(launch_key, kind, who, body.reason, datetime.now(UTC), detail)
    if not ledger.audit_log.decide(decision, since=body.since, winner=winner):
        state = ledger.launches.get(launch_key).state
        raise conflict(
            f"the launch is now {state}, or someone made a decision since you loaded this page. "
            "Reload the page and check."
        )


@router.post("/launches/{launch_key}/doubts/{how}")
def resolve_doubts(
    request: Request,
    viewer: ViewerDep,
    body: Annotated[ResolutionIn, Depends(body_of(ResolutionIn))],
    ledger: LedgerDep,
    launch_key: str,
    how: Resolution,
) -> HTMLResponse:
    """Plan requests in doubt again, or write them off. Requests that changed meanwhile are left alone."""
    launch = _launch_to_steer(ledger, viewer, launch_key)
    in_doubt = {entry.dispatch_key for entry in ledger.doubts.open(launch.launch_key)}
    shown = {key: int(doubts) for key, _, doubts in (entry.partition(":") for entry in body.requests)}
    open_requests = {key: doubts for key, doubts in shown.items() if key in in_doubt}
    done = resolve_seen(ledger, open_requests, how, viewer.name, body.reason) if open_requests else 0
    if not done:
        raise conflict(
            "these requests were settled meanwhile, or are in doubt again, or their launch has "
            "ended. Reload the page and check."
        )
    if how is Resolution.RESEND:
        sentences = [f"{counted(done, 'request')} planned again."]
        waits = _WAITING.get(launch.state)
        following = NextStep(waits) if waits else continue_run(viewer, ledger, launch)
    else:
        later = "A later report from the service would still count."
        sentences, following = [f"{counted(done, 'request')} written off. {later}"], None
    if left := len(shown) - done:
        sentences.append(_left_alone(left))
    return page(request, "done.html", sentences=sentences, following=following)


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
        raise conflict("that connection has no launches.")
    change = {"pause": pause_all, "resume": resume_all}[act]
    change(ledger, viewer.name, body.reason, connection=body.connection or None)
    whose = f"every launch of connection {body.connection}" if body.connection else "every launch"
    sentence = (
        f"Paused: {whose}. Nothing more is sent until someone resumes."
        if act == "pause"
        else f"Resumed: {whose}. The page of each says when it goes out, or what it waits for."
    )
    return page(request, "done.html", sentences=[sentence], following=None)


def _launch_to_steer(ledger: Ledger, viewer: Viewer, launch_key: str) -> LaunchRecord:
    launch = visible_launch(ledger, viewer, launch_key)
    viewer.check_steers(launch.campaign)
    return launch
