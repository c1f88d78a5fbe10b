"""Macros on launches for the templated fields of any Airflow notifier or operator.

Use them as ``macros.sendoff.report_text(task.launch_key)``. They read the ledger when the template is rendered, in the
task. They return only counts and Sendoff's own words: no identifiers and no message text.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from sendoff_airflow import LEDGER

if TYPE_CHECKING:
    from sendoff.figures import LaunchStats
    from sendoff.ledger import LaunchRecord
    from sendoff.states import Stage


def report_text(launch_key: str, ledger_conn_id: str = LEDGER) -> str:
    """Return the newest report of a launch as plain text of 80 columns. Raise NotFoundError if there is none yet."""
    from sendoff.report import as_text, describe_launch

    found = _reported(launch_key, ledger_conn_id)
    return as_text(describe_launch(found.figures, (), found.stage))


def report_line(launch_key: str, ledger_conn_id: str = LEDGER) -> str:
    """Return the newest report of a launch in one line: campaign, period, state, and the verdicts."""
    from sendoff_airflow.run_notes import note_of

    figures, launch, stage = _reported(launch_key, ledger_conn_id)
    return f"{figures.campaign} for {figures.period}: {note_of(figures, launch, stage)}"


def report_json(launch_key: str, ledger_conn_id: str = LEDGER) -> dict[str, Any]:
    """Return the newest report of a launch as JSON values, as in ``sendoff report --json``."""
    from sendoff.report import as_json

    found = _reported(launch_key, ledger_conn_id)
    return as_json(found.figures, (), found.stage)


def launch_url(launch_key: str) -> str:
    """Return the URL of a launch's page in Airflow's UI. The host comes from ``[api] base_url``."""
    from airflow.sdk import conf

    from sendoff_airflow.views.links import launch_page

    base = urlsplit(conf.get("api", "base_url", fallback="") or "http://localhost:8080")
    return f"{base.scheme}://{base.netloc}{launch_page(launch_key)}"


MACROS = [report_text, report_line, report_json, launch_url]


class _Reported(NamedTuple):
    """The newest report of a launch, the launch, and its state."""

    figures: LaunchStats
    launch: LaunchRecord
    stage: Stage


def _reported(launch_key: str, ledger_conn_id: str) -> _Reported:
    """Read the newest report of a launch."""
    from sendoff.launch import standing_of
    from sendoff_airflow.hooks.ledger import open_ledger

    with closing(open_ledger(ledger_conn_id)) as ledger:
        figures, launch = ledger.verdicts.figures(launch_key), ledger.launches.get(launch_key)
        return _Reported(figures, launch, standing_of(ledger, launch).stage)
