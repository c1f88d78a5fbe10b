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
    """Give the asset that is renewed when an audience is frozen."""
    return _asset(campaign, "audience")


def launch_asset(campaign: str) -> Asset:
    """Give the asset that is renewed when every dispatch of a launch was made."""
    return _asset(campaign, "launch")


def report_asset(campaign: str) -> Asset:
    """Give the asset that is renewed when a launch was reconciled."""
    return _asset(campaign, "report")


def _asset(campaign: str, what: str) -> Asset:
    return Asset(name=f"{campaign}.{what}", uri=f"sendoff://{campaign}/{what}", group="sendoff")


def names_of(launch: Launch) -> dict[str, Any]:
    """Give what each event says of its launch, beside counts."""
    return {
        "launch_key": launch.launch_key,
        "campaign": launch.campaign,
        "period": launch.period.key,
        "state": launch.state,
    }


class TellingOperator(BaseOperator):
    """An operator that tells what it found, as ids and counts: to the events of its outlets, and to its lineage."""

    _lineage: Any = None

    def tell(self, context: Context, facts: Mapping[str, Any]) -> None:
        """Put facts into the events that this task will cause, and draw its lineage where somebody wants that."""
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(facts)
        if openlineage.is_drawn():
            self._lineage = self.draw(facts)

    def draw(self, facts: Mapping[str, Any]) -> Any:
        """Give the lineage of this task, as OpenLineage's provider takes it."""
        raise NotImplementedError

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Give OpenLineage's provider what was drawn; nothing where the task told nothing."""
        return self._lineage
