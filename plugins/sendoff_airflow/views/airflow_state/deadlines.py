"""When a launch rejects itself, and when the service sends it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from sendoff.campaign import Campaign, Now, Once, OwnRequest, Variation
from sendoff.launch import SendTimes, send_times_of
from sendoff.ledger import LaunchRecord
from sendoff.states import LaunchState
from sendoff_airflow.views.airflow_state import airflow_db


def deadlines_of(launches: Collection[LaunchRecord]) -> Mapping[str, datetime]:
    """Return when each launch rejects itself if no one answers, by key. Others are left out.

    If several runs ask about a launch, it is when the first of their questions ends.
    """
    held = {launch.launch_key: launch.campaign for launch in launches if launch.state == LaunchState.HELD}
    questions = airflow_db.open_questions(set(held.values())) if held else []
    ends = [
        (each.launch_key, each.expires_at)
        for each in questions
        if each.expires_at and held.get(each.launch_key) == each.campaign
    ]
    return dict(sorted(ends, reverse=True))


def goes_out(launch: LaunchRecord, variations: Iterable[Variation]) -> SendTimes | None:
    """Return when the service sends a launch. None if it sends at once, has sent it, or the launch has ended."""
    campaign = Campaign.frozen(launch.definition)
    if launch.state.is_final or isinstance(campaign, OwnRequest) or isinstance(campaign.send, Now):
        return None
    times = send_times_of(campaign, variations, launch.period.end)
    end = times.last_at if isinstance(campaign.send, Once) else campaign.send.ends_at()
    return times if end is None or end > datetime.now(UTC) else None
