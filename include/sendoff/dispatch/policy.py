"""The send policy: which parts of a launch may be sent now, and whether more will follow.

The statement that claims a dispatch checks that the launch is released, that launches are not paused, that the wave is
open, and the rate limit. This module decides the rest. It closes time zones by lateness, send windows and the rules for
all campaigns. It opens the next wave, decides the winner of a test share, and holds a launch that fails too often.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from sendoff.campaign import Campaign, Rollout
from sendoff.dispatch.decisions import hold, last_decision, released_at
from sendoff.dispatch.pace import Pace
from sendoff.dispatch.rate_watch import RateWatch
from sendoff.dispatch.rollout import open_next_wave
from sendoff.dispatch.winner import decide_winner
from sendoff.errors import GateError, NotYetError, RateLimitedLocallyError, RetryableError
from sendoff.figures import counted
from sendoff.launch import closed_until, lateness
from sendoff.ledger import DailyLimit, Decision, LaunchRecord, Ledger
from sendoff.postbacks import aggregate
from sendoff.states import DecisionKind, DispatchState, InDoubt, LaunchState, Refused, Resolution

_log = logging.getLogger(__name__)

_SOURCES_EVERY = 20.0  # seconds at least between two aggregations of post-backs for the sources of a launch
_LEASE = timedelta(minutes=5)  # about as long as a request of a dead worker counts as in flight
_PAUSE = timedelta(seconds=30)  # before a worker checks again whether a paused launch continues


class SendPolicy:
    """Decides which parts of a launch may be sent, and stops or holds it if necessary; thread-safe."""

    def __init__(self, ledger: Ledger, launch_key: str) -> None:
        self.launch = ledger.launches.get(launch_key)
        self.campaign = Campaign.frozen(self.launch.definition)
        self._ledger = ledger
        self._key = launch_key
        self.zones = frozenset(part.time_zone for part in ledger.dispatch_queries.progress(launch_key))
        self._closed: tuple[datetime, Mapping[str | None, datetime | None]] | None = None
        self.rates = RateWatch(ledger, self.launch, self.campaign)
        self._has_sources = bool(ledger.launches.sources(launch_key))
        self._at_sources = Pace(_SOURCES_EVERY)

    @property
    def is_limited_daily(self) -> bool:
        """Whether the rules for all campaigns limit the recipients of the launch's connection per day."""
        return self.campaign.warm_up is not None

    def daily_limit(self, now: datetime) -> DailyLimit | None:
        """Return the limit of the launch's connection on the UTC day of a moment, or None if it has none."""
        warm_up = self.campaign.warm_up
        if warm_up is None:
            return None
        day = now.astimezone(UTC).date()
        return DailyLimit(self.launch.connection, day, warm_up.limit_on(day))

    def closed_zones(self, now: datetime) -> frozenset[str | None]:
        """Return the time zones that must not be sent to now; all of them if the launch is too late."""
        return self.zones if self._lateness(now) else frozenset(self.closed_until(now))

    def is_too_late(self, now: datetime) -> bool:
        """Check whether the launch is later than its campaign allows. If so, stop it if some of it is unsent."""
        late = self._lateness(now)
        if late and self._ledger.dispatch_queries.states(self._key).get(DispatchState.PLANNED):
            self._stop(late, now)
        return bool(late)

    @property
    def must_follow_sources(self) -> bool:
        """Whether the post-backs of other launches that claims ask about are to be aggregated before the next claim."""
        return self._has_sources and self._at_sources.is_due

    def look_if_due(self, now: datetime, *, has_claim: bool = False) -> None:
        """Check the limits of ``hold_above``, and aggregate the post-backs of other launches that claims ask about.

        ``has_claim``: the worker holds a claim, whose lease aggregating might outlast, so only the limits are checked.
        """
        self.rates.look_if_due(now)
        if self._has_sources and not has_claim:
            self._at_sources.run(lambda: self._follow_sources(now))

    def _follow_sources(self, now: datetime) -> None:
        try:
            aggregate(self._ledger, now=now)
        except RetryableError as error:
            _log.warning("launch %s: later opens in other launches are not read yet: %s", self._key, error)

    def has_more(self, now: datetime) -> bool:
        """Check whether there is more to send after nothing could be claimed, and open the next wave if it is due.

        Raise GateError if a person must decide, and NotYetError if it is too early.
        """
        # Read the launch before its progress: another worker may open a wave at any time.
        launch = self._ledger.launches.get(self._key)
        progress = self._ledger.dispatch_queries.progress(self._key)
        planned = [part for part in progress if part.state == DispatchState.PLANNED]
        if LaunchState(launch.state).is_final:
            return False
        if not planned:
            self._check_nothing_may_return(now)
            return False
        self._check_released(launch, now)
        shut = self.closed_until(now)
        ahead = [part for part in planned if shut.get(part.time_zone, now) is not None]
        if not ahead:
            over = sum(part.dispatches for part in planned)
            ended = self.campaign.has_ended(now)
            why = "the messages have ended" if ended else "the time of sending has passed"
            self._stop(f"{why}, and {over:,} requests are not sent", now)
            return False
        if in_open_wave := [part for part in ahead if part.wave <= launch.wave]:
            openings = [until for part in in_open_wave if (until := shut.get(part.time_zone))]
            if len(openings) == len(in_open_wave):
                raise NotYetError(f"launch {self._key}: {self._why_closed()}", min(openings))
            self._check_rate(ready_by=now)
            return True  # another worker just gave a dispatch back, or the launch was just released
        decide, rollout = self.campaign.decide, self.campaign.gates.rollout or Rollout()
        if any(part.state == DispatchState.IN_FLIGHT and part.wave <= launch.wave for part in progress):
            # A dead worker's request is in flight until its lease ends.
            until = now + min((decide.after if decide else rollout.wait).timedelta(), _LEASE)
            raise NotYetError(f"launch {self._key}: wave {launch.wave} is in flight", until)
        if self.rates.look(now):
            self._check_released(self._ledger.launches.get(self._key), now)
        if decide:
            decide_winner(self._ledger, launch, decide, now=now)
        else:
            open_next_wave(self._ledger, launch, rollout, now=now)
        return True

    def _why_closed(self) -> str:
        if self.campaign.own_hours:
            return "it is the own hour (send.own_hours) of none of the remaining recipients"
        if self.campaign.rules_in_force.restricts_times:
            return "the rules for all campaigns or the send window allow no message now"
        return "the send window (gates.window) is closed"

    def resend_doubts(self, now: datetime) -> None:
        """Plan doubts again, once each, if the campaign has ``on_doubt: resend``."""
        if self.campaign.on_doubt == "resend":
            for doubt in self._ledger.doubts.open(self._key):
                self.resend_doubt(doubt.dispatch_key, doubt.segment, now)

    def resend_doubt(self, dispatch_key: str, segment: int, now: datetime) -> None:
        """Plan one dispatch again as :meth:`resend_doubts` does, without reading the others."""
        if self.campaign.on_doubt == "resend" and self._ledger.doubts.resolve(
            dispatch_key, Resolution.RESEND, "sendoff", "on_doubt: resend", now, doubts=1
        ):
            _log.warning("launch %s segment %d was in doubt and is sent again", self._key, segment)

    def hold_if_failing(self, outcome: Refused | InDoubt, now: datetime) -> None:
        """Hold the launch if too many of its latest requests failed this way and some are still unsent.

        Only requests since the last release count.
        """
        gate = self.campaign.gates.failures
        if gate is None:
            return
        seen = self._ledger.audit_log.newest(self._key)
        recent = self._ledger.dispatch_queries.recent_outcomes(
            self._key, gate.of, released_at(self._ledger, self._key)
        )
        is_refused = isinstance(outcome, Refused)
        failed, most = (recent.refused, gate.refused) if is_refused else (recent.in_doubt, gate.in_doubt)
        if failed < most or not self._ledger.dispatch_queries.states(self._key).get(DispatchState.PLANNED):
            return
        happened = "were refused by" if is_refused else "got no clear answer from"
        why = (
            f"{failed:,} of the last {counted(recent.requests, 'request')} {happened} the service; "
            f"fewer than {most:,} are allowed"
        )
        held = Decision(self._key, DecisionKind.HELD, "sendoff", why, now, asdict(recent))
        hold(self._ledger, held, since=seen)

    def _lateness(self, now: datetime) -> str | None:
        if self.campaign.gates.lateness is None:
            return None
        gate = lateness(self.campaign.gates.lateness, self.launch.due_at, now, self.campaign.own_hours_take)
        return None if gate.is_open else str(gate)

    def _stop(self, why: str, now: datetime) -> None:
        if self._ledger.audit_log.decide(
            Decision(self._key, DecisionKind.STOPPED, "sendoff", f"too late: {why}", now)
        ):
            _log.warning("launch %s is stopped, and the rest is not sent: %s", self._key, why)

    def closed_until(self, now: datetime) -> Mapping[str | None, datetime | None]:
        """Return the closed time zones, each with the time at which it opens; None if it never does.

        There are many with own hours, which open and close at full minutes, so they are kept for a minute.
        """
        if self.campaign.own_hours is None or self.campaign.has_ended(now):
            return closed_until(self.campaign, self.zones, self.launch.period.end, now)
        minute = now.replace(second=0, microsecond=0)
        if (known := self._closed) is None or known[0] != minute:
            known = minute, closed_until(self.campaign, self.zones, self.launch.period.end, minute)
            self._closed = known
        return known[1]

    def _check_nothing_may_return(self, now: datetime) -> None:
        """Raise NotYetError while requests are in flight that would be resent if their workers are dead."""
        if self.campaign.on_doubt != "resend":
            return
        left = self._ledger.doubts.next_expiry(self._key)
        if left is not None:
            raise NotYetError(
                f"launch {self._key}: its last requests are in flight, and are resent if their workers are dead",
                now + left + timedelta(seconds=1),
            )

    def _check_released(self, launch: LaunchRecord, now: datetime) -> None:
        if launch.state == LaunchState.HELD:
            held = last_decision(self._ledger, self._key, DecisionKind.HELD)
            why = (held.why or "") if held else "a person must approve it first"
            raise GateError(f"launch {self._key} is held: {why}; release it or stop it")
        if launch.state == LaunchState.PAUSED:
            paused = last_decision(self._ledger, self._key, DecisionKind.PAUSED)
            by = f" by {paused.who}: {paused.why}" if paused else ""
            raise NotYetError(f"launch {self._key} is paused{by}", now + _PAUSE)
        if pauses := self._ledger.pauses.of_connection(launch.connection):
            raise NotYetError(str(pauses[0]), now + _PAUSE)

    def check_rate(self, now: datetime, *, ready_by: datetime) -> None:
        """Raise RateLimitedLocallyError if only the rate limit keeps requests from being sent by ``ready_by``."""
        try:
            self._check_rate(ready_by)
        except RateLimitedLocallyError:
            launch = self._ledger.launches.get(self._key)
            if launch.state == LaunchState.RELEASED and self._ledger.dispatch_queries.has_planned(
                self._key, launch.wave, self.closed_zones(now)
            ):
                raise

    def _check_rate(self, ready_by: datetime) -> None:
        until = self._ledger.rate_limits.next_at(self.launch.connection)
        if until and until > ready_by:
            raise RateLimitedLocallyError(
                f"the rate limit of the connection {self.launch.connection} allows no request yet", until
            )
