"""The rows of a list of launches, with their states and the times when they go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sendoff.campaign import OWN_ZONE, QUERY_ZONE, Campaign, Once
from sendoff.errors import CampaignError
from sendoff.launch import Standing, has_begun, has_gone_out
from sendoff.ledger import LaunchRecord, Ledger, ListedLaunch, Selection
from sendoff.states import DispatchState, LaunchState, Stage
from sendoff_airflow.views.facts.holds import standings_of

WAITS = (Stage.STUCK, Stage.PAUSED, Stage.WAITING_FOR_APPROVAL, Stage.WAITING_FOR_DECISION)
"""The states that a launch leaves only if someone does something."""

_ONCE = {
    Stage.WAITING_FOR_APPROVAL: "Once approved",
    Stage.WAITING_FOR_DECISION: "Once released",
    Stage.STUCK: "Once continued",
    Stage.PAUSED: "Once resumed",
    Stage.SENDING: "Soon",
}


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch of a list."""

    listed: ListedLaunch
    standing: Standing

    @property
    def launch(self) -> LaunchRecord:
        """The launch."""
        return self.listed.launch

    @property
    def campaign(self) -> str:
        """The name of its campaign."""
        return self.launch.campaign

    @property
    def goes_out_at(self) -> datetime | None:
        """When it went out or will go out, if that is known."""
        at = self.standing.first_at or self.listed.sends_at or self.standing.until
        is_off = at is not None and at > datetime.now(UTC) and sends_nothing(self.launch, self.standing.known)
        return None if is_off else at

    @property
    def went_out_at(self) -> datetime | None:
        """When it went out, if recipients may have got it."""
        at = self.goes_out_at
        is_ahead = at is None or at > datetime.now(UTC)
        return None if is_ahead or not has_gone_out(self.standing.known) else at

    @property
    def when(self) -> str:
        """The words before the time: whether it went out, goes out by itself, or waits for someone.

        Without a time: after what it goes out; empty if nothing of it goes out.
        """
        if self.goes_out_at is None:
            return _ONCE.get(self.standing.stage, "")
        if self.goes_out_at <= datetime.now(UTC):
            return "Went out" if self.went_out_at else "Was due"
        verb = "Due" if self.standing.stage in WAITS else "Goes out"
        return f"{verb} at the latest" if self.is_last else verb

    @property
    def is_last(self) -> bool:
        """Whether the service sends it by then, at different moments in different time zones."""
        if self.goes_out_at is None or self.goes_out_at <= datetime.now(UTC):
            return False
        with suppress(CampaignError):  # another version of Sendoff froze it
            send = Campaign.frozen(self.launch.definition).send
            return isinstance(send, Once) and send.time_zone in (OWN_ZONE, QUERY_ZONE)
        return False

    @property
    def is_unsent(self) -> bool:
        """Whether no request of it was begun."""
        return not has_begun(self.standing.known)

    @property
    def is_still_to_go_out(self) -> bool:
        """Whether no one got it so far: no request was begun, or the service sends it later."""
        is_later = self.goes_out_at is not None and self.goes_out_at > datetime.now(UTC)
        return self.is_unsent or (is_later and not self.listed.reached)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it goes out any more."""
        return self.launch.state.is_final or sends_nothing(self.launch, self.standing.known)

    @property
    def is_open(self) -> bool:
        """Whether it is held and goes on as soon as someone approves or releases it."""
        return self.launch.state == LaunchState.HELD and (self.goes_out_at is None or not self.is_unsent)

    @property
    def is_to_continue(self) -> bool:
        """Whether some of it went out, and the rest waits for the send window or the next wave."""
        until, at = self.standing.until, self.goes_out_at
        return until is not None and at is not None and at < until


def sends_nothing(launch: LaunchRecord, known: Mapping[str, int]) -> bool:
    """Check whether no one has got a launch, and no one will. ``known``: its requests by their known result."""
    is_off = launch.state.is_final or (bool(known) and DispatchState.PLANNED not in known)
    return is_off and not has_gone_out(known)


def rows_of(ledger: Ledger, listed: Sequence[ListedLaunch]) -> list[LaunchRow]:
    """Return the rows of a list, with their states."""
    found = standings_of(ledger, Selection.of([each.launch for each in listed]))
    return [LaunchRow(each, found[each.launch.launch_key]) for each in listed]
