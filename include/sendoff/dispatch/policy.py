"""The clearance of a launch: what of it may be sent now, and whether more of it is to come.

Looked up in the statement that claims a dispatch is whether the launch is released, whether a brake is set and whether
the service asked for patience. Here is the rest: whether it is too late, which windows are open, what follows where
nothing can be claimed, and what must be decided where a request failed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta

from sendoff.campaign import Campaign, Spread
from sendoff.dispatch.rollout import open_next_wave
from sendoff.errors import GateError, NoSlotError, NotYetError
from sendoff.launch import is_over, lateness, opens_at, zone_of
from sendoff.ledger import Launch, Ledger
from sendoff.outcome import InDoubt, Refused

_log = logging.getLogger(__name__)

ENDED = frozenset({"rejected", "stopped"})
"""The states of a launch of which nothing more is sent."""

_PAUSE = timedelta(seconds=30)  # after which a worker looks whether a launch goes on that somebody paused


class Clearance:
    """Says what of one launch may be sent, and ends or holds it where that must be; may be shared by threads."""

    def __init__(self, ledger: Ledger, launch_key: str) -> None:
        self.launch = ledger.launches.get(launch_key)
        self.campaign = Campaign.frozen(self.launch.definition)
        self._ledger = ledger
        self._key = launch_key
        parts = ledger.dispatches.parts(launch_key)
        self.zones = frozenset(edition.time_zone for edition, _, _ in parts)

    def closed_zones(self, now: datetime) -> frozenset[str | None]:
        """Give the time zones whose people must not be sent to now; where it is too late, all of them."""
        return self.zones if self._lateness(now) else frozenset(self._shut(now))

    def is_too_late(self, now: datetime) -> bool:
        """Say whether a launch is later than its campaign allows, and stop it where something is left of it."""
        late = self._lateness(now)
        if late and self._ledger.dispatches.states(self._key).get("planned"):
            self._stop(late, now)
        return bool(late)

    def goes_on(self, now: datetime) -> bool:
        """Say whether there is more to send where nothing could be claimed, once the next wave is open.

        Raises GateError where a person must decide, NotYetError where it is too early.
        """
        # The launch before its progress: another worker may open a wave at any time.
        launch = self._ledger.launches.get(self._key)
        progress = self._ledger.dispatches.progress(self._key)
        planned = [part for part in progress if part.state == "planned"]
        if launch.state in ENDED:
            return False
        if not planned:
            self._check_nothing_may_return(now)
            return False
        self._check_released(launch, now)
        shut = self._shut(now)
        ahead = [part for part in planned if shut.get(part.time_zone, now) is not None]
        if not ahead:
            over = sum(part.dispatches for part in planned)
            self._stop(f"the moment of sending is over, and {over:,} requests are not made", now)
            return False
        if in_open_wave := [part for part in ahead if part.wave <= launch.wave]:
            openings = [until for part in in_open_wave if (until := shut.get(part.time_zone))]
            if len(openings) == len(in_open_wave):
                raise NotYetError(f"launch {self._key}: the window of gates.window is closed", min(openings))
            self._check_patience(now)
            return True  # another worker gave a dispatch back, or a launch was released, a moment ago
        spread = self.campaign.gates.spread or Spread()
        if any(part.state == "in_flight" and part.wave <= launch.wave for part in progress):
            until = now + spread.wait.timedelta()
            raise NotYetError(f"launch {self._key}: wave {launch.wave} is in flight", until)
        open_next_wave(self._ledger, launch, spread, now=now)
        return True

    def resend_doubts(self, now: datetime) -> None:
        """Plan again, once, what is in doubt of a campaign for which twice is better than never."""
        if self.campaign.on_doubt == "resend":
            for doubt in self._ledger.dispatches.doubts(self._key):
                self.resend_doubt(doubt.dispatch_key, doubt.segment, now)

    def resend_doubt(self, dispatch_key: str, segment: int, now: datetime) -> None:
        """Plan one dispatch again as :meth:`resend_doubts` does, without looking at the others."""
        if self.campaign.on_doubt == "resend" and self._ledger.dispatches.resolve(
            dispatch_key, "resend", "sendoff", "on_doubt: resend", now, doubts=1
        ):
            _log.warning("launch %s segment %d was in doubt and is sent again", self._key, segment)

    def hold_if_failing(self, outcome: Refused | InDoubt, now: datetime) -> None:
        """Hold a launch of which too many of the newest requests failed as this one did, where something is left of it.

        Counted is from where somebody released it last.
        """
        gate = self.campaign.gates.failures
        if gate is None:
            return
        seen = self._ledger.decisions.newest(self._key)
        recent = self._ledger.dispatches.recent(self._key, gate.of, released_at(self._ledger, self._key))
        found, most = {
            "refused": (recent.refused, gate.refused),
            "in_doubt": (recent.in_doubt, gate.in_doubt),
        }[outcome.kind]
        if found < most or not self._ledger.dispatches.states(self._key).get("planned"):
            return
        why = (
            f"gates.failures.{outcome.kind}: found {found:,} of the newest {_count(recent.requests, 'request')} "
            f"{outcome.kind.replace('_', ' ')}; allowed: fewer than {most:,}"
        )
        if self._ledger.decisions.decide(
            self._key, "held", "sendoff", why, now=now, detail=asdict(recent), since=seen
        ):
            _log.warning("launch %s is held: %s", self._key, why)

    def _lateness(self, now: datetime) -> str | None:
        if self.campaign.gates.lateness is None:
            return None
        gate = lateness(self.campaign.gates.lateness, self.launch.due_at, now)
        return None if gate.is_open else str(gate)

    def _stop(self, why: str, now: datetime) -> None:
        if self._ledger.decisions.decide(self._key, "stopped", "sendoff", f"too late: {why}", now=now):
            _log.warning("launch %s is stopped, and the rest of it is not sent: %s", self._key, why)

    def _shut(self, now: datetime) -> Mapping[str | None, datetime | None]:
        """Give the closed time zones, with the time from which their people may be sent to; None: never.

        The window is for what is sent at once; another moment of sending was held against it before the launch was
        frozen.
        """
        window = self.campaign.gates.window if self.campaign.send.kind == "now" else None
        shut: dict[str | None, datetime | None] = {}
        for zone in self.zones:
            if is_over(self.campaign, zone, self.launch.period.end, now):
                shut[zone] = None
            elif window and (until := opens_at(window, zone_of(window, zone), now)):
                shut[zone] = until
        return shut

    def _check_nothing_may_return(self, now: datetime) -> None:
        """Raise NotYetError while the doubt that a dead worker leaves would be sent again: somebody must be there."""
        if self.campaign.on_doubt != "resend":
            return
        left = self._ledger.dispatches.next_expiry(self._key)
        if left is not None:
            raise NotYetError(
                f"launch {self._key}: its last requests are in flight, and are sent again if their workers are dead",
                now + left + timedelta(seconds=1),
            )

    def _check_released(self, launch: Launch, now: datetime) -> None:
        if launch.state == "held":
            held = self._decided("held")
            raise GateError(f"launch {self._key} is held: {held}; release it or stop it")
        if launch.state == "paused":
            raise NotYetError(f"launch {self._key} is paused{self._decided('paused')}", now + _PAUSE)
        for brake in self._ledger.brakes.on(launch.connection):
            raise NotYetError(
                f"launches are paused ({brake.scope}) by {brake.who}: {brake.why}", now + _PAUSE
            )

    def _check_patience(self, now: datetime) -> None:
        until = self._ledger.rates.next_at(self.launch.connection)
        if until and until > now:
            raise NoSlotError(f"no request over the connection {self.launch.connection} is due yet", until)

    def _decided(self, kind: str) -> str:
        """Say why a launch is held, or by whom it was paused and why."""
        decided = [each for each in self._ledger.decisions.of_launch(self._key) if each.kind == kind]
        if kind == "held":
            return decided[-1].why or "" if decided else "somebody must agree first"
        return f" by {decided[-1].who}: {decided[-1].why}" if decided else ""


def released_at(ledger: Ledger, launch_key: str) -> datetime | None:
    """Give when somebody released a launch last, after which its failures count anew."""
    released = [each for each in ledger.decisions.of_launch(launch_key) if each.kind == "released"]
    return released[-1].decided_at if released else None


def _count(number: int, noun: str) -> str:
    return noun if number == 1 else f"{number:,} {noun}s"
