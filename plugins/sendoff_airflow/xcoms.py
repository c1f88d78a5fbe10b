"""Read the XComs of a run in Airflow's API server or scheduler, outside any task."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


_ELSEWHERE = re.compile(r"[\w+.-]+://\S+")


class XCom(NamedTuple):
    """A text that a task stored as an XCom. ``map_index`` is -1 if the task is not mapped."""

    task_id: str
    map_index: int
    text: str


def xcoms_of(
    session: Session,
    key: str,
    *,
    dag_id: str,
    run_id: str,
    task_ids: Collection[str] | None = None,
) -> list[XCom]:
    """Return the texts that the tasks of a run stored under a key, the newest first: all tasks, or some."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    query = (
        select(XComModel.task_id, XComModel.map_index, XComModel.value)
        .where(XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == key)
        .order_by(XComModel.timestamp.desc())
    )
    if task_ids:
        query = query.where(XComModel.task_id.in_(task_ids))
    return [
        XCom(task_id, index, value)
        for task_id, index, stored in session.execute(query)
        if isinstance(value := parsed(stored), str)
    ]


def parsed(stored: Any) -> Any:
    """Return the value of an XCom, which is text or JSON, or None if a custom backend holds it elsewhere."""
    try:  # as plain values: Airflow's own deserializer would import classes
        return json.loads(stored) if isinstance(stored, str) else stored
    except ValueError:
        return None if _ELSEWHERE.fullmatch(stored) else stored
