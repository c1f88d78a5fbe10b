"""What a launch waits for: why it is held, who must agree to it, and what may be decided of it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sendoff.ledger import Launch
from sendoff_airflow.views import airflow_db
from sendoff_airflow.views.permissions import Viewer


def acts_on(launch: Launch, role: str | None) -> Sequence[str]:
    """Give what may be decided of a launch in its state, where somebody of a role must agree to it."""
    return {
        "held": ("reject",) if role else ("release", "reject"),
        "released": ("pause", "stop"),
        "paused": ("resume", "stop"),
    }.get(launch.state, ())


def why_held(decisions: Sequence[Any]) -> Any:
    """Give the decision by which a launch is held; None: it waits for approval since it was frozen."""
    return next((each for each in reversed(decisions) if each.kind == "held"), None)


def seen_run(viewer: Viewer, launch: Launch) -> airflow_db.Run | None:
    """Give the newest run that works on a launch; None where there is none, or none that somebody may see."""
    run = airflow_db.run_of(launch.launch_key, launch.campaign)
    return run if run is not None and viewer.may_see(run.dag_id) else None
