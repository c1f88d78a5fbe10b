"""Staged rollout: the next wave of a launch opens only if the waves before it went well.

The open waves are judged when all their requests are sent. The limits are the share of refused requests and the share
of missing recipients. A request in doubt counts as refused until a post-back proves otherwise, also if it is written
off. A request that was not made, because all its recipients are left out, does not count. If a person releases a launch
that a wave held, that wave and the earlier ones are not judged again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sendoff.campaign import Rollout
from sendoff.dispatch.decisions import hold
from sendoff.errors import NotYetError
from sendoff.ledger import Decision, LaunchRecord, Ledger
from sendoff.postbacks import aggregate, count_silence
from sendoff.states import DecisionKind, DispatchState

_log = logging.getLogger(__name__)

_REFUSED = (DispatchState.REFUSED, DispatchState.IN_DOUBT, DispatchState.WRITTEN_OFF)


@dataclass(frozen=True, slots=True)
class WaveResult:
    """The result of the open waves.

    ``requests``: accepted, refused, or in doubt. ``people``: accepted recipients whose silence means missing.
    """

    wave: int
    requests: int
    refused: int
    people: int
    missing: int

    def violations(self, rollout: Rollout) -> Iterator[str]:
        """Yield a sentence for each limit of the campaign that the waves exceed."""
        limits = [
            (self.refused, self.requests, "requests refused or in doubt", rollout.refused),
            (self.missing, self.people, "people missing", rollout.missing),
        ]
        for count, whole, what, allowed in limits:
            percent = 100 * count / whole if whole else 0.0
            if allowed is not None and percent > allowed:
                yield (f"{count:,} of {whole:,} {what} ({percent:.1f} %); at most {allowed:g} % is allowed")


def open_next_wave(ledger: Ledger, launch: LaunchRecord, rollout: Rollout, *, now: datetime) -> None:
    """Judge the open waves of a launch, then open the next one or hold the launch.

    ``launch``: read before its open waves turned out to be sent. If the launch has changed since, or someone has
    decided about it, do nothing. So only one worker decides, and a person's decision comes first. Raise NotYetError
    while the rollout waits for post-backs.
    """
    launch_key, wave = launch.launch_key, launch.wave
    newest_decision = ledger.audit_log.newest(launch_key)
    released = ledger.audit_log.released_wave(launch_key)
    why, detail = "a person released the launch", None
    if released < wave:
        newest = ledger.dispatch_queries.newest_exchange(launch_key, up_to_wave=wave)
        if newest and now < (until := newest + rollout.wait.timedelta()):
            raise NotYetError(
                f"launch {launch_key}: wave {wave} is sent, and post-backs may still come", until
            )
        result = _judge(ledger, launch, range(released + 1, wave + 1), rollout, now)
        why, detail = f"wave {wave} went well", asdict(result)
        if violations := "; ".join(result.violations(rollout)):
            why = f"after wave {wave}: {violations}"
            held = Decision(launch_key, DecisionKind.HELD, "sendoff", why, now, detail)
            hold(ledger, held, since=newest_decision, wave=wave)
            return
    decision = Decision(launch_key, DecisionKind.WAVE, "sendoff", why, now, detail)
    if ledger.audit_log.decide(decision, wave=wave, since=newest_decision):
        _log.info("launch %s: wave %d is open", launch_key, wave + 1)


def _judge(
    ledger: Ledger, launch: LaunchRecord, waves: Sequence[int], rollout: Rollout, now: datetime
) -> WaveResult:
    key, people, missing = launch.launch_key, 0, 0
    aggregate(ledger, now=now)  # post-backs may settle doubts
    if rollout.missing is not None:
        people, missing = count_silence(ledger, launch, before=now, waves=waves, now=now)
    states: Counter[str] = Counter()
    for part in ledger.dispatch_queries.progress(key):
        if part.wave in waves:
            states[part.state] += part.dispatches
    refused = sum(states[state] for state in _REFUSED)
    return WaveResult(launch.wave, states[DispatchState.ACCEPTED] + refused, refused, people, missing)
