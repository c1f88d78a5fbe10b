"""The demo: one campaign on this machine, from the warehouse to the report, run by a real Airflow."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from sendoff.campaign import CampaignFolder, load_campaign
from sendoff.demo.airflow import PASSWORD, USER, command
from sendoff.demo.options import Options
from sendoff.demo.processes import DemoError, Supervisor, interruptible, require_free
from sendoff.demo.progress import Screen
from sendoff.demo.stack import House
from sendoff.demo.verification import Comparison
from sendoff.demo.workspace import Workspace
from sendoff.figures import Figures
from sendoff.ledger import Ledger

CAMPAIGN = "lapsed_buyers"
INTERRUPTED = 130  # what a shell says of a command that was ended by Ctrl-C


def demo(options: Options) -> int:
    """Run the demo and give its exit code: 0 if the campaign ended and every verdict equals the service's record.

    Raises DemoError if it cannot go on. On every way out all its processes are gone.
    """
    with Screen() as screen:
        try:
            with interruptible():
                return _play(options, screen)
        except KeyboardInterrupt:
            screen.say("Stopped; no process is left.")
            return INTERRUPTED


def summary(figures: Figures, comparison: Comparison) -> dict[str, Any]:
    """Give the figures of the demo for machines."""
    verdicts = Counter(figures.verdicts)
    return {
        "audience": figures.audience,
        "segments": figures.segments,
        "dispatches_accepted": figures.dispatches.get("accepted", 0),
        **{
            name: verdicts[name]
            for name in ("delivered", "engaged", "missing", "unknowable", "in_doubt", "not_sent")
        },
        "unexpected": figures.anomalies.get("unexpected", 0),
        "equals_truth": comparison.holds,
    }


def _play(options: Options, screen: Screen) -> int:
    folder = _campaign(options.dags)
    for name in ("airflow", "messaging-service", "sendoff"):
        command(name)
    require_free(options.ports())
    with (
        Workspace(options.workspace) as workspace,
        Supervisor(workspace.logs) as supervisor,
        closing(Ledger(workspace.ledger_url)) as ledger,
    ):
        try:
            house = House(options, workspace, folder, supervisor, ledger, screen)
            figures, comparison = house.run_campaign()
            if not options.exit:
                _stay(house, screen)
        finally:
            screen.doing("stopping every process")
    screen.say(f"Stopped; no process is left. Logs and databases are in {options.workspace}.")
    if options.exit:
        sys.stdout.write(json.dumps(summary(figures, comparison)) + "\n")
        sys.stdout.flush()
    return 0 if comparison.holds else 1


def _campaign(dags: Path) -> CampaignFolder:
    path = dags / "campaigns" / CAMPAIGN
    if not path.is_dir():
        raise DemoError(f"there is no {path}: run the demo from the root of Sendoff's repository")
    return load_campaign(path)


def _stay(house: House, screen: Screen) -> None:
    where = f"Airflow runs at {house.airflow.address}, user {USER}, password {PASSWORD}."
    screen.say(f"{where} Ctrl-C stops everything.")
    try:
        while True:
            house.supervisor.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
