"""The demo: one campaign on this machine, from the warehouse to the report, in a real Airflow."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sendoff.campaign import load_campaign
from sendoff.demo.airflow import PASSWORD, USER, command
from sendoff.demo.options import DemoError, Options
from sendoff.demo.processes import Supervisor, interruptible, require_free
from sendoff.demo.progress import ProgressDisplay
from sendoff.demo.stack import DemoStack
from sendoff.demo.verification import VerificationResult
from sendoff.demo.workspace import Workspace
from sendoff.figures import LaunchStats
from sendoff.ledger import Ledger
from sendoff.states import DispatchState, Verdict

CAMPAIGN = "lapsed_buyers"
SHIPPED = Path(__file__).with_name("dags")
"""The DAG files in an installed wheel: a copy of the folder ``dags`` of the repository."""
INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


def demo(options: Options) -> int:
    """Run the demo and return its exit code: 0 if the campaign ended and every verdict equals the service's record.

    Raise DemoError if it cannot continue. At every exit, all its processes are gone.
    """
    with ProgressDisplay() as progress:
        try:
            with interruptible():
                return _play(options, progress)
        except KeyboardInterrupt:
            progress.print_line("Stopped; no process is left.")
            return INTERRUPTED


def summary(figures: LaunchStats, result: VerificationResult) -> dict[str, Any]:
    """Return the figures of the demo as JSON values."""
    verdicts = Counter(figures.verdicts)
    return {
        "audience": figures.audience,
        "segments": figures.segments,
        "dispatches_accepted": figures.dispatches.get(DispatchState.ACCEPTED, 0),
        **{verdict.value: verdicts[verdict] for verdict in Verdict},
        "unexpected": figures.anomalies.get("unexpected", 0),
        "equals_truth": result.holds,
    }


def _play(options: Options, progress: ProgressDisplay) -> int:
    dags = _dags(options.dags)
    folder = load_campaign(dags / "campaigns" / CAMPAIGN)
    for name in ("airflow", "messaging-service", "sendoff"):
        command(name)
    require_free(options.ports())
    with (
        Workspace(options.workspace) as workspace,
        Supervisor(workspace.logs) as supervisor,
        closing(Ledger(workspace.ledger_url)) as ledger,
    ):
        if dags == SHIPPED:  # a reader may edit the copy while Airflow runs
            options = replace(options, dags=Path(shutil.copytree(dags, workspace.dags)))
        try:
            stack = DemoStack(options, workspace, folder, supervisor, ledger, progress)
            figures, result = stack.run_campaign()
            if not options.exit:
                _stay(stack, progress)
        finally:
            progress.doing("stopping every process")
    progress.print_line(f"Stopped; no process is left. Logs and databases are in {options.workspace}.")
    if options.exit:
        sys.stdout.write(json.dumps(summary(figures, result)) + "\n")
        sys.stdout.flush()
    return 0 if result.holds else 1


def _dags(asked: Path) -> Path:
    """Return the folder of DAG files: the one of a clone if the demo runs there, else the one in the wheel."""
    for dags in (asked, SHIPPED):
        if (dags / "campaigns" / CAMPAIGN).is_dir():
            return dags
    raise DemoError(
        f"There is no {asked / 'campaigns' / CAMPAIGN}. Run the demo from the root of Sendoff's repository."
    )


def _stay(stack: DemoStack, progress: ProgressDisplay) -> None:
    where = f"Airflow runs at {stack.airflow.address}, user {USER}, password {PASSWORD}."
    progress.print_line(f"{where} Ctrl-C stops everything.")
    try:
        while True:
            stack.supervisor.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
