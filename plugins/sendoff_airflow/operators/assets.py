"""The assets of a campaign: the flow as Airflow's asset graph shows it.

An event says that there is something new and carries its keys and counts. It is a nudge: whoever it wakes reads the
ledger, since Airflow may hand over several events in one run, or some of them late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator, Context

from sendoff_airflow.lineage import openlineage

if TYPE_CHECKING:
    from sendoff.ledger import Launch

POST_BACKS = Asset(name="sendoff.post_backs", uri="sendoff://post-backs", group="sendoff")
"""Post-backs that wait to be reconciled; an event, from the UI or the REST API, has that done now."""


def audience_asset(campaign: str) -> Asset:
    """Return the asset that is renewed when an audience is frozen."""
    return _asset(campaign, "audience")


def launch_asset(campaign: str) -> Asset:
    """Return the asset that is renewed when every dispatch of a launch was made."""
    return _asset(campaign, "launch")


def report_asset(campaign: str) -> Asset:
    """Return the asset that is renewed when a launch was reconciled."""
    return _asset(campaign, "report")


def _asset(campaign: str, what: str) -> Asset:
    return Asset(name=f"{campaign}.{what}", uri=f"sendoff://{campaign}/{what}", group="sendoff")


def launch_facts(launch: Launch) -> dict[str, Any]:
    """Return what each event says about its launch, apart from counts."""
    return {
        "launch_key": launch.launch_key,
        "campaign": launch.campaign,
        "period": launch.period.key,
        "state": launch.state,
    }


class LaunchEventOperator(BaseOperator):
    """An operator that puts its results, as ids and counts, into the events of its outlets and into its lineage."""

    _lineage: Any = None

    def emit(self, context: Context, facts: Mapping[str, Any]) -> None:
        """Put facts into the asset events of this task, and build its lineage if somebody wants that."""
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(facts)
        if openlineage.lineage_enabled():
            self._lineage = self.build_lineage(facts)

    def build_lineage(self, facts: Mapping[str, Any]) -> Any:
        """Return the lineage of this task, as OpenLineage's provider takes it."""
        raise NotImplementedError

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return the lineage to OpenLineage's provider; None if the task emitted nothing."""
        return self._lineage
