"""The provider's metadata for Airflow: connection types with their forms, hooks, operators, sensors, triggers."""

from __future__ import annotations

from typing import Any

from sendoff_airflow.hooks.forms import ledger_form, receiver_form, service_form


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, which Airflow reads through the entry point ``apache_airflow_provider``."""
    return {
        "package-name": "airflow-provider-sendoff",
        "name": "Sendoff",
        "description": "Messaging campaigns as Airflow DAGs: sent at most once, with a verdict for every recipient.",
        "integrations": [{"integration-name": "Sendoff", "tags": ["service"]}],
        "connection-types": [service_form(), ledger_form(), receiver_form()],
        "hooks": [_modules(*(f"sendoff_airflow.hooks.{name}" for name in ("service", "ledger", "receiver")))],
        "operators": [
            _modules(
                "sendoff_airflow.operators",
                "sendoff_airflow.operators.approval",
                "sendoff_airflow.operators.doubts",
                "sendoff_airflow.operators.report",
            )
        ],
        "sensors": [_modules("sendoff_airflow.sensors")],
        "task-decorators": [
            {"name": "audience", "class-name": "sendoff_airflow.operators.decorators.audience_task"}
        ],
        "triggers": [_modules("sendoff_airflow.triggers")],
        "extra-links": ["sendoff_airflow.views.links.LaunchLink", "sendoff_airflow.views.links.CampaignLink"],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": "Sendoff", "python-modules": list(names)}
