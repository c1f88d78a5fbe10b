"""Which run and task made a launch: two tasks of a run must not share one by mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from sendoff.ledger import LaunchRecord


def run_and_task(context: Context) -> tuple[str, str]:
    """Return names of the run and of the task, with its map index, for the origin of a launch."""
    ti = context["ti"]
    mapped = "" if ti.map_index is None or ti.map_index < 0 else f"[{ti.map_index}]"
    return f"{ti.dag_id} {ti.run_id}", f"{ti.task_id}{mapped}"


class Origin(NamedTuple):
    """Which run and task make a launch, and a digest of their campaign and audience."""

    run: str
    task: str
    digest: str

    def __str__(self) -> str:
        return "\n".join(self)

    @classmethod
    def of(cls, launch: LaunchRecord) -> Origin | None:
        """Return the origin of a launch, or None if no task made it."""
        return cls(*launch.origin.split("\n")) if launch.origin else None


def check_origin(launch: LaunchRecord, own: Origin) -> None:
    """Raise AirflowFailException if another task of this run made a launch with another campaign or audience.

    A later run finds the launch of its period on purpose, and so does a second worker of the same launch.
    """
    made = Origin.of(launch) or own
    if made.run == own.run and made.task != own.task and made.digest != own.digest:
        raise AirflowFailException(
            f"Task {own.task}: task {made.task} of this run made launch {launch.launch_key} of campaign "
            f"{launch.campaign}, with another campaign or audience. Nothing was sent to the audience of this task. "
            "Give each task a name of its own: all launches of one name and period are one launch."
        )
