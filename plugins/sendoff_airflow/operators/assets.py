"""The assets of a campaign: its audience, launch and report in Airflow's asset graph.

An event means that there is something new. It carries keys and counts. A DAG that an event starts should read the
ledger itself, because Airflow may combine several events in one run or deliver them late.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, Context

from sendoff_airflow.ledger_operator import LedgerOperator
from sendoff_airflow.lineage import openlineage

if TYPE_CHECKING:
    from sendoff.ledger import LaunchRecord

POST_BACKS = Asset(name="sendoff.post_backs", uri="sendoff://post-backs", group="sendoff")
"""Post-backs that wait to be reconciled. Create an event in the UI or through the REST API to reconcile them now."""


def consume_events_together(dag: DAG) -> None:
    """Make one run of a DAG consume all asset events that wait for it.

    Airflow 3.3 always does so. Airflow 3.4 makes a run for each event, unless the DAG or its configuration asks for
    this.
    """
    if hasattr(dag.timetable, "batch_asset_events"):
        dag.timetable.batch_asset_events = True


def audience_asset(campaign: str) -> Asset:
    """Return the asset that gets an event when an audience is frozen."""
    return _asset(campaign, "audience")


def launch_asset(campaign: str) -> Asset:
    """Return the asset that gets an event when every request of a launch was made."""
    return _asset(campaign, "launch")


def report_asset(campaign: str) -> Asset:
    """Return the asset that gets an event when a launch was reconciled."""
    return _asset(campaign, "report")


@lru_cache(maxsize=64)  # several tasks of a campaign have the same asset
def _asset(campaign: str, what: str) -> Asset:
    return Asset(name=f"{campaign}.{what}", uri=f"sendoff://{campaign}/{what}", group="sendoff")


def launch_facts(launch: LaunchRecord) -> dict[str, Any]:
    """Return the facts that every event holds about its launch, without counts."""
    return {
        "launch_key": launch.launch_key,
        "campaign": launch.campaign,
        "period": launch.period.key,
        "resend": launch.resend,
        "state": launch.state,
    }


class LaunchEventOperator(LedgerOperator):
    """An operator that adds its results, as ids and counts, to the events of its outlets and to its lineage."""

    _lineage: Any = None

    def emit(self, context: Context, facts: Mapping[str, Any]) -> None:
        """Add facts to the asset events of this task. Build its lineage if OpenLineage is enabled."""
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(facts)
        if openlineage.lineage_enabled():
            self._lineage = self.build_lineage(facts)

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage of this task in the form of OpenLineage's provider."""
        raise NotImplementedError

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return the lineage for OpenLineage's provider, or None if the task emitted nothing."""
        return self._lineage
