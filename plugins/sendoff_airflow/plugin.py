"""The Airflow plugin: it adds Sendoff's pages to the navigation of Airflow's UI and to the pages of DAGs and runs."""

from __future__ import annotations

import sys
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from sendoff_airflow.run_notes import RunNotes
from sendoff_airflow.views.app import app
from sendoff_airflow.views.links import PREFIX, CampaignLink, LaunchLink
from sendoff_airflow.views.macros import MACROS

# Relative, so that they also work if Airflow is served under a path.
_ROOT = PREFIX[1:]
_ICONS = {"icon": f"{_ROOT}/static/sendoff.svg", "icon_dark_mode": f"{_ROOT}/static/sendoff-dark.svg"}
_RUN = f"{_ROOT}/dag?dag_id={{DAG_ID}}&run_id={{RUN_ID}}"


def _view(destination: str, route: str, href: str, **more: Any) -> dict[str, Any]:
    return {"name": "Sendoff", "destination": destination, "url_route": route, "href": href, **_ICONS, **more}


class ParsingImports:
    """Imports the DAG factory before the DAG processor forks a process for each parsing of a DAG file."""

    @hookimpl
    def on_starting(self, component: Any) -> None:  # noqa: ARG002
        """Import it if the component that starts is a DAG processor."""
        if "airflow.jobs.dag_processor_job_runner" in sys.modules:
            import sendoff_airflow.dags  # noqa: F401


class SendoffPlugin(AirflowPlugin):
    """Register Sendoff with Airflow. Airflow finds it by its entry point, not in the plugins folder."""

    name = "sendoff"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "Sendoff"}]  # noqa: RUF012  # as the base class has it
    external_views = [  # noqa: RUF012
        _view("nav", "sendoff", f"{_ROOT}/", nav_top_level=True),
        _view("dag", "sendoff-campaign", f"{_ROOT}/dag?dag_id={{DAG_ID}}"),
        _view("dag_run", "sendoff-launch", _RUN),
        _view("task_instance", "sendoff-launch-of-task", _RUN),
    ]
    operator_extra_links = [LaunchLink(), CampaignLink()]  # noqa: RUF012
    listeners = [RunNotes(), ParsingImports()]  # noqa: RUF012
    macros = MACROS
