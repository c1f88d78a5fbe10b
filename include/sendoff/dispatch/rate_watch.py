"""The gate ``hold_above``: hold a launch if too many recipients are refused, missing, or opt out.

A sequential test decides (:mod:`~sendoff.dispatch.rate_test`), so looks may be frequent. It counts as follows:

.. code-block:: text

    refused .... each request is one draw, weighted by its recipients, because the service answers it as a whole
    missing .... recipients of requests that the service sent ``after`` ago, if their silence means something
    opt_outs ... recipients of accepted requests; those who have not opted out yet may still do so

Requests in flight or in doubt count as not refused, and opt-outs of their recipients do not count yet. Only requests
since a person last released the launch count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property

from sendoff.campaign import Campaign, HoldAbove
from sendoff.dispatch.decisions import hold, released_at
from sendoff.dispatch.pace import Pace
from sendoff.dispatch.rate_test import FALSE_ALARMS, Draws, is_above
from sendoff.errors import LaunchErrors
from sendoff.figures import counted
from sendoff.ledger import Decision, LaunchRecord, Ledger
from sendoff.postbacks import count_silence
from sendoff.states import DecisionKind, DispatchState, LaunchState

_BETWEEN = 60.0  # seconds at least between two looks at post-backs and opt-outs while requests are made


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit, in percent, that the true rate is above. ``requests`` is None if recipients were counted one by one."""

    name: str
    limit: float
    problems: int
    people: int
    requests: int | None = None
    refused_requests: int | None = None

    def sentence(self, nouns: tuple[str, str]) -> str:
        """Return the counts and the limit in a sentence."""
        words = self.name.replace("_", " ")
        text = f"{words}: {self.problems:,} of {counted(self.people, *nouns)}"
        if self.requests is not None:
            text += f" ({self.refused_requests:,} of {counted(self.requests, 'request')})"
        return f"{text}, more than {self.limit:g} % (sequential test, {100 * FALSE_ALARMS:g} % false alarms)"


class RateWatch:
    """Holds one launch if its rates are above the limits of its campaign; thread-safe."""

    def __init__(self, ledger: Ledger, launch: LaunchRecord, campaign: Campaign) -> None:
        self._ledger = ledger
        self._launch = launch
        self._gate = campaign.gates.hold_above
        self._at_refused, self._at_all = Pace(0.0), Pace(_BETWEEN)

    def look(self, now: datetime) -> bool:
        """Check all limits, and hold the launch if one is exceeded and requests are left. Return whether it did."""
        return self._gate is not None and self._hold(self._gate, now, only_refused=False)

    def look_at_refused(self, now: datetime) -> None:
        """Check only the limit of refused recipients, with little of the worker's time. This reads no identifiers."""
        gate = self._gate
        if gate is not None and gate.refused is not None:
            self._at_refused.run(lambda: self._hold(gate, now, only_refused=True))

    def look_if_due(self, now: datetime) -> None:
        """Check all limits as :meth:`look` does, but at most once a minute and with little of the worker's time."""
        if self._gate is not None:
            self._at_all.run(lambda: self.look(now))

    @cached_property
    def _largest_segment(self) -> int:
        return self._ledger.launch_counts.largest_segment(self._launch.launch_key)

    def _hold(self, gate: HoldAbove, now: datetime, *, only_refused: bool) -> bool:
        key = self._launch.launch_key
        seen = self._ledger.audit_log.newest(key)
        is_released = self._ledger.launches.get(key).state == LaunchState.RELEASED
        if not is_released or not self._ledger.dispatch_queries.states(key).get(DispatchState.PLANNED):
            return False
        exceeded = list(self._exceeded(gate, now, only_refused=only_refused))
        if not exceeded:
            return False
        why = "; ".join(each.sentence(self._launch.noun) for each in exceeded)
        detail = {"hold_above": [asdict(each) for each in exceeded]}
        held = Decision(key, DecisionKind.HELD, "sendoff", why, now, detail)
        return hold(self._ledger, held, since=seen)

    def _exceeded(self, gate: HoldAbove, now: datetime, *, only_refused: bool) -> Iterator[Exceeded]:
        since = released_at(self._ledger, self._launch.launch_key)
        if gate.refused is not None and (refused := self._refused(gate.refused, since)):
            yield refused
        if only_refused:
            return
        if gate.missing is not None:
            before = now - gate.after.timedelta()
            people, missing = count_silence(self._ledger, self._launch, before=before, since=since, now=now)
            if is_above(gate.missing / 100, [Draws(people, missing)]):
                yield Exceeded("missing", gate.missing, missing, people)
        if gate.opt_outs is not None and (opted_out := self._opted_out(gate.opt_outs, since)):
            yield opted_out

    def _refused(self, limit: float, since: datetime | None) -> Exceeded | None:
        key = self._launch.launch_key
        made = [part for part in self._ledger.launch_counts.requests(key, since) if part.people]
        refused = [part for part in made if part.state == DispatchState.REFUSED]
        draws = [
            Draws(part.requests, part.requests if part in refused else 0, part.people / self._largest_segment)
            for part in made
        ]
        if not refused or not is_above(limit / 100, draws):
            return None
        return Exceeded(
            "refused",
            limit,
            sum(part.requests * part.people - part.withheld for part in refused),
            sum(part.requests * part.people - part.withheld for part in made),
            sum(part.requests for part in made),
            sum(part.requests for part in refused),
        )

    def _opted_out(self, limit: float, since: datetime | None) -> Exceeded | None:
        key, opted_out = self._launch.launch_key, self._ledger.launch_counts.opted_out(self._launch, since)
        if not opted_out:
            return None
        people = count = 0
        for sent_to, _ in self._ledger.launch_counts.accepted(key, since=since):
            people, count = people + len(sent_to), count + len(sent_to & opted_out)
        is_exceeded = is_above(limit / 100, [Draws(people, count)])
        return Exceeded("opt_outs", limit, count, people) if is_exceeded else None


def hold_launches_above_limits(
    ledger: Ledger, *, now: datetime, errors: LaunchErrors | None = None
) -> list[str]:
    """Check the limits of every launch that is released and not completely sent, and return the keys of those held.

    Workers check while they send. This finds launches that wait, such as for their next wave or their send window.
    ``errors``: collects the permanent errors of launches. Without it, they are raised after all launches are checked.
    """
    held = []
    found = errors or LaunchErrors()
    for key in ledger.launches.unsent(LaunchState.RELEASED):
        with found.collect(key):
            launch = ledger.launches.get(key)
            if RateWatch(ledger, launch, Campaign.frozen(launch.definition)).look(now):
                held.append(key)
    if errors is None:
        found.raise_all()
    return held
