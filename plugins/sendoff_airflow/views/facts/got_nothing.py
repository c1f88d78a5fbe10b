"""The recipients who got nothing from a launch, why, and how its period is sent again to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sendoff.campaign import Campaign, OwnRequest, Period
from sendoff.ledger import LaunchRecord, Ledger
from sendoff.states import UNFINISHED, DispatchState, OutcomeKind
from sendoff_airflow.views.airflow_state.airflow_dags import DagSchedule, fields_of, schedule_of

ONLY_UNSENT = "only_unsent"
"""The field of a DAG's trigger form that leaves out people who got, or may have got, an earlier launch."""

_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class SendAgain:
    """A run of a campaign's DAG that sends a period again, only to those who got nothing."""

    schedule: DagSchedule
    number: int  # of the resend
    period: Period

    @property
    def body(self) -> Mapping[str, Any]:
        """The body of the request to Airflow that starts the run, without the reason."""
        return {
            "logical_date": "now",
            "data_interval_start": self.period.start.isoformat(),
            "data_interval_end": self.period.end.isoformat(),
            "conf": {"resend": self.number, ONLY_UNSENT: True, "send_late": True},
        }


@dataclass(frozen=True, slots=True)
class GotNothing:
    """The recipients who got nothing from a launch, and get nothing from it by themselves.

    The numbers of recipients are 0 if the service chooses them. ``reasons``: why the service refused requests.
    ``written_off``: recipients of requests that were written off and whose result is not known. ``again``: None if the
    period was sent again already, or cannot be sent again in this way.
    """

    requests: int  # refused, without a doubt about an earlier attempt
    refused: int
    not_made: int
    not_processed: int  # written off, and not processed
    written_off: int
    reasons: Sequence[str]
    may_go_on: bool
    again: SendAgain | None

    @property
    def recipients(self) -> int:
        """The number of recipients who got nothing."""
        return self.refused + self.not_made + self.not_processed


def got_nothing(
    ledger: Ledger, launch: LaunchRecord, same_period: Sequence[LaunchRecord], requests: Mapping[str, int]
) -> GotNothing | None:
    """Return who got nothing from a launch, or None if that is no one.

    ``same_period``: the launches of its campaign for the same period. ``requests``: those of the launch by state.
    """
    if not launch.state.is_final and {DispatchState.REFUSED, DispatchState.WRITTEN_OFF}.isdisjoint(requests):
        return None
    key = launch.launch_key
    counts, written_off = ledger.launches.got_nothing(key), 0
    refused, refused_recipients = counts.get(DispatchState.REFUSED, (0, 0))
    _, not_made = counts.get(DispatchState.PLANNED, (0, 0))
    _, not_processed = counts.get(DispatchState.WRITTEN_OFF, (0, 0))
    if requests.get(DispatchState.WRITTEN_OFF):
        recipients = ledger.dispatch_queries.counts(key).recipients
        written_off = recipients[DispatchState.WRITTEN_OFF] - not_processed
    if not (refused or not_made or not_processed):
        return None
    may_go_on = not launch.state.is_final and any(requests.get(state) for state in UNFINISHED)
    return GotNothing(
        refused,
        refused_recipients,
        not_made,
        not_processed,
        written_off,
        ledger.dispatch_queries.reasons(key, OutcomeKind.REFUSED, limit=_MOST_REASONS) if refused else (),
        may_go_on,
        None if may_go_on or any(each.resend > launch.resend for each in same_period) else _again(launch),
    )


def _again(launch: LaunchRecord) -> SendAgain | None:
    """Return how the newest launch for a period is followed by one to those who got nothing.

    Return None if their identifiers are not known, or if the DAG's trigger form has no field for it. Return None also
    for a partition, and for a campaign that the service repeats: no data interval chooses their period. A run without
    the launch's size limit would reach those that the limit left out.
    """
    campaign = Campaign.frozen(launch.definition)
    has_own_period = not (campaign.fixed_period or launch.period.partition)
    are_known = not (launch.is_chosen_by_service or launch.deleted or isinstance(campaign, OwnRequest))
    if not (has_own_period and are_known) or launch.dropped.get("size_limit"):
        return None
    schedule = schedule_of(launch.campaign)
    if schedule is None or schedule.problem is not None or schedule.dag_id != launch.campaign:
        return None
    if ONLY_UNSENT not in fields_of(schedule.dag_id):
        return None
    return SendAgain(schedule, launch.resend + 1, launch.period)
