"""Continue the run of a launch after a decision: answer what its task ``approve`` asks, or clear a task that ended.

This calls the functions of Airflow's REST API in this process, so that its checks and its state changes apply. The
functions are not part of Airflow's public interface, and tests run against the real ones.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from airflow.api_fastapi.common.dagbag import create_dag_bag
from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.datamodels.task_instances import ClearTaskInstancesBody
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.api_fastapi.core_api.routes.public.task_instances import post_clear_task_instances
from airflow.models.log import Log
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.utils.session import create_session
from fastapi import HTTPException, status
from sqlalchemy.orm import Session

from sendoff.ledger import LaunchRecord, Ledger
from sendoff_airflow.views.airflow_state import airflow_db
from sendoff_airflow.views.facts.holds import ENDED, visible_run, way_to_settle
from sendoff_airflow.views.facts.unsent import Unsent, unsent_of
from sendoff_airflow.views.web.permissions import Viewer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NextStep:
    """What happens next in Airflow, or what a person must do there, in words; and the launch's run.

    ``task``: the task of the run that runs again, if it was cleared. ``unsent``: what it sends.
    """

    words: str
    run: airflow_db.Run | None = None
    task: str | None = None
    unsent: Unsent | None = None


def continue_run(
    viewer: Viewer, ledger: Ledger, launch: LaunchRecord, *, is_resumed: bool = False
) -> NextStep:
    """Continue the run of a launch that someone decided about. Return what happens next.

    ``is_resumed``: it was paused, so a task may wait for it, also in a run that is not known here.

    This runs after the decision was committed, so an error in Airflow must not replace the answer.
    """
    try:
        step = _continue_run(viewer, ledger, launch, is_resumed=is_resumed)
    except Exception:
        _log.exception("The run of launch %s could not be continued in Airflow", launch.launch_key)
        return NextStep(
            "Airflow did not tell which run sends this launch, or did not continue it. Look at the launch again. The "
            "log of Airflow's API server has the reason."
        )
    if step.run is not None and step.run.is_paused and launch.state not in ENDED:
        return replace(
            step, words=f"{step.words} But its DAG is paused in Airflow: unpause it there first.".strip()
        )
    return step


def approve_in_airflow(viewer: Viewer, launch: LaunchRecord, question: airflow_db.Question) -> NextStep:
    """Answer *Approve* as the user. Return what happens next. If someone else was faster, their answer stays."""
    _answer(viewer, question, ApprovalOperator.APPROVE)
    run = visible_run(viewer, launch)
    words = "Answered in Airflow: the run releases the launch and continues by itself."
    if run is not None and run.is_paused:
        words += " But its DAG is paused in Airflow: unpause it there first."
    return NextStep(words, run)


def _continue_run(viewer: Viewer, ledger: Ledger, launch: LaunchRecord, *, is_resumed: bool) -> NextStep:
    run = visible_run(viewer, launch)
    if questions := airflow_db.open_questions([launch.campaign], launch.launch_key):
        settled = [_settle(viewer, launch, question) for question in questions]
        if all(settled):
            return NextStep("Answered in Airflow too: the run continues by itself.", run)
        return NextStep(
            "Airflow still asks for approval of this launch, and you may not answer there. Someone who may must answer "
            "it. The launch stays under Waiting until then.",
            run,
        )
    if launch.state in ENDED:
        return NextStep("", run)
    if run is not None and run.is_intact:
        return NextStep("Its run in Airflow continues by itself.", run)
    task = run.to_clear if run else None
    if run is None or task is None:
        if is_resumed:
            return NextStep(
                "A task that waits continues within half a minute. If the launch was sent from a shell, continue it "
                f"there with: sendoff send {launch.launch_key[:12]}",
                run,
            )
        if run is None:
            return NextStep("Airflow has no run for this launch. Start it again where it was created.")
        return NextStep("To send it, the task of its run that sends must run again.", run)
    if not viewer.may_clear(run.dag_id):
        return NextStep(f"To send it, the task {task} of its run must run again.", run)
    _clear(viewer, run.dag_id, run.run_id, task)
    return NextStep("", run, task, unsent_of(ledger, launch))


def _settle(viewer: Viewer, launch: LaunchRecord, question: airflow_db.Question) -> bool:
    """Settle a question as the ledger decided. Return False if the user may not."""
    how = way_to_settle(viewer, launch, question)
    if how == "answer":
        _answer(
            viewer, question, ApprovalOperator.REJECT if launch.state in ENDED else ApprovalOperator.APPROVE
        )
    elif how == "clear":
        _clear(viewer, question.dag_id, question.run_id, question.task_id)
    return how is not None


def _answer(viewer: Viewer, question: airflow_db.Question, option: str) -> None:
    """Answer a question as a user. If someone else was faster, their answer stays."""
    answer = UpdateHITLDetailPayload(chosen_options=[option], params_input={})
    place: dict[str, Any] = {
        "dag_id": question.dag_id,
        "task_id": question.task_id,
        "map_index": question.map_index,
    }
    try:
        with create_session() as session:
            session.add(_log_entry("update_hitl_detail", viewer, question.run_id, place, answer.model_dump()))
            _call(
                update_hitl_detail,
                session,
                **place,
                dag_run_id=question.run_id,
                update_hitl_detail_payload=answer,
                user=viewer.user,
            )
    except HTTPException as problem:
        if problem.status_code != status.HTTP_409_CONFLICT:
            raise


def _clear(viewer: Viewer, dag_id: str, run_id: str, task: str) -> None:
    """Clear a task of a run, and the tasks after it, as a user."""
    chosen = {"dag_run_id": run_id, "task_ids": [task], "only_failed": False, "include_downstream": True}
    body = ClearTaskInstancesBody(dry_run=False, reset_dag_runs=True, **chosen)
    with create_session() as session:
        session.add(_log_entry("post_clear_task_instances", viewer, run_id, {"dag_id": dag_id}, chosen))
        _call(post_clear_task_instances, session, dag_id=dag_id, body=body, user=viewer.user)


def _call(function: Callable[..., Any], session: Session, **arguments: Any) -> None:
    """Call a function of Airflow's REST API, and also pass what its version takes in place of a request."""
    takes = get_type_hints(function)
    dag_bag = create_dag_bag()
    if "dag_bag" in takes:  # Airflow 3.3 has it for clearing only
        arguments["dag_bag"] = dag_bag
    if "resolver" in takes:  # a class of Airflow 3.4
        arguments["resolver"] = takes["resolver"](dag_bag, session)
    function(session=session, **arguments)


def _log_entry(event: str, viewer: Viewer, run_id: str, place: dict[str, Any], body: dict[str, Any]) -> Log:
    """Return the entry of Airflow's audit log that a request to its REST API would leave."""
    names = {"owner": viewer.name, "owner_display_name": viewer.name}
    return Log(event=event, task_instance=None, run_id=run_id, extra=json.dumps(body), **names, **place)
