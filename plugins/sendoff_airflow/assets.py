"""The assets of a campaign: the flow as Airflow's asset graph shows it.

An event says that there is something new and carries its keys and counts. It is a nudge: whoever it wakes reads the
ledger, since Airflow may hand over several events in one run, or some of them late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context

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


def tell(context: Context, operator: BaseOperator, facts: Mapping[str, Any]) -> None:
    """Put facts (ids and counts) into the events that this task will cause."""
    for outlet in operator.outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(facts)
