"""Sendoff as an Airflow plugin."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class SendoffPlugin(AirflowPlugin):
    """Register Sendoff with Airflow; found by its entry point, not by a file in the plugins folder."""

    name = "sendoff"
