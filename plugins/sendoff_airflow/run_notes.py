"""Notes on DAG runs: the result of a launch on the page of its run.

A task cannot write a note, because Airflow's Task SDK and Execution API have no call for it. The task that reports, or
the one that finds that a launch cannot be made, stores the text as an XCom. When the run ends, a listener in Airflow's
scheduler turns it into the note.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from sendoff_airflow.xcoms import xcoms_of

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

    from sendoff.figures import LaunchStats
    from sendoff.ledger import LaunchRecord
    from sendoff.states import Stage

KEY = "note"
"""The XCom that holds the text."""

_AUTHOR = "airflow-provider-sendoff"  # Airflow stores who wrote a note last, and shows it nowhere
_MAX_LENGTH = 1000  # characters; Airflow's limit
_log = logging.getLogger(__name__)


def note_of(figures: LaunchStats, launch: LaunchRecord, stage: Stage) -> str:
    """Return the state of a launch and its result in a line, as counts."""
    from sendoff.figures import counted
    from sendoff.states import Verdict

    parts = [
        f"{figures.verdicts[verdict]:,} {verdict.label}"
        for verdict in Verdict
        if figures.verdicts.get(verdict)
    ]
    if figures.erased:
        parts.append(f"{figures.erased:,} erased")
    recipients = counted(figures.audience, *launch.noun)
    if figures.is_chosen_by_service:
        recipients += " in the post-backs"
    return f"{stage.label.capitalize()}. {recipients}{': ' if parts else ''}{', '.join(parts)}"


class RunNotes:
    """Writes the note of a run with a text about its launch, unless someone else wrote the note that it has.

    A run that is cleared ends once more, and then gets a new note.
    """

    @hookimpl
    def on_dag_run_success(self, dag_run: DagRun, msg: str) -> None:  # noqa: ARG002
        """Write the note of a run that succeeded."""
        _write(dag_run)

    @hookimpl
    def on_dag_run_failed(self, dag_run: DagRun, msg: str) -> None:  # noqa: ARG002
        """Write the note of a run that failed."""
        _write(dag_run)


def _write(dag_run: DagRun) -> None:
    tasks = _writing(dag_run)
    if not tasks:  # runs of other DAGs cost no query
        return
    from airflow.models.dagrun import DagRunNote
    from sqlalchemy import delete, exc, insert, select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    with session.no_autoflush:  # what the scheduler has changed so far is its own to write
        notes = xcoms_of(session, KEY, dag_id=dag_run.dag_id, run_id=dag_run.run_id, task_ids=tasks)
    connection = session.connection()
    text = "\n".join(note.text for note in notes)[:_MAX_LENGTH]
    own = (DagRunNote.dag_run_id == dag_run.id, DagRunNote.user_id == _AUTHOR)
    connection.execute(delete(DagRunNote).where(*own))  # of an earlier try
    is_noted = connection.execute(select(DagRunNote.dag_run_id).where(DagRunNote.dag_run_id == dag_run.id))
    if not text or is_noted.first():
        return
    note = {"dag_run_id": dag_run.id, "content": text, "user_id": _AUTHOR}
    try:
        with connection.begin_nested():  # an error here must not end the scheduler's transaction
            connection.execute(insert(DagRunNote).values(note))
    except exc.IntegrityError:
        _log.info("run %s of %s: someone wrote a note meanwhile", dag_run.run_id, dag_run.dag_id)


def _writing(dag_run: DagRun) -> list[str]:
    """Return the tasks of a run that may have stored a text for its note: those of Sendoff's operators."""
    dag: Any = getattr(dag_run, "dag", None)
    modules = {task.task_id: getattr(task, "_task_module", "") for task in (dag.tasks if dag else ())}
    return [name for name, module in modules.items() if module.startswith("sendoff_airflow.operators")]
