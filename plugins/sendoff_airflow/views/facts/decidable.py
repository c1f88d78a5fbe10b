"""What a person may decide about a launch, and what they should know before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from sendoff.campaign import Variation
from sendoff.dispatch import Proposal, approval_ends_at, awaited_role, newest_of, proposal_of
from sendoff.launch import HeldByService, held_by_service
from sendoff.ledger import Decision, LaunchRecord, Ledger
from sendoff.states import DecisionKind, LaunchState
from sendoff_airflow.views.airflow_state import airflow_db
from sendoff_airflow.views.airflow_state.deadlines import deadlines_of
from sendoff_airflow.views.facts.holds import Asked, acts_on, asked_at, visible_run
from sendoff_airflow.views.facts.unsent import Unsent, reached_of, unsent_of
from sendoff_airflow.views.web.permissions import Viewer


@dataclass(frozen=True)
class Decidable:
    """A launch with the actions that are possible, and the facts that its page shows beside them.

    ``since``: the newest decision about it. ``why``: the decision that held it; None if it waits for its approval.
    ``role``: the role that must approve it. ``asked``: Airflow's question to that role. ``unsent``: if something
    is possible. ``reached``: of a held launch. ``later``: what the service sends later.
    """

    viewer: Viewer
    launch: LaunchRecord
    since: int
    decisions: Sequence[Decision]
    why: Decision | None
    proposal: Proposal | None
    acts: Sequence[str]
    role: str | None
    asked: Asked | None
    rejects_itself_at: datetime | None
    is_overdue: bool  # the time for its approval is over
    unsent: Unsent | None
    reached: int | None  # by the channels, None if all, or if that is not known
    later: Sequence[HeldByService]

    @cached_property
    def run(self) -> airflow_db.Run | None:
        """The run of the launch, if the viewer may see it."""
        return visible_run(self.viewer, self.launch)

    @cached_property
    def named_decisions(self) -> Sequence[Decision]:
        """The decisions. A release is an approval, unless something held the launch before."""
        kinds = [each.kind for each in self.decisions]
        held = kinds.index(DecisionKind.HELD) if DecisionKind.HELD in kinds else len(kinds)
        return [
            replace(each, kind=DecisionKind.APPROVED)
            if each.kind == DecisionKind.RELEASED and number < held
            else each
            for number, each in enumerate(self.decisions)
        ]

    @cached_property
    def is_answered(self) -> bool:
        """Whether someone with the role answered already, and the run has not acted on it yet."""
        return not self.asked and self.run is not None and airflow_db.is_answered(self.run)

    @cached_property
    def to_ask(self) -> str | None:
        """The task to clear so that the run asks the role; None if it asks already, or may do so by itself."""
        return None if self.asked or self.is_answered or self.run is None else self.run.to_ask


def decidable(
    ledger: Ledger,
    viewer: Viewer,
    launch: LaunchRecord,
    requests: Mapping[str, int],
    variations: Iterable[Variation],
) -> Decidable:
    """Return what a viewer may decide about a launch. ``requests``: by state. ``variations``: of its segments."""
    since = ledger.audit_log.newest(launch.launch_key)
    decisions = ledger.audit_log.of_launch(launch.launch_key)
    role, is_held = awaited_role(launch, decisions), launch.state == LaunchState.HELD
    rejects_itself_at = deadlines_of([launch]).get(launch.launch_key)
    ends_at = rejects_itself_at or approval_ends_at(launch, decisions)
    is_overdue = ends_at is not None and ends_at < datetime.now(UTC)
    acts = [each for each in acts_on(launch, role, requests) if not (is_overdue and each == "release")]
    unsent = unsent_of(ledger, launch, variations) if acts else None
    return Decidable(
        viewer,
        launch,
        since,
        decisions,
        why=newest_of(decisions, DecisionKind.HELD),
        proposal=proposal_of(launch, decisions),
        acts=acts,
        role=role,
        asked=asked_at(viewer, launch) if role else None,
        rejects_itself_at=rejects_itself_at,
        is_overdue=is_overdue,
        unsent=unsent,
        reached=reached_of(ledger, launch) if is_held and unsent and not unsent.is_begun else None,
        later=held_by_service(ledger, launch),
    )
